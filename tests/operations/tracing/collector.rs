//! Collectors that are unreachable, slow or reject spans, and TLS to them.

use std::{sync::Arc, time::Duration};

use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
        server::WebPkiClientVerifier,
    },
};

use super::{ask, longest_of_a_hundred, setup};
use support::{
    at_best_within,
    certificates::Certificates,
    client::request,
    eventually, holds,
    ports::free_port,
    receiver::{Manner, Receiver},
    server::{Server, Setup},
};

/// Waits until this many spans were dropped for this reason.
fn wait_for_dropped(server: &Server, reason: &str, count: f64) {
    eventually("spans are dropped", || {
        let dropped = server.metrics()[&format!("tollgate_spans_dropped_total{{reason=\"{reason}\"}}")];
        holds(dropped >= count, || format!("{dropped} for {reason}\n{}", server.process.log()))
    });
}

/// None of a hundred requests waits for the collector, in one attempt of several: the machine may be busy.
fn delays_no_request(server: &Server) {
    at_best_within("the longest of a hundred", Duration::from_millis(500), 5, || {
        longest_of_a_hundred(server)
    });
}

#[test]
fn an_unreachable_collector_costs_spans_alone() {
    let port = free_port();
    let mut server = setup("http", port).env("OTEL_BSP_MAX_QUEUE_SIZE", "10").start();
    delays_no_request(&server);
    wait_for_dropped(&server, "queue_full", 50.0);
    server.wait_for_log(&[&format!("http://127.0.0.1:{port}"), "refused"]);

    // The queued spans are sent once the collector is reachable.
    let receiver = Receiver::on(port, false, None);
    receiver.wait_for(10);
    let before = receiver.spans().len();
    ask(&server, &request("d", &[&[("user", "ann")]]), &[]);
    receiver.wait_for(before + 1);
    let log = server.process.final_log();
    assert!(log.matches("tracing:").count() <= 2, "{log}");
}

#[test]
fn a_silent_collector_delays_no_request_and_shutdown_by_seconds() {
    for protocol in ["http", "grpc"] {
        let receiver = Receiver::start(protocol == "grpc", None);
        receiver.set(Manner::Silent);
        let mut server = setup(protocol, receiver.port).start();
        delays_no_request(&server);
        server.process.signal("TERM");
        let ended = server.process.wait(Duration::from_secs(9));
        assert!(ended.is_some_and(|status| status.success()), "{}", server.process.log());
        let log = server.process.final_log();
        assert!(log.contains("dropped the last spans"), "{log}");
    }
}

#[test]
fn sends_spans_over_tls_with_a_client_certificate() {
    let certificates = Certificates::for_host("127.0.0.1");
    let path = |name: &str| certificates.path(name).display().to_string();
    for protocol in ["http", "grpc"] {
        let receiver = Receiver::start(protocol == "grpc", Some(acceptor(&certificates, protocol)));
        let with_tls = |setup: Setup| {
            setup
                .env("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("https://127.0.0.1:{}", receiver.port))
                .env("OTEL_EXPORTER_OTLP_CERTIFICATE", &path("ca.pem"))
        };
        let anonymous = with_tls(setup(protocol, receiver.port)).start();
        ask(&anonymous, &request("d", &[&[("user", "ann")]]), &[]);
        anonymous.wait_for_log(&["tracing:"]);
        let server = with_tls(setup(protocol, receiver.port))
            .env("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", &path("client.pem"))
            .env("OTEL_EXPORTER_OTLP_CLIENT_KEY", &path("client.key"))
            .start();
        ask(&server, &request("d", &[&[("user", "ann")]]), &[]);
        assert_eq!(receiver.wait_for(1).len(), 1, "none without a client certificate");
    }
}

#[test]
fn reports_missing_files_at_start() {
    let log = setup("http", 1)
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", "https://127.0.0.1:1")
        .env("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "/nowhere/ca.pem")
        .env("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/nowhere/client.pem")
        .env("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/nowhere/client.key")
        .refused();
    for expected in
        ["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE=/nowhere/ca.pem", "CLIENT_CERTIFICATE=/nowhere/client.pem"]
    {
        assert!(log.contains(expected), "{log}");
    }
}

/// TLS of a collector that requires client certificates.
pub(crate) fn acceptor(certificates: &Certificates, protocol: &str) -> TlsAcceptor {
    let chain = |name| {
        let found = CertificateDer::pem_file_iter(certificates.path(name)).unwrap();
        found.collect::<Result<Vec<_>, _>>().unwrap()
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(chain("ca.pem"));
    let provider = Arc::new(ring::default_provider());
    let clients =
        WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone()).build().unwrap();
    let key = PrivateKeyDer::from_pem_file(certificates.path("server.key")).unwrap();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(chain("server.pem"), key)
        .unwrap();
    config.alpn_protocols = vec![if protocol == "grpc" { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    TlsAcceptor::from(Arc::new(config))
}

#[test]
fn retries_retryable_errors_alone() {
    for (protocol, retryable, permanent) in [("http", 503, 400), ("grpc", 14, 3)] {
        let receiver = Receiver::start(protocol == "grpc", None);
        receiver.set(Manner::Answers(retryable));
        let server = setup(protocol, receiver.port).start();
        ask(&server, &request("d", &[&[("user", "ann")]]), &[]);
        server.wait_for_log(&[&format!("{retryable}")]);
        receiver.set(Manner::Takes);
        receiver.wait_for(1);

        receiver.set(Manner::Answers(permanent));
        ask(&server, &request("d", &[&[("user", "ann")]]), &[]);
        wait_for_dropped(&server, "refused", 1.0);
        assert_eq!(server.metrics().get("tollgate_spans_exported_total"), Some(&1.0));
    }
}

#[test]
fn counts_the_rejected_spans_of_a_batch() {
    let receiver = Receiver::start(true, None);
    receiver.set(Manner::LeavesOut(1));
    let server = setup("grpc", receiver.port).start();
    ask(&server, &request("d", &[&[("user", "ann")]]), &[]);
    wait_for_dropped(&server, "refused", 1.0);
    server.wait_for_log(&["rejected 1 spans", "too many"]);
}
