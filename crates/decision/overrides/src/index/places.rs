//! The positions of a shard's records, by their hashes.
//!
//! The cost of a lookup is waiting for memory. For a value without an override it reads a word of a filter, which is small
//! enough to stay in the CPU cache; else also one cache line, with hashes and positions side by side.

/// The average number of records in a line. One in eight lines is full, and the next line has its other records.
const IN_A_LINE: usize = 5;

/// Filter bits for a record, three of which are set: the filter passes one in fifty values without a record.
const BITS: usize = 12;

/// A table that is filled once.
#[derive(Default)]
pub(super) struct Places {
    filter: Box<[u64]>,
    lines: Box<[Line]>,
    pub(super) len: usize,
}

/// The upper half of an entry is that of a hash, the lower half the position plus one. 0 is no entry, and follows the
/// entries.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Line([u64; 8]);

const HASH: u64 = 0xffff_ffff << 32;

impl Places {
    pub(super) fn for_records(count: usize) -> Self {
        // One line more, so that there is always room.
        let lines = if count == 0 { 0 } else { count / IN_A_LINE + 1 };
        Self {
            filter: vec![0; (count * BITS).div_ceil(64)].into(),
            lines: vec![Line::default(); lines].into(),
            len: 0,
        }
    }

    /// Adds a record. The table must have room.
    pub(super) fn insert(&mut self, hash: u64, place: u32) {
        self.filter[place_of(hash, self.filter.len())] |= bits_of(hash);
        let (before, from) = self.lines.split_at_mut(place_of(hash, self.lines.len()));
        let mut entries = from.iter_mut().chain(before).flat_map(|line| &mut line.0);
        #[expect(clippy::expect_used, reason = "`for_records` made room")]
        let free = entries.find(|entry| **entry == 0).expect("a table has room for its records");
        *free = hash & HASH | u64::from(place + 1);
        self.len += 1;
    }

    /// Calls `find` with the positions of records that may have this hash, until it returns a value.
    pub(super) fn find<T>(&self, hash: u64, find: impl Fn(u32) -> Option<T>) -> Option<T> {
        // Without records there is no word.
        let (word, bits) = (self.filter.get(place_of(hash, self.filter.len()))?, bits_of(hash));
        if word & bits != bits {
            return None;
        }
        let (before, from) = self.lines.split_at(place_of(hash, self.lines.len()));
        for line in from.iter().chain(before) {
            for entry in line.0 {
                if entry == 0 {
                    return None;
                }
                if entry & HASH == hash & HASH {
                    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
                    let place = entry as u32 - 1;
                    if let Some(found) = find(place) {
                        return Some(found);
                    }
                }
            }
        }
        None
    }

    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.lines) + size_of_val(&*self.filter)
    }
}

/// The first index to search for a hash, of `count`, by its lower half.
fn place_of(hash: u64, count: usize) -> usize {
    (((hash & !HASH) * count as u64) >> 32) as usize
}

/// The bits of a hash in its filter word, by its upper half without the bits that select the shard.
fn bits_of(hash: u64) -> u64 {
    [hash >> 32, hash >> 50, hash >> 56].into_iter().fold(0, |bits, part| {
        #[expect(clippy::cast_possible_truncation, reason = "the lower six bits choose")]
        let bit = 1_u64.rotate_left(part as u32);
        bits | bit
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The hashes have few lines and few upper halves, so that lines are full and hashes are equal.
        #[test]
        fn finds_what_a_map_finds(
            hashes in prop::collection::vec((0..6_u64, 0..4_u64), 0..60), others in prop::collection::vec((0..6_u64, 0..5_u64), 20),
        ) {
            let hash = |(low, high): (u64, u64)| low * 0x2aaa_aaaa + (high << 32);
            let mut places = Places::for_records(hashes.len());
            let mut map: HashMap<u64, Vec<u32>> = HashMap::new();
            for (place, parts) in (0_u32..).zip(&hashes) {
                places.insert(hash(*parts), place);
                map.entry(hash(*parts)).or_default().push(place);
            }
            prop_assert_eq!(places.len, hashes.len());
            for parts in hashes.iter().chain(&others) {
                let known = map.get(&hash(*parts)).cloned().unwrap_or_default();
                for place in 0..u32::try_from(hashes.len()).unwrap() {
                    let found = places.find(hash(*parts), |at| (at == place).then_some(at));
                    prop_assert!(found.is_some() || !known.contains(&place));
                }
            }
        }
    }
}
