//! The log of decisions: JSON lines, written by a thread of its own from what the workers put aside.
//!
//! A worker writes a decision into memory that is used again and again. Where the memory is full, because there are
//! more decisions than the log may have or because the disk is slow, the decision is counted as dropped.

use std::{
    io::{self, Write},
    mem,
    sync::{
        Mutex,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
};

use super::{decision::Decision, lock};
use crate::settings::{KeyValues, Logged};

/// Decisions that a worker puts aside between two flushes.
const MAX_PENDING: usize = 500;

/// Flushes in a second; see [`DecisionLog::PAUSE`].
const FLUSHES: u64 = 5;

/// The log of decisions.
#[derive(Debug)]
pub struct DecisionLog {
    logged: Logged,
    /// Decisions to be passed over before the next one that is logged.
    skip: AtomicI64,
    spare: Mutex<Vec<Decision>>,
    lines: AtomicU64,
    dropped: AtomicU64,
}

/// What one worker put aside.
#[derive(Debug, Default)]
pub(super) struct Pending(Mutex<Filled>);

#[derive(Debug, Default)]
struct Filled {
    /// Decisions beyond this many are left of an earlier flush, and only their memory is of use.
    len: usize,
    decisions: Vec<Decision>,
}

impl DecisionLog {
    /// The pause between two flushes. So a worker logs at most 2,500 decisions in a second.
    pub const PAUSE: std::time::Duration = std::time::Duration::from_millis(1000 / FLUSHES);

    pub(super) fn new(logged: Logged) -> Self {
        Self {
            logged,
            skip: AtomicI64::new(0),
            spare: Mutex::default(),
            lines: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// Whether a decision is to be logged.
    pub(super) fn wants(&self, is_refused: bool) -> bool {
        match self.logged {
            Logged::Refused => is_refused,
            Logged::Sampled(probability) if probability >= 1.0 => true,
            // Drawing how many are passed over costs less than drawing for each.
            Logged::Sampled(probability) => {
                let is_next = self.skip.fetch_sub(1, Relaxed) <= 0;
                if is_next {
                    self.skip.store(passed_over(probability), Relaxed);
                }
                is_next
            }
        }
    }

    pub(super) fn note(&self, pending: &Pending, fill: impl FnOnce(&mut Decision)) {
        let Ok(mut filled) = pending.0.try_lock() else { return self.drop_lines(1) };
        let Filled { len, decisions } = &mut *filled;
        if *len == decisions.len() && *len < MAX_PENDING {
            decisions.push(Decision::default());
        }
        match decisions.get_mut(*len) {
            Some(decision) => {
                decision.weight = 1;
                fill(decision);
                *len = len.saturating_add(1);
            }
            None => self.drop_lines(1),
        }
    }

    /// Writes what the workers put aside.
    pub(super) fn flush<'a>(
        &self,
        pending: impl Iterator<Item = &'a Pending>,
        values: KeyValues,
        write: &mut dyn Write,
    ) -> io::Result<()> {
        let mut text = Vec::new();
        let (mut lines, mut spare) = (0_u64, lock(&self.spare));
        for pending in pending {
            let len = {
                let mut filled = lock(&pending.0);
                mem::swap(&mut filled.decisions, &mut spare);
                mem::take(&mut filled.len)
            };
            for decision in spare.iter().take(len) {
                // A decision is made of texts and numbers, which JSON has, and a Vec takes every byte.
                if serde_json::to_writer(&mut text, &decision.json(values)).is_ok() {
                    text.push(b'\n');
                    lines = lines.saturating_add(1);
                }
            }
        }
        if lines == 0 {
            return Ok(());
        }
        write.write_all(&text).and_then(|()| write.flush()).inspect_err(|_| self.drop_lines(lines))?;
        self.lines.fetch_add(lines, Relaxed);
        Ok(())
    }

    fn drop_lines(&self, lines: u64) {
        self.dropped.fetch_add(lines, Relaxed);
    }

    /// Lines that were written, and decisions that were not logged though they should have been.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.lines.load(Relaxed), self.dropped.load(Relaxed))
    }
}

/// How many decisions are passed over before one is logged, where each is with this probability: a number of the
/// geometric distribution.
#[expect(clippy::cast_possible_truncation, reason = "a cast saturates")]
fn passed_over(probability: f64) -> i64 {
    // Not 0, whose logarithm is infinite.
    let drawn = 1.0 - fastrand::f64();
    (drawn.ln() / (1.0 - probability).ln()) as i64
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
        assert_eq!(log.counts(), (9, 0));
    }

    #[test]
    fn what_finds_no_room_is_counted() {
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
    fn as_many_are_sampled_as_the_setting_says() {
        for probability in [1.0, 0.5, 0.01] {
            let log = DecisionLog::new(Logged::Sampled(probability));
            let logged = (0..1_000_000).filter(|n| log.wants(n % 2 == 0)).count();
            #[expect(clippy::cast_precision_loss, reason = "a million")]
            let share = logged as f64 / 1e6;
            assert!((share / probability - 1.0).abs() < 0.05, "{probability}: {share}");
        }
        let log = DecisionLog::new(Logged::Refused);
        assert!(log.wants(true) && !log.wants(false));
    }
}
