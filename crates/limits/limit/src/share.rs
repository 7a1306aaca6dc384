//! The part of a limit that one of several replicas has while they cannot count together.
//!
//! The parts of a number add up to it: the first replicas, in an order that all know, have one more if it does not divide.
//! Of a limit each has at least one hit, so together they admit the limit, or a hit each if that is more.

use crate::Rate;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    rank: u32,
    replicas: u32,
}

impl Share {
    /// `None` unless the rank, which begins at 0, is below the number of replicas.
    pub fn new(rank: usize, replicas: usize) -> Option<Self> {
        let rank = u32::try_from(rank).ok()?;
        let replicas = u32::try_from(replicas).ok()?;
        (rank < replicas).then_some(Self { rank, replicas })
    }

    pub const fn replicas(self) -> u32 {
        self.replicas
    }

    /// As one number, which is never 0.
    pub fn to_bits(self) -> u64 {
        u64::from(self.replicas) << 32 | u64::from(self.rank)
    }

    pub fn from_bits(bits: u64) -> Option<Self> {
        Self::new(usize::try_from(bits & u64::from(u32::MAX)).ok()?, usize::try_from(bits >> 32).ok()?)
    }

    pub fn of(self, hits: u64) -> u64 {
        let rank = u64::from(self.rank);
        let replicas = u64::from(self.replicas);
        hits / replicas + u64::from(rank < hits % replicas)
    }

    fn of_limit(self, limit: u64) -> u64 {
        self.of(limit).max(limit.min(1))
    }

    pub fn of_rate(self, rate: &Rate) -> Rate {
        rate.scaled(|limit| self.of_limit(limit))
    }
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroU64};

    use proptest::prelude::*;

    use super::*;
    use crate::{Kind, Limit, Unit};

    fn all(replicas: usize) -> impl Iterator<Item = Share> {
        (0..replicas).map(move |rank| Share::new(rank, replicas).unwrap())
    }

    proptest! {
        #[test]
        fn shares_add_up_to_the_limit_or_to_one_each(
            limit in 0..u64::from(u32::MAX), few in 0..40_u64, replicas in 1..200_usize, kind in 0..5_usize, burst in 1..1000_u64,
        ) {
            for limit in [limit, few] {
                let kind = Kind::ALL[kind];
                let limit = limit.min(kind.most());
                let burst = NonZeroU64::new(burst).filter(|_| kind.has_burst());
                let whole = Limit::new(limit, Unit::Minute, NonZeroU32::MIN, kind, burst).unwrap();
                let capacity = whole.algorithm.capacity();
                let most = |of: u64| if of == 0 { 0 } else { of.max(replicas as u64) };
                let parts: Vec<Rate> = all(replicas).map(|share| share.of_rate(&whole)).collect();
                let rates: u64 = parts.iter().map(|part| part.requests_per_unit).sum();
                prop_assert_eq!(rates, most(limit));
                let bursts: u64 = parts.iter().map(|part| part.algorithm.capacity()).sum();
                // A bucket that is too deep to be exact holds less.
                prop_assert!(bursts <= most(capacity) && (kind.has_burst() || bursts == most(capacity)));
                prop_assert!(parts.iter().all(|part| part.algorithm.kind() == kind && part.period() == whole.period()));
                prop_assert_eq!(all(replicas).map(|share| share.of(few)).sum::<u64>(), few, "what is left is never more");
            }
        }

        #[test]
        fn a_share_is_one_number(rank in 0..1000_usize, replicas in 0..1000_usize) {
            match Share::new(rank, replicas) {
                Some(share) => prop_assert_eq!(Share::from_bits(share.to_bits()), Some(share)),
                None => prop_assert!(rank >= replicas),
            }
        }
    }

    #[test]
    fn one_replica_has_all_and_no_number_is_no_share() {
        let limit =
            Limit::new(7, Unit::Hour, NonZeroU32::MIN, Kind::TokenBucket, NonZeroU64::new(3)).unwrap();
        assert_eq!(Share::new(0, 1).unwrap().of_rate(&limit), limit.rate);
        assert_eq!((Share::from_bits(0), Share::new(0, 0)), (None, None));
    }
}
