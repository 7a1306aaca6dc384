//! What the limits of a request do to each other, through replicas on one Redis.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use fastrand::Rng;
use proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response::Code};

use super::{Holder, Places, id, setup};
use crate::support::{client::request, redis::Redis, server::Server};

/// Each key is limited to 5 in its own way; a budget to 100.
const RULES: &str = "
domain: d
descriptors:
  - {key: plain, rate_limit: {unit: year, requests_per_unit: 5, counting: exact}}
  - {key: leased, rate_limit: {unit: year, requests_per_unit: 5, counting: leased}}
  - {key: named, rate_limit: {unit: year, requests_per_unit: 5, counting: exact, name: it}}
  - {key: replacing, rate_limit: {unit: year, requests_per_unit: 5, counting: exact, replaces: [{name: it}]}}
  - {key: list, rate_limit: [{unit: year, requests_per_unit: 5}, {unit: year, unit_multiplier: 2, requests_per_unit: 5}]}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 5, counting: exact}}
  - {key: shadow_list, shadow_mode: true, rate_limit: [{unit: year, requests_per_unit: 5}, {unit: year, unit_multiplier: 2, requests_per_unit: 9}]}
  - {key: quota, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 5, counting: exact}}
  - {key: other_quota, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 5, counting: exact}}
  - {key: hold, rate_limit: {unit: year, requests_per_unit: 5, hold: {amount: 1, ttl: 10m}}}
  - {key: other_hold, rate_limit: {unit: year, requests_per_unit: 5, hold: {amount: 1, ttl: 10m}}}
  - {key: streams, rate_limit: {algorithm: concurrency, requests_per_unit: 5, hold: {ttl: 10m}}}
  - {key: shadow_hold, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 5, hold: {amount: 1, ttl: 10m}}}
  - {key: quota_hold, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 5, hold: {amount: 1, ttl: 10m}}}
  - {key: budget, rate_limit: {unit: year, requests_per_unit: 100, hold: {amount: 40, ttl: 10m, unknown: zero}}}
  - {key: full, rate_limit: {unit: year, requests_per_unit: 1, hold: {amount: 1, ttl: 10m}}}
";

const KEYS: [&str; 14] = [
    "plain",
    "leased",
    "named",
    "replacing",
    "list",
    "shadow",
    "shadow_list",
    "quota",
    "other_quota",
    "hold",
    "other_hold",
    "streams",
    "shadow_hold",
    "quota_hold",
];

const LIMIT: u64 = 5;

fn asking(keys: &[&str], value: &str, hits: u64) -> RateLimitRequest {
    let entries: Vec<[(&str, &str); 1]> = keys.iter().map(|key| [(*key, value)]).collect();
    let lists: Vec<&[(&str, &str)]> = entries.iter().map(|entry| &entry[..]).collect();
    let mut asked = request("d", &lists);
    asked.descriptors.iter_mut().for_each(|descriptor| descriptor.hits_addend = Some(hits));
    asked
}

fn holds(key: &str) -> bool {
    key.contains("hold") || key == "streams"
}

/// What is spent and held of a key: of a limit that does not hold, its counter.
fn used(key: &str, value: &str, holder: &Holder, redis: &Redis) -> (u64, u64) {
    if holds(key) {
        return holder.seen(key, value);
    }
    let start = format!("d_{key}_{value}_");
    let is_counter = |name: &&String| name.replace(['{', '}'], "").starts_with(&start) && !name.contains(':');
    let counters = redis.keys();
    let counters = counters.iter().filter(is_counter).map(|name| redis.counter(name));
    (counters.max().unwrap_or(0).cast_unsigned(), 0)
}

/// True if these descriptors, each with its key and whether it is over its limit, refuse the request.
fn is_refused(statuses: &[(&str, bool)]) -> bool {
    let mut quotas = statuses.iter().filter(|(key, _)| key.contains("quota")).peekable();
    let is_exhausted = quotas.peek().is_some() && quotas.all(|(_, is_over)| *is_over);
    is_exhausted || statuses.iter().any(|(key, is_over)| *is_over && !key.contains("quota"))
}

fn overs<'k>(keys: &[&'k str], answer: &RateLimitResponse) -> Vec<(&'k str, bool)> {
    let of = |(key, status): (&&'k str, _)| (*key, is_over(status));
    keys.iter().zip(&answer.statuses).map(of).collect()
}

fn is_over(status: &proto::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus) -> bool {
    status.code() == Code::OverLimit
}

/// Random requests about the counters of a value, through both replicas in turn.
fn one_round(servers: &[Server; 2], redis: &Redis, value: &str, stops: bool, rng: &mut Rng) {
    let holders = servers.each_ref().map(Holder::of);
    let mut ids = Vec::new();
    for step in 0..40 {
        let keys: Vec<&str> = KEYS.into_iter().filter(|_| rng.u8(..5) == 0).collect();
        if keys.is_empty() {
            continue;
        }
        let (hits, holder) = (rng.u64(..4), &holders[rng.usize(..2)]);
        let look = || keys.iter().map(|key| used(key, value, holder, redis)).collect::<Vec<_>>();
        let before = look();
        let answer = holder.ask(asking(&keys, value, hits));
        let after = look();
        let statuses = overs(&keys, &answer);
        let shown = format!("{value} {step}: {hits} {statuses:?}, {before:?} {after:?}, stop {stops}");
        let is_refused = is_refused(&statuses);
        assert_eq!(answer.overall_code() == Code::OverLimit, is_refused, "{shown}");
        let new = id(&answer);
        for (((key, is_over), before), after) in statuses.iter().zip(&before).zip(&after) {
            let has_room = before.0 + before.1 + if *key == "streams" { hits.min(1) } else { hits } <= LIMIT;
            let is_exempt = *key == "named" && keys.contains(&"replacing");
            let is_exact = *key != "leased" && !key.contains("shadow") && !is_exempt;
            // Of what is leased, a request with 0 hits knows only what the counter has.
            assert!(!is_over || !has_room || *key == "leased", "{key} refuses: {shown}");
            // What only reads does not say whether it would fit.
            let is_read = stops && is_refused && !is_over;
            assert!(!is_exact || *is_over != has_room || is_read, "{key}: {shown}");
            if holds(key) {
                let may_hold = !is_refused && (!is_over || key.contains("shadow"));
                assert!(may_hold || before == after, "{key} holds: {shown}");
                assert!(before.0 == after.0 && (!is_exact || after.0 + after.1 <= LIMIT), "{key}: {shown}");
            } else if is_exempt || stops && is_refused && !is_over && is_exact {
                assert_eq!(before, after, "{key} counts: {shown}");
            } else if is_exact && !is_over {
                assert_eq!(before.0 + hits, after.0, "{key} counts: {shown}");
            }
        }
        ids.extend(new);
        if rng.u8(..3) == 0 && !ids.is_empty() {
            let id = ids.swap_remove(rng.usize(..ids.len()));
            holders[rng.usize(..2)].settle(&id, rng.u64(..2));
        }
    }
}

#[test]
fn a_limit_does_nothing_to_others_unless_it_refuses() {
    let seed = std::env::var("TOLLGATE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    for stops in [false, true] {
        for cache in ["0", "100000"] {
            let redis = Redis::single();
            let setup = setup()
                .redis(&redis.env())
                .env("REDIS_TIMEOUT", "5s")
                .env("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", if stops { "true" } else { "false" })
                .env("LOCAL_CACHE_SIZE_IN_BYTES", cache)
                .rules("d.yaml", RULES);
            let servers = [setup.clone().start_healthy(), setup.start_healthy()];
            for round in 0..3 {
                one_round(&servers, &redis, &format!("r{round}"), stops, &mut rng);
            }
        }
    }
}

const UNANSWERED: &str = "tollgate_holds_ended_total{rule=\"d.budget\",how=\"unanswered\"}";

/// Refused requests that would hold, while others use a small part of the same budget.
#[test]
fn a_request_that_another_limit_refuses_takes_nothing_of_a_budget() {
    let places = Places::start();
    for (place, setup) in places.setups() {
        let server = setup.rules("d.yaml", RULES).env("REDIS_TIMEOUT", "5s").start_healthy();
        let holder = Holder::of(&server);
        assert!(holder.hold_hits("full", "a", 1).is_some(), "{place}");
        let plain = holder.ask(asking(&["plain"], "a", 6));
        assert_eq!(plain.overall_code(), Code::OverLimit, "{place}");
        let quotas = holder.ask(asking(&["quota", "other_quota"], "a", 6));
        assert_eq!(quotas.overall_code(), Code::OverLimit, "{place}");
        let is_over = AtomicBool::new(false);
        thread::scope(|threads| {
            // By another limit, by all quotas, and by a budget, which may be in another slot.
            for other in [&["plain"][..], &["quota", "other_quota"], &["full"]] {
                let (flood, is_over, keys) = (Holder::of(&server), &is_over, [&["budget"], other].concat());
                threads.spawn(move || {
                    while !is_over.load(Relaxed) {
                        let refused = flood.ask(asking(&keys, "a", 40));
                        assert_eq!(refused.overall_code(), Code::OverLimit, "{keys:?}");
                    }
                });
            }
            let held = (0..100).all(|_| {
                let id = holder.hold_hits("budget", "a", 1);
                id.inspect(|id| holder.settle(id, 0)).is_some()
            });
            is_over.store(true, Relaxed);
            assert!(held, "{place}: a budget of 100, of which nobody holds more than 1, refuses 1");
        });
        assert_eq!(server.count(UNANSWERED), 0, "{place}: nothing was held and cancelled");
    }
}

/// Redis refuses the budget, and fails to count the other limit: the replica decides alone, from the request as it was planned.
#[test]
fn the_policy_local_decides_from_the_whole_request() {
    let redis = Redis::single();
    for stops in ["false", "true"] {
        let setup = setup().redis(&redis.env()).rules("d.yaml", RULES).env("STORE_FAILURE_POLICY", "local");
        let server = setup.env("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", stops).start_healthy();
        let holder = Holder::of(&server);
        let all = holder.hold_hits("budget", stops, 100).expect("an unused budget");
        holder.settle(&all, 100);
        assert_eq!(holder.hold_hits("budget", stops, 1), None);
        holder.ask(asking(&["plain"], stops, 1));
        let name = redis.keys().into_iter().find(|name| name.starts_with(&format!("d_plain_{stops}_")));
        let name = name.expect("the counter");
        redis.ask(&["DEL", &name]);
        redis.ask(&["RPUSH", &name, "1"]);
        let ids: Vec<_> = (0..20).map(|_| id(&holder.ask(asking(&["budget", "plain"], stops, 1)))).collect();
        let held = ids.iter().flatten().count();
        assert_eq!(held, 5, "stop {stops}: five fit the limit of this replica, and each holds: {ids:?}");
    }
}
