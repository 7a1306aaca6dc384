//! The decision log: JSON lines, which a separate thread writes from the workers' buffers.
//!
//! A worker writes a decision to a buffer whose memory is reused. When the buffer is full, because of the rate limit of
//! the log or a slow disk, the decision is counted as dropped.

use std::{
    io::{self, Write},
    mem,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use super::{decision::Decision, lock};
use crate::{KeyValues, Logged};

/// Maximum number of decisions in a worker's buffer between two flushes.
const MAX_PENDING: usize = 500;

pub struct DecisionLog {
    logged: Logged,
    spare: Mutex<Vec<Decision>>,
    /// The lines of the flush that is under way.
    writing: AtomicU64,
    lines: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct Pending(Mutex<Buffer>);

#[derive(Debug, Default)]
struct Buffer {
    /// Decisions from this index on are old; only their memory is used.
    len: usize,
    decisions: Vec<Decision>,
}

impl DecisionLog {
    /// The pause between two flushes. With it a worker logs at most 2,500 decisions a second.
    pub const PAUSE: Duration = Duration::from_millis(200);

    pub(super) fn new(logged: Logged) -> Self {
        Self {
            logged,
            spare: Mutex::default(),
            writing: AtomicU64::new(0),
            lines: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    pub(super) fn wants(&self, is_refused: bool) -> bool {
        match self.logged {
            Logged::Refused => is_refused,
            Logged::Sampled(probability) => fastrand::f64() < probability,
        }
    }

    pub(super) fn note(&self, pending: &Pending, fill: impl FnOnce(&mut Decision)) {
        let Ok(mut buffer) = pending.0.try_lock() else { return self.drop_lines(1) };
        let Buffer { len, decisions } = &mut *buffer;
        if *len == decisions.len() && *len < MAX_PENDING {
            decisions.push(Decision::default());
        }
        match decisions.get_mut(*len) {
            Some(decision) => {
                decision.weight = 1;
                fill(decision);
                *len += 1;
            }
            None => self.drop_lines(1),
        }
    }

    pub(super) fn flush<'a>(
        &self,
        pending: impl Iterator<Item = &'a Pending>,
        values: KeyValues,
        write: &mut dyn Write,
    ) -> io::Result<()> {
        let mut text = Vec::new();
        let mut lines = 0_u64;
        let mut spare = lock(&self.spare);
        for pending in pending {
            let len = {
                let mut buffer = lock(&pending.0);
                mem::swap(&mut buffer.decisions, &mut spare);
                mem::take(&mut buffer.len)
            };
            for decision in spare.iter().take(len) {
                // A decision consists of strings and numbers, so it has a JSON form; a Vec accepts every byte.
                if serde_json::to_writer(&mut text, &decision.json(values)).is_ok() {
                    text.push(b'\n');
                    lines += 1;
                }
            }
        }
        if lines == 0 {
            return Ok(());
        }
        self.writing.store(lines, Relaxed);
        let written = write.write_all(&text).and_then(|()| write.flush());
        self.writing.store(0, Relaxed);
        written.inspect_err(|_| self.drop_lines(lines))?;
        self.lines.fetch_add(lines, Relaxed);
        Ok(())
    }

    fn drop_lines(&self, lines: u64) {
        self.dropped.fetch_add(lines, Relaxed);
    }

    pub(super) fn unwritten<'a>(&self, pending: impl Iterator<Item = &'a Pending>) -> u64 {
        self.writing.load(Relaxed) + pending.map(|pending| lock(&pending.0).len as u64).sum::<u64>()
    }

    pub fn counts(&self) -> (u64, u64) {
        (self.lines.load(Relaxed), self.dropped.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flushed(log: &DecisionLog, pending: &Pending) -> Vec<serde_json::Value> {
        let mut written = Vec::new();
        log.flush([pending].into_iter(), KeyValues::Plain, &mut written).unwrap();
        let text = String::from_utf8(written).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn lines_are_written_in_order_and_once() {
        let (log, pending) = (DecisionLog::new(Logged::Refused), Pending::default());
        for round in 0..3 {
            for hits in 0..3 {
                log.note(&pending, |decision| decision.hits = round * 10 + hits);
            }
            let hits: Vec<_> =
                flushed(&log, &pending).iter().map(|line| line["hits"].as_u64().unwrap()).collect();
            assert_eq!(hits, [round * 10, round * 10 + 1, round * 10 + 2]);
        }
        assert!(flushed(&log, &pending).is_empty());
        assert_eq!((log.counts(), log.unwritten([&pending].into_iter())), ((9, 0), 0));
    }

    #[test]
    fn decisions_beyond_the_buffer_are_dropped() {
        let (log, pending) = (DecisionLog::new(Logged::Refused), Pending::default());
        (0..MAX_PENDING + 7).for_each(|_| log.note(&pending, |_| ()));
        assert_eq!(flushed(&log, &pending).len(), MAX_PENDING);
        assert_eq!(log.counts(), (500, 7));
        log.note(&pending, |_| ());
        let mut full = io::Cursor::new([0_u8; 3]);
        assert!(log.flush([&pending].into_iter(), KeyValues::Plain, &mut &mut full.get_mut()[..]).is_err());
        assert_eq!(log.counts(), (500, 8));
    }

    #[test]
    fn samples_by_the_setting() {
        for probability in [1.0, 0.5, 0.01] {
            let log = DecisionLog::new(Logged::Sampled(probability));
            let logged = (0..1_000_000).filter(|n| log.wants(n % 2 == 0)).count();
            let share = logged as f64 / 1e6;
            assert!((share / probability - 1.0).abs() < 0.05, "{probability}: {share}");
        }
        let log = DecisionLog::new(Logged::Refused);
        assert!(log.wants(true) && !log.wants(false));
    }
}
