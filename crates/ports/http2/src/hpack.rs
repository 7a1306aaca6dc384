//! Header blocks (RFC 7541): a complete decoder and a stateless encoder.
//!
//! The decoder passes each field to a function without storing it. Responses are written as literals without indexing,
//! so constant header blocks are constants of the program.
//!
//! A reference of one byte stands for up to 4 KB, so what a block means is bounded here: fields beyond [`MAX_LIST`] are
//! not passed on, but still added to the table, which stays that of the peer. No step copies or scans a table entry.

use super::{
    field::Field,
    frame::Reason,
    huffman,
    meter::{Work, count},
    table::Table,
};

/// The maximum size of a header list: our `SETTINGS_MAX_HEADER_LIST_SIZE`.
pub(super) const MAX_LIST: usize = 16 * 1024;

/// A block that cannot be decoded leaves the peers' tables different, so the connection has to end.
const BROKEN: Reason = Reason::CompressionError;

#[derive(Default)]
pub(super) struct Decoder {
    /// A block with the same bytes has the same meaning while the version of the table is the same.
    pub(super) table: Table,
    name: Vec<u8>,
    value: Vec<u8>,
}

/// Larger than usual fields; buffers beyond it are not kept.
const KEPT_CAPACITY: usize = 512;

impl Decoder {
    /// Decodes a block, and calls `field` with each field; false if the list is larger than [`MAX_LIST`], whose
    /// fields beyond it are not passed.
    pub(super) fn decode(&mut self, block: &[u8], mut field: impl FnMut(Field<'_>)) -> Result<bool, Reason> {
        let mut left = Some(MAX_LIST);
        let mut pass = |found: Field<'_>| {
            left = left.and_then(|left| left.checked_sub(found.size()));
            if left.is_some() {
                field(found);
            }
        };
        let mut rest = block;
        let mut resizable = true;
        while let Some(first) = rest.first().copied() {
            count(Work::Visited, 1);
            match first {
                0x80.. => {
                    let index = integer(&mut rest, 7)?;
                    pass(self.table.get(index).ok_or(BROKEN)?);
                }
                0x20..0x40 => {
                    let size = integer(&mut rest, 5)?;
                    // Size updates precede all fields.
                    if !resizable || !self.table.resize(size) {
                        return Err(BROKEN);
                    }
                    continue;
                }
                0x40..0x80 => self.literal(&mut rest, 6, true, &mut pass)?,
                _ => self.literal(&mut rest, 4, false, &mut pass)?,
            }
            resizable = false;
        }
        for buffer in [&mut self.name, &mut self.value] {
            buffer.clear();
            if buffer.capacity() > KEPT_CAPACITY {
                *buffer = Vec::new();
            }
        }
        Ok(left.is_some())
    }

    fn literal(
        &mut self,
        rest: &mut &[u8],
        prefix: u32,
        indexed: bool,
        pass: &mut impl FnMut(Field<'_>),
    ) -> Result<(), Reason> {
        let index = integer(rest, prefix)?;
        if index == 0 {
            text(rest, &mut self.name)?;
        }
        text(rest, &mut self.value)?;
        if index == 0 {
            let field = Field::new(&self.name, &self.value);
            pass(field);
            if indexed {
                self.table.add(field);
            }
        } else {
            pass(self.table.get(index).ok_or(BROKEN)?.with_value(&self.value));
            if indexed {
                self.table.add_with_name_of(index, &self.value).ok_or(BROKEN)?;
            }
        }
        Ok(())
    }
}

/// Reads an integer with a prefix of this many bits.
fn integer(rest: &mut &[u8], prefix: u32) -> Result<usize, Reason> {
    let (first, mut bytes) = rest.split_first().ok_or(BROKEN)?;
    let most = 0xff_u8.checked_shr(8_u32.wrapping_sub(prefix)).unwrap_or(0);
    let mut value = usize::from(first & most);
    if value == usize::from(most) {
        // No accepted integer has more than four further bytes.
        let mut shift = 0;
        loop {
            let (byte, others) = bytes.split_first().ok_or(BROKEN)?;
            bytes = others;
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
            if shift == 21 {
                return Err(BROKEN);
            }
            shift += 7;
        }
    }
    *rest = bytes;
    Ok(value)
}

/// Reads a string literal, replacing the content of `into`.
fn text(rest: &mut &[u8], into: &mut Vec<u8>) -> Result<(), Reason> {
    let is_coded = rest.first().ok_or(BROKEN)? & 0x80 != 0;
    let length = integer(rest, 7)?;
    let (text, others) = rest.split_at_checked(length).ok_or(BROKEN)?;
    *rest = others;
    into.clear();
    if !is_coded {
        into.extend_from_slice(text);
    } else if !huffman::decode(text, into) {
        return Err(BROKEN);
    }
    count(Work::Copied, into.len());
    Ok(())
}

/// The field `:status: 200`.
const STATUS_200: u8 = 0x88;

/// A table size update to 0: a peer that allows a smaller table than before must receive one.
pub(super) const TABLE_SIZE_0: u8 = 0x20;

pub fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.push(0);
    write_text(out, name);
    write_text(out, value);
}

pub fn write_status(out: &mut Vec<u8>, status: &str) {
    if status == "200" {
        return out.push(STATUS_200);
    }
    // The name is that of entry 8 of the static table.
    out.push(0x08);
    write_text(out, status.as_bytes());
}

fn write_text(out: &mut Vec<u8>, text: &[u8]) {
    let mut length = text.len();
    if length < 127 {
        out.push(u8::try_from(length).unwrap_or(0));
    } else {
        out.push(127);
        length -= 127;
        while length >= 128 {
            out.push(u8::try_from(length & 0x7f).unwrap_or(0) | 0x80);
            length >>= 7;
        }
        out.push(u8::try_from(length).unwrap_or(0));
    }
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests;
