//! A descriptor as it is typed on a command line, in a query or in a cell of a table: `key=value,key2=value2`.
//!
//! A key without `=` has no value, which stands for every value without a rule of its own. `\,`, `\=` and `\\` are
//! the characters themselves, and `\n`, `\r`, `\t` and `\u{1b}` those that a terminal would obey.

use super::model::{Target, Value};
use crate::entries::{escape, unescape};

/// The entries of a descriptor.
///
/// # Errors
/// What is wrong with the text, and how to write it.
pub fn parse(text: &str) -> Result<Vec<(Box<str>, Value)>, String> {
    let mut entries = Vec::new();
    let mut entry = Entry::default();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => entry.push(unescape(&mut characters)?),
            ',' => entries.push(std::mem::take(&mut entry).finish()?),
            '=' if entry.value.is_none() => entry.value = Some(String::new()),
            other => entry.push(other),
        }
    }
    entries.push(entry.finish()?);
    Ok(entries)
}

/// A target's descriptor as [`parse`] reads it.
#[must_use]
pub fn print(target: &Target) -> String {
    let entry = |(key, value): &(Box<str>, Value)| {
        let key = escape(key, true);
        match value {
            Value::Exact(value) | Value::Pattern(value) => format!("{key}={}", escape(value, false)),
            Value::Any => key,
        }
    };
    target.entries().iter().map(entry).collect::<Vec<_>>().join(",")
}

/// An entry while it is read; its value begins with the `=`.
#[derive(Default)]
struct Entry {
    key: String,
    value: Option<String>,
}

impl Entry {
    fn push(&mut self, character: char) {
        self.value.as_mut().unwrap_or(&mut self.key).push(character);
    }

    fn finish(self) -> Result<(Box<str>, Value), String> {
        match self.value {
            None if self.key.is_empty() => {
                Err("an entry is empty; expected key=value, or a key alone for every value".to_owned())
            }
            Some(value) if self.key.is_empty() => Err(format!("the value {value:?} has no key")),
            value => Ok((self.key.into(), Value::new(value.as_deref()))),
        }
    }
}
