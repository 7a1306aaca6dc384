//! The memory that all connections together may hold for what peers send or do not take.
//!
//! One budget for the process (`GRPC_MAX_INFLIGHT_BYTES`). What is held is charged by its capacity before it is
//! allocated: unfinished messages and header blocks, parts of frames, streams beyond the first few of a
//! connection, and answers that the peer's windows keep back. A message that is complete in one read is
//! never held, so it needs no budget.
//!
//! A message larger than a stream's first window is granted all of its length at once, before the window is
//! opened for it: what was granted always completes. Grants take at most half of the budget, so that large
//! messages cannot exhaust it for small ones.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// What is left to be held.
#[derive(Debug)]
pub(in super::super) struct Budget {
    limit: usize,
    used: AtomicUsize,
    granted: AtomicUsize,
}

impl Budget {
    pub(in super::super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0), granted: AtomicUsize::new(0) })
    }

    /// Bytes that are held.
    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }
}

/// Part of the budget, given back when it is dropped.
#[derive(Debug)]
pub(in super::super) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
    granted: usize,
}

impl Share {
    pub(in super::super) fn new(budget: &Arc<Budget>) -> Self {
        Self { budget: budget.clone(), bytes: 0, granted: 0 }
    }

    /// Makes it so large; false, and nothing changes, if the budget does not allow it.
    pub(in super::super) fn resize(&mut self, bytes: usize) -> bool {
        let taken = take(&self.budget.used, bytes, self.bytes, self.budget.limit);
        if taken {
            self.bytes = bytes;
        }
        taken
    }

    /// Makes it so large as a grant; false, and nothing changes, if the budget does not allow it.
    pub(in super::super) fn grant(&mut self, bytes: usize) -> bool {
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

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Relaxed);
        self.budget.granted.fetch_sub(self.granted, Relaxed);
    }
}

/// Takes `new` in place of `old`, unless more than `limit` would be taken.
fn take(from: &AtomicUsize, new: usize, old: usize, limit: usize) -> bool {
    if new <= old {
        from.fetch_sub(old.saturating_sub(new), Relaxed);
        return true;
    }
    let more = new.saturating_sub(old);
    let fits = |used: usize| used.checked_add(more).filter(|used| *used <= limit);
    from.fetch_update(Relaxed, Relaxed, fits).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shares_together_stay_within_the_budget() {
        let budget = Budget::new(100);
        let (mut a, mut b) = (Share::new(&budget), Share::new(&budget));
        assert!(a.resize(60) && b.resize(39));
        assert!(b.resize(40), "at the limit");
        assert!(!b.resize(41), "one above it");
        assert_eq!(budget.used(), 100);
        assert!(a.resize(59) && b.resize(41));
        drop(a);
        assert_eq!(budget.used(), 41);
        drop(b);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn grants_leave_half_of_the_budget_to_others() {
        let budget = Budget::new(100);
        let (mut a, mut b, mut small) = (Share::new(&budget), Share::new(&budget), Share::new(&budget));
        assert!(a.resize(10) && a.grant(30));
        assert!(!b.grant(21) && b.grant(20));
        assert!(small.resize(50) && !small.resize(51));
        drop(a);
        assert!(!b.grant(51), "half is the most");
        assert!(b.grant(50));
        assert_eq!((budget.used(), budget.granted.load(Relaxed)), (100, 50));
        drop((b, small));
        assert_eq!((budget.used(), budget.granted.load(Relaxed)), (0, 0));
    }

    #[test]
    fn a_grant_that_the_others_leave_no_room_for_is_refused() {
        let budget = Budget::new(100);
        let (mut a, mut small) = (Share::new(&budget), Share::new(&budget));
        assert!(small.resize(80) && !a.grant(21) && a.grant(20));
        assert_eq!((budget.used(), budget.granted.load(Relaxed)), (100, 20));
    }
}
