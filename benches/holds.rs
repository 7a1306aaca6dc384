//! What holds cost beside counts: `cargo bench --bench holds`, or `cargo bench --bench holds -- 9` for nine rounds. Linux only;
//! prints the table of `docs/dev/holds.md`. Needs `redis-server`.
//!
//! Each request asks twice through the gRPC port: it holds and settles a second later, or it counts twice by the same rules
//! without `hold`. The services take turns, round by round, so that other load on the machine affects both. CPU is that of the
//! service and of Redis, by the nanosecond. `TOLLGATE_TEST_BINARY` measures another binary.

use std::{
    env,
    error::Error,
    fs::{self, File},
    net::TcpListener,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse, rate_limit_service_client::RateLimitServiceClient,
    },
};
use tempfile::TempDir;
use tokio::{runtime::Builder, sync::Semaphore, task::JoinSet, time};
use tonic::transport::Channel;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;
type Client = RateLimitServiceClient<Channel>;

/// The rules of both services; the first word of a hold is in the place of `HOLD`.
const RULES: &str = "
domain: d
descriptors:
  - key: team
    rate_limit: {unit: month, requests_per_unit: 500_000_000_000HOLD{amount: 50_000, ttl: 15m, in: dollars}}
  - key: key
    rate_limit: {unit: hour, requests_per_unit: 100_000_000_000HOLD{amount: 4_000, ttl: 15m, in: tokens}}
";

const ROUNDS: usize = 5;
const MEASURED: Duration = Duration::from_secs(4);
const WARM_UP: Duration = Duration::from_millis(500);

/// The time between the two, except in a closed loop.
const OPEN: Duration = Duration::from_secs(1);

/// As many teams and keys.
const NAMES: usize = 100;

const CONNECTIONS: usize = 8;

struct Load {
    name: &'static str,
    /// Requests in a second; `None` has as many as possible of 64 callers.
    rate: Option<u32>,
    limits: &'static [&'static str],
    /// Holds that stay open on the only counter, instead of many counters.
    open: Option<usize>,
}

const LOADS: [Load; 5] = [
    Load { name: "one limit, 5,000 requests/s", rate: Some(5_000), limits: &["team"], open: None },
    Load { name: "two limits, 5,000 requests/s", rate: Some(5_000), limits: &["team", "key"], open: None },
    Load { name: "one counter with 10 holds, 5,000/s", rate: Some(5_000), limits: &["team"], open: Some(10) },
    Load {
        name: "one counter with 10,000 holds, 5,000/s",
        rate: Some(5_000),
        limits: &["team"],
        open: Some(10_000),
    },
    Load { name: "one limit, 64 callers, no pause", rate: None, limits: &["team"], open: None },
];

/// A started program. It is killed when this is dropped.
struct Program(Child);

impl Program {
    fn start(command: &mut Command) -> Result<Self> {
        Ok(Self(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?))
    }

    /// The CPU time of its threads in microseconds.
    #[expect(clippy::cast_precision_loss, reason = "microseconds of minutes")]
    fn cpu(&self) -> Result<f64> {
        let mut nanos = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.0.id()))? {
            let text = fs::read_to_string(thread?.path().join("schedstat"))?;
            nanos += text.split_whitespace().next().ok_or("schedstat is empty")?.parse::<u64>()?;
        }
        Ok(nanos as f64 / 1000.0)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A service with a Redis of its own.
struct Service {
    binary: Program,
    redis: Program,
    clients: Vec<Client>,
    holds: bool,
    _dir: TempDir,
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Service {
    async fn start(holds: bool) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("tollgate-bench-").tempdir()?;
        let (redis_port, grpc_port) = (free_port()?.to_string(), free_port()?.to_string());
        let quiet = ["--port", &redis_port, "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"];
        let redis = Program::start(Command::new("redis-server").args(quiet))?;
        let hold = if holds { ", hold: " } else { "} #" };
        fs::create_dir(dir.path().join("config"))?;
        fs::write(dir.path().join("config/d.yaml"), RULES.replace("HOLD", hold))?;
        let binary = env::var_os("TOLLGATE_TEST_BINARY");
        let mut command = Command::new(binary.unwrap_or_else(|| env!("CARGO_BIN_EXE_tollgate").into()));
        let url = format!("127.0.0.1:{redis_port}");
        let settings = [
            ("PORT", "0"),
            ("DEBUG_PORT", "0"),
            ("GRPC_PORT", grpc_port.as_str()),
            ("GRPC_HOST", "127.0.0.1"),
            ("PROMETHEUS_ADDR", "127.0.0.1:0"),
            ("GRPC_WORKERS", "1"),
            ("USE_STATSD", "false"),
            ("BACKEND_TYPE", "redis"),
            ("REDIS_SOCKET_TYPE", "tcp"),
            ("REDIS_URL", &url),
            ("REDIS_TIMEOUT", "10s"),
        ];
        command.env_clear().envs(settings).env("RUNTIME_ROOT", dir.path());
        let binary = Program::start(command.stderr(File::create(dir.path().join("log"))?))?;
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut clients = Vec::new();
        while clients.len() < CONNECTIONS {
            match connected(&grpc_port).await {
                Ok(client) => clients.push(client),
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => time::sleep(Duration::from_millis(20)).await,
            }
        }
        Ok(Self { binary, redis, clients, holds, _dir: dir })
    }

    /// What a request costs the service and Redis, in microseconds of CPU.
    async fn measure(&self, load: &Load) -> Result<[f64; 2]> {
        let names = if load.open.is_some() { 1 } else { NAMES };
        if let Some(open) = load.open.filter(|_| self.holds) {
            let mut asked = 0;
            while asked < open {
                asked += usize::from(ask(&mut self.clients[0].clone(), check(load, 0)).await.is_ok());
            }
        }
        self.run(load, names, WARM_UP).await?;
        let before = [self.binary.cpu()?, self.redis.cpu()?];
        let requests = self.run(load, names, MEASURED).await?;
        let after = [self.binary.cpu()?, self.redis.cpu()?];
        #[expect(clippy::cast_precision_loss, reason = "some thousand requests")]
        let requests = requests as f64;
        Ok([0, 1].map(|index| (after[index] - before[index]) / requests))
    }

    /// Sends requests for a time; returns their number.
    async fn run(&self, load: &Load, names: usize, length: Duration) -> Result<usize> {
        let (start, mut requests, mut failed, mut asked) = (Instant::now(), 0_u32, 0, JoinSet::new());
        let places = Arc::new(Semaphore::new(if load.rate.is_some() { 100_000 } else { 64 }));
        while start.elapsed() < length {
            let place = places.clone().acquire_owned().await?;
            let name = usize::try_from(requests)? % names;
            let mut client = self.clients[usize::try_from(requests)? % CONNECTIONS].clone();
            let (check, holds) = (check(load, name), self.holds);
            let has_rate = load.rate.is_some();
            asked.spawn(async move {
                let answer = ask(&mut client, check.clone()).await?;
                let second = if holds { settle(&answer)? } else { check };
                if has_rate {
                    time::sleep(OPEN).await;
                }
                ask(&mut client, second).await?;
                drop(place);
                Ok::<_, Box<dyn Error + Send + Sync>>(())
            });
            requests += 1;
            if let Some(rate) = load.rate {
                // A timer wakes once a millisecond, with a burst.
                let due = start + Duration::from_secs(1) * requests / rate;
                while Instant::now() < due {
                    tokio::task::yield_now().await;
                }
            }
            while let Some(done) = asked.try_join_next() {
                failed += u32::from(done?.is_err());
            }
        }
        while let Some(done) = asked.join_next().await {
            failed += u32::from(done?.is_err());
        }
        // A machine that does other work may stall.
        if failed > requests / 100 {
            return Err(format!("{failed} of {requests} requests failed").into());
        }
        Ok(usize::try_from(requests)?)
    }
}

fn entries(descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    let descriptor = |entries: &&[(&str, &str)]| RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    };
    let descriptors = descriptors.iter().map(descriptor).collect();
    RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 0 }
}

fn check(load: &Load, name: usize) -> RateLimitRequest {
    let name = format!("name-{name}");
    let one: Vec<[(&str, &str); 1]> = load.limits.iter().map(|limit| [(*limit, name.as_str())]).collect();
    entries(&one.iter().map(<[_; 1]>::as_slice).collect::<Vec<_>>())
}

/// A settle and an end, as Envoy sends them.
fn settle(answer: &RateLimitResponse) -> Result<RateLimitRequest> {
    use prost_types::value::Kind;
    let hold = answer.dynamic_metadata.as_ref().and_then(|metadata| metadata.fields.get("hold"));
    let Some(Kind::StringValue(id)) = hold.and_then(|hold| hold.kind.as_ref()) else {
        return Err(format!("no hold in {answer:?}").into());
    };
    let mut request = entries(&[&[("hold_settle", id)], &[("hold_end", id)]]);
    request.descriptors[0].hits_addend = Some(1_234);
    Ok(request)
}

/// A connection to a service that reached its Redis.
async fn connected(port: &str) -> Result<Client> {
    let mut client = Client::connect(format!("http://127.0.0.1:{port}")).await?;
    ask(&mut client, entries(&[&[("team", "start")]])).await?;
    Ok(client)
}

async fn ask(client: &mut Client, request: RateLimitRequest) -> Result<RateLimitResponse> {
    Ok(client.should_rate_limit(request).await?.into_inner())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<()> {
    // cargo adds an argument that is not a number.
    let rounds = env::args().find_map(|argument| argument.parse().ok()).unwrap_or(ROUNDS).max(1);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    println!(
        "| µs of CPU a request, median of {rounds} | service | Redis | two counts: service | Redis | ratio: service | Redis | both |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    runtime.block_on(async {
        for load in &LOADS {
            let mut measured = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
            let services = [Service::start(true).await?, Service::start(false).await?];
            for _ in 0..rounds {
                for (index, service) in services.iter().enumerate() {
                    let [own, redis] = service.measure(load).await?;
                    measured[2 * index].push(own);
                    measured[2 * index + 1].push(redis);
                }
            }
            let [hold, hold_redis, count, count_redis] = measured.map(median);
            println!(
                "| {} | {hold:.1} | {hold_redis:.1} | {count:.1} | {count_redis:.1} | {:.2} | {:.2} | {:.2} |",
                load.name,
                hold / count,
                hold_redis / count_redis,
                (hold + hold_redis) / (count + count_redis)
            );
        }
        Ok(())
    })
}
