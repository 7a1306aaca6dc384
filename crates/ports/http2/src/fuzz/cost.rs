//! The cost of what a peer sends, for any script of frames: the work, the memory held and the bytes sent back stay within
//! a multiple of the bytes received. `script` generates the scripts, `super::meter` and the allocator count.
//!
//! Work has a price in nanoseconds, so the bound is that of `tests/ports/cost` in another unit: 100 ns for a byte received. The
//! prices are estimates of the order of an operation in a release build; `tests/ports/cost` measures.

use std::time::{Duration, Instant};

use super::{
    ENVELOPE,
    allocations::{Allocations, allocations},
    script::{Script, Step},
};
use crate::{
    connection::{Config, Connection, Service},
    meter,
};
use budget::Budget;

/// What a connection may cost.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The bytes held and sent for each byte received.
    pub held: usize,
    pub sent: usize,
    /// What a byte sent is worth besides, in nanoseconds.
    pub answer: usize,
}

/// The bounds of a connection itself, whose service only returns what it received.
const BOUNDS: Bounds = Bounds { held: 16, sent: 16, answer: 0 };

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

const PATHS: &[&str] = &["/s/m", "/other"];

/// A service whose calls wait until the script decides them. It keeps the data of a call, and sends it back.
#[derive(Default)]
struct Waits {
    complete: Vec<u32>,
}

impl Service for Waits {
    type Fields = ();
    type Head = ();
    type Call = Vec<u8>;

    fn field(&self, (): &mut (), _: &[u8], _: &[u8]) {}

    fn head(&self, (): ()) {}

    fn open(&mut self, _: &mut Connection<Self>, _: u32, (): &()) {}

    fn data(&mut self, http: &mut Connection<Self>, id: u32, data: &[u8], end: bool) {
        let Some(call) = http.call(id) else { return };
        call.extend_from_slice(data);
        if end {
            self.complete.push(id);
        }
    }

    fn closed(&mut self, _: Vec<u8>) {}
}

impl Waits {
    fn decide(&mut self, http: &mut Connection<Self>, calls: usize) {
        for id in self.complete.drain(..calls.min(self.complete.len())) {
            let message = http.call(id).map(std::mem::take);
            http.answer(id, &ENVELOPE, &message.unwrap_or_default());
        }
    }
}

/// Runs a script against a connection.
pub fn fuzz(bytes: &[u8]) {
    if let Err(excess) = run(bytes) {
        panic!("{excess}");
    }
}

/// Runs a script against a connection, and its rest against others if it ended the first. Returns the costliest, or what
/// exceeds a bound.
fn run(bytes: &[u8]) -> Result<Cost, String> {
    let (mut costliest, mut left) = (Cost::new(BOUNDS), Some(Script::new(bytes, PATHS)));
    while let Some(mut script) = left {
        costliest = costliest.max(connection(&mut script)?);
        left = script.reconnect();
    }
    Ok(costliest)
}

/// Runs a script against a connection, until one of them ends.
fn connection(script: &mut Script<'_>) -> Result<Cost, String> {
    let (mut cost, mut now, mut rest) = (Cost::new(BOUNDS), Instant::now(), Vec::new());
    let before = allocations();
    meter::take();
    let config = Config { max_streams: 1024, budget: Budget::new(64 << 20) };
    let (mut http, mut service) = (Connection::new(config, now), Waits::default());
    cost.add(before, 0, 0);
    for step in script {
        match step {
            Step::Wait(millis) => now += Duration::from_millis(millis),
            Step::Decide(calls) => {
                let before = allocations();
                service.decide(&mut http, calls);
                let sent = std::mem::take(&mut http.out).len();
                cost.add(before, 0, sent);
            }
            Step::Send(bytes, write) => {
                for bytes in bytes.chunks(write.max(1)) {
                    rest.extend_from_slice(bytes);
                    meter::take();
                    let before = allocations();
                    let taken = http.receive(&rest, now, &mut service);
                    let sent = std::mem::take(&mut http.out).len();
                    cost.add(before, bytes.len(), sent);
                    let Ok(taken) = taken else { return Ok(cost) };
                    rest.drain(..taken);
                }
            }
        }
        if let Some(excess) = cost.excess() {
            return Err(excess);
        }
    }
    Ok(cost)
}

#[cfg(test)]
mod tests {
    use super::{super::hold, PATHS, run};

    #[test]
    fn no_script_costs_more_than_its_bytes_are_worth() {
        hold(50, PATHS, run);
    }
}
