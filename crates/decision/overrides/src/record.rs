//! An override in about forty bytes, of which the index has a million.
//!
//! ```text
//! kind · note · shape · [limit] · [calendar] · [end] · (length · value)… · [(length · reason) (length · by)]
//! ```
//!
//! `kind` has the action in its two lowest bits, then whether an end follows, then three bits of the unit, then whether a
//! calendar's number follows, and in the highest bit whether the limit has eight bytes instead of four. The shape is the number of
//! the domain and the keys, of which there are few. Levels without a value are omitted. `note` is the number of a pair of
//! reason and author that many records share, or [`INLINE_NOTE`].

#![expect(clippy::expect_used, reason = "`write` has made every record that is read")]

use super::{
    model::{Action, Override},
    target::Value,
};
use limit::{Unit, calendar::Calendar};

pub(super) const NO_NOTE: u8 = 0;

pub(super) const INLINE_NOTE: u8 = u8::MAX;

const HAS_END: u8 = 1 << 2;

const HAS_CALENDAR: u8 = 1 << 6;

/// The limit is beyond 32 bits.
const IS_WIDE: u8 = 1 << 7;

/// The length is in the next two bytes.
const LONG: u8 = u8::MAX;

/// A record, decoded as far as a lookup needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    pub(super) action: Action,
    /// The second at which it expires, if it does.
    pub(super) expires: Option<u32>,
    pub(super) shape: u16,
    pub(super) note: u8,
    rest: &'a [u8],
}

/// Appends a record. `note` is its number, or [`INLINE_NOTE`].
pub(super) fn write(one: &Override, shape: u16, note: u8, into: &mut Vec<u8>) {
    let (unit, narrow, calendar) = match one.action {
        Action::Limit { unit, requests_per_unit, calendar } => {
            (unit as u8, u32::try_from(requests_per_unit), calendar)
        }
        _ => (0, Ok(0), None),
    };
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    let flags = flag(one.expires.is_some(), HAS_END)
        | flag(narrow.is_err(), IS_WIDE)
        | flag(calendar.is_some(), HAS_CALENDAR);
    #[expect(clippy::cast_possible_truncation, reason = "there are four actions")]
    into.push(one.action.index() as u8 | flags | unit << 3);
    into.push(note);
    into.extend(shape.to_le_bytes());
    if let Action::Limit { requests_per_unit, .. } = one.action {
        match narrow {
            Ok(narrow) => into.extend(narrow.to_le_bytes()),
            Err(_) => into.extend(requests_per_unit.to_le_bytes()),
        }
        into.extend(calendar.iter().flat_map(|calendar| calendar.number().to_le_bytes()));
    }
    if let Some(end) = one.expires {
        into.extend(end.to_le_bytes());
    }
    for value in one.target.entries().iter().filter_map(|(_, value)| value.text()) {
        write_text(value, into);
    }
    if note == INLINE_NOTE {
        write_text(&one.reason, into);
        write_text(&one.by, into);
    }
}

fn write_text(text: &str, into: &mut Vec<u8>) {
    match u8::try_from(text.len()) {
        Ok(length) if length < LONG => into.push(length),
        _ => {
            into.push(LONG);
            #[expect(clippy::cast_possible_truncation, reason = "no text is longer than `MAX_BYTES`")]
            into.extend((text.len() as u16).to_le_bytes());
        }
    }
    into.extend_from_slice(text.as_bytes());
}

impl<'a> Record<'a> {
    /// Reads the record at the beginning of these bytes, which [`write()`] has made.
    pub(super) fn read(bytes: &'a [u8]) -> Self {
        let mut rest = bytes;
        let [kind, note, low, high] = take_array(&mut rest);
        let action = match kind & 3 {
            0 => {
                let requests_per_unit = if kind & IS_WIDE == 0 {
                    u32::from_le_bytes(take_array(&mut rest)).into()
                } else {
                    u64::from_le_bytes(take_array(&mut rest))
                };
                let calendar = (kind & HAS_CALENDAR != 0).then(|| {
                    let number = u32::from_le_bytes(take_array(&mut rest));
                    Calendar::of_number(number).expect("a record has a calendar's number")
                });
                let unit =
                    Unit::from_number(i32::from(kind >> 3 & 7)).expect("a record of a limit has a unit");
                Action::Limit { requests_per_unit, unit, calendar }
            }
            1 => Action::Block,
            2 => Action::Allow,
            _ => Action::Shadow,
        };
        let expires = (kind & HAS_END != 0).then(|| u32::from_le_bytes(take_array(&mut rest)));
        Self { action, expires, shape: u16::from_le_bytes([low, high]), note, rest }
    }

    /// The first `count` values, and the bytes after them.
    pub(super) fn texts(&self, count: usize) -> (impl Iterator<Item = &'a str>, &'a [u8]) {
        let mut end = self.rest;
        for _ in 0..count {
            take_bytes(&mut end);
        }
        let mut rest = self.rest;
        ((0..count).map(move |_| take_text(&mut rest)), end)
    }

    /// Reason and author, if they are in the record, and the bytes after it. `values` is the number of its values.
    pub(super) fn note_and_rest(&self, values: usize) -> (Option<(&'a str, &'a str)>, &'a [u8]) {
        let (_, mut rest) = self.texts(values);
        if self.note != INLINE_NOTE {
            return (None, rest);
        }
        let note = (take_text(&mut rest), take_text(&mut rest));
        (Some(note), rest)
    }

    pub(super) fn has<'t>(&self, mut values: impl Iterator<Item = &'t str>, count: usize) -> bool {
        let mut rest = self.rest;
        let same = (0..count).all(|_| values.next().map(str::as_bytes) == Some(take_bytes(&mut rest)));
        same && values.next().is_none()
    }

    pub(super) fn is_over(&self, second: u64) -> bool {
        self.expires.is_some_and(|end| second >= u64::from(end))
    }
}

/// The values of a target that its record has.
pub(super) fn values(entries: &[(Box<str>, Value)]) -> impl Iterator<Item = &str> + Clone {
    entries.iter().filter_map(|(_, value)| value.text())
}

fn take_array<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (taken, after) = rest.split_first_chunk().expect("a record is complete");
    *rest = after;
    *taken
}

fn take_text<'a>(rest: &mut &'a [u8]) -> &'a str {
    std::str::from_utf8(take_bytes(rest)).expect("a record has texts")
}

fn take_bytes<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    let [first] = take_array(rest);
    let length = if first == LONG { u16::from_le_bytes(take_array(rest)).into() } else { usize::from(first) };
    let (text, after) = rest.split_at(length);
    *rest = after;
    text
}
