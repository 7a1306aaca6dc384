//! The busiest keys of a stream in a table of fixed size: the space-saving algorithm of Metwally, Agrawal and
//! El Abbadi.
//!
//! A key that is in the table counts. A new key takes the place of the one with the smallest count, and inherits that
//! count as its error. So every count is too large by at most its error, no key that is missing has more hits than the
//! smallest count, and with a table of 64 keys every key with more than a 64th of all hits is in it. (Metwally,
//! Agrawal, El Abbadi: Efficient Computation of Frequent and Top-k Elements in Data Streams, ICDT 2005.)

use super::{keys::Key, top::Budget};

/// Keys of a table.
pub(super) const KEYS: usize = 64;

/// The bytes of a key in a table, without its text: in vectors that double, so half as many again. 16 entries take more
/// than `Held` has inline.
const KEY_BYTES: usize = (2 * size_of::<u64>() + size_of::<Held>()) * 3 / 2 + 64;

/// A table.
#[derive(Debug, Default)]
pub(super) struct Sketch {
    /// Keys beyond this many are left of an earlier filling, and only their memory is of use.
    len: usize,
    /// A key was replaced since the table was empty: others may be missing.
    is_full: bool,
    /// Hits that found no memory for a single key.
    lost: u64,
    /// Apart from the rest, so that finding one reads 512 bytes.
    hashes: Vec<u64>,
    counts: Vec<u64>,
    held: Vec<Held>,
}

#[derive(Debug, Default)]
struct Held {
    error: u64,
    key: Key,
}

/// A key, and how often it was hit: at most `count`, and at least `count - error` times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Estimate<'a> {
    pub(super) hash: u64,
    pub(super) key: &'a Key,
    pub(super) count: u64,
    pub(super) error: u64,
}

impl Sketch {
    /// Counts hits of a key. Where the budget has no memory for a new key, the table is full at the number of keys that
    /// it has.
    pub(super) fn add<'a>(
        &mut self,
        hash: u64,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        hits: u64,
        budget: &Budget,
    ) {
        let in_use = self.hashes.iter().zip(&mut self.counts).take(self.len);
        if let Some((_, count)) = in_use.into_iter().find(|(known, _)| **known == hash) {
            *count = count.saturating_add(hits);
            return;
        }
        if self.len == self.hashes.len() && self.len < KEYS && budget.take(KEY_BYTES) {
            self.hashes.push(0);
            self.counts.push(0);
            self.held.push(Held::default());
        }
        let (index, before) = if self.len < self.hashes.len() {
            self.len = self.len.saturating_add(1);
            (self.len.saturating_sub(1), 0)
        } else {
            let counts = self.counts.iter().copied().enumerate();
            let Some((index, least)) = counts.min_by_key(|(_, count)| *count) else {
                self.lost = self.lost.saturating_add(hits);
                return;
            };
            self.is_full = true;
            (index, least)
        };
        let slots = (self.hashes.get_mut(index), self.counts.get_mut(index), self.held.get_mut(index));
        let (Some(known), Some(count), Some(held)) = slots else { return };
        (*known, *count, held.error) = (hash, before.saturating_add(hits), before);
        let needed = held.key.needs(entries.clone());
        if needed > 0 && budget.take(needed) {
            held.key.grow(needed);
        }
        // Where there is no memory for all of its text, as much is kept as there was for the last one.
        let room = held.key.capacity();
        held.key.set_within(entries, room);
    }

    /// Forgets all keys, and keeps their memory.
    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.is_full = false;
        self.lost = 0;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0 && self.lost == 0
    }

    /// The keys and their counts.
    pub(super) fn estimates(&self) -> impl Iterator<Item = Estimate<'_>> {
        let keys = self.hashes.iter().zip(&self.counts).zip(&self.held).take(self.len);
        keys.map(|((hash, count), Held { error, key })| Estimate {
            hash: *hash,
            key,
            count: *count,
            error: *error,
        })
    }

    /// The hits that a key which is not in the table has at most.
    pub(super) fn missing_at_most(&self) -> u64 {
        let least = self.counts.iter().copied().min().filter(|_| self.is_full);
        least.unwrap_or_default().saturating_add(self.lost)
    }

    /// The memory that was taken for it.
    pub(super) fn bytes(&self) -> usize {
        let texts = self.held.iter().map(|held| held.key.capacity()).fold(0, usize::saturating_add);
        texts.saturating_add(self.held.len().saturating_mul(KEY_BYTES))
    }
}
