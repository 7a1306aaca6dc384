//! The cost of what a peer sends, for any script of frames: the work, the memory held and the bytes sent back stay within
//! a multiple of the bytes received. `script` generates the scripts, `meter` and the allocator count, and the services of
//! the port run them: `server::grpc::fuzz`.
//!
//! Work has a price in nanoseconds, an estimate of the order of an operation in a release build.

use super::allocations::{Allocations, allocations};
use crate::meter;

/// What a connection may cost.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The bytes held and sent for each byte received.
    pub held: usize,
    pub sent: usize,
    /// What a byte sent is worth besides, in nanoseconds.
    pub answer: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct Cost {
    bounds: Bounds,
    /// Bytes that were received.
    pub received: usize,
    /// Bytes that were sent back.
    pub sent: usize,
    /// The price of the work beyond what the bytes received were worth, in nanoseconds. Cheap bytes earn no credit for
    /// costly ones.
    pub debt: usize,
    /// The memory that is held, in bytes.
    pub held: usize,
}

impl Cost {
    /// What a received byte is worth, in nanoseconds.
    const WORTH: usize = 100;

    /// The price of an allocation, with its release.
    const ALLOCATION: usize = 30;

    /// The price of a visit of a field, a stream or a call.
    const VISIT: usize = 4;

    const POLL: usize = 100;

    /// The price of writing a byte back.
    const SENT: usize = 1;

    /// Bytes scanned, or allocated and filled, in a nanosecond.
    const SCANNED: usize = 8;

    pub const fn new(bounds: Bounds) -> Self {
        Self { bounds, received: 0, sent: 0, debt: 0, held: 0 }
    }

    /// Adds what an action has cost, by the counters of the thread before and after it. Returns the price of its work.
    pub fn add(&mut self, before: Allocations, received: usize, sent: usize) -> usize {
        let [scanned, copied, visited, polled] = meter::take();
        let after = allocations();
        let calls = after.calls.wrapping_sub(before.calls);
        let bytes = after.bytes.wrapping_sub(before.bytes).wrapping_add(scanned).wrapping_add(copied);
        let work = calls * Self::ALLOCATION
            + visited * Self::VISIT
            + polled * Self::POLL
            + bytes / Self::SCANNED
            + sent * Self::SENT;
        let worth = Self::WORTH * received + self.bounds.answer * sent;
        self.received += received;
        self.sent += sent;
        self.debt = (self.debt + work).saturating_sub(worth);
        self.held = self.held.wrapping_add(after.live).wrapping_sub(before.live);
        work
    }

    /// What was spent, and the most of it: 2 ms of work at once, and for a connection itself 32 KB of memory and 4 KB of
    /// output.
    fn spent(&self) -> [(&'static str, usize, usize); 3] {
        let Self { bounds, received, sent, debt, held } = *self;
        // A connection may free what an earlier one has left with a service.
        let held = held.cast_signed().max(0).cast_unsigned();
        [
            ("ns of work beyond their worth", debt, 2_000_000),
            ("bytes held", held, bounds.held * received + 32_768),
            ("bytes sent", sent, bounds.sent * received + 4096),
        ]
    }

    pub fn excess(&self) -> Option<String> {
        let over = self.spent().into_iter().find(|(_, spent, most)| spent > most);
        over.map(|(what, spent, most)| format!("{spent} {what} for {} bytes, at most {most}", self.received))
    }

    /// The costlier of two connections.
    pub fn max(self, other: Self) -> Self {
        if self.load() < other.load() { other } else { self }
    }

    /// The largest part of a bound that was spent, in percent.
    pub(super) fn load(&self) -> usize {
        self.spent().map(|(_, spent, most)| 100 * spent / most).into_iter().max().unwrap_or(0)
    }
}
