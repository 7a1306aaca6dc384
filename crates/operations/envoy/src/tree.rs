//! Access to a configuration by the names of its fields, as protobuf's JSON mapping has them.

use rules::yaml::{Content, Meaning, NodeRef};
use text::diagnostics::Place;

/// A value of the configuration.
#[derive(Clone, Copy)]
pub(super) struct Value<'t>(pub(super) &'t NodeRef);

impl<'t> Value<'t> {
    pub(super) fn place(self) -> Place {
        self.0.place
    }

    /// The value of a field, which is written `like_this` or `likeThis`.
    pub(super) fn get(self, name: &str) -> Option<Self> {
        let Content::Map(pairs) = &self.0.node.content else { return None };
        let is_named = |node: &NodeRef| {
            Value(node).text().is_some_and(|written| written == name || is_camel_case(written, name))
        };
        let pair = pairs.iter().rev().find(|pair| is_named(&pair.key))?;
        Some(Self(&pair.value)).filter(|value| !value.is_null())
    }

    /// The value behind several fields.
    pub(super) fn at(self, names: &[&str]) -> Option<Self> {
        names.iter().try_fold(self, |value, name| value.get(name))
    }

    /// The items of a list in a field; none if there is no such list.
    pub(super) fn list(self, name: &str) -> impl Iterator<Item = Self> {
        let items = self.get(name).map(|value| &value.0.node.content);
        let items: &[_] = match items {
            Some(Content::List(items)) => items,
            _ => &[],
        };
        items.iter().map(Self)
    }

    pub(super) fn fields(self) -> impl Iterator<Item = (&'t str, Self)> {
        let pairs: &[_] = match &self.0.node.content {
            Content::Map(pairs) => pairs,
            _ => &[],
        };
        pairs.iter().filter_map(|pair| Some((Value(&pair.key).text()?, Self(&pair.value))))
    }

    pub(super) fn text(self) -> Option<&'t str> {
        match &self.0.node.content {
            Content::Scalar(scalar) if scalar.meaning != Meaning::Null => Some(&scalar.text),
            _ => None,
        }
    }

    pub(super) fn flag(self) -> bool {
        matches!(&self.0.node.content, Content::Scalar(scalar) if scalar.meaning == Meaning::Bool(true))
    }

    fn is_null(self) -> bool {
        matches!(&self.0.node.content, Content::Scalar(scalar) if scalar.meaning == Meaning::Null)
    }

    /// True for a message whose type ends so.
    pub(super) fn is(self, message: &str) -> bool {
        self.get("@type").and_then(Self::text).is_some_and(|name| name.ends_with(message))
    }

    /// Visits this value and every value below it.
    pub(super) fn walk(self, visit: &mut dyn FnMut(Self)) {
        visit(self);
        match &self.0.node.content {
            Content::Scalar(_) => {}
            Content::List(items) => items.iter().for_each(|item| Self(item).walk(visit)),
            Content::Map(pairs) => pairs.iter().for_each(|pair| Self(&pair.value).walk(visit)),
        }
    }

    /// Every message of this type below.
    pub(super) fn messages(self, message: &str) -> Vec<Self> {
        let mut found = Vec::new();
        self.walk(&mut |value| {
            if value.is(message) {
                found.push(value);
            }
        });
        found
    }
}

/// True if `written` is `name` in camel case: `rateLimits` for `rate_limits`.
fn is_camel_case(written: &str, name: &str) -> bool {
    let mut parts = name.split('_');
    let mut camel = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (first, rest) = part.split_at(part.len().min(1));
        camel += &first.to_ascii_uppercase();
        camel += rest;
    }
    camel == written
}
