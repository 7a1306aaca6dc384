//! The worker threads: each has a runtime of its own and serves the connections that were dealt to it.
//!
//! [`accept`](super::accept) deals connections and starts the drain; `app` waits for it and ends the threads.
//! A worker's runtime also runs connections to the store, which other threads share when there are fewer of
//! them than workers. So a worker that has drained keeps its runtime until [`Workers::join`].

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
    time::Duration,
};

use tokio::{
    net::{TcpStream, UnixStream},
    runtime,
    sync::{Mutex as AsyncMutex, mpsc, watch},
    task::{JoinHandle, JoinSet, LocalSet},
};
use tonic::service::Routes;

use super::{
    Connection, OpenConnection, Options, Parts,
    activity::Activity,
    aux_services,
    calls::{Calls, PATH, Tries},
    driver::{self, Lifetime},
    http2::{Budget, Config},
    reference::{Io, Reference},
};
use crate::{
    mutex::lock,
    panics::{self, Boundary},
    server::{
        connections::{Limits, Registry},
        tls::Tls,
    },
    telemetry::metrics::{self, Port, Stats},
};

/// All workers.
pub struct Workers {
    each: Vec<Worker>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
    stage: watch::Sender<Stage>,
    /// Closed when the last worker has drained.
    draining: AsyncMutex<mpsc::Receiver<Infallible>>,
    connections: Arc<Registry>,
    stats: Arc<Stats>,
}

/// What all workers do now.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Serve,
    /// Every connection gets a GOAWAY.
    Drain,
    /// The threads end.
    End,
}

struct Worker {
    connections: mpsc::UnboundedSender<(Connection, OpenConnection)>,
    open: Arc<AtomicUsize>,
}

impl Workers {
    /// Starts the threads. A drain takes at most `drain_timeout`.
    ///
    /// # Errors
    /// When a thread or its runtime cannot be made.
    pub fn start(options: Options, parts: &Parts, drain_timeout: Duration) -> io::Result<Self> {
        let routes = aux_services::routes(&parts.health);
        let budget = Budget::new(options.max_inflight_bytes);
        let (stage, _) = watch::channel(Stage::Serve);
        let (busy, draining) = mpsc::channel(1);
        let mut workers = Vec::new();
        let mut threads = Vec::new();
        for number in 0..options.workers.max(1) {
            let (sender, receiver) = mpsc::unbounded_channel();
            let (parts, routes, budget) = (parts.clone(), routes.clone(), budget.clone());
            let (mut stage, busy) = (stage.subscribe(), busy.clone());
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            let thread = thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
                metrics::shard::assign();
                panics::name_thread(Boundary::GrpcConnection);
                LocalSet::new().block_on(&runtime, async {
                    let drain = watch::channel(false);
                    let (reference, ended) = options
                        .tonic
                        .then(|| Reference::start(&options, &parts, routes.clone(), drain.1.clone()))
                        .unzip();
                    let reference = reference.map(Rc::new);
                    let serving = Serving { reference, ..Serving::new(options, &parts, routes, budget) };
                    let stages = (stage.clone(), drain);
                    work(serving, ended, parts.tls, receiver, stages, drain_timeout).await;
                    drop(busy);
                    let _ = stage.wait_for(|stage| *stage == Stage::End).await;
                });
                // Whatever is still under way has had its time.
                runtime.shutdown_background();
            })?;
            threads.push(thread);
            workers.push(Worker { connections: sender, open: Arc::default() });
        }
        Ok(Self {
            each: workers,
            threads: Mutex::new(threads),
            stage,
            draining: AsyncMutex::new(draining),
            connections: Registry::new(
                Port::Grpc,
                limits(options),
                parts.stats.clone(),
                std::time::Instant::now(),
            ),
            stats: parts.stats.clone(),
        })
    }

    /// Hands a connection to the worker that has fewest; closes it when there is no place for it, or the
    /// workers have ended.
    pub(super) fn deal(&self, connection: Connection) {
        let Ok(handle) = self.connections.admit(connection.address(), std::time::Instant::now()) else {
            return;
        };
        let idlest = self.each.iter().min_by_key(|worker| worker.open.load(Ordering::Relaxed));
        if let Some(worker) = idlest {
            let open = OpenConnection::new(handle, worker.open.clone(), self.stats.clone());
            // Workers end when the service does; then the connection is closed with the channel.
            let _ = worker.connections.send((connection, open));
        }
    }

    /// Sends every connection a GOAWAY. No connection may be dealt afterwards.
    pub(super) fn drain(&self) {
        self.stage.send_replace(Stage::Drain);
    }

    /// Waits until every worker has served its last connection, or its drain timeout has passed.
    pub async fn drained(&self) {
        let _ = self.draining.lock().await.recv().await;
    }

    /// Ends the threads, and with them the connections to the store. Blocks until they have ended.
    pub fn join(&self) {
        self.stage.send_replace(Stage::End);
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            // A worker that panicked has said so on its own.
            let _ = thread.join();
        }
    }
}

async fn work(
    serving: Serving,
    reference_ended: Option<JoinHandle<()>>,
    tls: Option<Arc<Tls>>,
    mut dealt: mpsc::UnboundedReceiver<(Connection, OpenConnection)>,
    (stage, drain): (watch::Receiver<Stage>, (watch::Sender<bool>, watch::Receiver<bool>)),
    drain_timeout: Duration,
) {
    serving.calls.limiter.start_worker();
    let mut connections = JoinSet::new();
    // Connections survive a panic of the loop that receives them, and so does their channel.
    panics::restart_task(Boundary::Listener, async || {
        receive(&serving, tls.as_ref(), &mut connections, &mut dealt, (stage.clone(), &drain)).await;
    })
    .await;
    let finish = async {
        while connections.join_next().await.is_some() {}
        if let Some(ended) = reference_ended {
            let _ = ended.await;
        }
    };
    // Whatever is still served then has had its time.
    let _ = tokio::time::timeout(drain_timeout, finish).await;
}

/// Serves the connections that are dealt to this worker, until the service drains.
async fn receive(
    serving: &Serving,
    tls: Option<&Arc<Tls>>,
    connections: &mut JoinSet<()>,
    dealt: &mut mpsc::UnboundedReceiver<(Connection, OpenConnection)>,
    (mut stage, (start_drain, drain)): (
        watch::Receiver<Stage>,
        &(watch::Sender<bool>, watch::Receiver<bool>),
    ),
) {
    let serve = |connections: &mut JoinSet<()>, (connection, open): (Connection, OpenConnection)| {
        panics::point("worker");
        let (serving, tls, drain) = (serving.clone(), tls.cloned(), drain.clone());
        connections.spawn_local(async move {
            let activity = Arc::new(Activity::new(open));
            let tls = tls.map(|tls| (tls, connection.peer()));
            match connection {
                Connection::Tcp(stream) => {
                    if let Ok(stream) = TcpStream::from_std(stream) {
                        serve_as_agreed(stream, activity, tls, serving, drain).await;
                    }
                }
                Connection::Unix(stream) => {
                    if let Ok(stream) = UnixStream::from_std(stream) {
                        serve_as_agreed(stream, activity, tls, serving, drain).await;
                    }
                }
            }
        });
    };
    loop {
        tokio::select! {
            dealt = dealt.recv() => match dealt {
                Some(dealt) => serve(connections, dealt),
                None => break,
            },
            Some(_) = connections.join_next() => {}
            _ = stage.wait_for(|stage| *stage >= Stage::Drain) => break,
        }
    }
    let _ = start_drain.send(true);
    // Connections that were dealt at the last moment get a GOAWAY like all others.
    while let Ok(dealt) = dealt.try_recv() {
        serve(connections, dealt);
    }
}

/// Serves a connection as it is, or after a handshake with this peer.
async fn serve_as_agreed(
    stream: impl Io + 'static,
    activity: Arc<Activity>,
    tls: Option<(Arc<Tls>, String)>,
    serving: Serving,
    mut drain: watch::Receiver<bool>,
) {
    let Some((tls, peer)) = tls else {
        return serve_http2(stream, activity, serving, drain).await;
    };
    // On the heap: a connection without TLS is not to carry the size of one with it.
    let with_tls = Box::pin(async move {
        let shaken = tokio::select! {
            shaken = tls.handshake(stream, peer, &mut drain) => shaken,
            _ = activity.handle().closing() => None,
        };
        if let Some(stream) = shaken {
            serve_http2(stream, activity, serving, drain).await;
        }
    });
    with_tls.await;
}

fn limits(options: Options) -> Limits {
    Limits {
        connections: options.max_connections,
        per_address: options.max_connections_per_address,
        // A newcomer cannot wait here, and the one that is silent longest is the likeliest to stay so.
        patience: Duration::ZERO,
        idle_closed_per_second: (options.max_connections / 10).max(10),
        names: ["GRPC_MAX_CONNECTIONS", "GRPC_MAX_CONNECTIONS_PER_ADDRESS"],
    }
}

/// Serves a connection with the implementation that the settings choose.
async fn serve_http2(
    stream: impl Io + 'static,
    activity: Arc<Activity>,
    serving: Serving,
    drain: watch::Receiver<bool>,
) {
    if let Some(reference) = &serving.reference {
        return reference.serve(stream, activity);
    }
    driver::serve(stream, serving.calls, serving.config, serving.lifetime, drain, activity).await;
}

/// What connections are served with; one of it for each worker.
#[derive(Clone)]
struct Serving {
    /// Serves every connection, where the settings choose it.
    reference: Option<Rc<Reference>>,
    calls: Rc<Calls>,
    config: Config,
    lifetime: Lifetime,
}

impl Serving {
    fn new(options: Options, parts: &Parts, routes: Routes, budget: Arc<Budget>) -> Self {
        let some = |duration: Duration| Some(duration).filter(|duration| !duration.is_zero());
        let lifetime = Lifetime {
            age: some(options.max_connection_age),
            grace: some(options.max_connection_age_grace),
            keepalive_interval: some(options.keepalive_interval),
            keepalive_timeout: options.keepalive_timeout,
        };
        let config = Config {
            max_streams: options.max_concurrent_streams,
            budget: budget.clone(),
            unary: PATH,
            keep_fields: parts.tracer.is_some(),
        };
        let calls = Rc::new(Calls {
            limiter: parts.limiter.clone(),
            stats: parts.stats.clone(),
            tracer: parts.tracer.clone(),
            max_request_bytes: options.max_request_bytes,
            receive_timeout: options.receive_timeout,
            budget,
            routes,
            buffers: Cell::default(),
            tries: Tries::default(),
        });
        Self { reference: None, calls, config, lifetime }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size<F>(_: impl Fn(TcpStream, Arc<Activity>, Serving, watch::Receiver<bool>) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_plain_connection_does_not_carry_the_size_of_tls() {
        let plain = size(serve_http2);
        let either =
            size(|stream, activity, calls, drain| serve_as_agreed(stream, activity, None, calls, drain));
        let with_tls = size(|stream, activity, calls, mut drain| async move {
            let tls: Option<Arc<Tls>> = None;
            if let Some(stream) = tls?.handshake(stream, "", &mut drain).await {
                serve_http2(stream, activity, calls, drain).await;
            }
            Some(())
        });
        // The stream, the peer's name and the rest of the arguments, before it is known which it will be.
        assert!(either < plain + 256, "{plain} bytes plain, {either} with the choice");
        assert!(with_tls > plain + 1024, "{plain} bytes plain, {with_tls} with TLS: the box is for nothing");
    }
}
