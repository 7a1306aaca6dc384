//! The thread that writes log lines, so that a standard error that is not read blocks no other thread.
//!
//! A pipe to a log collector that hangs is full after a few lines, and the next write to it blocks. Lines wait in a
//! buffer; those that do not fit are dropped and counted.

use std::{
    io, mem,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};

use tracing::warn;

use faults::mutex::lock;
use metrics::{count_dropped_log_lines, log_lines_dropped};

/// The size of the buffer: ten times the diagnostics that one set of rules logs.
const MAX_BYTES: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct Writer {
    pending: Mutex<Pending>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Pending {
    lines: String,
    is_writing: bool,
}

impl Writer {
    /// Starts the thread, which passes several lines at once to `write`. That returns the number of lines lost.
    pub(super) fn start(write: impl FnMut(&str) -> usize + Send + 'static) -> io::Result<Arc<Self>> {
        let writer = Arc::new(Self::default());
        let own = writer.clone();
        thread::Builder::new().name("log-writer".to_owned()).spawn(move || own.run(write))?;
        Ok(writer)
    }

    pub(super) fn push(&self, line: &str) {
        let mut pending = lock(&self.pending);
        if pending.lines.len() + line.len() > MAX_BYTES {
            count_dropped_log_lines(1);
            return;
        }
        pending.lines.push_str(line);
        drop(pending);
        self.changed.notify_all();
    }

    /// Waits until every line is written, at most this long.
    pub(super) fn flush(&self, timeout: Duration) {
        let is_unwritten = |pending: &mut Pending| pending.is_writing || !pending.lines.is_empty();
        let _ = self.changed.wait_timeout_while(lock(&self.pending), timeout, is_unwritten);
    }

    fn run(&self, mut write: impl FnMut(&str) -> usize) {
        let mut reported = 0;
        loop {
            let lost = write(&self.take());
            count_dropped_log_lines(lost);
            let dropped = log_lines_dropped();
            // While lines are lost, another one would be too.
            if lost == 0 && dropped > reported {
                let lines = dropped - mem::replace(&mut reported, dropped);
                warn!(lines, "log lines dropped: standard error was not writable, or not read in time");
            }
        }
    }

    /// Waits for lines. The previous ones are written.
    fn take(&self) -> String {
        let mut pending = lock(&self.pending);
        pending.is_writing = false;
        self.changed.notify_all();
        let is_empty = |pending: &mut Pending| pending.lines.is_empty();
        let waited = self.changed.wait_while(pending, is_empty);
        pending = waited.unwrap_or_else(PoisonError::into_inner);
        pending.is_writing = true;
        mem::take(&mut pending.lines)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A writer that blocks in each write until a message arrives, and then sends what it wrote.
    fn blocking() -> (Arc<Writer>, mpsc::Sender<()>, mpsc::Receiver<String>) {
        let ((unblock, blocked), (sender, written)) = (mpsc::channel(), mpsc::channel());
        let writer = Writer::start(move |lines| {
            let _ = blocked.recv();
            let _ = sender.send(lines.to_owned());
            0
        });
        (writer.unwrap(), unblock, written)
    }

    #[test]
    fn lines_beyond_the_buffer_are_dropped_and_the_others_keep_their_order() {
        let (writer, unblock, written) = blocking();
        let line = |number: usize| format!("{number:>1023}\n");
        let room = MAX_BYTES / 1024;
        writer.push(&line(0));
        while !lock(&writer.pending).is_writing {
            thread::yield_now();
        }
        let before = log_lines_dropped();
        (1..room + 4).for_each(|number| writer.push(&line(number)));
        assert_eq!(log_lines_dropped() - before, 3);
        writer.flush(Duration::from_millis(10));
        drop(unblock);
        writer.flush(PATIENCE);
        assert_eq!(written.try_iter().collect::<String>(), (0..=room).map(line).collect::<String>());
    }

    #[test]
    fn flush_waits_for_the_line_being_written() {
        let (writer, unblock, written) = blocking();
        writer.push("one\n");
        let unblocked = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            unblock.send(()).unwrap();
            unblock
        });
        writer.flush(PATIENCE);
        assert_eq!(written.try_recv().as_deref(), Ok("one\n"));
        drop(unblocked.join());
    }
}
