//! The slots of a shard, in buckets, in pieces of one size.
//!
//! A shard reads and writes whole buckets. A key has two of them and stands in either, so whatever is done with a
//! key reads the slots of two buckets and no more.
//!
//! Shards grow one after the other. If each asked for one block, the allocator would serve each growth from
//! pages for blocks of that size, and those of the last size would stay resident for the few shards that are
//! still in them: a third more than the slots take. Pieces of one size are used again by whoever grows next.

use smallvec::SmallVec;

/// What a piece takes: one of the allocator's own sizes, so that nothing is lost behind it.
const PIECE_BYTES: usize = 4096;

/// Slots of a bucket. Ten buckets of 24-byte slots fill a piece to the last 16 bytes, and two buckets that are
/// filled evenly hold a table together until 90 to 95 % of its slots are taken.
pub(super) const BUCKET: usize = 17;

/// Packed to 4 bytes: with a state of 8 bytes a slot has 24 and no padding.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
pub(super) struct Slot<S> {
    pub(super) tag: Tag,
    pub(super) state: S,
    /// The second at which the state is over; 0 where none is.
    pub(super) end: u32,
}

/// What stands for a key within its shard: 64 bits that also choose its buckets, and 32 more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(C, packed(4))]
pub(super) struct Tag {
    pub(super) home: u64,
    pub(super) more: u32,
}

/// How many slots a bucket has and how many buckets a shard has at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    pub(super) bucket: usize,
    pub(super) max_buckets: usize,
}

/// The place of one slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct At {
    bucket: usize,
    slot: usize,
}

/// Where a new key goes.
pub(super) struct Room {
    pub(super) at: At,
    /// Every slot of both buckets holds a state that has not ended.
    pub(super) is_full: bool,
}

/// Buckets of slots.
pub(super) struct Slots<S> {
    pieces: SmallVec<[Box<[Slot<S>]>; 1]>,
    /// Slots of one bucket.
    bucket: usize,
    buckets: usize,
}

impl Shape {
    /// The shape with the most slots that are no more than these.
    pub(super) fn within(slots: usize) -> Self {
        let slots = slots.max(1);
        let max_buckets = slots.div_ceil(BUCKET);
        // Smaller buckets for small tables; large ones lose less by leaving out the last bucket.
        let even = Self { bucket: slots.checked_div(max_buckets).unwrap_or(1), max_buckets };
        let large = Self { bucket: BUCKET, max_buckets: slots.checked_div(BUCKET).unwrap_or_default() };
        if large.slots() >= even.slots() { large } else { even }
    }

    /// How many slots there are at most.
    pub(super) fn slots(self) -> usize {
        self.bucket.saturating_mul(self.max_buckets)
    }
}

impl<S: Copy + Default> Slots<S> {
    /// How many buckets stand in one piece. A slot is much smaller than a piece.
    const BUCKETS_IN_A_PIECE: usize = {
        let in_a_piece = PIECE_BYTES / size_of::<Slot<S>>() / BUCKET;
        if in_a_piece > 0 { in_a_piece } else { 1 }
    };

    /// So many buckets of this size, all empty.
    pub(super) fn empty(bucket: usize, buckets: usize) -> Self {
        let slot = Slot { tag: Tag { home: 0, more: 0 }, state: S::default(), end: 0 };
        let mut left = buckets;
        let pieces = std::iter::from_fn(|| {
            let here = left.min(Self::BUCKETS_IN_A_PIECE);
            left = left.saturating_sub(here);
            (here > 0).then(|| vec![slot; here.saturating_mul(bucket)].into_boxed_slice())
        });
        Self { pieces: pieces.collect(), bucket, buckets }
    }

    /// How many buckets a shard has that grows from so many: 15 % more, in whole pieces.
    pub(super) fn grown(buckets: usize, max_buckets: usize) -> usize {
        let more = (buckets / 7).max(1);
        let grown = buckets.saturating_add(more);
        let grown = if grown > Self::BUCKETS_IN_A_PIECE {
            grown.checked_next_multiple_of(Self::BUCKETS_IN_A_PIECE).unwrap_or(grown)
        } else {
            grown
        };
        grown.min(max_buckets)
    }

    pub(super) fn buckets(&self) -> usize {
        self.buckets
    }

    /// Slots of one bucket.
    pub(super) fn bucket_size(&self) -> usize {
        self.bucket
    }

    pub(super) fn bytes(&self) -> usize {
        self.bucket.saturating_mul(self.buckets).saturating_mul(size_of::<Slot<S>>())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot<S>> {
        self.pieces.iter().flatten()
    }

    /// The slots of one piece; nothing where there is none.
    pub(super) fn piece_mut(&mut self, piece: usize) -> Option<&mut [Slot<S>]> {
        self.pieces.get_mut(piece).map(|piece| &mut **piece)
    }

    pub(super) fn get(&self, at: At) -> Option<&Slot<S>> {
        self.bucket(at.bucket).get(at.slot)
    }

    pub(super) fn get_mut(&mut self, at: At) -> Option<&mut Slot<S>> {
        let (piece, start) = self.place(at.bucket);
        self.pieces.get_mut(piece)?.get_mut(start.saturating_add(at.slot))
    }

    /// The slot that bears this tag, whether its state has ended or not.
    pub(super) fn find(&self, tag: Tag) -> Option<At> {
        let in_bucket = |bucket| {
            let slot = self.bucket(bucket).iter().position(|slot| { slot.tag } == tag && slot.end != 0)?;
            Some(At { bucket, slot })
        };
        let [first, second] = self.homes(tag);
        in_bucket(first).or_else(|| in_bucket(second))
    }

    /// The best slot for a new key: one that is empty or whose state has ended, in the bucket that holds fewer
    /// others; where there is none, the one that ends soonest. None only where there is no slot at all.
    pub(super) fn room(&self, tag: Tag, now: u32) -> Option<Room> {
        let [first, second] = self.homes(tag).map(|bucket| self.room_in(bucket, now));
        let (first, second) = (first?, second?);
        let both_full = first.live.min(second.live) >= self.bucket;
        let take_second = if both_full { second.end < first.end } else { second.live < first.live };
        let at = if take_second { second.at } else { first.at };
        Some(Room { at, is_full: both_full })
    }

    /// As [`Self::room`]; but where both buckets are full, a state of theirs goes to the other bucket of its key,
    /// if that has room, and leaves its slot to the new key. At most 68 buckets are read.
    pub(super) fn room_after_displacing(&mut self, tag: Tag, now: u32) -> Option<Room> {
        let room = self.room(tag, now)?;
        if !room.is_full {
            return Some(room);
        }
        let displaced = self.homes(tag).into_iter().find_map(|bucket| self.displace(bucket, now));
        Some(displaced.map_or(room, |at| Room { at, is_full: false }))
    }

    /// Empties a slot of this bucket by moving its state to the other bucket of its key.
    fn displace(&mut self, bucket: usize, now: u32) -> Option<At> {
        let other = |slot: &Slot<S>| self.homes(slot.tag).into_iter().find(|home| *home != bucket);
        let (slot, to) = self.bucket(bucket).iter().enumerate().find_map(|(at, slot)| {
            let room = self.room_in(other(slot)?, now)?;
            (room.live < self.bucket).then_some((at, room.at))
        })?;
        let from = At { bucket, slot };
        let moved = *self.get(from)?;
        *self.get_mut(to)? = moved;
        self.get_mut(from)?.end = 0;
        Some(from)
    }

    fn room_in(&self, bucket: usize, now: u32) -> Option<RoomInBucket> {
        let slots = self.bucket(bucket);
        let live = slots.iter().filter(|slot| slot.end > now).count();
        let soonest = slots.iter().enumerate().min_by_key(|(_, slot)| slot.end);
        soonest.map(|(at, slot)| RoomInBucket { at: At { bucket, slot: at }, end: slot.end, live })
    }

    /// The buckets of a key: two, unless there is only one.
    fn homes(&self, tag: Tag) -> [usize; 2] {
        let first = self.scaled(tag.home);
        let second = self.scaled(tag.home.rotate_left(32));
        if first != second {
            return [first, second];
        }
        let next = first.saturating_add(1);
        [first, if next < self.buckets { next } else { 0 }]
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the upper half of a product with a usize is below it"
    )]
    fn scaled(&self, hash: u64) -> usize {
        // The product's upper half spreads the hash evenly over any number of buckets.
        (u128::from(hash).wrapping_mul(self.buckets as u128) >> 64) as usize
    }

    fn bucket(&self, bucket: usize) -> &[Slot<S>] {
        let (piece, start) = self.place(bucket);
        let slots = self.pieces.get(piece).and_then(|piece| piece.get(start..));
        slots.and_then(|slots| slots.get(..self.bucket)).unwrap_or_default()
    }

    /// The piece of a bucket, and where in it the bucket begins.
    #[expect(clippy::arithmetic_side_effects, reason = "`BUCKETS_IN_A_PIECE` is at least 1")]
    fn place(&self, bucket: usize) -> (usize, usize) {
        let (piece, within) = (bucket / Self::BUCKETS_IN_A_PIECE, bucket % Self::BUCKETS_IN_A_PIECE);
        (piece, within.saturating_mul(self.bucket))
    }
}

/// The slot of a bucket that ends soonest, and how many states of the bucket have not ended.
struct RoomInBucket {
    at: At,
    end: u32,
    live: usize,
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
    fn every_bucket_has_slots_of_its_own() {
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
    fn growth_is_by_a_seventh_in_whole_pieces_up_to_the_most() {
        let grown = |buckets| Slots::<u64>::grown(buckets, 71);
        assert_eq!([0, 1, 9, 10, 20, 60, 70, 71].map(grown), [1, 2, 10, 20, 30, 70, 71, 71]);
    }
}
