//! The request log: whole requests as JSON lines, from which `tollgate replay` decides them again.
//!
//! A worker writes a line to its buffer before it counts, so the lines of a worker are in the order of counting. A
//! separate thread flushes the buffers. Requests that do not fit are counted, and a line says how many are missing.

use std::{
    io::{self, Write},
    mem,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use foldhash::quality::FixedState;

use super::{
    holds::closes,
    observer::{Holding, Observer},
    request::{Descriptor, Request},
};
use clock::{Rfc3339, Time};
use faults::mutex::lock;
use metrics::{ShardCount, shard};
use recent::{KeyValues, shown};

/// The bytes that a worker's buffer may hold between two flushes, because callers determine the length of values.
const MAX_BYTES: usize = 4 << 20;

/// The requests with a descriptor of this share of all, above 0 and at most 1. A hash chooses the descriptors, so that all
/// requests of a key are recorded, on every replica.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Recorded(pub f64);

pub struct RequestLog {
    rate: f64,
    lines: Lines,
    /// The last flushed lines, for their memory.
    spare: Mutex<Written>,
    /// The number of lines of the flush that is under way.
    writing: AtomicU64,
    written: AtomicU64,
    dropped: AtomicU64,
}

/// What workers write until it is taken: at most so many lines over all of them.
pub(super) struct Lines {
    values: KeyValues,
    workers: Box<[Mutex<Buffer>]>,
    max: u64,
    begun: Begun,
}

/// The lines that workers have begun since they were taken. One addition a line to a word that all workers share: 5 to 100
/// nanoseconds beside the 500 of the line. Alone in its cache line, because requests that are not recorded read the others.
#[derive(Default)]
#[repr(align(64))]
struct Begun(AtomicU64);

#[derive(Default)]
struct Buffer {
    written: Written,
    /// The last second, and its text without the fraction.
    second: (u64, String),
}

#[derive(Default)]
pub(super) struct Written {
    pub(super) bytes: Vec<u8>,
    /// Of each line: see [`position`].
    pub(super) positions: Vec<u32>,
    /// Requests that did not fit.
    pub(super) missing: u64,
}

impl RequestLog {
    pub const PAUSE: Duration = Duration::from_millis(200);

    /// A log of at most `max_lines` lines a second, for this many workers.
    pub fn new(recorded: Recorded, values: KeyValues, max_lines: u64, shards: ShardCount) -> Self {
        let pauses = 1_000 / 200;
        Self {
            rate: recorded.0,
            lines: Lines::new(values, (max_lines / pauses).max(1), shards),
            spare: Mutex::default(),
            writing: AtomicU64::new(0),
            written: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    pub fn flush(&self, write: &mut dyn Write) -> io::Result<()> {
        let mut spare = lock(&self.spare);
        self.lines.take(&mut spare, |Written { bytes, positions, missing }| {
            if *missing > 0 {
                self.dropped.fetch_add(*missing, Relaxed);
                writeln!(bytes, r#"{{"missing":{missing}}}"#)?;
            }
            if bytes.is_empty() {
                return Ok(());
            }
            // With each flush, because a reader may begin at any file of a rotated log.
            let whole = [sample(self.rate).as_bytes(), bytes].concat();
            let lines = positions.len() as u64;
            self.writing.store(lines, Relaxed);
            let written = write.write_all(&whole).and_then(|()| write.flush());
            self.writing.store(0, Relaxed);
            let count = if written.is_ok() { &self.written } else { &self.dropped };
            count.fetch_add(lines, Relaxed);
            written
        })
    }

    /// The number of recorded requests, and of those that were not recorded because there were too many or the log could
    /// not be written.
    pub fn counts(&self) -> (u64, u64) {
        (self.written.load(Relaxed), self.dropped.load(Relaxed))
    }

    /// The recorded requests that are not written.
    pub fn unwritten(&self) -> u64 {
        let lines = self.lines.workers.iter().map(|worker| lock(worker).written.positions.len() as u64);
        self.writing.load(Relaxed) + lines.sum::<u64>()
    }
}

impl Observer for RequestLog {
    fn requested(&self, request: &Request<'_>, holding: Holding<'_>, now: Time) {
        let position = if self.rate < 1.0 { position(request) } else { 0 };
        if is_sampled(position, self.rate) {
            self.lines.push(position, request, holding, now);
        }
    }
}

impl Lines {
    pub(super) fn new(values: KeyValues, max: u64, shards: ShardCount) -> Self {
        let workers = (0..shards.get()).map(|_| Mutex::default()).collect();
        Self { values, workers, max, begun: Begun::default() }
    }

    #[expect(clippy::indexing_slicing, reason = "the number of buffers is a power of two")]
    pub(super) fn push(&self, position: u32, request: &Request<'_>, holding: Holding<'_>, now: Time) {
        let mut buffer = lock(&self.workers[shard::of_thread() & (self.workers.len() - 1)]);
        let Buffer { written, second } = &mut *buffer;
        let Begun(begun) = &self.begun;
        let is_full = written.bytes.len() >= MAX_BYTES || begun.load(Relaxed) >= self.max;
        if is_full || begun.fetch_add(1, Relaxed) >= self.max {
            written.missing += 1;
            return;
        }
        written.positions.push(position);
        write_line(&mut written.bytes, second, request, holding, now, self.values);
    }

    /// Shows what each worker has written, and forgets it. `spare` has memory for the buffers.
    pub(super) fn take(
        &self,
        spare: &mut Written,
        mut show: impl FnMut(&mut Written) -> io::Result<()>,
    ) -> io::Result<()> {
        self.begun.0.store(0, Relaxed);
        for worker in &self.workers {
            spare.clear();
            mem::swap(&mut lock(worker).written, spare);
            show(spare)?;
        }
        Ok(())
    }
}

impl Written {
    fn clear(&mut self) {
        self.bytes.clear();
        self.positions.clear();
        self.missing = 0;
    }
}

/// The line of a log that has a share of the keys; none if it has all.
pub(super) fn sample(rate: f64) -> String {
    match rate {
        1.0.. => String::new(),
        _ => format!("{{\"sample\":{{\"by\":\"key\",\"rate\":{rate}}}}}\n"),
    }
}

/// Where a request is among all keys, by a hash of its descriptors: the same on every replica and after a restart. What is in a
/// share of the keys is also in every larger one. What closes a hold does not tell whose it is, so it is in each.
pub(super) fn position(request: &Request<'_>) -> u32 {
    let of_descriptor = |descriptor: &Descriptor<'_>| {
        use std::hash::{BuildHasher as _, Hasher as _};
        if closes(descriptor) {
            return 0;
        }
        // Of each descriptor of every request: SipHash takes 170 instructions more.
        let mut hasher = FixedState::default().build_hasher();
        hasher.write(request.domain.as_bytes());
        for entry in &descriptor.entries {
            for text in [entry.key, entry.value] {
                hasher.write_u8(0xff);
                hasher.write(text.as_bytes());
            }
        }
        (hasher.finish() >> 32) as u32
    };
    request.descriptors.iter().map(of_descriptor).min().unwrap_or(0)
}

/// True for a request of this share of the keys.
pub(super) fn is_sampled(position: u32, rate: f64) -> bool {
    f64::from(position) < rate * (1_u64 << 32) as f64
}

fn write_line(
    bytes: &mut Vec<u8>,
    second: &mut (u64, String),
    request: &Request<'_>,
    holding: Holding<'_>,
    now: Time,
    values: KeyValues,
) {
    if second.0 != now.seconds() || second.1.is_empty() {
        let text = Rfc3339(now).to_string();
        *second = (now.seconds(), text.split('.').next().unwrap_or_default().to_owned());
    }
    bytes.extend_from_slice(br#"{"time":""#);
    bytes.extend_from_slice(second.1.as_bytes());
    // Six digits behind a 1, which becomes the point. `write!` takes 500 instructions more.
    let point = bytes.len();
    bytes.extend_from_slice(itoa::Buffer::new().format(1_000_000 + now.micros() % 1_000_000).as_bytes());
    if let Some(digit) = bytes.get_mut(point) {
        *digit = b'.';
    }
    bytes.extend_from_slice(br#"Z","domain":"#);
    write_text(request.domain, bytes);
    bytes.extend_from_slice(br#","descriptors":["#);
    for (index, descriptor) in request.descriptors.iter().enumerate() {
        bytes.extend_from_slice(if index > 0 { br#",{"entries":["# } else { br#"{"entries":["# });
        for (index, entry) in descriptor.entries.iter().enumerate() {
            bytes.extend_from_slice(if index > 0 { br#",{"key":"# } else { br#"{"key":"# });
            write_text(entry.key, bytes);
            bytes.extend_from_slice(br#","value":"#);
            write_text(&shown(entry.value, values), bytes);
            bytes.push(b'}');
        }
        bytes.push(b']');
        // Without hits of its own a settle is an end, and a hold has the amount of its rule.
        let other = match (closes(descriptor), request.hits_addend) {
            (true, _) => None,
            (false, 0) if holding != Holding::Nothing => None,
            (false, hits) => Some(u64::from(hits.max(1))),
        };
        if let Some(hits) = descriptor.hits_addend.or(other) {
            bytes.extend_from_slice(br#","hits":"#);
            bytes.extend_from_slice(itoa::Buffer::new().format(hits).as_bytes());
        }
        if descriptor.is_negative_hits {
            bytes.extend_from_slice(br#","refund":true"#);
        }
        if let Some(limit) = descriptor.limit {
            let requests = limit.requests_per_unit;
            let unit = limit.unit;
            // Writing to a Vec cannot fail.
            let _ = write!(bytes, r#","limit":{{"requests_per_unit":{requests},"unit":{unit}"#);
            if let Some(units) = limit.unit_multiplier {
                let _ = write!(bytes, r#","unit_multiplier":{units}"#);
            }
            bytes.push(b'}');
        }
        bytes.push(b'}');
    }
    bytes.push(b']');
    if let Holding::As(Some(hold)) = holding {
        bytes.extend_from_slice(br#","hold":"#);
        write_text(&shown(&hold.to_string(), values), bytes);
    }
    bytes.extend_from_slice(b"}\n");
}

fn write_text(text: &str, bytes: &mut Vec<u8>) {
    if text.bytes().any(|byte| byte < b' ' || byte == b'"' || byte == b'\\') {
        let _ = serde_json::to_writer(bytes, text);
    } else {
        bytes.push(b'"');
        bytes.extend_from_slice(text.as_bytes());
        bytes.push(b'"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Entry, LimitOverride};

    fn request<'a>(domain: &'a str, value: &'a str) -> Request<'a> {
        let descriptor = Descriptor {
            entries: [Entry { key: "user", value }].into_iter().collect(),
            ..Descriptor::default()
        };
        Request { domain, descriptors: [descriptor].into_iter().collect(), ..Request::default() }
    }

    fn flushed(log: &RequestLog) -> String {
        let mut written = Vec::new();
        log.flush(&mut written).unwrap();
        String::from_utf8(written).unwrap()
    }

    fn log(recorded: Recorded, values: KeyValues, max_lines: u64) -> RequestLog {
        RequestLog::new(recorded, values, max_lines, ShardCount::for_workers(1))
    }

    #[test]
    fn a_line_has_the_whole_request() {
        let all = log(Recorded(1.0), KeyValues::Plain, 100);
        let mut one = request("shop", "a\"b");
        one.hits_addend = 3;
        one.descriptors.push(Descriptor {
            hits_addend: Some(7),
            is_negative_hits: true,
            limit: Some(LimitOverride { requests_per_unit: 5, unit: 2, unit_multiplier: None }),
            ..Descriptor::default()
        });
        all.requested(&one, Holding::Nothing, Time::from_micros(1_793_491_200_000_123));
        let expected = concat!(
            r#"{"time":"2026-11-01T00:00:00.000123Z","domain":"shop","descriptors":["#,
            r#"{"entries":[{"key":"user","value":"a\"b"}],"hits":3},"#,
            r#"{"entries":[],"hits":7,"refund":true,"limit":{"requests_per_unit":5,"unit":2}}]}"#,
            "\n"
        );
        assert_eq!((flushed(&all).as_str(), flushed(&all).as_str()), (expected, ""));
        let id = counters::HoldId { random: 1, slots: smallvec::smallvec![0] };
        one.descriptors.iter_mut().for_each(|one| one.hits_addend = None);
        one.hits_addend = 0;
        all.requested(&one, Holding::As(Some(&id)), Time::default());
        let line = flushed(&all);
        assert!(
            line.contains(r#""value":"a\"b"}]},{"#)
                && line.ends_with("],\"hold\":\"AAAAAAAAAAAAAAAAAAAAAQAAA\"}\n"),
            "{line}"
        );
        let hashed = log(Recorded(1.0), KeyValues::Hashed, 100);
        hashed.requested(&request("shop", "ann"), Holding::Nothing, Time::default());
        assert!(flushed(&hashed).contains(r#""value":"sha256:49915e0d7d4b402e""#));
    }

    #[test]
    fn a_sampled_key_is_whole() {
        let sampled = log(Recorded(0.1), KeyValues::Plain, u64::MAX);
        for _ in 0..3 {
            (0..1000).for_each(|user| {
                sampled.requested(&request("d", &user.to_string()), Holding::Nothing, Time::default());
            });
        }
        let text = flushed(&sampled);
        let (head, lines) = text.split_once('\n').unwrap();
        assert_eq!(head, r#"{"sample":{"by":"key","rate":0.1}}"#);
        let mut counts = std::collections::HashMap::<&str, u32>::new();
        lines.lines().for_each(|line| *counts.entry(line).or_default() += 1);
        assert!((60..140).contains(&counts.len()), "{}", counts.len());
        assert!(counts.values().all(|count| *count == 3));
    }

    #[test]
    fn lines_beyond_the_bound_are_missing() {
        // The bound is one for all workers, also if one has all of the traffic.
        for workers in [1, 16] {
            let shards = ShardCount::for_workers(workers);
            let bounded = RequestLog::new(Recorded(1.0), KeyValues::Plain, 50, shards);
            (0..12).for_each(|_| bounded.requested(&request("d", "v"), Holding::Nothing, Time::default()));
            let text = flushed(&bounded);
            assert_eq!((text.lines().count(), text.lines().last()), (11, Some(r#"{"missing":2}"#)));
            assert_eq!(bounded.counts(), (10, 2));
            bounded.requested(&request("d", "v"), Holding::Nothing, Time::default());
            assert_eq!(flushed(&bounded).lines().count(), 1);
        }
        let long = "x".repeat(MAX_BYTES);
        let by_bytes = log(Recorded(1.0), KeyValues::Plain, 1_000_000);
        (0..3).for_each(|_| by_bytes.requested(&request("d", &long), Holding::Nothing, Time::default()));
        assert!(by_bytes.flush(&mut io::sink()).is_ok());
        assert_eq!(by_bytes.counts(), (1, 2));
        let mut full = [0_u8; 3];
        by_bytes.requested(&request("d", "v"), Holding::Nothing, Time::default());
        assert!(by_bytes.flush(&mut &mut full[..]).is_err());
        assert_eq!(by_bytes.counts(), (1, 3));
    }
}
