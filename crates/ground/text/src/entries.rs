//! The notation of descriptors: `key=value,key`, with the escapes `\,`, `\=`, `\\`, `\n`, `\r`, `\t` and `\u{1b}`.
//!
//! Commands, query parameters of the admin API, columns of tables and labels of metrics use it.

use std::{mem, str::Chars};

use crate::{cut, printable};

/// Reads the entries of a descriptor in order; at least one. The first `=` of an entry ends its key; an entry without
/// `=` has no value.
pub fn parse(text: &str) -> Result<Vec<(String, Option<String>)>, String> {
    let mut entries = Vec::new();
    let mut key = String::new();
    let mut value = None::<String>;
    let mut characters = text.chars();
    loop {
        let next = characters.next();
        match next {
            None | Some(',') => {
                match &value {
                    None if key.is_empty() => {
                        return Err("an entry is empty; expected key=value".to_owned());
                    }
                    Some(value) if key.is_empty() => return Err(format!("the value {value:?} has no key")),
                    _ => entries.push((mem::take(&mut key), value.take())),
                }
                if next.is_none() {
                    return Ok(entries);
                }
            }
            Some('=') if value.is_none() => value = Some(String::new()),
            Some('\\') => value.as_mut().unwrap_or(&mut key).push(unescape(&mut characters)?),
            Some(other) => value.as_mut().unwrap_or(&mut key).push(other),
        }
    }
}

/// Reads the entries of a descriptor that all have a value.
pub fn parse_with_values(text: &str) -> Result<Vec<(String, String)>, String> {
    let with_value = |(key, value): (String, Option<String>)| match value {
        Some(value) => Ok((key, value)),
        None => Err(format!("the entry {key:?} has no =; write {key}= for an empty value")),
    };
    parse(text)?.into_iter().map(with_value).collect()
}

/// The character of the escape after a backslash.
fn unescape(characters: &mut Chars<'_>) -> Result<char, String> {
    match characters.next() {
        Some(escaped @ (',' | '=' | '\\')) => Ok(escaped),
        Some('n') => Ok('\n'),
        Some('r') => Ok('\r'),
        Some('t') => Ok('\t'),
        Some('u') => {
            let text = characters.as_str();
            let (digits, rest) =
                text.strip_prefix('{').and_then(|text| text.split_once('}')).unwrap_or_default();
            *characters = rest.chars();
            let code = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
            code.ok_or_else(|| {
                format!("unknown escape \\u{}; expected hexadecimal digits as in \\u{{1b}}", cut(text))
            })
        }
        Some(other) => Err(format!("unknown escape \\{other}; write \\\\ for a backslash")),
        None => Err("a backslash at the end; write \\\\ for a backslash".to_owned()),
    }
}

/// A key or a value in the notation of [`parse`].
fn escape(text: &str, is_key: bool) -> String {
    let text = text.replace('\\', "\\\\").replace(',', "\\,");
    let text = if is_key { text.replace('=', "\\=") } else { text };
    printable(&text).into_owned()
}

pub fn write<'a>(entries: impl Iterator<Item = (&'a str, Option<impl AsRef<str>>)>) -> String {
    let mut text = String::new();
    for (key, value) in entries {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&escape(key, true));
        if let Some(value) = value {
            text.push('=');
            text.push_str(&escape(value.as_ref(), false));
        }
    }
    text
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
            (r"a=\n\r\t\u{1b}\u{1F600}x", &[("a", Some("\n\r\t\u{1b}\u{1f600}x"))]),
            ("path=/x y,\u{fc}=\u{1f600}", &[("path", Some("/x y")), ("\u{fc}", Some("\u{1f600}"))]),
        ] {
            let read = parse(text).unwrap();
            let read: Vec<_> = read.iter().map(|(key, value)| (&**key, value.as_deref())).collect();
            assert_eq!(read, entries, "{text}");
        }
    }

    #[test]
    fn rejects_other_texts_with_a_reason() {
        for (text, reason) in [
            ("", "an entry is empty"),
            ("a=b,", "an entry is empty"),
            (",a=b", "an entry is empty"),
            ("a", "\"a\" has no ="),
            ("a=b,c", "\"c\" has no ="),
            ("=b", "\"b\" has no key"),
            ("=", "\"\" has no key"),
            (r"a=\x", r"unknown escape \x"),
            (r"a=\u", r"unknown escape \u;"),
            (r"a=\u{}", r"unknown escape \u{}"),
            (r"a=\u{1b", r"unknown escape \u{1b;"),
            (r"a=\u{d800}", r"unknown escape \u{d800}"),
            (r"a=\u{110000}", r"unknown escape \u{110000}"),
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
                ("[abnu{}=,*\\\\\n\u{1b}\u{202e}]{1,5}", prop::option::of("[abnu{}=,*\\\\\n\u{1b}\u{9b}]{0,5}")),
                1..4,
            ),
        ) {
            let written = write(entries.iter().map(|(key, value)| (&**key, value.as_deref())));
            prop_assert!(!written.contains(crate::is_unprintable), "{}", written.escape_debug());
            prop_assert_eq!(parse(&written), Ok(entries));
        }
    }
}
