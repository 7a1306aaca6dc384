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

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Recorded {
    All,
    /// Those with a descriptor of this share of all, above 0 and at most 1. A hash chooses the descriptors, so that all
    /// requests of a key are recorded, on every replica.
    Sampled(f64),
}

impl Recorded {
    const fn rate(self) -> f64 {
        match self {
            Self::All => 1.0,
            Self::Sampled(rate) => rate,
        }
    }
}

pub struct RequestLog {
    /// The share of descriptors that are recorded, as the bits of a float: 1 is all.
    rate: AtomicU64,
    values: KeyValues,
    workers: Box<[Mutex<Buffer>]>,
    /// The lines of a worker between two flushes.
    max_lines: u64,
    /// The last flushed buffer, for its memory.
    spare: Mutex<Vec<u8>>,
    /// The lines of the flush that is under way.
    writing: AtomicU64,
    lines: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    lines: u64,
    missing: u64,
    /// The last second, and its text without the fraction.
    second: (u64, String),
}

impl RequestLog {
    pub const PAUSE: Duration = Duration::from_millis(200);

    /// A log of at most `max_lines` lines a second, for this many workers.
    pub fn new(recorded: Recorded, values: KeyValues, max_lines: u64, shards: ShardCount) -> Self {
        let pauses = 1_000 / 200;
        Self {
            rate: AtomicU64::new(recorded.rate().to_bits()),
            values,
            workers: (0..shards.get()).map(|_| Mutex::default()).collect(),
            max_lines: (max_lines / pauses / shards.get() as u64).max(1),
            spare: Mutex::default(),
            writing: AtomicU64::new(0),
            lines: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    pub fn flush(&self, write: &mut dyn Write) -> io::Result<()> {
        let mut bytes = lock(&self.spare);
        for worker in &self.workers {
            bytes.clear();
            let (lines, missing) = {
                let mut buffer = lock(worker);
                mem::swap(&mut buffer.bytes, &mut *bytes);
                (mem::take(&mut buffer.lines), mem::take(&mut buffer.missing))
            };
            if missing > 0 {
                self.dropped.fetch_add(missing, Relaxed);
                writeln!(bytes, r#"{{"missing":{missing}}}"#)?;
            }
            if bytes.is_empty() {
                continue;
            }
            // With each flush, because a reader may begin at any file of a rotated log.
            let rate = self.rate();
            let head = match rate {
                1.0.. => String::new(),
                _ => format!("{{\"sample\":{{\"by\":\"key\",\"rate\":{rate}}}}}\n"),
            };
            let whole = [head.as_bytes(), &bytes].concat();
            self.writing.store(lines, Relaxed);
            let written = write.write_all(&whole).and_then(|()| write.flush());
            self.writing.store(0, Relaxed);
            written.inspect_err(|_| {
                self.dropped.fetch_add(lines, Relaxed);
            })?;
            self.lines.fetch_add(lines, Relaxed);
        }
        Ok(())
    }

    /// The number of recorded requests, and of those that were not recorded because there were too many or the log could
    /// not be written.
    pub fn counts(&self) -> (u64, u64) {
        (self.lines.load(Relaxed), self.dropped.load(Relaxed))
    }

    /// The recorded requests that are not written.
    pub fn unwritten(&self) -> u64 {
        self.writing.load(Relaxed) + self.workers.iter().map(|worker| lock(worker).lines).sum::<u64>()
    }

    /// The share of descriptors that are recorded.
    pub(super) fn rate(&self) -> f64 {
        f64::from_bits(self.rate.load(Relaxed))
    }

    pub(super) fn set_rate(&self, rate: f64) {
        self.rate.store(rate.to_bits(), Relaxed);
    }

    fn is_recorded(&self, request: &Request<'_>) -> bool {
        let rate = self.rate();
        // What closes a hold does not tell whose it is.
        rate >= 1.0
            || request
                .descriptors
                .iter()
                .any(|descriptor| closes(descriptor) || is_sampled(request.domain, descriptor, rate))
    }
}

impl Observer for RequestLog {
    #[expect(clippy::indexing_slicing, reason = "the number of buffers is a power of two")]
    fn requested(&self, request: &Request<'_>, holding: Holding<'_>, now: Time) {
        if !self.is_recorded(request) {
            return;
        }
        let mut buffer = lock(&self.workers[shard::of_thread() & (self.workers.len() - 1)]);
        if buffer.lines >= self.max_lines || buffer.bytes.len() >= MAX_BYTES {
            buffer.missing += 1;
            return;
        }
        buffer.lines += 1;
        write_line(&mut buffer, request, holding, now, self.values);
    }
}

/// True if a hash of the descriptor chooses it: the same on every replica and after a restart.
fn is_sampled(domain: &str, descriptor: &Descriptor<'_>, rate: f64) -> bool {
    use std::hash::{BuildHasher as _, Hasher as _};
    // Of each descriptor of every request: SipHash takes 170 instructions more.
    let mut hasher = FixedState::default().build_hasher();
    hasher.write(domain.as_bytes());
    for entry in &descriptor.entries {
        for text in [entry.key, entry.value] {
            hasher.write_u8(0xff);
            hasher.write(text.as_bytes());
        }
    }
    ((hasher.finish() >> 11) as f64) < rate * (1_u64 << 53) as f64
}

fn write_line(
    buffer: &mut Buffer,
    request: &Request<'_>,
    holding: Holding<'_>,
    now: Time,
    values: KeyValues,
) {
    let Buffer { bytes, second, .. } = buffer;
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
            let (requests, unit) = (limit.requests_per_unit, limit.unit);
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
        let all = log(Recorded::All, KeyValues::Plain, 100);
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
        let hashed = log(Recorded::All, KeyValues::Hashed, 100);
        hashed.requested(&request("shop", "ann"), Holding::Nothing, Time::default());
        assert!(flushed(&hashed).contains(r#""value":"sha256:49915e0d7d4b402e""#));
    }

    #[test]
    fn a_sampled_key_is_whole() {
        let sampled = log(Recorded::Sampled(0.1), KeyValues::Plain, u64::MAX);
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
        let bounded = log(Recorded::All, KeyValues::Plain, 50);
        (0..12).for_each(|_| bounded.requested(&request("d", "v"), Holding::Nothing, Time::default()));
        let text = flushed(&bounded);
        assert_eq!((text.lines().count(), text.lines().last()), (11, Some(r#"{"missing":2}"#)));
        assert_eq!(bounded.counts(), (10, 2));
        let long = "x".repeat(MAX_BYTES);
        let by_bytes = log(Recorded::All, KeyValues::Plain, 1_000_000);
        (0..3).for_each(|_| by_bytes.requested(&request("d", &long), Holding::Nothing, Time::default()));
        assert!(by_bytes.flush(&mut io::sink()).is_ok());
        assert_eq!(by_bytes.counts(), (1, 2));
        let mut full = [0_u8; 3];
        by_bytes.requested(&request("d", "v"), Holding::Nothing, Time::default());
        assert!(by_bytes.flush(&mut &mut full[..]).is_err());
        assert_eq!(by_bytes.counts(), (1, 3));
    }
}
