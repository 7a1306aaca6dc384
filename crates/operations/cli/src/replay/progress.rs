//! The progress bar of a replay, on standard error if it is a terminal.

use std::{
    io::{self, IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

use crate::terminal::{self, count};
use text::duration;

/// The columns of the bar.
const COLUMNS: usize = 24;

pub(super) struct Progress {
    /// The bytes of all logs; `None` if standard input is one of them.
    size: Option<u64>,
    is_shown: bool,
    started: Instant,
    next: Instant,
}

impl Progress {
    pub(super) fn new(size: Option<u64>) -> Self {
        let started = Instant::now();
        Self {
            size,
            is_shown: io::stderr().is_terminal(),
            started,
            next: started + Duration::from_millis(500),
        }
    }

    /// Shows the bytes that were read and the requests that were decided, at most ten times a second. Called for each
    /// request, and reads the clock at a few of them.
    pub(super) fn show(&mut self, read: u64, requests: u64) {
        if !self.is_shown || !requests.is_multiple_of(1 << 12) {
            return;
        }
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + Duration::from_millis(100);
        let line = line(read, self.size, requests, now - self.started);
        let line = terminal::cut(&line, terminal::width().min(200));
        // A terminal that is gone needs no progress.
        let _ = write!(io::stderr(), "\r\x1b[K{line}");
    }

    pub(super) fn clear(&self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a bar has few columns, and a cast saturates"
)]
fn line(read: u64, size: Option<u64>, requests: u64, elapsed: Duration) -> String {
    let rate = (requests as f64 / elapsed.as_secs_f64().max(0.001)) as u64;
    let requests = format!("{}, {} a second", count(requests, "request"), text::thousands(rate));
    let Some(size) = size.filter(|size| *size > 0) else { return requests };
    let part = (read as f64 / size as f64).min(1.0);
    let full = (part * COLUMNS as f64) as usize;
    let left = elapsed.as_secs_f64() * (1.0 - part) / part.max(1e-9);
    let bar = "█".repeat(full) + &"░".repeat(COLUMNS - full);
    format!("{bar} {:3.0}%  {requests}, {} left", part * 100.0, duration::short(left.round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_what_is_left() {
        let shown = line(250, Some(1000), 1_200_000, Duration::from_secs(2));
        assert_eq!(shown, "██████░░░░░░░░░░░░░░░░░░  25%  1,200,000 requests, 600,000 a second, 6s left");
        assert_eq!(line(9, None, 1, Duration::from_secs(1)), "1 request, 1 a second");
    }
}
