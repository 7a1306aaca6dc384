//! The shapes of overrides for descriptors: their domains and keys, and which of their levels have a value.

use std::{
    hash::{BuildHasher as _, Hasher},
    sync::Arc,
};

use foldhash::fast::SeedableRandomState;
use hashbrown::{HashTable, hash_table::Entry};

use crate::target::{EntryOf, Scope, Target, Value};

/// Maximum number of lists of keys. Operators choose the keys, so there are few. A change that adds or removes one copies
/// the table of them.
const MAX_FAMILIES: usize = 4096;

/// Maximum number of shapes with the same domain and keys. A lookup may try each of them.
const MAX_SHAPES: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Level {
    Exact,
    Pattern,
    /// The values that match a rule's bare key.
    Any,
}

/// A level, and its value or pattern; the text of [`Level::Any`] is empty.
pub(super) type LevelValue<'v> = (Level, &'v str);

#[derive(Clone, Default)]
pub(super) struct Shapes(HashTable<Arc<Family>>);

/// The shapes with the same domain and keys.
#[derive(Clone)]
pub(super) struct Family {
    hash: u64,
    domain: Box<str>,
    keys: Box<[Box<str>]>,
    /// Sorted by the number of exact levels, the most first; equal ones by the first level that differs.
    pub(super) shapes: Vec<Shape>,
}

#[derive(Clone)]
pub(super) struct Shape {
    pub(super) levels: Box<[Level]>,
    /// The number of its overrides.
    count: usize,
}

impl Shapes {
    /// The shapes of descriptors with this domain and these keys.
    pub(super) fn find<'k>(
        &self,
        domain: &'k str,
        keys: &(impl Iterator<Item = &'k str> + Clone),
        hasher: &SeedableRandomState,
    ) -> Option<&Family> {
        let has = |family: &&Arc<Family>| family.has(domain, keys.clone());
        // Usually all overrides have the same keys, and comparing them takes no longer than hashing.
        let found = match self.0.len() {
            1 => self.0.iter().next().filter(has),
            _ => self.0.find(hash_keys(domain, keys.clone(), hasher), |family| has(&family)),
        };
        found.map(|family| &**family)
    }

    fn of(&self, target: &Target, hasher: &SeedableRandomState) -> Option<&Family> {
        self.find(target.domain(), &keys(target), hasher)
    }

    pub(super) fn has(&self, target: &Target, hasher: &SeedableRandomState) -> bool {
        self.of(target, hasher).is_some_and(|family| family.shapes.iter().any(|shape| shape.is_of(target)))
    }

    /// Checks that there is room for the shape of a target, which is new.
    pub(super) fn check_room(&self, target: &Target, hasher: &SeedableRandomState) -> Result<(), String> {
        let (bound, what) = match self.of(target, hasher) {
            Some(family) if family.shapes.len() >= MAX_SHAPES => {
                (MAX_SHAPES, "combinations of keys with and without a value")
            }
            None if self.0.len() >= MAX_FAMILIES => (MAX_FAMILIES, "lists of keys"),
            _ => return Ok(()),
        };
        Err(format!(
            "{}: more than {bound} different {what}; use the keys of the rules, in their order",
            target.plain()
        ))
    }

    /// Counts an override for this target.
    pub(super) fn add(&mut self, target: &Target, hasher: &SeedableRandomState) {
        let hash = hash_keys(target.domain(), keys(target), hasher);
        let has = |family: &Arc<Family>| family.has(target.domain(), keys(target));
        let mut family = self.0.entry(hash, has, |family| family.hash).or_insert_with(|| {
            let keys = keys(target).map(Box::from).collect();
            Arc::new(Family { hash, domain: target.domain().into(), keys, shapes: Vec::new() })
        });
        let shapes = &mut Arc::make_mut(family.get_mut()).shapes;
        if let Some(shape) = shapes.iter_mut().find(|shape| shape.is_of(target)) {
            shape.count += 1;
            return;
        }
        let new = Shape { levels: target.entries().iter().map(level).collect(), count: 1 };
        shapes.insert(shapes.partition_point(|known| known.rank() < new.rank()), new);
    }

    /// The override for this target is gone.
    pub(super) fn remove(&mut self, target: &Target, hasher: &SeedableRandomState) {
        let hash = hash_keys(target.domain(), keys(target), hasher);
        let has = |family: &Arc<Family>| family.has(target.domain(), keys(target));
        let Entry::Occupied(mut family) = self.0.entry(hash, has, |family| family.hash) else { return };
        let shapes = &mut Arc::make_mut(family.get_mut()).shapes;
        shapes.iter_mut().filter(|shape| shape.is_of(target)).for_each(|shape| shape.count -= 1);
        shapes.retain(|shape| shape.count > 0);
        if shapes.is_empty() {
            family.remove();
        }
    }
}

impl Family {
    fn has<'k>(&self, domain: &str, mut keys: impl Iterator<Item = &'k str>) -> bool {
        *self.domain == *domain
            && self.keys.iter().all(|own| keys.next() == Some(&**own))
            && keys.next().is_none()
    }

    /// Whether a target has these keys, levels and values.
    pub(super) fn is_of<'v>(&self, target: &Target, values: impl Iterator<Item = LevelValue<'v>>) -> bool {
        target.entries().len() == self.keys.len()
            && target
                .entries()
                .iter()
                .zip(&self.keys)
                .zip(values)
                .all(|((entry, key), value)| level_value(entry) == value && entry.0 == *key)
            && *self.domain == *target.domain()
            && target.scope() == Scope::Descriptor
    }

    /// The hash of the target with these values, as of [`hash_target`].
    pub(super) fn hash<'v>(
        &self,
        values: impl Iterator<Item = LevelValue<'v>>,
        hasher: &SeedableRandomState,
    ) -> u64 {
        hash_values(self.hash, values, hasher)
    }
}

impl Shape {
    pub(super) fn is_exact(&self) -> bool {
        self.levels.iter().all(|level| *level == Level::Exact)
    }

    fn is_of(&self, target: &Target) -> bool {
        self.levels.iter().copied().eq(target.entries().iter().map(level))
    }

    fn rank(&self) -> (usize, &[Level]) {
        (self.levels.iter().filter(|level| **level != Level::Exact).count(), &self.levels)
    }
}

pub(super) fn hash_target(target: &Target, hasher: &SeedableRandomState) -> u64 {
    let keys = hash_keys(target.domain(), keys(target), hasher);
    hash_values(keys, target.entries().iter().map(level_value), hasher)
}

fn hash_values<'v>(
    keys: u64,
    values: impl Iterator<Item = LevelValue<'v>>,
    hasher: &SeedableRandomState,
) -> u64 {
    let mut state = hasher.build_hasher();
    state.write_u64(keys);
    hash_texts(values.map(|(_, text)| text), state)
}

fn hash_keys<'k>(domain: &'k str, keys: impl Iterator<Item = &'k str>, hasher: &SeedableRandomState) -> u64 {
    hash_texts(std::iter::once(domain).chain(keys), hasher.build_hasher())
}

fn hash_texts<'t>(texts: impl Iterator<Item = &'t str>, mut state: impl Hasher) -> u64 {
    for text in texts {
        state.write(text.as_bytes());
        // No text has this byte, so that the end of a text is unambiguous.
        state.write_u8(0xff);
    }
    state.finish()
}

fn keys(target: &Target) -> impl Iterator<Item = &str> + Clone {
    target.entries().iter().map(|(key, _)| &**key)
}

fn level((_, value): &EntryOf) -> Level {
    match value {
        Value::Exact(_) => Level::Exact,
        Value::Pattern(_) => Level::Pattern,
        Value::Any => Level::Any,
    }
}

fn level_value(entry: &EntryOf) -> LevelValue<'_> {
    (level(entry), entry.1.text().unwrap_or_default())
}
