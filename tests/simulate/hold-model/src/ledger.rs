//! What the store keeps: what is spent in each window, and the holds of each request.

use crate::{Protocol, REQUESTS, SLOTS, Slip, WINDOWS};

/// A hold of a request in a slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) enum Entry {
    /// There was none, or it was settled or forgotten: the store cannot tell.
    #[default]
    Absent,
    /// It ended before it began, because nobody got the id.
    Tombstone,
    Open {
        window: usize,
    },
    /// It ended or expired without a cost, and is remembered for a late one.
    Charged {
        window: usize,
        hits: u8,
        by: By,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum By {
    /// The end of its own request.
    End,
    Operator,
    Expiry,
}

/// What a command does to a hold.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Closing {
    Settle(u8),
    End,
    /// Nobody got the id.
    Cancel,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Ledger {
    pub(crate) entries: [[Entry; SLOTS]; REQUESTS],
    /// `None` once the counter has expired.
    pub(crate) spent: [[Option<u8>; SLOTS]; WINDOWS],
    /// For the properties: what spending may exceed the limit by, as the callers know it.
    pub(crate) excess: [[u8; SLOTS]; WINDOWS],
    /// For the properties: the window of each hold and what it was charged last.
    pub(crate) charged: [[Option<(usize, u8)>; SLOTS]; REQUESTS],
    /// For the properties: the first cost that was taken.
    pub(crate) taken: [[Option<u8>; SLOTS]; REQUESTS],
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self {
            entries: [[Entry::Absent; SLOTS]; REQUESTS],
            spent: [[Some(0); SLOTS]; WINDOWS],
            excess: [[0; SLOTS]; WINDOWS],
            charged: [[None; SLOTS]; REQUESTS],
            taken: [[None; SLOTS]; REQUESTS],
        }
    }

    /// True if the request holds its estimate now.
    pub(crate) fn hold(&mut self, model: &Protocol, request: usize, slot: usize, window: usize) -> bool {
        let entry = self.entries[request][slot];
        if entry == Entry::Tombstone && model.slip != Some(Slip::NoTombstone) {
            return false;
        }
        let open = self.entries.iter().filter(|own| own[slot] == Entry::Open { window }).count();
        let open = u8::try_from(open).expect("there are few requests");
        let held = if model.slip == Some(Slip::ChecksOnlySpent) { 0 } else { open * model.held() };
        if self.spent[window][slot].unwrap_or(0) + held + model.held() > model.limit {
            return false;
        }
        self.entries[request][slot] = Entry::Open { window };
        true
    }

    pub(crate) fn close(
        &mut self,
        model: &Protocol,
        request: usize,
        slot: usize,
        closing: Closing,
        now: usize,
    ) {
        match closing {
            Closing::Settle(cost) => self.settle(model, request, slot, cost, now),
            Closing::End => self.end(model, request, slot, By::End),
            Closing::Cancel => self.cancel(request, slot),
        }
    }

    fn cancel(&mut self, request: usize, slot: usize) {
        self.entries[request][slot] = match self.entries[request][slot] {
            Entry::Absent | Entry::Tombstone => Entry::Tombstone,
            Entry::Open { .. } => Entry::Absent,
            Entry::Charged { window, hits, .. } => {
                self.add(window, slot, 0, hits);
                self.charged[request][slot] = Some((window, 0));
                Entry::Absent
            }
        };
    }

    fn settle(&mut self, model: &Protocol, request: usize, slot: usize, cost: u8, now: usize) {
        let (window, before, covered) = match self.entries[request][slot] {
            Entry::Open { window } => (window, 0, model.held()),
            // An end that overtakes the settle of its own request is no excuse.
            Entry::Charged { window, hits, by: By::End } => (window, hits, model.held()),
            Entry::Charged { window, hits, .. } => {
                let is_against_held = model.slip == Some(Slip::LateAgainstHeld);
                (window, hits, if is_against_held { model.held() } else { hits })
            }
            Entry::Absent if model.slip == Some(Slip::SettlesAgain) => {
                let Some((window, _)) = self.charged[request][slot] else { return };
                self.add(window, slot, cost, 0);
                return;
            }
            Entry::Absent | Entry::Tombstone => return,
        };
        let is_late = self.entries[request][slot] != Entry::Open { window };
        let charged_in = if is_late && model.slip == Some(Slip::LateInNewWindow) { now } else { window };
        self.add(charged_in, slot, cost, before);
        self.excess[window][slot] += cost.saturating_sub(covered);
        self.charged[request][slot] = Some((window, cost));
        self.taken[request][slot] = Some(cost);
        self.entries[request][slot] = Entry::Absent;
    }

    /// Charges what is unknown. Does nothing without an open hold.
    pub(crate) fn end(&mut self, model: &Protocol, request: usize, slot: usize, by: By) {
        let Entry::Open { window } = self.entries[request][slot] else { return };
        let hits = model.unknown.unwrap_or(model.held());
        let is_free = by == By::Expiry && model.slip == Some(Slip::ExpiryIsFree);
        self.add(window, slot, if is_free { 0 } else { hits }, 0);
        self.excess[window][slot] += hits.saturating_sub(model.held());
        self.charged[request][slot] = Some((window, hits));
        self.entries[request][slot] = Entry::Charged { window, hits, by };
    }

    /// A counter that has expired stays so.
    fn add(&mut self, window: usize, slot: usize, hits: u8, instead_of: u8) {
        if let Some(spent) = &mut self.spent[window][slot] {
            *spent = (*spent + hits).saturating_sub(instead_of);
        }
    }
}
