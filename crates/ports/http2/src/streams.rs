//! The open streams of a connection by number, and the streams that were reset last.

use std::{sync::Arc, time::Instant};

use hashbrown::HashMap;

use super::meter::{Work, count};
use budget::{Budget, Reservation};

/// Streams of a connection that are not charged to the budget. Further ones are charged in steps of as many, because
/// all threads share the budget.
const FREE: usize = 8;

/// The charge for a stream: its entry and the state of its call, about 500 bytes for an unfinished one, rounded up.
const CHARGE: usize = 768;

/// An empty table that had room for more streams is not kept for the next calls. The number is that of the paid streams,
/// because a table's `capacity` shrinks with the tombstones of removed ones.
const KEPT: usize = 24;

/// The open streams; `C` is the state of a call.
pub(super) struct Streams<C> {
    /// Entries leave through [`remove`](Self::remove) and [`drain`](Self::drain), which keep count of the blocked.
    pub(super) open: HashMap<u32, Stream<C>>,
    pub(super) blocked: usize,
    /// The number of streams that may be open without a further charge.
    paid: usize,
    share: Reservation,
}

pub(super) struct Stream<C> {
    /// Negative after the peer has reduced `SETTINGS_INITIAL_WINDOW_SIZE`.
    pub(super) send_window: i64,
    pub(super) receive_window: i64,
    /// The rest of the content-length, if one was sent.
    pub(super) missing: Option<u64>,
    /// The peer has not ended its side.
    pub(super) receiving: bool,
    pub(super) opened: Instant,
    pub(super) outgoing: Option<Box<Outgoing>>,
    pub(super) call: C,
}

/// Data that is blocked by the peer's windows.
pub(super) struct Outgoing {
    pub(super) data: Vec<u8>,
    pub(super) sent: usize,
    pub(super) end: End,
    pub(super) share: Reservation,
    pub(super) since: Instant,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    Open,
    Data,
    Trailers(Vec<u8>),
}

impl<C> Streams<C> {
    pub(super) fn new(budget: &Arc<Budget>) -> Self {
        Self { open: HashMap::new(), blocked: 0, paid: FREE, share: Reservation::new(budget) }
    }

    /// Charges one more stream; false if the budget is exhausted.
    pub(super) fn reserve(&mut self) -> bool {
        if self.open.len() < self.paid {
            return true;
        }
        // FREE of these are not charged.
        let is_charged = self.share.resize(self.paid * CHARGE);
        if is_charged {
            self.paid += FREE;
        }
        is_charged
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<Stream<C>> {
        let removed = self.open.remove(&id);
        if removed.as_ref().is_some_and(|stream| stream.outgoing.is_some()) {
            self.uncount_blocked();
        }
        if self.open.is_empty() && self.paid > FREE {
            if self.paid > KEPT {
                self.open = HashMap::new();
            }
            self.paid = FREE;
            self.share.resize(0);
        }
        removed
    }

    pub(super) fn blocked(&self) -> Vec<u32> {
        if self.blocked == 0 {
            return Vec::new();
        }
        count(Work::Visited, self.open.len());
        self.open.iter().filter(|(_, stream)| stream.outgoing.is_some()).map(|(id, _)| *id).collect()
    }

    /// Keeps blocked data of a stream that has none yet.
    pub(super) fn block(&mut self, id: u32, outgoing: Outgoing) {
        if let Some(stream) = self.open.get_mut(&id) {
            stream.outgoing = Some(Box::new(outgoing));
            self.blocked += 1;
        }
    }

    /// Takes the data of a stream that is no longer blocked.
    pub(super) fn unblock(&mut self, id: u32) -> Option<Box<Outgoing>> {
        let outgoing = self.open.get_mut(&id)?.outgoing.take()?;
        self.uncount_blocked();
        Some(outgoing)
    }

    #[expect(clippy::expect_used, reason = "asserts that the count is that of the blocked streams")]
    fn uncount_blocked(&mut self) {
        self.blocked = self.blocked.checked_sub(1).expect("a blocked stream is counted");
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = Stream<C>> {
        self.blocked = 0;
        self.open.drain().map(|(_, stream)| stream)
    }
}

const REMEMBERED: usize = 16;

/// The streams that one side reset last.
///
/// A frame on a closed stream is ignored if we reset the stream, a stream error if the peer did, and a connection error
/// if both sides had ended it (RFC 9113, section 5.1).
#[derive(Default)]
pub(super) struct Resets {
    last: [u32; REMEMBERED],
    next: usize,
    forgotten: u32,
}

impl Resets {
    pub(super) fn add(&mut self, id: u32) {
        if let Some(place) = self.last.get_mut(self.next) {
            self.forgotten = self.forgotten.max(std::mem::replace(place, id));
        }
        self.next = self.next.wrapping_add(1) & (REMEMBERED - 1);
    }

    pub(super) fn contains(&self, id: u32) -> bool {
        self.last.contains(&id)
    }

    /// False for a stream that was not reset.
    pub(super) fn may_contain(&self, id: u32) -> bool {
        id <= self.forgotten || self.contains(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens streams until the budget is exhausted, and returns their number.
    fn fill(streams: &mut Streams<()>, most: u32) -> u32 {
        let now = Instant::now();
        (0..most)
            .find(|id| {
                let fits = streams.reserve();
                if fits {
                    let stream = Stream {
                        send_window: 0,
                        receive_window: 0,
                        missing: None,
                        receiving: true,
                        opened: now,
                        outgoing: None,
                        call: (),
                    };
                    streams.open.insert(*id, stream);
                }
                !fits
            })
            .unwrap_or(most)
    }

    #[test]
    fn streams_beyond_the_first_few_of_a_connection_are_charged_until_it_has_none() {
        let budget = Budget::new(4 * FREE * CHARGE);
        let [mut a, mut b] = [(); 2].map(|()| Streams::new(&budget));
        let free = u32::try_from(FREE).unwrap();
        assert_eq!(fill(&mut a, free), free);
        assert_eq!(budget.used(), 0);
        for id in 0..free {
            a.remove(id);
        }
        assert_eq!(fill(&mut a, 1_000), 5 * free, "the budget allows four more times as many");
        assert_eq!(budget.used(), 4 * FREE * CHARGE);
        assert_eq!(fill(&mut b, 1_000), free, "the others have their free ones");
        for id in 1..5 * free {
            a.remove(id);
        }
        assert_eq!(budget.used(), 4 * FREE * CHARGE);
        a.remove(0);
        assert_eq!((budget.used(), a.open.capacity()), (0, 0));
        assert_eq!(fill(&mut a, 1_000), 5 * free);
        drop((a, b));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn remembers_the_last_resets_and_never_confuses_streams() {
        let mut resets = Resets::default();
        for id in (1..=31).step_by(2) {
            resets.add(id);
        }
        assert!(
            resets.contains(1) && resets.contains(31) && !resets.may_contain(33) && !resets.may_contain(2)
        );
        resets.add(40);
        assert!(!resets.contains(1) && resets.may_contain(1) && !resets.may_contain(2));
        assert!(resets.contains(3) && resets.contains(40));
    }
}
