//! The shapes of overrides: their domains and keys, and which of their levels have a value.
//!
//! The number of a shape in a record stays valid in every later snapshot. Numbers without a record are reused when there
//! are no others, so that an import of mistyped keys has no lasting effect.

use std::{collections::HashSet, hash::BuildHasher as _};

use foldhash::fast::SeedableRandomState;
use hashbrown::HashTable;

use super::hash_texts;
use crate::target::{Scope, Target, Value};

/// Maximum number of shapes. Operators choose the keys, so there are few.
const MAX_SHAPES: usize = 4096;

/// Maximum number of shapes with the same domain and keys. A lookup may try each of them.
const MAX_VARIANTS: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Level {
    Exact,
    Pattern,
    /// The values that match a rule's bare key.
    Any,
}

#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) scope: Scope,
    domain: Box<str>,
    keys: Box<[Box<str>]>,
    pub(super) levels: Box<[Level]>,
}

#[derive(Clone, Default)]
pub(super) struct Shapes {
    all: Vec<Shape>,
    free: Vec<u16>,
    families: HashTable<Family>,
}

/// The shapes with the same domain and keys.
#[derive(Clone)]
struct Family {
    hash: u64,
    /// Sorted by the number of exact levels, the most first; equal ones by the first level that differs.
    members: Vec<u16>,
}

impl Shape {
    pub(super) fn is_exact(&self) -> bool {
        self.levels.iter().all(|level| *level == Level::Exact)
    }

    /// The number of values in a record of this shape.
    pub(super) fn values(&self) -> usize {
        self.levels.iter().filter(|level| **level != Level::Any).count()
    }

    pub(super) fn exact_levels(&self) -> u32 {
        let bits = self.levels.iter().zip(0..32_u32);
        bits.filter(|(level, _)| **level == Level::Exact).fold(0, |bits, (_, at)| bits | 1 << at)
    }

    #[expect(clippy::expect_used, reason = "the shape and the values are of a target")]
    pub(super) fn target<'v>(&self, mut values: impl Iterator<Item = &'v str>) -> Target {
        let mut text = || values.next().expect("a value for each level").into();
        let mut value = |level: &Level| match level {
            Level::Any => Value::Any,
            Level::Exact => Value::Exact(text()),
            Level::Pattern => Value::Pattern(text()),
        };
        let entries = self.keys.iter().zip(&self.levels).map(|(key, level)| (key.clone(), value(level)));
        Target::of_shape(self.scope, &self.domain, entries.collect())
    }

    fn has<'k>(&self, scope: Scope, domain: &str, mut keys: impl Iterator<Item = &'k str>) -> bool {
        self.scope == scope
            && *self.domain == *domain
            && self.keys.iter().all(|own| keys.next() == Some(&**own))
            && keys.next().is_none()
    }

    fn rank(&self) -> (usize, &[Level]) {
        (self.levels.iter().filter(|level| **level != Level::Exact).count(), &self.levels)
    }
}

impl Shapes {
    pub(super) fn get(&self, shape: u16) -> &Shape {
        &self.all[usize::from(shape)]
    }

    /// The shapes of descriptors with this domain and these keys, the most specific first.
    pub(super) fn of<'s, 'k>(
        &'s self,
        domain: &'k str,
        keys: impl Iterator<Item = &'k str> + Clone,
        hasher: &SeedableRandomState,
    ) -> &'s [u16] {
        self.in_scope(Scope::Descriptor, domain, keys, hasher)
    }

    fn in_scope<'s, 'k>(
        &'s self,
        scope: Scope,
        domain: &'k str,
        keys: impl Iterator<Item = &'k str> + Clone,
        hasher: &SeedableRandomState,
    ) -> &'s [u16] {
        let same = keys.clone();
        let has = move |family: &&Family| self.get(family.members[0]).has(scope, domain, same.clone());
        // Usually all overrides have the same keys, and comparing them takes no longer than hashing.
        let family = match self.families.len() {
            1 => self.families.iter().next().filter(has),
            _ => self.families.find(hash(domain, keys, hasher), |family| has(&family)),
        };
        family.map(|family| family.members.as_slice()).unwrap_or_default()
    }

    /// The number of a target's shape, if it is known.
    pub(super) fn known(&self, target: &Target, hasher: &SeedableRandomState) -> Option<u16> {
        let keys = target.entries().iter().map(|(key, _)| &**key);
        let members = self.in_scope(target.scope(), target.domain(), keys, hasher).iter().copied();
        let levels = || target.entries().iter().map(|(_, value)| level(value));
        members.into_iter().find(|shape| self.get(*shape).levels.iter().copied().eq(levels()))
    }

    /// The number of a target's shape, which is added if it is new and there are not too many.
    pub(super) fn add(&mut self, target: &Target, hasher: &SeedableRandomState) -> Result<u16, String> {
        if let Some(known) = self.known(target, hasher) {
            return Ok(known);
        }
        let too_many = |bound, what| {
            format!("{target}: more than {bound} different {what}; use the keys of the rules, in their order")
        };
        if self.free.is_empty() && self.all.len() >= MAX_SHAPES {
            return Err(too_many(MAX_SHAPES, "lists of keys"));
        }
        #[expect(clippy::cast_possible_truncation, reason = "below `MAX_SHAPES`")]
        let number = self.free.last().copied().unwrap_or(self.all.len() as u16);
        let keys: Box<[Box<str>]> = target.entries().iter().map(|(key, _)| key.clone()).collect();
        let levels = target.entries().iter().map(|(_, value)| level(value)).collect();
        let hash = hash(target.domain(), keys.iter().map(|key| &**key), hasher);
        let shape = Shape { scope: target.scope(), domain: target.domain().into(), keys, levels };
        let is_same = |family: &Family| {
            let first = &self.all[usize::from(family.members[0])];
            first.scope == shape.scope && first.domain == shape.domain && first.keys == shape.keys
        };
        match self.families.find_mut(hash, is_same) {
            Some(family) if family.members.len() >= MAX_VARIANTS => {
                return Err(too_many(MAX_VARIANTS, "combinations of keys with and without a value"));
            }
            Some(family) => {
                let rank = |at: u16| self.all[usize::from(at)].rank();
                let at = family.members.partition_point(|known| rank(*known) < shape.rank());
                family.members.insert(at, number);
            }
            None => {
                let family = Family { hash, members: vec![number] };
                self.families.insert_unique(hash, family, |family| family.hash);
            }
        }
        match self.free.pop() {
            Some(free) => self.all[usize::from(free)] = shape,
            None => self.all.push(shape),
        }
        Ok(number)
    }

    pub(super) fn retain(&mut self, used: &HashSet<u16>) {
        self.families.retain(|family| {
            family.members.retain(|number| used.contains(number));
            !family.members.is_empty()
        });
        #[expect(clippy::cast_possible_truncation, reason = "at most `MAX_SHAPES`")]
        let all = 0..self.all.len() as u16;
        self.free = all.filter(|number| !used.contains(number)).collect();
    }
}

fn level(value: &Value) -> Level {
    match value {
        Value::Exact(_) => Level::Exact,
        Value::Pattern(_) => Level::Pattern,
        Value::Any => Level::Any,
    }
}

fn hash<'k>(domain: &'k str, keys: impl Iterator<Item = &'k str>, hasher: &SeedableRandomState) -> u64 {
    hash_texts(std::iter::once(domain).chain(keys), hasher.build_hasher())
}
