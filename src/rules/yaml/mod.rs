//! A YAML document as a tree that knows where everything stands, in the dialect of Go's yaml.v2.
//!
//! [`read`] is called once a file by [`shapes`](crate::rules::ast). What comes out is sound: anchors are
//! resolved, merges are spliced in, every scalar has its meaning, keys are scalars, and nothing is
//! nested or repeated without bound, so that readers of the tree can recurse and need not fail. What
//! the keys and values mean to a rules file is left to the readers.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod document;
mod events;
mod guard;
mod scalar;
mod text;
mod weight;

#[cfg(test)]
mod oracle;

use std::rc::Rc;

pub(crate) use document::{Document, read};
pub(crate) use scalar::{Meaning, float_as_key};
pub(crate) use text::decode;

use super::diagnostic::Place;
use weight::Weight;

/// How many values a file may hold, aliases written out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Most {
    /// Scalars, lists and maps.
    pub(crate) values: usize,
    /// What sets the bound.
    pub(crate) set_by: &'static str,
}

impl Most {
    fn exceeded(self) -> Fault {
        let Self { values, set_by } = self;
        let message = format!("the file holds more than {values} values, aliases written out ({set_by})");
        Fault { place: None, message, help: None }
    }
}

#[cfg(test)]
fn read_without_bound(bytes: &[u8]) -> Result<Document, Fault> {
    read(bytes, Most { values: usize::MAX, set_by: "" })
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
    /// A piece of text, and what YAML takes it for.
    Scalar(Scalar),
    /// A list.
    List(Vec<NodeRef>),
    /// A map, its pairs in the order in which they apply: a later pair beats an earlier one.
    Map(Vec<Pair>),
}

/// A piece of text, and what YAML takes it for.
#[derive(Debug)]
pub(crate) struct Scalar {
    /// The text as written, without quotes and with escapes replaced.
    pub(crate) text: String,
    /// What it stands for.
    pub(crate) meaning: Meaning,
}

/// A use of a value. An alias shares the value with its anchor.
#[derive(Clone, Debug)]
pub(crate) struct NodeRef {
    /// The value.
    pub(crate) node: Rc<Node>,
    /// Where the alias stands, if the value stands elsewhere.
    pub(crate) alias: Option<Place>,
}

/// One `key: value`.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    /// The key, always a scalar.
    pub(crate) key: NodeRef,
    /// The value.
    pub(crate) value: NodeRef,
    /// Where the `<<` stands that brought this pair in, if one did.
    pub(crate) merged: Option<Place>,
}

/// Why no tree could be made of a file.
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
