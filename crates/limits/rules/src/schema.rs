//! The JSON Schema of rules files, for editors: `tollgate schema`, and `/schema.json` of the admin port.
//!
//! Its keys are those of the reader's table, and its names those of the enums. Editors read YAML 1.2, so what only YAML 1.1
//! takes for a number or a flag (`1_000`, `yes`) is accepted as a text. Rules that depend on several values are left to
//! `tollgate check`.

use serde_json::{Map, Value, json};

use crate::ast::{Level, keys};
use faults::OnStoreFailure;
use limit::{CountingMode, Kind, MAX_LIMIT, Unit, calendar::Weekday};

/// The schema, in draft-07, which every editor supports.
pub fn schema() -> Value {
    let definitions =
        [Level::Descriptor, Level::Limit, Level::Replaces, Level::Calendar, Level::Hold, Level::Schedule]
            .map(|level| (definition(level).to_owned(), map(level)));
    let mut schema = map(Level::File);
    schema["$schema"] = json!("http://json-schema.org/draft-07/schema#");
    schema["title"] = json!("Tollgate rules");
    schema["required"] = json!(["domain"]);
    schema["definitions"] = definitions.into_iter().collect::<Map<_, _>>().into();
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

const fn definition(level: Level) -> &'static str {
    match level {
        Level::File => "file",
        Level::Descriptor => "descriptor",
        Level::Limit => "limit",
        Level::Replaces => "replaces",
        Level::Calendar => "calendar",
        Level::Hold => "hold",
        Level::Schedule => "schedule",
    }
}

fn map(level: Level) -> Value {
    let property = |key: &'static str| {
        let (mut value, description) = property(key);
        value["description"] = description.into();
        (key.to_owned(), value)
    };
    let properties: Map<_, _> = keys(level).map(property).collect();
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}

/// The accepted values of a key, and what it means.
fn property(key: &str) -> (Value, &'static str) {
    match key {
        "domain" => (name(), "The domain of Envoy's rate limit filter."),
        "on_store_failure" => (
            names(OnStoreFailure::ALL.map(OnStoreFailure::name)),
            "The policy while the counters cannot be reached.",
        ),
        "descriptors" => (list(Level::Descriptor, 0), "One level of the tree of descriptors."),
        "key" => (name(), "The key of a request's entry. May contain `*`."),
        "value" => (
            json!({"type": TEXT}),
            "The value of a request's entry, compared as text. May contain `*`. Without it every value matches.",
        ),
        "rate_limit" => (
            // With `anyOf` an editor would report the mismatch of both.
            json!({
                "if": {"type": "array"},
                "then": list(Level::Limit, 2),
                "else": {"if": {"type": "null"}, "else": reference(Level::Limit)},
            }),
            "The limit of this level, or a list of several.",
        ),
        "shadow_mode" => (flag(), "Counts, but is never over limit."),
        "quota_mode" => (flag(), "Over limit only when every quota of the request is."),
        "detailed_metric" => (flag(), "Metric names contain the request's keys and values of all levels."),
        "value_to_metric" => (flag(), "Metric names contain the request's value of this level."),
        "share_threshold" => (flag(), "All values that match this wildcard share one counter."),
        "overrides_only" => (flag(), "Limits only values that have an override."),
        "metadata" => {
            (json!({"type": ["object", "null"]}), "Any map. Sent to Envoy when the descriptor is allowed.")
        }
        "over_limit_body" => (json!({"type": TEXT}), "The body of over-limit responses."),
        "replaces" => (list(Level::Replaces, 0), "Limits that do not count when this one matches."),
        _ => property_of_limit(key),
    }
}

/// The same for the keys of `rate_limit`, and of what is in it.
fn property_of_limit(key: &str) -> (Value, &'static str) {
    match key {
        "unit" => (names(Unit::ALL.map(Unit::name)), "The unit of the window."),
        "unit_multiplier" => (number(1, u32::MAX.into()), "Units in a window, up to 10 years."),
        "requests_per_unit" => (number(0, MAX_LIMIT), "Requests in a window. 0 allows none."),
        "algorithm" => (names(Kind::ALL.map(Kind::name)), "How requests are counted."),
        "burst" => (number(1, Kind::TokenBucket.most()), "The capacity of a bucket."),
        "counting" => (
            names(CountingMode::ALL.map(CountingMode::name)),
            "`leased` lets a replica reserve hits of a hot key ahead of time.",
        ),
        "calendar" => {
            (reference(Level::Calendar), "Windows are days, weeks, months or years of a time zone.")
        }
        "schedule" => (
            list(Level::Schedule, 1),
            "Other numbers of requests at some times: the first entry that holds is in force.",
        ),
        "days" => (
            json!({"type": ["string", "array", "null"], "items": {"type": "string"}, "minItems": 1}),
            "Days of the week, such as `mon-fri` or `[mon, wed]`. Every day by default.",
        ),
        "from" => (time(), "The local time at which the entry begins to hold. 00:00 by default."),
        "to" => (
            time(),
            "The local time at which the entry ends to hold, on the next day if it is not after `from`. 24:00 by default.",
        ),
        "unlimited" => (flag(), "Allows every request. A limit has either this or a unit."),
        "name" => (json!({"type": TEXT}), "The name of the limit in responses, and in `replaces`."),
        "hold" => (reference(Level::Hold), "Reserves what a request may cost until its cost is known."),
        "amount" => (number(1, MAX_LIMIT), "The estimate of a request without a `hits_addend`."),
        "ttl" => (name(), "The time after which a hold ends by itself, such as `15m`."),
        "unknown" => {
            (json!({"type": TEXT}), "What a hold costs that ends without a cost: `held`, `zero` or a number.")
        }
        "in" => (name(), "The currency in which its cost is stated, such as `tokens`."),
        "time_zone" => (json!({"type": TEXT}), "A name of the IANA time zone database. UTC by default."),
        "week_start" => {
            (names(Weekday::ALL.map(Weekday::name)), "The first day of a week. Monday by default.")
        }
        "anchor_day" => (
            json!({"type": ["integer", "null"], "minimum": 1, "maximum": 31}),
            "The first day of a month. In a shorter month it is the last day.",
        ),
        _ => unreachable!("the key `{key}` has no schema: a test reads every level"),
    }
}

/// Text as written: `007` and `yes` are texts too, and null is an absent one.
const TEXT: [&str; 4] = ["string", "integer", "boolean", "null"];

/// A text that is not empty.
fn name() -> Value {
    json!({"type": ["string", "integer", "boolean"], "minLength": 1})
}

fn time() -> Value {
    json!({"type": ["string", "null"], "pattern": "^([01]?[0-9]|2[0-3]):[0-5][0-9]$|^24:00$"})
}

fn reference(level: Level) -> Value {
    // Draft-07 ignores what is beside a reference.
    json!({"allOf": [{"$ref": format!("#/definitions/{}", definition(level))}]})
}

fn list(items: Level, least: usize) -> Value {
    json!({"type": ["array", "null"], "items": reference(items), "minItems": least})
}

/// YAML 1.1's flags, in their three cases.
fn flag() -> Value {
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
fn number(least: u64, most: u64) -> Value {
    let notations = r"^\+?(0[bB][01_]+|0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|[0-9][0-9_]*_[0-9_]*)$";
    json!({"type": ["integer", "string", "null"], "minimum": least, "maximum": most, "pattern": notations})
}

/// One of these names, ignoring case. Editors complete the names of an `enum`.
fn names<const N: usize>(names: [&str; N]) -> Value {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_the_reader_is_in_the_schema() {
        let schema = schema();
        let maps = [
            (Level::File, &schema),
            (Level::Descriptor, &schema["definitions"]["descriptor"]),
            (Level::Limit, &schema["definitions"]["limit"]),
            (Level::Replaces, &schema["definitions"]["replaces"]),
            (Level::Calendar, &schema["definitions"]["calendar"]),
            (Level::Hold, &schema["definitions"]["hold"]),
            (Level::Schedule, &schema["definitions"]["schedule"]),
        ];
        for (level, map) in maps {
            let properties = map["properties"].as_object().unwrap();
            assert_eq!(properties.len(), keys(level).count(), "{level:?}");
            for key in keys(level) {
                assert!(properties[key]["description"].is_string(), "{level:?} {key}");
            }
        }
    }
}
