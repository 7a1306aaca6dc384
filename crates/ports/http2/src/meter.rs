//! Counts work, in builds for tests and fuzzing: `cost` bounds it by what was received. Compiles to nothing in others.

/// Work that a peer may cause without an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    Scanned,
    Copied,
    /// A field, a stream or a call that was visited.
    Visited,
    Polled,
}

#[cfg(any(test, feature = "testing"))]
thread_local! {
    static DONE: std::cell::Cell<[usize; 4]> = const { std::cell::Cell::new([0; 4]) };
}

#[cfg(any(test, feature = "testing"))]
pub fn count(work: Work, amount: usize) {
    let mut done = DONE.get();
    if let Some(place) = done.get_mut(work as usize) {
        *place = place.wrapping_add(amount);
    }
    DONE.set(done);
}

#[cfg(not(any(test, feature = "testing")))]
pub const fn count(_: Work, _: usize) {}

/// The bytes that were scanned and copied, the visits, and the polls, since the last call.
#[cfg(any(test, feature = "testing"))]
pub fn take() -> [usize; 4] {
    DONE.take()
}
