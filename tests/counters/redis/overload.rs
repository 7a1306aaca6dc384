//! A Redis that stalls, or is slower than its callers: the policy decides only requests that would be late.

#![expect(clippy::cast_precision_loss, reason = "a test's numbers are small")]

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::HeaderMap;
use tokio::{runtime::Builder, task::JoinSet};

use support::{
    raw::{Exchange, RawClient, framed},
    redis::{Env, Redis, tcp},
    server::{Server, Setup},
    slow::{Pace, Slow},
    steady::{Asked, Outcome, Steady, Verdict},
};

use super::{RULES, RateLimitRequest, one, turn};

/// Enough keys that few hits share a command.
const KEYS: usize = 2000;

fn requests() -> Vec<RateLimitRequest> {
    (0..KEYS).map(|key| one("many", &format!("v{key}"))).collect()
}

fn service(env: &Env, timeout: &str) -> Server {
    Setup::new().redis(env).env("REDIS_TIMEOUT", timeout).rules("d.yaml", RULES).start_healthy()
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
    assert!(answered >= 0.95 * served, "{answered} answered of {served} that Redis counted; {}", seen());
    assert!(!reasons.contains_key("unavailable") && !reasons.contains_key("queue_full"), "{}", seen());
    let of = |reason| reasons.get(reason).copied().unwrap_or_default();
    assert!(of("overloaded") > 4.0 * of("timeout"), "most are rejected unsent: {reasons:?}");
    let metrics = server.metrics();
    let shed = metrics["tollgate_redis_shed_checks_total{pool=\"main\",reason=\"overloaded\"}"];
    assert!((shed - of("overloaded")).abs() < 50.0, "{shed} shed, {reasons:?}");
    let most = metrics["tollgate_redis_outstanding_checks_max{pool=\"main\"}"];
    assert!(most <= f64::from(4 * PER_SECOND), "{most} checks wait for longer than they may");
}

/// Stops and continues a service that many callers ask, each of which has a minute.
#[test]
fn a_service_without_cpu_takes_neither_itself_nor_its_redis_for_slow() {
    const CALLERS: usize = 320;
    let _turn = turn();
    let redis = Redis::single();
    // Redis needs a part of it on a busy machine, and the service gets no CPU for longer.
    let server = service(&redis.env(), "200ms");
    let bodies: Arc<Vec<_>> = Arc::new(requests().iter().map(framed).collect());
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
