//! The length of a window: one second to ten years.

use crate::clock::Time;

/// The length of a limit's window in seconds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Window(u32);

#[expect(
    clippy::arithmetic_side_effects,
    reason = "a window has 1 to 315,360,000 seconds, and a time is less than 2⁴⁵ seconds after 1970"
)]
impl Window {
    /// Ten years of 365 days.
    pub const MAX: Self = Self(315_360_000);

    /// A window of so many seconds: 1 to [`MAX`](Self::MAX).
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the match arm bounds the value")]
    pub const fn of_seconds(seconds: u64) -> Option<Self> {
        match seconds {
            1..=315_360_000 => Some(Self(seconds as u32)),
            _ => None,
        }
    }

    /// Its length in seconds.
    #[must_use]
    pub const fn seconds(self) -> u64 {
        self.0 as u64
    }

    /// Its length in microseconds.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.seconds() * 1_000_000
    }

    /// The start of the window that contains `now`. Windows are aligned to the Unix epoch.
    #[must_use]
    pub const fn start(self, now: Time) -> Time {
        Time::from_seconds(now.seconds() - now.seconds() % self.seconds())
    }

    /// The end of the window that contains `now`.
    #[must_use]
    pub const fn end(self, now: Time) -> Time {
        Time::from_seconds(self.start(now).seconds() + self.seconds())
    }

    /// Seconds until the window that contains `now` ends; at least 1.
    #[must_use]
    pub const fn seconds_left(self, now: Time) -> u64 {
        self.seconds() - now.seconds() % self.seconds()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn has_a_second_to_ten_years() {
        let seconds = |seconds| Window::of_seconds(seconds).map(Window::seconds);
        assert_eq!([0, 1, 315_360_000, 315_360_001].map(seconds), [None, Some(1), Some(315_360_000), None]);
        assert_eq!(Window::MAX.seconds(), 315_360_000);
    }

    #[test]
    fn is_cut_from_1970() {
        let (minute, now) = (Window::of_seconds(60).unwrap(), Time::from_micros(125_900_000));
        assert_eq!((minute.start(now), minute.end(now)), (Time::from_seconds(120), Time::from_seconds(180)));
        assert_eq!((minute.seconds_left(now), minute.seconds_left(Time::from_seconds(120))), (55, 60));
    }

    proptest! {
        #[test]
        fn now_lies_in_its_window(now in 0..u64::MAX / 2, seconds in 1..=315_360_000_u64) {
            let (now, window) = (Time::from_micros(now), Window::of_seconds(seconds).unwrap());
            prop_assert!(window.start(now) <= now && now < window.end(now));
            prop_assert_eq!(window.end(now).micros() - window.start(now).micros(), window.micros());
            prop_assert_eq!(now.seconds() + window.seconds_left(now), window.end(now).seconds());
        }
    }
}
