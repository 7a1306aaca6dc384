//! Room that comes back to a counter: each replica that has cached that it was over its limit admits again, whoever gave it
//! back, by which limit, and whether or not anybody got the reply.

use std::{thread, time::Duration};

use proto::envoy::{
    extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride,
    service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response::Code},
};

use support::{
    client::request,
    eventually, holds,
    proxy::{Proxy, Way},
    redis::{Redis, tcp},
    server::{Server, Setup},
};

use super::counter;

const RULES: &str = "
domain: d
descriptors:
  - {key: plain, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: list, rate_limit: [{unit: year, requests_per_unit: 3}, {unit: hour, requests_per_unit: 3}]}
  - {key: late, rate_limit: {unit: year, requests_per_unit: 100, hold: {amount: 100, ttl: 3s}}}
";

/// A replica that writes requests through a proxy, and another of the same Redis; both have a cache.
struct Replicas {
    proxy: Proxy,
    all: [Server; 2],
    /// They stop before it.
    redis: Redis,
}

impl Replicas {
    fn start() -> Self {
        let redis = Redis::single();
        let proxy = Proxy::to(redis.port);
        let setup = |env| {
            let setup = Setup::new().redis(env).env("REDIS_TIMEOUT", "1s").env("REPLICA_SYNC", "true");
            setup.env("LOCAL_CACHE_SIZE_IN_BYTES", "1000000").rules("d.yaml", RULES)
        };
        let all = [setup(&tcp(&proxy.address())).start_healthy(), setup(&redis.env()).start_healthy()];
        Self { proxy, all, redis }
    }

    fn writer(&self) -> &Server {
        &self.all[0]
    }

    /// Both know that the counter is used up.
    fn use_up(&self, key: &str, value: &str) {
        for server in &self.all {
            let codes = [(); 5].map(|()| code(server, key, value));
            assert_eq!(codes[4], Code::OverLimit, "{key} {value} is used up");
        }
    }

    fn assert_admitted(&self, key: &str, value: &str) {
        for (number, server) in self.all.iter().enumerate() {
            eventually("what came back is admitted", || {
                // A breaker may still be open.
                let code = server.ask(asked(key, value, 1)).map(|answer| answer.overall_code());
                holds(matches!(code, Ok(Code::Ok)), || {
                    let count = self.redis.ask(&["GET", &counter(key, value)]);
                    let log = server.process.log();
                    format!("{key} {value:.20}, replica {number}: {code:?}, {count:?} in Redis\n{log}")
                })
            });
        }
    }
}

fn asked(key: &str, value: &str, hits: u64) -> RateLimitRequest {
    let mut asked = request("d", &[&[(key, value)]]);
    asked.descriptors[0].hits_addend = Some(hits);
    asked
}

fn refund(key: &str, value: &str, hits: u64) -> RateLimitRequest {
    let mut refund = asked(key, value, hits);
    refund.descriptors[0].is_negative_hits = true;
    refund
}

fn code(server: &Server, key: &str, value: &str) -> Code {
    server.ask(asked(key, value, 1)).expect("it is answered").overall_code()
}

fn id(answer: &RateLimitResponse) -> String {
    let metadata = answer.dynamic_metadata.as_ref().expect("it holds");
    let Some(prost_types::value::Kind::StringValue(id)) = &metadata.fields["hold"].kind else {
        panic!("no id: {answer:?}")
    };
    id.clone()
}

#[test]
fn by_whatever_limit() {
    let replicas = Replicas::start();
    let writer = replicas.writer();
    for (key, value) in [("plain", "rules"), ("plain", "own"), ("list", "a")] {
        replicas.use_up(key, value);
    }
    writer.ask(refund("plain", "rules", 15)).unwrap();
    let mut own = refund("plain", "own", 15);
    // A year.
    own.descriptors[0].limit =
        Some(RateLimitOverride { requests_per_unit: 1000, unit: 6, unit_multiplier: None });
    writer.ask(own).unwrap();
    writer.ask(refund("list", "a", 2)).unwrap();
    for (key, value) in [("plain", "rules"), ("plain", "own"), ("list", "a")] {
        replicas.assert_admitted(key, value);
    }
}

#[test]
fn of_a_budget() {
    let replicas = Replicas::start();
    let writer = replicas.writer();
    // A name above 512 bytes is not recorded with its hold.
    let long = "x".repeat(600);
    let values = ["refund", "late", &long, "left"];
    let ids = values.map(|value| id(&writer.ask(asked("late", value, 100)).unwrap()));
    thread::sleep(Duration::from_millis(3200));
    for value in values {
        replicas.use_up("late", value);
    }
    writer.ask(refund("late", values[0], 50)).unwrap();
    let settle = |id: &str| {
        let mut settle = request("d", &[&[("hold_settle", id)]]);
        settle.descriptors[0].hits_addend = Some(7);
        settle
    };
    writer.ask(settle(&ids[1])).unwrap();
    writer.ask(settle(&ids[2])).unwrap();
    replicas.proxy.set(Way::Open(Duration::from_millis(200)));
    writer.ask_and_leave(settle(&ids[3]));
    replicas.proxy.set(Way::CLEAR);
    for value in values {
        replicas.assert_admitted("late", value);
    }
}

#[test]
fn although_nobody_got_the_reply() {
    let replicas = Replicas::start();
    let writer = replicas.writer();
    for value in ["left", "late", "lost"] {
        replicas.use_up("plain", value);
    }
    replicas.proxy.set(Way::Open(Duration::from_millis(200)));
    writer.ask_and_leave(refund("plain", "left", 15));
    thread::sleep(Duration::from_millis(500));
    replicas.proxy.set(Way::CLEAR);
    replicas.assert_admitted("plain", "left");
    // The reply comes after REDIS_TIMEOUT. If Redis was slow before, as on a busy machine, the refund is rejected unsent.
    eventually("Redis has the refund", || {
        replicas.redis.freeze();
        let error = writer.ask(refund("plain", "late", 15)).unwrap_err();
        replicas.redis.thaw();
        holds(error.message() == "counter store: timed out", || error.to_string())
    });
    replicas.all.iter().for_each(Server::wait_until_healthy);
    replicas.assert_admitted("plain", "late");
    // Redis has the command, and the connection ends before the reply.
    replicas.proxy.set(Way::Open(Duration::from_millis(300)));
    thread::scope(|scope| {
        let asking = scope.spawn(|| writer.ask(refund("plain", "lost", 15)));
        thread::sleep(Duration::from_millis(450));
        replicas.proxy.set(Way::Cut);
        asking.join().expect("asking does not panic").unwrap_err();
    });
    replicas.proxy.set(Way::CLEAR);
    writer.wait_until_healthy();
    replicas.assert_admitted("plain", "lost");
    let metrics = writer.metrics();
    assert!(metrics["tollgate_callers_left_total{decision=\"finished\"}"] > 0.5, "{metrics:?}");
}
