//! The worker threads: each has a runtime of its own and serves the connections that were assigned to it.
//!
//! [`accept`](super::accept) assigns connections and starts the drain; `app` waits for the drain and stops the threads.
//! A worker's runtime also runs connections to the store, which other threads share if the store has fewer
//! connections than there are workers. So a drained worker keeps its runtime until [`Workers::join`].

use std::{
    cell::Cell,
    convert::Infallible,
    io,
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use budget::Budget;
use http2::Config;
use tokio::{
    net::{TcpStream, UnixStream},
    runtime,
    sync::{Mutex as AsyncMutex, mpsc, watch},
    task::{JoinSet, LocalSet, yield_now},
};
use tonic::service::Routes;

use super::{
    Parts,
    activity::GrpcActivity,
    arrivals::Arrivals,
    calls::Calls,
    driver::{self, Lifetime},
    reference::{self, Reference},
};
use crate::{
    connections::{ConnectionLimits, Registry},
    grpc::settings::{GrpcServer, Settings},
    listen::{Accepted, AcceptedSocket, Peer},
    socket::Socket,
    tls::{HTTP_2, Tls},
};
use faults::{
    mutex::lock,
    panics::{self, Boundary},
};
use metrics::{self, Port, Stats};

pub struct Workers {
    each: Vec<Worker>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
    /// True: every connection receives a GOAWAY.
    drain: watch::Sender<bool>,
    end: watch::Sender<bool>,
    /// Closed when the last worker has drained.
    drained: AsyncMutex<mpsc::Receiver<Infallible>>,
    /// Connections that were closed before their requests had ended.
    cut: Arc<AtomicUsize>,
    connections: Arc<Registry>,
    stats: Arc<Stats>,
}

/// A connection that was assigned to a worker.
type Assigned = (Accepted, GrpcActivity);

struct Worker {
    connections: mpsc::UnboundedSender<Assigned>,
    open: Arc<AtomicUsize>,
}

impl Workers {
    /// Starts the workers. Once they drain, each waits so long for its requests.
    pub fn start(settings: &Settings, drain_timeout: Duration, parts: &Parts) -> io::Result<Self> {
        let is_reference = settings.implementation == GrpcServer::Tonic;
        let routes = is_reference.then(|| reference::routes(&parts.health));
        let streaming = Budget::new(settings.max_connections);
        let (drain, draining) = watch::channel(false);
        let (end, ending) = watch::channel(false);
        let (busy, drained) = mpsc::channel(1);
        let mut workers = Vec::new();
        let mut threads = Vec::new();
        let cut = Arc::<AtomicUsize>::default();
        for number in 0..settings.workers.max(1) {
            let (sender, receiver) = mpsc::unbounded_channel();
            let settings = settings.clone();
            let parts = parts.clone();
            let routes = routes.clone();
            let busy = busy.clone();
            let streaming = streaming.clone();
            let drain = draining.clone();
            let mut end = ending.clone();
            let cut = cut.clone();
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            let thread = thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
                metrics::shard::assign();
                panics::name_thread(Boundary::GrpcConnection);
                LocalSet::new().block_on(&runtime, async {
                    let serving = Serving::new(&settings, &parts, routes, streaming, &drain);
                    let left = work(serving, receiver, drain, drain_timeout).await;
                    cut.fetch_add(left, Ordering::Relaxed);
                    drop(busy);
                    let _ = end.wait_for(|end| *end).await;
                });
                // Does not wait for tasks that are still running: the drain timeout has passed.
                runtime.shutdown_background();
            })?;
            threads.push(thread);
            workers.push(Worker { connections: sender, open: Arc::default() });
        }
        Ok(Self {
            each: workers,
            threads: Mutex::new(threads),
            drain,
            end,
            drained: AsyncMutex::new(drained),
            cut,
            connections: Registry::new(Port::Grpc, limits(settings), parts.stats.clone(), Instant::now()),
            stats: parts.stats.clone(),
        })
    }

    /// Passes a connection to the worker with the fewest connections; closes it if the registry rejects it or the
    /// workers have ended.
    pub(super) fn assign(&self, accepted: Accepted) {
        let Ok(handle) = self.connections.admit(accepted.peer.ip(), Instant::now()) else { return };
        let idlest = self.each.iter().min_by_key(|worker| worker.open.load(Ordering::Relaxed));
        if let Some(worker) = idlest {
            let activity = GrpcActivity::new(handle, worker.open.clone(), self.stats.clone());
            // Workers end when the service does; then the connection is closed with the channel.
            let _ = worker.connections.send((accepted, activity));
        }
    }

    /// Sends a GOAWAY on every connection. No connection may be assigned afterwards.
    pub(super) fn drain(&self) {
        self.drain.send_replace(true);
    }

    /// Waits until every worker has served its last connection, or until the shutdown timeout.
    pub async fn drained(&self) {
        let _ = self.drained.lock().await.recv().await;
    }

    /// The connections that the shutdown timeout closed.
    pub fn cut(&self) -> usize {
        self.cut.load(Ordering::Relaxed)
    }

    /// Stops the threads, and with them the connections to the store.
    pub fn end(&self) {
        self.drain();
        self.end.send_replace(true);
    }

    pub fn have_ended(&self) -> bool {
        lock(&self.threads).iter().all(thread::JoinHandle::is_finished)
    }

    /// Stops the threads, and blocks until they have ended.
    pub fn join(&self) {
        self.end();
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            // The hook has logged the panic of a worker.
            let _ = thread.join();
        }
    }
}

/// Serves the connections of a worker until the drain, and then those that are open until `drain_timeout`. Returns the
/// number of those that are left.
async fn work(
    serving: Serving,
    mut assigned: mpsc::UnboundedReceiver<Assigned>,
    drain: watch::Receiver<bool>,
    drain_timeout: Duration,
) -> usize {
    serving.calls.parts.limiter.start_worker();
    let mut connections = JoinSet::new();
    let mut arrivals = Arrivals::default();
    // Connections survive a panic of the loop that receives them, and so does their channel.
    net::restart::task(Boundary::Listener, async || {
        receive(&serving, &mut connections, &mut assigned, &mut arrivals, drain.clone()).await;
    })
    .await;
    let finish = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(drain_timeout, finish).await;
    connections.len()
}

/// Serves the connections that are assigned to this worker, until the drain.
async fn receive(
    serving: &Serving,
    connections: &mut JoinSet<()>,
    assigned: &mut mpsc::UnboundedReceiver<Assigned>,
    arrivals: &mut Arrivals<Assigned>,
    mut drain: watch::Receiver<bool>,
) {
    let draining = drain.clone();
    let serve = |connections: &mut JoinSet<()>, (accepted, activity): Assigned| {
        panics::point("worker");
        let serving = serving.clone();
        let drain = draining.clone();
        let activity = Arc::new(activity);
        connections.spawn_local(async move {
            let tls = serving.calls.parts.tls.clone().map(|tls| (tls, accepted.peer));
            match accepted.socket {
                AcceptedSocket::Tcp(stream) => {
                    if let Ok(stream) = TcpStream::from_std(stream) {
                        serve_as_configured(stream, activity, tls, serving, drain).await;
                    }
                }
                AcceptedSocket::Unix(stream) => {
                    if let Ok(stream) = UnixStream::from_std(stream) {
                        serve_as_configured(stream, activity, tls, serving, drain).await;
                    }
                }
            }
        });
    };
    let arrive = |arrivals: &mut Arrivals<Assigned>, (accepted, activity): Assigned| {
        arrivals.push(activity.handle.address(), (accepted, activity));
    };
    let is_left = |(_, activity): &Assigned| !activity.handle.must_close();
    while !*drain.borrow() {
        while let Ok(assigned) = assigned.try_recv() {
            arrive(arrivals, assigned);
        }
        if let Some(next) = arrivals.pop(is_left) {
            serve(connections, next);
            while connections.try_join_next().is_some() {}
            // Tasks that are ready run before the next connection begins.
            yield_now().await;
            continue;
        }
        tokio::select! {
            assigned = assigned.recv() => match assigned {
                Some(assigned) => arrive(arrivals, assigned),
                None => break,
            },
            Some(_) = connections.join_next() => {}
            _ = drain.wait_for(|drain| *drain) => break,
        }
    }
    // Connections that were assigned last receive a GOAWAY as well.
    while let Ok(assigned) = assigned.try_recv() {
        arrive(arrivals, assigned);
    }
    while let Some(next) = arrivals.pop(is_left) {
        serve(connections, next);
    }
}

/// Serves a connection in plaintext, or after a TLS handshake with this peer.
async fn serve_as_configured(
    stream: impl Socket + 'static,
    activity: Arc<GrpcActivity>,
    tls: Option<(Arc<Tls>, Peer)>,
    serving: Serving,
    mut drain: watch::Receiver<bool>,
) {
    let Some((tls, peer)) = tls else {
        return serve_http2(stream, activity, serving, drain).await;
    };
    // On the heap, so that a plaintext connection does not have the size of one with TLS.
    let with_tls = Box::pin(async move {
        let stream = tokio::select! {
            stream = tls.handshake(HTTP_2, stream, peer, &mut drain) => stream,
            _ = activity.handle.closing() => None,
        };
        if let Some(stream) = stream {
            serve_http2(stream, activity, serving, drain).await;
        }
    });
    with_tls.await;
}

/// Serves a connection with the configured implementation.
async fn serve_http2(
    stream: impl Socket + 'static,
    activity: Arc<GrpcActivity>,
    serving: Serving,
    drain: watch::Receiver<bool>,
) {
    if let Some(reference) = serving.reference {
        // On the heap, so that other connections do not have its size.
        return Box::pin(async move { reference.serve(stream, activity, drain).await }).await;
    }
    driver::serve(stream, serving.calls, serving.config, serving.lifetime, drain, activity).await;
}

fn limits(settings: &Settings) -> ConnectionLimits {
    ConnectionLimits {
        connections: settings.max_connections,
        per_address: settings.max_connections_per_address,
        // A new connection cannot wait, and the one silent longest is the likeliest to stay silent.
        patience: Duration::ZERO,
        idle_closed_per_second: (settings.max_connections / 10).max(10),
        names: ["GRPC_MAX_CONNECTIONS", "GRPC_MAX_CONNECTIONS_PER_ADDRESS"],
    }
}

#[derive(Clone)]
struct Serving {
    /// Serves every connection if the settings select it.
    reference: Option<Rc<Reference>>,
    calls: Rc<Calls>,
    config: Config,
    lifetime: Lifetime,
}

impl Serving {
    fn new(
        settings: &Settings,
        parts: &Parts,
        routes: Option<Routes>,
        streaming: Arc<Budget>,
        drain: &watch::Receiver<bool>,
    ) -> Self {
        let budget = parts.inflight.clone();
        let config = Config { max_streams: settings.max_concurrent_streams, budget };
        let calls = Rc::new(Calls {
            parts: parts.clone(),
            max_request_bytes: settings.max_request_bytes,
            receive_timeout: settings.receive_timeout,
            streaming,
            health: parts.health.changes(),
            buffers: Cell::default(),
        });
        Self {
            reference: routes.map(|routes| Rc::new(Reference::new(settings, parts, routes, drain))),
            calls,
            config,
            lifetime: Lifetime::new(settings),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size<F>(_: impl Fn(TcpStream, Arc<GrpcActivity>, Serving, watch::Receiver<bool>) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_plaintext_connection_does_not_have_the_size_of_tls() {
        let plain = size(serve_http2);
        let either =
            size(|stream, activity, calls, drain| serve_as_configured(stream, activity, None, calls, drain));
        let with_tls = size(|stream, activity, calls, mut drain| async move {
            let tls: Option<Arc<Tls>> = None;
            if let Some(stream) = tls?.handshake(HTTP_2, stream, "", &mut drain).await {
                serve_http2(stream, activity, calls, drain).await;
            }
            Some(())
        });
        // The stream, the peer and the rest of the arguments, before it is known which it will be.
        assert!(either < plain + 288, "{plain} bytes plain, {either} with the choice");
        assert!(with_tls > plain + 1024, "{plain} bytes plain, {with_tls} with TLS: the box is useless");
    }
}
