//! The counter in Redis, and the hash of its leases: `lease.lua` and `return_hits.lua`.

use crate::{
    Grant, REPLICAS,
    hits::Hits,
    replica::{Number, Receipt},
};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Redis {
    pub(crate) counter: Option<u8>,
    /// The last grant of each replica.
    pub(crate) grants: [Option<Number>; REPLICAS],
    /// The hits that were added to this counter and not returned.
    pub(crate) has: Hits,
}

impl Redis {
    /// Adds hits to the counter if they are within the limit. Returns the counter too.
    pub(crate) fn lease(
        &mut self,
        from: usize,
        hits: u8,
        receipt: Receipt,
        limit: u8,
        added: &mut u8,
        is_blind: bool,
    ) -> (Grant, u8) {
        let count = self.counter.unwrap_or(0);
        let has_earlier = match (receipt.confirmed, self.counter, self.grants[from]) {
            (None, ..) => true,
            (Some(confirmed), Some(_), Some(known)) => {
                known.is_from(confirmed).is_some() && receipt.requested.is_from(known).is_some()
            }
            _ => false,
        };
        if !has_earlier && !is_blind {
            return (Grant::Lost, count);
        }
        if count + hits > limit {
            return (Grant::Refused, count);
        }
        self.grants[from] = Some(receipt.requested);
        (Grant::Added(self.add(hits, added)), count + hits)
    }

    /// Adds a hit, even above the limit. Returns it, and the counter.
    pub(crate) fn count(&mut self, added: &mut u8) -> (Hits, u8) {
        let hit = self.add(1, added);
        (hit, self.counter.unwrap_or(0))
    }

    fn add(&mut self, hits: u8, added: &mut u8) -> Hits {
        let new = Hits::first_of(*added + hits).without(Hits::first_of(*added));
        *added += hits;
        self.counter = Some(self.counter.unwrap_or(0) + hits);
        self.has = self.has.or(new);
        new
    }

    /// Subtracts unspent hits if the counter has them, by the number of the lease's grants.
    pub(crate) fn give_back(
        &mut self,
        from: usize,
        hits: Hits,
        own: u8,
        confirmed: Option<Number>,
        is_any: bool,
    ) {
        let Some(count) = self.counter.filter(|count| *count >= own) else { return };
        let is_known = match (self.grants[from], confirmed) {
            (Some(known), Some(confirmed)) => known.is_from(confirmed).is_some(),
            _ => false,
        };
        if !is_known && !is_any {
            return;
        }
        self.counter = Some(count.saturating_sub(hits.count()));
        self.has.remove(hits);
    }
}
