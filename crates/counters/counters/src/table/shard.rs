//! One shard of a [`Table`](super::Table): buckets of slots, two for each key.
//!
//! A new key is stored in the emptier of its two buckets, in a slot without a live state. When all slots of both have
//! live states the shard grows by 15 %, and at its maximum size one of them is evicted ([`eviction`](super::eviction)). So
//! a full shard never reads more than two buckets for a key.

use super::{
    Kept, seconds,
    slots::{At, Shape, Slot, Slots, Tag},
};
use clock::Time;
use metrics::TableUsage;

pub(super) struct Shard<S> {
    slots: Slots<S>,
    max_buckets: usize,
    /// Without the bytes, which the slots know.
    usage: TableUsage,
}

impl<S: Copy + Default> Shard<S> {
    pub(super) fn new(shape: Shape) -> Self {
        let slots = Slots::empty(shape.bucket, 0);
        Self { slots, max_buckets: shape.max_buckets, usage: TableUsage::default() }
    }

    pub(super) fn get(&self, tag: Tag, now: u32) -> Option<S> {
        let slot = self.slots.get(self.slots.find(tag)?)?;
        (slot.end > now).then_some(slot.state)
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn mark(&self, tag: Tag, now: u32) -> Option<super::Mark> {
        let slot = self.slots.get(self.slots.find(tag)?)?;
        (slot.end > now).then_some(slot.mark)
    }

    pub(super) fn change<R>(
        &mut self,
        tag: Tag,
        now: u32,
        change: impl FnOnce(Kept<S>) -> (Option<Kept<S>>, R),
    ) -> R {
        let found = self.slots.find(tag);
        let known = found.and_then(|at| self.slots.get(at)).filter(|slot| slot.end > now);
        let before = known.map(|slot| {
            let end = Time::from_seconds(slot.end.into());
            Kept { state: slot.state, end, mark: slot.mark }
        });
        let (kept, result) = change(before.unwrap_or_default());
        if let Some(Kept { state, end, mark }) = kept {
            let new = Slot { tag, mark, state, end: seconds(end).max(1) };
            if let Some(at) = found.or_else(|| self.make_room(&new, now)) {
                self.put(at, new, now);
            }
        }
        result
    }

    pub(super) fn remove(&mut self, tag: Tag, now: u32) {
        let found = self.slots.find(tag);
        if let Some(slot) = found.and_then(|at| self.slots.get_mut(at)) {
            self.usage.expired = self.usage.expired.wrapping_add(u64::from(slot.end <= now));
            slot.end = 0;
            self.usage.entries -= 1;
        }
    }

    /// Removes expired states from one piece of the slots, and returns whether there are more pieces. After the last one
    /// it releases memory.
    pub(super) fn sweep(&mut self, piece: usize, now: u32) -> bool {
        let Some(slots) = self.slots.pieces.get_mut(piece) else {
            self.shrink(now);
            return false;
        };
        let expired = slots.iter_mut().filter(|slot| slot.end != 0 && slot.end <= now);
        let expired = expired.map(|slot| slot.end = 0).count();
        self.usage.entries -= expired;
        self.usage.expired = self.usage.expired.wrapping_add(expired as u64);
        true
    }

    pub(super) fn usage(&self) -> TableUsage {
        TableUsage { bytes: self.slots.bytes(), ..self.usage }
    }

    /// Writes a slot, and counts the state that it replaces.
    fn put(&mut self, at: At, new: Slot<S>, now: u32) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        match slot.end {
            0 => self.usage.entries += 1,
            end if end <= now => self.usage.expired = self.usage.expired.wrapping_add(1),
            _ if { slot.tag } != new.tag => {
                self.usage.evicted = self.usage.evicted.wrapping_add(1);
                self.usage.evicted_over = self.usage.evicted_over.wrapping_add(u64::from(slot.is_over()));
            }
            _ => {}
        }
        *slot = new;
    }

    fn make_room(&mut self, new: &Slot<S>, now: u32) -> Option<At> {
        if let Some(at) = self.slots.room(new.tag, now) {
            return Some(at);
        }
        if self.slots.buckets >= self.max_buckets {
            return self.slots.victim(new.tag, new.mark);
        }
        self.rebuild(Slots::<S>::grown(self.slots.buckets, self.max_buckets), Some(new.tag), now);
        self.slots.room(new.tag, now).or_else(|| self.slots.victim(new.tag, new.mark))
    }

    /// Reduces the number of buckets if many are not needed.
    fn shrink(&mut self, now: u32) {
        let wanted = if self.usage.entries == 0 {
            0
        } else {
            let needed = self.usage.entries.div_ceil(self.slots.bucket.max(1));
            Slots::<S>::grown(needed, self.max_buckets)
        };
        if wanted * 4 < self.slots.buckets * 3 {
            self.rebuild(wanted, None, now);
        }
    }

    /// Moves live states into this many buckets, or as many more as leave room for a new key. Only the maximum may have
    /// too little room.
    fn rebuild(&mut self, mut buckets: usize, new: Option<Tag>, now: u32) {
        let slots = loop {
            let (slots, fits) = self.moved(buckets, new, now);
            if fits || buckets >= self.max_buckets {
                break slots;
            }
            buckets = Slots::<S>::grown(buckets, self.max_buckets);
        };
        let before = self.slots.census(now);
        let after = slots.census(now);
        self.usage.expired = self.usage.expired.wrapping_add((self.usage.entries - before.live) as u64);
        self.usage.evicted = self.usage.evicted.wrapping_add((before.live - after.live) as u64);
        self.usage.evicted_over = self.usage.evicted_over.wrapping_add((before.over - after.over) as u64);
        (self.slots, self.usage.entries) = (slots, after.live);
    }

    /// Live states in this many buckets, and whether all of them and a new key fit. Those that do not fit evict others.
    fn moved(&self, buckets: usize, new: Option<Tag>, now: u32) -> (Slots<S>, bool) {
        let mut slots = Slots::empty(self.slots.bucket, buckets);
        let mut fits = true;
        for slot in self.slots.iter().filter(|slot| slot.end > now) {
            let room = slots.room_after_displacing(slot.tag, now);
            fits &= room.is_some();
            let at = room.or_else(|| slots.victim(slot.tag, slot.mark));
            if let Some(place) = at.and_then(|at| slots.get_mut(at)) {
                *place = *slot;
            }
        }
        let fits = fits && new.is_none_or(|tag| slots.room_after_displacing(tag, now).is_some());
        (slots, fits)
    }
}
