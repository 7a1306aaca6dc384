//! The scripts of holds against the ledger, on a real Redis with a simulated clock.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fastrand::Rng;

use super::server::Redis;
use crate::{
    Close, Closed, Closing, Held, Hold, HoldId, MostHolds,
    redis::{
        pipeline::{CloseCall, HoldCall, HoldPart},
        resp::Reply,
        script::Form,
    },
};
use algorithms::{
    Fit, Refusal,
    holds::{Bounds, Charge, HoldId as LedgerId, How, Ledger, Part, Unknown},
};
use clock::Time;
use rules::HoldRule;

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

fn hold(redis: &mut Redis, id: &str, parts: &[Part<usize, Of>], now: Time) -> (Vec<Held>, Vec<Closed>) {
    let mut call = HoldCall::new(BASE.to_owned(), id, MOST);
    let nothing = Refusal::default();
    let codes = nothing.codes(parts.iter().map(|part| part.fit));
    for (part, code) in parts.iter().zip(codes) {
        let rule_id = part.counter as u64 + (1 << 52);
        let hold = Hold { rule: part.of.clone(), rule_id, estimate: part.estimate, found: Held::default() };
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
    let ignored = HoldId { random: 0, slots: [0].into_iter().collect() };
    let closing = Closing { id: ignored, close, currency: currency.map(Box::from) };
    let call = CloseCall::new(BASE.to_owned(), MOST, id, &closing);
    let mut command = Vec::new();
    call.write(&mut command, Form::Hash);
    call.read(redis.call(&command, now)).unwrap().1
}

fn sweep(redis: &mut Redis, now: Time) -> Vec<Closed> {
    let call = CloseCall::expired(BASE.to_owned(), MOST);
    let mut command = Vec::new();
    call.write(&mut command, Form::Hash);
    call.read(redis.call(&command, now)).unwrap().1
}

fn part(rng: &mut Rng) -> Part<usize, Of> {
    let unknown = if rng.bool() { Unknown::Held } else { Unknown::Hits(rng.u64(..60)) };
    let ttl = Duration::from_secs(rng.u64(20..60));
    let currency = if rng.bool() { "tokens" } else { "dollars" }.into();
    Part {
        counter: rng.usize(..COUNTERS.len()),
        of: Arc::new(HoldRule { amount: 1, ttl, unknown, currency }),
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
        1 => (close(redis, id, Close::Cancel, None, now), ledger.cancel(known)),
        _ => {
            let (cost, currency) = (rng.u64(..150), [None, Some("tokens"), Some("dollars")][rng.usize(..3)]);
            let is_meant = |of: &Of| currency.is_none_or(|currency| &*of.currency == currency);
            (close(redis, id, Close::Settle(cost), currency, now), ledger.settle(known, is_meant, cost))
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
            for charge in ledger.sweep(now, usize::MAX) {
                apply(&mut spent, &charge);
            }
            let id = format!("id-{seed}_{step}");
            if rng.u8(..2) == 0 || ids.is_empty() {
                // The script sweeps only what keeps a request from holding.
                sweep(&mut redis, now);
                let parts: Vec<_> = (0..rng.usize(1..4)).map(|_| part(&mut rng)).collect();
                let read = |counter| spent.get(&counter).copied().unwrap_or(0);
                let looks = ledger.look(&parts, read);
                let seen = hold(&mut redis, "", &parts, now).0;
                assert_eq!(fitting(&seen), looks.iter().map(|seen| seen.fits).collect::<Vec<_>>());
                assert!(seen.iter().all(|held| !held.holds), "{seed} {step}: only looks");
                let (refusal, of) = (Refusal::default(), LedgerId(step.into()));
                let expected = ledger.hold(of, parts.clone(), refusal, now, read);
                let actual = hold(&mut redis, &id, &parts, now).0;
                for ((seen, held), part) in expected.iter().zip(&actual).zip(&parts) {
                    let expected = (seen.spent, seen.held, seen.fits, seen.holds, seen.is_full);
                    let actual = (held.spent, held.held, held.fits, held.holds, held.is_full);
                    assert_eq!(actual, expected, "{seed} {step}: {parts:?}");
                    // Another part of the request may hold on the counter.
                    let is_alone = parts.iter().filter(|other| other.counter == part.counter).count() == 1;
                    if (!held.fits || part.estimate.is_none()) && !held.holds && is_alone {
                        assert_eq!(held.earliest, seen.earliest, "{seed} {step}");
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
        for _ in 0..3 {
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
        of: Arc::new(HoldRule { amount: 1, ttl: Duration::from_secs(60), unknown, currency: "".into() }),
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
    assert_eq!(refused[0].earliest, Some(later));
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
