//! Certificate rotation.

use std::{
    fs,
    os::unix::fs::symlink,
    time::{Duration, Instant},
};

use rcgen::date_time_ymd;

use super::RULES;
use crate::support::{
    PATIENCE,
    client::request,
    eventually,
    grpc_tls::{Authority, Files, Pair, TlsClient, alone, ask},
    holds,
    load::Load,
    server::Server,
};

fn wait_until_shown(client: &TlsClient, server: &Server, pair: &Pair) {
    eventually("the new certificate is shown", || {
        let shown = client.shown(server.ports.grpc)?;
        holds(shown == pair.der(), || format!("another one\n{}", server.process.log()))
    });
}

fn reload_errors(server: &Server) -> f64 {
    server.metrics().get("tollgate_tls_reload_errors_total").copied().unwrap_or(f64::NAN)
}

#[test]
fn rotation_under_load_loses_no_request() {
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    let files = Files::new(&first.server());
    // A short maximum age, so that each certificate serves many connections.
    let server = files.setup().rules("d.yaml", RULES).env("GRPC_MAX_CONNECTION_AGE", "300ms").start();
    let client = TlsClient::new(&[&first, &second], None);
    let load =
        Load::start_with(Some(client.clone()), &[server.ports.grpc], 4, &request("d", &[&[("a", "v")]]));
    for authority in [&second, &first, &second] {
        let pair = authority.server();
        files.put_pair("tls", &pair);
        wait_until_shown(&client, &server, &pair);
        load.wait_for(200);
    }
    let outcome = load.stop();
    println!("{} answers on {} connections", outcome.answered, outcome.connections);
    outcome.assert_nothing_lost();
    assert!(outcome.connections > 12, "only {} connections", outcome.connections);
    assert!(reload_errors(&server) < 0.5, "{}", server.process.log());
}

#[test]
fn a_symlink_swap_of_a_secret_is_noticed() {
    let authority = Authority::new("ours");
    let files = Files::empty();
    let version = |name: &str| {
        let pair = authority.server();
        fs::create_dir(files.path(name)).unwrap();
        files.put_pair(&format!("{name}/tls"), &pair);
        pair
    };
    version("..2026_01_01");
    symlink("..2026_01_01", files.path("..data")).unwrap();
    for name in ["tls.crt", "tls.key"] {
        symlink(format!("..data/{name}"), files.path(name)).unwrap();
    }
    let server = files.setup().start();

    let next = version("..2026_01_02");
    symlink("..2026_01_02", files.path("..new")).unwrap();
    fs::rename(files.path("..new"), files.path("..data")).unwrap();
    fs::remove_dir_all(files.path("..2026_01_01")).unwrap();
    wait_until_shown(&TlsClient::new(&[&authority], None), &server, &next);
    assert!(reload_errors(&server) < 0.5, "{}", server.process.log());
}

#[test]
fn an_invalid_certificate_keeps_the_previous_one_and_is_logged_once() {
    let authority = Authority::new("ours");
    let (first, next) = (authority.server(), authority.server());
    let files = Files::new(&first);
    let server = files.setup().rules("d.yaml", RULES).start();
    let client = TlsClient::new(&[&authority], None);

    files.put("tls.crt", &next.certificate);
    eventually("the error is counted", || {
        let errors = reload_errors(&server);
        holds(errors > 0.5, || format!("{errors}"))
    });
    // Two more reloads.
    std::thread::sleep(Duration::from_secs(5));
    assert!(reload_errors(&server) < 1.5);
    assert_eq!(client.shown(server.ports.grpc), Ok(first.der()));
    client.ask(server.ports.grpc).unwrap();

    files.put("tls.key", &next.key);
    wait_until_shown(&client, &server, &next);
    let log = server.final_log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("changed TLS files are invalid")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    for part in ["GRPC_SERVER_TLS_KEY", files.path("tls.key").to_str().unwrap(), "is not the key of"] {
        assert!(lines[0].contains(part), "{part:?} in {log}");
    }
    assert!(!log.contains("PRIVATE KEY"), "no secret is logged: {log}");
}

#[test]
fn an_expired_certificate_is_served_with_a_warning() {
    let authority = Authority::new("ours");
    let expired = authority.sign_with(&["localhost"], |params| params.not_after = date_time_ymd(2020, 1, 1));
    let files = Files::new(&expired);
    let server = files.setup().start();
    server.wait_for_log(&["has expired", "2020-01-01T00:00:00Z", files.path("tls.crt").to_str().unwrap()]);
    let expiry = server.metrics().get("tollgate_tls_certificate_expiry_timestamp_seconds").copied();
    assert_eq!(expiry, Some(1_577_836_800.0));
}

#[test]
fn a_new_client_ca_applies_to_new_connections() {
    let (ours, old, new) = (Authority::new("ours"), Authority::new("old"), Authority::new("new"));
    let files = Files::new(&ours.server());
    let server = files.mutual(&old).rules("d.yaml", RULES).start();
    let port = server.ports.grpc;
    let client = |authority: &Authority| TlsClient::new(&[&ours], Some(&authority.sign(&["envoy.test"])));
    let (with_old, with_new) = (client(&old), client(&new));
    assert!(with_new.ask(port).is_err());
    alone(async {
        let mut living = with_old.connect(port).await.unwrap();
        ask(&mut living).await.unwrap();
        files.put("ca.crt", &new.pem());
        let begun = Instant::now();
        while connect_and_ask(&with_new, port).await.is_err() {
            assert!(begun.elapsed() < PATIENCE, "{}", server.process.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        ask(&mut living).await.expect("an open connection still works");
    });
    with_new.ask(port).unwrap();
    assert!(with_old.ask(port).is_err(), "the previous CA is no longer trusted");
}

async fn connect_and_ask(client: &TlsClient, port: u16) -> Result<(), String> {
    ask(&mut client.connect(port).await?).await
}
