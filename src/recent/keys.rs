//! A descriptor's entries in memory of their own, which is used again for the next descriptor.

use std::{borrow::Cow, fmt::Write as _};

use ring::digest;
use smallvec::SmallVec;

use crate::{entries, settings::KeyValues, text};

/// Bytes of keys and values that are kept of a descriptor. A caller chooses how long they are.
const MAX_BYTES: usize = 512;

/// Entries that are kept of a descriptor.
const MAX_ENTRIES: usize = 16;

/// The entries of a descriptor, or as much of them as is kept.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Key {
    /// Every key and value, one after another.
    text: String,
    /// Where each of them ends.
    ends: SmallVec<[u16; 8]>,
    is_cut: bool,
}

impl Key {
    /// Replaces the entries; the memory of the old ones is used again.
    pub fn set<'a>(&mut self, entries: impl Iterator<Item = (&'a str, &'a str)>) {
        self.set_within(entries, MAX_BYTES);
    }

    /// The same, with at most so many bytes of text.
    pub(super) fn set_within<'a>(&mut self, entries: impl Iterator<Item = (&'a str, &'a str)>, most: usize) {
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
        let room = most.saturating_sub(self.text.len());
        let kept = text::beginning(part, room);
        self.is_cut |= kept.len() < part.len();
        self.text.push_str(kept);
        self.ends.push(u16::try_from(self.text.len()).unwrap_or(u16::MAX));
    }

    /// The entries, each a key and a value.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &str)> + Clone {
        let mut start = 0;
        let parts = self.ends.iter().map(move |end| {
            let part = self.text.get(std::mem::replace(&mut start, usize::from(*end))..usize::from(*end));
            part.unwrap_or_default()
        });
        let (keys, values) = (parts.clone().step_by(2), parts.skip(1).step_by(2));
        keys.zip(values)
    }

    /// The entries as commands take them.
    #[must_use]
    pub fn text(&self, values: KeyValues) -> String {
        entries::write(self.entries().map(|(key, value)| (key, Some(shown(value, values)))))
    }

    /// True if the descriptor was longer than what is kept of it.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// The bytes of text that these entries need beyond what there is.
    pub(super) fn needs<'a>(&self, entries: impl Iterator<Item = (&'a str, &'a str)>) -> usize {
        let lengths = entries.take(MAX_ENTRIES).map(|(key, value)| key.len().saturating_add(value.len()));
        let needed = lengths.fold(0, usize::saturating_add).min(MAX_BYTES);
        needed.saturating_sub(self.text.capacity())
    }

    /// Makes room for so many more bytes of text.
    pub(super) fn grow(&mut self, bytes: usize) {
        let wanted = self.text.capacity().saturating_add(bytes);
        self.text.reserve_exact(wanted.saturating_sub(self.text.len()));
    }

    /// Bytes of text for which there is room.
    pub(super) fn capacity(&self) -> usize {
        self.text.capacity()
    }
}

/// Entries in a form that is hashed without being copied. No two lists of entries have the same form.
pub struct SharedEntry<I>(I);

impl<I> SharedEntry<I> {
    /// All entries of a descriptor.
    pub fn all(entries: I) -> Self {
        Self(entries)
    }
}

impl<'a, I: Iterator<Item = (&'a str, &'a str)> + Clone> std::hash::Hash for SharedEntry<I> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        for entry in self.0.clone() {
            entry.hash(state);
        }
    }
}

/// A value as it is shown: some are e-mail addresses and tokens. An empty one shows nothing of a caller.
pub(super) fn shown(value: &str, values: KeyValues) -> Cow<'_, str> {
    match values {
        KeyValues::Plain => Cow::Borrowed(value),
        _ if value.is_empty() => Cow::Borrowed(value),
        KeyValues::Hashed => Cow::Owned(hashed(value)),
        KeyValues::Hidden => Cow::Borrowed("***"),
    }
}

fn hashed(value: &str) -> String {
    let digest = digest::digest(&digest::SHA256, value.as_bytes());
    let mut text = String::from("sha256:");
    for byte in digest.as_ref().iter().take(8) {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
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
    fn the_entries_come_back_as_they_were() {
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
    fn entries_are_written_as_commands_take_them() {
        let key = set(&[("a=b", "c,d=\\"), ("e", "")]);
        assert_eq!(key.text(KeyValues::Plain), r"a\=b=c\,d=\\,e=");
        assert_eq!(key.text(KeyValues::Hidden), r"a\=b=***,e=");
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
    fn values_are_shown_as_the_setting_says() {
        let shown = |values| ["ann", ""].map(|value| shown(value, values).into_owned());
        assert_eq!(shown(KeyValues::Plain), ["ann", ""]);
        assert_eq!(shown(KeyValues::Hidden), ["***", ""]);
        // printf %s ann | sha256sum
        assert_eq!(shown(KeyValues::Hashed), ["sha256:49915e0d7d4b402e", ""]);
    }
}
