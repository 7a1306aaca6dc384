//! The scripts of holds against the ledger, on a real Redis with a simulated clock.

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;

use super::server::Redis;
use crate::redis::{
    holds::{Closed, Counter, HoldPart, read_hold, read_settle, write_hold, write_settle},
    script::Form,
};
use algorithms::holds::{Bounds, Charge, HoldId, How, Ledger, Part, Unknown};
use clock::Time;

const LIMIT: u64 = 100;
const BASE: &str = "{tag}";

/// The last counter has no value: requests under way.
const COUNTERS: [&str; 4] = ["a", "b", "c", ""];

/// A sweep of a script takes as many, so that both know the same.
const MOST: usize = 10;

type Spent = BTreeMap<usize, u64>;

fn apply(spent: &mut Spent, charge: &Charge<usize>) {
    let before = spent.entry(charge.counter).or_default();
    if !COUNTERS[charge.counter].is_empty() {
        *before = *before + charge.after - charge.before;
    }
}

fn hold(
    redis: &mut Redis,
    id: &str,
    parts: &[Part<usize, &'static str>],
    now: Time,
) -> super::super::super::resp::Reply {
    let sets: Vec<String> = parts.iter().map(|part| format!("{BASE}holds:{}", part.counter)).collect();
    let parts = parts.iter().zip(&sets).map(|(part, set)| HoldPart {
        counter: Some(COUNTERS[part.counter])
            .filter(|name| !name.is_empty())
            .map(|name| Counter { name, expiry: 3600 }),
        set,
        limit: part.limit,
        estimate: part.estimate,
        unknown: part.unknown,
        ttl: part.ttl,
        rule: part.counter as u64 + (1 << 52),
        currency: part.currency,
    });
    let mut command = Vec::new();
    write_hold(&mut command, Form::Hash, (BASE, id), MOST as u64, &parts.collect::<Vec<_>>());
    redis.call(&command, now)
}

fn settle(redis: &mut Redis, id: &str, cost: Option<u64>, currency: Option<&str>, now: Time) -> Vec<Closed> {
    let mut command = Vec::new();
    write_settle(&mut command, Form::Hash, (BASE, id), cost, currency);
    read_settle(redis.call(&command, now)).unwrap()
}

fn part(rng: &mut Rng) -> Part<usize, &'static str> {
    Part {
        counter: rng.usize(..COUNTERS.len()),
        currency: if rng.bool() { "tokens" } else { "dollars" },
        limit: LIMIT,
        estimate: rng.u64(..150),
        unknown: if rng.bool() { Unknown::Held } else { Unknown::Hits(rng.u64(..60)) },
        ttl: Duration::from_secs(rng.u64(20..60)),
        end: Time::from_seconds(3_000_000_000),
    }
}

#[test]
fn the_scripts_hold_and_settle_as_the_ledger_does() {
    let mut redis = Redis::start();
    for seed in 0..60 {
        redis.command(&["FLUSHDB"]);
        let (mut rng, mut now) = (Rng::with_seed(seed), Time::from_seconds(1_800_000_000));
        let mut ledger = Ledger::new(Bounds { holds: usize::MAX, holds_of_a_counter: MOST });
        let (mut spent, mut ids) = (Spent::new(), Vec::new());
        for step in 0..200_u64 {
            now = Time::from_micros(now.micros() + rng.u64(..5_000) * 1000);
            for charge in ledger.sweep(now, usize::MAX) {
                apply(&mut spent, &charge);
            }
            let id = format!("id-{seed}_{step}");
            if rng.u8(..2) == 0 || ids.is_empty() {
                let parts: Vec<_> = (0..rng.usize(1..4)).map(|_| part(&mut rng)).collect();
                let read = |counter| spent.get(&counter).copied().unwrap_or(0);
                let held_before: Vec<u64> = parts.iter().map(|part| ledger.held(part.counter)).collect();
                let expected = ledger.hold(HoldId(step.into()), parts.iter().copied(), now, read);
                let (seen, actual) = read_hold(hold(&mut redis, &id, &parts, now), parts.len()).unwrap();
                assert_eq!(actual, expected, "{seed} {step}: {parts:?}");
                for ((part, seen), before) in parts.iter().zip(&seen).zip(held_before) {
                    let own = if expected.is_ok() { part.estimate.min(LIMIT) } else { 0 };
                    assert_eq!((seen.spent, seen.held), (read(part.counter), before + own), "{seed} {step}");
                }
                ids.push((step, id));
                continue;
            }
            let (step_of_id, id) = rng.choice(&ids).cloned().unwrap();
            let (currency, known) =
                ([None, Some("tokens"), Some("dollars")][rng.usize(..3)], HoldId(step_of_id.into()));
            let cost = (rng.u8(..3) > 0).then(|| rng.u64(..150));
            let charges = match cost {
                Some(cost) => ledger.settle(known, currency.as_ref(), cost),
                None => ledger.end(known, currency.as_ref(), now),
            };
            charges.iter().for_each(|charge| apply(&mut spent, charge));
            let closed = settle(&mut redis, &id, cost, currency, now);
            // The script charges what had expired, which the ledger has swept.
            let of_both = |how: How| how != How::Expired;
            let mut actual: Vec<_> = closed
                .iter()
                .filter(|closed| of_both(closed.how))
                .map(|closed| {
                    (closed.rule - (1 << 52), closed.how as u8, closed.held, closed.before, closed.after)
                })
                .collect();
            let mut expected: Vec<_> = charges
                .iter()
                .map(|charge| {
                    (charge.counter as u64, charge.how as u8, charge.held, charge.before, charge.after)
                })
                .collect();
            actual.sort_unstable();
            expected.sort_unstable();
            assert_eq!(actual, expected, "{seed} {step} {id} {cost:?} {currency:?}");
        }
    }
}
