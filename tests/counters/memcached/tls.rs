//! TLS to a real memcached: certificates of both sides, and the logs of failures.

use support::{certificates::Certificates, eventually, holds, memcached::setup, server::Setup};

use super::{Code, Memcached, RULES, code, one};

/// A memcached with TLS, which may require client certificates.
fn speaking(certificates: &Certificates, wants_ours: bool) -> Memcached {
    let file = |name: &str| certificates.path(name).display().to_string();
    let mut options = vec![
        format!("ssl_chain_cert={}", file("server.pem")),
        format!("ssl_key={}", file("server.key")),
        format!("ssl_ca_cert={}", file("ca.pem")),
    ];
    if wants_ours {
        options.push("ssl_verify_mode=2".to_owned());
    }
    Memcached::with(&["-Z", "-o", &options.join(",")])
}

fn trusting(memcached: &Memcached, certificates: &Certificates) -> Setup {
    let ca = certificates.path("ca.pem").display().to_string();
    let setup = setup(&memcached.address()).rules("d.yaml", RULES);
    setup.env("MEMCACHE_TLS", "true").env("MEMCACHE_TLS_CACERT", &ca).env("MEMCACHE_CONNECT_TIMEOUT", "1s")
}

fn showing(setup: Setup, certificates: &Certificates) -> Setup {
    let file = |name: &str| certificates.path(name).display().to_string();
    setup
        .env("MEMCACHE_TLS_CLIENT_CERT", &file("client.pem"))
        .env("MEMCACHE_TLS_CLIENT_KEY", &file("client.key"))
}

/// Counting fails, and the log has the reason.
fn logs(setup: Setup, texts: &[&str]) {
    let server = setup.start();
    assert!(server.ask(one("five", "v")).is_err());
    server.wait_for_log(texts);
    assert!(!server.is_healthy());
}

#[test]
fn counters_are_reached_over_tls() {
    let certificates = Certificates::for_host("127.0.0.1");
    let memcached = speaking(&certificates, false);
    let server = trusting(&memcached, &certificates).start_healthy();
    assert_eq!(code(&server.client(), "five", "v"), (Code::Ok, 4));
    assert_eq!(code(&server.client(), "five", "v"), (Code::Ok, 3));
}

#[test]
fn client_certificates_are_required_and_sent() {
    let certificates = Certificates::for_host("127.0.0.1");
    let memcached = speaking(&certificates, true);
    let setup = showing(trusting(&memcached, &certificates), &certificates).env("GRPC_WORKERS", "2");
    let server = setup.start_healthy();
    assert_eq!(code(&server.client(), "five", "v"), (Code::Ok, 4));
    // Every thread has a connection; later ones are accepted like the first.
    eventually("all connections are open", || {
        let open = server.metrics()["tollgate_memcached_connections_open"];
        holds(open > 1.5, || server.process.log())
    });
    let log = server.final_log();
    assert!(!log.contains("TLS"), "{log}");
    logs(trusting(&memcached, &certificates), &[&memcached.address()]);
}

#[test]
fn a_ca_file_replaces_the_system_cas_unless_both_are_trusted() {
    let certificates = Certificates::for_host("127.0.0.1");
    let memcached = speaking(&certificates, false);
    let system = certificates.path("ca.pem").display().to_string();
    let others = Certificates::for_host("127.0.0.1");
    let setup = trusting(&memcached, &others).env("SSL_CERT_FILE", &system);
    logs(setup.clone(), &[&memcached.address(), "MEMCACHE_TLS_CACERT"]);
    for setup in [setup.clone().env("TLS_TRUST_SYSTEM_CAS", "true"), setup.unset("MEMCACHE_TLS_CACERT")] {
        assert_eq!(code(&setup.start_healthy().client(), "five", "v").0, Code::Ok);
    }
}

#[test]
fn a_failed_handshake_is_logged_with_advice() {
    let certificates = Certificates::for_host("elsewhere.test");
    let memcached = speaking(&certificates, false);
    let address = memcached.address();
    let skip = "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION";
    logs(trusting(&memcached, &certificates), &[&address, skip]);
    let server = trusting(&memcached, &certificates).env(skip, "true").start_healthy();
    assert_eq!(code(&server.client(), "five", "v"), (Code::Ok, 4));
    let others = Certificates::for_host("elsewhere.test");
    logs(trusting(&memcached, &others).env(skip, "true"), &[&address, "MEMCACHE_TLS_CACERT"]);

    let plain = Memcached::single();
    logs(trusting(&plain, &certificates), &[&plain.address(), "unset MEMCACHE_TLS"]);
    let setup = setup(&address).rules("d.yaml", RULES).env("MEMCACHE_CONNECT_TIMEOUT", "1s");
    logs(setup, &[&address, "MEMCACHE_TLS=true"]);
}
