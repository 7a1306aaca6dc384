//! A decision about one descriptor, for the list of refusals and the decision log.

use std::{borrow::Cow, fmt, num::NonZeroU32, ops::Not, sync::Arc};

use serde::Serialize;

use super::{
    RuleInfo,
    keys::{Key, shown},
};
use crate::KeyValues;
use clock::{Rfc3339, Time};
use limit::{Limit, Unit, calendar::Calendar, in_words};

#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// The number of the refusal in this process, from 1; 0 in the decision log.
    pub id: u64,
    pub time: Time,
    pub is_refused: bool,
    /// It is over its limit, and shadow mode allowed it.
    pub is_shadowed: bool,
    /// The domain of the request, as a key without a value.
    pub domain: Key,
    pub descriptor: Key,
    /// Its rule; `None` for a limit in the request.
    pub rule: Option<Arc<RuleInfo>>,
    pub limit: Option<LimitShown>,
    pub limit_index: usize,
    pub limits: usize,
    /// The counter after the hits, if it was read.
    pub count: Option<u64>,
    pub hits: u64,
    /// Seconds until the hits would be allowed; `None` if they never are.
    pub retry_after: Option<u64>,
    pub decided_by: DecidedBy,
    pub is_blocked: bool,
    /// The override that decided.
    pub by_override: Option<OverrideShown>,
    /// This descriptor determines the wait of the request.
    pub governs: bool,
    /// The number of decisions that this one stands for.
    pub weight: u32,
}

/// The identifier and the target of an override. `Debug` hides its values.
#[derive(Clone, PartialEq, Eq)]
pub struct OverrideShown {
    pub id: String,
    pub domain: Box<str>,
    pub is_by_entry: bool,
    /// Those of its descriptor, or its only entry.
    pub entries: Vec<(Box<str>, Option<Box<str>>)>,
}

impl fmt::Debug for OverrideShown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id)
    }
}

#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct LimitShown {
    pub requests_per_unit: u64,
    pub unit: &'static str,
    #[serde(rename = "unit_multiplier")]
    pub multiplier: NonZeroU32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calendar: Option<Calendar>,
    /// What its schedule says: now, or at all times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Arc<str>>,
}

text::named! {
    #[derive(Default)]
    pub enum DecidedBy {
        #[default]
        Counter = "counter",
        OverLimitCache = "over_limit_cache",
        Override = "override",
        FailurePolicy = "failure_policy",
    }
}

/// `5 per minute`, `1000 per 15 minutes`.
impl fmt::Display for LimitShown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = Unit::from_name(self.unit).unwrap_or(Unit::Unknown);
        let calendar = self.calendar.map(|calendar| calendar.to_string());
        let notes = calendar.into_iter().chain(self.schedule.clone());
        f.write_str(&in_words(self.requests_per_unit, unit, self.multiplier.get().into(), notes))
    }
}

impl LimitShown {
    pub fn at(limit: &Limit, now: Time) -> Self {
        let schedule = limit.scheduled(now).map(|in_force| in_force.words.to_string());
        Self { schedule, ..Self::from(limit.at(now)) }
    }
}

impl From<&Limit> for LimitShown {
    fn from(limit: &Limit) -> Self {
        Self {
            requests_per_unit: limit.requests_per_unit,
            unit: limit.unit.name(),
            multiplier: limit.multiplier,
            calendar: limit.period().calendar(),
            schedule: limit.schedule.as_ref().map(ToString::to_string),
            name: limit.name.clone(),
        }
    }
}

#[derive(Serialize)]
pub struct DecisionJson<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    time: String,
    code: &'static str,
    #[serde(skip_serializing_if = "Not::not")]
    shadowed: bool,
    domain: &'a str,
    descriptor: Vec<EntryJson<'a>>,
    #[serde(skip_serializing_if = "Not::not")]
    descriptor_cut: bool,
    rule: Option<&'a str>,
    file: Option<&'a str>,
    line: Option<u32>,
    limit: Option<LimitJson<'a>>,
    count: Option<u64>,
    hits: u64,
    retry_after_seconds: Option<u64>,
    decided_by: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocked: Option<Blocked>,
    #[serde(rename = "override", skip_serializing_if = "Option::is_none")]
    by_override: Option<OverrideJson<'a>>,
    governs: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<u32>,
}

#[derive(Serialize)]
struct OverrideJson<'a> {
    id: &'a str,
    domain: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    descriptor: Option<Vec<TypedEntry<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<TypedEntry<'a>>,
}

/// An entry of an override; a rule determines the values of one without a value.
#[derive(Serialize)]
struct TypedEntry<'a> {
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Cow<'a, str>>,
}

impl OverrideShown {
    fn json(&self, values: KeyValues) -> OverrideJson<'_> {
        let mut entries: Vec<_> = self
            .entries
            .iter()
            .map(|(key, value)| TypedEntry { key, value: value.as_deref().map(|text| shown(text, values)) })
            .collect();
        let entry = if self.is_by_entry { entries.pop() } else { None };
        let descriptor = entry.is_none().then_some(entries);
        OverrideJson { id: &self.id, domain: &self.domain, descriptor, entry }
    }
}

#[derive(Serialize)]
struct Blocked {
    /// `None` if it has no end.
    until: Option<String>,
}

#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct EntryJson<'a> {
    pub key: Cow<'a, str>,
    pub value: Cow<'a, str>,
}

#[derive(Serialize)]
struct LimitJson<'a> {
    #[serde(flatten)]
    limit: &'a LimitShown,
    /// Its number in the rule, from 1.
    number: usize,
    of: usize,
}

impl Decision {
    pub fn json(&self, values: KeyValues) -> DecisionJson<'_> {
        let rule = self.rule.as_deref();
        let place = rule.and_then(|rule| rule.place.as_ref());
        DecisionJson {
            id: (self.id > 0).then_some(self.id),
            time: Rfc3339(self.time).to_string(),
            code: if self.is_refused { "over_limit" } else { "ok" },
            shadowed: self.is_shadowed,
            domain: self.domain(),
            descriptor: entries(&self.descriptor, values),
            descriptor_cut: self.descriptor.is_cut(),
            rule: rule.map(|rule| &*rule.full_key),
            file: place.map(|(file, _)| &**file),
            line: place.map(|(_, line)| *line),
            limit: self.limit.as_ref().map(|limit| LimitJson {
                limit,
                number: self.limit_index + 1,
                of: self.limits,
            }),
            count: self.count,
            hits: self.hits,
            retry_after_seconds: self.retry_after,
            decided_by: self.decided_by.name(),
            blocked: self
                .is_blocked
                .then(|| Blocked { until: self.allowed_at().map(|at| Rfc3339(at).to_string()) }),
            by_override: self.by_override.as_ref().map(|by| by.json(values)),
            governs: self.governs,
            weight: (self.weight > 1).then_some(self.weight),
        }
    }

    /// Why it was refused, in words.
    pub fn reason(&self) -> String {
        let limit = self.limit.as_ref().map(ToString::to_string).unwrap_or_default();
        let number = if self.limits > 1 {
            format!(" ({} of {})", self.limit_index + 1, self.limits)
        } else {
            String::new()
        };
        match (self.decided_by, self.is_blocked, self.allowed_at()) {
            (_, true, Some(end)) => format!("blocked until {}", Rfc3339(end)),
            (_, true, None) => "blocked until the override is removed".to_owned(),
            (DecidedBy::FailurePolicy, ..) => "the store failed, and its policy refuses".to_owned(),
            (DecidedBy::Override, ..) => format!("over {limit}, by an override"),
            (DecidedBy::Counter | DecidedBy::OverLimitCache, ..) => format!("over {limit}{number}"),
        }
    }

    /// When the hits would be allowed; `None` if they never are.
    fn allowed_at(&self) -> Option<Time> {
        let micros = self.retry_after?.saturating_mul(1_000_000);
        Some(Time::from_micros(self.time.micros().saturating_add(micros)))
    }

    pub fn domain(&self) -> &str {
        self.domain.entries().next().map_or("", |(domain, _)| domain)
    }
}

pub fn entries(key: &Key, values: KeyValues) -> Vec<EntryJson<'_>> {
    let entry = |(key, value)| EntryJson { key: Cow::Borrowed(key), value: shown(value, values) };
    key.entries().map(entry).collect()
}
