//! Several replicas on one counter: they admit nearly the limit and never more, and exact replicas can share the counter.

use std::thread;

use support::{
    clock::window,
    eventually, holds,
    redis::{Env, Redis},
    server::Server,
};

use super::{Code, IDLE, YEAR, admitted, ask, hits, leased, metric, request};

const RULES: &str = "
domain: d
descriptors:
  - key: two_thousand
    rate_limit: {unit: year, requests_per_unit: 2000}
  - key: many
    rate_limit: {unit: year, requests_per_unit: 1000000}
";

fn replicas(env: &Env, count: usize) -> Vec<Server> {
    (0..count).map(|_| leased(env, RULES).env("GRPC_WORKERS", "1").start_healthy()).collect()
}

fn counter(key: &str) -> String {
    format!("d_{key}_v_{}", window(YEAR))
}

#[test]
fn an_idle_lease_is_returned_and_the_counter_is_that_of_exact_replicas() {
    let redis = Redis::single();
    let replica = &replicas(&redis.env(), 1)[0];
    assert_eq!(admitted(&replica.client(), &hits("many", 1), 700), 700);
    let key = counter("many");
    assert!(redis.counter(&key) >= 700, "the counter includes leased hits");
    eventually("the lease is returned", || {
        let counter = redis.counter(&key);
        holds(counter == 700, || format!("the counter is {counter}"))
    });
    let ttl = redis.ask(&["TTL", &key]).number().unsigned_abs();
    assert!((YEAR - 60..=YEAR + 300).contains(&ttl), "it expires in {ttl} s");
    let leases = format!("{{{key}}}:leases");
    assert_eq!(redis.keys(), [key, leases], "there is no other key");
    assert!(metric(replica, "tollgate_lease_returned_total") > 0.0);
}

#[test]
fn hot_keys_need_few_commands_and_cold_ones_as_many_as_without_leases() {
    let redis = Redis::single();
    let replica = &replicas(&redis.env(), 1)[0];
    let client = replica.client();
    let counting = || ["incrby", "evalsha", "eval"].map(|one| redis.calls(one)).iter().sum::<u64>();
    // Each connection checks its permissions.
    let before = counting();
    for n in 0..100 {
        let one = request("d", &[&[("many", &format!("cold{n}"))]]);
        assert_eq!(ask(&client, &one).overall_code(), Code::Ok);
    }
    let cold = counting();
    assert_eq!(cold - before, 100);
    assert_eq!(admitted(&client, &hits("many", 1), 3000), 3000);
    // Scripts call INCRBY, which Redis counts too.
    let hot = counting() - cold;
    assert!(hot < 300, "{hot} commands for 3000 hits");
}

#[test]
fn an_exact_replica_sees_the_hits_leased_by_another() {
    let redis = Redis::single();
    let leasing = &replicas(&redis.env(), 1)[0];
    let exact = leased(&redis.env(), RULES).env("COUNTING", "exact").start_healthy();
    let both = [leasing, &exact];
    let admitted: usize = thread::scope(|scope| {
        let asking = both.map(|one| {
            let client = one.client();
            scope.spawn(move || admitted(&client, &hits("two_thousand", 1), 1500))
        });
        asking.into_iter().map(|one| one.join().unwrap()).sum()
    });
    assert!((1980..=2000).contains(&admitted), "{admitted} of 2000");
    assert!(metric(&exact, "tollgate_lease_hits_total") < 1.0);
}

#[test]
fn the_coldest_lease_is_evicted_at_the_maximum() {
    let redis = Redis::single();
    let replica = leased(&redis.env(), RULES).env("LEASE_MAX_KEYS", "2").start_healthy();
    let client = replica.client();
    let evictions = || metric(&replica, "tollgate_lease_evictions_total");
    let mut values = Vec::new();
    // On a busy machine a lease may end by itself before another one takes its place.
    while evictions() < 2.0 {
        let value = values.len().to_string();
        assert!(values.len() < 40, "of 40 keys, {} are evicted", evictions());
        let one = request("d", &[&[("many", &value)]]);
        assert_eq!(admitted(&client, &one, 200), 200);
        values.push(value);
        assert!(metric(&replica, "tollgate_lease_keys") <= 2.0);
        // Of keys that are equally hot the first ones stay, so this one must be cold.
        thread::sleep(IDLE);
    }
    thread::sleep(IDLE);
    for value in values {
        let key = format!("d_many_{value}_{}", window(YEAR));
        assert_eq!(redis.counter(&key), 200, "the hits left of {value} are returned");
    }
}

#[test]
fn the_debug_page_shows_the_leases() {
    let redis = Redis::single();
    let replica = &replicas(&redis.env(), 1)[0];
    assert_eq!(admitted(&replica.client(), &hits("many", 1), 300), 300);
    let page = support::http::get(replica.ports.debug, "/leases").text();
    assert!(page.starts_with(&format!("{}: left=", counter("many"))), "{page}");
    assert!(page.contains(" limit=1000000 requests_per_second="), "{page}");
}
