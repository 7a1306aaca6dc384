//! A YAML document as a tree with source positions, in the dialect of Go's yaml.v2.
//!
//! [`ast`](crate::rules::ast) calls [`read`] once for each file. The tree is sound: anchors are resolved,
//! merges are applied, every scalar has its meaning, keys are scalars, and nesting and repetition are
//! bounded, so that its readers can recurse and cannot fail. The meaning of keys and values in a rules file
//! is left to the readers.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod document;
mod events;
mod guard;
mod scalar;
mod text;
mod weight;

#[cfg(test)]
mod tests;

use std::rc::Rc;

pub(crate) use document::{Document, read};
pub(crate) use scalar::{Meaning, float_as_key};
pub(crate) use text::decode;

use super::diagnostic::Place;
use weight::Weight;

/// The maximum number of values in a file, with aliases expanded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MaxValues {
    /// Scalars, lists and maps.
    pub(crate) values: usize,
    /// The variable that sets it.
    pub(crate) set_by: &'static str,
}

impl MaxValues {
    fn exceeded(self) -> Fault {
        let Self { values, set_by } = self;
        let message = format!("the file has more than {values} values, aliases written out ({set_by})");
        Fault { place: None, message, help: None }
    }
}

#[cfg(test)]
fn read_without_bound(bytes: &[u8]) -> Result<Document, Fault> {
    read(bytes, MaxValues { values: usize::MAX, set_by: "" })
}

/// One value of a document.
#[derive(Debug)]
pub(crate) struct Node {
    /// Where it begins.
    pub(crate) place: Place,
    /// What it is.
    pub(crate) content: Content,
    weight: Weight,
}

/// What a value is.
#[derive(Debug)]
pub(crate) enum Content {
    /// A text and its meaning in YAML.
    Scalar(Scalar),
    /// A list.
    List(Vec<NodeRef>),
    /// A map, its pairs in the order in which they apply: a later pair replaces an earlier one.
    Map(Vec<Pair>),
}

/// A text and its meaning in YAML.
#[derive(Debug)]
pub(crate) struct Scalar {
    /// The text as written, without quotes and with escapes replaced.
    pub(crate) text: String,
    /// Its meaning.
    pub(crate) meaning: Meaning,
}

/// A use of a value. An alias shares the value with its anchor.
#[derive(Clone, Debug)]
pub(crate) struct NodeRef {
    /// The value.
    pub(crate) node: Rc<Node>,
    /// The place of the alias, if this is one.
    pub(crate) alias: Option<Place>,
}

/// One `key: value`.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    /// The key, always a scalar.
    pub(crate) key: NodeRef,
    /// The value.
    pub(crate) value: NodeRef,
    /// The place of the `<<` that merged this pair, if one did.
    pub(crate) merged: Option<Place>,
}

/// Why a file could not be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    /// Where reading ended; none when it never began.
    pub(crate) place: Option<Place>,
    /// What is wrong.
    pub(crate) message: String,
    /// What to do.
    pub(crate) help: Option<String>,
}

impl Fault {
    fn at(place: Place, message: impl Into<String>) -> Self {
        Self { place: Some(place), message: message.into(), help: None }
    }

    fn with_help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }
}
