//! The JSON Schema of `tollgate schema`: it accepts every rules file of the docs and the deployments, as an editor reads it,
//! and refuses what a newcomer mistypes.

use std::{fs, path::Path, process::Command};

use jsonschema::Validator;
use serde_json::Value;

use super::{BINARY, pages, read, root, rules_files};

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
