//! A thread that works at an interval until it is stopped, and then a last time: the flushes of sinks and logs.
//!
//! The last work may hang in the system, so whoever stops the thread waits for it as long as there is time.

use std::{
    io,
    sync::mpsc::{self, RecvTimeoutError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::panics::{self, Boundary};

pub struct Periodic {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Periodic {
    /// Starts the thread. `work` learns whether this is the last time; a panic of it ends only this round.
    pub fn start(
        name: &str,
        boundary: Boundary,
        interval: Duration,
        mut work: impl FnMut(bool) + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let run = move || {
            let mut next = Instant::now() + interval;
            loop {
                let wait = next.saturating_duration_since(Instant::now());
                let is_last = stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout);
                let _ = panics::catch(boundary, || work(is_last));
                if is_last {
                    return;
                }
                // Slow work delays the next round; missed rounds are not made up for.
                next = (next + interval).max(Instant::now());
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { stop, thread })
    }

    /// Has the thread work a last time.
    pub fn stop(&self) {
        // It fails if the thread has ended.
        let _ = self.stop.send(());
    }

    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }
}
