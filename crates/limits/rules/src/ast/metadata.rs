//! `metadata`: any map, in the types of protobuf's `Struct`.
//!
//! Any key and any value is accepted. Numbers become 64-bit floats, dates stay text, and keys that are not text are printed
//! as in the Go service.

use super::{
    super::{
        model::{Metadata, Value},
        yaml::{Content, Meaning, Pair, float_as_key},
    },
    Field, Given,
    reader::{Reader, Spot, scalar},
};

/// Reads a `metadata`, and merges it into an earlier one of the same descriptor.
pub(super) fn read(reader: &mut Reader<'_>, spot: Spot<'_>, known: &mut Field<Metadata>) {
    let Content::Map(pairs) = &spot.node.content else {
        *known = if scalar(spot.node) == Some(&Meaning::Null) {
            Field::Absent
        } else {
            reader.mismatch(&spot, "a map", "give each value a name: `metadata: {service: …}`");
            Field::Wrong
        };
        return;
    };
    let mut value = match std::mem::take(known) {
        Field::Given(given) => given.value,
        Field::Absent | Field::Wrong => Metadata::new(),
    };
    merge(reader, spot, pairs, written_key, &mut value);
    *known = Field::Given(Given { value, place: spot.place, key: spot.key });
}

fn merge(
    reader: &mut Reader<'_>,
    spot: Spot<'_>,
    pairs: &[Pair],
    name: fn(&Pair) -> String,
    into: &mut Metadata,
) {
    reader.last_of_each(&spot, pairs, None);
    for pair in pairs {
        let key = name(pair);
        let path = spot.path.key(&key);
        let value = value(reader, spot.value(pair, &path, spot.live));
        into.insert(key, value);
    }
}

fn value(reader: &mut Reader<'_>, spot: Spot<'_>) -> Value {
    match &spot.node.content {
        Content::Scalar(scalar) => match &scalar.meaning {
            Meaning::Null => Value::Null,
            Meaning::Bool(flag) => Value::Bool(*flag),
            // Protobuf's numbers are floats: integers beyond 2^53 are rounded, as in the Go service.
            #[allow(clippy::cast_precision_loss)]
            Meaning::Int(number) => Value::Number(*number as f64),
            #[allow(clippy::cast_precision_loss)]
            Meaning::Large(number) => Value::Number(*number as f64),
            Meaning::Float(number) => Value::Number(*number),
            Meaning::Text => Value::Text(scalar.text.to_string()),
            Meaning::Binary(bytes) => {
                if std::str::from_utf8(bytes).is_err() {
                    reader.error(&spot, "these bytes are not UTF-8 text", "metadata cannot have other bytes");
                }
                Value::Text(String::from_utf8_lossy(bytes).into_owned())
            }
        },
        Content::List(links) => {
            let items = links.iter().enumerate().map(|(at, link)| {
                let path = spot.path.item(at);
                value(reader, spot.item(link, &path))
            });
            Value::List(items.collect())
        }
        Content::Map(pairs) => {
            let mut map = Metadata::new();
            merge(reader, spot, pairs, printed_key, &mut map);
            Value::Map(map)
        }
    }
}

fn written_key(pair: &Pair) -> String {
    match &pair.key.node.content {
        Content::Scalar(scalar) => match &scalar.meaning {
            Meaning::Null => String::new(),
            Meaning::Binary(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => scalar.text.to_string(),
        },
        Content::List(_) | Content::Map(_) => String::new(),
    }
}

/// A key of a nested map, as Go prints its value.
fn printed_key(pair: &Pair) -> String {
    match scalar(&pair.key.node) {
        Some(Meaning::Null) => "<nil>".to_owned(),
        Some(Meaning::Bool(flag)) => flag.to_string(),
        Some(Meaning::Int(number)) => number.to_string(),
        Some(Meaning::Large(number)) => number.to_string(),
        Some(Meaning::Float(number)) => float_as_key(*number),
        _ => written_key(pair),
    }
}
