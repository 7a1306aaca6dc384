//! Certificate rotation.

use std::time::{Duration, Instant};

use super::RULES;
use support::{
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
