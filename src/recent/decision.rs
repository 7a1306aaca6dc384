//! A decision about one descriptor, as it is kept among the refusals and written to the log of decisions.

use std::{borrow::Cow, num::NonZeroU32, sync::Arc};

use serde::{Serialize, Serializer};

use super::{
    RuleInfo,
    keys::{Key, shown},
};
use crate::{
    clock::{Rfc3339, Time},
    rules::{Limit, Unit},
    settings::KeyValues,
};

/// A decision about one descriptor of a request.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// Its number among the refusals of this process, from 1.
    pub id: u64,
    /// When it was made.
    pub time: Time,
    /// The request was refused.
    pub is_refused: bool,
    /// The domain of the request, as one key without a value.
    pub domain: Key,
    /// The descriptor.
    pub descriptor: Key,
    /// Its rule; none for a limit that came with the request.
    pub rule: Option<Arc<RuleInfo>>,
    /// The limit that decided.
    pub limit: Option<LimitShown>,
    /// Its place among the limits of the rule, from 0.
    pub limit_index: usize,
    /// How many limits the rule has.
    pub limits: usize,
    /// The counter after the hits; none where it was not read.
    pub count: Option<u64>,
    /// The hits of the request.
    pub hits: u64,
    /// Seconds until the hits would pass; none if they never do.
    pub retry_after: Option<u64>,
    /// What decided.
    pub decided_by: DecidedBy,
    /// The request had to wait for this descriptor longest.
    pub governs: bool,
    /// One in so many decisions was noted.
    pub weight: u32,
}

/// A limit as it was when it decided.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct LimitShown {
    /// Requests in one window.
    pub requests_per_unit: u32,
    /// The unit of the window.
    #[serde(serialize_with = "write_unit")]
    pub unit: Unit,
    /// How many units the window has.
    #[serde(rename = "unit_multiplier")]
    pub multiplier: NonZeroU32,
    /// Its name in the rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Arc<str>>,
}

named! {
    /// What decided about a descriptor.
    #[derive(Default)]
    pub enum DecidedBy {
        /// Its counter.
        #[default]
        Counter = "counter",
        /// The cache of keys that are over their limit.
        OverLimitCache = "over_limit_cache",
        /// An override.
        Override = "override",
        /// The policy for a store that fails.
        FailurePolicy = "failure_policy",
    }
}

impl From<&Limit> for LimitShown {
    fn from(limit: &Limit) -> Self {
        Self {
            requests_per_unit: limit.requests_per_unit,
            unit: limit.unit,
            multiplier: limit.multiplier,
            name: limit.name.clone(),
        }
    }
}

/// A decision as JSON has it.
#[derive(Serialize)]
pub struct DecisionJson<'a> {
    #[serde(skip_serializing_if = "is_zero")]
    id: u64,
    time: String,
    code: &'static str,
    domain: &'a str,
    descriptor: Vec<EntryJson<'a>>,
    #[serde(skip_serializing_if = "is_false")]
    descriptor_cut: bool,
    rule: Option<&'a str>,
    file: Option<&'a str>,
    line: Option<u32>,
    limit: Option<LimitJson<'a>>,
    count: Option<u64>,
    hits: u64,
    retry_after_seconds: Option<u64>,
    decided_by: &'static str,
    governs: bool,
    /// This one stands for so many.
    #[serde(skip_serializing_if = "is_one")]
    weight: u32,
}

/// An entry of a descriptor.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct EntryJson<'a> {
    /// Its key.
    pub key: Cow<'a, str>,
    /// Its value, as `KEY_VALUES` shows it.
    pub value: Cow<'a, str>,
}

#[derive(Serialize)]
struct LimitJson<'a> {
    #[serde(flatten)]
    limit: &'a LimitShown,
    /// Which of the rule's limits it is, from 1.
    number: usize,
    /// How many the rule has.
    of: usize,
}

impl Decision {
    /// The decision as JSON has it.
    #[must_use]
    pub fn json(&self, values: KeyValues) -> DecisionJson<'_> {
        let rule = self.rule.as_deref();
        let place = rule.and_then(|rule| rule.place.as_ref());
        DecisionJson {
            id: self.id,
            time: Rfc3339(self.time).to_string(),
            code: if self.is_refused { "over_limit" } else { "ok" },
            domain: self.domain(),
            descriptor: entries(&self.descriptor, values),
            descriptor_cut: self.descriptor.is_cut(),
            rule: rule.map(|rule| &*rule.full_key),
            file: place.map(|(file, _)| &**file),
            line: place.map(|(_, line)| *line),
            limit: self.limit.as_ref().map(|limit| LimitJson {
                limit,
                number: self.limit_index.saturating_add(1),
                of: self.limits,
            }),
            count: self.count,
            hits: self.hits,
            retry_after_seconds: self.retry_after,
            decided_by: self.decided_by.name(),
            governs: self.governs,
            weight: self.weight,
        }
    }

    /// The domain of the request.
    #[must_use]
    pub fn domain(&self) -> &str {
        self.domain.entries().next().map_or("", |(domain, _)| domain)
    }
}

/// The entries of a descriptor as JSON has them.
#[must_use]
pub fn entries(key: &Key, values: KeyValues) -> Vec<EntryJson<'_>> {
    let entry = |(key, value)| EntryJson { key: Cow::Borrowed(key), value: shown(value, values) };
    key.entries().map(entry).collect()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
fn write_unit<S: Serializer>(unit: &Unit, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(unit.name())
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
const fn is_false(value: &bool) -> bool {
    !*value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
const fn is_zero(value: &u64) -> bool {
    *value == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
const fn is_one(value: &u32) -> bool {
    *value <= 1
}
