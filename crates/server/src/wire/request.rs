//! Parses a `RateLimitRequest` from its bytes.
//!
//! The strings of the request are slices of the message. Descriptors and entries beyond the bounds are counted but not
//! kept, so the bounds limit the memory of any message; the limiter then rejects it with the number it had. Used for
//! every call of `ShouldRateLimit`.

#[cfg(test)]
mod tests;

use limiter::{Bounds, Descriptor, Entry, LimitOverride, Request};
use proto::protobuf::{Fields, Malformed};

/// Parses a message into an empty request, with as many descriptors and entries as the bounds allow. The request is
/// filled in place, because it is large to move.
pub(crate) fn read<'m>(
    message: &'m [u8],
    bounds: Bounds,
    request: &mut Request<'m>,
) -> Result<(), Malformed> {
    let mut fields = Fields::of_strings(message);
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
            3 => request.hits_addend = low_half(fields.number(key)?),
            _ => fields.skip(key)?,
        }
    }
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
            2 => read_limit(
                fields.message(key)?,
                descriptor.limit.get_or_insert(LimitOverride { requests_per_unit: 0, unit: 0 }),
            )?,
            3 => read_wrapped(fields.message(key)?, descriptor.hits_addend.get_or_insert(0))?,
            4 => descriptor.is_negative_hits = fields.number(key)? != 0,
            _ => fields.skip(key)?,
        }
    }
    Ok(())
}

fn read_entry(mut fields: Fields<'_>) -> Result<Entry<'_>, Malformed> {
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
            _ => fields.skip(key)?,
        }
    }
    Ok(())
}

/// A `google.protobuf.UInt64Value`.
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
fn low_half(number: u64) -> u32 {
    number as u32
}

/// Compares the parser with prost: both accept the same bytes, with the same content.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz(bytes: &[u8]) {
    use prost::Message;

    use proto::envoy::service::ratelimit::v3::RateLimitRequest;

    let none = Bounds { descriptors: usize::MAX, entries: usize::MAX };
    let by_prost = RateLimitRequest::decode(bytes);
    let mut ours = Request::default();
    match (read(bytes, none, &mut ours), &by_prost) {
        (Ok(()), Ok(message)) => assert_eq!(ours, super::request(message)),
        (Err(_), Err(_)) => {}
        (outcome, prosts) => assert!(outcome.is_ok() == prosts.is_ok(), "{ours:?} but {prosts:?}"),
    }
    let some = Bounds { descriptors: 2, entries: 2 };
    let mut request = Request::default();
    if read(bytes, some, &mut request).is_ok() {
        assert!(request.descriptors.len() <= 2);
        assert!(request.descriptors.iter().all(|descriptor| descriptor.entries.len() <= 2));
    }
}
