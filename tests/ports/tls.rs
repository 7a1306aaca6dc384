//! TLS on the gRPC port: clients with and without certificates.

use std::time::Duration;

use rcgen::SanType;
use serde_json::json;
use tokio::{
    io::AsyncReadExt,
    net::{TcpStream, UnixStream},
};

use super::envoy::quota::filter;
use support::{
    bootstrap::{Wanted, by_header},
    client::request,
    envoy::Envoy,
    eventually,
    grpc_tls::{Authority, Files, TlsClient, alone, ask, s_client},
    holds,
    http::get,
    load::Load,
    raw::RawClient,
    server::Setup,
};

mod command;
mod refusals;
mod rotation;
mod starts;
mod unfinished;

const RULES: &str =
    "domain: d\ndescriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 100000000}}]\n";

#[test]
fn serves_clients_over_tls() {
    let authority = Authority::new("ours");
    let files = Files::new(&authority.server());
    let server = files.setup().env("LOG_LEVEL", "info").rules("d.yaml", RULES).start();
    let client = TlsClient::new(&[&authority], None);
    client.ask(server.ports.grpc).unwrap();
    client.without_alpn().ask(server.ports.grpc).unwrap();
    assert_eq!(get(server.ports.http, "/healthcheck").status, 200, "the other ports are unchanged");
    let log = server.final_log();
    assert_eq!(log.matches("tls=true").count(), 1, "the warning is logged once: {log}");
}

#[test]
fn negotiates_http2_in_both_versions_of_tls() {
    let authority = Authority::new("ours");
    let files = Files::new(&authority.server());
    let setup = files.setup().rules("d.yaml", RULES);
    // s_client waits for the service to close the connection.
    let server =
        setup.env("GRPC_MAX_CONNECTION_AGE", "1s").env("GRPC_MAX_CONNECTION_AGE_GRACE", "1s").start();
    let trusted = files.put("trusted.pem", &authority.pem());
    for (version, name) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
        let said = s_client(server.ports.grpc, &[version, "-CAfile", trusted.to_str().unwrap()]);
        for part in [name, "ALPN protocol: h2", "Verify return code: 0 (ok)"] {
            assert!(said.contains(part), "{part:?} in {said}");
        }
    }
}

#[test]
fn serves_clients_with_a_certificate_of_the_ca() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let files = Files::new(&ours.server());
    let setup = files.mutual(&theirs).rules("d.yaml", RULES);
    for (san, names) in [
        (None, &["anybody.test"][..]),
        (Some("envoy.test"), &["other.test", "Envoy.test"]),
        (Some("a.envoy.test"), &["*.envoy.test"]),
        (Some("10.0.0.1"), &["10.0.0.1"]),
        (Some("[::1]"), &["::1"]),
    ] {
        let setup = san.into_iter().fold(setup.clone(), |setup, san| setup.env("GRPC_CLIENT_TLS_SAN", san));
        let server = setup.start();
        let client = TlsClient::new(&[&ours], Some(&theirs.sign(names)));
        client.ask(server.ports.grpc).unwrap_or_else(|error| panic!("{san:?} {names:?}: {error}"));
    }
}

#[test]
fn matches_client_names_of_every_kind() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let files = Files::new(&ours.server());
    let uri = |text: &str| SanType::URI(text.try_into().unwrap());
    let email = |text: &str| SanType::Rfc822Name(text.try_into().unwrap());
    let dns = |text: &str| SanType::DnsName(text.try_into().unwrap());
    let workload = "spiffe://cluster.local/ns/gateway/sa/envoy";
    for (san, taken, refused) in [
        (
            workload,
            vec![vec![uri(workload)], vec![dns("pod.test"), uri(workload)]],
            vec![
                vec![],
                vec![uri("spiffe://cluster.local/ns/gateway/sa/envoy2")],
                vec![uri("spiffe://cluster.local/ns/gateway/sa/Envoy")],
                vec![uri("spiffe://cluster.local/ns/gateway/sa")],
                vec![uri(workload), uri("spiffe://cluster.local/ns/other/sa/x")],
                vec![dns("cluster.local")],
                vec![email("envoy@cluster.local")],
            ],
        ),
        (
            "https://envoy.test/x",
            vec![vec![uri("https://other.test"), uri("https://envoy.test/x")]],
            vec![vec![uri("https://envoy.test/")], vec![dns("envoy.test")]],
        ),
        (
            "gateway@envoy.test",
            vec![vec![email("gateway@Envoy.test")]],
            vec![vec![email("Gateway@envoy.test")], vec![dns("envoy.test")]],
        ),
        ("envoy.test", vec![vec![dns("envoy.test")]], vec![vec![uri("https://envoy.test")]]),
    ] {
        let server = files.mutual(&theirs).rules("d.yaml", RULES).env("GRPC_CLIENT_TLS_SAN", san).start();
        let ask = |names: &[SanType]| {
            let pair = theirs.sign_with(&[], |params| params.subject_alt_names = names.to_vec());
            TlsClient::new(&[&ours], Some(&pair)).ask(server.ports.grpc)
        };
        for names in taken {
            ask(&names).unwrap_or_else(|error| panic!("{san} and {names:?}: {error}"));
        }
        for names in refused {
            assert!(ask(&names).is_err(), "{san} and {names:?}");
        }
        server.wait_for_log(&["GRPC_CLIENT_TLS_SAN"]);
    }
}

#[test]
fn the_variable_that_envoy_gateway_sets_rejects_no_client() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let files = Files::new(&ours.server());
    let path = files.put("ca.crt", &theirs.pem());
    let setup = files.setup().env("GRPC_SERVER_TLS_CA_CERT", path.to_str().unwrap()).rules("d.yaml", RULES);
    let server = setup.start();
    TlsClient::new(&[&ours], None).ask(server.ports.grpc).unwrap();
    let log = server.final_log();
    assert_eq!(log.matches("GRPC_SERVER_TLS_CA_CERT: has no effect").count(), 1, "{log}");
}

#[test]
fn serves_tls_on_a_unix_socket() {
    let authority = Authority::new("ours");
    let files = Files::new(&authority.server());
    let socket = files.path("tollgate.sock");
    let _server = files.setup().rules("d.yaml", RULES).env("GRPC_UDS", socket.to_str().unwrap()).start();
    let client = TlsClient::new(&[&authority], None);
    alone(async {
        let stream = client.shake(UnixStream::connect(&socket).await.unwrap()).await.unwrap();
        ask(&mut RawClient::over(stream).await.unwrap()).await.unwrap();
    });
}

#[test]
fn envoy_works_over_mutual_tls() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let files = Files::new(&ours.server());
    let trusted = files.put("trusted.pem", &ours.pem());
    files.put_pair("envoy", &theirs.sign(&["envoy.test"]));
    let rules = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 2}}]\n";
    let setup = files.mutual(&theirs).env("GRPC_CLIENT_TLS_SAN", "envoy.test").rules("edge.yaml", rules);
    let server = setup.start();
    let transport_socket = json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "common_tls_context": {
                "tls_certificates": [{
                    "certificate_chain": {"filename": files.path("envoy.crt")},
                    "private_key": {"filename": files.path("envoy.key")},
                }],
                "validation_context": {
                    "trusted_ca": {"filename": trusted},
                    "match_typed_subject_alt_names": [{"san_type": "DNS", "matcher": {"exact": "localhost"}}],
                },
            },
        },
    });
    let of_requests = json!([by_header("user", "x-user")]);
    let wanted = Wanted { transport_socket: transport_socket.clone(), ..Wanted::of(&server, of_requests) };
    let envoy = Envoy::start(&wanted);
    assert_eq!(envoy.statuses(3, &[("x-user", "ann")]), [200, 200, 429], "{}", server.process.log());
    assert_eq!(envoy.stat("cluster.rate_limit.ssl.handshake"), 1);
    assert_eq!(envoy.stat("cluster.upstream.ratelimit.error"), 0);
    let quotas = Wanted { filters_before: vec![filter()], ..Wanted::of(&server, json!([])) };
    let envoy = Envoy::start(&Wanted { transport_socket, ..quotas });
    eventually("a quota is assigned", || {
        holds(envoy.statuses(1, &[("x-user", "bob")]) == [200], || "the request is denied")
    });
}

#[test]
fn a_client_without_a_handshake_delays_no_other_and_times_out() {
    let authority = Authority::new("ours");
    let files = Files::new(&authority.server());
    let server = files.setup().rules("d.yaml", RULES).env("GRPC_WORKERS", "1").start();
    let client = TlsClient::new(&[&authority], None);
    alone(async {
        let mut silent = Vec::new();
        for _ in 0..100 {
            silent.push(TcpStream::connect(("127.0.0.1", server.ports.grpc)).await.unwrap());
        }
        let mut asking = client.connect(server.ports.grpc).await.unwrap();
        ask(&mut asking).await.unwrap();
        for stream in &silent {
            let read = tokio::time::timeout(Duration::from_secs(20), stream.readable()).await;
            assert!(read.is_ok(), "it is closed after ten seconds");
        }
        ask(&mut asking).await.unwrap();
    });
    let timeouts = "tollgate_tls_handshake_failures_total{reason=\"timeout\"}";
    assert_eq!(server.metrics().get(timeouts), Some(&100.0));
}

#[test]
fn handshakes_count_as_connections() {
    let authority = Authority::new("ours");
    let files = Files::new(&authority.server());
    let setup = files.setup().rules("d.yaml", RULES);
    let server = setup.env("GRPC_MAX_CONNECTIONS", "3").start();
    let client = TlsClient::new(&[&authority], None);
    eventually("the connections of the start probe are closed", || {
        let open = server.metrics().get("tollgate_connections_open").copied();
        holds(open == Some(0.0), || format!("{open:?} are open"))
    });
    alone(async {
        let silent = || TcpStream::connect(("127.0.0.1", server.ports.grpc));
        let mut silent = [silent().await.unwrap(), silent().await.unwrap(), silent().await.unwrap()];
        assert!(client.connect(server.ports.grpc).await.is_ok(), "a fourth replaces a silent one");
        assert_eq!(silent[0].read(&mut [0; 9]).await.unwrap_or(0), 0, "the one that is silent longest");
    });
}

#[test]
fn a_drain_waits_for_requests_but_not_for_handshakes() {
    let authority = Authority::new("ours");
    let files = Files::new(&authority.server());
    let setup = || -> Setup { files.setup().rules("d.yaml", RULES) };
    let (mut ending, staying) = (setup().start(), setup().start());
    let ports = [ending.ports.grpc, staying.ports.grpc];
    let question = request("d", &[&[("a", "v")]]);
    let load = Load::start_with(Some(TlsClient::new(&[&authority], None)), &ports, 8, &question);
    let _silent = std::net::TcpStream::connect(("127.0.0.1", ending.ports.grpc)).unwrap();
    load.wait_for(500);

    ending.process.signal("TERM");
    let status =
        ending.process.wait(Duration::from_secs(8)).expect("a silent client does not delay the shutdown");
    assert!(status.success(), "{status}");
    load.wait_for(500);
    load.stop().assert_nothing_lost();
}
