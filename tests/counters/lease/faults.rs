//! Leases while Redis is lost, and when rules or clocks change. The simulator covers lost data, killed replicas, new masters,
//! resets and the ends of windows: docs/dev/simulation.md.

use std::{cell::Cell, thread, time::Instant};

use support::{
    clock::{Clock, window},
    eventually, holds, http,
    ports::free_port,
    redis::Redis,
    server::Server,
};

use super::{YEAR, admitted, hits, leased, metric};

const RULES: &str = "
domain: d
descriptors:
  - key: many
    rate_limit: {unit: year, requests_per_unit: 100000}
  - key: minute
    rate_limit: {unit: minute, requests_per_unit: 1500}
";

fn start(redis: &Redis) -> Server {
    leased(&redis.env(), RULES).env("GRPC_WORKERS", "1").start_healthy()
}

/// A service with a short timeout for Redis.
fn impatient(redis: &Redis) -> Server {
    leased(&redis.env(), RULES).env("REDIS_TIMEOUT", "50ms").env("GRPC_WORKERS", "1").start_healthy()
}

fn counter() -> String {
    format!("d_many_v_{}", window(YEAR))
}

/// Sends requests until the lease has at least this many hits.
fn warm_up(server: &Server, held: f64) {
    let client = server.client();
    eventually("hits are leased", || {
        assert_eq!(admitted(&client, &hits("many", 1), 50), 50);
        let now = metric(server, "tollgate_lease_held_hits");
        holds(now >= held, || format!("{now} are"))
    });
}

#[test]
fn without_redis_leased_hits_are_spent_and_then_the_failure_policy_decides() {
    let redis = Redis::single();
    let server = impatient(&redis);
    warm_up(&server, 40.0);
    redis.freeze();
    let client = server.client();
    let mut spent = 0;
    while client.ask(hits("many", 1)).is_ok() {
        spent += 1;
    }
    assert!(spent >= 20, "{spent} were spent");
    let failed = server.metrics().into_iter().filter(|(name, _)| name.starts_with("tollgate_store_failure"));
    assert!(failed.map(|(_, n)| n).sum::<f64>() > 0.0 || client.ask(hits("many", 1)).is_err());
    redis.thaw();
    eventually("the service has recovered", || {
        client.ask(hits("many", 1)).map(drop).map_err(|error| error.to_string())
    });
    warm_up(&server, 10.0);
}

#[test]
fn hits_that_redis_grants_after_the_timeout_are_not_lost() {
    let redis = Redis::single();
    let server = impatient(&redis);
    let client = server.client();
    let asked = Cell::new(0);
    let ask = || {
        asked.set(asked.get() + 1);
        client.ask(hits("many", 1)).is_ok()
    };
    let mut lost = Vec::new();
    // A stall of half a second closes the connection, and its replies are lost: a busy machine needs several attempts.
    for _ in 0..5 {
        eventually("hits are leased", || {
            for _ in 0..50 {
                ask();
            }
            holds(metric(&server, "tollgate_lease_held_hits") >= 40.0, String::new)
        });
        let begun = Instant::now();
        redis.freeze();
        // The last leased hits are spent while more are under way.
        while ask() {}
        eventually("the breaker opens", || holds(!server.is_healthy(), String::new));
        redis.thaw();
        let stall = begun.elapsed();
        server.wait_until_healthy();
        // Unused hits are returned, so the counter has at most one hit for each request.
        thread::sleep(super::IDLE);
        let more = redis.counter(&counter()) - asked.get();
        if more <= 0 {
            return;
        }
        lost.push((more, stall));
    }
    panic!("hits that no request had, and the stall: {lost:?}");
}

#[test]
fn the_leases_of_a_counter_expire_with_it_and_are_deleted_with_it() {
    let redis = Redis::single();
    let (server, admin) = in_sync(&redis);
    warm_up(&server, 40.0);
    let leases = format!("{{{}}}:leases", counter());
    assert_eq!(redis.ask(&["HLEN", &leases]).number(), 1, "{:?}", redis.keys());
    let seconds = redis.ask(&["TTL", &leases]).number();
    assert!((1..=i64::try_from(YEAR).unwrap()).contains(&seconds), "{seconds}");
    reset(admin, "many");
    assert_eq!(redis.ask(&["EXISTS", &counter(), &leases]).number(), 0, "{:?}", redis.keys());
}

#[test]
fn a_reload_that_lowers_a_limit_applies_at_once_and_returns_the_leased_hits() {
    let redis = Redis::single();
    let server = start(&redis);
    warm_up(&server, 40.0);
    let before: i64 = redis.counter(&counter());
    let held = metric(&server, "tollgate_lease_held_hits");
    server.write("d.yaml", &RULES.replace("requests_per_unit: 100000", "requests_per_unit: 10"));
    server.wait_for_rule("requests_per_unit=10,");
    let client = server.client();
    assert_eq!(
        admitted(&client, &hits("many", 1), 100),
        0,
        "{before} are more than 10, and {held} were leased"
    );
    eventually("the lease is returned", || {
        let now = metric(&server, "tollgate_lease_held_hits");
        holds(now == 0.0, || format!("{now} are held"))
    });
}

#[test]
fn a_clock_that_is_set_back_rejects_no_caller_for_long() {
    let clock = Clock::at("2027-03-01T10:30:02Z").steerable();
    let _clock = clock.enter();
    let redis = Redis::single();
    let server = start(&redis);
    let client = server.client();
    assert_eq!(admitted(&client, &hits("minute", 1), 500), 500);
    clock.step(-600.0);
    assert_eq!(admitted(&client, &hits("minute", 1), 1550), 1500, "another window");
    clock.step(600.0);
    let admitted = admitted(&client, &hits("minute", 1), 1200);
    assert!((800..=1000).contains(&admitted), "{admitted} of the rest of the first window");
}

/// A replica with an admin port, which receives the resets of others.
fn in_sync(redis: &Redis) -> (Server, u16) {
    let admin = free_port();
    let setup = leased(&redis.env(), RESET_RULES).env("REPLICA_SYNC", "true").env("GRPC_WORKERS", "1");
    let server = setup.env("ADMIN_ADDR", &format!("127.0.0.1:{admin}")).start_healthy();
    (server, admin)
}

const RESET_RULES: &str = "
domain: d
descriptors:
  - key: many
    rate_limit: {unit: year, requests_per_unit: 2000}
";

fn reset(admin: u16, key: &str) {
    let body = format!("{{\"domain\":\"d\",\"descriptor\":[{{\"key\":\"{key}\",\"value\":\"v\"}}]}}");
    let headers = [("content-type", "application/json")];
    let reply = http::send(admin, "POST", "/api/v1/counters/reset", &headers, body.as_bytes()).unwrap();
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.json()["warning"], serde_json::Value::Null);
}
