//! Writes protobuf's wire format field by field, without messages in memory.

use prost::encoding::encode_varint;

const VARINT: usize = 10;

/// A number, omitted if it is 0.
#[inline]
pub fn number(out: &mut Vec<u8>, field: u64, number: u64) {
    if number != 0 {
        explicit_number(out, field, number);
    }
}

#[inline]
pub fn explicit_number(out: &mut Vec<u8>, field: u64, number: u64) {
    tag(out, field, 0);
    varint(out, number);
}

/// A string, omitted if it is empty.
#[inline]
pub fn text(out: &mut Vec<u8>, field: u64, text: &str) {
    if !text.is_empty() {
        explicit_text(out, field, text);
    }
}

#[inline]
pub fn explicit_text(out: &mut Vec<u8>, field: u64, text: &str) {
    tag(out, field, 2);
    varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// A message. Its length takes one byte, unless it turns out longer.
pub fn message(out: &mut Vec<u8>, field: u64, write: impl FnOnce(&mut Vec<u8>)) {
    tag(out, field, 2);
    let at = out.len();
    out.push(0);
    write(out);
    let length = out.len() - at - 1;
    if let (Ok(byte @ ..0x80), Some(place)) = (u8::try_from(length), out.get_mut(at)) {
        *place = byte;
        return;
    }
    let mut prefix = [0; VARINT];
    let mut rest = &mut prefix[..];
    encode_varint(length as u64, &mut rest);
    let unused = rest.len();
    out.splice(at..=at, prefix.into_iter().take(VARINT.saturating_sub(unused)));
}

/// The tag of a field; of the wire types, 0 is a varint, 1 is eight bytes and 2 is length-delimited.
#[inline]
fn tag(out: &mut Vec<u8>, field: u64, wire_type: u64) {
    varint(out, field << 3 | wire_type);
}

/// Eight bytes: a double, or a number of fixed length.
pub fn eight_bytes(out: &mut Vec<u8>, field: u64, bytes: [u8; 8]) {
    tag(out, field, 1);
    out.extend_from_slice(&bytes);
}

/// Numbers of eight bytes each, in one field.
pub fn packed(out: &mut Vec<u8>, field: u64, numbers: impl Iterator<Item = [u8; 8]>) {
    message(out, field, |out| numbers.for_each(|number| out.extend_from_slice(&number)));
}

#[inline]
fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}
