//! A Redis that stalls, or is slower than its callers: the policy decides only requests that would be late.
//!
//! The tests check which requests the policy decided. A table of figures is printed when its test is run by name on an
//! idle machine:
//!
//! ```sh
//! cargo test --release --test all redis::overload::figures -- --ignored --nocapture
//! ```

#![expect(clippy::cast_precision_loss, reason = "a test's numbers are small")]

use std::{
    collections::BTreeMap,
    env,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::HeaderMap;
use tokio::{runtime::Builder, task::JoinSet};

use crate::support::{
    client::request,
    raw::{Exchange, RawClient, framed},
    redis::{Env, Redis, tcp},
    server::{Server, Setup},
    slow::{Pace, Slow},
    steady::{Asked, Outcome, Steady, Verdict},
};

use super::{ENVOYS_PATIENCE, RULES, RateLimitRequest, one, turn};

/// Enough keys that few hits share a command.
const KEYS: usize = 2000;

/// Rules, one of which a script counts.
const SCRIPTED: &str = "
domain: d
descriptors:
  - key: many
    rate_limit: {unit: year, requests_per_unit: 4000000000, algorithm: token_bucket}
  - key: control
    rate_limit: {unlimited: true}
";

/// Rules, one of which holds beside another limit: two round trips of one request.
const HELD: &str = "
domain: d
descriptors:
  - key: held
    rate_limit: {unit: hour, requests_per_unit: 1000000000, hold: {amount: 4, ttl: 60s}}
  - key: many
    rate_limit: {unit: year, requests_per_unit: 4000000000}
";

fn requests() -> Vec<RateLimitRequest> {
    (0..KEYS).map(|key| one("many", &format!("v{key}"))).collect()
}

fn service(env: &Env, timeout: &str) -> Server {
    service_of(RULES, env, timeout)
}

fn service_of(rules: &str, env: &Env, timeout: &str) -> Server {
    measured(Setup::new().redis(env).env("REDIS_TIMEOUT", timeout).rules("d.yaml", rules))
}

/// Starts the service, or another binary to compare with.
fn measured(setup: Setup) -> Server {
    match env::var_os("TOLLGATE_TEST_BINARY") {
        Some(path) => setup.program(path.as_ref(), &[]).start_healthy(),
        None => setup.start_healthy(),
    }
}

/// Requests that were decided by policy, by reason.
fn by_reason(server: &Server) -> BTreeMap<String, f64> {
    let mut reasons = BTreeMap::new();
    for (name, value) in server.metrics() {
        if let Some(labels) = name.strip_prefix("tollgate_store_failure_decisions_total{")
            && let Some((_, reason)) = labels.split_once("reason=\"")
        {
            *reasons.entry(reason.trim_end_matches("\"}").to_owned()).or_default() += value;
        }
    }
    reasons.retain(|_, value| *value > 0.0);
    reasons
}

fn failed(outcome: &Outcome) -> Vec<&Asked> {
    outcome.asked.iter().filter(|one| !matches!(one.verdict, Verdict::Ok | Verdict::OverLimit)).collect()
}

/// The outcomes of requests in each quarter of a second.
fn timeline(outcome: &Outcome, begun: Instant) -> String {
    let mut quarters = BTreeMap::<u128, BTreeMap<String, usize>>::new();
    for one in &outcome.asked {
        let quarter = one.due.saturating_duration_since(begun).as_millis() / 250;
        let verdict = match &one.verdict {
            Verdict::Error(_, message) => message.rsplit("%3A").next().unwrap_or_default().to_owned(),
            other => format!("{other:?}"),
        };
        *quarters.entry(quarter).or_default().entry(verdict).or_default() += 1;
    }
    let lines = quarters.iter().map(|(quarter, seen)| format!("{} ms: {seen:?}", quarter * 250));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_stall_shorter_than_the_timeout_rejects_no_request() {
    let _turn = turn();
    let redis = Redis::single();
    let server = service(&redis.env(), "4s");
    let patience = Duration::from_secs(20);
    let load = Steady::start(server.ports.grpc, 200, patience, &requests(), &one("control", "v"));
    for millis in [20, 200, 1000] {
        thread::sleep(Duration::from_millis(300));
        redis.freeze();
        thread::sleep(Duration::from_millis(millis));
        redis.thaw();
    }
    thread::sleep(Duration::from_millis(300));
    let outcome = load.stop();
    let failed = failed(&outcome);
    assert!(failed.is_empty(), "{} failed, the first: {:?}", failed.len(), failed[0]);
    assert_eq!(by_reason(&server), BTreeMap::new());
}

#[test]
fn a_stall_longer_than_the_timeout_fails_only_late_requests() {
    const TIMEOUT: Duration = Duration::from_secs(4);
    const LATE: Duration = Duration::from_millis(500);
    // The delay that a busy machine may add.
    const SLACK: Duration = Duration::from_millis(1500);
    let _turn = turn();
    let redis = Redis::single();
    let server = service(&redis.env(), "4s");
    // Whoever gives more than four times the timeout waits for longer.
    let patience = Duration::from_secs(15);
    let load = Steady::start(server.ports.grpc, 200, patience, &requests(), &one("control", "v"));
    thread::sleep(Duration::from_millis(500));
    let stalls = Instant::now();
    redis.freeze();
    thread::sleep(TIMEOUT + LATE);
    redis.thaw();
    thread::sleep(Duration::from_millis(500));
    let outcome = load.stop();
    let failed = failed(&outcome);
    assert!(!failed.is_empty(), "those who came first were late");
    for one in failed {
        assert!(
            one.due + SLACK >= stalls && one.due <= stalls + LATE + SLACK,
            "{:?} after the stall began: {one:?}",
            one.due.saturating_duration_since(stalls)
        );
    }
    assert_eq!(by_reason(&server).keys().collect::<Vec<_>>(), ["timeout"]);
}

#[test]
fn a_late_reply_before_an_idle_time_does_not_open_the_breaker() {
    let _turn = turn();
    let redis = Redis::single();
    let server = service(&redis.env(), "1s");
    let client = server.client();
    redis.freeze();
    assert!(client.ask(one("many", "v")).is_err(), "late");
    redis.thaw();
    thread::sleep(Duration::from_secs(2));
    // Longer than the limit for a stall, shorter than the timeout of the connection.
    redis.freeze();
    let asked = thread::scope(|scope| {
        let asked = scope.spawn(|| client.ask(one("many", "v")));
        thread::sleep(Duration::from_millis(200));
        redis.thaw();
        asked.join().expect("asking does not panic")
    });
    assert!(asked.is_ok(), "{asked:?}");
    assert_eq!(by_reason(&server), BTreeMap::from([("timeout".to_owned(), 1.0)]));
}

#[test]
fn a_redis_that_does_not_reply_opens_the_breaker() {
    let _turn = turn();
    let redis = Redis::single();
    let server = service(&redis.env(), "50ms");
    let load = Steady::start(server.ports.grpc, 100, ENVOYS_PATIENCE, &requests(), &one("control", "v"));
    redis.freeze();
    thread::sleep(Duration::from_secs(1));
    let reasons = by_reason(&server);
    redis.thaw();
    server.wait_until_healthy();
    load.stop();
    assert!(reasons.get("unavailable") > reasons.get("timeout"), "{reasons:?}");
}

#[test]
fn only_the_load_above_the_rate_of_redis_is_rejected() {
    const PER_SECOND: u32 = 300;
    let _turn = turn();
    let redis = Redis::single();
    let each = Duration::from_secs(1) / PER_SECOND;
    let slow = Slow::to(redis.port, Pace::new(each, Duration::ZERO, Duration::from_millis(4)));
    let server = service(&tcp(&slow.address()), "4s");
    // What waits for a third of it is rejected.
    let patience = Duration::from_secs(6);
    let load = Steady::start(server.ports.grpc, 3 * PER_SECOND, patience, &requests(), &one("control", "v"));
    let begun = Instant::now();
    thread::sleep(Duration::from_secs(5));
    // A stall does not change that.
    slow.stall(Duration::from_millis(100));
    thread::sleep(Duration::from_secs(5));
    let outcome = load.stop();
    let answered = (outcome.asked.len() - failed(&outcome).len()) as f64;
    // A busy machine slows the server down.
    let served = slow.served() as f64;
    let reasons = by_reason(&server);
    let seen = || format!("{reasons:?}\n{}\n{}", timeline(&outcome, begun), server.process.log());
    assert!(answered >= 0.9 * served, "{answered} answered of {served} that Redis counted; {}", seen());
    assert!(!reasons.contains_key("unavailable") && !reasons.contains_key("queue_full"), "{}", seen());
    let of = |reason| reasons.get(reason).copied().unwrap_or_default();
    assert!(of("overloaded") > 4.0 * of("timeout"), "most are rejected unsent: {reasons:?}");
    let metrics = server.metrics();
    let shed = metrics["tollgate_redis_shed_checks_total{pool=\"main\",reason=\"overloaded\"}"];
    assert!((shed - of("overloaded")).abs() < 50.0, "{shed} shed, {reasons:?}");
    let most = metrics["tollgate_redis_outstanding_checks_max{pool=\"main\"}"];
    assert!(most <= f64::from(4 * PER_SECOND), "{most} checks wait for longer than they may");
}

#[test]
fn a_service_without_cpu_takes_neither_itself_nor_its_redis_for_slow() {
    let _turn = turn();
    assert_nobody_fails_without_cpu(RULES, &requests());
}

#[test]
fn nor_does_one_that_holds_beside_another_limit() {
    let _turn = turn();
    let requests: Vec<_> = (0..KEYS)
        .map(|key| format!("v{key}"))
        .map(|value| request("d", &[&[("held", &value)], &[("many", &value)]]))
        .collect();
    assert_nobody_fails_without_cpu(HELD, &requests);
}

/// Stops and continues a service that many callers ask, each of which has a minute.
fn assert_nobody_fails_without_cpu(rules: &str, requests: &[RateLimitRequest]) {
    const CALLERS: usize = 320;
    let redis = Redis::single();
    // Redis needs a part of it on a busy machine, and the service gets no CPU for longer.
    let server = service_of(rules, &redis.env(), "200ms");
    let bodies: Arc<Vec<_>> = Arc::new(requests.iter().map(framed).collect());
    let stop = Arc::new(AtomicBool::new(false));
    let asking = {
        let (stop, port) = (stop.clone(), server.ports.grpc);
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
        thread::spawn(move || {
            runtime.block_on(async {
                let client = RawClient::connect(port).await.expect("the service takes connections");
                let callers: JoinSet<_> = (0..CALLERS)
                    .map(|caller| {
                        let (client, bodies, stop) = (client.clone(), bodies.clone(), stop.clone());
                        ask_until(stop, client, bodies, caller)
                    })
                    .collect();
                callers.join_all().await
            })
        })
    };
    for _ in 0..10 {
        thread::sleep(Duration::from_millis(100));
        server.process.signal("STOP");
        thread::sleep(Duration::from_millis(300));
        server.process.signal("CONT");
    }
    stop.store(true, Relaxed);
    let failed: Vec<_> = asking.join().expect("the callers do not panic").into_iter().flatten().collect();
    assert!(failed.is_empty(), "{} failed, the first: {:?}", failed.len(), failed[0]);
    let metrics = server.metrics();
    let late = metrics["tollgate_redis_worker_lateness_seconds_sum{pool=\"main\"}"];
    assert!(late > 0.2, "it was late for {late} s");
    let errors = metrics["tollgate_redis_errors_total{pool=\"main\",kind=\"timeout\"}"];
    assert!(errors < 1.0, "Redis was not late: {errors}");
}

/// Sends requests one after the other, with a minute for each; returns the errors.
async fn ask_until(
    stop: Arc<AtomicBool>,
    mut client: RawClient,
    bodies: Arc<Vec<Bytes>>,
    mut next: usize,
) -> Vec<Exchange> {
    let mut failed = Vec::new();
    while !stop.load(Relaxed) {
        next = (next + 7) % bodies.len();
        let answered = client.ask(bodies[next].clone(), &a_minute()).await;
        failed.extend(answered.err());
    }
    failed
}

fn a_minute() -> HeaderMap {
    let (name, value) = ("grpc-timeout".parse().expect("a name"), "60S".parse().expect("a value"));
    HeaderMap::from_iter([(name, value)])
}

#[test]
fn who_waits_longer_is_answered_by_a_redis_that_is_busy() {
    const CALLERS: usize = 600;
    let _turn = turn();
    let redis = Redis::single();
    let slow =
        Slow::to(redis.port, Pace::new(Duration::from_millis(2), Duration::ZERO, Duration::from_millis(4)));
    // All at once take 1.2 s.
    let server = service(&tcp(&slow.address()), "300ms");
    let bodies: Vec<_> = requests().iter().take(CALLERS).map(framed).collect();
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    let failed = runtime.block_on(async {
        let client = RawClient::connect(server.ports.grpc).await.expect("the service takes connections");
        let headers = a_minute();
        let asking: JoinSet<_> = bodies
            .into_iter()
            .map(|body| {
                let (mut client, headers) = (client.clone(), headers.clone());
                async move { client.ask(body, &headers).await.err() }
            })
            .collect();
        asking.join_all().await
    });
    let failed: Vec<_> = failed.into_iter().flatten().collect();
    assert!(failed.is_empty(), "{} failed, the first: {:?}", failed.len(), failed[0]);
}

/// Prints the rate of responses in time at several loads: a table for docs/dev/figures.md.
#[test]
#[ignore = "a measurement, on a machine that does nothing else"]
fn figures() {
    println!("pauses | counting | offered / capacity | offered | answered | goodput | p99 ms | by policy");
    for pause in [0, 2] {
        for (name, rules) in [("fixed windows", RULES), ("scripts", SCRIPTED)] {
            for load in [0.7, 1.5, 3.0] {
                open_loop(pause, name, rules, load);
            }
        }
    }
    println!("\nprocesses x outstanding | timeout | answered a second | of all | by policy");
    for outstanding in [256, 1024] {
        for timeout in ["2s", "10ms"] {
            closed_loop(4, outstanding, timeout);
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few thousand")]
fn open_loop(pause: u64, name: &str, rules: &str, load: f64) {
    let seconds = Duration::from_secs(6);
    let redis = Redis::single();
    let pace = Pace::new(Duration::from_micros(200), Duration::from_millis(pause), Duration::from_millis(4));
    let capacity = pace.per_second();
    let slow = Slow::to(redis.port, pace);
    let setup = Setup::new().redis(&tcp(&slow.address())).unset("REDIS_TIMEOUT").rules("d.yaml", rules);
    let server = measured(setup);
    let per_second = (capacity * load) as u32;
    let load_at_work =
        Steady::start(server.ports.grpc, per_second, ENVOYS_PATIENCE, &requests(), &one("control", "v"));
    thread::sleep(seconds);
    let outcome = load_at_work.stop();
    let good: Vec<_> = outcome
        .asked
        .iter()
        .filter(|one| matches!(one.verdict, Verdict::Ok | Verdict::OverLimit) && one.took <= ENVOYS_PATIENCE)
        .cloned()
        .collect();
    let p99 = crate::support::steady::quantile(&outcome.asked, 0.99).as_secs_f64() * 1e3;
    let offered = outcome.asked.len() as f64;
    let could = offered.min(capacity * seconds.as_secs_f64());
    println!(
        "{pause} of 4 ms | {name} | {load} | {offered} | {} | {:.3} | {p99:.2} | {:?}",
        good.len(),
        good.len() as f64 / could,
        by_reason(&server)
    );
}

/// Callers that send the next request after each response, in several processes on one Redis.
fn closed_loop(processes: usize, outstanding: usize, timeout: &str) {
    let redis = Redis::single();
    let servers: Vec<_> = (0..processes).map(|_| service(&redis.env(), timeout)).collect();
    let (stop, good, all) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let bodies: Arc<Vec<_>> = Arc::new(requests().iter().map(framed).collect());
    let ports: Vec<_> = servers.iter().map(|server| server.ports.grpc).collect();
    let begun = Instant::now();
    let asking = {
        let (stop, good, all) = (stop.clone(), good.clone(), all.clone());
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
            runtime.block_on(async {
                let mut tasks = JoinSet::new();
                for port in ports {
                    for connection in 0..4 {
                        let client = RawClient::connect(port).await.expect("the service takes connections");
                        for caller in 0..outstanding / processes / 4 {
                            let (mut client, bodies, stop) = (client.clone(), bodies.clone(), stop.clone());
                            let (good, all) = (good.clone(), all.clone());
                            let mut at = connection * 500 + caller * 7;
                            tasks.spawn(async move {
                                while !stop.load(Relaxed) {
                                    at += 1;
                                    let body = bodies[at % bodies.len()].clone();
                                    let answered = client.ask(body, &HeaderMap::new()).await.is_ok();
                                    good.fetch_add(u64::from(answered), Relaxed);
                                    all.fetch_add(1, Relaxed);
                                }
                            });
                        }
                    }
                }
                tasks.join_all().await
            });
        })
    };
    thread::sleep(Duration::from_secs(5));
    stop.store(true, Relaxed);
    asking.join().expect("the callers do not panic");
    let seconds = begun.elapsed().as_secs_f64();
    let (good, all) = (good.load(Relaxed) as f64, all.load(Relaxed) as f64);
    let mut reasons = BTreeMap::<String, f64>::new();
    for (reason, count) in servers.iter().flat_map(by_reason) {
        *reasons.entry(reason).or_default() += count;
    }
    println!(
        "{processes} x {} | {timeout} | {:.0} | {:.3} | {reasons:?}",
        outstanding / processes,
        good / seconds,
        good / all
    );
}
