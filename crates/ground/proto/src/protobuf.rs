//! A parser of protobuf's wire format that borrows from the message.
//!
//! `server::wire` parses requests with it, and `rules_source::xds` counts the resources of a response before prost decodes
//! it. It accepts exactly what prost accepts, and a caller may accept fewer strings; a property test in
//! `server/wire/request/tests.rs` compares the two.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::fmt;

use prost::encoding::WireType;

/// The reason why bytes are not a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed(&'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

const TRUNCATED: Malformed = Malformed("a field exceeds its message");
const VARINT: Malformed = Malformed("a varint exceeds ten bytes or its message");
const KEY: Malformed = Malformed("invalid field number or wire type");
const WIRE_TYPE: Malformed = Malformed("unexpected wire type of a field");
const GROUP: Malformed = Malformed("unexpected end of a group");
const DEPTH: Malformed = Malformed("messages or groups are nested too deep");
const TEXT: Malformed = Malformed("a string is not UTF-8");

impl Malformed {
    /// True for a string that is not UTF-8, or that is not accepted.
    pub fn is_text(self) -> bool {
        self == TEXT
    }
}

/// The maximum depth of messages and groups, as in prost and other implementations of protobuf.
const MAX_DEPTH: u32 = 100;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    pub number: u32,
    wire_type: WireType,
}

/// Parses the fields of one message in order.
///
/// [`next`](Self::next_key) returns a field's key; one of the other methods then returns its value or skips it.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
    depth_left: u32,
    accepts: fn(&str) -> bool,
    /// The top-level message, if it is UTF-8 and accepted as a whole.
    whole: Option<&'a str>,
    /// The position of the end of this message in the top-level message.
    end: usize,
}

impl<'a> Fields<'a> {
    #[inline]
    pub fn new(message: &'a [u8]) -> Self {
        Self { rest: message, depth_left: MAX_DEPTH, accepts: |_| true, whole: None, end: message.len() }
    }

    /// The fields of a top-level message with many short strings. With lengths below 128, as in nearly all requests, the
    /// message is UTF-8 as a whole if its strings are, and one check of it is cheaper than one of each string. A text is
    /// accepted if its parts are.
    #[inline]
    pub fn of_strings(message: &'a [u8], accepts: fn(&str) -> bool) -> Self {
        let whole = std::str::from_utf8(message).ok().filter(|text| accepts(text));
        Self { accepts, whole, ..Self::new(message) }
    }

    /// The key of the next field; `None` at the end of the message.
    #[inline]
    pub fn next_key(&mut self) -> Result<Option<Key>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        self.key().map(Some)
    }

    #[expect(
        clippy::inline_always,
        reason = "a call costs as much as its body: 160 instructions of a decision"
    )]
    #[inline(always)]
    fn key(&mut self) -> Result<Key, Malformed> {
        let key = u32::try_from(self.varint()?).map_err(|_| KEY)?;
        let wire_type = WireType::try_from(u64::from(key & 7)).map_err(|_| KEY)?;
        let number = key >> 3;
        if number == 0 { Err(KEY) } else { Ok(Key { number, wire_type }) }
    }

    /// The number of bytes after the last field.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// The value of a field of an integer type, an enum or a bool.
    #[inline]
    pub fn number(&mut self, key: Key) -> Result<u64, Malformed> {
        if key.wire_type == WireType::Varint { self.varint() } else { Err(WIRE_TYPE) }
    }

    /// The value of a field of the type `bytes`.
    #[inline]
    pub fn bytes(&mut self, key: Key) -> Result<&'a [u8], Malformed> {
        if key.wire_type == WireType::LengthDelimited { self.delimited() } else { Err(WIRE_TYPE) }
    }

    /// The value of a field of the type `string`.
    #[inline]
    pub fn text(&mut self, key: Key) -> Result<&'a str, Malformed> {
        let bytes = self.bytes(key)?;
        let Some(whole) = self.whole else {
            return std::str::from_utf8(bytes).ok().filter(|text| (self.accepts)(text)).ok_or(TEXT);
        };
        let end = self.position();
        let text = whole.get(end.wrapping_sub(bytes.len())..end).ok_or(TEXT)?;
        debug_assert_eq!(text.as_bytes(), bytes, "`position` is that of the end of the last field");
        Ok(text)
    }

    /// The position of the next field in the top-level message.
    fn position(&self) -> usize {
        self.end.wrapping_sub(self.rest.len())
    }

    #[inline]
    pub fn message(&mut self, key: Key) -> Result<Self, Malformed> {
        let rest = self.bytes(key)?;
        let depth_left = self.depth_left.checked_sub(1).ok_or(DEPTH)?;
        Ok(Self { rest, depth_left, end: self.position(), ..*self })
    }

    #[inline]
    pub fn skip(&mut self, key: Key) -> Result<(), Malformed> {
        self.skip_within(key, self.depth_left)
    }

    fn skip_within(&mut self, key: Key, depth_left: u32) -> Result<(), Malformed> {
        let deeper = depth_left.checked_sub(1).ok_or(DEPTH)?;
        match key.wire_type {
            WireType::Varint => self.varint().map(drop),
            WireType::SixtyFourBit => self.take(8).map(drop),
            WireType::ThirtyTwoBit => self.take(4).map(drop),
            WireType::LengthDelimited => self.delimited().map(drop),
            WireType::EndGroup => Err(GROUP),
            WireType::StartGroup => loop {
                let inner = self.key()?;
                if inner.wire_type != WireType::EndGroup {
                    self.skip_within(inner, deeper)?;
                } else if inner.number == key.number {
                    return Ok(());
                } else {
                    return Err(GROUP);
                }
            },
        }
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, Malformed> {
        match self.rest.split_first() {
            Some((byte, rest)) if *byte < 0x80 => {
                self.rest = rest;
                Ok(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let (byte, rest) = self.rest.split_first().ok_or(VARINT)?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if *byte < 0x80 {
                // The tenth byte has one bit of the 64.
                return if shift == 63 && *byte > 1 { Err(VARINT) } else { Ok(value) };
            }
        }
        Err(VARINT)
    }

    #[inline]
    fn delimited(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.varint()?;
        self.take(usize::try_from(length).map_err(|_| TRUNCATED)?)
    }

    #[inline]
    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(TRUNCATED)?;
        self.rest = rest;
        Ok(taken)
    }
}
