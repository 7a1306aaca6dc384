//! Samples as data points, and the messages that they are sent in.
//!
//! Points are encoded one by one, with the published numbers of the fields: as structures they would take several times
//! the memory, of a hundred thousand series.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    mem,
};

use bytes::Bytes;
use prost::Message;
use smallvec::{SmallVec, smallvec};

use super::message as otlp;
use metrics::{Distribution, Metric, MetricType, Value};
use proto::{
    encode::{eight_bytes, explicit_text, message, number, packed, text},
    opentelemetry::proto::resource::v1::Resource,
};

/// The size of a message: collectors take 4 MiB over gRPC unless they are told otherwise.
const MAX_MESSAGE_BYTES: usize = 512 << 10;

/// Enough for what a message has around its metrics: the resource, as long as attributes are few.
const ENVELOPE_BYTES: usize = 4 << 10;

const DELTA: u64 = 1;
const CUMULATIVE: u64 = 2;

/// What a sample says: the number of each bucket of a histogram, one number, or a sum alone.
#[derive(Clone, PartialEq, Debug, Default)]
struct Reading {
    counts: SmallVec<[u64; 1]>,
    sum: f64,
}

impl Reading {
    /// The reading, and the bounds of its buckets.
    fn of(value: Value<'_>) -> (Self, Vec<f64>) {
        match value {
            Value::Whole(number) => (Self { counts: smallvec![number], sum: 0.0 }, Vec::new()),
            Value::Float(sum) => (Self { counts: SmallVec::new(), sum }, Vec::new()),
            Value::Times(times) => Self::of(Value::Distribution(&times.in_units(1.0))),
            Value::Distribution(Distribution { buckets, count, sum }) => {
                let mut below = 0;
                let within = buckets.iter().map(|(_, within)| *within).chain([*count]);
                let counts = within.map(|within| within - mem::replace(&mut below, within)).collect();
                (Self { counts, sum: *sum }, buckets.iter().map(|(bound, _)| *bound).collect())
            }
        }
    }

    /// True if a counter has restarted since this was accepted.
    fn is_below(&self, accepted: &Self) -> bool {
        self.sum < accepted.sum || self.counts.iter().zip(&accepted.counts).any(|(now, then)| now < then)
    }

    fn since(&self, accepted: &Self) -> Self {
        let mut counts = self.counts.clone();
        counts.iter_mut().zip(&accepted.counts).for_each(|(count, accepted)| *count -= accepted);
        Self { counts, sum: self.sum - accepted.sum }
    }
}

/// What the collector has accepted of a series.
#[derive(Debug)]
struct Account {
    accepted: Reading,
    /// The time that its next point begins at, in nanoseconds like all times here.
    since: u64,
    /// When the series was last read.
    read: u64,
}

/// The accounts of counters and histograms, by a hash of their names and labels.
#[derive(Default)]
pub(super) struct Accounts {
    known: HashMap<u64, Account>,
    hasher: RandomState,
    /// The last time that all series were read: one that is new has begun since.
    read: u64,
}

pub(super) struct Point {
    begun: u64,
    at: u64,
    bounds: Vec<f64>,
    reading: Reading,
    /// The series, and what is accepted of it with this point. `None` for a gauge.
    accepted: Option<(u64, Reading)>,
}

impl Accounts {
    pub(super) fn new(now: u64) -> Self {
        Self { read: now, ..Self::default() }
    }

    /// The point of a sample; `None` for a delta of nothing.
    pub(super) fn point(
        &mut self,
        metric: &Metric,
        labels: &[&str],
        value: Value<'_>,
        is_delta: bool,
        now: u64,
    ) -> Option<Point> {
        let (reading, bounds) = Reading::of(value);
        if metric.kind == MetricType::Gauge {
            return Some(Point { begun: 0, at: now, bounds, reading, accepted: None });
        }
        let series = self.hasher.hash_one((metric.name, labels));
        let begins = || Account { accepted: Reading::default(), since: self.read, read: now };
        let account = self.known.entry(series).or_insert_with(begins);
        if reading.is_below(&account.accepted) {
            *account = begins();
        }
        account.read = now;
        let accepted = Some((series, reading.clone()));
        let reading = if is_delta { reading.since(&account.accepted) } else { reading };
        let is_nothing = reading.sum == 0.0 && reading.counts.iter().all(|count| *count == 0);
        (!is_delta || !is_nothing).then_some(Point {
            begun: account.since,
            at: now,
            bounds,
            reading,
            accepted,
        })
    }

    /// Forgets the series that were not read this time: they are gone, and begin again if they return.
    pub(super) fn end_read(&mut self, now: u64) {
        self.known.retain(|_, account| account.read == now);
        self.read = now;
    }

    /// Notes that the points of a batch were accepted.
    pub(super) fn settle(&mut self, batch: Batch) {
        for (series, accepted, is_delta) in batch.accepted {
            if let Some(account) = self.known.get_mut(&series) {
                account.accepted = accepted;
                if is_delta {
                    account.since = account.read;
                }
            }
        }
    }
}

impl Point {
    fn encode(&self, metric: &Metric, labels: &[&str], out: &mut Vec<u8>) {
        let Self { begun, at, bounds, reading: Reading { counts, sum }, .. } = self;
        eight_bytes(out, 2, begun.to_le_bytes());
        eight_bytes(out, 3, at.to_le_bytes());
        let attribute = if metric.kind == MetricType::Histogram {
            eight_bytes(out, 4, counts.iter().sum::<u64>().to_le_bytes());
            eight_bytes(out, 5, sum.to_le_bytes());
            packed(out, 6, counts.iter().map(|count| count.to_le_bytes()));
            packed(out, 7, bounds.iter().map(|bound| bound.to_le_bytes()));
            9
        } else {
            match counts.first() {
                Some(count) => eight_bytes(out, 6, (*count).min(i64::MAX as u64).to_le_bytes()),
                None => eight_bytes(out, 4, sum.to_le_bytes()),
            }
            7
        };
        for (name, value) in metric.labels.iter().zip(labels) {
            message(out, attribute, |out| {
                text(out, 1, name);
                message(out, 2, |out| explicit_text(out, 1, value));
            });
        }
    }
}

/// A message, and what is accepted with it.
#[derive(Default)]
pub(super) struct Batch {
    /// Compressed, so that what waits is small.
    pub(super) compressed: Bytes,
    pub(super) points: u64,
    accepted: Vec<(u64, Reading, bool)>,
}

/// The messages of an export. The samples of a metric come together.
pub(super) struct Batches<'r> {
    resource: &'r Resource,
    /// The metrics of the next message, and the last of them with its points.
    metrics: Vec<u8>,
    last: Option<(Metric, bool)>,
    points: Vec<u8>,
    next: Batch,
    complete: Vec<Batch>,
}

impl<'r> Batches<'r> {
    pub(super) fn new(resource: &'r Resource) -> Self {
        Self {
            resource,
            metrics: Vec::new(),
            last: None,
            points: Vec::new(),
            next: Batch::default(),
            complete: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, metric: &Metric, labels: &[&str], is_delta: bool, point: Point) {
        if self.last.as_ref().is_none_or(|(last, _)| last.name != metric.name) {
            self.end_metric();
            self.last = Some((*metric, is_delta));
        }
        message(&mut self.points, 1, |out| point.encode(metric, labels, out));
        self.next.points += 1;
        self.next.accepted.extend(point.accepted.map(|(series, reading)| (series, reading, is_delta)));
        if self.metrics.len() + self.points.len() >= MAX_MESSAGE_BYTES {
            self.complete();
        }
    }

    fn end_metric(&mut self) {
        let Some((metric, is_delta)) = self.last.take() else { return };
        let temporality = if is_delta { DELTA } else { CUMULATIVE };
        let points = &mut self.points;
        message(&mut self.metrics, 2, |out| {
            text(out, 1, metric.name);
            text(out, 2, metric.help);
            text(out, 3, unit(metric.name));
            let field = match metric.kind {
                MetricType::Gauge => 5,
                MetricType::Counter => 7,
                MetricType::Histogram => 9,
            };
            message(out, field, |out| {
                out.append(points);
                if metric.kind != MetricType::Gauge {
                    number(out, 2, temporality);
                }
                // It is monotonic.
                number(out, 3, (metric.kind == MetricType::Counter).into());
            });
        });
    }

    fn complete(&mut self) {
        self.end_metric();
        let Self { resource, metrics, .. } = self;
        let mut plain = Vec::with_capacity(metrics.len() + ENVELOPE_BYTES);
        message(&mut plain, 1, |out| {
            message(out, 1, |out| out.extend(resource.encode_to_vec()));
            message(out, 2, |out| {
                message(out, 1, |out| out.extend(otlp::scope().encode_to_vec()));
                out.append(metrics);
            });
        });
        let compressed = otlp::compressed(&plain);
        self.complete.push(Batch { compressed, ..mem::take(&mut self.next) });
    }

    pub(super) fn finish(mut self) -> Vec<Batch> {
        if self.next.points > 0 {
            self.complete();
        }
        self.complete
    }
}

/// The unit that a name ends in, by its symbol.
fn unit(name: &str) -> &'static str {
    match name.trim_end_matches("_total").rsplit('_').next() {
        Some("seconds") => "s",
        Some("bytes") => "By",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HITS: Metric =
        Metric { name: "hits_total", statsd: "", kind: MetricType::Counter, labels: &["key"], help: "Hits." };

    /// The beginning and the value of the point of a counter.
    fn read(accounts: &mut Accounts, value: u64, is_delta: bool, now: u64) -> Option<(u64, u64, Batch)> {
        let resource = Resource::default();
        let mut batches = Batches::new(&resource);
        let point = accounts.point(&HITS, &["a"], value.into(), is_delta, now);
        let read = point.map(|point| {
            let (begun, count) = (point.begun, point.reading.counts[0]);
            batches.add(&HITS, &["a"], is_delta, point);
            (begun, count, batches.finish().remove(0))
        });
        accounts.end_read(now);
        read
    }

    fn settled(accounts: &mut Accounts, value: u64, is_delta: bool, now: u64) -> Option<(u64, u64)> {
        let (begun, count, batch) = read(accounts, value, is_delta, now)?;
        accounts.settle(batch);
        Some((begun, count))
    }

    #[test]
    fn a_delta_is_that_to_the_last_accepted_point() {
        let mut accounts = Accounts::new(10);
        assert_eq!(settled(&mut accounts, 5, true, 20), Some((10, 5)));
        assert_eq!(settled(&mut accounts, 5, true, 30), None, "nothing since");
        assert_eq!(read(&mut accounts, 7, true, 40).map(|(begun, count, _)| (begun, count)), Some((20, 2)));
        assert_eq!(settled(&mut accounts, 8, true, 50), Some((20, 3)), "the last was not accepted");
        assert_eq!(settled(&mut accounts, 9, true, 60), Some((50, 1)));
    }

    #[test]
    fn a_counter_that_restarted_begins_again() {
        for is_delta in [false, true] {
            let mut accounts = Accounts::new(10);
            assert_eq!(settled(&mut accounts, 5, is_delta, 20), Some((10, 5)));
            assert_eq!(settled(&mut accounts, 2, is_delta, 30), Some((20, 2)), "it decreased");
            accounts.end_read(40);
            assert_eq!(settled(&mut accounts, 9, is_delta, 50), Some((40, 9)), "it was gone");
        }
    }

    #[test]
    fn a_histogram_has_the_number_of_each_bucket() {
        let distribution = Distribution { buckets: vec![(1.0, 2), (5.0, 2), (9.0, 7)], count: 8, sum: 40.5 };
        let (reading, bounds) = Reading::of(Value::Distribution(&distribution));
        assert_eq!((reading.counts, reading.sum, bounds), (smallvec![2, 0, 5, 1], 40.5, vec![1.0, 5.0, 9.0]));
    }
}
