//! Leases while Redis, a replica or a rule is lost.

use std::{
    cell::Cell,
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    clock::{Clock, window},
    eventually, holds, http,
    ports::free_port,
    redis::{Redis, Sentinels},
    server::Server,
};

use super::{Code, YEAR, admitted, ask, hits, leased, metric};

const RULES: &str = "
domain: d
descriptors:
  - key: many
    rate_limit: {unit: year, requests_per_unit: 100000}
  - key: minute
    rate_limit: {unit: minute, requests_per_unit: 3000}
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
fn a_flushed_redis_ends_the_leases_and_no_hits_are_returned() {
    let redis = Redis::single();
    let server = start(&redis);
    warm_up(&server, 40.0);
    redis.ask(&["FLUSHALL"]);
    let held = metric(&server, "tollgate_lease_held_hits");
    let client = server.client();
    for _ in 0..300 {
        assert_eq!(ask(&client, &hits("many", 1)).overall_code(), Code::Ok);
        assert!(redis.counter(&counter()) >= 0);
    }
    thread::sleep(super::IDLE);
    let counter = redis.counter(&counter());
    let least = 300.0 - held;
    assert!(f64::from(i32::try_from(counter).unwrap()) >= least, "{counter} of 300 hits, {held} held before");
    assert!(counter <= 300, "{counter} of 300 hits");
}

/// Waits until the replica has returned its lease, or has tried to.
fn wait_until_idle(server: &Server) {
    eventually("the lease ends", || {
        let held = metric(server, "tollgate_lease_held_hits");
        holds(held == 0.0, || format!("{held} hits are held"))
    });
    // The command may still be under way.
    thread::sleep(Duration::from_millis(100));
}

#[test]
fn no_hits_are_returned_to_a_new_counter_that_others_have_driven_far() {
    let redis = Redis::single();
    let (server, (other, admin)) = (start(&redis), in_sync(&redis));
    // FLUSHALL, and a reset that this replica does not learn of.
    let lose: [(&str, &dyn Fn()); 2] =
        [("FLUSHALL", &|| drop(redis.ask(&["FLUSHALL"]))), ("reset", &|| reset(admin, "many"))];
    for (what, lose) in lose {
        warm_up(&server, 40.0);
        lose();
        redis.ask(&["INCRBY", &counter(), "50000"]);
        wait_until_idle(&server);
        assert_eq!(redis.counter(&counter()), 50_000, "{what}");
    }
    drop(other);
    // The next lease is returned as always.
    warm_up(&server, 40.0);
    wait_until_idle(&server);
}

#[test]
fn no_hits_are_returned_to_a_counter_from_a_snapshot_without_them() {
    let mut redis = Redis::single();
    let server = start(&redis);
    warm_up(&server, 40.0);
    // The counter knows the lease, but not its later grants.
    redis.ask(&["SAVE"]);
    let saved = redis.counter(&counter());
    let granted = metric(&server, "tollgate_lease_granted_total");
    let client = server.client();
    eventually("more hits are leased", || {
        assert_eq!(admitted(&client, &hits("many", 1), 50), 50);
        let more = metric(&server, "tollgate_lease_granted_total") > granted;
        holds(more && metric(&server, "tollgate_lease_held_hits") >= 40.0, String::new)
    });
    redis.kill();
    redis.start();
    assert_eq!(redis.counter(&counter()), saved);
    redis.ask(&["INCRBY", &counter(), "50000"]);
    wait_until_idle(&server);
    assert_eq!(redis.counter(&counter()), saved + 50_000);
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
fn a_killed_replica_loses_its_leased_hits_and_no_more() {
    let redis = Redis::single();
    let mut killed = start(&redis);
    let other = start(&redis);
    warm_up(&killed, 40.0);
    let before = redis.counter(&counter());
    killed.process.kill();
    let asked = 400;
    assert_eq!(admitted(&other.client(), &hits("many", 1), asked), asked);
    thread::sleep(super::IDLE);
    assert_eq!(redis.counter(&counter()), before + i64::try_from(asked).unwrap(), "the counter continues");
}

#[test]
fn a_new_master_continues_to_count() {
    let mut sentinels = Sentinels::start();
    let server = leased(&sentinels.env(), RULES).env("REDIS_TIMEOUT", "500ms").start_healthy();
    warm_up(&server, 40.0);
    sentinels.fail_over();
    let client = server.client();
    eventually("the new master counts", || {
        client.ask(hits("many", 1)).map(drop).map_err(|error| error.to_string())
    });
    warm_up(&server, 40.0);
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
fn leased_hits_expire_with_their_window() {
    let clock = Clock::at("2027-03-01T10:00:30Z").steerable();
    let _clock = clock.enter();
    let redis = Redis::single();
    let server = start(&redis);
    let client = server.client();
    for minute in 0..5 {
        // Up to the limit in every window, whatever was leased in the last one.
        let admitted = admitted(&client, &hits("minute", 1), if minute % 2 == 0 { 3100 } else { 500 });
        assert_eq!(admitted, if minute % 2 == 0 { 3000 } else { 500 }, "minute {minute}");
        clock.move_to(&format!("2027-03-01T10:{:02}:00Z", minute + 1), 20.0);
    }
    assert!(metric(&server, "tollgate_lease_hits_total") > 5000.0);
}

#[test]
fn a_clock_that_is_set_back_rejects_no_caller_for_long() {
    let clock = Clock::at("2027-03-01T10:30:30Z").steerable();
    let _clock = clock.enter();
    let redis = Redis::single();
    let server = start(&redis);
    let client = server.client();
    assert_eq!(admitted(&client, &hits("minute", 1), 500), 500);
    clock.step(-600.0);
    assert_eq!(admitted(&client, &hits("minute", 1), 3100), 3000, "another window");
    clock.step(600.0);
    let admitted = admitted(&client, &hits("minute", 1), 3000);
    assert!((2300..=2500).contains(&admitted), "{admitted} of the rest of the first window");
}

#[test]
fn a_slow_redis_delays_only_requests_without_leased_hits() {
    let redis = Redis::single();
    let server = start(&redis);
    warm_up(&server, 60.0);
    let client = server.client();
    redis.freeze();
    let begun = Instant::now();
    assert_eq!(admitted(&client, &hits("many", 1), 20), 20);
    let took = begun.elapsed();
    redis.thaw();
    // Each that waits for Redis takes the timeout of 5 s.
    assert!(took < Duration::from_secs(4), "20 requests took {took:?}");
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
  - key: several
    rate_limit: [{unit: year, requests_per_unit: 2000}, {unit: hour, requests_per_unit: 100000}]
";

fn reset(admin: u16, key: &str) {
    let body = format!("{{\"domain\":\"d\",\"descriptor\":[{{\"key\":\"{key}\",\"value\":\"v\"}}]}}");
    let headers = [("content-type", "application/json")];
    let reply = http::send(admin, "POST", "/api/v1/counters/reset", &headers, body.as_bytes()).unwrap();
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.json()["warning"], serde_json::Value::Null);
}

#[test]
fn a_reset_ends_the_leases_of_all_replicas() {
    let redis = Redis::single();
    let replicas = [in_sync(&redis), in_sync(&redis)];
    eventually("both follow redis", || {
        let channels = redis.ask(&["PUBSUB", "NUMSUB", "{tollgate}:changes"]).to_string();
        holds(channels.contains('2'), || channels.clone())
    });
    let clients = [0, 1].map(|index| replicas[index].0.client());
    for key in ["many", "several"] {
        // Each replica holds hits, and each resets once.
        for round in 0..4 {
            for (client, (server, _)) in clients.iter().zip(&replicas) {
                eventually("hits are leased", || {
                    assert_eq!(admitted(client, &hits(key, 1), 20), 20);
                    let now = metric(server, "tollgate_lease_held_hits");
                    holds(now > 0.0, || format!("{now} are"))
                });
            }
            reset(replicas[round % 2].1, key);
            for (server, _) in &replicas {
                eventually("the leases have ended", || {
                    let held = metric(server, "tollgate_lease_held_hits");
                    holds(held < 0.5, || format!("{held} held"))
                });
            }
            let both: usize = thread::scope(|scope| {
                let asking = clients
                    .iter()
                    .map(|client| scope.spawn(|| admitted(client, &hits(key, 1), 1500)))
                    .collect::<Vec<_>>();
                asking.into_iter().map(|one| one.join().unwrap()).sum()
            });
            // Either may have returned its last hits after the other was refused.
            let late: usize = clients.iter().map(|client| admitted(client, &hits(key, 1), 60)).sum();
            let all = both + late;
            assert!((1950..=2000).contains(&all), "{key}: {both} and {late} of 2000 after reset {round}");
            // Both know for five seconds that the counter is over its limit, unless it is reset.
            reset(replicas[(round + 1) % 2].1, key);
            for client in &clients {
                eventually("the reset arrives", || {
                    let admitted = admitted(client, &hits(key, 1), 10);
                    holds(admitted == 10, || format!("{key}: {round}: {admitted} of 10"))
                });
            }
        }
    }
    thread::sleep(super::IDLE);
    let counter = redis.counter(&format!("d_many_v_{}", window(YEAR)));
    assert!(counter >= 20, "{counter}: only hits in the counter are returned");
}
