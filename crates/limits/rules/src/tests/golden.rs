//! Recordings of the Go service: rules files that it accepted or rejected, and their `/rlconfig`.

use serde_json::{Value, json};

use crate::{CompileOptions, Compiled, Entry, Metadata, SourceFile, compile, model};
use limit::Limits;

const CASES: &str = include_str!("../../../../../tests/decision/golden/configs.jsonl");

/// A limit beyond 32 bits, which is accepted here: see docs/reference/differences.md.
const INTENDED: &str = "rule-rpu-over";

fn cases() -> impl Iterator<Item = Value> {
    let cases = CASES.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    cases.filter(|case| case["name"] != INTENDED)
}

#[test]
fn a_limit_beyond_32_bits_is_an_intended_difference() {
    let cases = CASES.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let intended: Vec<_> = cases.filter(|case| case["name"] == INTENDED).collect();
    let [case] = &intended[..] else { panic!("{intended:?}") };
    assert_eq!(case["taken"], false);
    let shown = shown(&compile_case(case)).unwrap();
    assert_eq!(
        shown[0],
        "d.k: unit=HOUR requests_per_unit=4294967296, shadow_mode: false, quota_mode: false"
    );
}

/// Compiles the files of a case with the options of its settings.
fn compile_case(case: &Value) -> Compiled {
    let is_set = |name: &str| case["env"][name] == "true";
    let mut files: Vec<SourceFile> = case["configs"]
        .as_object()
        .unwrap()
        .iter()
        .filter(|(name, _)| !(is_set("RUNTIME_IGNOREDOTFILES") && name.starts_with('.')))
        .map(|(name, text)| SourceFile { name: name.clone(), text: text.as_str().unwrap().into() })
        .collect();
    files.sort_by(|one, other| one.name.cmp(&other.name));
    let merge_domains = is_set("MERGE_DOMAIN_CONFIG");
    compile(&files, CompileOptions { merge_domains, ..CompileOptions::default() })
}

/// The lines of `/rlconfig`, sorted.
fn shown(compiled: &Compiled) -> Option<Vec<String>> {
    let rules = compiled.rules.as_ref()?.rules();
    let text = rules.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    Some(lines)
}

#[test]
fn every_recorded_file_is_accepted_or_rejected_as_recorded() {
    let mut differing = Vec::new();
    let mut compared = 0;
    for case in cases() {
        let recorded = case["taken"].as_bool().unwrap().then(|| {
            let lines =
                case["shown"].as_array().unwrap().iter().map(|line| line.as_str().unwrap().to_owned());
            lines.collect::<Vec<_>>()
        });
        let compiled = compile_case(&case);
        compared += 1;
        if shown(&compiled) != recorded {
            let messages: Vec<String> = compiled.diagnostics.iter().map(ToString::to_string).collect();
            differing.push(format!(
                "{}: recorded {recorded:?}\n  here {:?}\n  {messages:?}",
                case["name"],
                shown(&compiled)
            ));
        }
    }
    assert!(compared > 300, "only {compared} cases");
    assert!(differing.is_empty(), "{} cases differ:\n{}", differing.len(), differing.join("\n"));
}

#[test]
fn a_rejected_file_has_an_error_with_a_place_and_an_accepted_one_has_none() {
    for case in cases() {
        let compiled = compile_case(&case);
        let errors: Vec<_> = compiled.diagnostics.iter().filter(|d| d.is_error()).collect();
        assert_eq!(errors.is_empty(), compiled.rules.is_some(), "{}", case["name"]);
        let is_empty_file = case["configs"].as_object().unwrap().values().any(|text| {
            text.as_str()
                .unwrap()
                .lines()
                .all(|line| line.trim().is_empty() || line.starts_with('#') || line == "~")
        });
        for error in errors {
            assert!(error.place.is_some() || is_empty_file, "{}: {error}", case["name"]);
        }
    }
}

#[test]
fn ids_are_dense() {
    for case in cases() {
        let Some(rules) = compile_case(&case).rules else { continue };
        let mut ids: Vec<u32> = rules.rules().iter().map(|rule| rule.id.0).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..rules.rule_count()).collect::<Vec<_>>(), "{}", case["name"]);
    }
}

struct Asked<'c>(&'c Value);

impl Entry for Asked<'_> {
    fn key(&self) -> &str {
        self.0[0].as_str().unwrap()
    }
    fn value(&self) -> &str {
        self.0[1].as_str().unwrap()
    }
}

fn as_json(metadata: &Metadata) -> Value {
    fn value(of: &model::Value) -> Value {
        match of {
            model::Value::Null => Value::Null,
            model::Value::Bool(flag) => json!(flag),
            model::Value::Number(number) => json!(number),
            model::Value::Text(text) => json!(text),
            model::Value::List(items) => items.iter().map(value).collect(),
            model::Value::Map(map) => as_json(map),
        }
    }
    Value::Object(metadata.iter().map(|(key, of)| (key.clone(), value(of))).collect())
}

#[test]
fn limits_and_metadata_are_those_of_recorded_responses() {
    let mut with_metadata = 0;
    for case in cases().filter(|case| case["taken"] == true) {
        let rules = compile_case(&case).rules.unwrap();
        for probe in case["probes"].as_array().unwrap() {
            let [domain, descriptors, _] = &probe[0].as_array().unwrap()[..] else { panic!("{probe}") };
            let entries: Vec<Asked<'_>> =
                descriptors[0]["entries"].as_array().unwrap().iter().map(Asked).collect();
            let mut scratch = String::new();
            let found =
                rules.domain(domain.as_str().unwrap()).and_then(|domain| domain.find(&entries, &mut scratch));
            let status = &probe[1]["statuses"][0];
            let limit = found.as_ref().and_then(|found| found.rule.limits()).map(Limits::first);
            assert_eq!(status["current_limit"].is_object(), limit.is_some(), "{}: {probe}", case["name"]);
            let Some(limit) = limit else { continue };
            // Proto3 leaves out a number that is 0.
            assert_eq!(
                status["current_limit"]["requests_per_unit"].as_u64().unwrap_or(0),
                limit.requests_per_unit
            );
            assert_eq!(status["current_limit"]["unit"], limit.unit.name());
            assert_eq!(status["current_limit"]["name"].as_str(), limit.name.as_deref());
            if status["code"] == "OK" {
                let carried = found.and_then(|found| found.metadata()).map(|metadata| as_json(metadata));
                assert_eq!(
                    probe[1]["dynamic_metadata"].get("metadata"),
                    carried.as_ref(),
                    "{}: {probe}",
                    case["name"]
                );
                with_metadata += usize::from(carried.is_some());
            }
        }
    }
    assert!(with_metadata > 10, "only {with_metadata} answers carried metadata");
}
