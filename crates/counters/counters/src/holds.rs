//! What a request holds, by the batch of its checks, and the identity by which its holds are settled.
//!
//! The limiter chooses the identity before it asks the store. Its text names the slots in which the request holds, so
//! that every replica can settle it.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use smallvec::SmallVec;

use clock::Time;
use limit::{Algorithm, HoldRule, Verdict, holds::How};

use crate::{batch::Check, id::CounterId};

/// How much a store may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MostHolds {
    pub of_counter: usize,
    /// `HOLDS_MAX`: requests, in a cluster of a slot.
    pub in_all: usize,
    /// `HOLDS_MAX_BYTES`: of the holds in this process.
    pub bytes: usize,
}

impl Default for MostHolds {
    fn default() -> Self {
        Self { of_counter: 100_000, in_all: 1_000_000, bytes: 256 << 20 }
    }
}

#[derive(Clone, Debug)]
pub struct Hold {
    pub rule: Arc<HoldRule>,
    /// The name of the rule in metrics, as a number below 2⁵³.
    pub rule_id: u64,
    /// `None` reads.
    pub estimate: Option<u64>,
    /// What the store found.
    pub found: Option<Held>,
}

/// What a store found of a check that holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    pub spent: u64,
    /// With what the check holds itself.
    pub held: u64,
    pub fits: bool,
    /// The check holds: all that must fit do.
    pub holds: bool,
    /// It does not fit because there are too many holds.
    pub is_full: bool,
    /// The time until the first hold expires that is in the way of a check that does not fit.
    pub frees_in: Option<Duration>,
}

impl Held {
    /// What is held may become free at any time, at the latest when it expires.
    pub fn verdict(self, check: &Check, now: Time) -> Verdict {
        let capacity = check.limit.requests_per_unit;
        let estimate = check.hits.taken().min(capacity);
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let frees_in = self.frees_in.map(micros);
        let is_concurrency = matches!(check.limit.algorithm, Algorithm::Concurrency(_));
        let reset = if is_concurrency {
            frees_in.unwrap_or(0)
        } else {
            check.limit.period().end(now).micros().saturating_sub(now.micros())
        };
        let fits_without_holds = self.spent.saturating_add(estimate) <= capacity;
        let expiry = frees_in.filter(|_| fits_without_holds);
        let wait =
            if is_concurrency { expiry } else { Some(expiry.map_or(reset, |expiry| expiry.min(reset))) };
        let used = self.spent.saturating_add(self.held);
        Verdict {
            admitted: self.fits,
            consumed: self.fits && self.holds,
            count: used.saturating_add(if self.holds { 0 } else { estimate }).min(capacity),
            remaining: capacity.saturating_sub(used),
            reset,
            retry_after: if self.fits { Some(0) } else { wait.filter(|_| capacity > 0) },
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct HoldId {
    pub random: u128,
    /// Where it holds; empty for holds of this process alone, while the store fails.
    pub slots: SmallVec<[u16; 2]>,
}

/// The characters of the random part, and of each slot.
const RANDOM: usize = 22;
const SLOT: usize = 3;
const LONGEST: usize = 128;

impl HoldId {
    /// As many slots as a text of 128 characters names.
    pub const MAX_SLOTS: usize = (LONGEST - RANDOM) / SLOT;
}

impl fmt::Display for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&random_text(self.random))?;
        for slot in &self.slots {
            f.write_str(&URL_SAFE_NO_PAD.encode(slot.to_be_bytes()))?;
        }
        Ok(())
    }
}

/// The random part of an identity as text.
fn random_text(random: u128) -> String {
    URL_SAFE_NO_PAD.encode(random.to_be_bytes())
}

impl FromStr for HoldId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (random, slots) = text.split_at_checked(RANDOM).filter(|_| text.len() <= LONGEST).ok_or(())?;
        let bytes: [u8; 16] =
            URL_SAFE_NO_PAD.decode(random).ok().and_then(|bytes| bytes.try_into().ok()).ok_or(())?;
        let (chunks, rest) = slots.as_bytes().as_chunks::<SLOT>();
        if !rest.is_empty() {
            return Err(());
        }
        let slot = |chunk: &[u8; SLOT]| {
            let bytes: [u8; 2] =
                URL_SAFE_NO_PAD.decode(chunk).ok().and_then(|bytes| bytes.try_into().ok()).ok_or(())?;
            Ok(u16::from_be_bytes(bytes))
        };
        let slots: SmallVec<[u16; 2]> = chunks.iter().map(slot).collect::<Result<_, ()>>()?;
        // Each slot once, in order: so an identity has one text.
        let is_sorted = slots.is_sorted_by(|one, other| one < other);
        if !is_sorted {
            return Err(());
        }
        Ok(Self { random: u128::from_be_bytes(bytes), slots })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Close {
    /// At this cost; the first one wins.
    Settle(u64),
    End,
    /// Nobody got the identity: at no cost, also if the request holds later.
    Cancel,
}

/// What is to be done with the holds of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Closing {
    pub id: HoldId,
    pub close: Close,
    /// Only the holds of this currency.
    pub currency: Option<Box<str>>,
    /// The slots in which it is still to be done.
    pub slots: SmallVec<[u16; 2]>,
    /// An earlier attempt failed, and Redis may have executed it.
    pub is_repeated: bool,
}

impl Closing {
    pub fn new(id: HoldId, close: Close, currency: Option<Box<str>>) -> Self {
        let slots = id.slots.clone();
        Self { id, close, currency, slots, is_repeated: false }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Closed {
    pub rule_id: u64,
    pub how: How,
    pub held: u64,
    /// What was charged for it before, and is charged now.
    pub before: u64,
    pub after: u64,
    /// Its counter, if it is known.
    pub counter: Option<CounterId>,
    /// The full key of its counter, if the store has it.
    pub full_key: Option<Box<str>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenHold {
    /// The index of its check.
    pub check: usize,
    pub id: HoldId,
    pub held: u64,
    pub expires: Time,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_identity_is_read_as_it_was_written(random: u128, slots in prop::collection::btree_set(any::<u16>(), 0..36)) {
            let id = HoldId { random, slots: slots.into_iter().collect() };
            let text = id.to_string();
            prop_assert!(text.len() <= 128 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)));
            prop_assert_eq!(text.parse(), Ok(id));
        }

        #[test]
        fn any_text_is_refused_or_the_only_text_of_its_identity(text in "[A-Za-z0-9_=+/-]{0,140}") {
            if let Ok(id) = text.parse::<HoldId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }
}
