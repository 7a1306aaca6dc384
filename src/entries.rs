//! A descriptor as people type it: `key=value,key`, with `\,`, `\=` and `\\` for the characters themselves.
//!
//! Commands, query parameters of the admin API, columns of tables and labels of metrics have this form.

/// Reads the entries of a descriptor, in their order; one at least. The first `=` of an entry ends its key; an entry
/// without one has no value.
///
/// # Errors
/// What is wrong with the text.
pub fn parse(text: &str) -> Result<Vec<(String, Option<String>)>, String> {
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
    Ok(entries)
}

/// Reads the entries of a descriptor that all have a value.
///
/// # Errors
/// What is wrong with the text.
pub fn parse_with_values(text: &str) -> Result<Vec<(String, String)>, String> {
    let with_value = |(key, value): (String, Option<String>)| match value {
        Some(value) => Ok((key, value)),
        None => Err(format!("the entry {key:?} has no =; {key}= gives it an empty value")),
    };
    parse(text)?.into_iter().map(with_value).collect()
}

/// Writes the entries of a descriptor.
pub fn write<'a>(entries: impl Iterator<Item = (&'a str, Option<impl AsRef<str>>)>) -> String {
    let escaped = |text: &str| text.replace('\\', "\\\\").replace(',', "\\,");
    let mut text = String::new();
    for (key, value) in entries {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&escaped(key).replace('=', "\\="));
        if let Some(value) = value {
            text.push('=');
            text.push_str(&escaped(value.as_ref()));
        }
    }
    text
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

    fn finish(self) -> Result<(String, Option<String>), String> {
        match self {
            Self { key, value: None } if key.is_empty() => {
                Err("an entry is empty; expected key=value".to_owned())
            }
            Self { key, value: Some(value) } if key.is_empty() => {
                Err(format!("the value {value:?} has no key"))
            }
            Self { key, value } => Ok((key, value)),
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
            ("a=b", &[("a", Some("b"))][..]),
            ("a=b,c=d", &[("a", Some("b")), ("c", Some("d"))]),
            ("a,c=d", &[("a", None), ("c", Some("d"))]),
            ("a=", &[("a", Some(""))]),
            ("a==b=", &[("a", Some("=b="))]),
            (r"a=b\,c", &[("a", Some("b,c"))]),
            (r"a\=b=c\\", &[("a=b", Some("c\\"))]),
            (r"a\,=\=", &[("a,", Some("="))]),
            ("path=/x y,\u{fc}=\u{1f600}", &[("path", Some("/x y")), ("\u{fc}", Some("\u{1f600}"))]),
        ] {
            let read = parse(text).unwrap();
            let read: Vec<_> = read.iter().map(|(key, value)| (&**key, value.as_deref())).collect();
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
            let error = parse_with_values(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn a_written_descriptor_reads_back(
            entries in prop::collection::vec(
                ("[ab=,*\\\\]{1,5}", prop::option::of("[ab=,*\\\\]{0,5}")),
                1..4,
            ),
        ) {
            let written = write(entries.iter().map(|(key, value)| (&**key, value.as_deref())));
            prop_assert_eq!(parse(&written), Ok(entries));
        }
    }
}
