//! A descriptor as it is typed: `key=value,key=value`.

use std::{fmt, str::FromStr};

use crate::proto::envoy::extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor};

/// The entries of one descriptor, in their order; one at least.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Descriptor {
    entries: Vec<(String, String)>,
}

impl Descriptor {
    /// The entries, each a key and a value.
    pub(in crate::cli) fn entries(&self) -> &[(String, String)] {
        &self.entries
    }

    /// The descriptor as Envoy's API has it. 0 hits must stand in the descriptor itself: those of the request
    /// count as 1.
    pub(super) fn to_proto(&self, hits: u32) -> RateLimitDescriptor {
        let entry = |(key, value): &(String, String)| rate_limit_descriptor::Entry {
            key: key.clone(),
            value: value.clone(),
        };
        let hits_addend = (hits == 0).then_some(0);
        RateLimitDescriptor {
            entries: self.entries.iter().map(entry).collect(),
            hits_addend,
            ..Default::default()
        }
    }
}

impl FromStr for Descriptor {
    type Err = String;

    /// The first `=` of an entry ends its key; `\,`, `\=` and `\\` are the characters themselves.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut entries = Vec::new();
        let mut entry = Entry::default();
        let mut characters = text.chars();
        while let Some(character) = characters.next() {
            match character {
                '\\' => match characters.next() {
                    Some(escaped @ (',' | '=' | '\\')) => entry.push(escaped),
                    Some(other) => {
                        return Err(format!("unknown escape \\{other}; a backslash is written \\\\"));
                    }
                    None => return Err("a backslash at the end is written \\\\".to_owned()),
                },
                ',' => entries.push(std::mem::take(&mut entry).finish()?),
                '=' if entry.value.is_none() => entry.value = Some(String::new()),
                other => entry.push(other),
            }
        }
        entries.push(entry.finish()?);
        Ok(Self { entries })
    }
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, value)) in self.entries.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{}={}", escaped(key).replace('=', "\\="), escaped(value))?;
        }
        Ok(())
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace(',', "\\,")
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

    fn finish(self) -> Result<(String, String), String> {
        match self {
            Self { key, value: None } if key.is_empty() => {
                Err("an entry is empty; expected key=value".to_owned())
            }
            Self { key, value: None } => {
                Err(format!("the entry {key:?} has no =; {key}= gives it an empty value"))
            }
            Self { key, value: Some(value) } if key.is_empty() => {
                Err(format!("the value {value:?} has no key"))
            }
            Self { key, value: Some(value) } => Ok((key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_entries_in_order() {
        for (text, entries) in [
            ("a=b", &[("a", "b")][..]),
            ("a=b,c=d", &[("a", "b"), ("c", "d")]),
            ("a=", &[("a", "")]),
            ("a==b=", &[("a", "=b=")]),
            (r"a=b\,c", &[("a", "b,c")]),
            (r"a\=b=c\\", &[("a=b", "c\\")]),
            (r"a\,=\=", &[("a,", "=")]),
            ("path=/x y,\u{fc}=\u{1f600}", &[("path", "/x y"), ("\u{fc}", "\u{1f600}")]),
        ] {
            let read: Descriptor = text.parse().unwrap();
            let read: Vec<_> = read.entries.iter().map(|(key, value)| (&**key, &**value)).collect();
            assert_eq!(read, entries, "{text}");
        }
    }

    #[test]
    fn refuses_other_texts_with_a_reason() {
        for (text, reason) in [
            ("", "an entry is empty"),
            ("a=b,", "an entry is empty"),
            (",a=b", "an entry is empty"),
            ("a", "\"a\" has no ="),
            ("a=b,c", "\"c\" has no ="),
            ("=b", "\"b\" has no key"),
            ("=", "\"\" has no key"),
            (r"a=\n", r"unknown escape \n"),
            ("a=\\", "a backslash at the end"),
        ] {
            let error = text.parse::<Descriptor>().unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn a_printed_descriptor_reads_back(
            entries in prop::collection::vec(("[ab=,\\\\]{1,5}", "[ab=,\\\\]{0,5}"), 1..4),
        ) {
            let descriptor = Descriptor { entries };
            prop_assert_eq!(descriptor.to_string().parse::<Descriptor>(), Ok(descriptor));
        }
    }
}
