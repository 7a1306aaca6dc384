//! Header blocks (RFC 7541): a complete decoder, and an encoder that keeps no state.
//!
//! The decoder hands each field to a function without keeping it. Answers are written as literals that are not
//! indexed: they need no table, so blocks that do not change are constants.

use super::{huffman, table::Table};

/// Why a block cannot be decoded. The peers' tables differ from then on, so the connection has to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Broken;

/// Decodes the header blocks of one connection.
pub(super) struct Decoder {
    table: Table,
    /// Decoded texts of the current field.
    name: Vec<u8>,
    value: Vec<u8>,
}

/// More than any field that is accepted takes; larger buffers are not kept.
const KEPT_CAPACITY: usize = 512;

/// Where a name comes from.
enum Name {
    Indexed(usize),
    Literal,
}

impl Decoder {
    pub(super) fn new() -> Self {
        Self { table: Table::new(), name: Vec::new(), value: Vec::new() }
    }

    /// Differs after a block that changed the table: until then an equal block has an equal meaning.
    pub(super) fn version(&self) -> u64 {
        self.table.version()
    }

    /// Decodes a block, and calls `field` with each name and value.
    pub(super) fn decode(&mut self, block: &[u8], mut field: impl FnMut(&[u8], &[u8])) -> Result<(), Broken> {
        let mut rest = block;
        let mut resizable = true;
        while let Some(first) = rest.first().copied() {
            match first {
                0x80.. => {
                    let index = integer(&mut rest, 7)?;
                    let (name, value) = self.table.get(index).ok_or(Broken)?;
                    field(name, value);
                }
                0x20..0x40 => {
                    let size = integer(&mut rest, 5)?;
                    // Sizes stand before all fields.
                    if !resizable || !self.table.resize(size) {
                        return Err(Broken);
                    }
                    continue;
                }
                0x40..0x80 => self.literal(&mut rest, 6, true, &mut field)?,
                _ => self.literal(&mut rest, 4, false, &mut field)?,
            }
            resizable = false;
        }
        for buffer in [&mut self.name, &mut self.value] {
            buffer.clear();
            if buffer.capacity() > KEPT_CAPACITY {
                *buffer = Vec::new();
            }
        }
        Ok(())
    }

    fn literal(
        &mut self,
        rest: &mut &[u8],
        prefix: u32,
        indexed: bool,
        field: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Broken> {
        let index = integer(rest, prefix)?;
        let source = if index == 0 {
            text(rest, &mut self.name)?;
            Name::Literal
        } else {
            Name::Indexed(index)
        };
        text(rest, &mut self.value)?;
        match source {
            Name::Literal => {
                field(&self.name, &self.value);
                if indexed {
                    self.table.add(&self.name, &self.value);
                }
            }
            Name::Indexed(index) => {
                let (name, _) = self.table.get(index).ok_or(Broken)?;
                field(name, &self.value);
                if indexed {
                    self.table.add_with_name_of(index, &self.value);
                }
            }
        }
        Ok(())
    }
}

/// Reads an integer whose first bits stand in the last `prefix` bits of a byte.
fn integer(rest: &mut &[u8], prefix: u32) -> Result<usize, Broken> {
    let (first, mut bytes) = rest.split_first().ok_or(Broken)?;
    let most = 0xff_u8.checked_shr(8_u32.wrapping_sub(prefix)).unwrap_or(0);
    let mut value = usize::from(first & most);
    if value == usize::from(most) {
        // No integer that is accepted needs more than three bytes more.
        let mut shift = 0;
        loop {
            let (byte, others) = bytes.split_first().ok_or(Broken)?;
            bytes = others;
            value = value.saturating_add(usize::from(byte & 0x7f) << shift);
            if byte & 0x80 == 0 {
                break;
            }
            if shift == 21 {
                return Err(Broken);
            }
            shift = 7_u32.saturating_add(shift);
        }
    }
    *rest = bytes;
    Ok(value)
}

/// Reads a text into a buffer, in place of what that holds.
fn text(rest: &mut &[u8], into: &mut Vec<u8>) -> Result<(), Broken> {
    let is_coded = rest.first().ok_or(Broken)? & 0x80 != 0;
    let length = integer(rest, 7)?;
    let (text, others) = rest.split_at_checked(length).ok_or(Broken)?;
    *rest = others;
    into.clear();
    if !is_coded {
        into.extend_from_slice(text);
    } else if !huffman::decode(text, into) {
        return Err(Broken);
    }
    Ok(())
}

/// The field `:status: 200`.
pub(in super::super) const STATUS_200: u8 = 0x88;

/// A table size update to 0: a peer that allows a smaller table than before must receive one.
pub(super) const TABLE_SIZE_0: u8 = 0x20;

/// Writes a field as a literal that is not indexed.
pub(in super::super) fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.push(0);
    write_text(out, name);
    write_text(out, value);
}

/// Writes the field `:status`.
pub(in super::super) fn write_status(out: &mut Vec<u8>, status: &str) {
    if status == "200" {
        return out.push(STATUS_200);
    }
    // The static table's entry 8 has the name.
    out.push(0x08);
    write_text(out, status.as_bytes());
}

fn write_text(out: &mut Vec<u8>, text: &[u8]) {
    let mut length = text.len();
    if length < 127 {
        out.push(u8::try_from(length).unwrap_or(0));
    } else {
        out.push(127);
        length = length.saturating_sub(127);
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
