//! What has expired refuses nobody and is charged before what comes after it, whatever clocks say.

use std::time::{Duration, Instant};

use proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use serde_json::json;

use super::{Holder, id, retry_after};
use crate::support::{
    PATIENCE,
    client::request,
    clock::Clock,
    eventually, holds, http,
    ports::free_port,
    redis::{Cluster, Redis, slot},
    server::Setup,
};

const RULES: &str = "
domain: d
descriptors:
  - key: many
    rate_limit: {unit: year, requests_per_unit: 1000, hold: {amount: 1, ttl: 30s, unknown: zero}}
  - key: charged
    rate_limit: {unit: year, requests_per_unit: 100, hold: {amount: 40, ttl: 30s}}
  - key: brief
    rate_limit: {unit: year, requests_per_unit: 100, hold: {amount: 100, ttl: 2s, unknown: zero}}
  - key: long
    rate_limit: {unit: year, requests_per_unit: 1000, hold: {amount: 40, ttl: 1h}}
  - key: streams
    rate_limit: {algorithm: concurrency, requests_per_unit: 30, hold: {ttl: 30s}}
  - key: brief_streams
    rate_limit: {algorithm: concurrency, requests_per_unit: 1, hold: {ttl: 2s}}
  - key: plain
    rate_limit: {unit: year, requests_per_unit: 1000000}
";

fn setup() -> Setup {
    super::setup().rules("d.yaml", RULES).env("LIMIT_RETRY_AFTER_HEADER", "retry-after")
}

/// A time that tests move, for the services and the servers that they start.
fn clock() -> Clock {
    Clock::at("2026-06-01T12:05:00Z").steerable()
}

/// In memory and in Redis. Nodes of a cluster lose each other when the clock moves.
fn everywhere(test: impl Fn(&str, &Holder)) {
    let redis = Redis::single();
    for (place, setup) in [("memory", setup()), ("redis", setup().redis(&redis.env()))] {
        let server = setup.start_healthy();
        test(place, &Holder::of(&server));
    }
}

#[test]
fn nobody_is_refused_for_what_has_expired_and_for_what_others_hold() {
    let clock = clock();
    let _clock = clock.enter();
    everywhere(|place, holder| {
        for _ in 0..500 {
            holder.hold_hits("many", "x", 2).expect(place);
        }
        for _ in 0..30 {
            holder.hold(&[("streams", "y")]).expect(place);
        }
        holder.hold_hits("many", "y", 1000).expect(place);
        for (key, value) in [("many", "x"), ("many", "y"), ("streams", "y")] {
            let refused = holder.ask(request("d", &[&[(key, value)]]));
            assert_eq!(refused.overall_code(), Code::OverLimit, "{place}");
            let wait = retry_after(&refused);
            assert!(wait.is_some_and(|wait| (1..=30).contains(&wait)), "{place} {key}: {wait:?}");
        }
        clock.step(31.0);
        // All have expired at once, and each first try finds its room.
        assert!(holder.hold(&[("streams", "y")]).is_some(), "{place}: a place");
        assert!(holder.hold_hits("many", "y", 1000).is_some(), "{place}: another tenant's");
        assert!(holder.hold_hits("many", "x", 1000).is_some(), "{place}: its own");
    });
}

#[test]
fn a_full_store_says_when_it_has_room() {
    let clock = clock();
    let _clock = clock.enter();
    let redis = Redis::single();
    for setup in [setup(), setup().redis(&redis.env())] {
        let server = setup.env("HOLDS_MAX", "20").start_healthy();
        let holder = Holder::of(&server);
        for number in 0..20 {
            assert!(holder.hold(&[("charged", &number.to_string())]).is_some());
        }
        let refused = holder.ask(request("d", &[&[("long", "other")]]));
        assert_eq!(refused.overall_code(), Code::OverLimit);
        assert!(retry_after(&refused).is_some_and(|wait| (1..=30).contains(&wait)), "{refused:?}");
        clock.step(31.0);
        assert!(holder.hold(&[("long", "other")]).is_some(), "what has expired makes room");
    }
}

#[test]
fn refusals_know_when_by_the_clock_of_redis() {
    let redis = {
        let _clock = Clock::at("2026-06-01T12:05:00Z").enter();
        Redis::single()
    };
    for hour in ["11", "12", "13"] {
        let _clock = Clock::at(&format!("2026-06-01T{hour}:05:00Z")).enter();
        let server = setup().redis(&redis.env()).start_healthy();
        let holder = Holder::of(&server);
        for _ in 0..30 {
            holder.hold(&[("streams", hour)]).expect("a place is free");
        }
        assert!(holder.hold_hits("many", hour, 1000).is_some());
        for key in ["streams", "many"] {
            let wait = retry_after(&holder.ask(request("d", &[&[(key, hour)]])));
            assert!(wait.is_some_and(|wait| (1..=30).contains(&wait)), "{hour} {key}: {wait:?}");
        }
    }
}

#[test]
fn a_clock_that_is_set_back_makes_no_hold_last_longer() {
    let clock = clock();
    let _clock = clock.enter();
    everywhere(|place, holder| {
        let _ids = ["brief", "brief_streams"].map(|key| holder.hold(&[(key, "a")]).expect(place));
        clock.step(-3600.0);
        let since = Instant::now();
        for key in ["brief", "brief_streams"] {
            let refused = holder.ask(request("d", &[&[(key, "a")]]));
            let is_too_late = since.elapsed() > Duration::from_secs(1);
            let wait = retry_after(&refused);
            assert!(
                is_too_late || wait.is_some_and(|wait| (1..=2).contains(&wait)),
                "{place} {key}: {wait:?}"
            );
            eventually("its room is free", || {
                holds(holder.hold(&[(key, "a")]).is_some(), || format!("{place} {key}"))
            });
        }
        assert!(since.elapsed() < PATIENCE, "{place}");
    });
}

#[test]
fn a_short_hold_does_not_shorten_the_memory_of_a_long_one() {
    let redis = Redis::single();
    let server = setup().redis(&redis.env()).start_healthy();
    let holder = Holder::of(&server);
    let long = holder.hold(&[("long", "a")]).unwrap();
    holder.end(&long);
    eventually("nothing is open", || holds(server.count("tollgate_holds") == 0, || "open"));
    let left = |name: &str| {
        let key = redis.keys().into_iter().find(|key| key.ends_with(name)).expect("it is there");
        redis.ask(&["TTL", &key]).number()
    };
    let before = left("holds");
    let brief = holder.hold(&[("brief", "a")]).unwrap();
    holder.end(&brief);
    assert!(left("holds") + 60 > before && before > 3600, "{} after {before}", left("holds"));
    assert!(left("ended") > 3000);
}

#[test]
fn resets_and_refunds_come_after_what_has_expired_before_them() {
    let clock = clock();
    let _clock = clock.enter();
    let redis = Redis::single();
    for setup in [setup(), setup().redis(&redis.env())] {
        let port = free_port();
        let server = setup.env("ADMIN_ADDR", &format!("127.0.0.1:{port}")).start_healthy();
        let holder = Holder::of(&server);
        for value in ["reset", "refund"] {
            assert!(holder.hold(&[("charged", value)]).is_some());
        }
        clock.step(31.0);
        let body = json!({"domain": "d", "descriptor": "charged=reset"}).to_string();
        assert_eq!(http::post(port, "/api/v1/counters/reset", &body).status, 200);
        let mut refund = request("d", &[&[("charged", "refund")]]);
        (refund.descriptors[0].hits_addend, refund.descriptors[0].is_negative_hits) = (Some(30), true);
        assert_eq!(holder.ask(refund).statuses[0].limit_remaining, 90);
        assert_eq!(holder.seen("charged", "refund"), (10, 0));
        assert_eq!(holder.seen("charged", "reset"), (0, 0));
    }
}

#[test]
fn streams_have_no_cost() {
    super::life::everywhere(|place, holder, server| {
        let id = holder.hold(&[("streams", "a"), ("budget", "a")]).expect(place);
        holder.settle(&id, 25);
        let ended = holder.hold(&[("streams", "a")]).expect(place);
        holder.end(&ended);
        holder.settle(&ended, 500);
        assert_eq!(server.count("tollgate_holds_overspent_hits_total"), 0, "{place}");
        assert_eq!((holder.seen("budget", "a"), holder.seen("streams", "a")), ((25, 0), (0, 0)), "{place}");
    });
}

#[test]
fn the_answer_to_a_refund_is_the_counter() {
    let redis = Redis::single();
    let server = setup().redis(&redis.env()).start_healthy();
    let holder = Holder::of(&server);
    let ask = |hits: u64, is_refund: bool| {
        let mut asked = request("d", &[&[("plain", "a")]]);
        (asked.descriptors[0].hits_addend, asked.descriptors[0].is_negative_hits) = (Some(hits), is_refund);
        u64::from(holder.ask(asked).statuses[0].limit_remaining)
    };
    let counter = || {
        let key = redis.keys().into_iter().find(|key| key.starts_with("d_plain_a")).expect("it is there");
        u64::try_from(redis.counter(&key)).unwrap()
    };
    for refund in [1, 10, 1 << 40, (1 << 53) - 5, 1 << 53, (1 << 53) + 1, 1 << 60, u64::MAX] {
        for _ in 0..3 {
            ask(1 << 53, false);
        }
        assert!(counter() >= 3 << 53);
        let remaining = ask(refund, true);
        assert_eq!(remaining, 1_000_000_u64.saturating_sub(counter()), "{refund}");
        ask(u64::MAX, true);
        assert_eq!((counter(), ask(0, false)), (0, 1_000_000), "{refund}");
    }
}

#[test]
fn a_lost_server_delays_only_the_closings_of_its_own_keys() {
    let cluster = Cluster::start(Duration::from_secs(120));
    let server = setup().redis(&cluster.env()).env("REDIS_TIMEOUT", "200ms").start_healthy();
    let holder = Holder::of(&server);
    let lost = &cluster.servers[0];
    let hold = |value: String| {
        let held = holder.hold(&[("charged", &value)]).expect("an unused budget");
        (value, held)
    };
    hold("first".to_owned());
    let counter = cluster.keys().into_iter().find(|key| key.starts_with("d_charged_"));
    let (_, start) = counter.as_deref().and_then(|key| key.rsplit_once('_')).expect("a counter");
    // A third of the slots.
    assert!([0, 5460].iter().all(|slot| cluster.owner(*slot).port == lost.port));
    let is_lost = |value: &str| slot(&format!("d_charged_{value}_{start}")) <= 5460;
    let (of_lost, of_others): (Vec<_>, Vec<_>) =
        (0..2100).map(|number| number.to_string()).partition(|value| is_lost(value));
    assert!(of_lost.len() > 560, "{}", of_lost.len());
    let of_lost: Vec<_> = of_lost.into_iter().take(560).map(hold).collect();
    let of_others: Vec<_> = of_others.into_iter().take(10).map(hold).collect();
    // A request that holds at a server that is lost and at another one.
    let ((beside, _), (own, _)) = (&of_others[0], &of_lost[0]);
    let both =
        id(&holder.ask(request("d", &[&[("charged", beside)], &[("charged", own)]]))).expect("both fit");
    lost.freeze();
    for (_, held) in &of_lost[1..] {
        holder.close(&[("hold_settle", held)], Some(7));
    }
    assert!(server.count("tollgate_holds_queued") > 550);
    holder.close(&[("hold_settle", &both), ("hold_in", "")], Some(7));
    holder.close(&[("hold_end", &both)], None);
    // Nobody gets the answer, so what the other server holds is cancelled.
    assert!(holder.0.ask(request("d", &[&[("charged", &of_others[1].0)], &[("charged", own)]])).is_err());
    for (value, held) in &of_others[2..10] {
        holder.settle(held, 7);
        assert_eq!(holder.seen("charged", value), (7, 0));
    }
    eventually("the other server's are closed", || {
        let seen = [&of_others[0], &of_others[1]].map(|(value, _)| holder.seen("charged", value));
        holds(seen == [(7, 40), (0, 40)], || format!("{seen:?}"))
    });
    assert!(server.count("tollgate_holds_queued") > 550, "the lost server's wait");
    lost.thaw();
    eventually("the queue is empty", || holds(server.count("tollgate_holds_queued") == 0, || "queued"));
    for (value, _) in &of_lost[1..] {
        assert_eq!(holder.seen("charged", value), (7, 0));
    }
}
