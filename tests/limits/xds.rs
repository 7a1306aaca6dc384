//! Rules from an independent control plane: `xds-protos` on grpcio, in `xds/control_plane.py`.

use serde_json::{Value, json};

use support::{
    client::request,
    control_plane::ControlPlane,
    eventually, holds, http,
    ports::free_port,
    server::{Server, Setup},
};

// Connections: certificates, headers, lost control planes.
mod connections;
// Starts with and without a control plane.
mod start;
// Accepted and rejected updates.
mod updates;

/// A control plane as source of the rules, with short pauses.
pub(super) fn setup(server_url: &str) -> Setup {
    [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", server_url),
        ("CONFIG_GRPC_XDS_NODE_ID", "tests"),
        ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "50ms"),
        ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "50ms"),
        ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "100ms"),
        ("LOG_LEVEL", "info"),
    ]
    .iter()
    .fold(Setup::new(), |setup, (name, value)| setup.env(name, value))
}

/// A service and a control plane that publishes `version` of `resources`.
fn subscribed(version: &str, resources: &[Value]) -> (ControlPlane, Server) {
    let control_plane = ControlPlane::start();
    control_plane.publish(version, resources);
    let server = setup(&control_plane.address).start();
    (control_plane, server)
}

/// A resource with a limit for the key, in requests per hour.
fn limit(name: &str, domain: &str, key: &str, requests: u32) -> Value {
    let rate_limit = json!({"unit": "HOUR", "requests_per_unit": requests});
    json!({"config": {"name": name, "domain": domain, "descriptors": [{"key": key, "rate_limit": rate_limit}]}})
}

/// The line of that limit in `/rlconfig`.
fn shown(domain: &str, key: &str, requests: u32) -> String {
    format!("{domain}.{key}: unit=HOUR requests_per_unit={requests}, shadow_mode: false, quota_mode: false")
}

/// Waits until `/rlconfig` has exactly these lines.
fn wait_for(server: &Server, lines: &[String]) {
    eventually("these rules are served", || {
        let seen = server.rules_shown();
        holds(seen == lines, || format!("{seen:?} instead of {lines:?}\n{}", server.process.log()))
    });
}

/// A sample of the metrics.
fn sample(server: &Server, name: &str) -> Option<f64> {
    server.metrics().get(name).copied()
}

/// Waits until a metric is as expected.
fn wait_for_sample(server: &Server, name: &str, expected: impl Fn(f64) -> bool) {
    eventually(name, || {
        let seen = sample(server, name);
        holds(seen.is_some_and(&expected), || format!("{seen:?}\n{}", server.process.log()))
    });
}
