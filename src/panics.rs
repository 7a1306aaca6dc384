//! Panics: each is logged and counted once, and costs no more than the work it interrupted.
//!
//! [`install`] sets the process's panic hook, which logs the place in the code and a backtrace and counts
//! in `tollgate_panics_total`. [`catch`], [`caught`] and [`restart`] stop a panic at a [`Boundary`]: a request,
//! a connection, a reload, or a background task that starts again. The hook reads the boundary from the
//! thread, so a panic that tokio or a thread stops is counted as well. The locks of this program ignore
//! poisoning (`mutex::lock`); what they guard is changed in steps that are complete.
//!
//! Tests panic on purpose at a [`point`], which exists in builds with debug assertions only.

mod hook;
#[cfg(debug_assertions)]
mod inject;

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
    thread,
    time::Duration,
};

use pin_project_lite::pin_project;

pub use hook::{counts, install};

/// Marks a place where tests can make this thread panic. Nothing is left of it in a release build.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn point(_name: &str) {}
#[cfg(debug_assertions)]
pub use inject::point;

named! {
    /// What a panic is stopped at.
    pub enum Boundary {
        /// One gRPC call; the caller receives INTERNAL.
        GrpcRequest = "grpc_request",
        /// One gRPC connection.
        GrpcConnection = "grpc_connection",
        /// One HTTP request; the caller receives 500.
        HttpRequest = "http_request",
        /// One HTTP connection.
        HttpConnection = "http_connection",
        /// A port's accept loop, which starts again.
        Listener = "listener",
        /// One reload of the rules, which is refused.
        RulesReload = "rules_reload",
        /// The thread that watches the rules files, which starts again.
        RulesWatcher = "rules_watcher",
        /// One xDS response, which is refused.
        XdsResponse = "xds_response",
        /// The xDS client, which connects again.
        XdsClient = "xds_client",
        /// A connection to Redis or memcached, which is opened again.
        StoreConnection = "store_connection",
        /// The lookup of a store's servers, which starts again.
        StoreDiscovery = "store_discovery",
        /// One batch of spans, which is dropped.
        SpanExporter = "span_exporter",
        /// One flush to statsd; the next one sends what it did not.
        Statsd = "statsd",
        /// One look at the certificate files.
        TlsReload = "tls_reload",
        /// The task that looks after leases, which starts again.
        Leases = "leases",
        /// The periodic maintenance, which starts again.
        Maintenance = "maintenance",
        /// The thread that follows Redis for overrides and replicas, which starts again.
        ReplicaSync = "replica_sync",
        /// None of these.
        Other = "other",
    }
}

/// The work panicked. The hook has logged and counted it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Panicked;

/// A task that panicked starts again after this pause, so that one that panics at each start fills neither
/// a core nor the log.
const PAUSE: Duration = Duration::from_millis(100);

thread_local! {
    /// The innermost boundary that the thread is within.
    static WITHIN: Cell<Boundary> = const { Cell::new(Boundary::Other) };
}

/// Sets the boundary of everything on the calling thread that has none of its own.
pub fn name_thread(boundary: Boundary) {
    WITHIN.set(boundary);
}

/// Runs `work`, and stops its panic.
///
/// # Errors
/// When it panicked.
pub fn catch<T>(boundary: Boundary, work: impl FnOnce() -> T) -> Result<T, Panicked> {
    let outer = WITHIN.replace(boundary);
    // What `work` shares with others is behind locks and atomics, see above.
    let done = catch_unwind(AssertUnwindSafe(work));
    WITHIN.set(outer);
    done.map_err(|_| Panicked)
}

/// A future that stops the panics of another.
pub fn caught<F: Future>(boundary: Boundary, future: F) -> Caught<F> {
    Caught { boundary, future }
}

/// Runs the work of a thread, again whenever it panicked.
pub fn restart<T>(boundary: Boundary, mut work: impl FnMut() -> T) -> T {
    loop {
        match catch(boundary, &mut work) {
            Ok(done) => return done,
            Err(Panicked) => thread::sleep(PAUSE),
        }
    }
}

/// Runs the work of a task, again whenever it panicked.
pub async fn restart_task<T>(boundary: Boundary, mut work: impl AsyncFnMut() -> T) -> T {
    loop {
        match caught(boundary, work()).await {
            Ok(done) => return done,
            Err(Panicked) => pause().await,
        }
    }
}

/// The pause before a task starts again; for tasks that change threads, whose futures [`restart_task`]
/// cannot name.
pub async fn pause() {
    tokio::time::sleep(PAUSE).await;
}

pin_project! {
    /// See [`caught`].
    #[derive(Debug)]
    #[must_use = "a future does nothing unless it is polled"]
    pub struct Caught<F> {
        boundary: Boundary,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Caught<F> {
    type Output = Result<F::Output, Panicked>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        match catch(*this.boundary, || this.future.poll(context)) {
            Ok(poll) => poll.map(Ok),
            Err(panicked) => Poll::Ready(Err(panicked)),
        }
    }
}

#[cfg(test)]
mod tests;
