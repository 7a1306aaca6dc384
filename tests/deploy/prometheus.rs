//! The real Prometheus, scraping services under test twice a second.

use std::{collections::BTreeMap, fmt::Write as _, fs, process::Command};

use serde_json::{Value, json};
use tempfile::TempDir;

use support::{eventually, holds, http, ports::free_port, process::Process};

/// The job of the Envoy.
const ENVOY: &str = "envoy";

/// A running Prometheus. It is killed when this is dropped.
pub(super) struct Prometheus {
    port: u16,
    process: Process,
    _dir: TempDir,
}

impl Prometheus {
    /// Starts a Prometheus that scrapes the ports of these jobs and an Envoy, and evaluates these rules.
    pub(super) fn start(jobs: &[(&str, Vec<u16>)], envoy: u16, rules: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("tollgate-prometheus-").tempdir().unwrap();
        let scraped = |(job, ports): &(&str, Vec<u16>)| {
            let targets: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
            let path = if *job == ENVOY { "/stats/prometheus" } else { "/metrics" };
            json!({"job_name": job, "metrics_path": path, "static_configs": [{"targets": targets}]})
        };
        let envoy = (ENVOY, vec![envoy]);
        // JSON is YAML too.
        let config = json!({
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": jobs.iter().chain([&envoy]).map(scraped).collect::<Vec<_>>(),
        });
        fs::write(dir.path().join("prometheus.yaml"), config.to_string()).unwrap();
        fs::write(dir.path().join("rules.yaml"), rules).unwrap();
        let port = free_port();
        let mut command = Command::new("prometheus");
        command.current_dir(dir.path()).args(["--config.file=prometheus.yaml", "--storage.tsdb.path=data"]);
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let mut process = Process::start(command, &dir.path().join("log"));
        eventually("Prometheus is ready", || {
            if let Some(status) = process.exited() {
                panic!("Prometheus ended with {status}:\n{}", process.log());
            }
            let answer = http::send(port, "GET", "/-/ready", &[], b"").map_err(|error| error.to_string())?;
            holds(answer.status == 200, || answer.text())
        });
        Self { port, process, _dir: dir }
    }

    /// The current samples of an expression, with labels and value.
    pub(super) fn query(&self, expression: &str) -> Vec<(Value, f64)> {
        let form = [("content-type", "application/x-www-form-urlencoded")];
        let body = format!("query={}", encoded(expression));
        let answer = http::send(self.port, "POST", "/api/v1/query", &form, body.as_bytes())
            .unwrap_or_else(|error| panic!("{expression}: {error}\n{}", self.process.log()));
        assert_eq!(answer.status, 200, "{expression}: {}", answer.text());
        let samples = answer.json()["data"]["result"].as_array().unwrap().clone();
        let value = |sample: &Value| sample["value"][1].as_str().unwrap().parse().unwrap();
        samples.iter().map(|sample| (sample["metric"].clone(), value(sample))).collect()
    }

    /// The firing alerts by name, with their annotations.
    pub(super) fn firing(&self) -> BTreeMap<String, Vec<Value>> {
        let mut firing = BTreeMap::<_, Vec<_>>::new();
        let answer = http::get(self.port, "/api/v1/alerts").json();
        for alert in answer["data"]["alerts"].as_array().unwrap() {
            if alert["state"] == "firing" {
                let name = alert["labels"]["alertname"].as_str().unwrap().to_owned();
                firing.entry(name).or_default().push(alert["annotations"].clone());
            }
        }
        firing
    }
}

/// A form-encoded value.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        // Writing to a String cannot fail.
        let _ = if byte.is_ascii_alphanumeric() {
            write!(encoded, "{}", char::from(byte))
        } else {
            write!(encoded, "%{byte:02X}")
        };
        encoded
    })
}
