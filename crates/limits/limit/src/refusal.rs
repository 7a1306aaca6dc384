//! Whether a request is refused, by those of its limits that are over.
//!
//! The limiter, the stores and the ledger of holds decide by this alone what one limit of a request does to another: an
//! exhausted candidate, or a limit in shadow mode, does nothing to the others.

/// What it means for a request that a limit has no room for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fit {
    /// The request is refused.
    #[default]
    Must,
    /// The candidate of this number is exhausted: one of several quotas. Without any other, the request is refused.
    May(u16),
    /// Nothing: a limit in shadow mode.
    Always,
}

/// What is over, and the microseconds until it is not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Over {
    pub descriptor: usize,
    pub wait: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Refusal {
    /// Of the limits that refuse the request, the one with the longest wait.
    certain: Option<Over>,
    /// Of each candidate the limit with the longest wait, if it is exhausted.
    candidates: Vec<(u16, Option<Over>)>,
}

impl Refusal {
    /// Adds a limit of the request.
    pub fn add(&mut self, fit: Fit, is_over: bool) {
        self.add_over(fit, is_over.then(Over::default));
    }

    /// Adds a limit of the request, and what is over if it has no room.
    pub fn add_over(&mut self, fit: Fit, over: Option<Over>) {
        let last = match fit {
            Fit::Must => &mut self.certain,
            Fit::May(candidate) => {
                let known = self.candidates.iter().position(|(known, _)| *known == candidate);
                let at = known.unwrap_or(self.candidates.len());
                if known.is_none() {
                    self.candidates.push((candidate, None));
                }
                let Some((_, last)) = self.candidates.get_mut(at) else { return };
                last
            }
            Fit::Always => return,
        };
        if let Some(over) = over
            && last.is_none_or(|last| over.wait > last.wait)
        {
            *last = Some(over);
        }
    }

    pub fn is_refused(&self) -> bool {
        self.governs().is_some()
    }

    /// What a refused request waits for: every limit that refuses it, and the candidate that is free first if all are
    /// exhausted.
    pub fn governs(&self) -> Option<Over> {
        let all_exhausted = self.candidates.iter().all(|(_, over)| over.is_some());
        let exhausted = self.candidates.iter().filter_map(|(_, over)| *over).filter(|_| all_exhausted);
        let first = exhausted.min_by_key(|over| over.wait);
        first.into_iter().chain(self.certain).max_by_key(|over| over.wait)
    }

    /// True for a candidate that is exhausted.
    pub fn is_exhausted(&self, fit: Fit) -> bool {
        let Fit::May(candidate) = fit else { return false };
        self.candidates.iter().any(|(known, over)| *known == candidate && over.is_some())
    }

    /// What scripts know of further limits, whose outcomes are added to these: 0 refuses the request, 1 is in shadow mode, 2 is
    /// of an exhausted candidate. The limits of each other candidate share a number above, which is odd if another candidate is
    /// free whatever they find.
    pub fn codes(&self, fits: impl Iterator<Item = Fit> + Clone) -> impl Iterator<Item = u64> {
        let is_free = |(candidate, over): &(u16, Option<Over>)| {
            over.is_none() && !fits.clone().any(|fit| fit == Fit::May(*candidate))
        };
        let any_free = self.candidates.iter().any(is_free);
        fits.map(move |fit| match fit {
            Fit::Must => 0,
            Fit::Always => 1,
            Fit::May(_) if self.is_exhausted(fit) => 2,
            Fit::May(candidate) => (if any_free { 3 } else { 4 }) + 2 * u64::from(candidate),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(limits: &[(Fit, bool)]) -> bool {
        let mut refusal = Refusal::default();
        for (fit, is_over) in limits {
            refusal.add(*fit, *is_over);
        }
        refusal.is_refused()
    }

    #[test]
    fn only_what_refuses_refuses() {
        use Fit::{Always, May, Must};
        assert!(!refused(&[]) && !refused(&[(Must, false), (Always, true)]));
        assert!(refused(&[(Must, false), (Must, true), (May(1), false)]));
        assert!(!refused(&[(May(1), true), (May(2), false)]), "another candidate is left");
        assert!(refused(&[(May(1), true), (May(2), true), (Must, false)]));
        assert!(refused(&[(May(1), false), (May(1), true)]), "a candidate needs all of its limits");
    }

    #[test]
    fn a_refused_request_waits_for_all_limits_and_for_the_candidate_that_is_free_first() {
        use Fit::{Always, May, Must};
        let governs = |limits: &[(Fit, Option<u64>)]| {
            let mut refusal = Refusal::default();
            for (descriptor, (fit, wait)) in limits.iter().enumerate() {
                refusal.add_over(*fit, wait.map(|wait| Over { descriptor, wait }));
            }
            refusal.governs().map(|over| over.descriptor)
        };
        assert_eq!(governs(&[(Must, Some(5)), (Must, Some(9)), (Must, Some(9)), (Must, None)]), Some(1));
        assert_eq!(governs(&[(May(0), Some(5)), (May(1), Some(3)), (May(2), Some(3))]), Some(1));
        assert_eq!(governs(&[(May(0), Some(5)), (May(1), None)]), None);
        assert_eq!(governs(&[(May(0), Some(5)), (May(0), Some(8)), (May(2), Some(9))]), Some(1), "a group");
        assert_eq!(governs(&[(May(0), Some(5)), (Must, Some(3)), (Always, Some(9))]), Some(0));
        assert_eq!(governs(&[(May(0), Some(5)), (Must, Some(5))]), Some(1));
        assert_eq!(governs(&[(May(0), Some(5)), (May(1), None), (Must, Some(1))]), Some(2));
    }

    /// With what is known of some limits, the codes of the others refuse what all of them together refuse.
    #[test]
    fn codes_stand_for_what_is_known() {
        let fits = [Fit::Must, Fit::Always, Fit::May(0), Fit::May(1), Fit::May(2)];
        for case in 0..5_usize.pow(4) * 16 {
            let (digits, overs) = (case / 16, case % 16);
            let limit = |at: u32| (fits[digits / 5_usize.pow(at) % 5], overs >> at & 1 == 1);
            let limits: Vec<_> = (0..4).map(limit).collect();
            let (known, rest) = limits.split_at(2);
            let mut refusal = Refusal::default();
            for (fit, is_over) in known {
                refusal.add(*fit, *is_over);
            }
            let mut by_codes = Refusal::default();
            for (code, (_, is_over)) in refusal.codes(rest.iter().map(|(fit, _)| *fit)).zip(rest) {
                match code {
                    0 => by_codes.add(Fit::Must, *is_over),
                    code if code > 2 && code % 2 == 0 => {
                        by_codes.add(Fit::May(u16::try_from(code).unwrap()), *is_over);
                    }
                    _ => {}
                }
            }
            // Without one that is open, it is known what the candidates do.
            let has_open =
                refusal.codes(rest.iter().map(|(fit, _)| *fit)).any(|code| code > 2 && code % 2 == 0);
            let is_known = if has_open { refusal.certain.is_some() } else { refusal.is_refused() };
            assert_eq!(is_known || by_codes.is_refused(), refused(&limits), "{limits:?}");
        }
    }
}
