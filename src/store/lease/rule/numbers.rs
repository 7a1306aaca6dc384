//! Times and hits as numbers to calculate with.

use crate::clock::Time;

/// Seconds from one time to a later one; 0 if it is not later.
pub(super) fn seconds(from: Time, to: Time) -> f64 {
    float(to.micros().saturating_sub(from.micros())) / 1e6
}

/// The time so many seconds later.
pub(super) fn after(time: Time, seconds: f64) -> Time {
    Time::from_micros(time.micros().saturating_add(whole(seconds * 1e6)))
}

#[expect(clippy::cast_precision_loss, reason = "hits and microseconds are below 2⁵³")]
pub(super) fn float(number: u64) -> f64 {
    number as f64
}

#[expect(clippy::cast_possible_truncation, reason = "an average needs no more precision")]
pub(super) fn single(number: f64) -> f32 {
    number as f32
}

/// The integer part; 0 for what is negative.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from a float saturates, and the fraction is to be cut off"
)]
pub(super) fn whole(number: f64) -> u64 {
    number as u64
}
