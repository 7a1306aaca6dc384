//! Lost control planes, TLS, client certificates and headers.

use std::{fs, io::Write as _, net::TcpListener, path::PathBuf, thread};

use super::*;
use support::{
    grpc_tls::{Authority, Files, TlsClient},
    redis::{self, Redis},
};

#[test]
fn a_lost_control_plane_changes_nothing_and_may_return_with_an_older_version() {
    let (control_plane, server) = subscribed("7", &[limit("a", "d", "k", 5)]);
    control_plane.acknowledged("7");
    let address = control_plane.address.clone();
    drop(control_plane);
    wait_for_sample(&server, "tollgate_xds_connected", |connected| connected < 0.5);
    assert!(server.ask(request("d", &[&[("k", "v")]])).is_ok());
    assert_eq!(server.rules_shown(), [shown("d", "k", 5)]);

    let back = ControlPlane::start_at(&address, &[]);
    let begin = back.event("request")["request"].take();
    assert_eq!((&begin["version_info"], &begin["response_nonce"]), (&Value::Null, &Value::Null));
    back.publish("3", &[limit("a", "d", "k", 6)]);
    wait_for(&server, &[shown("d", "k", 6)]);
    assert_eq!(back.acknowledged("3")["response_nonce"], "n1");
    wait_for_sample(&server, "tollgate_xds_connected", |connected| connected > 0.5);
    assert!(sample(&server, "tollgate_xds_reconnects_total") >= Some(1.0));
    // An error is logged once, not at each attempt.
    let log = server.final_log();
    assert!(log.lines().filter(|line| line.contains("cannot connect")).count() <= 1, "{log}");
}

#[test]
fn a_closed_stream_is_opened_again() {
    let (control_plane, server) = subscribed("1", &[limit("a", "d", "k", 5)]);
    control_plane.acknowledged("1");
    control_plane.hang_up();
    control_plane.event("ended");
    control_plane.acknowledged("1");
    control_plane.publish("2", &[limit("a", "d", "k", 6)]);
    wait_for(&server, &[shown("d", "k", 6)]);
    assert_eq!(sample(&server, "ratelimit_service_config_load_success"), Some(2.0));
}

#[test]
fn a_server_that_is_not_a_control_plane_is_retried() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            // The client may have closed the connection.
            let _ = stream.and_then(|mut stream| stream.write_all(b"220 mail.example ESMTP\r\n"));
        }
    });
    let server = setup(&address).env("FORCE_START_WITHOUT_INITIAL_CONFIG", "true").start();
    server.wait_for_log(&[&format!("the control plane {address}: stream error")]);
    wait_for_sample(&server, "tollgate_xds_reconnects_total", |reconnects| reconnects > 3.0);
    assert_eq!(http::get(server.ports.http, "/healthcheck").status, 200);
    let log = server.final_log();
    assert!(log.lines().filter(|line| line.contains("stream error")).count() <= 8, "{log}");
}

#[test]
fn headers_and_metadata_are_sent_and_no_secret_is_logged() {
    let control_plane = ControlPlane::start();
    control_plane.publish("1", &[limit("a", "d", "k", 5)]);
    let server = setup(&control_plane.address)
        .env(
            "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
            "X-Team:red,authorization:Bearer s3cret,raw-bin:xyz",
        )
        .env("CONFIG_GRPC_XDS_NODE_METADATA", "zone=z1,rack=r=7")
        .env("LOG_LEVEL", "debug")
        .start();
    let headers = control_plane.event("stream")["headers"].take();
    assert_eq!(headers["x-team"], "red");
    assert_eq!(headers["authorization"], "Bearer s3cret");
    assert_eq!(headers["raw-bin"], "78797a");
    let node = control_plane.event("request")["request"]["node"].take();
    assert_eq!(node["metadata"], json!({"zone": "z1", "rack": "r=7"}));
    assert_eq!(node["user_agent_name"], "tollgate");
    assert!(!server.final_log().contains("s3cret"));
}

#[test]
fn connects_to_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", dir.path().join("xds.sock").display());
    let control_plane = ControlPlane::start_at(&address, &[]);
    control_plane.publish("1", &[limit("a", "d", "k", 5)]);
    assert_eq!(setup(&address).start().rules_shown(), [shown("d", "k", 5)]);
}

/// The TLS files of both sides. The service has one certificate, as in Envoy Gateway's Secret, for its port and for the
/// control plane.
struct Secured {
    files: Files,
    authority: Authority,
}

impl Secured {
    fn new(server_name: &str) -> Self {
        let secured = Self { files: Files::empty(), authority: Authority::new("the authority") };
        secured.files.put("ca.crt", &secured.authority.pem());
        secured.files.put_pair("plane", &secured.authority.sign(&[server_name]));
        secured.files.put_pair("tls", &secured.authority.server());
        secured
    }

    fn path(&self, name: &str) -> String {
        self.files.path(name).display().to_string()
    }

    /// A control plane with TLS, which may require a client certificate.
    fn control_plane(&self, requires_certificate: bool) -> ControlPlane {
        let address = format!("localhost:{}", free_port());
        let control_plane = self.control_plane_at(&address, requires_certificate);
        control_plane.publish("1", &[limit("a", "d", "k", 5)]);
        control_plane
    }

    fn control_plane_at(&self, address: &str, requires_certificate: bool) -> ControlPlane {
        let files = ["plane.crt", "plane.key", "ca.crt"].map(|name| self.files.path(name));
        let files: Vec<_> = files.iter().map(PathBuf::as_path).collect();
        ControlPlane::start_at(address, if requires_certificate { &files } else { &files[..2] })
    }

    fn setup(&self, control_plane: &ControlPlane) -> Setup {
        setup(&control_plane.address)
            .env("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true")
            .env("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &self.path("ca.crt"))
            .env("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")
    }

    /// Trusts another CA by its file, and the test's CA as a system CA.
    fn trusting_others(&self, control_plane: &ControlPlane) -> Setup {
        let others = self.files.put("others.crt", &Authority::new("others").pem());
        self.setup(control_plane)
            .env("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", others.to_str().unwrap())
            .env("SSL_CERT_FILE", &self.path("ca.crt"))
    }

    /// The settings of Envoy Gateway, with other hosts, ports and certificate directory.
    fn envoy_gateway(&self, control_plane: &ControlPlane, redis: &Redis) -> Setup {
        let [certificate, key, authority] = ["tls.crt", "tls.key", "ca.crt"].map(|name| self.path(name));
        [
            ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &certificate),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &key),
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", &certificate),
            ("GRPC_SERVER_TLS_KEY", &key),
            ("GRPC_SERVER_TLS_CA_CERT", &authority),
            ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml"),
            ("RUNTIME_IGNOREDOTFILES", "true"),
        ]
        .iter()
        .fold(self.setup(control_plane), |setup, (name, value)| setup.env(name, value))
        .redis(&redis::tcp(&format!("localhost:{}", redis.port)))
    }

    /// Replaces all files by those of a new CA.
    fn renew(&self) -> Self {
        let renewed = Self::new("localhost");
        for name in ["ca.crt", "tls.crt", "tls.key"] {
            self.files.put(name, &fs::read_to_string(renewed.path(name)).unwrap());
        }
        renewed
    }
}

#[test]
fn the_control_plane_must_have_a_certificate_of_the_ca() {
    let secured = Secured::new("localhost");
    let control_plane = secured.control_plane(false);
    let server = secured.setup(&control_plane).start();
    wait_for(&server, &[shown("d", "k", 5)]);

    let others = Secured::new("localhost");
    let server = others.setup(&control_plane).start();
    server.wait_for_log(&["the file of CONFIG_GRPC_XDS_SERVER_TLS_CACERT must contain the"]);
    assert_eq!(server.rules_shown(), [""; 0]);
}

#[test]
fn system_cas_are_trusted_beside_a_file_only_if_enabled() {
    let secured = Secured::new("localhost");
    let control_plane = secured.control_plane(false);
    let server = secured.trusting_others(&control_plane).start();
    server.wait_for_log(&["CONFIG_GRPC_XDS_SERVER_TLS_CACERT"]);
    assert!(server.rules_shown().is_empty());
    let server = secured.trusting_others(&control_plane).env("TLS_TRUST_SYSTEM_CAS", "true").start();
    server.wait_for_rule("d.k");
}

#[test]
fn the_expected_name_can_be_set() {
    let secured = Secured::new("control.plane");
    let control_plane = secured.control_plane(false);
    let server = secured.setup(&control_plane).start();
    server.wait_for_log(&["set CONFIG_GRPC_XDS_SERVER_TLS_SAN to a name"]);
    let named = secured.setup(&control_plane).env("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "control.plane").start();
    wait_for(&named, &[shown("d", "k", 5)]);
}

#[test]
fn the_log_names_the_variable_if_only_one_side_uses_tls() {
    let secured = Secured::new("localhost");
    let plain = ControlPlane::start_at(&format!("localhost:{}", free_port()), &[]);
    let server = secured.setup(&plain).start();
    server.wait_for_log(&["unset CONFIG_GRPC_XDS_SERVER_USE_TLS"]);
    let control_plane = secured.control_plane(false);
    let server = setup(&control_plane.address).env("FORCE_START_WITHOUT_INITIAL_CONFIG", "true").start();
    server.wait_for_log(&["if the port expects TLS, set CONFIG_GRPC_XDS_SERVER_USE_TLS=true"]);
}

#[test]
fn names_the_variable_when_a_control_plane_requires_a_certificate() {
    let secured = Secured::new("localhost");
    let control_plane = secured.control_plane(true);
    let server = secured.setup(&control_plane).start();
    server.wait_for_log(&["if it requires a client certificate, set CONFIG_GRPC_XDS_CLIENT_TLS_CERT"]);
    assert_eq!(server.rules_shown(), [""; 0], "no client certificate");
}

/// The literal names, ports and paths are those of the pod in `deploy/gateway.rs`.
#[test]
fn works_with_the_environment_of_envoy_gateway_and_rotated_certificates() {
    let redis = Redis::single();
    let secured = Secured::new("localhost");
    let control_plane = secured.control_plane(true);
    let server = secured.envoy_gateway(&control_plane, &redis).start_healthy();
    wait_for(&server, &[shown("d", "k", 5)]);
    assert_eq!(control_plane.event("stream")["stream"], "sotw");
    assert_eq!(control_plane.event("request")["request"]["node"]["id"], "envoy-ratelimit");
    let client = TlsClient::new(&[&secured.authority], None);
    client.ask(server.ports.grpc).expect("a client without a certificate is served");

    let address = control_plane.address.clone();
    drop(control_plane);
    let renewed = secured.renew();
    let back = renewed.control_plane_at(&address, true);
    back.publish("1", &[limit("a", "d", "k", 6)]);
    wait_for(&server, &[shown("d", "k", 6)]);
    let client = TlsClient::new(&[&renewed.authority], None);
    eventually("the new certificate is served", || client.ask(server.ports.grpc));
}
