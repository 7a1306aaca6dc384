//! A ledger against a slow one: a list of holds that is searched and summed for every answer.

use std::{cell::RefCell, collections::BTreeMap};

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

#[test]
fn most_is_a_number_or_a_percentage_rounded_up_and_never_0() {
    for (written, of_100, of_9, of_0) in [
        ("20_000", 20_000, 20_000, 20_000),
        ("1", 1, 1, 1),
        ("20%", 20, 2, 1),
        ("1%", 1, 1, 1),
        ("100%", 100, 9, 1),
    ] {
        let most = MostHeld::parse(written).unwrap();
        assert_eq!([100, 9, 0].map(|limit| most.of(limit)), [of_100, of_9, of_0], "{written}");
        assert_eq!(MostHeld::parse(&most.to_string()), Some(most));
    }
    let largest = MostHeld::parse(&MAX_LIMIT.to_string()).unwrap();
    assert_eq!(largest.of(MAX_LIMIT), MostHeld::parse("100%").unwrap().of(MAX_LIMIT));
    for wrong in
        ["", "0", "0%", "101%", "256%", "-1", "-1%", "%", "20 %", "20%%", "2.5%", "half", "9007199254740992"]
    {
        assert_eq!(MostHeld::parse(wrong), None, "{wrong}");
    }
}

#[test]
fn most_cuts_what_is_taken_alone() {
    let most = MostHeld::parse("20%");
    let rule = HoldRule { amount: 1, most, ttl: Duration::ZERO, unknown: Unknown::Held, currency: "".into() };
    for (hits, cut) in [(0, 0), (1, 1), (20, 20), (21, 20), (u64::MAX, 20)] {
        assert_eq!(rule.cut(Hits::Take(hits), 100), Hits::Take(cut));
        assert_eq!(rule.cut(Hits::Refund(hits), 100), Hits::Refund(hits));
    }
    assert_eq!(HoldRule { most: None, ..rule }.cut(Hits::Take(21), 100), Hits::Take(21));
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
        is_charged: true,
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
                    let charges = ledger.settle(id, of, cost, now);
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
        assert!(
            ledger.holds.is_empty() && ledger.remembered.is_empty() && ledger.counters.is_empty(),
            "{seed}"
        );
    }
}

fn hold(ledger: &mut Ledger<u8, &'static str>, slow: &mut Slow, id: HoldId, now: Time, rng: &mut Rng) {
    let parts: Vec<_> = (0..rng.usize(1..4)).map(|_| part(rng)).collect();
    let spent = |counter| slow.spent.get(&counter).copied().unwrap_or(0);
    let (seen, expired) = ledger.hold(id, parts.clone(), Refusal::default(), now, spent, |_| {});
    assert!(expired.is_empty(), "all is swept: {expired:?}");
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
    vec![Part { counter: 0, of: "tokens", limit: LIMIT, estimate, fit, unknown, ttl, is_charged: true, end }]
}

/// Holds while nothing is spent.
fn hold_one(
    ledger: &mut Ledger<u8, &'static str>,
    id: u128,
    parts: Vec<Part<u8, &'static str>>,
    now: Time,
) -> Held {
    ledger.hold(HoldId(id), parts, Refusal::default(), now, |_| 0, |_| {}).0[0]
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
    assert!(hold_one(&mut ledger, 1, alone(1_000_000), at(0)).holds);
    assert_eq!(ledger.held(0), LIMIT);
    let refused = hold_one(&mut ledger, 2, alone(1), at(1));
    assert_eq!((refused.holds, refused.fits, refused.frees_in), (false, false, Some(Duration::from_secs(9))));
    let nothing = vec![Part { limit: 0, ..alone(1)[0].clone() }];
    assert!(!hold_one(&mut ledger, 3, nothing, at(1)).fits);
}

#[test]
fn a_late_cost_corrects_what_the_expiry_charged_and_only_once() {
    for is_swept in [true, false] {
        let mut ledger = ledger();
        hold_one(&mut ledger, 1, alone(40), at(0));
        let mut charges = if is_swept { ledger.sweep(at(12), 10) } else { Vec::new() };
        charges.extend(ledger.settle(HoldId(1), |_| true, 15, at(12)));
        let charges: Vec<_> = charges.iter().map(|one| (one.how, one.before, one.after)).collect();
        assert_eq!(charges, [(How::Expired, 0, 40), (How::SettledLate, 40, 15)]);
        assert!(ledger.settle(HoldId(1), |_| true, 15, at(12)).is_empty());
    }
}

#[test]
fn an_expired_hold_is_forgotten_after_one_more_time_to_live() {
    let mut ledger = ledger();
    hold_one(&mut ledger, 1, alone(40), at(0));
    ledger.sweep(at(19), 10);
    assert_eq!(ledger.settle(HoldId(1), |_| true, 1, at(19)).len(), 1, "remembered until 20 s");
    hold_one(&mut ledger, 2, alone(40), at(19));
    ledger.sweep(at(38), 10);
    assert!(ledger.settle(HoldId(2), |_| true, 1, at(40)).is_empty(), "forgotten, whenever it is swept");
}

#[test]
fn currencies_settle_apart() {
    let mut ledger = ledger();
    let tokens = alone(40)[0].clone();
    let parts = vec![tokens.clone(), Part { counter: 1, of: "dollars", ..tokens }];
    hold_one(&mut ledger, 1, parts, at(0));
    assert_eq!(ledger.settle(HoldId(1), |of| *of == "dollars", 7, at(0))[0].counter, 1);
    assert_eq!((ledger.held(0), ledger.held(1)), (40, 0));
    assert_eq!(ledger.end(HoldId(1), |_| true, at(1)).len(), 1, "what is settled does not end");
}

#[test]
fn a_counter_that_is_reset_forgets_its_holds_alone() {
    let mut ledger = ledger();
    let tokens = alone(40)[0].clone();
    let parts = vec![tokens.clone(), Part { counter: 1, ..tokens }];
    hold_one(&mut ledger, 1, parts, at(0));
    assert_eq!(ledger.of_counter(0).collect::<Vec<_>>(), [(HoldId(1), 40, at(10))]);
    ledger.forget_counter(0);
    assert_eq!((ledger.held(0), ledger.held(1), ledger.open()), (0, 40, 1));
    assert_eq!(ledger.cancel(HoldId(1), at(1)).len(), 1);
}

/// A budget of 1,000 requests that hold 1 each.
fn small() -> Part<u8, &'static str> {
    Part { limit: 1000, unknown: Unknown::Hits(0), ..alone(1)[0].clone() }
}

#[test]
fn nothing_is_refused_for_what_has_expired() {
    for estimate in [1, 700] {
        let mut ledger = ledger();
        for id in 0..1000 {
            assert!(hold_one(&mut ledger, id, vec![small()], at(0)).holds);
        }
        let asked = vec![Part { estimate: Some(estimate), ..small() }];
        let refused = hold_one(&mut ledger, 1000, asked.clone(), Time::from_micros(at(10).micros() - 1));
        assert_eq!((refused.holds, refused.frees_in), (false, Some(Duration::from_micros(1))));
        let spent = RefCell::new(0);
        let charge = |charge: &Charge<u8, _>| *spent.borrow_mut() += charge.after;
        let (seen, expired) =
            ledger.hold(HoldId(1001), asked, Refusal::default(), at(10), |_| *spent.borrow(), charge);
        assert!(seen[0].holds);
        assert!(
            (estimate..estimate + 20).contains(&(expired.len() as u64)),
            "as much as it needs: {}",
            expired.len()
        );
    }
}

#[test]
fn a_full_ledger_sweeps_any_counter_and_says_when_it_has_room() {
    let mut ledger = Ledger::new(Bounds { holds: 5, holds_of_a_counter: 5 });
    for id in 0..5 {
        assert!(hold_one(&mut ledger, id.into(), vec![small()], at(id)).holds);
    }
    let other = vec![Part { counter: 1, ..small() }];
    let full = hold_one(&mut ledger, 5, other.clone(), at(7));
    assert_eq!((full.is_full, full.frees_in), (true, Some(Duration::from_secs(3))));
    assert!(hold_one(&mut ledger, 6, other, at(10)).holds, "the first has expired");
    assert_eq!(ledger.open(), 5);
}

#[test]
fn a_clock_that_is_set_back_makes_no_hold_last_longer() {
    let mut ledger = ledger();
    hold_one(&mut ledger, 1, alone(100), at(7200));
    assert!(ledger.sweep(at(7204), 10).is_empty());
    let before = |second| Time::from_micros(at(second).micros() - 3_600_000_000);
    let refused = hold_one(&mut ledger, 2, alone(1), before(7204));
    assert_eq!(refused.frees_in, Some(Duration::from_secs(6)));
    assert_eq!(ledger.of_counter(0).collect::<Vec<_>>(), [(HoldId(1), 100, before(7210))]);
    // Once more, and a little.
    let further = |second| Time::from_micros(before(second).micros() - 1_000_000);
    assert_eq!(hold_one(&mut ledger, 3, alone(1), further(7205)).frees_in, Some(Duration::from_secs(6)));
    assert_eq!(ledger.sweep(further(7211), 10).len(), 1);
}

#[test]
fn requests_at_a_time_have_no_cost() {
    let mut ledger = ledger();
    for id in 1..4 {
        hold_one(&mut ledger, id, vec![Part { is_charged: false, ..alone(1)[0].clone() }], at(0));
    }
    let mut charges = ledger.settle(HoldId(1), |_| true, 500, at(1));
    charges.extend(ledger.end(HoldId(2), |_| true, at(1)));
    charges.extend(ledger.sweep(at(11), 10));
    charges.extend(ledger.settle(HoldId(3), |_| true, 500, at(11)));
    assert!(charges.len() == 4 && charges.iter().all(|charge| charge.after == 0), "{charges:?}");
}

#[test]
fn any_number_of_hits_is_held_and_charged() {
    let bounds = Bounds { holds: 10_000, holds_of_a_counter: 10_000 };
    let mut ledger = Ledger::new(bounds);
    let now = Time::from_seconds(1);
    let part = |estimate, limit, fit| Part {
        counter: 0,
        of: "tokens",
        limit,
        estimate,
        fit,
        unknown: Unknown::Held,
        ttl: Duration::from_secs(10),
        is_charged: true,
        end: Time::from_seconds(100),
    };
    // A shadowed limit refuses nothing, whatever is held and spent.
    let most = 1 << 53;
    for id in 0..2_100 {
        let shadowed = vec![part(Some(u64::MAX), most - 1, Fit::Always)];
        let (seen, _) = ledger.hold(HoldId(id), shadowed, Refusal::default(), now, |_| u64::MAX, |_| ());
        assert!(seen[0].holds, "{id}: {seen:?}");
    }
    assert_eq!(ledger.held(0), u64::MAX);
    let enforced = [part(Some(u64::MAX), u64::MAX - 1, Fit::Must), part(None, most, Fit::Must)];
    let (seen, _) = ledger.look(&enforced, now, |_| u64::MAX, |_| ());
    assert!(seen.iter().all(|seen| !seen.fits), "{seen:?}");
    for id in 0..2_100 {
        ledger.settle(HoldId(id), |_| true, u64::MAX, now);
    }
    assert_eq!(ledger.held(0), 0, "what was held is what is released");
}
