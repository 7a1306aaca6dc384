//! Memory that many connections share: what callers send and do not finish, and replies that they do not read.
//!
//! A [`Budget`] has a limit. Memory is charged to it by capacity before it is allocated, with a [`Reservation`], which returns what it
//! has when its owner ends. On the gRPC port these are unfinished messages and header blocks, incomplete frames, streams beyond the
//! first few of a connection, and responses that the peer's windows block; a message that is complete in one read is not stored
//! and needs no budget.
//!
//! A message larger than a stream's initial window is granted its whole length before the window is opened for it, so that
//! a granted message always completes. Grants take at most half of the budget, so that large messages cannot starve small
//! ones.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

pub struct Budget {
    limit: usize,
    used: AtomicUsize,
    granted: AtomicUsize,
}

impl Budget {
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0), granted: AtomicUsize::new(0) })
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }
}

/// A reservation of bytes, returned to the budget on drop.
pub struct Reservation {
    budget: Arc<Budget>,
    bytes: usize,
    granted: usize,
}

impl Reservation {
    pub fn new(budget: &Arc<Budget>) -> Self {
        Self { budget: budget.clone(), bytes: 0, granted: 0 }
    }

    /// Changes the size; false without a change if the budget is exhausted.
    pub fn resize(&mut self, bytes: usize) -> bool {
        let taken = take(&self.budget.used, bytes, self.bytes, self.budget.limit);
        if taken {
            self.bytes = bytes;
        }
        taken
    }

    /// Adds to the size, also beyond the limit of the budget.
    pub fn take(&mut self, bytes: usize) {
        self.budget.used.fetch_add(bytes, Relaxed);
        self.bytes += bytes;
    }

    /// Changes the size to a granted length; false without a change if the budget or the half for grants is exhausted.
    pub fn grant(&mut self, bytes: usize) -> bool {
        if !take(&self.budget.granted, bytes, self.granted, self.budget.limit >> 1) {
            return false;
        }
        if !self.resize(bytes) {
            self.budget.granted.fetch_sub(bytes.saturating_sub(self.granted), Relaxed);
            return false;
        }
        self.granted = bytes;
        true
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Relaxed);
        self.budget.granted.fetch_sub(self.granted, Relaxed);
    }
}

/// Replaces `old` by `new` in a counter; false without a change if the counter would exceed `limit`.
fn take(from: &AtomicUsize, new: usize, old: usize, limit: usize) -> bool {
    if new <= old {
        from.fetch_sub(old - new, Relaxed);
        return true;
    }
    let more = new - old;
    let fits = |used: usize| used.checked_add(more).filter(|used| *used <= limit);
    from.fetch_update(Relaxed, Relaxed, fits).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_stay_within_the_budget() {
        let budget = Budget::new(100);
        let (mut a, mut b) = (Reservation::new(&budget), Reservation::new(&budget));
        assert!(a.resize(60) && b.resize(39));
        assert!(b.resize(40), "at the limit");
        assert!(!b.resize(41), "one above it");
        assert_eq!(budget.used.load(Relaxed), 100);
        assert!(a.resize(59) && b.resize(41));
        drop(a);
        assert_eq!(budget.used.load(Relaxed), 41);
        drop(b);
        assert_eq!(budget.used.load(Relaxed), 0);
    }

    #[test]
    fn grants_take_at_most_half_of_the_budget() {
        let budget = Budget::new(100);
        let (mut a, mut b, mut small) =
            (Reservation::new(&budget), Reservation::new(&budget), Reservation::new(&budget));
        assert!(a.resize(10) && a.grant(30));
        assert!(!b.grant(21) && b.grant(20));
        assert!(small.resize(50) && !small.resize(51));
        drop(a);
        assert!(!b.grant(51), "at most half");
        assert!(b.grant(50));
        assert_eq!((budget.used.load(Relaxed), budget.granted.load(Relaxed)), (100, 50));
        drop((b, small));
        assert_eq!((budget.used.load(Relaxed), budget.granted.load(Relaxed)), (0, 0));
    }

    #[test]
    fn a_grant_beyond_the_free_budget_fails() {
        let budget = Budget::new(100);
        let (mut a, mut small) = (Reservation::new(&budget), Reservation::new(&budget));
        assert!(small.resize(80) && !a.grant(21) && a.grant(20));
        assert_eq!((budget.used.load(Relaxed), budget.granted.load(Relaxed)), (100, 20));
    }
}
