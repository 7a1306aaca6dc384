//! A part of the records, in contiguous memory, and the table of their positions.

use foldhash::fast::SeedableRandomState;
use hashbrown::HashTable;

use super::{hash_values, places::Places, shapes::Shapes};
use crate::record::Record;

#[derive(Default)]
pub(super) struct Shard {
    pub(super) bytes: Box<[u8]>,
    places: Places,
    /// Without the switches of domains.
    pub(super) by_action: [u32; 4],
    pub(super) has_local_calendar: bool,
    /// The first second at which a record expires.
    pub(super) next_end: Option<u32>,
}

impl Shard {
    /// The records of `parts` for which `keep` is true. Of records with the same target, the last one is kept.
    pub(super) fn new(
        parts: &[&[u8]],
        shapes: &Shapes,
        hasher: &SeedableRandomState,
        keep: impl Fn(&Record<'_>) -> bool,
    ) -> Self {
        let hash_of = |record: &Record<'_>| {
            hash_values(record.shape, record.texts(values_of(record, shapes)).0, hasher)
        };
        let mut live: HashTable<(usize, &[u8], Record<'_>)> = HashTable::new();
        for (index, (piece, record)) in parts.iter().flat_map(|part| records(part, shapes)).enumerate() {
            let values = values_of(&record, shapes);
            let known = live.find_entry(hash_of(&record), |(_, _, other)| {
                other.shape == record.shape && other.has(record.texts(values).0, values)
            });
            let new = (index, piece, record);
            match (known, keep(&record)) {
                (Ok(mut known), true) => *known.get_mut() = new,
                (Ok(known), false) => drop(known.remove()),
                (Err(_), true) => drop(live.insert_unique(hash_of(&record), new, |(_, _, at)| hash_of(at))),
                (Err(_), false) => {}
            }
        }
        let mut live: Vec<_> = live.into_iter().collect();
        live.sort_unstable_by_key(|(index, ..)| *index);
        let mut bytes = Vec::with_capacity(live.iter().map(|(_, piece, _)| piece.len()).sum());
        let mut shard = Self { places: Places::for_records(live.len()), ..Self::default() };
        for (_, piece, record) in live {
            #[expect(clippy::cast_possible_truncation, reason = "a shard is far smaller than 4 GB")]
            let at = bytes.len() as u32;
            bytes.extend_from_slice(piece);
            shard.places.insert(hash_of(&record), at);
            if !shapes.get(record.shape).scope.is_switch() {
                shard.by_action[record.action.index()] += 1;
            }
            shard.has_local_calendar |= record.action.has_local_calendar();
            shard.next_end = [shard.next_end, record.expires].into_iter().flatten().min();
        }
        shard.bytes = bytes.into();
        shard
    }

    pub(super) fn find<'v>(
        &self,
        hash: u64,
        shape: u16,
        values: impl Iterator<Item = &'v str> + Clone,
        count: usize,
    ) -> Option<Record<'_>> {
        self.places.find(hash, move |at| {
            let record = Record::read(&self.bytes[at as usize..]);
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

    pub(super) fn memory(&self) -> usize {
        self.bytes.len() + self.places.memory() + size_of::<Self>()
    }
}

fn values_of(record: &Record<'_>, shapes: &Shapes) -> usize {
    shapes.get(record.shape).values()
}

/// All records in these bytes, each with its own bytes.
pub(super) fn records<'b>(bytes: &'b [u8], shapes: &Shapes) -> impl Iterator<Item = (&'b [u8], Record<'b>)> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let record = (!rest.is_empty()).then(|| Record::read(rest))?;
        let (_, after) = record.note_and_rest(values_of(&record, shapes));
        let piece = &rest[..rest.len() - after.len()];
        rest = after;
        Some((piece, record))
    })
}
