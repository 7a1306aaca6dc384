//! How much a connection may cost beyond the requests that it is for.
//!
//! Every frame that carries no request forward costs a token: pings, settings, resets, priorities, window
//! updates, empty or tiny pieces, unknown frames, malformed requests. Tokens come with each answer and slowly
//! with time. Honest peers stay far from the end; each flood that has a CVE number meets it after
//! [`Limits::BURST`] frames, and the connection ends with `ENHANCE_YOUR_CALM`.

use std::time::{Duration, Instant};

use super::frame::Reason;
use crate::telemetry::metrics::PeerError;

pub(super) struct Limits {
    tokens: u32,
    /// What the last token was missing for.
    exceeded_by: Option<PeerError>,
    /// When tokens came with time.
    refilled: Instant,
}

/// A reset after this time is a caller's timeout rather than an attempt to make work for nothing.
pub(super) const RAPID: Duration = Duration::from_millis(10);

/// Data frames below this size that do not end their request cost a token.
pub(super) const TINY: usize = 64;

/// What a malformed request costs: the service answers it with a reset (CVE-2025-8671).
pub(super) const MALFORMED: u32 = 4;

impl Limits {
    /// As many as can be saved.
    pub(super) const BURST: u32 = 2_000;

    /// Tokens for each answer. A client may send several frames for each of its requests: grpc-go sends a `PING`
    /// and two of `WINDOW_UPDATE`.
    const PER_ANSWER: u32 = 8;

    /// Tokens a second.
    const PER_SECOND: u128 = 100;

    pub(super) fn new(now: Instant) -> Self {
        Self { tokens: Self::BURST, exceeded_by: None, refilled: now }
    }

    /// # Errors
    /// When there are not so many tokens.
    pub(super) fn spend(&mut self, tokens: u32, flood: PeerError) -> Result<(), Reason> {
        let Some(left) = self.tokens.checked_sub(tokens) else { return self.exceed(flood) };
        self.tokens = left;
        Ok(())
    }

    /// # Errors
    /// Always: the connection ends with this reason.
    pub(super) fn exceed(&mut self, flood: PeerError) -> Result<(), Reason> {
        self.exceeded_by = Some(flood);
        Err(Reason::EnhanceYourCalm)
    }

    /// Why the connection ends that broke the protocol, or exceeded its limits.
    pub(super) fn peer_error(&self) -> PeerError {
        self.exceeded_by.unwrap_or(PeerError::Protocol)
    }

    pub(super) fn answered(&mut self) {
        self.add(Self::PER_ANSWER);
    }

    pub(super) fn refill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.refilled);
        let earned = elapsed.as_millis().saturating_mul(Self::PER_SECOND) / 1000;
        if earned > 0 {
            self.refilled = now;
            self.add(u32::try_from(earned).unwrap_or(Self::BURST));
        }
    }

    fn add(&mut self, tokens: u32) {
        self.tokens = self.tokens.saturating_add(tokens).min(Self::BURST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_one_more_is_not() {
        let now = Instant::now();
        let mut limits = Limits::new(now);
        for _ in 0..Limits::BURST {
            limits.spend(1, PeerError::PingFlood).unwrap();
        }
        assert_eq!(limits.peer_error(), PeerError::Protocol);
        assert_eq!(limits.spend(1, PeerError::PingFlood), Err(Reason::EnhanceYourCalm));
        assert_eq!(limits.peer_error(), PeerError::PingFlood);
        limits.refill(now + Duration::from_millis(9));
        assert!(limits.spend(1, PeerError::PingFlood).is_err());
        limits.refill(now + Duration::from_millis(10));
        assert!(
            limits.spend(1, PeerError::PingFlood).is_ok() && limits.spend(1, PeerError::PingFlood).is_err()
        );
        limits.answered();
        assert!(
            limits.spend(Limits::PER_ANSWER, PeerError::PingFlood).is_ok()
                && limits.spend(1, PeerError::PingFlood).is_err()
        );
        limits.refill(now + Duration::from_secs(3600));
        assert!(
            limits.spend(Limits::BURST, PeerError::PingFlood).is_ok()
                && limits.spend(1, PeerError::PingFlood).is_err()
        );
    }
}
