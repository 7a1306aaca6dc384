//! Commands on strings.

use super::{Call, NOT_AN_INTEGER, Outcome, SYNTAX, WRONG_TYPE, integer, keys::deadline};
use crate::{
    keyspace::{Entry, Value},
    resp::Reply,
};

/// The longest string, as `proto-max-bulk-len` bounds it.
const MAX_STRING: usize = 512 * 1024 * 1024;

pub(super) fn get(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    Ok(call.text(arguments[0])?.map_or(Reply::Nil, |text| Reply::text(text)))
}

pub(super) fn strlen(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    Ok(Reply::count(call.text(arguments[0])?.map_or(0, |text| text.len())))
}

/// A key of another type reads as none.
pub(super) fn mget(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let value = |key: &&[u8]| match call.text(key) {
        Ok(Some(text)) => Reply::text(text),
        _ => Reply::Nil,
    };
    Ok(Reply::Array(arguments.iter().map(value).collect()))
}

pub(super) fn incr(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    add(call, arguments[0], 1)
}

pub(super) fn decr(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    add(call, arguments[0], -1)
}

pub(super) fn incrby(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    add(call, arguments[0], integer(arguments[1])?)
}

pub(super) fn decrby(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let hits = integer(arguments[1])?.checked_neg();
    add(call, arguments[0], hits.ok_or("ERR decrement would overflow")?)
}

fn add(call: &mut Call<'_>, key: &[u8], hits: i64) -> Outcome {
    let Some(text) = call.text(key)? else {
        let first = itoa::Buffer::new().format(hits).as_bytes().to_vec();
        call.keys.set(key, Entry::new(Value::Text(first)));
        return Ok(Reply::Integer(hits));
    };
    let before = crate::resp::integer(text).ok_or(NOT_AN_INTEGER)?;
    let after = before.checked_add(hits).ok_or("ERR increment or decrement would overflow")?;
    text.clear();
    text.extend_from_slice(itoa::Buffer::new().format(after).as_bytes());
    Ok(Reply::Integer(after))
}

pub(super) fn set(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let [key, value, options @ ..] = arguments else { return Err(SYNTAX.to_owned()) };
    let (mut expiry, mut keeps_expiry, mut exists, mut gets) = (None, false, None, false);
    let mut options = options.iter();
    while let Some(option) = options.next() {
        match &*option.to_ascii_uppercase() {
            b"NX" if exists != Some(true) => exists = Some(false),
            b"XX" if exists != Some(false) => exists = Some(true),
            b"GET" => gets = true,
            b"KEEPTTL" if expiry.is_none() => keeps_expiry = true,
            unit @ (b"EX" | b"PX" | b"EXAT" | b"PXAT") if expiry.is_none() && !keeps_expiry => {
                let number = options.next().ok_or(SYNTAX)?;
                let (scale, is_relative) = (if unit[0] == b'E' { 1000 } else { 1 }, unit.len() == 2);
                expiry = Some((*number, scale, is_relative));
            }
            _ => return Err(SYNTAX.to_owned()),
        }
    }
    let now = call.now;
    let expires = expiry.map(|(number, scale, is_relative)| positive(number, scale, is_relative, now, "set"));
    let expires = expires.transpose()?;
    let known = call.entry(key);
    let before = match known.as_ref().map(|entry| &entry.value) {
        _ if !gets => Reply::Nil,
        None => Reply::Nil,
        Some(Value::Text(text)) => Reply::text(text),
        Some(_) => return Err(WRONG_TYPE.to_owned()),
    };
    if exists.is_some_and(|exists| exists != known.is_some()) {
        return Ok(before);
    }
    let kept = known.and_then(|entry| entry.expires).filter(|_| keeps_expiry);
    call.keys.set(key, Entry { value: Value::Text(value.to_vec()), expires: expires.or(kept) });
    Ok(if gets { before } else { Reply::OK })
}

pub(super) fn setex(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let expires = positive(arguments[1], 1000, true, call.now, "setex")?;
    let value = Value::Text(arguments[2].to_vec());
    let before = call.entry(arguments[0]).and_then(|entry| entry.expires);
    call.keys.note_shortened(arguments[0], before, expires);
    call.keys.set(arguments[0], Entry { value, expires: Some(expires) });
    Ok(Reply::OK)
}

/// The deadline of an expiry, which must be above 0.
fn positive(number: &[u8], scale: i64, is_relative: bool, now: u64, command: &str) -> Result<u64, String> {
    let number = integer(number)?;
    let invalid = || format!("ERR invalid expire time in '{command}' command");
    if number <= 0 {
        return Err(invalid());
    }
    let deadline = deadline(number, scale, is_relative, now).ok_or_else(invalid)?;
    Ok(u64::try_from(deadline).expect("it is after 1970"))
}

pub(super) fn setrange(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let (key, part) = (arguments[0], arguments[2]);
    let from = usize::try_from(integer(arguments[1])?).map_err(|_| "ERR offset is out of range")?;
    let known = call.text(key)?;
    if part.is_empty() {
        return Ok(Reply::count(known.map_or(0, |text| text.len())));
    }
    let end = from.checked_add(part.len()).filter(|end| *end <= MAX_STRING);
    let end = end.ok_or("ERR string exceeds maximum allowed size (proto-max-bulk-len)")?;
    let write = |text: &mut Vec<u8>| {
        text.resize(text.len().max(end), 0);
        text[from..end].copy_from_slice(part);
        text.len()
    };
    if let Some(text) = known {
        return Ok(Reply::count(write(text)));
    }
    let mut text = Vec::new();
    let length = write(&mut text);
    call.keys.set(key, Entry::new(Value::Text(text)));
    Ok(Reply::count(length))
}
