//! Commands on keys of any type, and their expiries.

use super::{Call, Outcome, integer};
use crate::resp::Reply;

pub(super) fn del(call: &mut Call<'_>, keys: &[&[u8]]) -> Outcome {
    let removed = keys.iter().filter(|key| call.keys.remove(key, call.now).is_some()).count();
    Ok(Reply::count(removed))
}

pub(super) fn exists(call: &mut Call<'_>, keys: &[&[u8]]) -> Outcome {
    Ok(Reply::count(keys.iter().filter(|key| call.entry(key).is_some()).count()))
}

/// All keys: the only pattern is `*`.
pub(super) fn keys(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    if arguments[0] != b"*" {
        return Err("ERR the simulated server has no patterns but *".to_owned());
    }
    Ok(Reply::Array(call.keys.keys(call.now).map(Reply::text).collect()))
}

pub(super) fn kind(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    Ok(Reply::Status(call.entry(arguments[0]).map_or("none", |entry| entry.value.name())))
}

pub(super) fn rename(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let entry = call.keys.remove(arguments[0], call.now).ok_or("ERR no such key")?;
    call.keys.set(arguments[1], entry);
    Ok(Reply::OK)
}

pub(super) fn expire(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    set_expiry(call, arguments, 1000, true, "expire")
}

pub(super) fn pexpire(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    set_expiry(call, arguments, 1, true, "pexpire")
}

pub(super) fn expireat(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    set_expiry(call, arguments, 1000, false, "expireat")
}

pub(super) fn pexpireat(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    set_expiry(call, arguments, 1, false, "pexpireat")
}

fn set_expiry(
    call: &mut Call<'_>,
    arguments: &[&[u8]],
    scale: i64,
    is_relative: bool,
    name: &str,
) -> Outcome {
    let deadline = deadline(integer(arguments[1])?, scale, is_relative, call.now);
    let deadline = deadline.ok_or_else(|| format!("ERR invalid expire time in '{name}' command"))?;
    let now = call.now;
    let Some(entry) = call.entry(arguments[0]) else { return Ok(Reply::Integer(0)) };
    match u64::try_from(deadline).ok().filter(|deadline| *deadline > now) {
        Some(deadline) => {
            let before = entry.expires.replace(deadline);
            call.keys.note_shortened(arguments[0], before, deadline);
        }
        None => {
            call.keys.remove(arguments[0], now);
        }
    }
    Ok(Reply::Integer(1))
}

/// The millisecond of an expiry; `None` if it overflows.
pub(super) fn deadline(number: i64, scale: i64, is_relative: bool, now: u64) -> Option<i64> {
    let millis = number.checked_mul(scale)?;
    if is_relative { millis.checked_add_unsigned(now) } else { Some(millis) }
}

pub(super) fn persist(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let expires = call.entry(arguments[0]).and_then(|entry| entry.expires.take());
    Ok(Reply::Integer(expires.is_some().into()))
}

pub(super) fn ttl(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    Ok(Reply::Integer(left(call, arguments[0]).map_or_else(|none| none, |left| (left + 500) / 1000)))
}

pub(super) fn pttl(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    Ok(Reply::Integer(left(call, arguments[0]).unwrap_or_else(|none| none)))
}

/// The milliseconds that a key has left; -1 if it does not expire, and -2 if it does not exist.
fn left(call: &mut Call<'_>, key: &[u8]) -> Result<i64, i64> {
    let now = call.now;
    let expires = call.entry(key).ok_or(-2)?.expires.ok_or(-1)?;
    Ok(i64::try_from(expires - now).expect("a deadline is a positive i64"))
}
