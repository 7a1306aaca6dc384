//! Fixed windows: a counter for each whole unit of time since 1970, begun at 0 and never refused a hit.
//!
//! The state is the count. The window's start is part of the counter's key, as in the Go service, so
//! that a new window is a new counter, and both services count in the same one.

use super::Hits;
use crate::{clock::Time, rules::Unit};

/// The second at which the window that `now` lies in began.
#[must_use]
pub const fn window_start(now: Time, unit: Unit) -> u64 {
    now.seconds() - now.seconds() % unit.seconds()
}

/// The moment at which the window that `now` lies in ends.
#[must_use]
pub const fn window_end(now: Time, unit: Unit) -> Time {
    Time::from_seconds(window_start(now, unit) + unit.seconds())
}

/// Whole seconds until the window ends; at least 1.
#[must_use]
pub const fn seconds_until_reset(now: Time, unit: Unit) -> u64 {
    unit.seconds() - now.seconds() % unit.seconds()
}

/// The count after these hits.
#[must_use]
pub const fn count(before: u64, hits: Hits) -> u64 {
    match hits {
        Hits::Take(hits) => before.saturating_add(hits),
        Hits::GiveBack(hits) => before.saturating_sub(hits),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn windows_are_cut_from_1970() {
        let now = Time::from_micros(125_900_000);
        assert_eq!(window_start(now, Unit::Minute), 120);
        assert_eq!(window_end(now, Unit::Minute), Time::from_seconds(180));
        assert_eq!(seconds_until_reset(now, Unit::Minute), 55);
        assert_eq!(seconds_until_reset(Time::from_seconds(120), Unit::Minute), 60);
    }

    #[test]
    fn a_counter_neither_overflows_nor_falls_below_nothing() {
        assert_eq!(count(u64::MAX, Hits::Take(1)), u64::MAX);
        assert_eq!(count(3, Hits::GiveBack(5)), 0);
    }

    proptest! {
        #[test]
        fn now_lies_in_its_window(seconds in 0..5_000_000_000_u64, unit in prop::sample::select(&Unit::ALL[..])) {
            let now = Time::from_seconds(seconds);
            prop_assert!(window_start(now, unit) <= seconds && now < window_end(now, unit));
            prop_assert_eq!(seconds + seconds_until_reset(now, unit), window_end(now, unit).seconds());
        }
    }
}
