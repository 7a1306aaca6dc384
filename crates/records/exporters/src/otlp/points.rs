//! Samples as data points, and the messages that they are sent in.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    mem,
};

use bytes::Bytes;
use prost::Message;

use super::message::{self, attribute, text};
use metrics::{Distribution, Metric, MetricType, Value};
use proto::opentelemetry::proto::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    common::v1::KeyValue,
    metrics::v1::{
        AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric as Sent, NumberDataPoint,
        ResourceMetrics, ScopeMetrics, Sum, metric::Data, number_data_point::Value as Number,
    },
    resource::v1::Resource,
};

/// The size of a message: collectors take 4 MiB over gRPC unless they are told otherwise.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// What a sample says: the number of each bucket of a histogram, one number, or a sum alone.
#[derive(Clone, PartialEq, Debug, Default)]
struct Reading {
    counts: Vec<u64>,
    sum: f64,
}

impl Reading {
    fn of(value: Value<'_>) -> (Self, Vec<f64>) {
        match value {
            Value::Whole(number) => (Self { counts: vec![number], sum: 0.0 }, Vec::new()),
            Value::Float(sum) => (Self { counts: Vec::new(), sum }, Vec::new()),
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
#[derive(Clone, Debug)]
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
    attributes: Vec<KeyValue>,
    begun: u64,
    at: u64,
    bounds: Vec<f64>,
    reading: Reading,
    /// The account once the point is accepted.
    settled: Option<(u64, Account)>,
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
        let pairs = metric.labels.iter().zip(labels);
        let attributes = pairs.map(|(name, value)| attribute(name, text(*value))).collect();
        if metric.kind == MetricType::Gauge {
            return Some(Point { attributes, begun: 0, at: now, bounds, reading, settled: None });
        }
        let series = self.hasher.hash_one((metric.name, labels));
        let begins = || Account { accepted: Reading::default(), since: self.read, read: now };
        let account = self.known.entry(series).or_insert_with(begins);
        if reading.is_below(&account.accepted) {
            *account = begins();
        }
        account.read = now;
        let begun = account.since;
        let since = if is_delta { now } else { begun };
        let settled = Account { accepted: reading.clone(), since, read: now };
        let reading = if is_delta { reading.since(&account.accepted) } else { reading };
        let is_nothing = reading.sum == 0.0 && reading.counts.iter().all(|count| *count == 0);
        let settled = Some((series, settled));
        (!is_delta || !is_nothing).then_some(Point { attributes, begun, at: now, bounds, reading, settled })
    }

    /// Forgets the series that were not read this time: they are gone, and begin again if they return.
    pub(super) fn end_read(&mut self, now: u64) {
        self.known.retain(|_, account| account.read == now);
        self.read = now;
    }

    pub(super) fn settle(&mut self, batch: Batch) {
        self.known.extend(batch.settled);
    }
}

impl Point {
    fn number(self) -> NumberDataPoint {
        let whole = |count: &u64| Number::AsInt(i64::try_from(*count).unwrap_or(i64::MAX));
        let value = self.reading.counts.first().map_or(Number::AsDouble(self.reading.sum), whole);
        NumberDataPoint {
            start_time_unix_nano: self.begun,
            time_unix_nano: self.at,
            value: Some(value),
            attributes: self.attributes,
        }
    }

    fn histogram(self) -> HistogramDataPoint {
        HistogramDataPoint {
            start_time_unix_nano: self.begun,
            time_unix_nano: self.at,
            count: self.reading.counts.iter().sum(),
            sum: Some(self.reading.sum),
            bucket_counts: self.reading.counts,
            explicit_bounds: self.bounds,
            attributes: self.attributes,
        }
    }
}

/// An encoded message, and the accounts of its points once it is accepted.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) message: Bytes,
    pub(super) points: u64,
    settled: Vec<(u64, Account)>,
}

/// The messages of an export. The samples of a metric come together.
pub(super) struct Batches<'r> {
    resource: &'r Resource,
    gzip: bool,
    metrics: Vec<Sent>,
    bytes: usize,
    next: Batch,
    complete: Vec<Batch>,
}

impl<'r> Batches<'r> {
    pub(super) const fn new(resource: &'r Resource, gzip: bool) -> Self {
        let next = Batch { message: Bytes::new(), points: 0, settled: Vec::new() };
        Self { resource, gzip, metrics: Vec::new(), bytes: 0, next, complete: Vec::new() }
    }

    pub(super) fn add(&mut self, metric: &Metric, is_delta: bool, mut point: Point) {
        self.next.points += 1;
        self.next.settled.extend(point.settled.take());
        if self.metrics.last().is_none_or(|last| last.name != metric.name) {
            self.metrics.push(without_points(metric, is_delta));
        }
        let Some(data) = self.metrics.last_mut().and_then(|last| last.data.as_mut()) else { return };
        self.bytes += match data {
            Data::Gauge(Gauge { data_points }) | Data::Sum(Sum { data_points, .. }) => {
                push(data_points, point.number())
            }
            Data::Histogram(Histogram { data_points, .. }) => push(data_points, point.histogram()),
        };
        if self.bytes >= MAX_MESSAGE_BYTES {
            self.complete();
        }
    }

    fn complete(&mut self) {
        let metrics = mem::take(&mut self.metrics);
        let scope_metrics = vec![ScopeMetrics { scope: Some(message::scope()), metrics }];
        let resource_metrics = vec![ResourceMetrics { resource: Some(self.resource.clone()), scope_metrics }];
        let message = message::packed(&ExportMetricsServiceRequest { resource_metrics }, self.gzip);
        self.complete.push(Batch { message, ..mem::take(&mut self.next) });
        self.bytes = 0;
    }

    pub(super) fn finish(mut self) -> Vec<Batch> {
        if self.next.points > 0 {
            self.complete();
        }
        self.complete
    }
}

fn push<P: Message>(points: &mut Vec<P>, point: P) -> usize {
    let bytes = point.encoded_len();
    points.push(point);
    bytes
}

fn without_points(metric: &Metric, is_delta: bool) -> Sent {
    let data_points = Vec::new();
    let temporality =
        if is_delta { AggregationTemporality::Delta } else { AggregationTemporality::Cumulative }.into();
    let data = match metric.kind {
        MetricType::Gauge => Data::Gauge(Gauge { data_points }),
        MetricType::Counter => {
            Data::Sum(Sum { data_points, aggregation_temporality: temporality, is_monotonic: true })
        }
        MetricType::Histogram => {
            Data::Histogram(Histogram { data_points: Vec::new(), aggregation_temporality: temporality })
        }
    };
    let base = metric.name.trim_end_matches("_total");
    let unit = match base.rsplit('_').next() {
        Some("seconds") => "s",
        Some("bytes") => "By",
        _ => "",
    };
    Sent {
        name: metric.name.to_owned(),
        description: metric.help.to_owned(),
        unit: unit.to_owned(),
        data: Some(data),
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
        let mut batches = Batches::new(&resource, false);
        let point = accounts.point(&HITS, &["a"], value.into(), is_delta, now);
        let read = point.map(|point| {
            let (begun, count) = (point.begun, point.reading.counts[0]);
            batches.add(&HITS, is_delta, point);
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
        assert_eq!((reading.counts, reading.sum, bounds), (vec![2, 0, 5, 1], 40.5, vec![1.0, 5.0, 9.0]));
    }
}
