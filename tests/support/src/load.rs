//! Many clients that send requests without pause, as Envoy's workers do: they follow GOAWAY, reconnect, and use the next
//! replica when one is lost. Only a request that the service accepted and did not answer is a failure.

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
use proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tokio::{runtime::Builder, task::JoinSet};

use super::{
    eventually,
    grpc_tls::TlsClient,
    holds,
    raw::{Exchange, RawClient, framed},
};

/// Concurrent requests of a connection.
const IN_FLIGHT: usize = 4;
/// The pause between two rounds of a connection, which leaves CPU time to the service.
const PAUSE: Duration = Duration::from_millis(1);

/// A running load.
pub struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    worker: JoinHandle<Outcome>,
}

/// The results of the clients.
#[derive(Default, Debug)]
pub struct Outcome {
    pub answered: u64,
    /// Accepted requests that failed, with their reasons.
    pub failed: Vec<String>,
    /// Opened connections, including the first ones.
    pub connections: usize,
    /// The latency of every answer.
    pub times: Vec<Duration>,
}

impl Load {
    /// Starts `clients` connections to the first of `ports`, and to the next ones when it is lost.
    pub fn start(ports: &[u16], clients: usize, request: &RateLimitRequest) -> Self {
        Self::start_with(None, ports, clients, request)
    }

    /// The same, optionally with TLS.
    pub fn start_with(
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

    /// Waits until this many more requests were answered.
    pub fn wait_for(&self, more: u64) {
        let goal = self.answered.load(Ordering::Relaxed) + more;
        eventually("the load is answered", || {
            let have = self.answered.load(Ordering::Relaxed);
            holds(have >= goal || self.worker.is_finished(), || format!("{have} of {goal} answers"))
        });
    }

    /// Stops the load.
    pub fn stop(self) -> Outcome {
        self.stop.store(true, Ordering::Relaxed);
        self.worker.join().expect("the load panicked")
    }
}

impl Outcome {
    /// Fails the test when a request was lost.
    pub fn assert_nothing_lost(&self) {
        assert!(
            self.failed.is_empty(),
            "{} of {} requests failed, the first with: {}",
            self.failed.len(),
            self.answered,
            self.failed[0]
        );
    }

    /// The 99.9th percentile of the latency.
    pub fn p999(&mut self) -> Duration {
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
    let runtime = Builder::new_current_thread().enable_all().build().expect("cannot create a runtime");
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

    /// Sends requests on one connection until it closes. False if nothing was answered: the system may accept a connection
    /// for a service that has ended.
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
