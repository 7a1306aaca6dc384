//! Stores that do not answer, and their bounds. What is lost on the way, with whichever process, is the simulator's:
//! docs/dev/simulation.md.

use super::{Holder, RULES, setup};
use support::{
    client::{hold_id, request},
    eventually, holds,
    redis::{Redis, Sentinels},
    server::Setup,
};

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

/// Redis refuses the budget, and fails to count the other limit: the replica decides alone, from the request as it was planned.
#[test]
fn the_policy_local_decides_from_the_whole_request() {
    let redis = Redis::single();
    for stops in ["false", "true"] {
        let setup = setup().redis(&redis.env()).env("STORE_FAILURE_POLICY", "local");
        let server = setup.env("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", stops).start_healthy();
        let holder = Holder::of(&server);
        let all = holder.hold_hits("budget", stops, 100).expect("an unused budget");
        holder.settle(&all, 100);
        assert_eq!(holder.hold_hits("budget", stops, 1), None);
        holder.ask(request("d", &[&[("plain", stops)]]));
        let name = redis.keys().into_iter().find(|name| name.starts_with(&format!("d_plain_{stops}_")));
        let name = name.expect("the counter");
        redis.ask(&["DEL", &name]);
        redis.ask(&["RPUSH", &name, "1"]);
        let mut both = request("d", &[&[("budget", stops)], &[("plain", stops)]]);
        both.descriptors.iter_mut().for_each(|descriptor| descriptor.hits_addend = Some(1));
        let ids: Vec<_> = (0..20).map(|_| hold_id(&holder.ask(both.clone()))).collect();
        let held = ids.iter().flatten().count();
        assert_eq!(held, 3, "stop {stops}: three fit the limit of this replica, and each holds: {ids:?}");
    }
}

/// What is spent and held, once the store answers.
fn eventually_seen(holder: &Holder, value: &str, expected: (u64, u64)) {
    eventually("what is spent and held", || {
        let answer = holder.0.ask(request("d", &[&[("plain", "probe")]]));
        let seen = answer.map(|_| holder.seen("budget", value)).map_err(|status| status.to_string())?;
        holds(seen == expected, || format!("{seen:?}, not {expected:?}"))
    });
}

#[test]
fn open_holds_survive_a_failover_under_sentinels() {
    let mut sentinels = Sentinels::start();
    let server = setup().redis(&sentinels.env()).env("REDIS_TIMEOUT", "300ms").start_healthy();
    let holder = Holder::of(&server);
    let [one, other] = ["a", "b"].map(|value| holder.hold(&[("budget", value)]).expect(value));
    eventually("the replica has the holds", || {
        let due = sentinels.servers[1].keys().into_iter().find(|key| key.ends_with("due"));
        let due = due.ok_or("no key")?;
        let open = sentinels.servers[1].ask(&["ZCARD", &due]).to_string();
        holds(open == "2", || open)
    });
    // The master no longer answers: the settle waits for the next one.
    sentinels.master().freeze();
    holder.settle(&one, 12);
    assert_eq!(server.count("tollgate_holds_queued"), 1);
    sentinels.fail_over();
    eventually_seen(&holder, "a", (12, 0));
    eventually_seen(&holder, "b", (0, 40));
    holder.end(&other);
    eventually_seen(&holder, "b", (40, 0));
    assert!(holder.hold(&[("budget", "c")]).is_some());
    eventually("the queue is empty", || holds(server.count("tollgate_holds_queued") == 0, || "queued"));
}
