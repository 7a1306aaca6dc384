//! Panics: each is logged and counted once, and costs only the work it interrupts.
//!
//! [`install`] sets the panic hook, which logs the location and a backtrace and counts in `tollgate_panics_total`.
//! [`catch`], [`caught`] and [`restart`] stop a panic at a [`Boundary`]: a request, a connection, a reload, or a
//! background task, which restarts. The hook reads the boundary from the thread, so it also counts panics that tokio or a
//! thread stops. Locks ignore poisoning (`mutex::lock`); the data they guard is always changed in complete steps.
//!
//! Tests cause panics at a [`point`], which exists in builds with debug assertions only.

mod hook;

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
    thread,
    time::Duration,
};
#[cfg(debug_assertions)]
use std::{env, ffi::OsString, fs, path::Path, sync::LazyLock};

use pin_project_lite::pin_project;

pub use hook::{counts, install};

/// A place where tests can cause a panic. Release builds compile it to nothing.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn point(_name: &str) {}

/// A place where tests can cause a panic: `TOLLGATE_TEST_PANICS` is a directory, and a thread that reaches the point `x`
/// while the directory has a file `x` removes the file and panics.
#[cfg(debug_assertions)]
#[track_caller]
pub fn point(name: &str) {
    static DIRECTORY: LazyLock<Option<OsString>> = LazyLock::new(|| env::var_os("TOLLGATE_TEST_PANICS"));
    if let Some(directory) = &*DIRECTORY
        && fs::remove_file(Path::new(directory).join(name)).is_ok()
    {
        panic!("a test has this thread panic at {name}");
    }
}

text::named! {
    pub enum Boundary {
        /// One gRPC call; the caller receives INTERNAL.
        GrpcRequest = "grpc_request",
        GrpcConnection = "grpc_connection",
        /// One HTTP request; the caller receives 500.
        HttpRequest = "http_request",
        HttpConnection = "http_connection",
        /// A port's accept loop, which restarts.
        Listener = "listener",
        /// One reload of the rules, which is discarded.
        RulesReload = "rules_reload",
        /// The thread that watches the rules files, which restarts.
        RulesWatcher = "rules_watcher",
        XdsResponse = "xds_response",
        XdsClient = "xds_client",
        /// A connection to Redis or memcached, which is reopened.
        StoreConnection = "store_connection",
        /// The discovery of a store's servers, which restarts.
        StoreDiscovery = "store_discovery",
        /// One poll of the credentials of a store.
        StoreLogin = "store_login",
        SpanExporter = "span_exporter",
        /// One flush to statsd; the next one sends the rest.
        Statsd = "statsd",
        /// One export of metrics; the next one has the rest.
        OtlpMetrics = "otlp_metrics",
        TlsReload = "tls_reload",
        /// The maintenance of leases, which restarts.
        Leases = "leases",
        /// The division of limits among Envoys, which restarts.
        Quotas = "quotas",
        /// The periodic maintenance, which restarts.
        Maintenance = "maintenance",
        /// The thread that follows overrides and replicas in Redis, which restarts.
        ReplicaSync = "replica_sync",
        Other = "other",
    }
}

/// The work panicked; the hook has logged and counted it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Panicked;

/// The pause before a restart, so that work that panics at every start does not keep a core busy.
/// The pause before a restart.
pub const PAUSE: Duration = Duration::from_millis(100);

thread_local! {
    static WITHIN: Cell<Boundary> = const { Cell::new(Boundary::Other) };
}

/// Sets the outermost boundary of the calling thread.
pub fn name_thread(boundary: Boundary) {
    WITHIN.set(boundary);
}

/// Runs `work` and stops its panic.
pub fn catch<T>(boundary: Boundary, work: impl FnOnce() -> T) -> Result<T, Panicked> {
    let outer = WITHIN.replace(boundary);
    // Shared state is behind locks and atomics, see above.
    let done = catch_unwind(AssertUnwindSafe(work));
    WITHIN.set(outer);
    done.map_err(|_| Panicked)
}

pub fn caught<F: Future>(boundary: Boundary, future: F) -> Caught<F> {
    Caught { boundary, future }
}

/// Runs the work of a thread, and restarts it after a panic.
pub fn restart<T>(boundary: Boundary, mut work: impl FnMut() -> T) -> T {
    loop {
        match catch(boundary, &mut work) {
            Ok(done) => return done,
            Err(Panicked) => thread::sleep(PAUSE),
        }
    }
}

pin_project! {
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
        catch(*this.boundary, || this.future.poll(context))
            .map_or_else(|panicked| Poll::Ready(Err(panicked)), |poll| poll.map(Ok))
    }
}

#[cfg(test)]
mod tests;
