//! Threads with a runtime of their own: of the HTTP ports, of the admin API, and of the other replicas.

use std::{io, pin::Pin, thread, time::Duration};

use tokio::{
    runtime::{Builder, EnterGuard, Handle},
    sync::oneshot,
    task::LocalSet,
};

use faults::panics::{self, Boundary};

/// Threads for the pages of metrics and of rules, and for large bodies of `/json`.
const BLOCKING: usize = 3;

/// The time for pages that are being rendered when a thread ends.
const LAST_PAGES: Duration = Duration::from_secs(1);

type Work = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + Send>;

pub(super) struct Thread {
    handle: Handle,
    work: oneshot::Sender<Work>,
    joined: thread::JoinHandle<()>,
}

impl Thread {
    /// Starts a thread, which ends without work if this is dropped.
    pub(super) fn start(name: &str, boundary: Boundary) -> io::Result<Self> {
        // Each large page is rendered once at a time, and `/json` waits for none of them. The threads end when idle.
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(BLOCKING).build()?;
        let handle = runtime.handle().clone();
        let (work, given) = oneshot::channel::<Work>();
        let run = move || {
            panics::name_thread(boundary);
            LocalSet::new().block_on(&runtime, async {
                if let Ok(work) = given.await {
                    work().await;
                }
            });
            runtime.shutdown_timeout(LAST_PAGES);
        };
        let joined = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { handle, work, joined })
    }

    /// Sockets that are created meanwhile belong to the thread.
    pub(super) fn enter(&self) -> EnterGuard<'_> {
        self.handle.enter()
    }

    /// Runs the work. Between two rounds of the tasks that it spawns, its future is polled first.
    pub(super) fn run<F: Future<Output = ()> + 'static>(
        self,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> thread::JoinHandle<()> {
        // The thread waits for it.
        let _ = self.work.send(Box::new(move || Box::pin(work())));
        self.joined
    }
}
