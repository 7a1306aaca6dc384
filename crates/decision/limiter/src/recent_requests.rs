//! The last whole requests, in memory, on which rules are tried.
//!
//! They are lines of the request log. If there are more than fit, a share of the keys is recorded, with all of their
//! requests: a key with half of its requests would look half as busy. What was recorded before stays, and a recording has
//! the smallest share of all that is kept: the keys of a share are among those of every larger one.

use std::{
    collections::VecDeque,
    io::{self, Read},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::{
    observer::{Holding, Observer},
    request::Request,
    request_log::{Lines, Written, is_sampled, position, sample},
};
use clock::Time;
use faults::mutex::lock;
use metrics::ShardCount;
use recent::KeyValues;

/// Requests recorded in a second, over all workers. A line costs half a microsecond (docs/dev/figures.md), so lines take at most
/// 0.1 % of a core.
const MAX_A_SECOND: u64 = 1_000;

/// Seconds of little traffic after which twice the share is recorded.
const CALM_SECONDS: u32 = 60;

/// The smallest share: one key of 65,536.
const LEAST_RATE: f64 = 1.0 / 65_536.0;

pub struct RecentRequests {
    /// The share of the keys that is recorded, as the bits of a float.
    rate: AtomicU64,
    lines: Lines,
    kept: Mutex<KeptRequests>,
    most_bytes: usize,
}

struct KeptRequests {
    /// Oldest first.
    seconds: VecDeque<Arc<Second>>,
    bytes: usize,
    /// The share when the last second ended.
    rate: f64,
    /// Consecutive seconds in which a larger share would have fit.
    calm: u32,
}

struct Second {
    written: Written,
    /// The share of the keys that it has.
    rate: f64,
}

/// What was recorded: lines of a request log.
#[derive(Clone)]
pub struct Recording {
    seconds: VecDeque<Arc<Second>>,
    /// The share of the keys that it has.
    pub rate: f64,
    /// The lines that are read now, and how many of their bytes were read.
    lines: Vec<u8>,
    read: usize,
}

impl RecentRequests {
    /// At most about this many bytes of requests, with values that may be shown.
    pub fn new(most_bytes: usize, values: KeyValues, shards: ShardCount) -> Self {
        let kept = KeptRequests { seconds: VecDeque::new(), bytes: 0, rate: 1.0, calm: 0 };
        Self {
            rate: AtomicU64::new(1.0_f64.to_bits()),
            lines: Lines::new(values, MAX_A_SECOND, shards),
            kept: Mutex::new(kept),
            most_bytes,
        }
    }

    /// Keeps what the workers have recorded; called once a second.
    pub fn collect(&self) {
        let mut written = Written::default();
        // Nothing is written that could fail.
        let _ = self.lines.take(&mut Written::default(), |of_worker| {
            written.bytes.append(&mut of_worker.bytes);
            written.positions.append(&mut of_worker.positions);
            written.missing += of_worker.missing;
            Ok(())
        });
        let recorded = written.positions.len() as u64;
        let mut kept = lock(&self.kept);
        let rate = self.rate();
        if written.missing > 0 || written.bytes.len() > self.most_bytes {
            // Its keys have only some of their requests.
            written = Written { missing: written.missing + recorded, ..Written::default() };
            kept.calm = 0;
            self.set_rate((rate / 2.0).max(LEAST_RATE));
        } else if rate < 1.0 && recorded < MAX_A_SECOND / 4 {
            kept.calm += 1;
        } else {
            kept.calm = 0;
        }
        if kept.calm >= CALM_SECONDS {
            kept.calm = 0;
            self.set_rate((rate * 2.0).min(1.0));
        }
        // After a change, workers may have written the first lines by the share before.
        let second = Second { written, rate: rate.min(kept.rate) };
        kept.rate = rate;
        if recorded == 0 && second.written.missing == 0 {
            return;
        }
        kept.bytes += second.bytes();
        kept.seconds.push_back(Arc::new(second));
        while kept.bytes > self.most_bytes
            && let Some(oldest) = kept.seconds.pop_front()
        {
            kept.bytes -= oldest.bytes();
        }
    }

    pub fn recording(&self) -> Recording {
        let seconds = lock(&self.kept).seconds.clone();
        let rate = seconds.iter().map(|second| second.rate).fold(self.rate(), f64::min);
        Recording { seconds, rate, lines: sample(rate).into_bytes(), read: 0 }
    }

    pub fn bytes(&self) -> usize {
        lock(&self.kept).bytes
    }

    fn rate(&self) -> f64 {
        f64::from_bits(self.rate.load(Relaxed))
    }

    fn set_rate(&self, rate: f64) {
        self.rate.store(rate.to_bits(), Relaxed);
    }
}

impl Observer for RecentRequests {
    fn requested(&self, request: &Request<'_>, holding: Holding<'_>, now: Time) {
        let position = position(request);
        if is_sampled(position, self.rate()) {
            self.lines.push(position, request, holding, now);
        }
    }
}

impl Second {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.written.bytes.len() + size_of_val(&*self.written.positions)
    }

    /// The lines of a share of the keys.
    fn lines(&self, rate: f64) -> Vec<u8> {
        let Written { bytes, positions, missing } = &self.written;
        if *missing > 0 {
            return format!("{{\"missing\":{missing}}}\n").into_bytes();
        }
        let lines = bytes.split_inclusive(|byte| *byte == b'\n').zip(positions);
        let sampled = lines.filter(|(_, position)| is_sampled(**position, rate));
        sampled.flat_map(|(line, _)| line).copied().collect()
    }
}

impl Read for Recording {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.lines.get(self.read..).unwrap_or_default().read(buffer)?;
            self.read += read;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let Some(second) = self.seconds.pop_front() else { return Ok(0) };
            self.lines = second.lines(self.rate);
            self.read = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Descriptor, Entry};

    fn record(requests: &RecentRequests, value: &str) {
        let descriptor = Descriptor {
            entries: [Entry { key: "user", value }].into_iter().collect(),
            ..Descriptor::default()
        };
        let request =
            Request { domain: "d", descriptors: [descriptor].into_iter().collect(), ..Request::default() };
        requests.requested(&request, Holding::Nothing, Time::from_seconds(1_800_000_000));
    }

    fn recent(most_bytes: usize) -> RecentRequests {
        RecentRequests::new(most_bytes, KeyValues::Plain, ShardCount::for_workers(1))
    }

    fn text(requests: &RecentRequests) -> String {
        let mut text = String::new();
        requests.recording().read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn the_last_requests_are_kept_within_the_bytes() {
        let requests = recent(1000);
        for number in 0..100 {
            record(&requests, &format!("{number:03}"));
            requests.collect();
            assert!(requests.bytes() <= 1000);
        }
        let text = text(&requests);
        assert!(text.contains("\"099\"") && !text.contains("\"050\""), "{text}");
        assert!((4..8).contains(&text.lines().count()), "{text}");
    }

    #[test]
    fn a_key_has_all_of_its_requests_or_none() {
        let requests = recent(1 << 20);
        for _ in 0..6 {
            for number in 0..2600 {
                record(&requests, &number.to_string());
            }
            requests.collect();
        }
        assert_eq!(requests.rate().to_string(), "0.25", "a second had 2,600 requests, of which 1,000 fit");
        let text = text(&requests);
        let of = |number: u32| text.matches(&format!("\"{number}\"")).count();
        let counts: Vec<usize> = (0..2600).map(of).collect();
        let most = *counts.iter().max().unwrap();
        assert!(counts.iter().all(|count| [0, most].contains(count)), "{most}");
        let keys = counts.iter().filter(|count| **count > 0).count();
        assert!((550..750).contains(&keys), "{keys}");
        assert!(text.starts_with("{\"sample\":{\"by\":\"key\",\"rate\":0.25}}"));
        // After a quiet minute, more keys fit.
        (0..120).for_each(|_| requests.collect());
        assert_eq!(requests.rate().to_string(), "1");
    }

    #[test]
    fn what_was_kept_stays_when_the_share_changes() {
        let requests = recent(1 << 20);
        (0..900).for_each(|number| record(&requests, &format!("old{number}")));
        requests.collect();
        // A second with more than fit is left out, since its keys would look less busy.
        (0..1001).for_each(|number| record(&requests, &format!("burst{number}")));
        requests.collect();
        (0..200).for_each(|number| record(&requests, &format!("new{number}")));
        requests.collect();
        let seen = |requests: &RecentRequests| {
            let text = text(requests);
            assert!(text.contains("{\"missing\":1001}\n") && !text.contains("burst"), "{text}");
            ["old", "new"].map(|key| text.matches(key).count())
        };
        let [old, new] = seen(&requests);
        assert!((400..500).contains(&old) && (70..130).contains(&new), "half of {old} and {new}");
        assert_eq!(requests.recording().rate.to_string(), "0.5");
        // A larger share again: what is kept has the smaller one, and is as before.
        (0..61).for_each(|_| requests.collect());
        assert_eq!((requests.rate().to_string(), seen(&requests)), ("1".to_owned(), [old, new]));
        (0..200).for_each(|number| record(&requests, &format!("new{number}")));
        requests.collect();
        assert_eq!(seen(&requests), [old, 2 * new], "the same keys, with all of their requests");
    }
}
