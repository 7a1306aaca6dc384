//! Redis fails over, moves slots or loses its data while holds are open: what is lost is what docs/reference/holds.md says.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use super::{Holder, id, setup};
use crate::support::{
    client::{descriptor, request},
    eventually, holds,
    redis::{Cluster, Redis, Sentinels, slot},
};

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

#[test]
fn holds_that_redis_lost_charge_nothing_and_keep_nothing() {
    let mut redis = Redis::single();
    let server = setup().redis(&redis.env()).env("REDIS_TIMEOUT", "300ms").start_healthy();
    let holder = Holder::of(&server);
    let ids = [0, 1].map(|_| holder.hold(&[("budget", "a"), ("streams", "a")]).expect("both fit"));
    redis.kill();
    holder.settle(&ids[0], 12);
    assert_eq!(server.count("tollgate_holds_queued"), 1);
    redis.start();
    eventually("the queue is empty", || holds(server.count("tollgate_holds_queued") == 0, || "queued"));
    eventually_seen(&holder, "a", (0, 0));
    holder.settle(&ids[1], 12);
    holder.end(&ids[1]);
    assert_eq!(holder.seen("budget", "a"), (0, 0));
    assert_eq!(server.count("tollgate_holds_unknown_ids_total"), 2);
    let id = holder.hold(&[("budget", "a"), ("streams", "a")]).expect("nothing is held");
    holder.settle(&id, 7);
    assert_eq!((holder.seen("budget", "a"), holder.seen("streams", "a")), ((7, 0), (0, 0)));
    eventually("nothing is open", || holds(server.count("tollgate_holds") == 0, || "open"));
}

const USERS: [&str; 6] = ["0", "1", "2", "3", "4", "5"];

const TWO: &str = "
domain: d
descriptors:
  - key: one
    rate_limit: {unit: year, requests_per_unit: 1000000000, hold: {amount: 40, ttl: 10m, unknown: zero}}
  - key: two
    rate_limit: {unit: year, requests_per_unit: 1000000000, hold: {amount: 40, ttl: 10m, unknown: zero}}
";

/// Holds for a user in two slots and settles, until the end. Counts what it settled, and the requests.
fn call(holder: &Holder, user: &str, until: &AtomicBool, settled: &AtomicU64, held: &AtomicU64) {
    while !until.load(Relaxed) {
        let answer = holder.0.ask(request("d", &[&[("one", user)], &[("two", user)]]));
        if let Some(id) = answer.ok().as_ref().and_then(id) {
            held.fetch_add(1, Relaxed);
            let mut settle = descriptor(&[("hold_settle", &id)]);
            settle.hits_addend = Some(3);
            let mut asked = request("d", &[]);
            asked.descriptors.push(settle);
            if holder.0.ask(asked).is_ok() {
                settled.fetch_add(3, Relaxed);
            }
        }
    }
}

#[test]
fn holds_of_moving_slots_are_all_or_nothing_and_each_is_charged_once() {
    // Long enough that neither a failover nor a timeout occurs.
    let patience = Duration::from_secs(15);
    let cluster = Cluster::start(patience);
    let shown = setup().redis(&cluster.env()).rules("d.yaml", TWO);
    let server = shown.env("REDIS_TIMEOUT", "5s").start_healthy();
    let (until, held) = (AtomicBool::new(false), AtomicU64::new(0));
    let settled: Vec<AtomicU64> = USERS.iter().map(|_| AtomicU64::new(0)).collect();
    let mut moves = 0;
    thread::scope(|threads| {
        for (user, settled) in USERS.iter().zip(&settled) {
            let (holder, until, held) = (Holder::of(&server), &until, &held);
            threads.spawn(move || call(&holder, user, until, settled, held));
        }
        let counters = eventually("all users hold", || {
            let counters = cluster.keys().into_iter().filter(|key| key.starts_with("d_"));
            let counters: Vec<String> = counters.collect();
            holds(counters.len() == 2 * USERS.len(), || format!("{counters:?}")).map(|()| counters)
        });
        for counter in counters {
            let slot = slot(&counter);
            let from = cluster.owner(slot).port;
            let at = cluster.servers[..3].iter().position(|master| master.port == from);
            let at = at.expect("it is one of the first three");
            cluster.move_slot(slot, &cluster.servers[(at + 1) % 3]);
            moves += 1;
            thread::sleep(Duration::from_millis(30));
        }
        until.store(true, Relaxed);
    });
    let holder = Holder::of(&server);
    let queued =
        || holds(server.count("tollgate_holds_queued") == 0, || server.count("tollgate_holds_queued"));
    eventually("the queue is empty", queued);
    for (user, settled) in USERS.iter().zip(&settled) {
        let expected = (settled.load(Relaxed), 0);
        for limit in ["one", "two"] {
            eventually("each hold is charged once", || {
                let seen = holder.seen(limit, user);
                holds(seen == expected, || format!("{limit} {user}: {seen:?}, not {expected:?}"))
            });
        }
    }
    assert!(held.load(Relaxed) > 100 && moves == 12, "{held:?} {moves}");
}

#[test]
fn a_flood_of_settles_to_a_stopped_redis_is_bounded_and_charged_once() {
    let redis = Redis::single();
    let bounded = setup().redis(&redis.env()).env("HOLDS_MAX_QUEUED", "100").env("REDIS_TIMEOUT", "100ms");
    let server = bounded.start_healthy();
    let holder = Holder::of(&server);
    let values: Vec<String> = (0..150).map(|number| number.to_string()).collect();
    let ids: Vec<String> =
        values.iter().map(|value| holder.hold_hits("dollars", value, 1).expect(value)).collect();
    redis.freeze();
    for id in &ids {
        holder.settle(id, 3);
    }
    assert_eq!(server.count("tollgate_holds_queued"), 100);
    assert_eq!(server.count("tollgate_holds_refused_total{bound=\"queue\"}"), 50);
    redis.thaw();
    eventually("the queue is empty", || holds(server.count("tollgate_holds_queued") == 0, || "queued"));
    let seen: Vec<(u64, u64)> = values.iter().map(|value| holder.seen("dollars", value)).collect();
    // A settle that was refused may have reached Redis before.
    assert!(seen.iter().all(|seen| [(3, 0), (0, 1)].contains(seen)), "{seen:?}");
    assert!(seen.iter().filter(|seen| **seen == (3, 0)).count() >= 100, "{seen:?}");
}

#[test]
fn a_clock_that_jumps_expires_holds_and_breaks_none() {
    use crate::support::clock::Clock;
    let clock = Clock::at("2026-06-01T12:00:00Z").steerable();
    let _clock = clock.enter();
    let redis = Redis::single();
    for setup in [setup(), setup().redis(&redis.env())] {
        let server = setup.start_healthy();
        let holder = Holder::of(&server);
        let place = format!("{:?}", server.count("tollgate_holds"));
        let ids = ["late", "now"].map(|value| holder.hold(&[("budget", value)]).expect(value));
        // Forward, by more than the time to live and less than two.
        clock.step(900.0);
        eventually("what expired is charged", || {
            let seen = holder.seen("budget", "late");
            holds(seen == (40, 0), || format!("{seen:?}"))
        });
        holder.settle(&ids[0], 12);
        assert_eq!(holder.seen("budget", "late"), (12, 0), "{place}: a late settle");
        eventually_seen(&holder, "now", (40, 0));
        clock.step(3600.0);
        holder.settle(&ids[1], 12);
        assert_eq!(holder.seen("budget", "now"), (40, 0), "{place}: forgotten");
        // Back: what is held is settled, and lasts no longer.
        let early = holder.hold(&[("budget", "early")]).expect("it fits");
        clock.step(-3600.0);
        holder.settle(&early, 5);
        let again = holder.hold(&[("budget", "early")]).expect("it fits");
        assert_eq!(holder.seen("budget", "early"), (5, 40), "{place}");
        clock.step(620.0);
        eventually_seen(&holder, "early", (45, 0));
        clock.step(3600.0);
        holder.settle(&again, 12);
        assert_eq!(holder.seen("budget", "early"), (45, 0), "{place}: forgotten");
        eventually("nothing is open", || holds(server.count("tollgate_holds") == 0, || "open"));
    }
}
