//! The Envoy of `deploy/envoy.yaml`, and a load through it.

use std::{
    fs,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use support::{envoy::binary, eventually, holds, http, ports::free_port, process::Process};

use super::read;

/// That Envoy, on its own ports.
pub(super) struct Front {
    /// Serves Envoy's own metrics.
    pub(super) metrics: u16,
    listener: u16,
    process: Process,
    _dir: tempfile::TempDir,
}

impl Front {
    pub(super) fn start(service: u16) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let [admin, metrics, listener, upstream] = [(); 4].map(|()| free_port());
        let own = [
            ("address: 127.0.0.1, port_value: 9901", admin),
            ("address: 0.0.0.0, port_value: 9902", metrics),
            ("address: 0.0.0.0, port_value: 10000", listener),
            ("address: 127.0.0.1, port_value: 10001", upstream),
            ("address: tollgate, port_value: 8081", service),
        ];
        // A busy test machine may miss the 20 ms.
        let config = replaced(&read("deploy/envoy.yaml"), "timeout: 0.02s", "timeout: 1s");
        let config = own.iter().fold(config, |config, (place, port)| {
            replaced(&config, place, &format!("address: 127.0.0.1, port_value: {port}"))
        });
        fs::write(dir.path().join("envoy.yaml"), config).unwrap();
        let mut command = Command::new(binary());
        command.args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]);
        command.args(["-c", "envoy.yaml"]).current_dir(dir.path());
        let process = Process::start(command, &dir.path().join("log"));
        let front = Self { metrics, listener, process, _dir: dir };
        eventually("Envoy forwards", || {
            let answer = front.ask(&[]).map_err(|error| format!("{error}\n{}", front.process.log()))?;
            holds(answer.status == 200, || answer.text())
        });
        front
    }

    pub(super) fn ask(&self, headers: &[(&str, &str)]) -> std::io::Result<http::Answer> {
        http::send(self.listener, "GET", "/", headers, b"")
    }

    /// Sends requests of two clients in turn until it is stopped. Prometheus shows the outcomes.
    pub(super) fn ask_until(&self, over: &AtomicBool) {
        for client in ["alice", "partner"].iter().cycle() {
            if over.load(Ordering::Relaxed) {
                return;
            }
            let _ = self.ask(&[("x-client-id", client)]);
            thread::sleep(Duration::from_millis(30));
        }
    }
}

/// The text with every `from` replaced; there must be one.
fn replaced(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "no {from:?} in the configuration");
    text.replace(from, to)
}
