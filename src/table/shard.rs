//! One shard of a [`Table`](super::Table): open addressing with linear probing, grown by 15 %.
//!
//! A slot is empty (its end is 0), live, or over (its end has come). What is over still carries the
//! probe on to what lies behind it, and is taken by the next new key that passes.

use super::{
    Usage,
    slots::{Slot, Slots, Tag},
};

/// How many neighbours are looked at for the one that ends soonest.
const NEIGHBOURS: usize = 16;

pub(super) struct Shard<S> {
    slots: Slots<S>,
    /// Slots that are not empty.
    used: usize,
    max_entries: usize,
    expired: u64,
    evicted: u64,
}

/// Where a key is, or where it may be put.
#[derive(Clone, Copy)]
enum Place {
    Found(usize),
    Free(usize),
    /// Every slot of the probe is live.
    Nowhere,
}

impl<S: Copy + Default> Shard<S> {
    pub(super) fn new(max_entries: usize) -> Self {
        Self { slots: Slots::none(), used: 0, max_entries, expired: 0, evicted: 0 }
    }

    pub(super) fn get(&self, tag: Tag, now: u32) -> Option<S> {
        match self.place(tag, now) {
            Place::Found(at) => Some(self.slots[at].state),
            _ => None,
        }
    }

    pub(super) fn change<R>(
        &mut self,
        tag: Tag,
        now: u32,
        change: impl FnOnce(S, u32) -> (Option<(S, u32)>, R),
    ) -> R {
        let place = self.place(tag, now);
        let (state, end) = match place {
            Place::Found(at) => (self.slots[at].state, self.slots[at].end),
            _ => (S::default(), 0),
        };
        let (kept, result) = change(state, end);
        if let Some((state, end)) = kept {
            let at = match place {
                Place::Found(at) => at,
                place => self.make_room(place, tag, now),
            };
            self.slots[at] = Slot { tag, state, end: end.max(1) };
        }
        result
    }

    pub(super) fn remove(&mut self, tag: Tag, now: u32) {
        if let Place::Found(at) = self.place(tag, now) {
            self.clear(at);
        }
    }

    /// Gives back what has ended, and the memory when most of it is unused.
    pub(super) fn sweep(&mut self, now: u32) {
        let live = self.live(now);
        if live < self.used {
            self.rebuild(live, now);
        }
    }

    pub(super) fn usage(&self) -> Usage {
        Usage { entries: self.used, bytes: self.slots.bytes(), expired: self.expired, evicted: self.evicted }
    }

    fn place(&self, tag: Tag, now: u32) -> Place {
        let mut free = Place::Nowhere;
        for at in self.probe(tag) {
            let slot = self.slots[at];
            if slot.end == 0 {
                return if matches!(free, Place::Nowhere) { Place::Free(at) } else { free };
            }
            if slot.end <= now {
                if matches!(free, Place::Nowhere) {
                    free = Place::Free(at);
                }
            } else if { slot.tag } == tag {
                return Place::Found(at);
            }
        }
        free
    }

    /// All slots, from the one where the key belongs.
    fn probe(&self, tag: Tag) -> impl Iterator<Item = usize> + use<S> {
        let home = self.home(tag);
        (home..self.slots.len()).chain(0..home)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the upper half of a product with a usize is below it"
    )]
    fn home(&self, tag: Tag) -> usize {
        // The product's upper half spreads the hash evenly over any number of slots.
        ((u128::from(tag.home) * self.slots.len() as u128) >> 64) as usize
    }

    /// A slot for a new key, which `place` did not find.
    fn make_room(&mut self, place: Place, tag: Tag, now: u32) -> usize {
        if let Place::Free(at) = place
            && self.slots[at].end != 0
        {
            self.expired += 1;
            return at;
        }
        if self.used >= self.max_entries {
            let live = self.live(now);
            if live < self.used {
                self.rebuild(live, now);
            } else {
                self.evict(tag);
            }
        } else if (self.used + 1) * 20 > self.slots.len() * 17 {
            let live = self.live(now);
            self.rebuild(live + 1, now);
        }
        self.used += 1;
        match self.place(tag, now) {
            Place::Free(at) => at,
            // The table was just made larger than what it holds.
            Place::Found(_) | Place::Nowhere => 0,
        }
    }

    /// Drops the neighbour that ends soonest.
    fn evict(&mut self, tag: Tag) {
        let neighbours = self.probe(tag).filter(|at| self.slots[*at].end != 0).take(NEIGHBOURS);
        if let Some(at) = neighbours.min_by_key(|at| self.slots[*at].end) {
            self.clear(at);
            self.evicted += 1;
        }
    }

    /// Empties a slot, and moves up what was probed past it.
    fn clear(&mut self, at: usize) {
        let slots = self.slots.len();
        let mut hole = at;
        for next in (1..slots).map(|step| (at + step) % slots) {
            if self.slots[next].end == 0 {
                break;
            }
            let belongs = self.home(self.slots[next].tag);
            // True unless its home lies between the hole and itself, where the hole is not in its way.
            if (next + slots - belongs) % slots >= (next + slots - hole) % slots {
                self.slots[hole] = self.slots[next];
                hole = next;
            }
        }
        self.slots[hole].end = 0;
        self.used -= 1;
    }

    fn live(&self, now: u32) -> usize {
        self.slots.iter().filter(|slot| slot.end > now).count()
    }

    /// Moves what is live into slots for `entries`, with room for 15 % more than its bound on load asks.
    fn rebuild(&mut self, entries: usize, now: u32) {
        let slots = if entries == 0 { 0 } else { entries * 23 / 17 + 1 };
        let old = std::mem::replace(&mut self.slots, Slots::at_least(slots));
        let before = std::mem::take(&mut self.used);
        for slot in old.iter().filter(|slot| slot.end > now) {
            if let Place::Free(at) = self.place(slot.tag, now) {
                self.slots[at] = *slot;
                self.used += 1;
            }
        }
        self.expired += (before - self.used) as u64;
    }
}
