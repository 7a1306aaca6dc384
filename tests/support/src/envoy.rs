//! Starts the real Envoy.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;
use tempfile::TempDir;

use super::{
    bootstrap::{Wanted, bootstrap},
    eventually, holds, http,
    ports::free_port,
    process::Process,
    upstream::Upstream,
};

/// A running Envoy; killed when dropped.
pub struct Envoy {
    pub upstream: Upstream,
    process: Process,
    admin: u16,
    pub listener: u16,
    dir: TempDir,
}

impl Envoy {
    /// Starts Envoy and waits until it is ready.
    pub fn start(wanted: &Wanted<'_>) -> Self {
        Self::with(|ports, upstream, access_log| bootstrap(wanted, ports, upstream, access_log).to_string())
    }

    /// Starts Envoy with a configuration for these ports, of the admin page and of the listener, and this upstream.
    pub fn with(config: impl FnOnce([u16; 2], &Upstream, &Path) -> String) -> Self {
        let dir =
            tempfile::Builder::new().prefix("tollgate-envoy-").tempdir().expect("cannot create a directory");
        let (admin, listener, upstream) = (free_port(), free_port(), Upstream::start());
        let config = config([admin, listener], &upstream, &access_log(dir.path()));
        // JSON is YAML too.
        let config_file = dir.path().join("envoy.yaml");
        fs::write(&config_file, config).expect("cannot write the configuration");
        let mut command = Command::new(binary());
        // Without hot restart, several Envoys share no memory and need no ids.
        command.args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]);
        command.args(["--file-flush-interval-msec", "50", "-c"]).arg(config_file).current_dir(dir.path());
        let process = Process::start(command, &dir.path().join("log"));
        let mut envoy = Self { upstream, process, admin, listener, dir };
        envoy.wait_until_ready();
        envoy
    }

    /// `GET /` through Envoy with these headers.
    pub fn get(&self, headers: &[(&str, &str)]) -> http::Answer {
        self.send("GET", "/", headers)
    }

    /// The status of `GET /` with any bytes in a header; `None` if Envoy closes the connection.
    pub fn status_of(&self, name: &str, value: &[u8]) -> Option<u16> {
        let answer = http::send_bytes(self.listener, "GET", "/", &[(name, value)], b"");
        answer.ok().map(|answer| answer.status)
    }

    /// The file of its configuration.
    pub fn config(&self) -> PathBuf {
        self.dir.path().join("envoy.yaml")
    }

    /// A request through Envoy.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> http::Answer {
        http::send(self.listener, method, path, headers, b"")
            .unwrap_or_else(|error| panic!("Envoy did not answer: {error}\n{}", self.process.log()))
    }

    /// The configuration that it runs, as its admin page dumps it.
    pub fn config_dump(&self) -> String {
        http::get(self.admin, "/config_dump").text()
    }

    /// The statuses of `count` consecutive requests.
    pub fn statuses(&self, count: usize, headers: &[(&str, &str)]) -> Vec<u16> {
        (0..count).map(|_| self.get(headers).status).collect()
    }

    /// An Envoy counter.
    pub fn stat(&self, name: &str) -> u64 {
        let page = http::get(self.admin, &format!("/stats?filter=^{name}$")).text();
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Waits until the access log has this many lines, and reads them: the dynamic metadata of each request from the rate
    /// limit service.
    pub fn logged_metadata(&self, lines: usize) -> Vec<Value> {
        eventually("the access log is written", || {
            let log = fs::read_to_string(access_log(self.dir.path())).unwrap_or_default();
            holds(log.lines().count() >= lines, || format!("{log:?}"))?;
            // A request without dynamic metadata has the line `-`.
            Ok(log.lines().map(|line| serde_json::from_str(line).unwrap_or(Value::Null)).collect())
        })
    }

    fn wait_until_ready(&mut self) {
        eventually("Envoy is ready", || {
            if let Some(status) = self.process.exited() {
                panic!("Envoy ended with {status}:\n{}", self.process.log());
            }
            let answer =
                http::send(self.admin, "GET", "/ready", &[], b"").map_err(|error| error.to_string())?;
            holds(answer.status == 200, || format!("/ready answers {}: {}", answer.status, answer.text()))
        });
    }
}

fn access_log(dir: &Path) -> PathBuf {
    dir.join("access.log")
}

/// `$ENVOY_BIN`, or the Envoy that `tests/run` puts into the build directory.
pub fn binary() -> PathBuf {
    let fetched = Path::new(crate::ROOT).join("target/envoy/envoy");
    let path = env::var_os("ENVOY_BIN").map_or(fetched, PathBuf::from);
    assert!(
        path.is_file(),
        "no Envoy at {}: run `tests/run`, which fetches it, or set ENVOY_BIN to the path of one",
        path.display()
    );
    path
}
