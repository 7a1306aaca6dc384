//! A control plane that is not ours: starts `tests/xds/control_plane.py`, passes it what to publish, and reads
//! what it saw.

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
pub(crate) const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/xds/control_plane.py");

/// A running control plane. It is killed when this is dropped.
pub(crate) struct ControlPlane {
    /// Where it is, as `CONFIG_GRPC_XDS_SERVER_URL` takes it.
    pub(crate) address: String,
    child: Child,
    commands: Mutex<ChildStdin>,
    events: Mutex<mpsc::Receiver<Value>>,
}

impl ControlPlane {
    pub(crate) fn start() -> Self {
        Self::start_at(&format!("127.0.0.1:{}", free_port()), &[])
    }

    /// Starts one at an address, over TLS if there are files: a certificate, its key, who may sign clients'.
    pub(crate) fn start_at(address: &str, files: &[&Path]) -> Self {
        let mut child = Command::new(python())
            .arg(SCRIPT)
            .arg(address)
            .args(files)
            // It would log each handshake that fails, and some are meant to.
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
                // Whoever listened may be gone.
                let _ = sender.send(serde_json::from_str(&line).unwrap());
            }
        });
        let started = Self { address: address.to_owned(), child, commands, events: Mutex::new(events) };
        started.event("listening");
        started
    }

    /// Publishes these resources from now on.
    pub(crate) fn publish(&self, version: &str, resources: &[Value]) {
        self.publish_response(&json!({"version": version, "resources": resources}));
    }

    /// The same, with whatever else a response is to have.
    pub(crate) fn publish_response(&self, response: &Value) {
        self.command(&json!({"set": response}));
    }

    /// Ends every stream.
    pub(crate) fn hang_up(&self) {
        self.command(&json!({"hang_up": true}));
    }

    fn command(&self, command: &Value) {
        writeln!(self.commands.lock().unwrap(), "{command}").unwrap();
    }

    /// The next event that has this field, passing over others.
    pub(crate) fn event(&self, field: &str) -> Value {
        let events = self.events.lock().unwrap();
        loop {
            let event = events.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no {field} was seen"));
            if !event[field].is_null() {
                return event;
            }
        }
    }

    /// The next request that answers a response.
    pub(crate) fn answer(&self) -> Value {
        loop {
            let request = self.event("request")["request"].take();
            if !request["response_nonce"].is_null() {
                return request;
            }
        }
    }

    /// The next request that accepts a version, passing over others.
    pub(crate) fn acknowledged(&self, version: &str) -> Value {
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
        // It may have ended by itself in the meantime.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The Python that has what it needs.
pub(crate) fn python() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/control-plane/bin/python");
    assert!(path.exists(), "no control plane at {}: run `tests/run`, which fetches one", path.display());
    path
}
