//! Where a shard keeps its states: slots in pieces of one size.
//!
//! Shards grow one after the other. If each asked for one block, the allocator would serve each growth from
//! pages for blocks of that size, and those of the last size would stay resident for the few shards that are
//! still in them: a third more than the slots take. Pieces of one size are used again by whoever grows next.

use std::ops::{Index, IndexMut};

use smallvec::SmallVec;

/// What a piece takes: one of the allocator's own sizes, so that nothing is lost behind it.
const PIECE_BYTES: usize = 4096;

/// The least number of slots once there are any.
const LEAST: usize = 8;

/// Packed to 4 bytes: with a state of 8 bytes a slot has 24 and no padding.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
pub(super) struct Slot<S> {
    pub(super) tag: Tag,
    pub(super) state: S,
    /// The second at which the state is over; 0 where none ever was.
    pub(super) end: u32,
}

/// What stands for a key within its shard: 64 bits that also tell the slot where it belongs, and 32 more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(C, packed(4))]
pub(super) struct Tag {
    pub(super) home: u64,
    pub(super) more: u32,
}

/// Slots. A few stand in one smaller piece, and that is found without a detour.
pub(super) struct Slots<S> {
    pieces: SmallVec<[Box<[Slot<S>]>; 1]>,
    len: usize,
}

impl<S: Copy + Default> Slots<S> {
    const TO_A_PIECE: usize = PIECE_BYTES / size_of::<Slot<S>>();

    /// No slots.
    pub(super) fn none() -> Self {
        Self { pieces: SmallVec::new(), len: 0 }
    }

    /// At least so many slots, all empty.
    pub(super) fn at_least(wanted: usize) -> Self {
        let (pieces, to_each) = match wanted {
            0 => (0, 0),
            few if few <= Self::TO_A_PIECE => (1, few.max(LEAST)),
            many => (many.div_ceil(Self::TO_A_PIECE), Self::TO_A_PIECE),
        };
        let empty = Slot { tag: Tag { home: 0, more: 0 }, state: S::default(), end: 0 };
        let piece = || vec![empty; to_each].into_boxed_slice();
        Self { pieces: (0..pieces).map(|_| piece()).collect(), len: pieces * to_each }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn bytes(&self) -> usize {
        self.len * size_of::<Slot<S>>()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot<S>> {
        self.pieces.iter().flatten()
    }
}

impl<S: Copy + Default> Index<usize> for Slots<S> {
    type Output = Slot<S>;

    fn index(&self, at: usize) -> &Slot<S> {
        &self.pieces[at / Self::TO_A_PIECE][at % Self::TO_A_PIECE]
    }
}

impl<S: Copy + Default> IndexMut<usize> for Slots<S> {
    fn index_mut(&mut self, at: usize) -> &mut Slot<S> {
        &mut self.pieces[at / Self::TO_A_PIECE][at % Self::TO_A_PIECE]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_as_wanted_and_each_is_another() {
        for wanted in [0, 1, 8, 9, 169, 170, 171, 340, 341, 1000] {
            let mut slots: Slots<u64> = Slots::at_least(wanted);
            assert!(slots.len() >= wanted && slots.len() <= wanted.max(LEAST) + 169, "{}", slots.len());
            for at in 0..slots.len() {
                slots[at].state = at as u64;
            }
            let states: Vec<_> = slots.iter().map(|slot| slot.state).collect();
            assert!(states.iter().copied().eq(0..slots.len() as u64), "{states:?}");
            assert_eq!(slots.bytes(), slots.len() * 24);
        }
    }
}
