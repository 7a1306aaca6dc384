//! The abstract syntax of a rules file, which [`compile`](super::compile()) makes rules of.
//!
//! [`read`] turns a document into a [`RawFile`] and reports every error of form: unknown keys, values of the wrong type,
//! duplicate keys. Errors that depend on several values are left to `lower` and [`lint`](crate::lint).
//!
//! `keys` has a row for each key. If a map is given twice, the later one is merged into the earlier one field by field, as Go's yaml.v2 fills its types:
//! a `rate_limit` from a merge and one beside it become one limit.

mod fields;
mod keys;
mod metadata;
mod reader;

use std::{mem, ops::Deref};

use super::{
    model::Metadata,
    yaml::{Content, Document, Meaning},
};
pub(crate) use keys::{
    MapKind, RawCalendar, RawDescriptor, RawFile, RawHold, RawLimit, RawMap, RawReplaces, RawScheduleEntry,
};
use reader::{Reader, Spot, scalar};
use text::diagnostics::{Diagnostics, FileError, Path, Place};

#[derive(Debug, Default)]
pub(crate) enum Field<T> {
    #[default]
    Absent,
    Wrong,
    Given(Given<T>),
}

#[derive(Debug)]
pub(crate) struct Given<T> {
    pub(crate) value: T,
    pub(crate) place: Place,
    pub(crate) key: Place,
}

/// A field that few maps have, which is allocated for those: a large file has the AST of ten thousands of rules at once.
#[derive(Debug, Default)]
pub(crate) struct Rare<T>(Option<Box<Field<T>>>);

#[derive(Debug)]
pub(crate) enum RawLimits {
    One(Box<RawLimit>),
    /// A list of maps, which may be empty.
    List(Vec<RawLimit>),
}

/// A type of values, and how one is read.
trait Read: Sized {
    /// Reads a value into `field`, which may have an earlier one of the same key.
    fn read(reader: &mut Reader<'_>, spot: Spot<'_>, field: &mut Field<Self>);
}

pub(super) fn read(document: &Document, diagnostics: &mut Diagnostics) -> RawFile {
    let mut file = RawFile { domain: Field::Wrong, ..RawFile::default() };
    let mut reader = Reader { diagnostics };
    if let Some(place) = document.remainder {
        reader.diagnostics.second_document(place);
    }
    let spot = document.root.as_ref().map(|root| Spot::file(root, &Path::File));
    match spot.map(|spot| (spot, &spot.node.content)) {
        Some((spot, Content::Map(pairs))) if reader.is_manifest(&spot, pairs) => {}
        Some((spot, Content::Map(pairs))) => file = reader.map(0, spot, pairs),
        Some((spot, _)) if scalar(spot.node) != Some(&Meaning::Null) => {
            reader.mismatch(&spot, "a map with `domain` and `descriptors`", "");
        }
        _ => {
            let error = FileError::new("the file is empty; a rules file must have a domain");
            let help = "begin the file with `domain: NAME`, the domain of Envoy's rate limit filter";
            reader.diagnostics.file_error(error.with_help(help));
        }
    }
    file
}

impl Read for String {
    fn read(reader: &mut Reader<'_>, spot: Spot<'_>, field: &mut Field<Self>) {
        *field = reader.text(spot);
    }
}

impl Read for bool {
    fn read(reader: &mut Reader<'_>, spot: Spot<'_>, field: &mut Field<Self>) {
        *field = reader.flag(spot);
    }
}

impl Read for Metadata {
    fn read(reader: &mut Reader<'_>, spot: Spot<'_>, field: &mut Field<Self>) {
        metadata::read(reader, spot, field);
    }
}

impl Read for Vec<RawDescriptor> {
    fn read(reader: &mut Reader<'_>, spot: Spot<'_>, field: &mut Field<Self>) {
        *field = reader.list(spot, "descriptors", "- key: …");
    }
}

/// A map is merged into an earlier one of the same descriptor; a list replaces it.
impl Read for RawLimits {
    fn read(reader: &mut Reader<'_>, spot: Spot<'_>, field: &mut Field<Self>) {
        *field = match &spot.node.content {
            Content::Map(pairs) => {
                let mut limit = match mem::take(field) {
                    Field::Given(Given { value: Self::One(limit), .. }) => limit,
                    _ => Box::default(),
                };
                limit.place = spot.place;
                reader.fields(spot, pairs, &mut *limit);
                spot.given(Self::One(limit))
            }
            Content::List(_) => {
                reader.diagnostics.unportable(spot.key, spot.path, "a list of limits");
                reader.list(spot, "limits", "- unit: …").map(Self::List)
            }
            Content::Scalar(scalar) if scalar.meaning == Meaning::Null => Field::Absent,
            Content::Scalar(_) => {
                let help = "add `unit` and `requests_per_unit`, or `unlimited: true`";
                reader.mismatch(&spot, "a map", help);
                Field::Wrong
            }
        };
    }
}

impl Read for Vec<RawReplaces> {
    fn read(reader: &mut Reader<'_>, spot: Spot<'_>, field: &mut Field<Self>) {
        *field = reader.list(spot, "limits to replace", "- name: …");
    }
}

impl Read for RawCalendar {
    fn read(reader: &mut Reader<'_>, spot: Spot<'_>, field: &mut Field<Self>) {
        let help = match scalar(spot.node) {
            Some(Meaning::Null) => "write `calendar: {}` for UTC",
            _ => "write `calendar: {time_zone: …}`",
        };
        *field = reader.required_map(spot, help);
    }
}

impl Read for RawHold {
    fn read(reader: &mut Reader<'_>, spot: Spot<'_>, field: &mut Field<Self>) {
        *field = reader.required_map(spot, "write `hold: {amount: …, ttl: …}`");
    }
}

impl Read for Vec<RawScheduleEntry> {
    fn read(reader: &mut Reader<'_>, spot: Spot<'_>, field: &mut Field<Self>) {
        *field = reader.list(spot, "entries", "- days: …");
        // What is no map has been reported.
        if matches!(&spot.node.content, Content::List(items) if items.len() > field.items().len()) {
            *field = Field::Wrong;
        }
    }
}

/// A text, or the items of a list.
impl Read for Vec<Field<String>> {
    fn read(reader: &mut Reader<'_>, spot: Spot<'_>, field: &mut Field<Self>) {
        *field = reader.texts(spot);
    }
}

impl<T> Field<T> {
    fn set(&mut self) -> &mut Self {
        self
    }

    fn map<U>(self, change: impl FnOnce(T) -> U) -> Field<U> {
        match self {
            Self::Absent => Field::Absent,
            Self::Wrong => Field::Wrong,
            Self::Given(Given { value, place, key }) => {
                Field::Given(Given { value: change(value), place, key })
            }
        }
    }

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

impl<T> Rare<T> {
    fn set(&mut self) -> &mut Field<T> {
        self.0.get_or_insert_default()
    }
}

impl<T> Deref for Rare<T> {
    type Target = Field<T>;

    fn deref(&self) -> &Field<T> {
        self.0.as_deref().unwrap_or(&Field::Absent)
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
            Self::List(_) => limit.path(at),
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
