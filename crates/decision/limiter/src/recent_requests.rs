//! The last whole requests, in memory, on which rules are tried.
//!
//! They are lines of the request log. If there are more than fit, a share of the keys is recorded, with all of their
//! requests: a key with half of its requests would look half as busy. When the share changes, what was recorded before
//! is dropped, so that all that is kept has one share.

use std::{
    collections::VecDeque,
    io::{self, Read},
    sync::{Arc, Mutex},
};

use super::{
    observer::{Holding, Observer},
    request::Request,
    request_log::{Recorded, RequestLog},
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
    log: RequestLog,
    kept: Mutex<Kept>,
    most_bytes: usize,
}

#[derive(Default)]
struct Kept {
    /// The lines of a second each, oldest first.
    seconds: VecDeque<Arc<[u8]>>,
    bytes: usize,
    /// Consecutive seconds in which a larger share would have fit.
    calm: u32,
}

/// What was recorded: lines of a request log.
#[derive(Clone)]
pub struct Recording {
    seconds: VecDeque<Arc<[u8]>>,
    /// The bytes of the first second that were read.
    read: usize,
}

impl RecentRequests {
    /// At most about this many bytes of requests, with values that may be shown.
    pub fn new(most_bytes: usize, values: KeyValues, shards: ShardCount) -> Self {
        // It is flushed once a second, and not five times as a log.
        let log = RequestLog::new(Recorded::All, values, MAX_A_SECOND * 5, shards);
        Self { log, kept: Mutex::default(), most_bytes }
    }

    /// Keeps what the workers have recorded; called once a second.
    pub fn collect(&self) {
        let (mut lines, before) = (Vec::new(), self.log.counts());
        // Writing to a Vec cannot fail.
        let _ = self.log.flush(&mut lines);
        let after = self.log.counts();
        let (recorded, missing) = (after.0 - before.0, after.1 - before.1);
        let mut kept = lock(&self.kept);
        let rate = self.log.rate();
        if missing > 0 || lines.len() > self.most_bytes {
            return self.restart((rate / 2.0).max(LEAST_RATE), &mut kept);
        }
        kept.calm = if rate < 1.0 && recorded < MAX_A_SECOND / 4 { kept.calm + 1 } else { 0 };
        if kept.calm >= CALM_SECONDS {
            return self.restart((rate * 2.0).min(1.0), &mut kept);
        }
        if recorded == 0 {
            return;
        }
        kept.bytes += lines.len();
        kept.seconds.push_back(lines.into());
        while kept.bytes > self.most_bytes
            && let Some(oldest) = kept.seconds.pop_front()
        {
            kept.bytes -= oldest.len();
        }
    }

    fn restart(&self, rate: f64, kept: &mut Kept) {
        self.log.set_rate(rate);
        *kept = Kept::default();
        // What the workers have recorded since has the share before.
        let _ = self.log.flush(&mut io::sink());
    }

    pub fn recording(&self) -> Recording {
        Recording { seconds: lock(&self.kept).seconds.clone(), read: 0 }
    }

    pub fn bytes(&self) -> usize {
        lock(&self.kept).bytes
    }

    pub fn rate(&self) -> f64 {
        self.log.rate()
    }
}

impl Observer for RecentRequests {
    fn requested(&self, request: &Request<'_>, holding: Holding<'_>, now: Time) {
        self.log.requested(request, holding, now);
    }
}

impl Read for Recording {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(first) = self.seconds.front() {
            let mut rest = first.get(self.read..).unwrap_or_default();
            let read = rest.read(buffer)?;
            self.read += read;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            self.seconds.pop_front();
            self.read = 0;
        }
        Ok(0)
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
        assert_eq!(text.lines().count(), 8, "{text}");
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
}
