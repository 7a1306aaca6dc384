//! Limits without fixed windows: what they admitted in a run, against the definition of each algorithm.
//!
//! Redis counts a request by its own clock, between the request and its answer. So every bound is that of a window which is
//! shorter by the slowest answer, and grants one hit for rounding.

use std::collections::BTreeMap;

use limit::Kind;

use crate::{limits::LimitPlan, world::Micros};

/// A request that was admitted.
#[derive(Clone, Copy, Debug)]
pub struct Admitted {
    /// When it was sent, by the clock of Redis, in microseconds since 1970.
    pub at: u64,
    /// How long the answer took.
    pub took: Micros,
    pub hits: u64,
}

pub type Excess = (u64, String);

#[derive(Clone, Debug, Default)]
pub struct Meter {
    pub admitted: Vec<Admitted>,
    /// Hits that were refunded, that Redis may have lost, or that a reset or another limit granted.
    pub credit: u64,
}

impl Meter {
    /// What the limit could lose at once.
    pub fn capacity(plan: &LimitPlan) -> u64 {
        if plan.algorithm == Kind::LeakyBucket { 1 } else { plan.limit }
    }

    /// When a request exceeded the limit, and how, if one did.
    pub fn excess(&self, plan: &LimitPlan) -> Option<Excess> {
        let mut admitted = self.admitted.clone();
        admitted.sort_by_key(|one| one.at);
        let slowest = admitted.iter().map(|one| one.took).max()?;
        let most = Self::capacity(plan) + self.credit + 1;
        match plan.algorithm {
            Kind::FixedWindow | Kind::Concurrency => None,
            Kind::SlidingLog => over_log(&admitted, plan.window().saturating_sub(slowest), most),
            Kind::SlidingWindow => over_window(&admitted, plan.window(), most),
            Kind::TokenBucket | Kind::LeakyBucket => over_bucket(&admitted, plan, slowest, most),
        }
    }
}

/// No window of this length has more hits.
fn over_log(admitted: &[Admitted], window: Micros, most: u64) -> Option<Excess> {
    if window == 0 {
        return None;
    }
    let (mut first, mut hits) = (0, 0);
    for one in admitted {
        hits += one.hits;
        while admitted[first].at + window <= one.at {
            hits -= admitted[first].hits;
            first += 1;
        }
        if hits > most {
            return Some((one.at, format!("{hits} hits within {window} µs, of {most}")));
        }
    }
    None
}

/// What was answered before a request was decided, and its own hits, are within the estimate.
fn over_window(admitted: &[Admitted], window: Micros, most: u64) -> Option<Excess> {
    let mut answered = admitted.to_vec();
    answered.sort_by_key(|one| one.at + one.took);
    let mut answered = answered.into_iter().peekable();
    let mut windows: BTreeMap<u64, u64> = BTreeMap::new();
    for one in admitted {
        while let Some(known) = answered.next_if(|known| known.at + known.took <= one.at) {
            *windows.entry(known.at / window).or_default() += known.hits;
        }
        let number = one.at / window;
        let hits = |number| windows.get(&number).copied().unwrap_or(0);
        // The window before weighs least at the answer, unless the next window has begun.
        let Some(rest) = (window - one.at % window).checked_sub(one.took) else { continue };
        let estimate = hits(number - 1) * rest / window + hits(number) + one.hits;
        if estimate > most {
            return Some((one.at, format!("about {estimate} hits, of {most}")));
        }
    }
    None
}

/// A bucket of this size, filled at the rate of the limit.
fn over_bucket(admitted: &[Admitted], plan: &LimitPlan, slowest: Micros, most: u64) -> Option<Excess> {
    // In hits of a window's length.
    let window = u128::from(plan.window());
    let size = u128::from(most) * window + u128::from(slowest) * u128::from(plan.limit);
    let (mut taken, mut last) = (0_u128, 0);
    for one in admitted {
        let refilled = u128::from(one.at - last) * u128::from(plan.limit);
        taken = taken.saturating_sub(refilled) + u128::from(one.hits) * window;
        last = one.at;
        if taken > size {
            return Some((one.at, format!("{} hits are missing, of {most}", taken / window)));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use limit::Unit;

    fn meter(at: &[(u64, u64)]) -> Meter {
        let admitted = at.iter().map(|(at, hits)| Admitted { at: *at + 60_000_000, took: 1, hits: *hits });
        Meter { admitted: admitted.collect(), credit: 0 }
    }

    /// Ten per second, as each algorithm counts them, with one hit for rounding.
    #[test]
    fn an_excess_of_each_algorithm_is_found() {
        let plan = |algorithm| LimitPlan { algorithm, ..LimitPlan::fixed(Unit::Second, 10, false) };
        let excess = |algorithm, at: &[(u64, u64)]| meter(at).excess(&plan(algorithm)).is_some();
        for algorithm in [Kind::SlidingWindow, Kind::SlidingLog, Kind::TokenBucket] {
            assert!(!excess(algorithm, &[(0, 10), (2_000_000, 10), (4_100_000, 11)]), "{algorithm:?}");
            assert!(excess(algorithm, &[(500_000, 10), (600_000, 5)]), "{algorithm:?}");
        }
        assert!(excess(Kind::SlidingWindow, &[(900_000, 10), (1_100_000, 4)]), "nine of ten still count");
        assert!(!excess(Kind::SlidingWindow, &[(900_000, 10), (1_900_000, 9)]));
        assert!(excess(Kind::SlidingLog, &[(0, 5), (500_000, 5), (999_000, 2)]));
        assert!(!excess(Kind::LeakyBucket, &[(0, 1), (100_000, 1), (200_000, 1)]));
        assert!(excess(Kind::LeakyBucket, &[(0, 1), (50_000, 1), (60_000, 1), (70_000, 1)]));
    }
}
