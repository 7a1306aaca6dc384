//! Arithmetic of deadlines: moments and timeouts, which can be neither too far nor divided by zero.
//!
//! Used wherever a server is waited for.

use std::time::Duration;

use tokio::time::Instant;

/// The moment so long after another.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "a setting has at most 292 years, and an `Instant` far more"
)]
pub(in crate::store) fn after(moment: Instant, wait: Duration) -> Instant {
    moment + wait
}

/// One of so many parts of a timeout.
pub(in crate::store) fn part(timeout: Duration, parts: u32) -> Duration {
    timeout.checked_div(parts).unwrap_or(timeout)
}
