//! Redis killed, frozen, unreachable and slow under a steady load, with each policy.
//!
//! A short form runs with all tests, with all policies at the same time. The long form runs one policy at a time and
//! prints a table; it needs an idle machine:
//!
//! ```sh
//! TOLLGATE_TEST_LOSS_SECONDS=30 TOLLGATE_TEST_LOSS_RATE=5000 \
//!     cargo test --release --test all redis::loss -- --nocapture --test-threads=1
//! ```

use std::{
    env,
    ops::Range,
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    eventually, holds,
    proxy::{Proxy, Way},
    redis::{Redis, tcp},
    server::{Server, Setup},
    steady::Steady,
};

use super::{ENVOYS_PATIENCE, RULES, by_policy, one, turn};

mod row;

use row::Row;

/// Indexes in the list of requests that the load cycles through.
const MANY: usize = 0;
const FIVE: usize = 1;

/// The time before the fault and after it.
const CALM: Duration = Duration::from_millis(700);
/// The time until counters decide every request again after Redis is back.
const RECOVERY: Duration = Duration::from_secs(1);
/// The interval in which decisions are counted.
const WINDOW: Duration = Duration::from_millis(200);

#[test]
fn redis_is_killed_and_restarted() {
    play(Fault::Killed);
}

#[test]
fn redis_is_frozen() {
    play(Fault::Frozen);
}

#[test]
fn packets_to_redis_are_dropped() {
    play(Fault::BlackHole);
}

#[test]
fn packets_to_redis_are_delayed() {
    play(Fault::Slow);
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Killed,
    Frozen,
    BlackHole,
    Slow,
}

/// The decision without counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Policy {
    Error,
    Allow,
    Deny,
    Local,
}

/// The duration of the fault, requests per second, and whether policies run one at a time.
struct Form {
    lasts: Duration,
    per_second: u32,
    alone: bool,
}

impl Form {
    fn from_env() -> Self {
        let number =
            |name: &str| env::var(name).ok().map(|text| text.parse::<u32>().expect("it is a whole number"));
        let seconds = number("TOLLGATE_TEST_LOSS_SECONDS");
        let per_second = number("TOLLGATE_TEST_LOSS_RATE");
        Self {
            lasts: Duration::from_secs(seconds.unwrap_or(2).into()),
            per_second: per_second.unwrap_or(60),
            alone: seconds.is_some(),
        }
    }
}

fn play(fault: Fault) {
    let _turn = turn();
    let form = Form::from_env();
    let policies = [Policy::Error, Policy::Allow, Policy::Deny, Policy::Local];
    println!("{}", Row::HEAD);
    if form.alone {
        for policy in policies {
            under(fault, &[policy], &form).expect("counters decide again in time");
        }
    } else {
        let late: Vec<_> = (0..3).map_while(|_| under(fault, &policies, &form).err()).collect();
        assert!(late.len() < 3, "counters decided again too late each time: {late:#?}");
    }
}

/// Runs services with these policies through the fault at the same time. An error if counters decided again too late,
/// which a busy machine may cause.
fn under(fault: Fault, policies: &[Policy], form: &Form) -> Result<(), String> {
    let mut redis = Redis::single();
    let proxy = Proxy::to(redis.port);
    let services: Vec<_> = policies.iter().map(|policy| Service::start(*policy, &proxy, form)).collect();
    thread::sleep(CALM);
    for service in &services {
        service.assert_counting();
    }

    let began = Instant::now();
    fault.begin(&mut redis, &proxy);
    thread::sleep(form.lasts);
    for service in &services {
        service.assert_seen(fault);
    }
    fault.end(&mut redis, &proxy);
    let ended = Instant::now();
    let recovered: Vec<_> = thread::scope(|scope| {
        let watched: Vec<_> = services.iter().map(|one| scope.spawn(move || one.recovery(ended))).collect();
        watched.into_iter().map(|one| one.join().expect("watching does not panic")).collect()
    });

    let rows = services
        .into_iter()
        .zip(recovered)
        .map(|(service, recovery)| service.stop(fault, began..ended, recovery));
    let rows: Vec<_> = rows.collect();
    for row in &rows {
        println!("{row}");
    }
    for row in &rows {
        row.check();
    }
    rows.iter().try_for_each(Row::recovers_in_time)
}

impl Fault {
    fn begin(self, redis: &mut Redis, proxy: &Proxy) {
        match self {
            Self::Killed => redis.kill(),
            Self::Frozen => redis.freeze(),
            Self::BlackHole => proxy.set(Way::BlackHole),
            Self::Slow => proxy.set(Way::Open(Duration::from_millis(50))),
        }
    }

    fn end(self, redis: &mut Redis, proxy: &Proxy) {
        match self {
            Self::Killed => redis.start(),
            Self::Frozen => redis.thaw(),
            Self::BlackHole | Self::Slow => proxy.set(Way::CLEAR),
        }
    }
}

/// A service under load.
struct Service {
    policy: Policy,
    server: Server,
    load: Steady,
    per_second: u32,
    /// The share of decisions that may be made without counters while Redis is up.
    may_be_late: f64,
    back_within: Duration,
    memory_before: u64,
}

impl Service {
    fn start(policy: Policy, proxy: &Proxy, form: &Form) -> Self {
        let name = format!("{policy:?}").to_lowercase();
        let setup = Setup::new().redis(&tcp(&proxy.address())).rules("d.yaml", RULES);
        // Default timeouts; counters separate from those of the other services.
        let setup = setup.unset("REDIS_TIMEOUT").unset("REDIS_CONNECT_TIMEOUT");
        let setup = setup.env("CACHE_KEY_PREFIX", &name).env("STORE_FAILURE_POLICY", &name);
        let server = setup.start_healthy();
        let (requests, control) = ([one("many", "v"), one("five", "v")], one("control", "v"));
        let load = Steady::start(server.ports.grpc, form.per_second, ENVOYS_PATIENCE, &requests, &control);
        let memory_before = server.process.resident_kib();
        let per_second = form.per_second;
        // With other tests running, many replies take longer than the timeout of 10 ms.
        let may_be_late = if form.alone { 0.01 } else { 0.5 };
        // The short form has four services and other tests on the same cores.
        let back_within = if form.alone { RECOVERY } else { 3 * RECOVERY };
        Self { policy, server, load, per_second, may_be_late, back_within, memory_before }
    }

    fn assert_counting(&self) {
        eventually("it counts", || {
            let metrics = self.server.metrics();
            let over = metrics.iter().find(|(name, _)| {
                name.starts_with("ratelimit_service_rate_limit_over_limit{") && name.contains("five")
            });
            holds(over.is_some_and(|(_, count)| *count > 0.0), || format!("{metrics:?}"))
        });
    }

    /// Metrics and health checks show the loss.
    fn assert_seen(&self, fault: Fault) {
        let metrics = self.server.metrics();
        let name = format!("{:?}", self.policy).to_lowercase();
        let of = |sample: &&String| {
            sample.starts_with("tollgate_store_failure_decisions_total{")
                && sample.contains(&format!("policy=\"{name}\""))
        };
        let counted: f64 = metrics.iter().filter(|(sample, _)| of(sample)).map(|(_, count)| count).sum();
        assert!(counted > 0.0 && (counted - by_policy(&self.server)).abs() <= counted, "{name}: {metrics:?}");
        if fault != Fault::Slow {
            eventually("it is not ready", || {
                holds(!self.server.is_healthy(), || {
                    format!("{name}, {fault:?}: {}", self.server.process.log())
                })
            });
        }
    }

    /// The time until counters decided again after Redis was back; `None` if it took too long.
    fn recovery(&self, ended: Instant) -> Option<Duration> {
        let mut seen = Vec::new();
        let all = f64::from(self.per_second) * WINDOW.as_secs_f64();
        while ended.elapsed() < 8 * RECOVERY {
            let now = (ended.elapsed(), by_policy(&self.server));
            seen.push(now);
            // The latest value that is at least a window old.
            let before = seen.iter().rev().find(|(time, _)| *time + WINDOW <= now.0);
            if let Some((begin, _)) = before.filter(|(_, before)| now.1 - before <= all * self.may_be_late) {
                return Some(*begin);
            }
            thread::sleep(Duration::from_millis(50));
        }
        None
    }

    fn stop(self, fault: Fault, fault_time: Range<Instant>, recovery: Option<Duration>) -> Row {
        self.server.wait_until_healthy();
        let by_policy = by_policy(&self.server);
        let memory = (self.memory_before, self.server.process.peak_kib());
        let (policy, outcome, back_within) = (self.policy, self.load.stop(), self.back_within);
        Row { fault, policy, outcome, fault_time, recovery, back_within, by_policy, memory }
    }
}
