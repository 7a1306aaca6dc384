//! The JSON Schema of rules files, for editors: `tollgate schema`, and `/schema.json` of the admin port.
//!
//! `ast::keys` has its properties, beside how each is read. Editors read YAML 1.2, so what only YAML 1.1
//! takes for a number or a flag (`1_000`, `yes`) is accepted as a text. Rules that depend on several values are left to
//! `tollgate check`.

use serde_json::{Map, Value, json};

use crate::ast::MapKind;

/// The schema, in draft-07, which every editor supports.
pub fn schema() -> Value {
    let mut schema = map(MapKind::File);
    schema["$schema"] = json!("http://json-schema.org/draft-07/schema#");
    schema["title"] = json!("Tollgate rules");
    schema["required"] = json!(["domain"]);
    let below = MapKind::ALL.into_iter().filter(|kind| *kind != MapKind::File);
    let definitions = below.map(|kind| (kind.definition().to_owned(), map(kind)));
    schema["definitions"] = definitions.collect::<Map<_, _>>().into();
    schema["definitions"]["descriptor"]["required"] = json!(["key"]);
    // A limit has a unit, or none because it is unlimited or counts requests under way.
    let concurrency = json!({"required": ["algorithm", "hold"]});
    schema["definitions"]["limit"]["anyOf"] =
        json!([{"required": ["unit"]}, {"required": ["unlimited"]}, concurrency]);
    schema["definitions"]["hold"]["required"] = json!(["ttl"]);
    schema["definitions"]["replaces"]["required"] = json!(["name"]);
    schema["definitions"]["schedule"]["required"] = json!(["requests_per_unit"]);
    schema
}

fn map(kind: MapKind) -> Value {
    let properties = kind.keys().iter().map(|key| {
        let mut value = (key.accepts)();
        value["description"] = key.about.into();
        (key.name.to_owned(), value)
    });
    let properties: Map<_, _> = properties.collect();
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}

/// Text as written: `007` and `yes` are texts too, and null is an absent one.
pub(crate) const TEXT: [&str; 4] = ["string", "integer", "boolean", "null"];

/// A text that is not empty.
pub(crate) fn name() -> Value {
    json!({"type": ["string", "integer", "boolean"], "minLength": 1})
}

pub(crate) fn time() -> Value {
    json!({"type": ["string", "null"], "pattern": "^([01]?[0-9]|2[0-3]):[0-5][0-9]$|^24:00$"})
}

pub(crate) fn reference(kind: MapKind) -> Value {
    // Draft-07 ignores what is beside a reference.
    json!({"allOf": [{"$ref": format!("#/definitions/{}", kind.definition())}]})
}

pub(crate) fn list(items: MapKind, least: usize) -> Value {
    json!({"type": ["array", "null"], "items": reference(items), "minItems": least})
}

/// YAML 1.1's flags, in their three cases.
pub(crate) fn flag() -> Value {
    let words = ["yes", "no", "on", "off", "y", "n"];
    let cases = words.iter().flat_map(|word| {
        let (first, rest) = word.split_at(1);
        [(*word).to_owned(), first.to_uppercase() + rest, word.to_uppercase()]
    });
    let mut values: Vec<Value> = vec![true.into(), false.into(), Value::Null];
    values.extend(cases.map(Value::from));
    values.dedup();
    json!({"enum": values})
}

/// An integer. YAML 1.1's notations with `_`, `0b`, `0o` and `0x` are texts in YAML 1.2.
pub(crate) fn number(least: u64, most: u64) -> Value {
    let notations = r"^\+?(0[bB][01_]+|0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|[0-9][0-9_]*_[0-9_]*)$";
    json!({"type": ["integer", "string", "null"], "minimum": least, "maximum": most, "pattern": notations})
}

/// One of these names, ignoring case. Editors complete the names of an `enum`.
pub(crate) fn names<const N: usize>(names: [&str; N]) -> Value {
    let names = names.map(str::to_ascii_lowercase);
    let any_case = |name: &String| -> String {
        let letter = |c: char| match c {
            'a'..='z' => format!("[{c}{}]", c.to_ascii_uppercase()),
            _ => c.to_string(),
        };
        name.chars().map(letter).collect()
    };
    let pattern = names.iter().map(any_case).collect::<Vec<_>>().join("|");
    json!({"anyOf": [
        {"enum": names.to_vec()},
        {"type": "string", "pattern": format!("^({pattern})$")},
        {"type": "null"},
    ]})
}
