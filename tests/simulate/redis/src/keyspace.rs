//! The keys of one database, their values and expiries.

use std::collections::VecDeque;

use indexmap::{IndexMap, IndexSet};

use crate::sorted_set::SortedSet;

/// Maps in the order of insertion: nothing depends on a hash.
pub(crate) type Hash = IndexMap<Box<[u8]>, Vec<u8>>;

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    Text(Vec<u8>),
    Hash(Hash),
    List(VecDeque<Vec<u8>>),
    Set(IndexSet<Box<[u8]>>),
    Sorted(SortedSet),
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Entry {
    pub(crate) value: Value,
    /// The last millisecond of the key.
    pub(crate) expires: Option<u64>,
}

#[derive(Clone, Default, Debug)]
pub(crate) struct Keyspace {
    entries: IndexMap<Box<[u8]>, Entry>,
    /// The next entry that is looked at for its expiry.
    cursor: usize,
    /// The strings that have expired, until they are taken.
    expired: Vec<(Box<[u8]>, Vec<u8>)>,
    /// The keys whose expiry was brought forward, until they are taken.
    shortened: Vec<Shortened>,
}

/// A key, and the milliseconds at which it expired and expires.
pub type Shortened = (Box<[u8]>, u64, u64);

impl Keyspace {
    pub(crate) fn take_shortened(&mut self) -> Vec<Shortened> {
        std::mem::take(&mut self.shortened)
    }

    /// Notes a later expiry that another one replaces.
    pub(crate) fn note_shortened(&mut self, key: &[u8], before: Option<u64>, after: u64) {
        if let Some(before) = before.filter(|before| after < *before) {
            self.shortened.push((key.into(), before, after));
        }
    }

    pub(crate) fn take_expired(&mut self) -> Vec<(Box<[u8]>, Vec<u8>)> {
        std::mem::take(&mut self.expired)
    }

    /// Removes an expired key.
    fn expire(&mut self, index: usize) {
        if let Some((key, Entry { value: Value::Text(text), .. })) = self.entries.swap_remove_index(index) {
            self.expired.push((key, text));
        }
    }

    /// A key's entry; one that has expired at millisecond `now` is removed.
    pub(crate) fn get(&mut self, key: &[u8], now: u64) -> Option<&mut Entry> {
        let (index, _, entry) = self.entries.get_full(key)?;
        if entry.has_expired(now) {
            self.expire(index);
            return None;
        }
        self.entries.get_index_mut(index).map(|(_, entry)| entry)
    }

    pub(crate) fn set(&mut self, key: &[u8], entry: Entry) {
        match self.entries.get_mut(key) {
            Some(known) => *known = entry,
            None => {
                self.entries.insert(key.into(), entry);
            }
        }
    }

    pub(crate) fn remove(&mut self, key: &[u8], now: u64) -> Option<Entry> {
        self.entries.swap_remove(key).filter(|entry| !entry.has_expired(now))
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// The keys that have not expired, in no particular order.
    pub(crate) fn keys(&self, now: u64) -> impl Iterator<Item = &[u8]> {
        self.entries(now).map(|(key, _)| key)
    }

    pub(crate) fn entries(&self, now: u64) -> impl Iterator<Item = (&[u8], &Entry)> {
        let entries = self.entries.iter().map(|(key, entry)| (&**key, entry));
        entries.filter(move |(_, entry)| !entry.has_expired(now))
    }

    /// The string of a key.
    pub(crate) fn text(&self, key: &[u8], now: u64) -> Option<&[u8]> {
        match self.entries.get(key).filter(|entry| !entry.has_expired(now)) {
            Some(Entry { value: Value::Text(text), .. }) => Some(text),
            _ => None,
        }
    }

    /// A field of the hash of a key.
    pub(crate) fn field(&self, key: &[u8], field: &[u8], now: u64) -> Option<&[u8]> {
        match self.entries.get(key).filter(|entry| !entry.has_expired(now)) {
            Some(Entry { value: Value::Hash(hash), .. }) => hash.get(field).map(Vec::as_slice),
            _ => None,
        }
    }

    /// All strings, with their expiries.
    pub(crate) fn texts(&self, now: u64) -> Vec<crate::Text> {
        let present = self.entries.iter().filter(|(_, entry)| !entry.has_expired(now));
        let texts = present.filter_map(|(key, Entry { value, expires })| match value {
            Value::Text(text) => Some((key.clone(), text.clone(), *expires)),
            _ => None,
        });
        texts.collect()
    }

    pub(crate) fn at(&self, index: usize) -> Option<(&[u8], &Entry)> {
        self.entries.get_index(index).map(|(key, entry)| (&**key, entry))
    }

    /// Removes the next entry that `cursor` passes if it has expired, as Redis does in the background.
    pub(crate) fn sweep(&mut self, now: u64) {
        if self.cursor >= self.entries.len() {
            self.cursor = 0;
        }
        match self.entries.get_index(self.cursor) {
            Some((_, entry)) if entry.has_expired(now) => {
                self.expire(self.cursor);
            }
            _ => self.cursor += 1,
        }
    }
}

impl Entry {
    pub(crate) fn new(value: Value) -> Self {
        Self { value, expires: None }
    }

    fn has_expired(&self, now: u64) -> bool {
        self.expires.is_some_and(|last| now > last)
    }
}

impl Value {
    /// As `TYPE` reports it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Text(_) => "string",
            Self::Hash(_) => "hash",
            Self::List(_) => "list",
            Self::Set(_) => "set",
            Self::Sorted(_) => "zset",
        }
    }
}
