//! Answers that nobody got, stores that do not answer, and services that end.

use std::{thread, time::Duration};

use proto::envoy::service::ratelimit::v3::rate_limit_response::Code;

use super::{Holder, RULES, id, setup};
use crate::support::{
    client::request,
    clock::{YEAR, window},
    eventually, holds,
    proxy::{Proxy, Way},
    redis::{Cluster, Redis, slot, tcp},
    server::Setup,
};

#[test]
fn a_hold_whose_answer_nobody_got_ends_at_no_cost() {
    let redis = Redis::single();
    let setup = setup().redis(&redis.env()).env("REDIS_TIMEOUT", "300ms");
    let server = setup.start_healthy();
    let holder = Holder::of(&server);
    assert!(holder.hold(&[("budget", "before")]).is_some());
    redis.freeze();
    // The command is on its way, and the caller does not wait for it.
    let asked = request("d", &[&[("budget", "a")]]);
    assert!(server.ask(asked).is_err());
    redis.thaw();
    let ended = || {
        let seen = holder.seen("budget", "a");
        holds(seen == (0, 0), || format!("{seen:?}"))
    };
    // The command and its cancel arrive in any order.
    thread::sleep(Duration::from_millis(500));
    eventually("the late hold is ended", ended);
    assert_eq!(holder.seen("budget", "before"), (0, 40));
    eventually("nothing is queued", || holds(server.count("tollgate_holds_queued") == 0, || "queued"));
}

#[test]
fn a_settle_whose_caller_leaves_is_not_lost_with_its_connection() {
    let redis = Redis::single();
    let proxy = Proxy::to(redis.port);
    let server = setup().redis(&tcp(&proxy.address())).env("REDIS_TIMEOUT", "5s").start_healthy();
    let holder = Holder::of(&server);
    let id = holder.hold(&[("budget", "a")]).unwrap();
    // What is sent from now on never arrives.
    proxy.set(Way::BlackHole);
    let mut settle = request("d", &[&[("hold_settle", &id)]]);
    settle.descriptors[0].hits_addend = Some(7);
    server.ask_and_leave(settle);
    proxy.set(Way::Cut);
    proxy.set(Way::CLEAR);
    eventually("it is settled", || {
        let seen = server.ask(request("d", &[&[("budget", "x")]])).map(|_| holder.seen("budget", "a"));
        holds(seen.as_ref().is_ok_and(|seen| *seen == (7, 0)), || format!("{seen:?}"))
    });
}

#[test]
fn a_request_whose_other_slot_is_silent_holds_nothing() {
    let cluster = Cluster::start(Duration::from_secs(15));
    let owner = |key: &str, value: &str| cluster.owner(slot(&format!("d_{key}_{value}_{}", window(YEAR))));
    let mut values = (0..).map(|value| format!("v{value}"));
    let is_apart = |value: &String| owner("budget", value).port != owner("dollars", value).port;
    let value = &values.find(is_apart).expect("it never ends");
    let lost = ["budget", "dollars"];
    for (policy, lost) in ["allow", "local"].into_iter().flat_map(|policy| lost.map(|lost| (policy, lost))) {
        let setup = setup().redis(&cluster.env()).env("REDIS_TIMEOUT", "300ms");
        let server = setup.env("STORE_FAILURE_POLICY", policy).start_healthy();
        let holder = Holder::of(&server);
        let both = [("budget", &**value), ("dollars", value)];
        let before = holder.hold(&both).expect("both answer");
        let silent = owner(lost, value);
        silent.freeze();
        for _ in 0..2 {
            let answer = holder.ask(request("d", &[&both[..1], &both[1..]]));
            // `local` holds in this process.
            assert_eq!(
                (answer.overall_code(), id(&answer).is_some()),
                (Code::Ok, policy == "local"),
                "{policy}"
            );
        }
        silent.thaw();
        eventually("only the hold that was answered is open", || {
            let probe = server.ask(request("d", &[&[("dollars", "x")]]));
            let seen = probe.map(|_| [holder.seen("budget", value), holder.seen("dollars", value)]);
            holds(seen.as_ref().is_ok_and(|seen| *seen == [(0, 40), (0, 300)]), || format!("{seen:?}"))
        });
        holder.end(&before);
        eventually("it is ended", || {
            let seen = [holder.seen("budget", value), holder.seen("dollars", value)].map(|(_, held)| held);
            holds(seen == [0, 0], || format!("{seen:?}"))
        });
        for redis in &cluster.servers {
            drop(redis.try_ask(&["FLUSHALL"]));
        }
    }
}

#[test]
fn a_caller_that_resets_its_request_holds_nothing() {
    let redis = Redis::single();
    let proxy = Proxy::to(redis.port);
    let server = setup().redis(&tcp(&proxy.address())).start_healthy();
    let holder = Holder::of(&server);
    assert!(holder.hold(&[("budget", "before")]).is_some());
    proxy.set(Way::Open(Duration::from_millis(200)));
    server.ask_and_leave(request("d", &[&[("budget", "a")]]));
    proxy.set(Way::CLEAR);
    // The command and its cancel arrive in any order.
    thread::sleep(Duration::from_millis(500));
    eventually("nothing is held", || {
        let seen = holder.seen("budget", "a");
        holds(seen == (0, 0), || format!("{seen:?}"))
    });
    assert_eq!(holder.seen("budget", "before"), (0, 40));
}

#[test]
fn settles_wait_for_a_lost_store_and_are_repeated() {
    let mut redis = Redis::single();
    let server = setup().redis(&redis.env()).env("REDIS_TIMEOUT", "300ms").start_healthy();
    let holder = Holder::of(&server);
    let id = holder.hold(&[("budget", "a")]).unwrap();
    redis.freeze();
    holder.settle(&id, 12);
    assert_eq!(server.count("tollgate_holds_queued"), 1);
    redis.thaw();
    eventually("it is settled", || {
        let seen = holder.0.ask(request("d", &[&[("budget", "x")]]));
        let seen = seen.map(|_| holder.seen("budget", "a"));
        holds(seen.as_ref().is_ok_and(|seen| *seen == (12, 0)), || format!("{seen:?}"))
    });
    redis.kill();
}

#[test]
fn settles_whose_replies_come_late_are_counted_once() {
    let redis = Redis::single();
    let proxy = Proxy::to(redis.port);
    let setup = setup().redis(&tcp(&proxy.address())).env("REDIS_TIMEOUT", "50ms");
    let server = setup.start_healthy();
    let holder = Holder::of(&server);
    let values: Vec<String> = (0..10).map(|number| number.to_string()).collect();
    let held = |value: &String| holder.hold_hits("budget", value, 40).expect(value);
    let ids: Vec<String> = values.iter().map(held).collect();
    // Each way takes longer than the timeout: all are executed, and repeated before anybody hears of it.
    proxy.set(Way::Open(Duration::from_millis(100)));
    let entries: Vec<[(&str, &str); 1]> = ids.iter().map(|id| [("hold_settle", &**id)]).collect();
    let entries: Vec<&[(&str, &str)]> = entries.iter().map(|entry| &entry[..]).collect();
    let mut settles = request("d", &entries);
    settles.descriptors.iter_mut().for_each(|settle| settle.hits_addend = Some(45));
    holder.ask(settles);
    proxy.set(Way::CLEAR);
    eventually("nothing is queued", || {
        // A probe closes the breaker.
        let queued = server.count("tollgate_holds_queued");
        holds(queued == 0, || format!("{queued} are queued"))
    });
    eventually("each counts once", || {
        let settled = server.count("tollgate_holds_settled_total{rule=\"d.budget\"}");
        let [overspent, unknown] = ["overspent_hits", "unknown_ids"]
            .map(|name| server.count(&format!("tollgate_holds_{name}_total")));
        let seen = (settled, overspent, unknown);
        holds(seen == (10, 50, 0), || format!("{seen:?}"))
    });
    for value in &values {
        assert_eq!(holder.seen("budget", value), (45, 0));
    }
    holder.settle(&ids[0], 45);
    assert_eq!(server.count("tollgate_holds_unknown_ids_total"), 1, "a second settle finds nothing");
}

#[test]
fn what_is_queued_is_sent_at_sigterm() {
    let redis = Redis::single();
    let mut server = setup().redis(&redis.env()).env("REDIS_TIMEOUT", "300ms").start_healthy();
    let holder = Holder::of(&server);
    let id = holder.hold(&[("budget", "a")]).unwrap();
    redis.freeze();
    holder.settle(&id, 12);
    drop(holder);
    server.process.signal("TERM");
    thread::sleep(Duration::from_millis(500));
    redis.thaw();
    assert!(server.process.wait(Duration::from_secs(30)).is_some_and(|status| status.success()));
    let counter = redis.keys().into_iter().find(|key| key.starts_with("d_budget_a_")).unwrap();
    assert_eq!(redis.counter(&counter), 12);
}

#[test]
fn a_new_replica_charges_expired_holds_of_those_before_it() {
    let (redis, cluster) = (Redis::single(), Cluster::start(Duration::from_secs(5)));
    let rules = "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: year, requests_per_unit: 100, \
                 hold: {amount: 40, ttl: 3s}}\n";
    for (place, env) in [("redis", redis.env()), ("cluster", cluster.env())] {
        let setup = Setup::new().rules("d.yaml", rules).redis(&env);
        let before = setup.clone().start_healthy();
        let holder = Holder::of(&before);
        // Those of a cluster are in many slots, of which a replica looks into the first ones soon.
        for value in 0..200 {
            assert!(holder.hold(&[("k", &value.to_string())]).is_some());
        }
        drop((holder, before));
        let server = setup.start_healthy();
        let expired = "tollgate_holds_ended_total{rule=\"d.k\",how=\"expired\"}";
        eventually("it charges them", || {
            holds(server.count(expired) >= 5, || format!("{place}: {}", server.count(expired)))
        });
    }
}

#[test]
fn the_policy_local_holds_in_the_replica() {
    let mut redis = Redis::single();
    let setup = setup().redis(&redis.env()).env("STORE_FAILURE_POLICY", "local");
    let server = setup.env("REDIS_TIMEOUT", "300ms").start_healthy();
    let holder = Holder::of(&server);
    redis.kill();
    let id = eventually("the replica holds", || {
        holder.hold(&[("budget", "a")]).ok_or_else(|| server.process.log().to_string())
    });
    eventually("it knows", || {
        let seen = holder.seen("budget", "a");
        holds(seen.1 >= 40 && seen.0 == 0, || format!("{seen:?}"))
    });
    let before = holder.seen("budget", "a").1;
    holder.settle(&id, 9);
    assert_eq!(holder.seen("budget", "a"), (9, before - 40));
}

#[test]
fn holds_and_the_queue_are_bounded() {
    let redis = Redis::single();
    for setup in [Setup::new(), Setup::new().redis(&redis.env())] {
        let bounds = [("HOLDS_MAX", "5"), ("HOLDS_MAX_PER_COUNTER", "3"), ("HOLDS_MAX_QUEUED", "2")];
        let setup = bounds.iter().fold(setup, |setup, (name, value)| setup.env(name, value));
        let server = setup.rules("d.yaml", RULES).env("REDIS_TIMEOUT", "300ms").start_healthy();
        let holder = Holder::of(&server);
        let held = |value: &str, times: usize| -> Vec<String> {
            (0..times).filter_map(|_| holder.hold_hits("dollars", value, 1)).collect()
        };
        let ids = held("a", 4);
        assert_eq!((ids.len(), held("b", 4).len()), (3, 2));
        assert!(server.count("tollgate_holds_refused_total{bound=\"holds\"}") >= 3);
        for id in &ids {
            holder.settle(id, 1);
        }
        assert_eq!(held("c", 9).len(), 3);
    }
    let server = setup().redis(&redis.env()).env("HOLDS_MAX_QUEUED", "2").env("REDIS_TIMEOUT", "200ms");
    let server = server.start_healthy();
    let holder = Holder::of(&server);
    let ids: Vec<String> = (0..4).filter_map(|_| holder.hold_hits("dollars", "q", 1)).collect();
    redis.freeze();
    for id in &ids {
        holder.settle(id, 1);
    }
    assert_eq!(server.count("tollgate_holds_queued"), 2);
    assert!(server.count("tollgate_holds_refused_total{bound=\"queue\"}") >= 2);
    redis.thaw();
}
