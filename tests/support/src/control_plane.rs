//! An independent control plane: starts `tests/limits/xds/control_plane.py`, sends it the resources to publish, and reads its
//! events.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Mutex, mpsc},
    thread,
};

use serde_json::{Value, json};

use super::{PATIENCE, ports::free_port};

/// The program.
pub const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../limits/xds/control_plane.py");

/// A running control plane; killed when dropped.
pub struct ControlPlane {
    /// The address for `CONFIG_GRPC_XDS_SERVER_URL`.
    pub address: String,
    child: Child,
    commands: Mutex<ChildStdin>,
    events: Mutex<mpsc::Receiver<Value>>,
}

impl ControlPlane {
    pub fn start() -> Self {
        Self::start_at(&format!("127.0.0.1:{}", free_port()), &[])
    }

    /// Starts one at an address, with TLS if there are files: a certificate, its key, and the CA of clients.
    pub fn start_at(address: &str, files: &[&Path]) -> Self {
        let mut child = Command::new(python())
            .arg(SCRIPT)
            .arg(address)
            .args(files)
            // Else it logs each failed handshake, some of which are expected.
            .env("GRPC_VERBOSITY", "NONE")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let commands = Mutex::new(child.stdin.take().unwrap());
        let (sender, events) = mpsc::channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                // The receiver may be dropped.
                let _ = sender.send(serde_json::from_str(&line).unwrap());
            }
        });
        let started = Self { address: address.to_owned(), child, commands, events: Mutex::new(events) };
        started.event("listening");
        started
    }

    /// Publishes these resources.
    pub fn publish(&self, version: &str, resources: &[Value]) {
        self.publish_response(&json!({"version": version, "resources": resources}));
    }

    /// Publishes a response with other fields.
    pub fn publish_response(&self, response: &Value) {
        self.command(&json!({"set": response}));
    }

    /// Ends every stream.
    pub fn hang_up(&self) {
        self.command(&json!({"hang_up": true}));
    }

    fn command(&self, command: &Value) {
        writeln!(self.commands.lock().unwrap(), "{command}").unwrap();
    }

    /// The next event with this field; skips others.
    pub fn event(&self, field: &str) -> Value {
        let events = self.events.lock().unwrap();
        loop {
            let event = events.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no event {field}"));
            if !event[field].is_null() {
                return event;
            }
        }
    }

    /// The next request that answers a response.
    pub fn answer(&self) -> Value {
        loop {
            let request = self.event("request")["request"].take();
            if !request["response_nonce"].is_null() {
                return request;
            }
        }
    }

    /// The next request that accepts a version; skips others.
    pub fn acknowledged(&self, version: &str) -> Value {
        loop {
            let answer = self.answer();
            if answer["error_detail"].is_null() && answer["version_info"] == version {
                return answer;
            }
        }
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The Python with its packages.
pub fn python() -> PathBuf {
    let path = Path::new(crate::ROOT).join("target/control-plane/bin/python");
    assert!(path.exists(), "no control plane at {}: run `tests/run`, which installs it", path.display());
    path
}
