//! Rules files whose fate at the Go service is recorded: taken or refused, and what `/rlconfig` showed.

use serde_json::Value;

use super::{CompileOptions, Compiled, SourceFile, compile};

const CASES: &str = include_str!("../../tests/golden/configs.jsonl");

fn cases() -> impl Iterator<Item = Value> {
    CASES.lines().map(|line| serde_json::from_str(line).unwrap())
}

/// Compiles the files of a case as the service would be started with them.
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
    compile(&files, CompileOptions { merge_domains: is_set("MERGE_DOMAIN_CONFIG") })
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
fn every_recorded_file_is_taken_or_refused_as_recorded() {
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
            let told: Vec<String> = compiled.diagnostics.iter().map(ToString::to_string).collect();
            differing.push(format!(
                "{}: recorded {recorded:?}\n  here {:?}\n  {told:?}",
                case["name"],
                shown(&compiled)
            ));
        }
    }
    assert!(compared > 300, "only {compared} cases");
    assert!(differing.is_empty(), "{} cases differ:\n{}", differing.len(), differing.join("\n"));
}

#[test]
fn a_refused_file_is_told_with_a_place_and_a_taken_one_without_errors() {
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
