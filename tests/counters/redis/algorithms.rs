//! Sliding windows, logs and buckets, which scripts on the server count: several processes admit as much as one, also
//! while scripts are flushed.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use support::{
    client::descriptor,
    redis::{Env, Redis, Reply},
    server::{Server, Setup},
};

use super::{Code, RateLimitRequest, decision, one, request};

/// Limits per year, so that nothing refills during a test, except the buckets of `flow`.
const RULES: &str = "
domain: d
descriptors:
  - key: sliding_window
    rate_limit: {unit: year, requests_per_unit: 40, algorithm: sliding_window}
  - key: sliding_log
    rate_limit: {unit: year, requests_per_unit: 40, algorithm: sliding_log}
  - key: token_bucket
    rate_limit: {unit: year, requests_per_unit: 40, algorithm: token_bucket}
  - key: leaky_bucket
    rate_limit: {unit: year, requests_per_unit: 40, algorithm: leaky_bucket, burst: 40}
  - key: flow
    rate_limit: {unit: second, requests_per_unit: 50, algorithm: token_bucket, burst: 10}
  - key: both
    rate_limit:
      - {unit: day, requests_per_unit: 2, algorithm: token_bucket}
      - {unit: year, requests_per_unit: 10}
  - key: counted
    rate_limit: {unit: year, requests_per_unit: 40}
";

const ALGORITHMS: [&str; 4] = ["sliding_window", "sliding_log", "token_bucket", "leaky_bucket"];

/// The hits that each of them admits.
const LIMIT: usize = 40;

const PROCESSES: usize = 4;

fn start(env: &Env, further: &[(&str, &str)]) -> Server {
    let setup = Setup::new().redis(env).env("REDIS_TIMEOUT", "20s").env("GRPC_WORKERS", "1");
    let setup = further.iter().fold(setup, |setup, (name, value)| setup.env(name, value));
    setup.rules("d.yaml", RULES).start_healthy()
}

/// The admitted hits of several processes with several callers each, until `enough` returns true.
fn admitted(
    env: &Env,
    enough: impl Fn(usize) -> bool + Sync,
    next: impl Fn(usize) -> RateLimitRequest + Sync,
) -> Vec<(usize, u32)> {
    let servers: Vec<_> = (0..PROCESSES).map(|_| start(env, &[])).collect();
    let asked = &AtomicUsize::new(0);
    let (enough, next) = (&enough, &next);
    thread::scope(|scope| {
        let callers = servers.iter().flat_map(|server| [server.client(), server.client(), server.client()]);
        let callers: Vec<_> = callers
            .map(|client| {
                scope.spawn(move || {
                    let mut left = Vec::new();
                    loop {
                        let number = asked.fetch_add(1, Ordering::Relaxed);
                        if enough(number) {
                            return left;
                        }
                        let answer = client.ask(next(number)).expect("the request is answered");
                        let (code, remaining) = decision(&answer);
                        if code == Code::Ok {
                            left.push((number, remaining));
                        }
                    }
                })
            })
            .collect();
        callers.into_iter().flat_map(|caller| caller.join().expect("every request is answered")).collect()
    })
}

/// Every algorithm with several keys; each admitted hit leaves one less than the previous one.
fn exactly_the_limit(env: &Env) {
    let values = 3;
    let kinds = ALGORITHMS.len() * values;
    let key = |number: usize| (ALGORITHMS[number % ALGORITHMS.len()], format!("v{}", number % kinds));
    let ask = |number| {
        let (algorithm, value) = key(number);
        one(algorithm, &value)
    };
    let all = admitted(env, |number| number >= kinds * LIMIT * 2, ask);
    for kind in 0..kinds {
        let mut left: Vec<_> =
            all.iter().filter(|(number, _)| number % kinds == kind).map(|(_, left)| *left).collect();
        left.sort_unstable();
        assert_eq!(left, (0..40).collect::<Vec<u32>>(), "{:?}", key(kind));
    }
}

#[test]
fn four_processes_admit_as_much_as_one() {
    let redis = Redis::single();
    exactly_the_limit(&redis.env());
    for key in redis.keys() {
        let Reply::Integer(lives) = redis.ask(&["TTL", &key]) else { panic!("{key} has no time to live") };
        assert!(lives > 0, "{key} lives {lives} s");
    }
}

#[test]
fn no_request_fails_after_script_flush() {
    let redis = Redis::single();
    let server = start(&redis.env(), &[]);
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        for algorithm in ALGORITHMS.iter().chain(&["counted"]) {
            let client = server.client();
            scope.spawn(move || {
                let mut admitted = 0;
                while !stop.load(Ordering::Relaxed) {
                    let answer = client.ask(one(algorithm, "v")).expect("the request is answered");
                    admitted += usize::from(decision(&answer).0 == Code::Ok);
                }
                assert_eq!(admitted, LIMIT, "{algorithm}");
            });
        }
        for _ in 0..200 {
            redis.ask(&["SCRIPT", "FLUSH"]);
            thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn hits_on_one_key_in_a_request_count_in_order() {
    let redis = Redis::single();
    let server = start(&redis.env(), &[]);
    for algorithm in ALGORITHMS {
        let hits = |hits: u64, back: bool| {
            let mut descriptor = descriptor(&[(algorithm, "v")]);
            (descriptor.hits_addend, descriptor.is_negative_hits) = (Some(hits), back);
            descriptor
        };
        let descriptors =
            vec![hits(30, false), hits(11, false), hits(5, true), hits(15, false), hits(0, false)];
        let answer =
            server.ask(RateLimitRequest { descriptors, ..request("d", &[]) }).expect("it is answered");
        let left: Vec<_> =
            answer.statuses.iter().map(|status| (status.code(), status.limit_remaining)).collect();
        let expected = [(Code::Ok, 10), (Code::OverLimit, 10), (Code::Ok, 15), (Code::Ok, 0), (Code::Ok, 0)];
        assert_eq!(left, expected, "{algorithm}");
    }
}
