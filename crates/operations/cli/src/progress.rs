//! The progress bar of a long command, on standard error if it is a terminal.

use std::{
    io::{self, IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

use crate::{
    format::duration,
    terminal::{self, count},
};
use text::thousands;

/// The columns of the bar.
const COLUMNS: usize = 24;

pub(super) struct Progress {
    /// What is counted.
    noun: &'static str,
    /// The size of the whole; `None` if it is unknown.
    size: Option<u64>,
    is_shown: bool,
    started: Instant,
    next: Instant,
}

impl Progress {
    pub(super) fn new(noun: &'static str, size: Option<u64>) -> Self {
        let started = Instant::now();
        let next = started + Duration::from_millis(500);
        Self { noun, size, is_shown: io::stderr().is_terminal(), started, next }
    }

    /// Shows how much of the size is done and how much is counted, at most ten times a second.
    pub(super) fn show(&mut self, done: u64, counted: u64) {
        if !self.is_shown {
            return;
        }
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + Duration::from_millis(100);
        let line = self.line(done, counted, now - self.started);
        let line = terminal::cut(&line, terminal::width().min(200));
        // A terminal that is gone needs no progress.
        let _ = write!(io::stderr(), "\r\x1b[K{line}");
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a bar has few columns, and a cast saturates"
    )]
    fn line(&self, done: u64, counted: u64, elapsed: Duration) -> String {
        let rate = thousands(per_second(counted, elapsed));
        let counted = format!("{}, {rate} a second", count(counted, self.noun));
        let Some(size) = self.size.filter(|size| *size > 0) else { return counted };
        let part = (done as f64 / size as f64).min(1.0);
        let full = (part * COLUMNS as f64) as usize;
        let left = elapsed.as_secs_f64() * (1.0 - part) / part.max(1e-9);
        let bar = "█".repeat(full) + &"░".repeat(COLUMNS - full);
        format!("{bar} {:3.0}%  {counted}, {} left", part * 100.0, duration(left.round() as u64))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

pub(super) fn per_second(number: u64, elapsed: Duration) -> u64 {
    let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    number.saturating_mul(1000) / millis
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_what_is_left() {
        let shown = Progress::new("request", Some(1000)).line(250, 1_200_000, Duration::from_secs(2));
        assert_eq!(shown, "██████░░░░░░░░░░░░░░░░░░  25%  1,200,000 requests, 600,000 a second, 6s left");
        let shown = Progress::new("request", None).line(9, 1, Duration::from_secs(1));
        assert_eq!(shown, "1 request, 1 a second");
    }
}
