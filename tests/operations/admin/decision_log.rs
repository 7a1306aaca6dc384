//! The decision log: its lines, its file, and dropped lines.

use std::{fs, path::Path};

use serde_json::Value;

use support::{eventually, holds};

use super::{Admin, setup};

/// A service that logs decisions.
fn start(variables: &[(&str, &str)]) -> Admin {
    let (setup, port) = setup();
    let setup = variables.iter().fold(setup, |setup, (name, value)| setup.env(name, value));
    Admin { server: setup.start(), port }
}

fn lines(text: &str) -> Vec<Value> {
    let lines = text.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn wait_for_lines(path: &Path, number: usize) -> Vec<Value> {
    eventually("the lines are written", || {
        let text = fs::read_to_string(path).unwrap_or_default();
        holds(lines(&text).len() >= number, || text.clone())?;
        Ok(lines(&text))
    })
}

#[test]
fn refusals_are_logged_to_a_file_that_may_be_rotated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("decisions.json");
    let admin = start(&[("DECISION_LOG", "refused"), ("DECISION_LOG_FILE", path.to_str().unwrap())]);
    admin.ask("ann", 4);
    let found = wait_for_lines(&path, 2);
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!((&found[0]["code"], &found[0]["rule"]), (&"over_limit".into(), &"shop.user".into()));
    assert_eq!(found[0]["descriptor"], serde_json::json!([{ "key": "user", "value": "ann" }]));
    fs::rename(&path, dir.path().join("old")).unwrap();
    admin.ask("bob", 3);
    let found = wait_for_lines(&path, 1);
    assert_eq!(found[0]["descriptor"][0]["value"], "bob");
    let metrics = admin.server.metrics();
    let counts =
        ["lines", "dropped"].map(|name| metrics[&format!("tollgate_decision_log_{name}_total")].to_string());
    assert_eq!(counts, ["3", "0"]);
}

#[test]
fn every_decision_is_logged_to_standard_output_when_all_are_sampled() {
    let admin = start(&[("DECISION_LOG", "sampled:1"), ("KEY_VALUES", "hidden")]);
    admin.ask("ann", 3);
    let codes = admin.server.process.wait_until_log("the lines are written", |log| {
        // The last line may be incomplete.
        let complete = log.rsplit_once('\n').map_or("", |(complete, _)| complete);
        let found = lines(complete);
        let codes: Vec<_> = found.iter().map(|line| line["code"].as_str().unwrap().to_owned()).collect();
        assert!(found.iter().all(|line| line["descriptor"][0]["value"] == "***"), "{found:?}");
        holds(codes.len() == 3, || format!("{codes:?}"))?;
        Ok(codes)
    });
    assert_eq!(codes, ["ok", "ok", "over_limit"]);
}

#[test]
fn lines_that_cannot_be_written_are_counted_and_requests_are_still_decided() {
    let admin = start(&[("DECISION_LOG", "refused"), ("DECISION_LOG_FILE", "/nowhere/decisions.json")]);
    assert_eq!(admin.ask("ann", 5), 3);
    eventually("they are counted", || {
        let dropped = admin.server.metrics()["tollgate_decision_log_dropped_total"];
        holds(dropped >= 3.0, || dropped.to_string())
    });
    admin.server.wait_for_log(&["cannot write the decision log", "/nowhere/decisions.json"]);
}

#[test]
fn pending_lines_are_written_before_the_service_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("decisions.json");
    let mut admin = start(&[("DECISION_LOG", "refused"), ("DECISION_LOG_FILE", path.to_str().unwrap())]);
    admin.ask("ann", 7);
    admin.server.process.stop();
    assert_eq!(wait_for_lines(&path, 5).len(), 5);
}
