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

    fn apply(&mut self, charge: &Charge<u8, &'static str>) {
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

/// In shadow mode, so that its limit is exceeded.
const SHADOW: u8 = 3;

fn part(rng: &mut Rng) -> Part<u8, &'static str> {
    let counter = rng.u8(..4);
    Part {
        counter,
        of: if rng.bool() { "tokens" } else { "dollars" },
        limit: LIMIT,
        estimate: (rng.u8(..10) > 0).then(|| rng.u64(..150)),
        fit: match counter {
            SHADOW => Fit::Always,
            _ if rng.u8(..4) == 0 => Fit::May(rng.u16(..2)),
            _ => Fit::Must,
        },
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
            let is_meant =
                |hold: &Known| hold.id == id && currency.is_none_or(|currency| hold.part.of == currency);
            match rng.u8(..6) {
                0..=2 => hold(&mut ledger, &mut slow, HoldId(step << 64 | u128::from(seed)), now, &mut rng),
                3 | 4 => {
                    let cost = rng.u64(..150);
                    let of = |of: &&'static str| currency.is_none_or(|currency| *of == currency);
                    let charges = ledger.settle(id, of, cost);
                    let expected = slow.holds.extract_if(.., |hold| is_meant(hold)).count();
                    assert_eq!(charges.len(), expected, "{seed} {step}");
                    assert!(charges.iter().all(|charge| charge.after == cost));
                    for charge in &charges {
                        slow.apply(charge);
                    }
                }
                _ => {
                    let charges = ledger.end(id, |_| true, now);
                    assert_eq!(charges.len(), slow.close(Some(now), |hold| hold.id == id), "{seed} {step}");
                    for charge in &charges {
                        slow.apply(charge);
                    }
                }
            }
            for counter in 0..4 {
                assert_eq!(ledger.held(counter), slow.held(counter), "{seed} {step} {counter}");
                let spent = slow.spent.get(&counter).copied().unwrap_or(0);
                let excess = slow.excess.get(&counter).copied().unwrap_or(0);
                assert!(counter == SHADOW || spent <= LIMIT + excess, "{seed} {step} {counter}: {spent}");
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
    let seen = ledger.hold(id, parts.clone(), Refusal::default(), now, spent);
    let mut holds: Vec<Known> = Vec::new();
    let mut refusal = Refusal::default();
    for (part, seen) in parts.iter().zip(&seen) {
        let of_counter = |hold: &&Known| hold.part.counter == part.counter && hold.charged.is_none();
        let open = || slow.holds.iter().chain(&holds).filter(|hold| hold.charged.is_none());
        let held: u64 = open().filter(of_counter).map(|hold| hold.held).sum();
        let estimate = part.estimate.map(|estimate| estimate.min(LIMIT));
        let is_full = estimate.is_some() && (open().filter(of_counter).count() >= 20 || open().count() >= 50);
        let fits = spent(part.counter) + held + estimate.unwrap_or(0) <= LIMIT && !is_full;
        assert_eq!((seen.fits, seen.is_full, seen.spent), (fits, is_full, spent(part.counter)), "{parts:?}");
        refusal.add(part.fit, !fits);
        let Some(held) = estimate.filter(|_| fits || part.fit == Fit::Always && !is_full) else { continue };
        let until = after(now, part.ttl);
        holds.push(Known { id, part: part.clone(), held, until, charged: None });
    }
    let is_refused = refusal.is_refused();
    let holding = if is_refused { 0 } else { holds.len() };
    assert_eq!(seen.iter().filter(|seen| seen.holds).count(), holding, "{parts:?}");
    slow.holds.extend(holds.into_iter().filter(|_| !is_refused));
}

fn alone(estimate: u64) -> Vec<Part<u8, &'static str>> {
    let (ttl, end) = (Duration::from_secs(10), Time::from_seconds(2_000_000_000));
    let (unknown, fit, estimate) = (Unknown::Held, Fit::Must, Some(estimate));
    vec![Part { counter: 0, of: "tokens", limit: LIMIT, estimate, fit, unknown, ttl, end }]
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
    assert!(ledger.hold(HoldId(1), alone(1_000_000), Refusal::default(), at(0), |_| 0)[0].holds);
    assert_eq!(ledger.held(0), LIMIT);
    let refused = ledger.hold(HoldId(2), alone(1), Refusal::default(), at(1), |_| 0)[0];
    assert_eq!((refused.holds, refused.fits, refused.earliest), (false, false, Some(at(10))));
    let nothing = vec![Part { limit: 0, ..alone(1)[0].clone() }];
    assert!(!ledger.hold(HoldId(3), nothing, Refusal::default(), at(1), |_| 0)[0].fits);
}

#[test]
fn a_late_cost_corrects_what_the_expiry_charged_and_only_once() {
    let mut ledger = ledger();
    ledger.hold(HoldId(1), alone(40), Refusal::default(), at(0), |_| 0);
    let expired = ledger.sweep(at(12), 10);
    assert_eq!((expired[0].how, expired[0].before, expired[0].after), (How::Expired, 0, 40));
    let late = ledger.settle(HoldId(1), |_| true, 15);
    assert_eq!((late[0].how, late[0].before, late[0].after), (How::SettledLate, 40, 15));
    assert!(ledger.settle(HoldId(1), |_| true, 15).is_empty());
}

#[test]
fn an_expired_hold_is_forgotten_after_one_more_time_to_live() {
    let mut ledger = ledger();
    ledger.hold(HoldId(1), alone(40), Refusal::default(), at(0), |_| 0);
    ledger.sweep(at(19), 10);
    assert_eq!(ledger.settle(HoldId(1), |_| true, 1).len(), 1, "remembered until 20 s");
    ledger.hold(HoldId(2), alone(40), Refusal::default(), at(0), |_| 0);
    ledger.sweep(at(21), 10);
    assert!(ledger.settle(HoldId(2), |_| true, 1).is_empty(), "forgotten, however late it was swept");
}

#[test]
fn currencies_settle_apart() {
    let mut ledger = ledger();
    let tokens = alone(40)[0].clone();
    let parts = vec![tokens.clone(), Part { counter: 1, of: "dollars", ..tokens }];
    ledger.hold(HoldId(1), parts, Refusal::default(), at(0), |_| 0);
    assert_eq!(ledger.settle(HoldId(1), |of| *of == "dollars", 7)[0].counter, 1);
    assert_eq!((ledger.held(0), ledger.held(1)), (40, 0));
    assert_eq!(ledger.end(HoldId(1), |_| true, at(1)).len(), 1, "what is settled does not end");
}

#[test]
fn a_counter_that_is_reset_forgets_its_holds_alone() {
    let mut ledger = ledger();
    let tokens = alone(40)[0].clone();
    let parts = vec![tokens.clone(), Part { counter: 1, ..tokens }];
    ledger.hold(HoldId(1), parts, Refusal::default(), at(0), |_| 0);
    assert_eq!(ledger.of_counter(0).collect::<Vec<_>>(), [(HoldId(1), 40, at(10))]);
    ledger.forget_counter(0);
    assert_eq!((ledger.held(0), ledger.held(1), ledger.open()), (0, 40, 1));
    assert_eq!(ledger.cancel(HoldId(1)).len(), 1);
}
