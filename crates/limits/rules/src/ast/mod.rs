//! The abstract syntax of a rules file, which [`compile`](super::compile()) makes rules of.
//!
//! [`read`] turns a document into a [`RawFile`] and reports every error of form: unknown keys, values of the wrong type,
//! duplicate keys. Errors that depend on several values are left to `lower` and [`lint`](crate::lint).
//!
//! If a map is given twice, the later one is merged into the earlier one field by field, as Go's yaml.v2 fills its types:
//! a `rate_limit` from a merge and one beside it become one limit.

mod fields;
mod metadata;
mod reader;

use std::{ops::Deref, sync::LazyLock};

use super::{
    model::Metadata,
    yaml::{Content, Document, Meaning, Pair},
};
pub(crate) use fields::{Level, keys};
use limit::MAX_LIMIT;
use reader::{Reader, Spot, scalar};
use text::diagnostics::{Diagnostics, Path, Place};

#[derive(Clone, Debug, Default)]
pub(super) enum Field<T> {
    #[default]
    Absent,
    Wrong,
    Given(Given<T>),
}

#[derive(Clone, Debug)]
pub(super) struct Given<T> {
    pub(super) value: T,
    pub(super) place: Place,
    pub(super) key: Place,
}

#[derive(Debug, Default)]
pub(super) struct RawFile {
    /// Where the file's map begins; `None` if the file is empty.
    pub(super) place: Option<Place>,
    pub(super) domain: Field<String>,
    pub(super) on_store_failure: Field<String>,
    pub(super) descriptors: Field<Vec<RawDescriptor>>,
}

#[derive(Debug, Default)]
pub(super) struct RawDescriptor {
    pub(super) place: Place,
    /// Its number in its list, from 0.
    pub(super) index: usize,
    pub(super) key: Field<String>,
    pub(super) value: Field<String>,
    pub(super) rate_limit: Field<RawLimits>,
    pub(super) descriptors: Field<Vec<RawDescriptor>>,
    pub(super) rare: Rare<RareOfDescriptor>,
}

/// What few descriptors have.
#[derive(Debug, Default)]
pub(super) struct RareOfDescriptor {
    pub(super) shadow_mode: Field<bool>,
    pub(super) quota_mode: Field<bool>,
    pub(super) overrides_only: Field<bool>,
    pub(super) detailed_metric: Field<bool>,
    pub(super) value_to_metric: Field<bool>,
    pub(super) share_threshold: Field<bool>,
    pub(super) metadata: Field<Metadata>,
    pub(super) over_limit_body: Field<String>,
}

#[derive(Clone, Debug)]
pub(super) enum RawLimits {
    One(Box<RawLimit>),
    /// A list of maps, which may be empty.
    List(Vec<RawLimit>),
}

#[derive(Clone, Debug, Default)]
pub(super) struct RawLimit {
    pub(super) place: Place,
    /// Its number in its list, from 0.
    pub(super) index: usize,
    pub(super) unit: Field<String>,
    pub(super) requests_per_unit: Field<u64>,
    pub(super) rare: Rare<RareOfLimit>,
}

/// What few limits have.
#[derive(Clone, Debug, Default)]
pub(super) struct RareOfLimit {
    pub(super) unit_multiplier: Field<u64>,
    pub(super) algorithm: Field<String>,
    pub(super) burst: Field<u64>,
    pub(super) counting: Field<String>,
    pub(super) calendar: Field<RawCalendar>,
    pub(super) hold: Field<RawHold>,
    pub(super) schedule: Field<Vec<RawScheduleEntry>>,
    pub(super) unlimited: Field<bool>,
    pub(super) name: Field<String>,
    pub(super) replaces: Field<Vec<RawReplaces>>,
}

/// Fields that are allocated when the first of them is set: a large file has the AST of ten thousands of rules at once.
#[derive(Clone, Debug, Default)]
pub(super) struct Rare<T>(Option<Box<T>>);

impl<T: Default> Rare<T> {
    fn set(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

impl Deref for RawDescriptor {
    type Target = RareOfDescriptor;

    fn deref(&self) -> &RareOfDescriptor {
        static ABSENT: LazyLock<RareOfDescriptor> = LazyLock::new(RareOfDescriptor::default);
        self.rare.0.as_deref().unwrap_or(&ABSENT)
    }
}

impl Deref for RawLimit {
    type Target = RareOfLimit;

    fn deref(&self) -> &RareOfLimit {
        static ABSENT: LazyLock<RareOfLimit> = LazyLock::new(RareOfLimit::default);
        self.rare.0.as_deref().unwrap_or(&ABSENT)
    }
}

impl<T> From<T> for Rare<T> {
    fn from(rare: T) -> Self {
        Self(Some(Box::new(rare)))
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct RawCalendar {
    pub(super) time_zone: Field<String>,
    pub(super) week_start: Field<String>,
    pub(super) anchor_day: Field<u64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct RawHold {
    pub(super) amount: Field<u64>,
    pub(super) ttl: Field<String>,
    pub(super) unknown: Field<String>,
    pub(super) currency: Field<String>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct RawScheduleEntry {
    pub(super) place: Place,
    /// A text, or the items of a list.
    pub(super) days: Vec<Field<String>>,
    pub(super) from: Field<String>,
    pub(super) to: Field<String>,
    pub(super) time_zone: Field<String>,
    pub(super) requests_per_unit: Field<u64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct RawReplaces {
    pub(super) place: Place,
    pub(super) name: Field<String>,
}

pub(super) fn read(document: &Document, diagnostics: &mut Diagnostics) -> RawFile {
    let mut file = RawFile::default();
    let mut reader = Reader { diagnostics };
    if let Some(place) = document.remainder {
        reader.diagnostics.second_document(place);
    }
    let Some(root) = &document.root else { return file };
    let spot = Spot::file(root, &Path::File);
    match &spot.node.content {
        Content::Map(pairs) if reader.is_manifest(&spot, pairs) => file.domain = Field::Wrong,
        Content::Map(pairs) => {
            file.place = Some(spot.place);
            reader.fields(spot, pairs, Level::File, &mut |reader, key, value| match key {
                "domain" => file.domain = reader.text(value),
                "on_store_failure" => file.on_store_failure = reader.text(value),
                _ => file.descriptors = descriptors(reader, value),
            });
        }
        _ if scalar(spot.node) == Some(&Meaning::Null) => {}
        _ => {
            reader.mismatch(&spot, "a map with `domain` and `descriptors`", "");
            file.domain = Field::Wrong;
        }
    }
    file
}

fn descriptors(reader: &mut Reader<'_>, spot: Spot<'_>) -> Field<Vec<RawDescriptor>> {
    reader.list(spot, "descriptors", "- key: …", descriptor)
}

fn descriptor(reader: &mut Reader<'_>, index: usize, spot: Spot<'_>) -> RawDescriptor {
    let mut raw = RawDescriptor { place: spot.place, index, ..RawDescriptor::default() };
    let Content::Map(pairs) = &spot.node.content else { return raw };
    reader.fields(spot, pairs, Level::Descriptor, &mut |reader, key, value| match key {
        "key" => raw.key = reader.text(value),
        "value" => raw.value = reader.text(value),
        "rate_limit" => limits(reader, value, &mut raw.rate_limit),
        "descriptors" => raw.descriptors = descriptors(reader, value),
        "shadow_mode" => raw.rare.set().shadow_mode = reader.flag(value),
        "overrides_only" => raw.rare.set().overrides_only = reader.flag(value),
        "quota_mode" => raw.rare.set().quota_mode = reader.flag(value),
        "detailed_metric" => raw.rare.set().detailed_metric = reader.flag(value),
        "value_to_metric" => raw.rare.set().value_to_metric = reader.flag(value),
        "share_threshold" => raw.rare.set().share_threshold = reader.flag(value),
        "over_limit_body" => raw.rare.set().over_limit_body = reader.text(value),
        _ => metadata::read(reader, value, &mut raw.rare.set().metadata),
    });
    raw
}

/// Reads a `rate_limit`. A map is merged into an earlier one of the same descriptor; a list replaces it.
fn limits(reader: &mut Reader<'_>, spot: Spot<'_>, known: &mut Field<RawLimits>) {
    let value = match &spot.node.content {
        Content::Map(pairs) => {
            let mut limit = match std::mem::take(known) {
                Field::Given(Given { value: RawLimits::One(limit), .. }) => limit,
                _ => Box::new(RawLimit::default()),
            };
            limit.place = spot.place;
            fields_of_limit(reader, spot, pairs, &mut limit);
            RawLimits::One(limit)
        }
        Content::List(_) => {
            reader.diagnostics.unportable(spot.key, spot.path, "a list of limits");
            let Field::Given(items) = reader.list(spot, "limits", "- unit: …", limit_of_list) else {
                return;
            };
            RawLimits::List(items.value)
        }
        Content::Scalar(scalar) => {
            *known = if scalar.meaning == Meaning::Null {
                Field::Absent
            } else {
                let help = "add `unit` and `requests_per_unit`, or `unlimited: true`";
                reader.mismatch(&spot, "a map", help);
                Field::Wrong
            };
            return;
        }
    };
    *known = Field::Given(Given { value, place: spot.place, key: spot.key });
}

fn limit_of_list(reader: &mut Reader<'_>, index: usize, spot: Spot<'_>) -> RawLimit {
    let mut limit = RawLimit { place: spot.place, index, ..RawLimit::default() };
    if let Content::Map(pairs) = &spot.node.content {
        fields_of_limit(reader, spot, pairs, &mut limit);
    }
    limit
}

fn fields_of_limit(reader: &mut Reader<'_>, spot: Spot<'_>, pairs: &[Pair], limit: &mut RawLimit) {
    reader.fields(spot, pairs, Level::Limit, &mut |reader, key, value| match key {
        "unit" => limit.unit = reader.text(value),
        "unit_multiplier" => limit.rare.set().unit_multiplier = reader.number(value, u32::MAX.into()),
        "requests_per_unit" => limit.requests_per_unit = reader.requests_per_unit(value),
        "algorithm" => limit.rare.set().algorithm = reader.text(value),
        "burst" => limit.rare.set().burst = reader.number(value, MAX_LIMIT),
        "counting" => limit.rare.set().counting = reader.text(value),
        "calendar" => limit.rare.set().calendar = calendar(reader, value),
        "hold" => limit.rare.set().hold = hold(reader, value),
        "schedule" => limit.rare.set().schedule = schedule(reader, value),
        "unlimited" => limit.rare.set().unlimited = reader.flag(value),
        "name" => limit.rare.set().name = reader.text(value),
        _ => limit.rare.set().replaces = reader.list(value, "limits to replace", "- name: …", replaces),
    });
}

fn calendar(reader: &mut Reader<'_>, spot: Spot<'_>) -> Field<RawCalendar> {
    let Content::Map(pairs) = &spot.node.content else {
        let help = match &spot.node.content {
            Content::Scalar(scalar) if scalar.meaning == Meaning::Null => "write `calendar: {}` for UTC",
            _ => "write `calendar: {time_zone: …}`",
        };
        reader.mismatch(&spot, "a map", help);
        return Field::Wrong;
    };
    let mut raw = RawCalendar::default();
    reader.fields(spot, pairs, Level::Calendar, &mut |reader, key, value| match key {
        "time_zone" => raw.time_zone = reader.text(value),
        "week_start" => raw.week_start = reader.text(value),
        _ => raw.anchor_day = reader.day(value),
    });
    Field::Given(Given { value: raw, place: spot.place, key: spot.key })
}

fn hold(reader: &mut Reader<'_>, spot: Spot<'_>) -> Field<RawHold> {
    let Content::Map(pairs) = &spot.node.content else {
        reader.mismatch(&spot, "a map", "write `hold: {amount: …, ttl: …}`");
        return Field::Wrong;
    };
    let mut raw = RawHold::default();
    reader.fields(spot, pairs, Level::Hold, &mut |reader, key, value| match key {
        "amount" => raw.amount = reader.number(value, MAX_LIMIT),
        "ttl" => raw.ttl = reader.text(value),
        "unknown" => raw.unknown = reader.text(value),
        _ => raw.currency = reader.text(value),
    });
    Field::Given(Given { value: raw, place: spot.place, key: spot.key })
}

fn schedule(reader: &mut Reader<'_>, spot: Spot<'_>) -> Field<Vec<RawScheduleEntry>> {
    let entries = reader.list(spot, "entries", "- days: …", schedule_entry);
    match &spot.node.content {
        // What is no map has been reported.
        Content::List(items) if items.len() > entries.items().len() => Field::Wrong,
        _ => entries,
    }
}

fn schedule_entry(reader: &mut Reader<'_>, _: usize, spot: Spot<'_>) -> RawScheduleEntry {
    let mut raw = RawScheduleEntry { place: spot.place, ..RawScheduleEntry::default() };
    let Content::Map(pairs) = &spot.node.content else { return raw };
    reader.fields(spot, pairs, Level::Schedule, &mut |reader, key, value| match key {
        "days" => raw.days = reader.texts(value),
        "from" => raw.from = reader.text(value),
        "to" => raw.to = reader.text(value),
        "time_zone" => raw.time_zone = reader.text(value),
        _ => raw.requests_per_unit = reader.requests_per_unit(value),
    });
    raw
}

fn replaces(reader: &mut Reader<'_>, _: usize, spot: Spot<'_>) -> RawReplaces {
    let mut raw = RawReplaces { place: spot.place, ..RawReplaces::default() };
    if let Content::Map(pairs) = &spot.node.content {
        reader.fields(spot, pairs, Level::Replaces, &mut |reader, _, value| raw.name = reader.text(value));
    }
    raw
}

impl<T> Field<T> {
    pub(super) fn given(&self) -> Option<&Given<T>> {
        match self {
            Self::Given(given) => Some(given),
            Self::Absent | Self::Wrong => None,
        }
    }

    pub(super) fn value(&self) -> Option<&T> {
        self.given().map(|given| &given.value)
    }

    pub(super) fn place(&self) -> Option<Place> {
        self.given().map(|given| given.place)
    }

    pub(super) fn key(&self) -> Option<Place> {
        self.given().map(|given| given.key)
    }

    /// True if it is invalid, which has been reported.
    pub(super) fn is_wrong(&self) -> bool {
        matches!(self, Self::Wrong)
    }
}

impl Field<bool> {
    pub(super) fn is_set(&self) -> bool {
        self.value().is_some_and(|set| *set)
    }
}

impl<T> Field<Vec<T>> {
    pub(super) fn items(&self) -> &[T] {
        self.value().map(Vec::as_slice).unwrap_or_default()
    }
}

impl RawLimits {
    pub(super) fn as_slice(&self) -> &[RawLimit] {
        match self {
            Self::One(limit) => std::slice::from_ref(limit),
            Self::List(limits) => limits,
        }
    }

    pub(super) fn path<'a>(&self, at: &'a Path<'a>, limit: &RawLimit) -> Path<'a> {
        match self {
            Self::One(_) => *at,
            Self::List(_) => at.item(limit.index),
        }
    }
}

impl RawDescriptor {
    pub(super) fn limits(&self) -> &[RawLimit] {
        self.rate_limit.value().map(RawLimits::as_slice).unwrap_or_default()
    }

    /// The text that requests are compared with: `key`, or `key_value`. `None` without a valid key.
    pub(super) fn text(&self) -> Option<String> {
        let key = self.key.value().filter(|key| !key.is_empty())?;
        match &self.value {
            Field::Wrong => None,
            Field::Given(value) if !value.value.is_empty() => Some(format!("{key}_{}", value.value)),
            _ => Some(key.clone()),
        }
    }

    pub(super) fn has_value(&self) -> bool {
        self.value.value().is_some_and(|value| !value.is_empty())
    }
}
