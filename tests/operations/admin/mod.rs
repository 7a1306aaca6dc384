//! The admin API, its commands, and the decision log.

mod access;
mod api;
mod commands;
mod decision_log;
mod described;
mod shadow;
mod strangers;
mod trial;
mod why;

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    process::{Command, Output, Stdio},
};

use proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use serde_json::Value;

use support::{
    PATIENCE,
    client::request,
    http,
    ports::free_port,
    server::{BINARY, Server, Setup},
};

pub(crate) const RULES: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: path
    value: /cart
    rate_limit: {unit: minute, requests_per_unit: 100}
  - key: free
    rate_limit: {unlimited: true}
";

/// A service with an admin port.
pub(crate) struct Admin {
    pub(crate) server: Server,
    pub(crate) port: u16,
}

/// Settings with an admin port.
pub(crate) fn setup() -> (Setup, u16) {
    let port = free_port();
    let setup = Setup::new().rules("shop.yaml", RULES).env("ADMIN_ADDR", &format!("127.0.0.1:{port}"));
    (setup, port)
}

impl Admin {
    pub(crate) fn start() -> Self {
        let (setup, port) = setup();
        Self { server: setup.start(), port }
    }

    /// `GET` of a call that succeeds.
    pub(crate) fn get(&self, path: &str) -> Value {
        let answer = http::get(self.port, path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    }

    /// Sends requests with this user, and returns the number of refused ones.
    pub(crate) fn ask(&self, user: &str, times: usize) -> usize {
        let client = self.server.client();
        let is_refused = |_: &usize| {
            let response = client.ask(request("shop", &[&[("user", user)]])).unwrap();
            response.overall_code() == Code::OverLimit
        };
        (0..times).filter(is_refused).count()
    }

    /// A command on this service.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        let address = format!("127.0.0.1:{}", self.port);
        tollgate(&[args, &["--admin", &address]].concat(), &[])
    }
}

/// A command.
pub(crate) fn tollgate(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(BINARY);
    command.args(args).env_remove("ADMIN_TOKEN_FILE").envs(variables.iter().copied());
    command.stdin(Stdio::null()).output().unwrap()
}

/// The status and the text of the response to a request with these lines.
pub(crate) fn raw(port: u16, lines: &[&str]) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("{}\r\nconnection: close\r\n\r\n", lines.join("\r\n")).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.get(9..12).and_then(|status| status.parse().ok()).unwrap_or_default();
    (status, answer)
}
