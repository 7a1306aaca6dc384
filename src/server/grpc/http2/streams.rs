//! The open streams of a connection, by their number, and those that ended with a reset.

use std::{sync::Arc, time::Instant};

use hashbrown::HashMap;

use super::budget::{Budget, Share};

/// Streams that a connection has room for without being charged.
pub(super) const FREE: usize = 64;

/// What each further one is charged: its entry, and what a call keeps of itself.
const CHARGE: usize = 512;

/// The open streams; `C` is what the service keeps of a call.
pub(super) struct Streams<C> {
    open: HashMap<u32, Stream<C>>,
    /// How many of them have data that waits.
    blocked: usize,
    share: Share,
}

/// One open stream.
pub(super) struct Stream<C> {
    /// What may be sent; below 0 where the peer has taken back what it allowed.
    pub(super) send_window: i64,
    /// What may be received.
    pub(super) receive_window: i64,
    /// What is missing of the content-length, if one was sent.
    pub(super) missing: Option<u64>,
    /// The peer has not ended its side.
    pub(super) receiving: bool,
    pub(super) opened: Instant,
    /// What waits for the peer's windows.
    pub(super) outgoing: Option<Box<Outgoing>>,
    pub(super) call: C,
}

/// Data that waits for a window, and what follows it.
pub(super) struct Outgoing {
    pub(super) data: Vec<u8>,
    pub(super) sent: usize,
    pub(super) end: End,
    pub(super) share: Share,
}

/// What follows the data of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in super::super) enum End {
    /// More data.
    Open,
    /// Nothing.
    Data,
    /// A block of trailers.
    Trailers(Vec<u8>),
}

impl<C> Streams<C> {
    pub(super) fn new(budget: &Arc<Budget>) -> Self {
        Self { open: HashMap::new(), blocked: 0, share: Share::new(budget) }
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn get(&self, id: u32) -> Option<&Stream<C>> {
        self.open.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Stream<C>> {
        self.open.get_mut(&id)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Stream<C>)> {
        self.open.iter_mut().map(|(id, stream)| (*id, stream))
    }

    /// Takes room for one more stream; false if the budget does not allow so many.
    pub(super) fn reserve(&mut self) -> bool {
        let charged = self.open.len().saturating_sub(FREE - 1);
        charged == 0 || self.share.resize(charged.saturating_mul(CHARGE))
    }

    pub(super) fn insert(&mut self, id: u32, stream: Stream<C>) {
        self.open.insert(id, stream);
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<Stream<C>> {
        let removed = self.open.remove(&id);
        if removed.as_ref().is_some_and(|stream| stream.outgoing.is_some()) {
            self.blocked = self.blocked.saturating_sub(1);
        }
        if self.open.is_empty() && self.open.capacity() > FREE {
            self.open = HashMap::new();
            self.share.resize(0);
        }
        removed
    }

    /// Streams whose data waits.
    pub(super) fn blocked(&self) -> Vec<u32> {
        if self.blocked == 0 {
            return Vec::new();
        }
        self.open.iter().filter(|(_, stream)| stream.outgoing.is_some()).map(|(id, _)| *id).collect()
    }

    pub(super) fn has_blocked(&self) -> bool {
        self.blocked > 0
    }

    /// Keeps data that waits; it must not have any yet.
    pub(super) fn block(&mut self, id: u32, outgoing: Outgoing) {
        if let Some(stream) = self.open.get_mut(&id) {
            stream.outgoing = Some(Box::new(outgoing));
            self.blocked = self.blocked.saturating_add(1);
        }
    }

    /// The data of this stream waits no more.
    pub(super) fn unblock(&mut self, id: u32) -> Option<Box<Outgoing>> {
        let outgoing = self.open.get_mut(&id)?.outgoing.take()?;
        self.blocked = self.blocked.saturating_sub(1);
        Some(outgoing)
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = Stream<C>> {
        self.blocked = 0;
        self.open.drain().map(|(_, stream)| stream)
    }
}

/// Streams that are remembered by their number.
const REMEMBERED: usize = 16;

/// The streams that one side reset last.
///
/// A frame on a closed stream is a late one if we reset the stream, an error of the stream if the peer did, and an
/// error of the connection if both sides had ended it (RFC 9113, section 5.1). `connection` decides with this which
/// it is.
#[derive(Default)]
pub(super) struct Resets {
    last: [u32; REMEMBERED],
    next: usize,
    /// Streams above this one are not forgotten.
    forgotten: u32,
}

impl Resets {
    pub(super) fn add(&mut self, id: u32) {
        if let Some(place) = self.last.get_mut(self.next) {
            self.forgotten = self.forgotten.max(std::mem::replace(place, id));
        }
        self.next = self.next.wrapping_add(1) & (REMEMBERED - 1);
    }

    /// True for a stream that was reset and is remembered.
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

    #[test]
    fn a_reset_stream_is_never_taken_for_another() {
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
