//! Requests per second of the last five minutes in steps, which add up over replicas.

use serde::{Deserialize, Serialize};

pub const STEP_SECONDS: u64 = 10;

const MAX_STEPS: usize = 30;

/// Steps are numbered from 1970, so those of all replicas begin at the same moments.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(default)]
pub struct Steps {
    /// The number of the last step.
    last: u64,
    /// Requests per second: ok, over the limit, failed. The oldest first.
    rates: Vec<[f64; 3]>,
}

impl Steps {
    /// The whole steps of seconds, each with its rates; the last step is left out, because it may go on.
    pub fn of(seconds: impl Iterator<Item = (u64, [f64; 3])>) -> Self {
        let mut steps = Self::default();
        for (second, rates) in seconds {
            let step = second / STEP_SECONDS;
            // A clock that was set back begins anew.
            if steps.rates.is_empty() || step < steps.last || step - steps.last > MAX_STEPS as u64 {
                steps = Self { last: step, rates: vec![[0.0; 3]] };
            }
            for _ in steps.last..step {
                steps.rates.push([0.0; 3]);
            }
            steps.last = step;
            let sums = steps.rates.last_mut().into_iter().flatten();
            sums.zip(rates).for_each(|(sum, rate)| *sum += rate / STEP_SECONDS as f64);
        }
        steps.rates.pop();
        steps.last = steps.last.saturating_sub(1);
        let old = steps.rates.len().saturating_sub(MAX_STEPS);
        steps.rates.drain(..old);
        // One digit, which keeps summaries small.
        steps.rates.iter_mut().flatten().for_each(|rate| *rate = (*rate * 10.0).round() / 10.0);
        steps
    }

    /// The sums of all replicas, up to the last step that each has published. One whose clock is minutes away from that of
    /// the last one, which is this replica, is left out: it would end the plots of all.
    pub(crate) fn sum<'a>(all: impl DoubleEndedIterator<Item = &'a Self> + Clone) -> Self {
        let here = all.clone().next_back().map_or(0, |steps| steps.last);
        let all = all.filter(|one| !one.rates.is_empty() && one.last.abs_diff(here) <= MAX_STEPS as u64);
        let Some(last) = all.clone().map(|steps| steps.last).min() else { return Self::default() };
        // Those after `last` are left out.
        let newer = |steps: &Self| usize::try_from(steps.last - last).unwrap_or(usize::MAX);
        let known = all.clone().map(|steps| steps.rates.len().saturating_sub(newer(steps)));
        let mut rates = vec![[0.0; 3]; known.max().unwrap_or_default()];
        for steps in all {
            let known = steps.rates.iter().rev().skip(newer(steps));
            for (sums, rates) in rates.iter_mut().rev().zip(known) {
                sums.iter_mut().zip(rates).for_each(|(sum, rate)| *sum += rate);
            }
        }
        Self { last, rates }
    }

    /// The second at the end of each step, and its rates.
    pub fn points(&self) -> impl Iterator<Item = (u64, [f64; 3])> {
        let ends =
            (0..self.rates.len() as u64).rev().map(|back| self.last.saturating_sub(back).saturating_add(1));
        ends.zip(&self.rates).map(|(end, rates)| (end.saturating_mul(STEP_SECONDS), *rates))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(seconds: std::ops::Range<u64>, ok: f64) -> Steps {
        Steps::of(seconds.map(|second| (second, [ok, 0.0, 1.0])))
    }

    #[test]
    fn steps_are_means_of_whole_steps_and_the_newest_five_minutes() {
        let steps = of(1000..1025, 4.0);
        assert_eq!(steps.points().collect::<Vec<_>>(), [(1010, [4.0, 0.0, 1.0]), (1020, [4.0, 0.0, 1.0])]);
        assert_eq!(of(0..1000, 1.0).points().count(), MAX_STEPS);
        assert_eq!(Steps::of([].into_iter()), Steps::default());
        let back = Steps::of((1000..1030).chain(500..520).map(|second| (second, [1.0; 3])));
        assert_eq!(back.points().map(|(time, _)| time).collect::<Vec<_>>(), [510]);
        // A clock that was set ahead makes no list of its length.
        assert!(Steps::of([(0, [1.0; 3]), (u64::MAX, [1.0; 3])].into_iter()).rates.len() <= MAX_STEPS);
    }

    #[test]
    fn sums_end_with_the_last_step_that_all_replicas_have() {
        let (long, late, new) = (of(1000..1045, 4.0), of(1000..1038, 2.0), of(1020..1045, 1.0));
        let sum = Steps::sum([&Steps::default(), &long, &late, &new].into_iter());
        let ok: Vec<_> = sum.points().map(|(time, [ok, ..])| (time, ok)).collect();
        assert_eq!(ok, [(1010, 6.0), (1020, 6.0), (1030, 7.0)]);
        assert_eq!(Steps::sum([].into_iter()), Steps::default());
        // Another replica may publish anything, and its clock may be an hour behind or ahead.
        let here = of(100_000..100_045, 4.0);
        for last in [0, here.last - 360, here.last + 360, u64::MAX] {
            let odd = Steps { last, rates: vec![[1.0; 3]; 700] };
            assert_eq!(Steps::sum([&odd, &here].into_iter()), here, "{last}");
            assert!(Steps::sum([&odd].into_iter()).points().count() <= 700);
        }
    }
}
