//! The scripts of holds against the ledger, on a real Redis with a simulated clock.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fastrand::Rng;

use super::server::Redis;
use crate::{
    pipeline::{CloseCall, HoldCall, HoldPart, Holding, ToClose},
    resp::Reply,
    script::{Form, LEASE},
};
use clock::Time;
use counters::{Close, Closed, Held, Hold, MostHolds};
use limit::{
    Fit, HoldRule, Refusal,
    holds::{Bounds, Charge, HoldId as LedgerId, How, Ledger, Part, Unknown},
};

const LIMIT: u64 = 100;
const BASE: &str = "{tag}";

/// The last counter has no value: requests under way.
const COUNTERS: [&str; 4] = ["a", "b", "c", ""];

/// A sweep of a script takes as many, so that both know the same.
const MOST: MostHolds = MostHolds { of_counter: 10, in_all: 1000, bytes: 0 };

type Spent = BTreeMap<usize, u64>;
type Of = Arc<HoldRule>;

fn apply(spent: &mut Spent, charge: &Charge<usize, Of>) {
    let before = spent.entry(charge.counter).or_default();
    if !COUNTERS[charge.counter].is_empty() {
        *before = *before + charge.after - charge.before;
    }
}

/// Holds, as often as it takes to sweep what has expired.
fn hold(redis: &mut Redis, id: &str, parts: &[Part<usize, Of>], now: Time) -> (Vec<Held>, Vec<Closed>) {
    hold_within(redis, id, parts, now, MOST)
}

fn hold_of(
    redis: &mut Redis,
    id: &str,
    part: &Part<usize, Of>,
    now: Time,
    most: MostHolds,
) -> (Vec<Held>, Vec<Closed>) {
    hold_within(redis, id, std::slice::from_ref(part), now, most)
}

fn hold_within(
    redis: &mut Redis,
    id: &str,
    parts: &[Part<usize, Of>],
    now: Time,
    most: MostHolds,
) -> (Vec<Held>, Vec<Closed>) {
    let mut all = Vec::new();
    loop {
        let (Holding { held, is_swept }, expired) = hold_call(redis, id, parts, now, most);
        all.extend(expired);
        if is_swept {
            return (held, all);
        }
    }
}

fn hold_call(
    redis: &mut Redis,
    id: &str,
    parts: &[Part<usize, Of>],
    now: Time,
    most: MostHolds,
) -> (Holding, Vec<Closed>) {
    let mut call = HoldCall::new(BASE.to_owned(), id, most, None);
    let nothing = Refusal::default();
    let codes = nothing.codes(parts.iter().map(|part| part.fit));
    for (part, code) in parts.iter().zip(codes) {
        let rule_id = part.counter as u64 + (1 << 52);
        let hold = Hold { rule: part.of.clone(), rule_id, estimate: part.estimate, found: None };
        let name = Some(COUNTERS[part.counter]).filter(|name| !name.is_empty());
        call.push(&HoldPart {
            counter: name.map(|name| (name, 3600)),
            set: &format!("{BASE}holds:{}", part.counter),
            limit: part.limit,
            hold: &hold,
            code,
        });
    }
    let mut command = Vec::new();
    call.write(&mut command, Form::Hash);
    call.read(redis.call(&command, now)).unwrap()
}

fn close(redis: &mut Redis, id: &str, close: Close, currency: Option<&str>, now: Time) -> Vec<Closed> {
    let call = CloseCall::new(
        BASE.to_owned(),
        MOST,
        ToClose::Request { id: id.to_owned(), close, currency: currency.map(Box::from) },
        None,
    );
    let mut command = Vec::new();
    call.write(&mut command, Form::Hash);
    call.read(redis.call(&command, now)).unwrap().1
}

fn sweep(redis: &mut Redis, now: Time) -> Vec<Closed> {
    let call = CloseCall::new(BASE.to_owned(), MOST, ToClose::Expired, None);
    let mut command = Vec::new();
    call.write(&mut command, Form::Hash);
    call.read(redis.call(&command, now)).unwrap().1
}

fn part(rng: &mut Rng) -> Part<usize, Of> {
    let unknown = if rng.bool() { Unknown::Held } else { Unknown::Hits(rng.u64(..60)) };
    let ttl = Duration::from_secs(rng.u64(20..60));
    let currency = if rng.bool() { "tokens" } else { "dollars" }.into();
    let counter = rng.usize(..COUNTERS.len());
    Part {
        counter,
        is_charged: !COUNTERS[counter].is_empty(),
        of: Arc::new(HoldRule { amount: 1, most: None, ttl, unknown, currency }),
        limit: LIMIT,
        estimate: (rng.u8(..10) > 0).then(|| rng.u64(..150)),
        fit: [Fit::Must, Fit::Must, Fit::May(rng.u16(..2)), Fit::Always][rng.usize(..4)],
        unknown,
        ttl,
        end: Time::from_seconds(3_000_000_000),
    }
}

fn fitting(seen: &[Held]) -> Vec<bool> {
    seen.iter().map(|held| held.fits).collect()
}

fn close_both(
    redis: &mut Redis,
    ledger: &mut Ledger<usize, Of>,
    (step, id): (u64, &str),
    rng: &mut Rng,
    now: Time,
) -> (Vec<Closed>, Vec<Charge<usize, Of>>) {
    let known = LedgerId(step.into());
    match rng.u8(..6) {
        0 => (close(redis, id, Close::End, None, now), ledger.end(known, |_| true, now)),
        1 => (close(redis, id, Close::Cancel, None, now), ledger.cancel(known, now)),
        _ => {
            let (cost, currency) = (rng.u64(..150), [None, Some("tokens"), Some("dollars")][rng.usize(..3)]);
            let is_meant = |of: &Of| currency.is_none_or(|currency| &*of.currency == currency);
            (close(redis, id, Close::Settle(cost), currency, now), ledger.settle(known, is_meant, cost, now))
        }
    }
}

/// What both say of a hold that was closed: its counter, how, what was held, and what was charged before and after.
type Ending = (u64, u8, u64, u64, u64);

fn of_script(closed: &Closed) -> Ending {
    (closed.rule_id - (1 << 52), closed.how as u8, closed.held, closed.before, closed.after)
}

fn of_ledger(charge: &Charge<usize, Of>) -> Ending {
    (charge.counter as u64, charge.how as u8, charge.held, charge.before, charge.after)
}

#[test]
fn the_scripts_hold_and_settle_as_the_ledger_does() {
    let mut redis = Redis::start();
    for seed in 0..60 {
        redis.command(&["FLUSHDB"]);
        let (mut rng, mut now) = (Rng::with_seed(seed), Time::from_seconds(1_800_000_000));
        let mut ledger = Ledger::new(Bounds { holds: 1_000_000, holds_of_a_counter: 10 });
        let (mut spent, mut ids) = (Spent::new(), Vec::new());
        for step in 0..200_u64 {
            now = Time::from_micros(now.micros() + rng.u64(..5_000) * 1000);
            if rng.u8(..10) == 0 {
                // The clock is set back, and nothing lasts longer for it.
                now = Time::from_micros(now.micros() - rng.u64(1..3_600_000) * 1000);
            }
            // The script sweeps only what keeps a request from holding.
            sweep(&mut redis, now);
            for charge in ledger.sweep(now, usize::MAX) {
                apply(&mut spent, &charge);
            }
            let id = format!("id-{seed}_{step}");
            if rng.u8(..2) == 0 || ids.is_empty() {
                let parts: Vec<_> = (0..rng.usize(1..4)).map(|_| part(&mut rng)).collect();
                let read = |counter| spent.get(&counter).copied().unwrap_or(0);
                let (looks, _) = ledger.look(&parts, now, read, |_| {});
                let seen = hold(&mut redis, "", &parts, now).0;
                assert_eq!(fitting(&seen), looks.iter().map(|seen| seen.fits).collect::<Vec<_>>());
                assert!(seen.iter().all(|held| !held.holds), "{seed} {step}: only looks");
                let (refusal, of) = (Refusal::default(), LedgerId(step.into()));
                let (expected, _) = ledger.hold(of, parts.clone(), refusal, now, read, |_| {});
                let actual = hold(&mut redis, &id, &parts, now).0;
                for ((seen, held), part) in expected.iter().zip(&actual).zip(&parts) {
                    let expected = (seen.spent, seen.held, seen.fits, seen.holds, seen.is_full);
                    let actual = (held.spent, held.held, held.fits, held.holds, held.is_full);
                    assert_eq!(actual, expected, "{seed} {step}: {parts:?}");
                    // Another part of the request may hold on the counter.
                    let is_alone = parts.iter().filter(|other| other.counter == part.counter).count() == 1;
                    if (!held.fits || part.estimate.is_none()) && !held.holds && is_alone {
                        assert_eq!(held.frees_in, seen.frees_in, "{seed} {step}");
                    }
                }
                ids.push((step, id));
                continue;
            }
            let (step_of_id, id) = rng.choice(&ids).cloned().unwrap();
            let (closed, charges) = close_both(&mut redis, &mut ledger, (step_of_id, &id), &mut rng, now);
            for charge in &charges {
                apply(&mut spent, charge);
            }
            // The script charges what had expired, which the ledger has swept.
            let closed = closed.into_iter().filter(|closed| closed.how != How::Expired);
            let mut actual: Vec<_> = closed.map(|closed| of_script(&closed)).collect();
            let mut expected: Vec<_> = charges.iter().map(of_ledger).collect();
            actual.sort_unstable();
            expected.sort_unstable();
            assert_eq!(actual, expected, "{seed} {step} {id}");
        }
        for _ in 0..4 {
            now = Time::from_micros(now.micros() + 61_000_000);
            sweep(&mut redis, now);
        }
        assert_eq!(redis.command(&["KEYS", "{tag}*"]), Reply::List(Vec::new()), "{seed}: nothing is left");
    }
}

#[test]
fn a_hold_that_comes_after_its_cancel_holds_nothing() {
    let mut redis = Redis::start();
    let (mut rng, now) = (Rng::with_seed(1), Time::from_seconds(1_800_000_000));
    let parts = [Part { estimate: Some(10), ..part(&mut rng) }];
    assert!(close(&mut redis, "one", Close::Cancel, None, now).is_empty());
    assert!(!hold(&mut redis, "one", &parts, now).0[0].holds);
    assert!(close(&mut redis, "one", Close::Settle(5), None, now).is_empty());
    assert!(hold(&mut redis, "two", &parts, now).0[0].holds);
}

#[test]
fn nothing_is_refused_for_what_has_expired() {
    let mut redis = Redis::start();
    let (rng, start) = (Rng::with_seed(1), Time::from_seconds(1_800_000_000));
    let later = Time::from_micros(start.micros() + 60_000_000);
    let unknown = Unknown::Hits(3);
    let held = |estimate, counter| Part {
        counter,
        of: Arc::new(HoldRule {
            amount: 1,
            most: None,
            ttl: Duration::from_secs(60),
            unknown,
            currency: "".into(),
        }),
        estimate: Some(estimate),
        fit: Fit::Must,
        ..part(&mut rng.clone())
    };
    for (id, counter) in [("one", 0), ("two", 0), ("three", 1)] {
        assert!(hold(&mut redis, id, &[held(50, counter)], start).0[0].holds, "{id}");
    }
    let just_before = Time::from_micros(later.micros() - 1000);
    let both = [held(60, 0), held(60, 1)];
    let (refused, expired) = hold(&mut redis, "four", &both, just_before);
    assert!(!refused[0].fits && !refused[1].fits && expired.is_empty(), "{refused:?} {expired:?}");
    assert_eq!(refused[0].frees_in, Some(Duration::from_millis(1)));
    let (held, expired) = hold(&mut redis, "five", &both, later);
    let seen = held.iter().map(|held| (held.spent, held.held, held.holds)).collect::<Vec<_>>();
    assert_eq!(seen, [(6, 60, true), (3, 60, true)]);
    assert!(expired.len() == 3 && expired.iter().all(|one| one.how == How::Expired && one.after == 3));
}

#[test]
fn a_counter_has_a_bound_and_a_sweep_leaves_nothing() {
    let mut redis = Redis::start();
    let (mut rng, start) = (Rng::with_seed(1), Time::from_seconds(1_800_000_000));
    let one = Part { estimate: Some(0), counter: 3, fit: Fit::Always, ..part(&mut rng) };
    for number in 0..MOST.of_counter {
        assert!(hold(&mut redis, &format!("a{number}"), std::slice::from_ref(&one), start).0[0].holds);
    }
    let full = hold(&mut redis, "more", std::slice::from_ref(&one), start).0;
    assert!(full[0].is_full && !full[0].holds);
    let later = Time::from_micros(start.micros() + 3_600_000_000);
    assert_eq!(sweep(&mut redis, later).len(), MOST.of_counter);
    assert_eq!(redis.command(&["KEYS", "{tag}*"]), Reply::List(Vec::new()));
}

/// A part of one of the requests at a time, whose hold lasts for as many seconds.
fn place(counter: usize, ttl: u64) -> Part<usize, Of> {
    let (ttl, unknown) = (Duration::from_secs(ttl), Unknown::Hits(0));
    Part {
        counter,
        is_charged: !COUNTERS[counter].is_empty(),
        of: Arc::new(HoldRule { amount: 1, most: None, ttl, unknown, currency: "".into() }),
        limit: LIMIT,
        estimate: Some(10),
        fit: Fit::Must,
        unknown,
        ttl,
        end: Time::from_seconds(3_000_000_000),
    }
}

#[test]
fn a_call_sweeps_what_its_request_needs_and_the_next_ones_the_rest() {
    let mut redis = Redis::start();
    let start = Time::from_seconds(1_800_000_000);
    let later = Time::from_micros(start.micros() + 60_000_000);
    let many = MostHolds { of_counter: 1000, in_all: 1000, bytes: 0 };
    let tiny = Part { estimate: Some(1), limit: 500, ..place(0, 60) };
    for number in 0..500 {
        let (held, _) = hold_of(&mut redis, &format!("a{number}"), &tiny, start, many);
        assert!(held[0].holds, "{number}");
    }
    let other = Part { counter: 1, ..tiny.clone() };
    let (held, expired) = hold_of(&mut redis, "other", &other, later, many);
    assert!(held[0].holds && expired.is_empty(), "another counter sweeps nothing");
    let (held, expired) = hold_of(&mut redis, "one", &tiny, later, many);
    assert!(held[0].holds && expired.len() == 10, "{}", expired.len());
    let large = Part { estimate: Some(480), ..tiny.clone() };
    let (held, expired) = hold_of(&mut redis, "large", &large, later, many);
    assert!(held[0].holds && expired.len() == 480, "more than a call sweeps: {}", expired.len());
    let (held, _) = hold_of(&mut redis, "more", &Part { estimate: Some(50), ..tiny }, later, many);
    assert_eq!((held[0].holds, held[0].held, held[0].frees_in), (false, 481, Some(Duration::from_secs(60))));
}

#[test]
fn a_full_slot_sweeps_any_counter_and_says_when_it_has_room() {
    let mut redis = Redis::start();
    let at = |second: u64| Time::from_seconds(1_800_000_000 + second);
    let few = MostHolds { of_counter: 1000, in_all: 5, bytes: 0 };
    for number in 0..5 {
        let (held, _) = hold_of(&mut redis, &format!("a{number}"), &place(0, 10), at(number), few);
        assert!(held[0].holds);
    }
    let (held, _) = hold_of(&mut redis, "other", &place(1, 10), at(7), few);
    assert_eq!((held[0].is_full, held[0].frees_in), (true, Some(Duration::from_secs(3))));
    let (held, expired) = hold_of(&mut redis, "other", &place(1, 10), at(10), few);
    assert!(held[0].holds && expired.len() == 1, "{held:?} {expired:?}");
}

#[test]
fn a_clock_that_is_set_back_makes_no_hold_last_longer() {
    let mut redis = Redis::start();
    let at = |second: u64| Time::from_seconds(1_800_000_000 + second);
    assert!(hold(&mut redis, "one", &[place(3, 2)], at(7200)).0[0].holds);
    let full = Part { estimate: Some(100), ..place(3, 2) };
    let (refused, _) = hold(&mut redis, "two", std::slice::from_ref(&full), at(3600));
    assert_eq!((refused[0].holds, refused[0].frees_in), (false, Some(Duration::from_secs(2))));
    sweep(&mut redis, at(3601));
    // A little further, as on the next server.
    let (refused, _) = hold(&mut redis, "two", std::slice::from_ref(&full), at(3590));
    assert_eq!((refused[0].holds, refused[0].frees_in), (false, Some(Duration::from_secs(1))));
    let (held, expired) = hold(&mut redis, "two", std::slice::from_ref(&full), at(3591));
    assert!(held[0].holds && expired.len() == 1, "{held:?}");
    assert_eq!(sweep(&mut redis, at(3593)).len(), 1);
    sweep(&mut redis, at(3700));
    assert_eq!(redis.command(&["KEYS", "{tag}*"]), Reply::List(Vec::new()));
}

#[test]
fn a_reset_and_a_refund_come_after_what_has_expired() {
    let mut redis = Redis::start();
    let at = |second: u64| Time::from_seconds(1_800_000_000 + second);
    let held = Part { unknown: Unknown::Held, ..place(0, 60) };
    let rule = HoldRule { unknown: Unknown::Held, ..(*held.of).clone() };
    let held = Part { of: Arc::new(rule), ..held };
    for resets in [true, false] {
        for id in ["expired", "open"] {
            let start = if id == "open" { at(30) } else { at(0) };
            assert!(hold(&mut redis, id, std::slice::from_ref(&held), start).0[0].holds);
        }
        let set = format!("{BASE}holds:0");
        let counter = resets.then(|| COUNTERS[0].to_owned());
        let call = CloseCall::new(BASE.to_owned(), MOST, ToClose::Counter { set, counter, resets }, None);
        let (mut charged, mut left) = (0, 1);
        while left > 0 {
            let mut command = Vec::new();
            call.write(&mut command, Form::Hash);
            let (more, closed) = call.read(redis.call(&command, at(60))).unwrap();
            (charged, left) = (charged + closed.len(), more.due);
        }
        assert_eq!(charged, 1);
        let spent = if resets { "0" } else { "10" };
        assert_eq!(redis.command(&["GET", COUNTERS[0]]), Reply::Text(spent.into()));
        let seen = hold(&mut redis, "reads", &[Part { estimate: None, ..held.clone() }], at(60)).0[0];
        assert_eq!((seen.spent, seen.held), (spent.parse().unwrap(), 10), "what is open stays");
        redis.command(&["FLUSHDB"]);
    }
}

/// What each script does that sets an expiry, with a short or a long time to live in seconds.
type Sets = (&'static str, fn(&mut Redis, u64, usize));

const SETS: [Sets; 4] = [
    ("hold", |redis, ttl, step| {
        let part = place(step % COUNTERS.len(), ttl);
        assert!(hold(redis, &format!("id{step}"), &[part], Time::from_seconds(1_800_000_000)).0[0].holds);
    }),
    ("end", |redis, ttl, step| {
        let (id, now) = (format!("id{step}"), Time::from_seconds(1_800_000_000));
        assert!(hold(redis, &id, &[place(0, ttl)], now).0[0].holds);
        assert_eq!(close(redis, &id, Close::End, None, now).len(), 1);
    }),
    ("cancel, sweep and reset", |redis, ttl, step| {
        let (id, now) = (format!("id{step}"), Time::from_seconds(1_800_000_000));
        close(redis, &format!("unknown{step}"), Close::Cancel, None, now);
        assert!(hold(redis, &id, &[place(0, ttl)], now).0[0].holds);
        sweep(redis, Time::from_micros(now.micros() + ttl * 1_000_000));
    }),
    ("lease", |redis, ttl, step| {
        let mut command = Vec::new();
        let (own, grant) = (step as u64, 1);
        LEASE.call(&mut command, Form::Hash, &[b"counter", b"leases"], &[5, 1000, ttl, 1, own, 0, grant]);
        let reply = redis.call(&command, Time::from_seconds(1_800_000_000));
        assert!(matches!(&reply, Reply::List(two) if two[1] == Reply::Integer(1)), "{reply:?}");
    }),
];

#[test]
fn no_script_brings_an_expiry_forward() {
    let mut redis = Redis::start();
    for (script, set) in SETS {
        for orders in 0..8_u8 {
            redis.command(&["FLUSHDB"]);
            let mut before = BTreeMap::new();
            for step in 0..3 {
                let ttl = if orders >> step & 1 == 1 { 3600 } else { 10 };
                set(&mut redis, ttl, step);
                let Reply::List(keys) = redis.command(&["KEYS", "*"]) else { panic!("KEYS") };
                for key in keys {
                    let Reply::Text(key) = key else { panic!("{key:?}") };
                    let Reply::Integer(left) = redis.command(&[&b"PTTL"[..], &key]) else { panic!("PTTL") };
                    if key == b"second" || key == b"micros" {
                        continue;
                    }
                    let name = String::from_utf8_lossy(&key).into_owned();
                    let earlier = before.insert(key, left).unwrap_or(0);
                    // The test itself takes time.
                    assert!(
                        left > 0 && left + 5000 > earlier,
                        "{script} {orders:b}: {name}: {left} after {earlier}"
                    );
                }
            }
        }
    }
}
