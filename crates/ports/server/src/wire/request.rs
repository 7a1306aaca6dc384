//! Parses a `RateLimitRequest` from its bytes.
//!
//! The strings of the request are slices of the message, or of a copy in which they are escaped. Descriptors and entries
//! beyond the bounds are counted but not kept, so the bounds limit the memory of any message; the limiter then rejects it
//! with the number it had. Used for every call that asks for a decision.

#[cfg(any(test, feature = "testing"))]
mod fuzz;
#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "testing"))]
pub use fuzz::fuzz;
use limiter::{Bounds, Descriptor, Entry, LimitOverride, Request};
use prost::encoding::{WireType, encode_key, encode_varint};
use proto::protobuf::{Fields, Malformed};

use super::decision_rpc::{DecisionRpc, OwnFields};

/// Parses a message into an empty request, with as many descriptors and entries as the bounds allow. The request is
/// filled in place, because it is large to move. A message whose texts have [bytes to escape](text::bytes) is written to
/// `escaped`, with at most five times its size.
pub(crate) fn read<'m>(
    rpc: DecisionRpc,
    message: &'m [u8],
    bounds: Bounds,
    escaped: &'m mut Vec<u8>,
    request: &mut Request<'m>,
) -> Result<(), Malformed> {
    match read_fields(rpc, Fields::of_strings(message, text::bytes::is_verbatim), bounds, request) {
        Err(error) if error.is_text() => {}
        read => return read,
    }
    *request = Request::default();
    escape(Fields::new(message), Part::Request(rpc), escaped)?;
    read_escaped(rpc, escaped, bounds, request)
}

/// As [`read`], of a message whose texts are escaped.
pub(crate) fn read_escaped<'m>(
    rpc: DecisionRpc,
    message: &'m [u8],
    bounds: Bounds,
    request: &mut Request<'m>,
) -> Result<(), Malformed> {
    read_fields(rpc, Fields::new(message), bounds, request)
}

fn read_fields<'m>(
    rpc: DecisionRpc,
    mut fields: Fields<'m>,
    bounds: Bounds,
    request: &mut Request<'m>,
) -> Result<(), Malformed> {
    let mut own = OwnFields::new(rpc);
    while let Some(key) = fields.next_key()? {
        match key.number {
            1 => request.domain = fields.text(key)?,
            2 => {
                let message = fields.message(key)?;
                if request.descriptors.len() < bounds.descriptors {
                    request.descriptors.push(Descriptor::default());
                    if let Some(descriptor) = request.descriptors.last_mut() {
                        read_descriptor(message, bounds.entries, descriptor)?;
                    }
                } else {
                    read_descriptor(message, 0, &mut Descriptor::default())?;
                    request.excess_descriptors += 1;
                }
            }
            _ => own.read(key, &mut fields, request)?,
        }
    }
    own.finish(request);
    Ok(())
}

fn read_descriptor<'a>(
    mut fields: Fields<'a>,
    most: usize,
    descriptor: &mut Descriptor<'a>,
) -> Result<(), Malformed> {
    while let Some(key) = fields.next_key()? {
        match key.number {
            1 => {
                let entry = read_entry(fields.message(key)?)?;
                if descriptor.entries.len() < most {
                    descriptor.entries.push(entry);
                } else {
                    descriptor.excess_entries += 1;
                }
            }
            2 => read_limit(fields.message(key)?, descriptor.limit.get_or_insert_default())?,
            3 => read_wrapped(fields.message(key)?, descriptor.hits_addend.get_or_insert(0))?,
            4 => descriptor.is_negative_hits = fields.number(key)? != 0,
            _ => fields.skip(key)?,
        }
    }
    Ok(())
}

#[inline]
pub(super) fn read_entry(mut fields: Fields<'_>) -> Result<Entry<'_>, Malformed> {
    let mut entry = Entry::default();
    while let Some(key) = fields.next_key()? {
        match key.number {
            1 => entry.key = fields.text(key)?,
            2 => entry.value = fields.text(key)?,
            _ => fields.skip(key)?,
        }
    }
    Ok(entry)
}

/// A repeated limit is merged: the fields of the second replace those of the first.
fn read_limit(mut fields: Fields<'_>, limit: &mut LimitOverride) -> Result<(), Malformed> {
    while let Some(key) = fields.next_key()? {
        match key.number {
            1 => limit.requests_per_unit = low_half(fields.number(key)?),
            2 => limit.unit = low_half(fields.number(key)?).cast_signed(),
            3 => {
                let mut units = limit.unit_multiplier.unwrap_or_default().into();
                read_wrapped(fields.message(key)?, &mut units)?;
                limit.unit_multiplier = Some(low_half(units));
            }
            _ => fields.skip(key)?,
        }
    }
    Ok(())
}

/// A `google.protobuf.UInt64Value` or `UInt32Value`.
fn read_wrapped(mut fields: Fields<'_>, value: &mut u64) -> Result<(), Malformed> {
    while let Some(key) = fields.next_key()? {
        match key.number {
            1 => *value = fields.number(key)?,
            _ => fields.skip(key)?,
        }
    }
    Ok(())
}

/// Protobuf truncates varints of 32-bit fields.
#[expect(clippy::cast_possible_truncation, reason = "the upper half is dropped on purpose")]
pub(super) fn low_half(number: u64) -> u32 {
    number as u32
}

/// The messages that have texts.
#[derive(Clone, Copy)]
enum Part {
    Request(DecisionRpc),
    Descriptor,
    Entry,
}

/// Writes a message again, with escaped texts and without unknown fields.
fn escape(mut fields: Fields<'_>, part: Part, into: &mut Vec<u8>) -> Result<(), Malformed> {
    while let Some(key) = fields.next_key()? {
        let start = into.len();
        match (part, key.number) {
            (Part::Request(_), 1) | (Part::Request(DecisionRpc::Commit), 3) | (Part::Entry, 1 | 2) => {
                text::bytes::escape_into(fields.bytes(key)?, into);
            }
            (Part::Request(_), 2) => escape(fields.message(key)?, Part::Descriptor, into)?,
            (Part::Descriptor, 1) => escape(fields.message(key)?, Part::Entry, into)?,
            (Part::Request(DecisionRpc::Reserve), 4) | (Part::Descriptor, 2 | 3) => {
                into.extend_from_slice(fields.bytes(key)?);
            }
            (Part::Request(_), 3) | (Part::Request(DecisionRpc::Commit) | Part::Descriptor, 4) => {
                let number = fields.number(key)?;
                encode_key(key.number, WireType::Varint, into);
                encode_varint(number, into);
                continue;
            }
            _ => {
                fields.skip(key)?;
                continue;
            }
        }
        // The length comes before the content, and is known after it.
        let end = into.len();
        encode_key(key.number, WireType::LengthDelimited, into);
        encode_varint((end - start) as u64, into);
        let head = into.len() - end;
        if let Some(field) = into.get_mut(start..) {
            field.rotate_right(head);
        }
    }
    Ok(())
}
