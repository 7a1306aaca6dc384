//! A token bucket per connection against floods of frames.
//!
//! Every frame that does not advance a request costs a token: pings, settings, resets, priorities, window updates,
//! empty or tiny DATA, unknown frames, malformed requests. Each response earns tokens, and so does time, slowly. Honest
//! peers stay far above zero; each flood with a CVE number exhausts the bucket after [`Limits::BURST`] frames, and the
//! connection ends with `ENHANCE_YOUR_CALM`. What a stream is served for earns back the token of its frame: an Envoy
//! reports thousands of new quotas in as many small frames.

use std::time::{Duration, Instant};

use super::frame::Reason;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flood {
    /// Header blocks that are too large or have too many frames.
    Headers,
    /// Empty or tiny DATA frames.
    Data,
    /// Malformed requests.
    Malformed,
    /// Streams beyond the limit.
    Refused,
    /// Requests that are cancelled at once (CVE-2023-44487).
    Resets,
    /// Frames on closed streams.
    ClosedStreams,
    Pings,
    Settings,
    Priorities,
    WindowUpdates,
    /// GOAWAY frames, and frames of unknown types.
    Others,
}

pub(super) struct Limits {
    tokens: u32,
    exceeded_by: Option<Flood>,
    refilled: Instant,
}

/// A reset after this time is a caller's timeout rather than a rapid reset attack (CVE-2023-44487).
pub(super) const RAPID_RESET: Duration = Duration::from_millis(10);

/// DATA frames below this size that do not end a request cost a token.
pub(super) const SMALL_DATA: usize = 64;

/// The cost of a malformed request, which is reset (CVE-2025-8671).
pub(super) const MALFORMED: u32 = 4;

/// A token pays for this many visits of open streams, which take 4 ns each.
const VISITS_SHIFT: u32 = 6;

impl Limits {
    pub(super) const BURST: u32 = 2_000;

    /// Tokens per response. Clients send several frames per request: grpc-go sends a `PING` and two `WINDOW_UPDATE`.
    const PER_ANSWER: u32 = 8;

    const PER_SECOND: u128 = 100;

    pub(super) fn new(now: Instant) -> Self {
        Self { tokens: Self::BURST, exceeded_by: None, refilled: now }
    }

    #[inline]
    pub(super) fn spend(&mut self, tokens: u32, flood: Flood) -> Result<(), Reason> {
        let Some(left) = self.tokens.checked_sub(tokens) else { return self.exceed(flood) };
        self.tokens = left;
        Ok(())
    }

    /// Spends tokens for a frame whose work is a visit of each stream.
    pub(super) fn spend_visits(&mut self, streams: usize, flood: Flood) -> Result<(), Reason> {
        self.spend(u32::try_from(streams >> VISITS_SHIFT).unwrap_or(u32::MAX), flood)
    }

    pub(super) fn exceed(&mut self, flood: Flood) -> Result<(), Reason> {
        self.exceeded_by = Some(flood);
        Err(Reason::EnhanceYourCalm)
    }

    pub(super) fn exceeded_by(&self) -> Option<Flood> {
        self.exceeded_by
    }

    #[inline]
    pub(super) fn answered(&mut self) {
        self.add(Self::PER_ANSWER);
    }

    /// A message of an open stream was served, and pays for the frame that brought it.
    pub(super) fn served(&mut self) {
        self.add(1);
    }

    #[inline]
    pub(super) fn refill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.refilled);
        let earned = elapsed.as_millis() * Self::PER_SECOND / 1000;
        if earned > 0 {
            self.refilled = now;
            self.add(u32::try_from(earned).unwrap_or(Self::BURST));
        }
    }

    #[inline]
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
            limits.spend(1, Flood::Pings).unwrap();
        }
        assert_eq!(limits.exceeded_by(), None);
        assert_eq!(limits.spend(1, Flood::Pings), Err(Reason::EnhanceYourCalm));
        assert_eq!(limits.exceeded_by(), Some(Flood::Pings));
        limits.refill(now + Duration::from_millis(9));
        assert!(limits.spend(1, Flood::Pings).is_err());
        limits.refill(now + Duration::from_millis(10));
        assert!(limits.spend(1, Flood::Pings).is_ok() && limits.spend(1, Flood::Pings).is_err());
        limits.answered();
        assert!(
            limits.spend(Limits::PER_ANSWER, Flood::Pings).is_ok() && limits.spend(1, Flood::Pings).is_err()
        );
        limits.refill(now + Duration::from_secs(3600));
        assert!(limits.spend(Limits::BURST, Flood::Pings).is_ok() && limits.spend(1, Flood::Pings).is_err());
    }
}
