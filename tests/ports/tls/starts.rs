//! Failed starts, and certificates of other tools.

use std::process::Command;

use super::RULES;
use support::{
    PATIENCE,
    grpc_tls::{Authority, Files, s_client},
    server::Setup,
};

/// The output of a service that does not start.
fn refusal(setup: Setup) -> String {
    let mut server = setup.launch();
    let status = server.process.wait(PATIENCE).expect("it exits");
    assert!(!status.success());
    server.process.final_log()
}

#[test]
fn missing_tls_files_fail_before_a_port_is_bound() {
    let log = refusal(Setup::new().env("GRPC_SERVER_USE_TLS", "true").env("GRPC_CLIENT_TLS_SAN", "x.test"));
    assert!(log.contains("GRPC_SERVER_TLS_CERT") && log.contains("GRPC_SERVER_TLS_KEY"), "{log}");
}

#[test]
fn serves_certificates_made_by_openssl() {
    let files = Files::empty();
    let run = |args: &[&str]| {
        let output = Command::new("openssl").args(args).current_dir(files.dir()).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let subject = ["-subj", "/CN=localhost"];
    let request = |key: &[&str]| {
        run(&[&["req", "-new", "-nodes", "-keyout", "tls.key", "-out", "tls.csr"], key, &subject].concat());
    };
    let keys: [&[&str]; 3] = [
        &["-newkey", "rsa:2048"],
        &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"],
        &["-newkey", "ed25519"],
    ];
    for key in keys {
        request(key);
        // Without extensions this is an X.509 version 1 certificate.
        run(&["x509", "-req", "-in", "tls.csr", "-signkey", "tls.key", "-out", "tls.crt", "-days", "2"]);
        let setup = files.setup().rules("d.yaml", RULES);
        let server =
            setup.env("GRPC_MAX_CONNECTION_AGE", "1s").env("GRPC_MAX_CONNECTION_AGE_GRACE", "1s").start();
        let said = s_client(server.ports.grpc, &[]);
        assert!(said.contains("ALPN protocol: h2"), "{key:?}: {said}");
    }
    request(keys[0]);
    run(&["rsa", "-in", "tls.key", "-traditional", "-out", "traditional.key"]);
    std::fs::rename(files.path("traditional.key"), files.path("tls.key")).unwrap();
    run(&["x509", "-req", "-in", "tls.csr", "-signkey", "tls.key", "-out", "tls.crt", "-days", "2"]);
    files.setup().start();
}

#[test]
fn an_unused_name_logs_a_warning() {
    let files = Files::new(&Authority::new("ours").server());
    let server = files.setup().env("GRPC_CLIENT_TLS_SAN", "envoy.test").start();
    server.wait_for_log(&["GRPC_CLIENT_TLS_SAN: has no effect without GRPC_CLIENT_TLS_CACERT"]);
}
