//! Tasks that go on after a panic.

use faults::panics::{Boundary, PAUSE, Panicked, caught};

/// Runs the work of a task, and restarts it after a panic.
pub async fn task<T>(boundary: Boundary, mut work: impl AsyncFnMut() -> T) -> T {
    loop {
        match caught(boundary, work()).await {
            Ok(done) => return done,
            Err(Panicked) => pause().await,
        }
    }
}

/// The pause before a restart, for tasks that change threads, whose futures [`task`] cannot name.
pub async fn pause() {
    tokio::time::sleep(PAUSE).await;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[tokio::test]
    async fn work_restarts_after_a_panic() {
        let runs = AtomicUsize::new(0);
        let done = task(Boundary::Maintenance, async || {
            assert!(runs.fetch_add(1, Relaxed) >= 1, "on purpose");
            "done"
        });
        assert_eq!(done.await, "done");
        assert_eq!(runs.load(Relaxed), 2);
    }
}
