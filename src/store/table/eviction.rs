//! Which of a few states is evicted for a new one: the one that matters least.
//!
//! Used by the table, whose candidates are the states in the two buckets of a new key, and by the sliding logs of the
//! memory store. A keyed hash selects the candidates, so they are a fair sample of all states, and the rule that holds
//! more of them than the new state's rule holds more of the table.

use std::cmp::Reverse;

use smallvec::SmallVec;

/// The candidates of a table; more of them allocate.
const CANDIDATES: usize = 2 * super::BUCKET;

/// The bits of a salt that may differ in the index of a candidate.
const SALT: usize = CANDIDATES.next_power_of_two().wrapping_sub(1);

/// How much of its limit a counter has used. Its caller regains as much by an eviction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Used {
    /// Less than half, or a limit of 0, of which nothing can be regained.
    #[default]
    Little,
    /// Half or more.
    Much,
    /// Everything.
    All,
    /// Everything, and it has rejected hits.
    Over,
}

impl Used {
    /// The use of a limit by this many hits.
    #[must_use]
    pub fn of(hits: u64, limit: u32) -> Self {
        let limit = u64::from(limit);
        match limit.checked_sub(hits) {
            _ if limit == 0 => Self::Little,
            None => Self::Over,
            Some(0) => Self::All,
            Some(left) if left <= hits => Self::Much,
            Some(_) => Self::Little,
        }
    }
}

/// What is known about a state when others are evicted: 14 bits of its rule's hash, and the use of its limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mark(u16);

impl Mark {
    /// The mark of a counter of the rule with this hash.
    #[must_use]
    pub const fn new(rule: u16, used: Used) -> Self {
        Self(rule << 2 | used as u16)
    }

    /// The hash of its rule.
    pub(in crate::store) const fn rule(self) -> u16 {
        self.0 >> 2
    }

    /// The use of its limit.
    #[must_use]
    pub const fn used(self) -> Used {
        match self.0 & 3 {
            0 => Used::Little,
            1 => Used::Much,
            2 => Used::All,
            _ => Used::Over,
        }
    }
}

/// A state that may be evicted, or the new one.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::store) struct Candidate {
    pub(in crate::store) mark: Mark,
    /// The second at which it expires.
    pub(in crate::store) end: u32,
    /// Its part of what is bounded: slots or bytes.
    pub(in crate::store) size: usize,
}

/// The index of the candidate that is evicted for a new state: among the rules that hold at least as much as the new
/// state's rule with it (of those that hold most, if none does), the least used one; among several, that of the rule that
/// holds most.
///
/// So a flood of keys evicts counters of its own rule or of larger ones. Of equals, the one that expires first is
/// evicted, and `salt`, a random number, selects among those that expire together: a new counter lasts as long as any
/// other. Of counters that have used everything, the last is evicted: those that were there before stay.
pub(in crate::store) fn victim(
    candidates: impl Iterator<Item = Candidate> + Clone,
    new: Candidate,
    salt: usize,
) -> Option<usize> {
    let rule = new.mark.rule();
    let (mut own, mut all, mut first) = (new.size, new.size, (u64::MAX, 0));
    candidates.clone().enumerate().for_each(|(index, one)| {
        all = all.wrapping_add(one.size);
        if one.mark.rule() == rule {
            own = own.wrapping_add(one.size);
            first = first.min((one.rank(index, salt), index));
        }
    });
    let has_own = own > new.size;
    // No rule holds as much as one with more than half: a flood needs one pass.
    if has_own && own > all / 2 {
        return Some(first.1);
    }
    let others = sums(candidates.clone(), rule);
    let most = others.iter().map(|(_, sum)| *sum).max().unwrap_or_default();
    let least = if has_own { own } else { own.min(most) };
    let held = |one| if one == rule { own } else { sum_of(&others, one) };
    let order = |(index, one): (usize, Candidate)| {
        let size = held(one.mark.rule());
        (size >= least).then(|| (one.mark.used(), Reverse(size), one.rank(index, salt), index))
    };
    candidates.enumerate().filter_map(order).min().map(|(.., index)| index)
}

impl Candidate {
    /// The place in the order of eviction among those of one rule: the use, the end, and the index in an order that
    /// `salt` selects. One number, since this is computed for every candidate.
    fn rank(self, index: usize, salt: usize) -> u64 {
        let used = self.mark.used();
        // The last of those that have used everything goes first.
        let (end, flipped) = if used < Used::All { (self.end, salt & SALT) } else { (0, SALT) };
        (used as u64) << 62 | u64::from(end) << 6 | (index ^ flipped) as u64
    }
}

/// What the other rules hold.
type Sums = SmallVec<[(u16, usize); CANDIDATES]>;

fn sums(candidates: impl Iterator<Item = Candidate>, except: u16) -> Sums {
    let mut sums = Sums::new();
    for Candidate { mark, size, .. } in candidates.filter(|candidate| candidate.mark.rule() != except) {
        match sums.iter_mut().find(|(rule, _)| *rule == mark.rule()) {
            Some((_, sum)) => *sum = sum.wrapping_add(size),
            None => sums.push((mark.rule(), size)),
        }
    }
    sums
}

fn sum_of(sums: &Sums, rule: u16) -> usize {
    sums.iter().find(|(one, _)| *one == rule).map_or(0, |(_, sum)| *sum)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn candidate() -> impl Strategy<Value = Candidate> {
        let used = prop::sample::select(vec![Used::Little, Used::Much, Used::All, Used::Over]);
        (0..5_u16, used, 1..4_u32, 1..4_usize).prop_map(|(rule, used, end, size)| Candidate {
            mark: Mark::new(rule, used),
            end,
            size,
        })
    }

    /// The candidates that may be evicted, by the definition.
    fn evictable(candidates: &[Candidate], new: Candidate) -> Vec<usize> {
        let all = || candidates.iter().chain([&new]);
        let held = |rule| all().filter(|one| one.mark.rule() == rule).map(|one| one.size).sum::<usize>();
        let mut left: Vec<usize> = (0..candidates.len()).collect();
        let held_at = |at: usize| held(candidates[at].mark.rule());
        if left.iter().any(|at| held_at(*at) >= held(new.mark.rule())) {
            left.retain(|at| held_at(*at) >= held(new.mark.rule()));
        } else {
            let most = left.iter().map(|at| held_at(*at)).max();
            left.retain(|at| Some(held_at(*at)) == most);
        }
        let least = left.iter().map(|at| candidates[*at].mark.used()).min();
        left.retain(|at| Some(candidates[*at].mark.used()) == least);
        let most = left.iter().map(|at| held_at(*at)).max();
        left.retain(|at| Some(held_at(*at)) == most);
        if least >= Some(Used::All) {
            return left.pop().into_iter().collect();
        }
        let first = left.iter().map(|at| candidates[*at].end).min();
        left.retain(|at| Some(candidates[*at].end) == first);
        left
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn evicts_by_the_definition(
            candidates in prop::collection::vec(candidate(), 1..40), new in candidate(), salt: usize,
        ) {
            let evictable = evictable(&candidates, new);
            prop_assert!(!evictable.is_empty(), "there is always room for a new state");
            let chosen = victim(candidates.iter().copied(), new, salt).unwrap();
            prop_assert!(evictable.contains(&chosen), "{chosen} of {evictable:?}");
        }

        #[test]
        fn a_mark_keeps_the_use_and_14_bits_of_the_rule(rule: u16, hits in 0..100_u64, limit in 0..50_u32) {
            let used = Used::of(hits, limit);
            let mark = Mark::new(rule, used);
            prop_assert_eq!((mark.rule(), mark.used()), (rule % (1 << 14), used));
        }
    }

    #[test]
    fn salts_select_among_equals() {
        let equal = Candidate { mark: Mark::new(1, Used::Much), end: 9, size: 1 };
        let chosen: std::collections::HashSet<_> =
            (0..64).filter_map(|salt| victim([equal; 34].into_iter(), equal, salt)).collect();
        assert!(chosen.len() >= 20, "{chosen:?}");
    }

    #[test]
    fn the_use_of_a_limit() {
        let used = |hits| Used::of(hits, 5);
        assert_eq!([0, 2, 3, 4, 5, 6, u64::MAX].map(used), {
            use Used::{All, Little, Much, Over};
            [Little, Little, Much, Much, All, Over, Over]
        });
        assert_eq!([Used::of(1, 1), Used::of(1, 2), Used::of(2, 4)], [Used::All, Used::Much, Used::Much]);
        assert_eq!([0, 9].map(|hits| Used::of(hits, 0)), [Used::Little; 2], "nothing can be regained");
    }
}
