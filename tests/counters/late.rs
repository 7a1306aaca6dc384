//! A store that answers late or never: the failure policy decides before the caller's deadline.

use std::{
    fs,
    net::Ipv4Addr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use clock::{Clock, SystemClock, Time};
use counters::{Batch, Count, KeepHolds, Operate, Report, StoreError, StoreFuture};
use faults::OnStoreFailure;
use http::HeaderMap;
use limiter::{self, Limiter, Policy};
use memory::MemoryStore;
use metrics::{FailureReason, Stats, StatsOptions};
use net::edges::Edges;
use quota::Quotas;
use rules::CompileOptions;
use rules_source::{RulesDir, Source};
use server::{
    grpc::{self, Parts, Workers},
    listen::{Listener, bind_tcp},
};
use settings::{Available, Settings};
use tokio::{
    runtime,
    sync::{oneshot, watch},
    task::LocalSet,
    time::{sleep, timeout_at},
};

use crate::support::{
    client::request,
    raw::{Exchange, GrpcStatus, RawClient, framed},
};

const RULES: &str = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 9}}]\n";

/// Answers after a delay, or fails once no caller waits for the answer.
struct Late {
    counters: MemoryStore,
    after: Duration,
}

impl Count for Late {
    fn apply<'a>(&'a self, batch: &'a mut Batch, now: Time) -> StoreFuture<'a> {
        Box::pin(async move {
            let until = batch.until.unwrap_or_else(|| Instant::now() + Duration::from_secs(60));
            match timeout_at(until.into(), sleep(self.after)).await {
                Ok(()) => self.counters.apply(batch, now).await,
                Err(_) => Err(StoreError {
                    reason: FailureReason::Timeout,
                    message: "no answer came in time".into(),
                }),
            }
        })
    }
}

impl KeepHolds for Late {}

impl Operate for Late {
    fn reset<'a>(&'a self, batch: &'a mut Batch, now: Time) -> StoreFuture<'a> {
        self.counters.reset(batch, now)
    }
}

impl Report for Late {}

/// The result of a request with a timeout, its duration, and the statistics.
fn ask(after: Duration, policy: OnStoreFailure, slow_message: bool) -> (Exchange, Duration, Arc<Stats>) {
    let stats = Arc::new(Stats::new(StatsOptions::default()));
    let store = Late { counters: MemoryStore::new(1000), after };
    let limiter = Arc::new(limiter(policy, store, stats.clone()));
    let parts = Parts {
        quotas: Quotas::new(limiter.clone(), Edges::system(), settings().quota()),
        limiter,
        stats: stats.clone(),
        health: Arc::default(),
        tls: None,
        tracer: None,
        inflight: budget::Budget::new(64 << 20),
    };
    let listener = bind_tcp((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (drain, draining) = watch::channel(false);
    let serving = thread::spawn(move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let workers =
                Workers::start(&settings().server.grpc, settings().server.shutdown_timeout, &parts).unwrap();
            let workers = Arc::new(workers);
            grpc::accept(Listener::tcp(listener).unwrap(), workers.clone(), draining).await;
            workers.join();
        });
    });

    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (exchange, took) = runtime.block_on(async {
        let mut client = RawClient::connect(port).await.unwrap();
        let headers = HeaderMap::from_iter([("grpc-timeout".parse().unwrap(), "400m".parse().unwrap())]);
        let message = framed(&request("d", &[&[("k", "v")]]));
        let begun = Instant::now();
        let exchange = if slow_message {
            let (send, body) = oneshot::channel::<Bytes>();
            tokio::spawn(async move {
                sleep(Duration::from_millis(50)).await;
                let _ = send.send(message);
            });
            client.exchange(body, &headers).await
        } else {
            client.exchange(message, &headers).await
        };
        (exchange, begun.elapsed())
    });
    drain.send(true).unwrap();
    serving.join().unwrap();
    (exchange, took, stats)
}

fn settings() -> Settings {
    let env = |name: &str| match name {
        "GRPC_WORKERS" => Some("1".to_owned()),
        "SHUTDOWN_TIMEOUT" => Some("1s".to_owned()),
        _ => None,
    };
    Settings::read(&env, &|_| true, 1, Available::default()).unwrap().0
}

fn limiter(on_store_failure: OnStoreFailure, store: Late, stats: Arc<Stats>) -> Limiter {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("config")).unwrap();
    fs::write(root.path().join("config/rules.yaml"), RULES).unwrap();
    let directory = RulesDir::new(root.path(), "", "config", false);
    let counters = stats.clone();
    let source = Arc::new(Source::new(CompileOptions::default(), move |rules| {
        limiter::handles(rules, &counters, Vec::new())
    }));
    source.reload(&directory, SystemClock.now());
    let policy = Policy { on_store_failure, max_local_keys: 1000, ..Policy::default() };
    Limiter::new(policy, source, Arc::new(store), None, stats, Arc::new(SystemClock))
}

fn status(exchange: Exchange) -> GrpcStatus {
    match exchange {
        Exchange::Answered(status) => status,
        lost => panic!("{lost:?}"),
    }
}

const SOON: Duration = Duration::from_millis(5);
const NEVER: Duration = Duration::from_secs(3600);
/// The caller's timeout.
const TIME_OUT: Duration = Duration::from_millis(400);

#[test]
fn waits_for_a_late_answer() {
    for slow_message in [false, true] {
        let (exchange, took, stats) = ask(SOON, OnStoreFailure::Error, slow_message);
        assert_eq!(status(exchange), GrpcStatus { code: 0, message: String::new() });
        assert!(took >= SOON, "{took:?}");
        assert_eq!(stats.service().redis_error.get(), 0);
    }
}

#[test]
fn the_policy_decides_for_a_store_that_never_answers() {
    for slow_message in [false, true] {
        let (exchange, took, stats) = ask(NEVER, OnStoreFailure::Allow, slow_message);
        assert_eq!(status(exchange), GrpcStatus { code: 0, message: String::new() });
        assert!(took + Duration::from_millis(10) >= TIME_OUT, "the store had the whole timeout: {took:?}");
        let decided = stats.service().store_failures(OnStoreFailure::Allow, FailureReason::Timeout);
        assert_eq!(decided.get(), 1);
    }
}

#[test]
fn a_store_error_has_the_go_services_code_and_no_details() {
    let (exchange, _, stats) = ask(NEVER, OnStoreFailure::Error, false);
    let message = "counter%20store:%20timed%20out".into();
    assert_eq!(status(exchange), GrpcStatus { code: 2, message });
    assert_eq!(stats.service().redis_error.get(), 1);
}
