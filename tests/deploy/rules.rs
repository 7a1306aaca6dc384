//! The recording rules and alerts, checked by promtool, and the dashboard.

use std::{collections::BTreeSet, env, fs, process::Command};

use serde_json::Value;

use super::{documents, output, read, root};

pub(super) const RULES: &str = "deploy/prometheus/rules.yaml";
const TESTS: &str = "deploy/prometheus/tests.yaml";
const FOR_THE_OPERATOR: &str = "deploy/kubernetes/components/monitoring/prometheusrule.yaml";

#[test]
fn promtool_accepts_the_configuration_and_the_rules_and_their_tests_pass() {
    output(Command::new("promtool").args(["check", "config", "deploy/prometheus/prometheus.yaml"]));
    output(Command::new("promtool").args(["check", "rules", "--lint-fatal", RULES]));
    output(Command::new("promtool").args(["test", "rules", TESTS]));
}

#[test]
fn every_alert_has_a_test_in_which_it_fires() {
    let tests = &documents(&read(TESTS))[0];
    let expected = tests.pointer("/tests").unwrap().to_string();
    for alert in alerts() {
        assert!(
            expected.contains(&format!("alertname=\\\"{alert}\\\"")),
            "{alert} fires in no test of {TESTS}"
        );
    }
}

#[test]
fn the_prometheus_operator_has_the_same_rules() {
    let rules = read(RULES);
    let groups = &rules[rules.find("groups:").unwrap()..];
    let shown = read(FOR_THE_OPERATOR);
    let (head, _) = shown.split_once("spec:\n").unwrap();
    let indented: String = groups
        .lines()
        .map(|line| if line.is_empty() { "\n".to_owned() } else { format!("  {line}\n") })
        .collect();
    let wanted = format!("{head}spec:\n{indented}");
    if env::var_os("TOLLGATE_WRITE_DOCS").is_some() {
        return fs::write(root().join(FOR_THE_OPERATOR), wanted).unwrap();
    }
    assert!(
        shown == wanted,
        "{FOR_THE_OPERATOR} does not have the groups of {RULES}; TOLLGATE_WRITE_DOCS=1 cargo test --test deploy rewrites it"
    );
}

/// The names of all alerts.
pub(super) fn alerts() -> BTreeSet<String> {
    let rules = &documents(&read(RULES))[0];
    let groups = rules["groups"].as_array().unwrap();
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    rules.filter_map(|rule| Some(rule["alert"].as_str()?.to_owned())).collect()
}

/// `humanize` has SI prefixes: a request every two minutes is "8.333m requests a second".
#[test]
fn summaries_have_shares_counts_and_durations() {
    assert!(!read(RULES).contains("| humanize }}"));
}

/// The queries of the dashboard outside of its collapsed rows, which are for features that a service with Redis may not
/// have, and those of all rows, with their panels and with every variable set to all.
pub(super) fn dashboard_queries() -> [Vec<(String, String)>; 2] {
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/dashboard.json")).unwrap();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let of_panels = |panels: &[Value]| -> Vec<_> {
        let of_panel = |panel: &Value| {
            let targets = list(&panel["targets"]).into_iter();
            let query = |target: Value| target["expr"].as_str().unwrap().to_owned();
            targets.map(|target| (panel["title"].to_string(), query(target))).collect::<Vec<_>>()
        };
        panels.iter().flat_map(of_panel).collect()
    };
    let panels = list(&dashboard["panels"]);
    let shown = of_panels(&panels);
    let mut queries = shown.clone();
    for row in panels.iter().filter(|panel| panel["collapsed"] == true) {
        assert!(row["title"].as_str().unwrap().starts_with("Only with "), "{row}");
        queries.extend(of_panels(&list(&row["panels"])));
    }
    for variable in list(&dashboard["templating"]["list"]) {
        let asked = variable["query"]["query"].as_str();
        if let Some(asked) = asked.and_then(|text| text.strip_prefix("label_values(")?.strip_suffix(')')) {
            let (series, label) = asked.rsplit_once(", ").unwrap();
            queries.push((variable["name"].to_string(), format!("group by ({label}) ({series})")));
        }
    }
    for annotation in list(&dashboard["annotations"]["list"]) {
        queries.push((annotation["name"].to_string(), annotation["expr"].as_str().unwrap().to_owned()));
    }
    let chosen = |query: String| {
        let variables = ["$job", "$namespace", "$instance", "$domain"];
        let query = query.replace("$__rate_interval", "1m");
        variables.into_iter().fold(query, |query, variable| query.replace(variable, ".*"))
    };
    [shown, queries].map(|queries| queries.into_iter().map(|(place, query)| (place, chosen(query))).collect())
}
