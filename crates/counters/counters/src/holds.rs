//! What a request holds, by the batch of its checks, and the identity by which its holds are settled.
//!
//! The limiter chooses the identity before it asks the store. Its text names the slots in which the request holds, so
//! that every replica can settle it.

use std::{
    fmt,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use smallvec::SmallVec;

use clock::Time;
pub use limit::holds::Held;
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

impl Check {
    /// The verdict of a check that holds. What is held may become free at any time, at the latest when it expires.
    pub(crate) fn verdict_of(&self, held: Held, now: Time) -> Verdict {
        let capacity = self.limit.requests_per_unit;
        let estimate = self.hits.taken().min(capacity);
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let frees_in = held.frees_in.map(micros);
        let is_concurrency = matches!(self.limit.algorithm, Algorithm::Concurrency(_));
        let reset = if is_concurrency {
            frees_in.unwrap_or(0)
        } else {
            self.limit.period().end(now).micros().saturating_sub(now.micros())
        };
        let fits_without_holds = held.spent.saturating_add(estimate) <= capacity;
        let expiry = frees_in.filter(|_| fits_without_holds);
        let wait =
            if is_concurrency { expiry } else { Some(expiry.map_or(reset, |expiry| expiry.min(reset))) };
        let used = held.spent.saturating_add(held.held);
        Verdict {
            admitted: held.fits,
            consumed: held.fits && held.holds,
            count: used.saturating_add(if held.holds { 0 } else { estimate }).min(capacity),
            remaining: capacity.saturating_sub(used),
            reset,
            retry_after: if held.fits { Some(0) } else { wait.filter(|_| capacity > 0) },
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
#[derive(Clone)]
pub struct Closing {
    pub id: HoldId,
    pub close: Close,
    /// Only the holds of this currency.
    pub currency: Option<Box<str>>,
    /// The slots in which it is still to be done.
    pub slots: SmallVec<[u16; 2]>,
    /// Of all attempts.
    pub account: HoldAccount,
}

impl Closing {
    pub fn new(
        id: HoldId,
        close: Close,
        currency: Option<Box<str>>,
        observer: Arc<dyn HoldObserver>,
    ) -> Self {
        let slots = id.slots.clone();
        let account = HoldAccount::new(observer, matches!(close, Close::Settle(_)));
        Self { id, close, currency, slots, account }
    }
}

/// Hears what became of holds.
pub trait HoldObserver: Send + Sync {
    fn closed(&self, closed: &[Closed]);

    /// A settle has found no hold. `is_unsure`: the store failed in an attempt, which may have settled it nevertheless.
    fn found_nothing(&self, is_unsure: bool);
}

/// Tells an observer of closed holds. Whoever reads them from the store tells, so that a late reply counts although its caller
/// has left. The commands of a closing that are in flight share its account: a settle has found nothing once the last of
/// their replies has been read, or is lost, and none had a hold.
#[derive(Clone)]
pub struct HoldAccount(Arc<Accounted>);

struct Accounted {
    observer: Arc<dyn HoldObserver>,
    is_settle: bool,
    is_answered: AtomicBool,
    is_unsure: AtomicBool,
    closed: AtomicUsize,
    /// Of the closed ones, those that had not expired.
    found: AtomicUsize,
    /// One was open until then.
    was_open: AtomicBool,
}

impl HoldAccount {
    /// An account of what is found expired.
    pub fn of_expired(observer: Arc<dyn HoldObserver>) -> Self {
        Self::new(observer, false)
    }

    fn new(observer: Arc<dyn HoldObserver>, is_settle: bool) -> Self {
        Self(Arc::new(Accounted {
            observer,
            is_settle,
            is_answered: AtomicBool::new(false),
            is_unsure: AtomicBool::new(false),
            closed: AtomicUsize::new(0),
            found: AtomicUsize::new(0),
            was_open: AtomicBool::new(false),
        }))
    }

    /// The store has answered, and closed these.
    pub fn answered(&self, closed: &[Closed]) {
        let Accounted { observer, is_answered, closed: count, found, was_open, .. } = &*self.0;
        is_answered.store(true, Relaxed);
        if !closed.is_empty() {
            count.fetch_add(closed.len(), Relaxed);
            found.fetch_add(closed.iter().filter(|one| one.how != How::Expired).count(), Relaxed);
            let open = |one: &Closed| !matches!(one.how, How::Expired | How::SettledLate);
            was_open.fetch_or(closed.iter().any(open), Relaxed);
            observer.closed(closed);
        }
    }

    /// An attempt failed, and the store may have executed it.
    pub fn failed(&self) {
        self.0.is_unsure.store(true, Relaxed);
    }

    /// The number of holds that were closed.
    pub fn closed(&self) -> usize {
        self.0.closed.load(Relaxed)
    }

    /// True if a hold was open until it was closed.
    pub fn was_open(&self) -> bool {
        self.0.was_open.load(Relaxed)
    }
}

impl Drop for Accounted {
    fn drop(&mut self) {
        if self.is_settle && *self.is_answered.get_mut() && *self.found.get_mut() == 0 {
            self.observer.found_nothing(*self.is_unsure.get_mut());
        }
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
    use std::sync::Mutex;

    use faults::mutex::lock;
    use proptest::prelude::*;

    use super::*;

    /// What was closed, and whether each settle that found nothing was unsure.
    #[derive(Default)]
    struct Heard(Mutex<(usize, Vec<bool>)>);

    impl HoldObserver for Heard {
        fn closed(&self, closed: &[Closed]) {
            lock(&self.0).0 += closed.len();
        }

        fn found_nothing(&self, is_unsure: bool) {
            lock(&self.0).1.push(is_unsure);
        }
    }

    #[test]
    fn a_settle_is_unknown_once_no_reply_to_it_can_come_any_more() {
        let closed =
            |how| Closed { rule_id: 1, how, held: 4, before: 0, after: 5, counter: None, full_key: None };
        let heard = |attempts: &dyn Fn(&HoldAccount, HoldAccount)| {
            let observer = Arc::<Heard>::default();
            let id = HoldId { random: 1, slots: SmallVec::new() };
            let settle = Closing::new(id, Close::Settle(5), None, observer.clone());
            attempts(&settle.account, settle.account.clone());
            assert_eq!(lock(&observer.0).1, [], "the closing may be repeated");
            drop(settle);
            lock(&observer.0).clone()
        };
        let nothing = heard(&|repeat, _| repeat.answered(&[]));
        assert_eq!(nothing, (0, vec![false]));
        let late = heard(&|repeat, first| {
            first.failed();
            repeat.answered(&[]);
            first.answered(&[closed(How::Settled)]);
        });
        assert_eq!(late, (1, Vec::new()), "the late reply had it");
        let lost = heard(&|repeat, first| {
            first.failed();
            drop(first);
            repeat.answered(&[closed(How::Expired)]);
        });
        assert_eq!(lost, (1, vec![true]), "the lost reply may have had it");
        assert_eq!(heard(&|_, first| first.failed()), (0, Vec::new()), "it was never answered");
    }

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
