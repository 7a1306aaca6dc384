//! A copy of a descriptor's entries, whose memory is reused for the next descriptor.

use std::{
    borrow::Cow,
    fmt,
    hash::{Hash, Hasher},
    mem,
};

use ring::digest;
use smallvec::SmallVec;

use crate::KeyValues;
use text::{self, entries};

/// Maximum size of the kept keys and values, in bytes, because callers determine their length.
const MAX_BYTES: usize = 512;

const MAX_ENTRIES: usize = 16;

/// The entries of a descriptor, up to these limits.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Key {
    text: String,
    ends: SmallVec<[u16; 8]>,
    is_cut: bool,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(KeyValues::Hidden))
    }
}

impl Key {
    /// Replaces the entries, and reuses their memory.
    pub fn set<'a>(&mut self, entries: impl Iterator<Item = (&'a str, &'a str)>) {
        self.set_within(entries, MAX_BYTES);
    }

    /// As [`set`](Self::set), with another maximum size.
    fn set_within<'a>(&mut self, entries: impl Iterator<Item = (&'a str, &'a str)>, most: usize) {
        self.text.clear();
        self.ends.clear();
        self.is_cut = false;
        for (index, (key, value)) in entries.enumerate() {
            if index == MAX_ENTRIES {
                self.is_cut = true;
                return;
            }
            self.push(key, most);
            self.push(value, most);
        }
    }

    fn push(&mut self, part: &str, most: usize) {
        let room = most - self.text.len();
        let kept = text::beginning(part, room);
        self.is_cut |= kept.len() < part.len();
        self.text.push_str(kept);
        #[expect(clippy::cast_possible_truncation, reason = "at most `MAX_BYTES`")]
        self.ends.push(self.text.len() as u16);
    }

    #[cfg_attr(not(test), expect(clippy::string_slice, reason = "`ends` are the ends of texts"))]
    pub fn entries(&self) -> impl Iterator<Item = (&str, &str)> + Clone {
        let mut start = 0;
        let parts = self
            .ends
            .iter()
            .map(move |end| &self.text[mem::replace(&mut start, usize::from(*end))..usize::from(*end)]);
        let keys = parts.clone().step_by(2);
        let values = parts.skip(1).step_by(2);
        keys.zip(values)
    }

    /// The entries in the form of the command line.
    pub fn text(&self, values: KeyValues) -> String {
        entries::write(self.entries().map(|(key, value)| (key, Some(shown(value, values)))))
    }

    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// As [`set`](Self::set), but the memory grows only if `take` returns true for the additional bytes. Else the text is
    /// cut to the capacity.
    pub(super) fn set_in_budget<'a>(
        &mut self,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        take: impl FnOnce(usize) -> bool,
    ) {
        let lengths = entries.clone().take(MAX_ENTRIES).map(|(key, value)| key.len() + value.len());
        let needed = lengths.sum::<usize>().min(MAX_BYTES);
        self.text.clear();
        if let Some(more) = needed.checked_sub(self.text.capacity()).filter(|more| *more > 0)
            && take(more)
        {
            self.text.reserve_exact(needed);
        }
        self.set_within(entries, self.text.capacity().min(MAX_BYTES));
    }

    pub(super) fn capacity(&self) -> usize {
        self.text.capacity()
    }
}

/// Hashes entries without copying them. Different lists of entries feed different bytes to the hasher.
pub(super) struct HashedEntries<I>(pub(super) I);

impl<'a, I: Iterator<Item = (&'a str, &'a str)> + Clone> Hash for HashedEntries<I> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.clone().for_each(|entry| entry.hash(state));
    }
}

/// A value, converted by `KEY_VALUES`: some values are e-mail addresses or tokens. An empty value reveals nothing.
pub fn shown(value: &str, values: KeyValues) -> Cow<'_, str> {
    match values {
        KeyValues::Plain => value.into(),
        _ if value.is_empty() => value.into(),
        KeyValues::Hashed => {
            let digest = digest::digest(&digest::SHA256, value.as_bytes());
            format!("sha256:{}", text::hex(digest.as_ref().iter().take(8))).into()
        }
        KeyValues::Hidden => "***".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(entries: &[(&str, &str)]) -> Key {
        let mut key = Key::default();
        key.set([("what was", "there before")].into_iter());
        key.set(entries.iter().copied());
        key
    }

    #[test]
    fn entries_are_kept() {
        for entries in [
            &[][..],
            &[("", "")],
            &[("user", "ann")],
            &[("a", ""), ("", "b"), ("a,b=c", "ä\u{0}")],
            &[("k", "v"); 16],
        ] {
            let key = set(entries);
            assert_eq!(key.entries().collect::<Vec<_>>(), entries);
            assert!(!key.is_cut());
        }
    }

    #[test]
    fn entries_are_written_in_the_form_of_the_command_line() {
        let key = set(&[("a=b", "c,d=\\"), ("e", "")]);
        assert_eq!(key.text(KeyValues::Plain), r"a\=b=c\,d=\\,e=");
        assert_eq!(key.text(KeyValues::Hidden), r"a\=b=***,e=");
        assert_eq!(format!("{key:?}"), r"a\=b=***,e=");
    }

    #[test]
    fn long_descriptors_are_cut_between_characters() {
        let long = "é".repeat(400);
        let key = set(&[("user", &long), ("path", "/")]);
        let entries: Vec<_> = key.entries().collect();
        assert_eq!((entries[0].0, entries[0].1.len(), entries[1]), ("user", 508, ("", "")));
        assert!(key.is_cut());
        let key = set(&[("k", "v"); 17]);
        assert!(key.is_cut() && key.entries().count() == 16);
    }

    #[test]
    fn values_are_converted_by_the_setting() {
        let shown = |values| ["ann", ""].map(|value| shown(value, values).into_owned());
        assert_eq!(shown(KeyValues::Plain), ["ann", ""]);
        assert_eq!(shown(KeyValues::Hidden), ["***", ""]);
        // printf %s ann | sha256sum
        assert_eq!(shown(KeyValues::Hashed), ["sha256:49915e0d7d4b402e", ""]);
    }
}
