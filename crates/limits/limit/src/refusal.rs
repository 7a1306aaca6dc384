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

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Refusal {
    is_certain: bool,
    /// Whether each candidate is exhausted.
    candidates: Vec<(u16, bool)>,
}

impl Refusal {
    /// Adds a limit of the request.
    pub fn add(&mut self, fit: Fit, is_over: bool) {
        match fit {
            Fit::Must => self.is_certain |= is_over,
            Fit::May(candidate) => match self.candidates.iter_mut().find(|(known, _)| *known == candidate) {
                Some((_, is_exhausted)) => *is_exhausted |= is_over,
                None => self.candidates.push((candidate, is_over)),
            },
            Fit::Always => {}
        }
    }

    pub fn is_refused(&self) -> bool {
        let has_candidates = !self.candidates.is_empty();
        self.is_certain || has_candidates && self.candidates.iter().all(|(_, is_exhausted)| *is_exhausted)
    }

    /// True if nothing was added that matters.
    pub fn is_empty(&self) -> bool {
        !self.is_certain && self.candidates.is_empty()
    }

    /// What scripts know of further limits, whose outcomes are added to these: 0 refuses the request, 1 is in shadow mode, 2 is
    /// of a candidate that no longer matters; the limits of each other candidate share a number above.
    pub fn codes(&self, fits: impl Iterator<Item = Fit> + Clone) -> impl Iterator<Item = u64> {
        let is_free = |(candidate, is_exhausted): &(u16, bool)| {
            !is_exhausted && !fits.clone().any(|fit| fit == Fit::May(*candidate))
        };
        let any_free = self.candidates.iter().any(is_free);
        fits.map(move |fit| match fit {
            Fit::Must => 0,
            Fit::Always => 1,
            Fit::May(candidate) if any_free || self.candidates.contains(&(candidate, true)) => 2,
            Fit::May(candidate) => 3 + u64::from(candidate),
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
                    1 | 2 => {}
                    code => by_codes.add(Fit::May(u16::try_from(code).unwrap()), *is_over),
                }
            }
            // Without one that is open, it is known what the candidates do.
            let has_open = refusal.codes(rest.iter().map(|(fit, _)| *fit)).any(|code| code > 2);
            let is_known = if has_open { refusal.is_certain } else { refusal.is_refused() };
            assert_eq!(is_known || by_codes.is_refused(), refused(&limits), "{limits:?}");
        }
    }
}
