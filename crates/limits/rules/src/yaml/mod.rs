//! A YAML document as a tree with source positions, in the dialect of Go's yaml.v2.
//!
//! [`compile`](super::compile()) calls [`read`] once for each file, and `tollgate check --envoy` for Envoy's configuration. In the tree, anchors are resolved, merges are
//! applied, every scalar has its meaning, keys are scalars, and nesting and repetition are bounded, so that its readers
//! can recurse. The readers define the valid keys and values.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod document;
mod events;
mod scalar;
mod text;

#[cfg(test)]
mod tests;

use std::{ops::Deref, rc::Rc};

pub use document::{Document, read};
pub use scalar::Meaning;
pub(crate) use scalar::float_as_key;
pub(crate) use text::decode;
pub use text::template;

use ::text::diagnostics::{FileError, Place};
use document::Weight;

/// The maximum number of values in a file, with aliases expanded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MaxValues {
    pub values: usize,
    pub set_by: &'static str,
    /// What to do about a file that has more.
    pub help: &'static str,
}

impl MaxValues {
    fn exceeded(self) -> FileError {
        let Self { values, set_by, help } = self;
        FileError::new(format!("the file has more than {values} values, with aliases expanded ({set_by})"))
            .with_help(help)
    }
}

#[cfg(test)]
fn read_without_bound(bytes: &[u8]) -> Result<Document, FileError> {
    read(bytes, MaxValues { values: usize::MAX, ..MaxValues::default() })
}

/// A value, which aliases share, and frequent scalars. A rule has eleven, so what only few of them need is boxed.
#[derive(Debug)]
pub struct Node {
    pub content: Content,
}

#[derive(Debug)]
pub enum Content {
    Scalar(Scalar),
    List(Box<Collection<NodeRef>>),
    /// A map. A later pair replaces an earlier one with the same key.
    Map(Box<Collection<Pair>>),
}

#[derive(Debug)]
pub struct Collection<T> {
    weight: Weight,
    items: Box<[T]>,
}

#[derive(Debug)]
pub struct Scalar {
    /// The text without quotes and with escapes replaced.
    pub text: Box<str>,
    pub meaning: Meaning,
}

/// A use of a value. An alias shares the value with its anchor.
#[derive(Clone, Debug)]
pub struct NodeRef {
    pub node: Rc<Node>,
    /// Where the value is written; of an alias, that of its anchor.
    pub place: Place,
    alias: Option<Box<Place>>,
}

#[derive(Clone, Debug)]
pub struct Pair {
    pub key: NodeRef,
    pub value: NodeRef,
    merged: Option<Box<Place>>,
}

impl<T> Deref for Collection<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items
    }
}

impl Content {
    pub(crate) fn list(items: Vec<NodeRef>) -> Self {
        Self::List(Box::new(Collection::new(Weight::of_list(&items), items)))
    }

    pub(crate) fn map(pairs: Vec<Pair>) -> Self {
        Self::Map(Box::new(Collection::new(Weight::of_map(&pairs), pairs)))
    }
}

impl NodeRef {
    pub(crate) fn new(content: Content, place: Place) -> Self {
        Self { node: Rc::new(Node { content }), place, alias: None }
    }

    pub fn alias(&self) -> Option<Place> {
        self.alias.as_deref().copied()
    }
}

impl Pair {
    pub(crate) fn new(key: NodeRef, value: NodeRef) -> Self {
        Self { key, value, merged: None }
    }

    /// The place of the `<<` that merged this pair, if one did.
    pub fn merged(&self) -> Option<Place> {
        self.merged.as_deref().copied()
    }
}
