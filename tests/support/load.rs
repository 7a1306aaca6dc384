//! Many clients that ask without pause, as Envoy's workers do: they follow GOAWAY, connect again, and go
//! on to the next replica when one is gone. A request that the service took and did not answer is a
//! failure; nothing else is.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::HeaderMap;
use tokio::{runtime::Builder, task::JoinSet};
use tollgate::proto::envoy::service::ratelimit::v3::RateLimitRequest;

use super::{
    eventually,
    grpc_tls::TlsClient,
    holds,
    raw::{Exchange, RawClient, framed},
};

/// Requests that each connection has open at a time.
const IN_FLIGHT: usize = 4;
/// Between two rounds of a connection, so that the machine has time for the service as well.
const PAUSE: Duration = Duration::from_millis(1);

/// Clients at work.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    worker: JoinHandle<Outcome>,
}

/// What the clients met.
#[derive(Default, Debug)]
pub(crate) struct Outcome {
    pub(crate) answered: u64,
    /// Requests that were taken and not answered well, with their reasons.
    pub(crate) failed: Vec<String>,
    /// Connections that were opened, those of the beginning included.
    pub(crate) connections: usize,
    /// The time of every answer.
    pub(crate) times: Vec<Duration>,
}

impl Load {
    /// Lets `clients` connections ask the first of `ports`, and the next ones when it is gone.
    pub(crate) fn start(ports: &[u16], clients: usize, request: &RateLimitRequest) -> Self {
        Self::start_with(None, ports, clients, request)
    }

    /// The same, with TLS if it is given.
    pub(crate) fn start_with(
        tls: Option<TlsClient>,
        ports: &[u16],
        clients: usize,
        request: &RateLimitRequest,
    ) -> Self {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let one = Worker {
            tls,
            ports: ports.to_vec(),
            body: framed(request),
            stop: Arc::clone(&stop),
            answered: Arc::clone(&answered),
        };
        let worker = thread::spawn(move || all(&one, clients));
        let load = Self { stop, answered, worker };
        load.wait_for(1);
        load
    }

    /// Waits until so many more requests are answered.
    pub(crate) fn wait_for(&self, more: u64) {
        let goal = self.answered.load(Ordering::Relaxed) + more;
        eventually("the load is answered", || {
            let have = self.answered.load(Ordering::Relaxed);
            holds(have >= goal || self.worker.is_finished(), || format!("{have} of {goal} answers"))
        });
    }

    /// Ends it.
    pub(crate) fn stop(self) -> Outcome {
        self.stop.store(true, Ordering::Relaxed);
        self.worker.join().expect("the load does not panic")
    }
}

impl Outcome {
    /// Fails the test when a request was lost.
    pub(crate) fn assert_nothing_lost(&self) {
        assert!(
            self.failed.is_empty(),
            "{} of {} requests failed, the first with: {}",
            self.failed.len(),
            self.answered,
            self.failed[0]
        );
    }

    /// The time within which 99.9 % of the answers came.
    pub(crate) fn p999(&mut self) -> Duration {
        self.times.sort_unstable();
        let last = self.times.len().saturating_sub(1);
        self.times.get(last - last / 1000).copied().unwrap_or_default()
    }

    fn add(&mut self, other: Self) {
        self.answered += other.answered;
        self.connections += other.connections;
        self.failed.extend(other.failed);
        self.times.extend(other.times);
    }
}

fn all(one: &Worker, clients: usize) -> Outcome {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for _ in 0..clients {
            tasks.spawn(one.clone().run());
        }
        let mut sum = Outcome::default();
        for outcome in tasks.join_all().await {
            sum.add(outcome);
        }
        sum
    })
}

#[derive(Clone)]
struct Worker {
    tls: Option<TlsClient>,
    ports: Vec<u16>,
    body: Bytes,
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
}

impl Worker {
    async fn run(self) -> Outcome {
        let mut outcome = Outcome::default();
        let mut ports = self.ports.iter();
        let mut port = ports.next();
        while let (Some(at), false) = (port, self.stop.load(Ordering::Relaxed)) {
            let connected = match &self.tls {
                None => RawClient::connect(*at).await,
                Some(tls) => tls.connect(*at).await,
            };
            let taken = match connected {
                Ok(client) => self.use_up(client, &mut outcome).await,
                Err(_) => false,
            };
            if !taken {
                port = ports.next();
            }
        }
        if port.is_none() {
            outcome.failed.push("no replica takes connections any more".to_owned());
        }
        outcome
    }

    /// Asks on one connection until it closes. False when it never answered: a connection that the
    /// system accepted for a service already gone was never taken by that service.
    async fn use_up(&self, client: RawClient, outcome: &mut Outcome) -> bool {
        let before = outcome.answered;
        loop {
            let mut round = JoinSet::new();
            for _ in 0..IN_FLIGHT {
                let (mut client, body) = (client.clone(), self.body.clone());
                round.spawn(async move {
                    let start = Instant::now();
                    (client.exchange(body, &HeaderMap::new()).await, start.elapsed())
                });
            }
            let mut failed = Vec::new();
            let mut closed = false;
            for (exchange, time) in round.join_all().await {
                match exchange {
                    Exchange::Answered(status) if status.code == 0 => {
                        outcome.answered += 1;
                        outcome.times.push(time);
                        self.answered.fetch_add(1, Ordering::Relaxed);
                    }
                    Exchange::Answered(status) => failed.push(format!("{status:?}")),
                    Exchange::NotTaken => closed = true,
                    Exchange::Failed(reason) => {
                        failed.push(reason);
                        closed = true;
                    }
                }
            }
            let taken = outcome.answered > before;
            if closed && !taken {
                return false;
            }
            outcome.failed.append(&mut failed);
            if closed || self.stop.load(Ordering::Relaxed) {
                outcome.connections += 1;
                return true;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
