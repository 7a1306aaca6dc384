//! The threads that answer: each with a runtime of its own and the connections that were dealt to it.

use std::{
    cell::Cell,
    io,
    rc::Rc,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{
    net::{TcpStream, UnixStream},
    runtime,
    sync::{mpsc, watch},
    task::{JoinHandle, JoinSet, LocalSet},
    time::Instant,
};
use tonic::service::Routes;

use super::{
    Connection, OpenConnection, Options, Parts, aux_services,
    calls::{Calls, PATH},
    driver::{self, Lifetime},
    http2::{Budget, Config},
    reference::{Io, Reference},
};
use crate::{
    server::tls::Tls,
    stats::{self, Stats},
};

/// All workers.
pub struct Workers {
    each: Vec<Worker>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
    max_connections: usize,
    stats: Arc<Stats>,
}

struct Worker {
    connections: mpsc::UnboundedSender<(Connection, OpenConnection)>,
    open: Arc<AtomicUsize>,
}

impl Workers {
    /// Starts the threads. When `drain` turns true they ask their connections to go, and end when all
    /// have gone or `drain_timeout` is over.
    ///
    /// # Errors
    /// When a thread or its runtime cannot be made.
    pub fn start(
        options: Options,
        parts: &Parts,
        drain: &watch::Receiver<bool>,
        drain_timeout: Duration,
    ) -> io::Result<Self> {
        let routes = aux_services::routes(&parts.health);
        let budget = Budget::new(options.max_inflight_bytes);
        let mut workers = Vec::new();
        let mut threads = Vec::new();
        for number in 0..options.workers.max(1) {
            let (sender, receiver) = mpsc::unbounded_channel();
            let (parts, routes, drain) = (parts.clone(), routes.clone(), drain.clone());
            let budget = budget.clone();
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            let thread = thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
                stats::shard::assign();
                let tasks = LocalSet::new();
                let (reference, ended) = tasks.block_on(&runtime, async {
                    options
                        .tonic
                        .then(|| Reference::start(&options, &parts, routes.clone(), drain.clone()))
                        .unzip()
                });
                let reference = reference.map(Rc::new);
                let serving = Serving { reference, ..Serving::new(options, &parts, routes, budget) };
                let work = work(serving, ended, parts.tls, receiver, drain, drain_timeout);
                tasks.block_on(&runtime, work);
                // Whatever is still under way has had its time.
                runtime.shutdown_background();
            })?;
            threads.push(thread);
            workers.push(Worker { connections: sender, open: Arc::default() });
        }
        Ok(Self {
            each: workers,
            threads: Mutex::new(threads),
            max_connections: options.max_connections,
            stats: parts.stats.clone(),
        })
    }

    /// Hands a connection to the worker that has fewest; false when there are too many already, or the
    /// workers have ended.
    pub(super) fn deal(&self, connection: Connection) -> bool {
        let idlest = self.each.iter().min_by_key(|worker| worker.open.load(Ordering::Relaxed));
        let taken = idlest.filter(|_| self.open() < self.max_connections).is_some_and(|worker| {
            let open = OpenConnection::new(worker.open.clone(), self.stats.clone());
            worker.connections.send((connection, open)).is_ok()
        });
        if !taken {
            self.stats.service().connections_refused.increment();
        }
        taken
    }

    /// Connections that are open now.
    #[must_use]
    pub fn open(&self) -> usize {
        self.each.iter().map(|worker| worker.open.load(Ordering::Relaxed)).sum()
    }

    /// Waits until every worker has ended.
    pub fn join(&self) {
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
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
    drain: watch::Receiver<bool>,
    drain_timeout: Duration,
) {
    serving.calls.limiter.attend();
    let mut connections = JoinSet::new();
    let serve = |connections: &mut JoinSet<()>, (connection, open): (Connection, OpenConnection)| {
        let (serving, tls, drain) = (serving.clone(), tls.clone(), drain.clone());
        connections.spawn_local(async move {
            let tls = tls.map(|tls| (tls, connection.peer()));
            match connection {
                Connection::Tcp(stream) => {
                    if let Ok(stream) = TcpStream::from_std(stream) {
                        serve_as_agreed(stream, open, tls, serving, drain).await;
                    }
                }
                Connection::Unix(stream) => {
                    if let Ok(stream) = UnixStream::from_std(stream) {
                        serve_as_agreed(stream, open, tls, serving, drain).await;
                    }
                }
            }
        });
    };
    let mut draining = drain.clone();
    loop {
        tokio::select! {
            dealt = dealt.recv() => match dealt {
                Some(dealt) => serve(&mut connections, dealt),
                None => break,
            },
            Some(_) = connections.join_next() => {}
            _ = draining.wait_for(|drain| *drain) => break,
        }
    }
    // Those that were dealt at the last moment are told to go like all others.
    while let Ok(dealt) = dealt.try_recv() {
        serve(&mut connections, dealt);
    }
    let end = Instant::now() + drain_timeout;
    while let Ok(Some(_)) = tokio::time::timeout_at(end, connections.join_next()).await {}
    if let Some(ended) = reference_ended {
        // Whatever it still serves has had its time.
        let _ = tokio::time::timeout_at(end, ended).await;
    }
}

/// Serves a connection as it is, or after a handshake with this peer.
async fn serve_as_agreed(
    stream: impl Io + 'static,
    open: OpenConnection,
    tls: Option<(Arc<Tls>, String)>,
    serving: Serving,
    mut drain: watch::Receiver<bool>,
) {
    let Some((tls, peer)) = tls else {
        return serve_http2(stream, open, serving, drain).await;
    };
    // On the heap: a connection without TLS is not to carry the size of one with it.
    let with_tls = Box::pin(async move {
        if let Some(stream) = tls.handshake(stream, peer, &mut drain).await {
            serve_http2(stream, open, serving, drain).await;
        }
    });
    with_tls.await;
}

/// Serves a connection with the implementation that the settings choose.
async fn serve_http2(
    stream: impl Io + 'static,
    open: OpenConnection,
    serving: Serving,
    drain: watch::Receiver<bool>,
) {
    if let Some(reference) = &serving.reference {
        return reference.serve(stream, open);
    }
    driver::serve(stream, serving.calls, serving.config, serving.lifetime, drain).await;
    drop(open);
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
        });
        Self { reference: None, calls, config, lifetime }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size<F>(_: impl Fn(TcpStream, OpenConnection, Serving, watch::Receiver<bool>) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_plain_connection_does_not_carry_the_size_of_tls() {
        let plain = size(serve_http2);
        let either = size(|stream, open, calls, drain| serve_as_agreed(stream, open, None, calls, drain));
        let with_tls = size(|stream, open, calls, mut drain| async move {
            let tls: Option<Arc<Tls>> = None;
            if let Some(stream) = tls?.handshake(stream, "", &mut drain).await {
                serve_http2(stream, open, calls, drain).await;
            }
            Some(())
        });
        // The stream, the peer's name and the rest of the arguments, before it is known which it will be.
        assert!(either < plain + 256, "{plain} bytes plain, {either} with the choice");
        assert!(with_tls > plain + 1024, "{plain} bytes plain, {with_tls} with TLS: the box is for nothing");
    }
}
