//! Typed readers of the mapper's file: each takes a value as what it should be, or says what it is.

use std::collections::BTreeMap;

use crate::rules::{
    diagnostics::{Diagnostics, Path, quoted},
    spelling::nearest,
    yaml::{Content, Meaning, NodeRef, Pair},
};

/// Reads values and gathers what is wrong with them.
pub(super) struct Reader {
    pub(super) findings: Diagnostics,
}

/// The values of a map by their keys.
pub(super) type Fields<'a> = BTreeMap<&'a str, &'a NodeRef>;

impl Reader {
    pub(super) fn error(&mut self, at: &NodeRef, path: &Path<'_>, message: String, help: &str) {
        self.findings.error(at.node.place, path, message, Some(help.to_owned()));
    }

    pub(super) fn warning(&mut self, at: &NodeRef, path: &Path<'_>, message: &str, help: &str) {
        self.findings.warning(at.node.place, path, message.to_owned(), Some(help.to_owned()));
    }

    /// The fields of a map; those that are not among `known` cause a warning and are left out.
    pub(super) fn fields<'a>(&mut self, map: &'a NodeRef, path: &Path<'_>, known: &[&str]) -> Fields<'a> {
        let mut fields = Fields::new();
        for pair in self.pairs(map, path) {
            let Content::Scalar(key) = &pair.key.node.content else { continue };
            if known.contains(&&*key.text) {
                fields.insert(&key.text, &pair.value);
                continue;
            }
            let meant = nearest(&key.text, known.iter().copied());
            let help = meant.map_or_else(
                || format!("known here: {}", known.join(", ")),
                |meant| format!("is `{meant}` meant?"),
            );
            let message = format!("the option {} is unknown and does nothing", quoted(&key.text));
            self.warning(&pair.key, path, &message, &help);
        }
        // What is nothing is not there.
        fields.retain(|_, value| !is_nothing(value));
        fields
    }

    /// The pairs of a map.
    pub(super) fn pairs<'a>(&mut self, map: &'a NodeRef, path: &Path<'_>) -> &'a [Pair] {
        match &map.node.content {
            Content::Map(pairs) => pairs,
            _ if is_nothing(map) => &[],
            _ => {
                self.mismatch(map, path, "a map", "write `key: value`");
                &[]
            }
        }
    }

    /// The items of a list.
    pub(super) fn items<'a>(&mut self, list: &'a NodeRef, path: &Path<'_>) -> &'a [NodeRef] {
        match &list.node.content {
            Content::List(items) => items,
            _ if is_nothing(list) => &[],
            _ => {
                self.mismatch(list, path, "a list", "begin each item with a dash");
                &[]
            }
        }
    }

    /// Any text.
    pub(super) fn text(&mut self, value: &NodeRef, path: &Path<'_>) -> Option<String> {
        if let Content::Scalar(scalar) = &value.node.content {
            return Some(scalar.text.clone());
        }
        self.mismatch(value, path, "text", "put it in quotes");
        None
    }

    /// Any number.
    pub(super) fn number(&mut self, value: &NodeRef, path: &Path<'_>) -> Option<f64> {
        if let Content::Scalar(scalar) = &value.node.content
            && let Meaning::Int(_) | Meaning::Large(_) | Meaning::Float(_) = scalar.meaning
            && let Ok(number) = scalar.text.replace('_', "").parse::<f64>()
            && number.is_finite()
        {
            return Some(number);
        }
        self.mismatch(value, path, "a number", "write 0.001, 1e-3 or 10, without quotes");
        None
    }

    /// A flag.
    pub(super) fn flag(&mut self, value: &NodeRef, path: &Path<'_>) -> bool {
        if let Content::Scalar(scalar) = &value.node.content
            && let Meaning::Bool(flag) = scalar.meaning
        {
            return flag;
        }
        self.mismatch(value, path, "`true` or `false`", "remove the quotes");
        false
    }

    /// One of a few words.
    pub(super) fn word<T: Copy>(
        &mut self,
        value: &NodeRef,
        path: &Path<'_>,
        words: &[(&str, T)],
    ) -> Option<T> {
        let text = self.text(value, path)?;
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning);
        if found.is_none() {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let message = format!("got {}, expected one of {}", quoted(&text), known.join(", "));
            self.error(value, path, message, "write one of these");
        }
        found
    }

    fn mismatch(&mut self, value: &NodeRef, path: &Path<'_>, expected: &str, help: &str) {
        let seen = match &value.node.content {
            Content::Scalar(scalar) => quoted(&scalar.text),
            Content::List(_) => "a list".to_owned(),
            Content::Map(_) => "a map".to_owned(),
        };
        self.error(value, path, format!("{expected} is expected here, this is {seen}"), help);
    }
}

fn is_nothing(value: &NodeRef) -> bool {
    matches!(&value.node.content, Content::Scalar(scalar) if scalar.meaning == Meaning::Null)
}
