//! The slots of a shard, in buckets, in pieces of one size.
//!
//! A key is in one of two buckets, so an operation on it reads two buckets and no more. Shards grow one after the
//! other. If each were one block, the allocator would serve each growth from pages for blocks of that size, and pages
//! of the previous size would stay resident for the few shards that still use them: a third more than the slots take.
//! Freed pieces are reused by the next shard that grows.

use smallvec::SmallVec;

use super::{
    BUCKET,
    eviction::{Candidate, Mark, Used, victim},
};

/// The size of a piece: one of the allocator's own sizes, so that nothing is wasted.
const PIECE_BYTES: usize = 4096;

/// Packed to 4 bytes: with a state of 8 bytes a slot has 24 and no padding.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
pub(super) struct Slot<S> {
    pub(super) tag: Tag,
    pub(super) mark: Mark,
    pub(super) state: S,
    /// The second at which the state expires; 0 for an empty slot.
    pub(super) end: u32,
}

/// A key within its shard: 64 bits of its hash that also select the buckets, and 16 more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(C, packed(2))]
pub(super) struct Tag {
    pub(super) home: u64,
    pub(super) more: u16,
}

/// The slots of a bucket, and the maximum number of buckets of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    pub(super) bucket: usize,
    pub(super) max_buckets: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct At {
    bucket: usize,
    slot: usize,
}

/// A slot without a live state.
struct Room {
    at: At,
    live: usize,
}

pub(super) struct Slots<S> {
    pub(super) pieces: SmallVec<[Box<[Slot<S>]>; 1]>,
    pub(super) bucket: usize,
    pub(super) buckets: usize,
}

pub(super) struct Census {
    pub(super) live: usize,
    pub(super) over: usize,
}

impl<S> Slot<S> {
    pub(super) fn is_over(&self) -> bool {
        self.mark.used() == Used::Over
    }
}

impl Shape {
    /// The shape with the most slots up to this number.
    pub(super) fn within(slots: usize) -> Self {
        let slots = slots.max(1);
        let max_buckets = slots.div_ceil(BUCKET);
        // Smaller buckets for small tables; large ones lose less by leaving out the last bucket.
        let even = Self { bucket: slots.checked_div(max_buckets).unwrap_or(1), max_buckets };
        let large = Self { bucket: BUCKET, max_buckets: slots.checked_div(BUCKET).unwrap_or_default() };
        if large.slots() >= even.slots() { large } else { even }
    }

    pub(super) fn slots(self) -> usize {
        self.bucket.saturating_mul(self.max_buckets)
    }
}

impl<S: Copy + Default> Slots<S> {
    /// Buckets of a piece. A slot is much smaller than a piece.
    const BUCKETS_IN_A_PIECE: usize = {
        let in_a_piece = PIECE_BYTES / size_of::<Slot<S>>() / BUCKET;
        if in_a_piece > 0 { in_a_piece } else { 1 }
    };

    pub(super) fn empty(bucket: usize, buckets: usize) -> Self {
        let slot = Slot { tag: Tag { home: 0, more: 0 }, mark: Mark::default(), state: S::default(), end: 0 };
        let mut left = buckets;
        let pieces = std::iter::from_fn(|| {
            let here = left.min(Self::BUCKETS_IN_A_PIECE);
            left -= here;
            (here > 0).then(|| vec![slot; here * bucket].into_boxed_slice())
        });
        Self { pieces: pieces.collect(), bucket, buckets }
    }

    /// The number of buckets after growth: 15 % more, in whole pieces.
    pub(super) fn grown(buckets: usize, max_buckets: usize) -> usize {
        let more = (buckets / 7).max(1);
        let grown = buckets + more;
        let grown = if grown > Self::BUCKETS_IN_A_PIECE {
            grown.checked_next_multiple_of(Self::BUCKETS_IN_A_PIECE).unwrap_or(grown)
        } else {
            grown
        };
        grown.min(max_buckets)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bucket * self.buckets * size_of::<Slot<S>>()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot<S>> {
        self.pieces.iter().flatten()
    }

    pub(super) fn census(&self, now: u32) -> Census {
        let live = || self.iter().filter(|slot| slot.end > now);
        Census { live: live().count(), over: live().filter(|slot| slot.is_over()).count() }
    }

    pub(super) fn get(&self, at: At) -> Option<&Slot<S>> {
        self.bucket(at.bucket).get(at.slot)
    }

    pub(super) fn get_mut(&mut self, at: At) -> Option<&mut Slot<S>> {
        let (piece, start) = self.place(at.bucket);
        self.pieces.get_mut(piece)?.get_mut(start + at.slot)
    }

    /// The slot with this tag, whether its state has expired or not.
    pub(super) fn find(&self, tag: Tag) -> Option<At> {
        let in_bucket = |bucket| {
            let slot = self.bucket(bucket).iter().position(|slot| { slot.tag } == tag && slot.end != 0)?;
            Some(At { bucket, slot })
        };
        let [first, second] = self.homes(tag);
        in_bucket(first).or_else(|| in_bucket(second))
    }

    /// A slot without a live state for a new key, in the bucket with fewer live states. `None` if both buckets are full.
    pub(super) fn room(&self, tag: Tag, now: u32) -> Option<At> {
        let [first, second] = self.homes(tag).map(|bucket| self.room_in(bucket, now));
        [first, second].into_iter().flatten().min_by_key(|room| room.live).map(|room| room.at)
    }

    /// As [`room`](Self::room), but if both buckets are full, one of their states moves to the other bucket of its key, if
    /// that has room. Reads at most 68 buckets.
    pub(super) fn room_after_displacing(&mut self, tag: Tag, now: u32) -> Option<At> {
        self.room(tag, now)
            .or_else(|| self.homes(tag).into_iter().find_map(|bucket| self.displace(bucket, now)))
    }

    /// The live state in two full buckets that is evicted for a new key. `None` if there are no slots.
    pub(super) fn victim(&self, tag: Tag, mark: Mark) -> Option<At> {
        let [first, second] = self.homes(tag);
        let slots = self.bucket(first).iter().chain(self.bucket(second));
        let candidates = slots.map(|slot| Candidate { mark: slot.mark, end: slot.end, size: 1 });
        let at = victim(candidates, Candidate { mark, end: 0, size: 1 }, tag.more.into())?;
        Some(match at.checked_sub(self.bucket) {
            Some(slot) => At { bucket: second, slot },
            None => At { bucket: first, slot: at },
        })
    }

    /// Empties a slot of this bucket: its state moves to the other bucket of its key.
    fn displace(&mut self, bucket: usize, now: u32) -> Option<At> {
        let other = |slot: &Slot<S>| self.homes(slot.tag).into_iter().find(|home| *home != bucket);
        let (slot, to) = self.bucket(bucket).iter().enumerate().find_map(|(at, slot)| {
            let room = self.room_in(other(slot)?, now)?;
            Some((at, room.at))
        })?;
        let from = At { bucket, slot };
        let moved = *self.get(from)?;
        *self.get_mut(to)? = moved;
        self.get_mut(from)?.end = 0;
        Some(from)
    }

    fn room_in(&self, bucket: usize, now: u32) -> Option<Room> {
        let slots = self.bucket(bucket);
        let (slot, end) = slots.iter().map(|slot| slot.end).enumerate().min_by_key(|(_, end)| *end)?;
        let live = || slots.iter().filter(|slot| slot.end > now).count();
        (end <= now).then(|| Room { at: At { bucket, slot }, live: live() })
    }

    /// The two buckets of a key, or the same one twice.
    fn homes(&self, tag: Tag) -> [usize; 2] {
        let first = self.scaled(tag.home);
        let second = self.scaled(tag.home.rotate_left(32));
        if first != second {
            return [first, second];
        }
        let next = first + 1;
        [first, if next < self.buckets { next } else { 0 }]
    }

    /// Maps a hash evenly to any number of buckets.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the upper half of a product with a usize is below it"
    )]
    fn scaled(&self, hash: u64) -> usize {
        (u128::from(hash).wrapping_mul(self.buckets as u128) >> 64) as usize
    }

    fn bucket(&self, bucket: usize) -> &[Slot<S>] {
        let (piece, start) = self.place(bucket);
        let slots = self.pieces.get(piece).and_then(|piece| piece.get(start..));
        slots.and_then(|slots| slots.get(..self.bucket)).unwrap_or_default()
    }

    /// The piece of a bucket, and the bucket's first slot in it.
    fn place(&self, bucket: usize) -> (usize, usize) {
        let piece = bucket / Self::BUCKETS_IN_A_PIECE;
        let within = bucket % Self::BUCKETS_IN_A_PIECE;
        (piece, within * self.bucket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_loses_little_and_exceeds_nothing() {
        for slots in 1..20_000 {
            let shape = Shape::within(slots);
            assert!(shape.slots() <= slots && (1..=BUCKET).contains(&shape.bucket), "{slots}: {shape:?}");
            assert!(shape.slots() * 10 >= slots * 9, "{slots}: {shape:?}");
        }
        assert_eq!(Shape::within(0), Shape { bucket: 1, max_buckets: 1 });
    }

    #[test]
    fn buckets_share_no_slots() {
        for (bucket, buckets) in [(1, 1), (5, 3), (17, 10), (17, 11), (17, 57), (16, 25)] {
            let mut slots: Slots<u64> = Slots::empty(bucket, buckets);
            for at in 0..buckets * bucket {
                let at = At { bucket: at / bucket, slot: at % bucket };
                let slot = slots.get_mut(at).unwrap();
                slot.state += 1;
            }
            assert!(slots.iter().all(|slot| { slot.state } == 1));
            assert_eq!((slots.iter().count(), slots.bytes()), (bucket * buckets, bucket * buckets * 24));
            assert!(slots.get_mut(At { bucket: buckets, slot: 0 }).is_none());
        }
    }

    #[test]
    fn grows_by_a_seventh_in_whole_pieces_up_to_the_maximum() {
        let grown = |buckets| Slots::<u64>::grown(buckets, 71);
        assert_eq!([0, 1, 9, 10, 20, 60, 70, 71].map(grown), [1, 2, 10, 20, 30, 70, 71, 71]);
    }
}
