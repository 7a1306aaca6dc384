//! A ledger against a slow one: a list of holds that is searched and summed for every answer.

use std::collections::BTreeMap;

use fastrand::Rng;

use super::*;

const LIMIT: u64 = 100;

/// What the tests remember of a hold.
#[derive(Clone, Debug)]
struct Known {
    id: HoldId,
    part: Part<u8, &'static str>,
    held: u64,
    until: Time,
    charged: Option<u64>,
}

#[derive(Default)]
struct Slow {
    spent: BTreeMap<u8, u64>,
    holds: Vec<Known>,
    /// By how much holds exceeded what they held: spending may exceed the limit by as much.
    excess: BTreeMap<u8, u64>,
}

impl Slow {
    fn held(&self, counter: u8) -> u64 {
        let open = self.holds.iter().filter(|hold| hold.part.counter == counter && hold.charged.is_none());
        open.map(|hold| hold.held).sum()
    }

    fn apply(&mut self, charge: &Charge<u8>) {
        let spent = self.spent.entry(charge.counter).or_default();
        *spent = *spent + charge.after - charge.before;
        // What a hold that ended or expired did not cost was free for others: a late cost is within what was charged.
        let covered = if charge.how == How::SettledLate { charge.before } else { charge.held };
        *self.excess.entry(charge.counter).or_default() += charge.after.saturating_sub(covered);
    }

    fn cost(hold: &Known) -> u64 {
        match hold.part.unknown {
            Unknown::Held => hold.held,
            Unknown::Hits(hits) => hits,
        }
    }

    /// Charges the holds that are meant, and returns how many.
    fn close(&mut self, now: Option<Time>, is_meant: impl Fn(&Known) -> bool) -> usize {
        let mut closed = 0;
        for hold in self.holds.iter_mut().filter(|hold| hold.charged.is_none() && is_meant(hold)) {
            hold.charged = Some(Self::cost(hold));
            hold.until = after(now.unwrap_or(hold.until), hold.part.ttl);
            closed += 1;
        }
        closed
    }
}

fn part(rng: &mut Rng) -> Part<u8, &'static str> {
    Part {
        counter: rng.u8(..4),
        currency: if rng.bool() { "tokens" } else { "dollars" },
        limit: LIMIT,
        estimate: rng.u64(..150),
        unknown: if rng.bool() { Unknown::Held } else { Unknown::Hits(rng.u64(..60)) },
        ttl: Duration::from_secs(rng.u64(1..60)),
        end: Time::from_seconds(u64::MAX / 2_000_000),
    }
}

#[test]
fn answers_as_a_list_of_holds_does() {
    for seed in 0..300 {
        let mut rng = Rng::with_seed(seed);
        let mut ledger = Ledger::new(Bounds { holds: 50, holds_of_a_counter: 20 });
        let mut slow = Slow::default();
        let mut now = Time::from_seconds(1_800_000_000);
        for step in 0..400 {
            now = Time::from_micros(now.micros() + rng.u64(..5_000_000));
            // Everything that is due, so that both know the same.
            for charge in ledger.sweep(now, usize::MAX) {
                slow.apply(&charge);
            }
            loop {
                let expired = slow.close(None, |hold| hold.until <= now);
                let before = slow.holds.len();
                slow.holds.retain(|hold| hold.charged.is_none() || hold.until > now);
                if expired + before - slow.holds.len() == 0 {
                    break;
                }
            }
            let known: Vec<HoldId> = slow.holds.iter().map(|hold| hold.id).collect();
            let id =
                rng.choice(known).filter(|_| rng.u8(..10) > 0).unwrap_or(HoldId(u128::from(rng.u64(..))));
            let currency = [None, Some("tokens"), Some("dollars")][rng.usize(..3)];
            let is_meant = |hold: &Known| {
                hold.id == id && currency.is_none_or(|currency| hold.part.currency == currency)
            };
            match rng.u8(..6) {
                0..=2 => hold(&mut ledger, &mut slow, HoldId(step << 64 | u128::from(seed)), now, &mut rng),
                3 | 4 => {
                    let cost = rng.u64(..150);
                    let charges = ledger.settle(id, currency.as_ref(), cost);
                    let expected = slow.holds.extract_if(.., |hold| is_meant(hold)).count();
                    assert_eq!(charges.len(), expected, "{seed} {step}");
                    assert!(charges.iter().all(|charge| charge.after == cost));
                    charges.iter().for_each(|charge| slow.apply(charge));
                }
                _ => {
                    let charges = ledger.end(id, currency.as_ref(), now);
                    assert_eq!(charges.len(), slow.close(Some(now), is_meant), "{seed} {step}");
                    charges.iter().for_each(|charge| slow.apply(charge));
                }
            }
            for counter in 0..4 {
                assert_eq!(ledger.held(counter), slow.held(counter), "{seed} {step} {counter}");
                let spent = slow.spent.get(&counter).copied().unwrap_or(0);
                let excess = slow.excess.get(&counter).copied().unwrap_or(0);
                assert!(spent <= LIMIT + excess, "{seed} {step} {counter}: {spent} with {excess}");
            }
            let open = slow.holds.iter().filter(|hold| hold.charged.is_none()).count();
            assert_eq!(ledger.open(), open, "{seed} {step}");
        }
        now = Time::from_micros(now.micros() + 200_000_000);
        ledger.sweep(now, usize::MAX);
        assert!(ledger.holds.is_empty() && ledger.due.is_empty() && ledger.counters.is_empty(), "{seed}");
    }
}

fn hold(ledger: &mut Ledger<u8, &'static str>, slow: &mut Slow, id: HoldId, now: Time, rng: &mut Rng) {
    let parts: Vec<_> = (0..rng.usize(1..4)).map(|_| part(rng)).collect();
    let spent = |counter| slow.spent.get(&counter).copied().unwrap_or(0);
    let held = ledger.hold(id, parts.iter().copied(), now, spent);
    let fits = |counter: u8| {
        let more: u64 =
            parts.iter().filter(|part| part.counter == counter).map(|part| part.estimate.min(LIMIT)).sum();
        let of_counter = |hold: &&Known| hold.part.counter == counter && hold.charged.is_none();
        let count = slow.holds.iter().filter(of_counter).count();
        let more_holds = parts.iter().filter(|part| part.counter == counter).count();
        spent(counter) + slow.held(counter) + more <= LIMIT && count + more_holds <= 20
    };
    let open = slow.holds.iter().filter(|hold| hold.charged.is_none()).count();
    let all_fit = parts.iter().all(|part| fits(part.counter)) && open + parts.len() <= 50;
    assert_eq!(held.is_ok(), all_fit, "{parts:?}: {held:?}");
    if held.is_ok() {
        slow.holds.extend(parts.into_iter().map(|part| Known {
            id,
            part,
            held: part.estimate.min(LIMIT),
            until: after(now, part.ttl),
            charged: None,
        }));
    }
}

fn alone(estimate: u64) -> [Part<u8, &'static str>; 1] {
    let (ttl, end) = (Duration::from_secs(10), Time::from_seconds(2_000_000_000));
    [Part { counter: 0, currency: "tokens", limit: LIMIT, estimate, unknown: Unknown::Held, ttl, end }]
}

fn at(second: u64) -> Time {
    Time::from_seconds(1_800_000_000 + second)
}

fn ledger() -> Ledger<u8, &'static str> {
    Ledger::new(Bounds { holds: 1000, holds_of_a_counter: 1000 })
}

#[test]
fn an_unused_budget_admits_a_request_above_the_limit() {
    let mut ledger = ledger();
    assert_eq!(ledger.hold(HoldId(1), alone(1_000_000), at(0), |_| 0), Ok(()));
    assert_eq!(ledger.held(0), LIMIT);
    let refused = ledger.hold(HoldId(2), alone(1), at(1), |_| 0);
    assert_eq!(refused, Err(Refused::Over { index: 0, earliest: Some(at(10)) }));
    let nothing = [Part { limit: 0, ..alone(1)[0] }];
    assert!(super::Ledger::hold(&mut ledger, HoldId(3), nothing, at(1), |_| 0).is_err());
}

#[test]
fn a_late_cost_corrects_what_the_expiry_charged_and_only_once() {
    let mut ledger = ledger();
    ledger.hold(HoldId(1), alone(40), at(0), |_| 0).unwrap();
    let expired = ledger.sweep(at(12), 10);
    assert_eq!((expired[0].how, expired[0].before, expired[0].after), (How::Expired, 0, 40));
    let late = ledger.settle(HoldId(1), None, 15);
    assert_eq!((late[0].how, late[0].before, late[0].after), (How::SettledLate, 40, 15));
    assert!(ledger.settle(HoldId(1), None, 15).is_empty());
}

#[test]
fn an_expired_hold_is_forgotten_after_one_more_time_to_live() {
    let mut ledger = ledger();
    ledger.hold(HoldId(1), alone(40), at(0), |_| 0).unwrap();
    ledger.sweep(at(19), 10);
    assert_eq!(ledger.settle(HoldId(1), None, 1).len(), 1, "remembered until 20 s");
    ledger.hold(HoldId(2), alone(40), at(0), |_| 0).unwrap();
    ledger.sweep(at(21), 10);
    assert!(ledger.settle(HoldId(2), None, 1).is_empty(), "forgotten, however late it was swept");
}

#[test]
fn currencies_settle_apart() {
    let mut ledger = ledger();
    let [tokens] = alone(40);
    let parts = [tokens, Part { counter: 1, currency: "dollars", ..tokens }];
    ledger.hold(HoldId(1), parts, at(0), |_| 0).unwrap();
    assert_eq!(ledger.settle(HoldId(1), Some(&"dollars"), 7)[0].counter, 1);
    assert_eq!((ledger.held(0), ledger.held(1)), (40, 0));
    assert_eq!(ledger.end(HoldId(1), None, at(1)).len(), 1, "what is settled does not end");
}
