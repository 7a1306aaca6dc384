//! Which of a few states is evicted for a new one: the one that matters least.
//!
//! Used by the table, whose candidates are the states in the two buckets of a new key, and by the sliding logs of the
//! memory store. A keyed hash selects the candidates, so they are a fair sample of all states, and the rule that holds
//! more of them than the new state's rule holds more of the table.

use std::cmp::Reverse;

use smallvec::SmallVec;

/// The candidates of a table; more of them allocate.
const CANDIDATES: usize = 2 * super::BUCKET;

/// How much of its limit a counter has used. Its caller regains as much by an eviction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Used {
    /// Less than half, or a limit of 0, of which nothing can be regained.
    #[default]
    Little,
    Much,
    All,
    Over,
}

impl Used {
    pub fn of(hits: u64, limit: u64) -> Self {
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
    pub const fn new(rule: u16, used: Used) -> Self {
        Self(rule << 2 | used as u16)
    }

    pub const fn rule(self) -> u16 {
        self.0 >> 2
    }

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
pub struct Candidate {
    pub mark: Mark,
    /// The second at which it expires.
    pub end: u32,
    /// Its part of what is bounded: slots or bytes.
    pub size: usize,
}

/// The index of the candidate that is evicted for a new state: among the rules that hold at least as much as the new
/// state's rule with it (of those that hold most, if none does), the least used one; among several, that of the rule that
/// holds most.
///
/// So a flood of keys evicts counters of its own rule or of larger ones. Of equals, the one that expires first is
/// evicted, and `salt`, a random number, selects among those that expire together, each with the same odds: a new counter
/// lasts as long as any other. Of counters that have used everything, the last is evicted: those that were there before
/// stay. Only the first 64 are candidates.
pub fn victim(
    candidates: impl Iterator<Item = Candidate> + Clone,
    new: Candidate,
    salt: usize,
) -> Option<usize> {
    let rule = new.mark.rule();
    let mut own = new.size;
    let mut all = new.size;
    let mut least = u64::MAX;
    candidates.clone().for_each(|one| {
        all = all.wrapping_add(one.size);
        if one.mark.rule() == rule {
            own = own.wrapping_add(one.size);
            least = least.min(one.rank());
        }
    });
    let has_own = own > new.size;
    // No rule holds as much as one with more than half: a flood needs no sums of other rules.
    if has_own && own > all / 2 {
        let is_least = |one: Candidate| one.mark.rule() == rule && one.rank() == least;
        return chosen(candidates.map(is_least), least >= FULL, salt);
    }
    let others = sums(candidates.clone(), rule);
    let most = others.iter().map(|(_, sum)| *sum).max().unwrap_or_default();
    let smallest = if has_own { own } else { own.min(most) };
    let order = |one: Candidate| {
        let rule_of_one = one.mark.rule();
        let size = if rule_of_one == rule { own } else { sum_of(&others, rule_of_one) };
        (size >= smallest).then(|| (one.mark.used(), Reverse(size), one.rank()))
    };
    let orders: SmallVec<[_; CANDIDATES]> = candidates.map(order).collect();
    let least = orders.iter().flatten().min()?;
    chosen(orders.iter().map(|order| order.as_ref() == Some(least)), least.2 >= FULL, salt)
}

/// The index of one of those that are equally good, of which there is at least one.
fn chosen(equals: impl Iterator<Item = bool>, is_last: bool, salt: usize) -> Option<usize> {
    let set = |(index, is_equal)| u64::from(is_equal).wrapping_shl(index);
    let mut left = (0..u64::BITS).zip(equals).map(set).fold(0, |all, one| all | one);
    if is_last {
        return left.checked_ilog2().map(|index| index as usize);
    }
    for _ in 0..salt.checked_rem(left.count_ones() as usize)? {
        left &= left.wrapping_sub(1);
    }
    Some(left.trailing_zeros() as usize)
}

/// The rank of a counter that has used everything.
const FULL: u64 = (Used::All as u64) << u32::BITS;

impl Candidate {
    /// The place in the order of eviction among those of one rule: the use and the end, unless everything is used.
    fn rank(self) -> u64 {
        let used = self.mark.used();
        let end = if used < Used::All { self.end } else { 0 };
        (used as u64) << u32::BITS | u64::from(end)
    }
}

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
        fn a_mark_keeps_the_use_and_14_bits_of_the_rule(rule: u16, hits in 0..100_u64, limit in 0..50_u64) {
            let used = Used::of(hits, limit);
            let mark = Mark::new(rule, used);
            prop_assert_eq!((mark.rule(), mark.used()), (rule % (1 << 14), used));
        }
    }

    #[test]
    fn salts_select_each_equal_as_often() {
        let of = |rule, used| Candidate { mark: Mark::new(rule, used), end: 9, size: 1 };
        let new = of(1, Used::Little);
        let alone = [new; 34];
        // Among others of its rule, and among those of smaller rules.
        let mixed: [_; 34] = std::array::from_fn(|index| of(1, [Used::Much, Used::Little][index % 2]));
        let apart: [_; 34] = std::array::from_fn(|index| of([2, 3, 1, 1][index % 4], Used::Little));
        for (candidates, equals) in [(alone, 34), (mixed, 17), (apart, 16)] {
            let mut times = [0; 34];
            for salt in 0..equals * 100 {
                times[victim(candidates.into_iter(), new, salt).unwrap()] += 1;
            }
            assert_eq!(times.iter().filter(|times| **times == 100).count(), equals, "{times:?}");
        }
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
