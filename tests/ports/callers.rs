//! Clients of the Go service, each the real program: grpc-go, the C core, the Python package `h2`,
//! `h2load` and Envoy, with any `:authority`.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use support::{
    bootstrap::{DOMAIN, Service, Wanted, always},
    client::request,
    control_plane::python,
    envoy::Envoy,
    raw::framed,
    server::{Server, Setup},
};

const RULES: &str = "
domain: edge
descriptors:
  - {key: k, rate_limit: {unit: year, requests_per_unit: 1000000}}
";

/// Istio's name for the cluster of the service, which its Envoys send as `:authority`.
const ISTIO: &str = "outbound|8081||ratelimit.default.svc.cluster.local";

/// A server on a unix socket, and the directory of the socket.
fn on_a_socket() -> (Server, PathBuf, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("service.sock");
    let setup = Setup::new().rules("d.yaml", RULES).env("GRPC_UDS", socket.to_str().unwrap());
    (setup.start(), socket, dir)
}

/// Standard output of a successful client.
fn output(command: &mut Command, input: &str) -> String {
    let client = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = client.spawn().unwrap_or_else(|error| {
        panic!("{}: {error}; tests/run installs it", command.get_program().display())
    });
    client.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = client.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn script(name: &str) -> Command {
    let mut command = Command::new(python());
    command.arg(format!("{}/tests/ports/callers/{name}", env!("CARGO_MANIFEST_DIR")));
    command
}

/// A program that `tests/run` builds from a Go module.
fn go_program(name: &str) -> Command {
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("target/go-tools").join(name))
}

#[test]
fn any_authority_is_accepted() {
    let long = "x".repeat(300);
    let authorities = json!([
        "localhost:8081",
        ISTIO,
        "%2Ftmp%2Fa.sock",
        "/tmp/a.sock",
        "a b",
        "",
        long,
        "ratelimit.ünï",
        "[::1",
        "@",
        null
    ]);
    let tcp = Server::start(RULES);
    let (_uds, socket, _dir) = on_a_socket();
    let message = hex(&framed(&request(DOMAIN, &[&[("k", "v")]])));
    for address in [format!("127.0.0.1:{}", tcp.ports.grpc), socket.display().to_string()] {
        let answers = output(script("authorities.py").args([&address, &message]), &authorities.to_string());
        let answers: Vec<Value> = serde_json::from_str(&answers).unwrap();
        let called: Vec<_> = authorities.as_array().unwrap().iter().zip(&answers).collect();
        assert!(called.iter().all(|(_, status)| **status == json!("0")), "{address}: {called:?}");
    }
}

#[test]
fn the_c_core_works_on_a_port_and_on_a_socket() {
    let tcp = Server::start(RULES);
    let (_uds, socket, _dir) = on_a_socket();
    for target in [format!("127.0.0.1:{}", tcp.ports.grpc), format!("unix:{}", socket.display())] {
        assert_eq!(
            output(script("c_core.py").args([&target, DOMAIN, "k", "v"]), "").trim(),
            "OK",
            "{target}"
        );
    }
}

#[test]
fn grpc_go_works_on_a_port_and_on_a_socket() {
    let tcp = Server::start(RULES);
    let (_uds, socket, _dir) = on_a_socket();
    let body = r#"{"domain": "edge", "descriptors": [{"entries": [{"key": "k", "value": "v"}]}]}"#;
    let method = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let port = format!("127.0.0.1:{}", tcp.ports.grpc);
    for address in [port, format!("unix:{}", socket.display())] {
        for authority in ["localhost", ISTIO] {
            let mut client = go_program("grpcurl");
            // It reads the schema by reflection first.
            client.args([
                "-plaintext",
                "-max-time",
                "20",
                "-authority",
                authority,
                "-d",
                body,
                &address,
                method,
            ]);
            let answer: Value = serde_json::from_str(&output(&mut client, "")).unwrap();
            assert_eq!(answer["overallCode"], "OK", "{address} {authority}");
        }
    }
}

#[test]
fn h2load_works() {
    let server = Server::start(RULES);
    let dir = tempfile::tempdir().unwrap();
    let body = dir.path().join("request");
    std::fs::write(&body, framed(&request(DOMAIN, &[&[("k", "v")]]))).unwrap();
    let mut client = Command::new("h2load");
    client.args([
        "-n",
        "2000",
        "-c",
        "4",
        "-m",
        "20",
        "-H",
        "content-type: application/grpc",
        "-H",
        "te: trailers",
    ]);
    client.arg("-d").arg(&body);
    client.arg(format!(
        "http://127.0.0.1:{}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        server.ports.grpc
    ));
    let report = output(&mut client, "");
    assert!(report.contains("2000 succeeded, 0 failed, 0 errored, 0 timeout"), "{report}");
    let counted = "ratelimit_service_rate_limit_total_hits{domain=\"edge\",key1=\"k\"}";
    assert_eq!(server.metrics().get(counted), Some(&2000.0));
}

#[test]
fn envoy_works_with_any_cluster_name() {
    let tcp = Server::start(RULES);
    let (_uds, socket, _dir) = on_a_socket();
    for service in [Service::Port(tcp.ports.grpc), Service::Socket(&socket)] {
        for cluster in [ISTIO, "a cluster / with %2F", "ratelimit_ünï"] {
            let wanted = Wanted { service, cluster, ..Wanted::of(&tcp, json!([always("k", "v")])) };
            let envoy = Envoy::start(&wanted);
            assert_eq!(envoy.statuses(3, &[]), [200; 3]);
            assert_eq!(envoy.stat("cluster.upstream.ratelimit.ok"), 3, "{cluster}");
            assert_eq!(envoy.stat("cluster.upstream.ratelimit.error"), 0, "{cluster}");
        }
    }
}

/// The response to its requests, which are not gRPC, has a body: without DATA it skips cases and fails others.
#[test]
fn every_case_of_h2spec_passes() {
    let server = Server::start(RULES);
    let mut h2spec = go_program("h2spec");
    h2spec.args(["--host", "127.0.0.1", "--port", &server.ports.grpc.to_string(), "--timeout", "5"]);
    // Its exit code is not zero if a case fails.
    let output = h2spec.output().expect("tests/run builds h2spec");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("145 tests, 145 passed, 0 skipped, 0 failed"), "{text}");
}
