//! The JSON Schema of `tollgate schema`: it accepts every rules file of the docs and the deployments, as an editor reads it,
//! and refuses what a newcomer mistypes.

use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path, process::Command};

use jsonschema::Validator;
use serde_json::Value;

use super::{BINARY, holds_table, pages, read, root, rules_files};

fn validator() -> Validator {
    let output = Command::new(BINARY).arg("schema").output().unwrap();
    assert!(output.status.success());
    jsonschema::validator_for(&serde_json::from_slice(&output.stdout).unwrap()).unwrap()
}

/// The errors of a file, which is read as YAML 1.2 with merges, as the language server of YAML does.
fn errors(validator: &Validator, text: &str) -> Vec<String> {
    let mut value: serde_yaml::Value = serde_yaml::from_str(text).unwrap();
    value.apply_merge().unwrap();
    let json: Value = serde_json::to_value(value).unwrap();
    validator.iter_errors(&json).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

/// The rules files below a directory, and those within its manifests and values: texts with a domain.
fn shipped(directory: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            shipped(&entry, found);
        } else if entry.extension().is_some_and(|extension| extension == "yaml") {
            let (name, text) = (entry.display().to_string(), fs::read_to_string(&entry).unwrap());
            // Templates of the chart are not YAML.
            let documents = text.split("\n---\n").map(serde_yaml::from_str::<serde_yaml::Value>);
            for document in documents.flatten() {
                if document.get("domain").is_some() {
                    found.push((name.clone(), text.clone()));
                }
                within(&name, &document, found);
            }
        }
    }
}

fn within(name: &str, value: &serde_yaml::Value, found: &mut Vec<(String, String)>) {
    match value {
        serde_yaml::Value::String(text) if text.lines().any(|line| line.starts_with("domain: ")) => {
            found.push((name.to_owned(), text.clone()));
        }
        serde_yaml::Value::Mapping(map) => map.values().for_each(|value| within(name, value, found)),
        serde_yaml::Value::Sequence(list) => list.iter().for_each(|value| within(name, value, found)),
        _ => {}
    }
}

#[test]
fn the_schema_accepts_every_rules_file_that_is_shown_or_shipped() {
    let validator = validator();
    let mut files = Vec::new();
    for page in pages() {
        for block in rules_files(&page).into_iter().filter(|block| !block.is_refused()) {
            files.push((format!("{page}:{}", block.line), block.text));
        }
    }
    let shown = files.len();
    shipped(&root().join("config"), &mut files);
    shipped(&root().join("deploy"), &mut files);
    assert!(shown > 20 && files.len() > shown + 3, "{shown} of {}", files.len());
    for (name, text) in files {
        assert_eq!(errors(&validator, &text), [""; 0], "{name}:\n{text}");
    }
}

#[test]
fn the_schema_refuses_what_the_reader_refuses() {
    let validator = validator();
    let limit = |limit: &str| format!("domain: d\ndescriptors: [{{key: k, rate_limit: {limit}}}]");
    for (text, place) in [
        ("descriptors: []".to_owned(), ""),
        ("domain: ''".to_owned(), "/domain"),
        ("domain: d\nrules: []".to_owned(), ""),
        ("domain: d\ndescriptors: [{value: v}]".to_owned(), "/descriptors/0"),
        ("domain: d\ndescriptors: {key: k}".to_owned(), "/descriptors"),
        ("domain: d\ndescriptors: [{key: 1.5}]".to_owned(), "/descriptors/0/key"),
        ("domain: d\ndescriptors: [{key: k, shadow_mode: 1}]".to_owned(), "/descriptors/0/shadow_mode"),
        (limit("{unit: hours, requests_per_unit: 1}"), "/descriptors/0/rate_limit/unit"),
        (limit("{unit: day, requests_per_unit: -1}"), "/descriptors/0/rate_limit/requests_per_unit"),
        (limit("{unit: day, requests_per_unit: '100'}"), "/descriptors/0/rate_limit/requests_per_unit"),
        (limit("{requests_per_unit: 1}"), "/descriptors/0/rate_limit"),
        (limit("{unit: day, shadow_mode: true}"), "/descriptors/0/rate_limit"),
        (limit("[{unit: day, requests_per_unit: 1}]"), "/descriptors/0/rate_limit"),
        (limit("{unit: day, calendar: {zone: UTC}}"), "/descriptors/0/rate_limit/calendar"),
        (
            limit("{unit: day, schedule: [{requests_per_unit: 1, days: []}]}"),
            "/descriptors/0/rate_limit/schedule/0/days",
        ),
    ] {
        let found = errors(&validator, &text);
        assert!(found.len() == 1 && found[0].starts_with(&format!("{place}: ")), "{text}\n{found:#?}");
    }
    for text in [
        limit("{unit: HOUR, requests_per_unit: 1_000}"),
        limit("{unit: Day, requests_per_unit: 0x10, algorithm: Token_Bucket, burst: +5}"),
        limit("{unlimited: yes}"),
        limit("{unit: day, schedule: [{requests_per_unit: 1, days: [mon, wed-fri]}]}"),
        limit("~"),
        "domain: 007\ndescriptors: [{key: on, value: 12}]".to_owned(),
    ] {
        assert_eq!(errors(&validator, &text), [""; 0], "{text}");
    }
}

#[test]
fn the_modeline_is_documented() {
    assert!(read("docs/reference/rules.md").contains("# yaml-language-server: $schema="));
}

/// Every key of a rules file: where it stands, its name, and the section that explains it.
const FIELDS: [(&str, &str, &str); 41] = [
    ("file", "domain", "#a-file"),
    ("file", "descriptors", "#a-file"),
    ("file", "on_store_failure", "#store-failure-policy"),
    ("descriptor", "key", "#matching"),
    ("descriptor", "value", "#matching"),
    ("descriptor", "descriptors", "#matching"),
    ("descriptor", "rate_limit", "#limits"),
    ("descriptor", "share_threshold", "#wildcards"),
    ("descriptor", "shadow_mode", "#shadow-mode"),
    ("descriptor", "quota_mode", "#quotas"),
    ("descriptor", "overrides_only", "overrides.md#limits-per-customer"),
    ("descriptor", "over_limit_body", "responses.md#a-body"),
    ("descriptor", "metadata", "#metadata"),
    ("descriptor", "detailed_metric", "metrics.md#the-name-of-a-rule"),
    ("descriptor", "value_to_metric", "metrics.md#the-name-of-a-rule"),
    ("limit", "unit", "#windows"),
    ("limit", "requests_per_unit", "#limits"),
    ("limit", "unlimited", "#exemptions-and-unlimited-rules"),
    ("limit", "name", "#limits"),
    ("limit", "replaces", "#replacing-limits"),
    ("limit", "unit_multiplier", "#windows"),
    ("limit", "algorithm", "#algorithms"),
    ("limit", "burst", "#algorithms"),
    ("limit", "counting", "leases.md"),
    ("limit", "calendar", "#calendars"),
    ("limit", "schedule", "#schedules"),
    ("limit", "hold", "holds.md"),
    ("replaces", "name", "#replacing-limits"),
    ("calendar", "time_zone", "#calendars"),
    ("calendar", "week_start", "#calendars"),
    ("calendar", "anchor_day", "#calendars"),
    ("schedule", "days", "#schedules"),
    ("schedule", "from", "#schedules"),
    ("schedule", "to", "#schedules"),
    ("schedule", "time_zone", "#schedules"),
    ("schedule", "requests_per_unit", "#schedules"),
    ("hold", "amount", "holds.md#fields"),
    ("hold", "most", "holds.md#fields"),
    ("hold", "ttl", "holds.md#fields"),
    ("hold", "unknown", "holds.md#fields"),
    ("hold", "in", "holds.md#fields"),
];

#[test]
fn the_table_of_fields_is_that_of_the_schema() {
    let output = Command::new(BINARY).arg("schema").output().unwrap();
    let schema: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |place: &str| match place {
        "file" => schema["properties"].as_object().unwrap(),
        place => schema["definitions"][place]["properties"].as_object().unwrap(),
    };
    let mut table = "| field | of | accepts | meaning |\n|---|---|---|---|\n".to_owned();
    for (place, name, section) in FIELDS {
        let field = of(place).get(name).unwrap_or_else(|| panic!("the schema has no {name} of {place}"));
        let meaning = field["description"].as_str().unwrap();
        let place = if place == "limit" { "`rate_limit`".to_owned() } else { format!("`{place}`") };
        let place = place.replace("`file`", "file").replace("`descriptor`", "descriptor");
        // Writing to a String cannot fail.
        let _ = writeln!(table, "| [`{name}`]({section}) | {place} | {} | {meaning} |", accepted(field));
    }
    let places: BTreeSet<&str> = FIELDS.iter().map(|(place, ..)| *place).collect();
    let known: usize = places.into_iter().map(|place| of(place).len()).sum();
    assert_eq!(known, FIELDS.len(), "the schema has other fields than FIELDS");
    holds_table("docs/reference/rules.md", "fields", &table);
}

/// What a field accepts, in words.
fn accepted(field: &Value) -> String {
    let names = field["anyOf"][0]["enum"].as_array();
    let range = (field["minimum"].as_u64(), field["maximum"].as_u64());
    match (names, range) {
        (Some(names), _) => {
            let names: Vec<_> = names.iter().map(|name| format!("`{}`", name.as_str().unwrap())).collect();
            names.join(", ")
        }
        (_, (Some(least), Some(most))) => {
            let percentage = field["pattern"].as_str().filter(|pattern| pattern.contains('%'));
            format!("{least} to {most}{}", percentage.map_or("", |_| ", or 1% to 100%"))
        }
        _ if field["enum"].is_array() => "flag".to_owned(),
        _ if field["pattern"].as_str().is_some_and(|pattern| pattern.contains(':')) => "time".to_owned(),
        _ if field["allOf"].is_array() || field["type"].to_string().contains("object") => "map".to_owned(),
        _ if field["then"].is_object() => "map, list".to_owned(),
        _ if field["type"] == serde_json::json!(["array", "null"]) => "list".to_owned(),
        _ if field["type"].to_string().contains("array") => "text, list".to_owned(),
        _ => "text".to_owned(),
    }
}
