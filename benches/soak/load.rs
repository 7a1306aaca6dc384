//! The load: a constant rate of requests over connections that respect GOAWAY, and the outcome of each.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::HeaderMap;
use proto::envoy::service::ratelimit::v3::{RateLimitRequest, rate_limit_response::Code};
use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{sleep, sleep_until, timeout},
};

use support::{
    client::{descriptor, request},
    noise::Noise,
    raw::{Exchange, RawClient, framed},
    server::Ports,
};

pub(super) const RULES: &str = "
domain: soak
descriptors:
  - key: hot
    rate_limit: {unit: minute, requests_per_unit: 100}
  - key: new
    rate_limit: {unit: second, requests_per_unit: 10}
  - key: named
    value_to_metric: true
    rate_limit: {unit: hour, requests_per_unit: 100}
  - key: detailed
    detailed_metric: true
    rate_limit: {unit: day, requests_per_unit: 5}
  - key: bucket
    rate_limit: {unit: second, requests_per_unit: 50, algorithm: token_bucket}
  - key: log
    rate_limit: {unit: minute, requests_per_unit: 20, algorithm: sliding_log}
";

const KEYS: [&str; 6] = ["hot", "new", "named", "detailed", "bucket", "log"];

/// The maximum number of outstanding requests of a client. Without it, an overloaded machine would measure its own
/// queue.
const OUTSTANDING: usize = 64;

/// The timeout of a request.
const HANGS: Duration = Duration::from_secs(5);

/// A running load.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    workers: Vec<JoinHandle<Outcome>>,
}

/// The outcomes of all requests.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) admitted: u64,
    pub(super) over_limit: u64,
    /// Requests that were retried on another connection because theirs was closing.
    pub(super) sent_again: u64,
    pub(super) connections: u64,
    /// Requests that were not sent because too many were outstanding.
    pub(super) left_out: u64,
    pub(super) errors: BTreeMap<String, u64>,
    /// A histogram of response times in microseconds, in steps of 5 %.
    times: BTreeMap<u32, u64>,
}

impl Load {
    /// Clients of the `together` replicas reconnect to the next one; clients of the `alone` ones do not.
    pub(super) fn start(together: &[Ports], alone: &[Ports], per_second: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ports = |replicas: &[Ports]| replicas.iter().map(|ports| ports.grpc).collect::<Vec<_>>();
        let groups = [(ports(together), 8, 0.7 / 8.0), (ports(alone), 4, 0.3 / 4.0)];
        let workers = groups.into_iter().map(|(ports, clients, share)| {
            let (stop, rate) = (Arc::clone(&stop), f64::from(per_second) * share);
            thread::spawn(move || {
                let runtime = Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(all(&ports, clients, rate, &stop))
            })
        });
        let workers = workers.collect();
        Self { stop, workers }
    }

    pub(super) fn stop(self) -> Outcome {
        self.stop.store(true, Ordering::Relaxed);
        let mut sum = Outcome::default();
        for worker in self.workers {
            sum.add(worker.join().unwrap());
        }
        sum
    }
}

impl Outcome {
    /// This quantile of the response times.
    pub(super) fn quantile(&self, share: f64) -> Duration {
        let all: u64 = self.times.values().sum();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a share of a count"
        )]
        let mut left = (all as f64 * share).ceil() as u64;
        for (step, count) in &self.times {
            left = left.saturating_sub(*count);
            if left == 0 {
                return Duration::from_secs_f64(1.05_f64.powi(i32::try_from(*step).unwrap()) / 1e6);
            }
        }
        Duration::ZERO
    }

    fn answered(&mut self, took: Duration) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some hundred steps")]
        let step = ((took.as_secs_f64() * 1e6).max(1.0).ln() / 1.05_f64.ln()).ceil() as u32;
        *self.times.entry(step).or_default() += 1;
    }

    fn failed(&mut self, cause: &str) {
        *self.errors.entry(cause.to_owned()).or_default() += 1;
    }

    fn add(&mut self, other: Self) {
        self.admitted += other.admitted;
        self.over_limit += other.over_limit;
        self.sent_again += other.sent_again;
        self.connections += other.connections;
        self.left_out += other.left_out;
        for (cause, count) in other.errors {
            *self.errors.entry(cause).or_default() += count;
        }
        for (step, count) in other.times {
            *self.times.entry(step).or_default() += count;
        }
    }
}

/// The shared state of a group of clients.
struct Group {
    ports: Vec<u16>,
    stop: Arc<AtomicBool>,
    outcome: Mutex<Outcome>,
    /// Numbers new values.
    fresh: AtomicU64,
}

/// The connection of a client, if it is open.
struct Slot {
    group: Arc<Group>,
    current: Mutex<Option<Arc<Connection>>>,
    /// The next port of its group.
    turn: AtomicUsize,
}

struct Connection {
    client: RawClient,
    /// Whether a response was received: the system may accept connections for a service that is gone.
    has_answered: AtomicBool,
}

async fn all(ports: &[u16], clients: usize, per_second: f64, stop: &Arc<AtomicBool>) -> Outcome {
    let (outcome, fresh) = (Mutex::default(), AtomicU64::new(0));
    let group = Arc::new(Group { ports: ports.to_vec(), stop: Arc::clone(stop), outcome, fresh });
    let mut tasks = JoinSet::new();
    for index in 0..clients {
        let slot =
            Slot { group: Arc::clone(&group), current: Mutex::default(), turn: AtomicUsize::new(index) };
        tasks.spawn(Arc::new(slot).run(per_second));
    }
    tasks.join_all().await;
    std::mem::take(&mut *group.outcome.lock().unwrap())
}

impl Slot {
    /// Sends requests at a constant rate, without waiting for responses, until it is stopped; then waits for them.
    async fn run(self: Arc<Self>, per_second: f64) {
        let mut noise = Noise::new(self.turn.load(Ordering::Relaxed) as u64);
        let (start, mut requests) = (Instant::now(), JoinSet::new());
        for number in 0_u32.. {
            if self.group.stop.load(Ordering::Relaxed) {
                break;
            }
            sleep_until((start + Duration::from_secs_f64(f64::from(number) / per_second)).into()).await;
            while requests.try_join_next().is_some() {}
            if requests.len() >= OUTSTANDING {
                self.group.outcome.lock().unwrap().left_out += 1;
                continue;
            }
            requests.spawn(Arc::clone(&self).send(framed(&self.group.request(&mut noise))));
        }
        requests.join_all().await;
    }

    async fn send(self: Arc<Self>, body: Bytes) {
        let due = Instant::now();
        let became = timeout(HANGS, self.answer(body)).await;
        let mut outcome = self.group.outcome.lock().unwrap();
        match became {
            Ok(Ok(code)) => {
                outcome.answered(due.elapsed());
                *if code == Code::OverLimit { &mut outcome.over_limit } else { &mut outcome.admitted } += 1;
            }
            Ok(Err(cause)) => outcome.failed(&cause),
            Err(_) => outcome.failed(&format!("no answer within {HANGS:?}")),
        }
    }

    /// Sends a request until a replica accepts it.
    async fn answer(&self, body: Bytes) -> Result<Code, String> {
        loop {
            let connection = self.connected().await;
            match connection.client.clone().ask(body.clone(), &HeaderMap::new()).await {
                Ok(answer) => {
                    connection.has_answered.store(true, Ordering::Relaxed);
                    return Ok(answer.overall_code());
                }
                Err(Exchange::Answered(status)) => {
                    return Err(format!("status {}: {}", status.code, status.message));
                }
                Err(Exchange::Failed(cause)) if connection.has_answered.load(Ordering::Relaxed) => {
                    self.forget(&connection);
                    return Err(format!("accepted and not answered: {cause}"));
                }
                Err(Exchange::NotTaken | Exchange::Failed(_)) => self.forget(&connection),
            }
            self.group.outcome.lock().unwrap().sent_again += 1;
        }
    }

    /// The connection, to the next replica that accepts one.
    async fn connected(&self) -> Arc<Connection> {
        loop {
            if let Some(connection) = &*self.current.lock().unwrap() {
                return Arc::clone(connection);
            }
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            let port = self.group.ports[turn % self.group.ports.len()];
            let Ok(client) = RawClient::connect(port).await else {
                sleep(Duration::from_millis(20)).await;
                continue;
            };
            let connection = Arc::new(Connection { client, has_answered: AtomicBool::new(false) });
            let mut current = self.current.lock().unwrap();
            // Another request may have connected meanwhile.
            if current.is_none() {
                *current = Some(connection);
                self.group.outcome.lock().unwrap().connections += 1;
            }
        }
    }

    fn forget(&self, connection: &Arc<Connection>) {
        let mut current = self.current.lock().unwrap();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            *current = None;
        }
    }
}

impl Group {
    /// One to three descriptors, with repeated and with new values.
    fn request(&self, noise: &mut Noise) -> RateLimitRequest {
        let descriptors: Vec<_> = (0..=noise.below(3))
            .map(|_| {
                let key = KEYS[noise.below(KEYS.len())];
                let is_known = key == "hot" || noise.below(4) == 0;
                let number = if is_known {
                    noise.below(50) as u64
                } else {
                    self.fresh.fetch_add(1, Ordering::Relaxed)
                };
                descriptor(&[(key, &format!("value-{is_known}-{number}"))])
            })
            .collect();
        RateLimitRequest { descriptors, ..request("soak", &[]) }
    }
}
