//! A replica's lease of the counter.

use crate::{Grant, hits::Hits};

/// The number of a grant. Each lease begins at a random one, far from those of all other leases.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Number {
    lease: u8,
    index: u8,
}

impl Number {
    /// How far this number is behind one of the same lease; `None` if it is before it, or of another lease.
    pub(crate) fn is_from(self, first: Self) -> Option<u8> {
        self.index.checked_sub(first.index).filter(|_| self.lease == first.lease)
    }
}

/// The numbers of the last grant that Redis confirmed, and of the last one that was requested.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Receipt {
    pub(crate) confirmed: Option<Number>,
    pub(crate) requested: Number,
}

/// What a replica knew when it sent a command.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Snapshot {
    own: u8,
    epoch: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Replica {
    pub(crate) left: Hits,
    /// The hits in the counter that this replica added.
    own: u8,
    confirmed: Option<Number>,
    requested: Option<Number>,
    /// Changes when replies to earlier requests lose their meaning.
    epoch: u8,
    /// The number of leases that began.
    leases: u8,
    pub(crate) renewing: bool,
    pub(crate) has_missed_reset: bool,
}

impl Replica {
    pub(crate) fn renew(&mut self) -> (Receipt, Snapshot) {
        self.renewing = true;
        let next = if let Some(Number { lease, index }) = self.requested {
            Number { lease, index: index + 1 }
        } else {
            self.leases += 1;
            Number { lease: self.leases, index: 0 }
        };
        self.requested = Some(next);
        (Receipt { confirmed: self.confirmed, requested: next }, self.snapshot())
    }

    /// Sends a hit to the counter, and reserves the lease's if the request has two.
    pub(crate) fn ask(&mut self, reserves: bool) -> (Hits, Snapshot) {
        let reserved = if reserves { std::mem::take(&mut self.left) } else { Hits::NONE };
        (reserved, self.snapshot())
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot { own: self.own, epoch: self.epoch }
    }

    /// The reply to a renewal.
    pub(crate) fn renewed(
        &mut self,
        grant: Grant,
        after: u8,
        receipt: Receipt,
        snapshot: Snapshot,
        checks_epoch: bool,
    ) {
        self.renewing = false;
        let is_outdated = snapshot.epoch != self.epoch || self.requested != Some(receipt.requested);
        if checks_epoch && is_outdated {
            return;
        }
        let hits = match grant {
            Grant::Lost => return self.forget(),
            Grant::Refused => Hits::NONE,
            Grant::Added(hits) => hits,
        };
        if self.add_own(hits.count(), after, snapshot) {
            return;
        }
        if grant != Grant::Refused {
            self.left = self.left.or(hits);
            self.confirmed = Some(receipt.requested);
        }
    }

    /// The reply to a counted hit.
    pub(crate) fn counted(&mut self, after: u8, snapshot: Snapshot) {
        if snapshot.epoch == self.epoch {
            self.add_own(1, after, snapshot);
        }
    }

    /// Ends the lease if the counter has fewer hits than this replica added. Returns whether it did.
    fn add_own(&mut self, hits: u8, after: u8, snapshot: Snapshot) -> bool {
        let is_lost = after < snapshot.own.min(self.own) + hits;
        if is_lost {
            self.forget();
        }
        self.own += hits;
        is_lost
    }

    /// A request failed: the hits that it reserved are there again.
    pub(crate) fn restore(&mut self, reserved: Hits, snapshot: Snapshot) {
        if snapshot.epoch == self.epoch && self.left.count() < self.own {
            self.left = self.left.or(reserved);
        }
    }

    /// Takes all hits out of the lease, to return them. Returns this replica's part of the counter before, and the last
    /// confirmed grant.
    pub(crate) fn give_back(&mut self) -> (Hits, u8, Option<Number>) {
        let (hits, own) = (std::mem::take(&mut self.left), self.own);
        self.own = own.saturating_sub(hits.count());
        (hits, own, self.confirmed)
    }

    /// The hits are lost, or the counter was reset: they are neither spent nor returned.
    pub(crate) fn forget(&mut self) {
        self.left = Hits::NONE;
        self.own = 0;
        self.confirmed = None;
        self.requested = None;
        self.epoch += 1;
    }

    /// The lease was evicted from the table: the next one knows nothing of it, but that it is another one.
    pub(crate) fn begin(&mut self, has_own_epoch: bool) {
        let Self { leases, has_missed_reset, .. } = *self;
        let epoch = if has_own_epoch { self.epoch + 1 } else { 0 };
        *self = Self { epoch, leases, has_missed_reset, ..Self::default() };
    }

    /// Messages may have been missed: replies to what was sent before mean nothing.
    pub(crate) fn distrust(&mut self) {
        self.epoch += 1;
    }
}
