//! The busiest keys of a stream in a table of fixed size: the Space-Saving algorithm (Metwally, Agrawal, El Abbadi:
//! Efficient Computation of Frequent and Top-k Elements in Data Streams, ICDT 2005).
//!
//! A new key replaces the one with the smallest count, and inherits that count as its error. So every count is too large
//! by at most its error, a missing key has at most as many hits as the smallest count, and a table of 64 keys has every
//! key with more than a 64th of all hits.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::keys::Key;

const MAX_BYTES: usize = 8 << 20;

pub(super) const KEYS: usize = 64;

/// The bytes of a key in a table, without its text. The vectors grow by doubling, so half as many again; 16 entries need
/// more than the inline memory of `Held`.
const KEY_BYTES: usize = (2 * size_of::<u64>() + size_of::<Held>()) * 3 / 2 + 64;

/// The memory that all tables use, up to [`MAX_BYTES`].
#[derive(Debug, Default)]
pub(super) struct Budget(pub(super) AtomicUsize);

impl Budget {
    pub(super) fn take(&self, bytes: usize) -> bool {
        let more = |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= MAX_BYTES);
        self.0.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        self.0.load(Relaxed)
    }
}

#[derive(Debug, Default)]
pub(super) struct Sketch {
    /// Keys from this index on are old; only their memory is used.
    len: usize,
    /// A key was replaced since the table was empty, so that others may be missing.
    is_full: bool,
    /// Hits without memory for a single key.
    lost: u64,
    /// No count of a full table is smaller, and those before `next` are larger.
    least: u64,
    next: usize,
    /// In a separate vector, so that a lookup reads 512 bytes.
    hashes: Vec<u64>,
    counts: Vec<u64>,
    held: Vec<Held>,
}

#[derive(Debug, Default)]
struct Held {
    error: u64,
    key: Key,
}

/// A key with at most `count` and at least `count - error` hits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Estimate<'a> {
    pub(super) hash: u64,
    pub(super) key: &'a Key,
    pub(super) count: u64,
    pub(super) error: u64,
}

impl Sketch {
    /// Counts hits of a key. Without memory for a new key, the table is full at its current size.
    pub(super) fn add<'a>(
        &mut self,
        hash: u64,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        hits: u64,
        budget: &Budget,
    ) {
        let in_use = &self.hashes[..self.len];
        // `contains` compares several at once, which matters for a key that is not there.
        if in_use.contains(&hash)
            && let Some((_, count)) = in_use.iter().zip(&mut self.counts).find(|(known, _)| **known == hash)
        {
            *count = count.saturating_add(hits);
            return;
        }
        if self.len == self.hashes.len() && self.len < KEYS && budget.take(KEY_BYTES) {
            self.hashes.push(0);
            self.counts.push(0);
            self.held.push(Held::default());
        }
        let (index, before) = if self.len < self.hashes.len() {
            self.len += 1;
            // The new count may be the smallest.
            (self.least, self.next) = (0, 0);
            (self.len - 1, 0)
        } else {
            let Some(index) = self.index_of_least() else {
                self.lost = self.lost.saturating_add(hits);
                return;
            };
            self.is_full = true;
            (index, self.least)
        };
        (self.hashes[index], self.counts[index]) = (hash, before.saturating_add(hits));
        let held = &mut self.held[index];
        held.error = before;
        held.key.set_in_budget(entries, |bytes| budget.take(bytes));
    }

    /// The index of a smallest count of a full table. Counts grow, so the search goes on where the last one ended: a flood
    /// of new keys costs one comparison for each.
    fn index_of_least(&mut self) -> Option<usize> {
        let least = self.least;
        let next = self.next;
        let found = self.counts.iter().skip(next).position(|count| *count == least).map(|at| next + at);
        let index = found.or_else(|| {
            self.least = self.counts.iter().copied().min()?;
            self.counts.iter().position(|count| *count == self.least)
        })?;
        self.next = index;
        Some(index)
    }

    /// Removes all keys, and keeps their memory.
    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.is_full = false;
        self.lost = 0;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0 && self.lost == 0
    }

    pub(super) fn estimates(&self) -> impl Iterator<Item = Estimate<'_>> {
        let keys = self.hashes.iter().zip(&self.counts).zip(&self.held).take(self.len);
        keys.map(|((hash, count), Held { error, key })| Estimate {
            hash: *hash,
            key,
            count: *count,
            error: *error,
        })
    }

    /// Maximum number of hits of a key that is not in the table.
    pub(super) fn missing_at_most(&self) -> u64 {
        let least = self.counts.iter().copied().min().filter(|_| self.is_full);
        least.unwrap_or_default().saturating_add(self.lost)
    }

    pub(super) fn bytes(&self) -> usize {
        let texts: usize = self.held.iter().map(|held| held.key.capacity()).sum();
        texts + self.held.len() * KEY_BYTES
    }
}
