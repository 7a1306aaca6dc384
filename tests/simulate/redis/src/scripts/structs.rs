//! `struct.pack` and `struct.unpack` for the formats of the project's scripts: little-endian integers of any size, and
//! texts of a fixed length or after their length.

use mlua::{Error, Lua, MultiValue, Result, Value};

/// An item of a format.
enum Item {
    Unsigned(usize),
    Signed(usize),
    Text(usize),
    /// All of a text, after its length.
    Rest,
}

/// The items of a format.
fn items(format: &[u8]) -> Result<impl Iterator<Item = Result<Item>>> {
    let mut rest = format.strip_prefix(b"<").ok_or_else(|| unknown(format))?;
    Ok(std::iter::from_fn(move || {
        let (kind, after) = rest.split_first()?;
        let digits = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (number, after) = after.split_at(digits);
        rest = after;
        let size = number.iter().fold(0, |size, digit| size * 10 + usize::from(digit - b'0'));
        Some(match kind {
            b'I' if (1..=8).contains(&size) => Ok(Item::Unsigned(size)),
            b'i' if (1..=8).contains(&size) => Ok(Item::Signed(size)),
            b'c' if size > 0 => Ok(Item::Text(size)),
            b'c' if number == b"0" => Ok(Item::Rest),
            _ => Err(unknown(format)),
        })
    }))
}

fn unknown(format: &[u8]) -> Error {
    let format = format.escape_ascii();
    Error::runtime(format!(
        "the simulated server has no struct format but < with c, i and I and sizes, got {format}"
    ))
}

pub(super) fn pack(lua: &Lua, arguments: MultiValue) -> Result<mlua::String> {
    let mut arguments = arguments.into_iter();
    let Some(Value::String(format)) = arguments.next() else { return Err(Error::runtime("no format")) };
    let mut packed = Vec::with_capacity(24);
    for item in items(&format.as_bytes())? {
        let argument = arguments.next().ok_or_else(|| Error::runtime("too few values for the format"))?;
        match (item?, &argument) {
            (Item::Unsigned(size) | Item::Signed(size), Value::Integer(number)) => {
                packed.extend_from_slice(&number.to_le_bytes()[..size]);
            }
            (Item::Unsigned(size) | Item::Signed(size), Value::Number(number)) => {
                packed.extend_from_slice(&truncated(*number).to_le_bytes()[..size]);
            }
            (Item::Text(size), Value::String(text)) if text.as_bytes().len() >= size => {
                packed.extend_from_slice(&text.as_bytes()[..size]);
            }
            (Item::Rest, Value::String(text)) => packed.extend_from_slice(&text.as_bytes()),
            (_, other) => return Err(Error::runtime(format!("cannot pack a {}", other.type_name()))),
        }
    }
    lua.create_string(packed)
}

/// As C converts a double: negative numbers as signed, others as unsigned integers.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as Redis does")]
fn truncated(number: f64) -> u64 {
    if number < 0.0 { (number as i64).cast_unsigned() } else { number as u64 }
}

pub(super) fn unpack(
    lua: &Lua,
    (format, data, first): (mlua::String, mlua::String, Option<usize>),
) -> Result<MultiValue> {
    let data = data.as_bytes();
    let mut at =
        first.unwrap_or(1).checked_sub(1).ok_or_else(|| Error::runtime("offset must be 1 or greater"))?;
    let mut values = MultiValue::with_capacity(10);
    for item in items(&format.as_bytes())? {
        let item = match item? {
            Item::Rest => Item::Text(length(values.pop_back().as_ref())?),
            item => item,
        };
        let (Item::Unsigned(size) | Item::Signed(size) | Item::Text(size)) = item else {
            unreachable!("a rest is a text of a length");
        };
        let part = data.get(at..at + size).ok_or_else(|| Error::runtime("data string too short"))?;
        at += size;
        values.push_back(match item {
            Item::Text(_) | Item::Rest => Value::String(lua.create_string(part)?),
            #[expect(clippy::cast_precision_loss, reason = "as Redis does")]
            Item::Unsigned(_) => Value::Number(unsigned(part) as f64),
            #[expect(clippy::cast_precision_loss, reason = "as Redis does")]
            Item::Signed(size) => {
                let unused = 64 - 8 * u32::try_from(size).expect("a size is at most 8");
                Value::Number((unsigned(part) << unused).cast_signed().wrapping_shr(unused) as f64)
            }
        });
    }
    values.push_back(Value::Integer(i64::try_from(at + 1).expect("an offset of a text in memory")));
    Ok(values)
}

/// The length that a format with `c0` reads before the text.
fn length(value: Option<&Value>) -> Result<usize> {
    match value {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as Redis does")]
        Some(Value::Number(length)) => Ok(*length as usize),
        _ => Err(Error::runtime("format 'c0' needs a previous size")),
    }
}

fn unsigned(part: &[u8]) -> u64 {
    part.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
