//! A soak test: three replicas with Redis and one with counters in memory, for minutes, under all faults of the tests at
//! once. docs/dev/cost.md has its table. `TOLLGATE_TEST_BINARY` runs another binary, `TOLLGATE_SOAK_RATE` sends other than
//! 2,000 requests per second.
//!
//! ```sh
//! cargo bench --bench soak          # ten minutes
//! cargo bench --bench soak -- 30
//! ```
//!
//! [`load`] sends requests and classifies the responses, [`disturbance`] injects faults, and [`report`] makes the table.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    env,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use support::{
    clock::Clock,
    eventually, holds,
    proxy::Proxy,
    redis::{self, Redis},
    server::{BINARY, Ports, Server, Setup},
};

mod disturbance;
mod load;
mod report;

use disturbance::{break_redis, pester, reload, restart};
use load::Load;
use report::{Report, Sample};

/// Bounds so low that a minute of load exceeds each many times.
const BOUNDS: [(&str, &str); 6] = [
    ("MEMORY_MAX_KEYS", "20000"),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "65536"),
    ("METRICS_MAX_SERIES", "500"),
    ("GRPC_MAX_CONNECTIONS", "200"),
    ("REDIS_MAX_QUEUED", "512"),
    ("OTEL_BSP_MAX_QUEUE_SIZE", "100"),
];

const WARM_UP: Duration = Duration::from_secs(15);
const QUIET: Duration = Duration::from_secs(15);

const REPLICAS: [&str; 4] = ["redis 1", "redis 2, restarted", "redis 3, restarted", "memory"];

/// The replicas that are restarted in turn.
const RESTARTED: [usize; 2] = [1, 2];

/// Panics if something leaks or a request is lost.
fn main() {
    let _clock = Clock::machine().enter();
    let minutes = env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(10.0);
    let rate: u32 = env::var("TOLLGATE_SOAK_RATE").map_or(2000, |text| text.parse().unwrap());
    let mut redis = Redis::single();
    let way = Proxy::to(redis.port);
    let setups = REPLICAS.map(|name| setup(name, &way));
    let mut servers: Vec<Server> = setups.iter().map(|setup| setup.clone().start()).collect();
    let ports: Vec<Ports> = servers.iter().map(|server| server.ports).collect();
    let setups: Vec<Setup> =
        setups.into_iter().zip(&ports).map(|(setup, ports)| setup.ports(*ports)).collect();

    // Memory that is allocated once, or fills up to a bound, is not a leak.
    let warm = Load::start(&ports[..3], &ports[3..], rate);
    thread::sleep(WARM_UP);
    warm.stop();
    let before = samples(&servers);

    let stop = AtomicBool::new(false);
    let load = Load::start(&ports[..3], &ports[3..], rate);
    let (mut faults, mut restarts) = (0, 0);
    let directories: Vec<_> = servers.iter().map(Server::rules_dir).collect();
    let (reloads, pests) = thread::scope(|scope| {
        let reloads = scope.spawn(|| reload(&directories, &stop));
        let pests = scope.spawn(|| pester(&ports, &stop));
        let end = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
        while Instant::now() < end {
            break_redis(faults, &mut redis, &way);
            faults += 1;
            let index = RESTARTED[restarts % RESTARTED.len()];
            restart(&mut servers[index], &setups[index]);
            restarts += 1;
        }
        stop.store(true, Ordering::Relaxed);
        (reloads.join().unwrap(), pests.join().unwrap())
    });
    let outcome = load.stop();
    let after = samples(&servers);
    let report = Report { minutes, rate, faults, restarts, reloads, pests, before, after, outcome };
    println!("{report}");
    report.check();
}

/// The memory of the idle replicas.
fn samples(servers: &[Server]) -> Vec<Sample> {
    eventually("all connections are closed", || {
        let open: f64 = servers.iter().map(report::connections).sum();
        holds(open == 0.0, || format!("{open} are open"))
    });
    // Idle memory is returned after some seconds.
    thread::sleep(QUIET);
    servers.iter().map(Sample::of).collect()
}

/// One replica; those with Redis count locally while it is unreachable.
fn setup(name: &str, way: &Proxy) -> Setup {
    let program = env::var("TOLLGATE_TEST_BINARY").unwrap_or_else(|_| BINARY.to_owned());
    let setup = Setup::new().program(Path::new(&program), &["serve"]).rules("soak.yaml", load::RULES);
    let setup = if name == "memory" { setup } else { setup.redis(&redis::tcp(&way.address())) };
    let setup = BOUNDS.iter().fold(setup, |setup, (name, value)| setup.env(name, value));
    // There is no listener where spans and statistics are sent.
    let sinks = [
        ("TRACING_ENABLED", "true"),
        ("TRACING_SAMPLING_RATE", "0.05"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9"),
        ("USE_STATSD", "true"),
        ("STATSD_HOST", "127.0.0.1"),
        ("STATSD_PORT", "9"),
    ];
    let setup = sinks.iter().fold(setup, |setup, (name, value)| setup.env(name, value));
    setup
        .env("REDIS_TIMEOUT", "10ms")
        .env("STORE_FAILURE_POLICY", "local")
        .env("LOG_LEVEL", "error")
        .env("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "false")
}
