//! A part of the records, in contiguous memory, and the table of their positions.

use hashbrown::{DefaultHashBuilder, HashTable};

use super::{hash_values, places::Places, shapes::Shapes};
use crate::overrides::record::Record;

#[derive(Default)]
pub(super) struct Shard {
    pub(super) bytes: Box<[u8]>,
    places: Places,
    /// The number of records for each action.
    pub(super) by_action: [u32; 4],
    /// The first second at which a record expires.
    pub(super) next_end: Option<u32>,
}

impl Shard {
    /// The records of `parts` for which `keep` is true. Of records with the same target, the last one is kept.
    pub(super) fn new(
        parts: &[&[u8]],
        shapes: &Shapes,
        hasher: &DefaultHashBuilder,
        keep: impl Fn(&Record<'_>) -> bool,
    ) -> Self {
        let all = parts.concat();
        let mut live: HashTable<u32> = HashTable::new();
        let hash_at = |at: u32| read(&all, at).map_or(0, |record| hash_of(&record, shapes, hasher));
        for (at, record) in records(&all, shapes) {
            let values = values_of(&record, shapes);
            let is_same = |other: &u32| {
                read(&all, *other).is_some_and(|other| {
                    other.shape == record.shape && other.has(record.texts(values).0, values)
                })
            };
            let hash = hash_of(&record, shapes, hasher);
            match (live.find_entry(hash, is_same), keep(&record)) {
                (Ok(mut known), true) => *known.get_mut() = at,
                (Ok(known), false) => drop(known.remove()),
                (Err(_), true) => drop(live.insert_unique(hash, at, |at| hash_at(*at))),
                (Err(_), false) => {}
            }
        }
        let mut order: Vec<u32> = live.iter().copied().collect();
        order.sort_unstable();
        Self::of(&all, &order, shapes, hasher)
    }

    /// The records at these positions.
    fn of(all: &[u8], order: &[u32], shapes: &Shapes, hasher: &DefaultHashBuilder) -> Self {
        let piece = |at: &u32| {
            let bytes = all.get(*at as usize..)?;
            let record = Record::read(bytes)?;
            let (_, rest) = record.note_and_rest(values_of(&record, shapes));
            Some((record, bytes.get(..bytes.len().saturating_sub(rest.len()))?))
        };
        let mut shard = Self { places: Places::for_records(order.len()), ..Self::default() };
        let mut bytes =
            Vec::with_capacity(order.iter().filter_map(piece).map(|(_, piece)| piece.len()).sum());
        for (record, piece) in order.iter().filter_map(piece) {
            // A shard is far smaller than 4 GB.
            let at = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            bytes.extend_from_slice(piece);
            shard.places.insert(hash_of(&record, shapes, hasher), at);
            if let Some(count) = shard.by_action.get_mut(record.action.index()) {
                *count = count.saturating_add(1);
            }
            shard.next_end = [shard.next_end, record.expires].into_iter().flatten().min();
        }
        shard.bytes = bytes.into();
        shard
    }

    /// The record of this shape with these values.
    pub(super) fn find<'v>(
        &self,
        hash: u64,
        shape: u16,
        values: impl Iterator<Item = &'v str> + Clone,
        count: usize,
    ) -> Option<Record<'_>> {
        self.places.find(hash, move |at| {
            let record = read(&self.bytes, at)?;
            (record.shape == shape && record.has(values.clone(), count)).then_some(record)
        })
    }

    /// The records, in the order in which they were set.
    pub(super) fn records<'s>(&'s self, shapes: &'s Shapes) -> impl Iterator<Item = Record<'s>> {
        records(&self.bytes, shapes).map(|(_, record)| record)
    }

    pub(super) fn len(&self) -> usize {
        self.places.len
    }

    /// The memory in bytes.
    pub(super) fn memory(&self) -> usize {
        self.bytes.len().saturating_add(self.places.memory()).saturating_add(size_of::<Self>())
    }
}

fn read(bytes: &[u8], at: u32) -> Option<Record<'_>> {
    Record::read(bytes.get(at as usize..)?)
}

fn values_of(record: &Record<'_>, shapes: &Shapes) -> usize {
    shapes.get(record.shape).map_or(0, super::Shape::values)
}

fn hash_of(record: &Record<'_>, shapes: &Shapes, hasher: &DefaultHashBuilder) -> u64 {
    hash_values(record.shape, record.texts(values_of(record, shapes)).0, hasher)
}

/// All records in these bytes, each with its position.
pub(super) fn records<'b>(bytes: &'b [u8], shapes: &Shapes) -> impl Iterator<Item = (u32, Record<'b>)> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let at = u32::try_from(bytes.len().saturating_sub(rest.len())).ok()?;
        let record = Record::read(rest)?;
        rest = record.note_and_rest(values_of(&record, shapes)).1;
        Some((at, record))
    })
}
