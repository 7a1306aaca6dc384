//! The abstract syntax of a rules file, which [`compile`](super::compile()) makes rules of.
//!
//! [`read`] turns a document into a [`RawFile`] and reports every error of form: unknown keys, values of the
//! wrong type, duplicate keys. The meaning of values together is left to the compiler and to
//! [`lint`](crate::rules::lint).

mod fields;
mod keys;
mod metadata;
mod reader;
mod tree;

pub(super) use tree::read;

use super::{diagnostic::Place, diagnostics::Path, model::Metadata};

/// A field of the file.
#[derive(Clone, Debug, Default)]
pub(super) enum Field<T> {
    /// It is missing or null.
    #[default]
    Absent,
    /// It is invalid, which has been reported.
    Wrong,
    /// It is valid.
    Given(Given<T>),
}

/// A value and its place.
#[derive(Clone, Debug)]
pub(super) struct Given<T> {
    /// The value.
    pub(super) value: T,
    /// Where the value begins.
    pub(super) place: Place,
    /// Where its key begins.
    pub(super) key: Place,
}

/// A complete file.
#[derive(Debug)]
pub(super) struct RawFile {
    /// Where the file's map begins; none when the file is empty.
    pub(super) place: Option<Place>,
    pub(super) domain: Field<String>,
    pub(super) on_store_failure: Field<String>,
    pub(super) descriptors: Field<Vec<RawDescriptor>>,
}

/// An item of `descriptors`.
#[derive(Debug)]
pub(super) struct RawDescriptor {
    /// Where it begins.
    pub(super) place: Place,
    /// Its number in its list, from 0.
    pub(super) index: usize,
    pub(super) key: Field<String>,
    pub(super) value: Field<String>,
    pub(super) rate_limit: Field<RawLimits>,
    pub(super) descriptors: Field<Vec<RawDescriptor>>,
    pub(super) shadow_mode: Field<bool>,
    pub(super) quota_mode: Field<bool>,
    pub(super) overrides_only: Field<bool>,
    pub(super) detailed_metric: Field<bool>,
    pub(super) value_to_metric: Field<bool>,
    pub(super) share_threshold: Field<bool>,
    pub(super) metadata: Field<Metadata>,
    pub(super) over_limit_body: Field<String>,
}

/// A `rate_limit`.
#[derive(Clone, Debug)]
pub(super) enum RawLimits {
    /// A map.
    One(Box<RawLimit>),
    /// A list of maps, empty perhaps.
    List(Vec<RawLimit>),
}

/// One limit of a `rate_limit`.
#[derive(Clone, Debug)]
pub(super) struct RawLimit {
    /// Where it begins.
    pub(super) place: Place,
    /// Its number in its list, from 0.
    pub(super) index: usize,
    pub(super) unit: Field<String>,
    pub(super) unit_multiplier: Field<u32>,
    pub(super) requests_per_unit: Field<u32>,
    pub(super) algorithm: Field<String>,
    pub(super) burst: Field<u32>,
    pub(super) counting: Field<String>,
    pub(super) unlimited: Field<bool>,
    pub(super) name: Field<String>,
    pub(super) replaces: Field<Vec<RawReplaces>>,
}

/// An item of `replaces`.
#[derive(Clone, Debug)]
pub(super) struct RawReplaces {
    /// Where it begins.
    pub(super) place: Place,
    pub(super) name: Field<String>,
}

impl<T> Field<T> {
    /// The value, if there is one.
    pub(super) fn given(&self) -> Option<&Given<T>> {
        match self {
            Self::Given(given) => Some(given),
            Self::Absent | Self::Wrong => None,
        }
    }

    /// The value alone, if there is one.
    pub(super) fn value(&self) -> Option<&T> {
        self.given().map(|given| &given.value)
    }

    /// True when it is invalid, which has been reported.
    pub(super) fn is_wrong(&self) -> bool {
        matches!(self, Self::Wrong)
    }
}

impl Field<bool> {
    /// True when the flag is set.
    pub(super) fn is_set(&self) -> bool {
        self.value().is_some_and(|set| *set)
    }
}

impl<T> Field<Vec<T>> {
    /// The items; none when there is no list.
    pub(super) fn items(&self) -> &[T] {
        self.value().map(Vec::as_slice).unwrap_or_default()
    }
}

impl RawLimits {
    /// The limits, in their order.
    pub(super) fn as_slice(&self) -> &[RawLimit] {
        match self {
            Self::One(limit) => std::slice::from_ref(limit),
            Self::List(limits) => limits,
        }
    }

    /// The path to one of its limits.
    pub(super) fn path<'a>(&self, at: &'a Path<'a>, limit: &RawLimit) -> Path<'a> {
        match self {
            Self::One(_) => *at,
            Self::List(_) => at.item(limit.index),
        }
    }
}

impl RawLimit {
    /// A limit without fields.
    fn at(place: Place, index: usize) -> Self {
        Self {
            place,
            index,
            unit: Field::Absent,
            unit_multiplier: Field::Absent,
            requests_per_unit: Field::Absent,
            algorithm: Field::Absent,
            burst: Field::Absent,
            counting: Field::Absent,
            unlimited: Field::Absent,
            name: Field::Absent,
            replaces: Field::Absent,
        }
    }
}

impl RawDescriptor {
    /// Its limits; none when it has no `rate_limit`.
    pub(super) fn limits(&self) -> &[RawLimit] {
        self.rate_limit.value().map(RawLimits::as_slice).unwrap_or_default()
    }

    /// The text that requests are compared with: `key`, or `key_value`. None without a readable key.
    pub(super) fn text(&self) -> Option<String> {
        let key = self.key.value().filter(|key| !key.is_empty())?;
        match &self.value {
            Field::Wrong => None,
            Field::Given(value) if !value.value.is_empty() => Some(format!("{key}_{}", value.value)),
            _ => Some(key.clone()),
        }
    }

    /// True when it has a value that is not empty.
    pub(super) fn has_value(&self) -> bool {
        self.value.value().is_some_and(|value| !value.is_empty())
    }
}
