//! A request as the limiter knows it, free of any protocol's types.
//!
//! Its texts are borrowed from the message that it was read from. Nothing is allocated for a request of up to
//! two descriptors with up to four entries each.

use smallvec::SmallVec;

use crate::{
    limiter::algorithm::Hits,
    rules::{self, Unit},
};

/// May this pass?
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Request<'a> {
    /// The domain whose rules apply.
    pub domain: &'a str,
    /// What the request is, from each point of view that may be limited.
    pub descriptors: SmallVec<[Descriptor<'a>; 2]>,
    /// How many more descriptors there were: those above the bound are counted and not kept.
    pub excess_descriptors: usize,
    /// Hits of each descriptor that names none; 0 counts as 1.
    pub hits_addend: u32,
}

/// One point of view.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Descriptor<'a> {
    /// The way down the tree of rules.
    pub entries: SmallVec<[Entry<'a>; 4]>,
    /// How many more entries there were: those above the bound are counted and not kept.
    pub excess_entries: usize,
    /// Takes the place of whatever the rules say.
    pub limit: Option<LimitOverride>,
    /// This descriptor's own hits; 0 looks without counting.
    pub hits_addend: Option<u64>,
    /// The hits are given back.
    pub is_negative_hits: bool,
}

/// One `key = value`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Entry<'a> {
    /// The key.
    pub key: &'a str,
    /// The value, which may be empty.
    pub value: &'a str,
}

/// A limit that a request brings along.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitOverride {
    /// Requests in one window.
    pub requests_per_unit: u32,
    /// The number of the window's unit in Envoy's API; it may be one that does not exist.
    pub unit: i32,
}

impl rules::Entry for Entry<'_> {
    fn key(&self) -> &str {
        self.key
    }

    fn value(&self) -> &str {
        self.value
    }
}

impl LimitOverride {
    /// The unit, if there is one of this number.
    #[must_use]
    pub fn unit(&self) -> Option<Unit> {
        Unit::from_number(self.unit)
    }
}

impl Request<'_> {
    /// The hits of one of its descriptors.
    #[must_use]
    pub fn hits(&self, descriptor: &Descriptor<'_>) -> Hits {
        let hits = descriptor.hits_addend.unwrap_or_else(|| u64::from(self.hits_addend.max(1)));
        if descriptor.is_negative_hits { Hits::Refund(hits) } else { Hits::Take(hits) }
    }
}
