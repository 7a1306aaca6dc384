//! Unix sockets, and the maximum age of connections.

use std::{fs, os::unix::net::UnixListener, thread::sleep, time::Duration};

use http::HeaderMap;
use tokio::{runtime::Builder, sync::oneshot, task::JoinSet};

use support::{
    PATIENCE,
    client::request,
    load::Load,
    raw::{Exchange, Question, RawClient, framed},
    server::Setup,
};

const RULES: &str =
    "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1000000}}]\n";

#[test]
fn the_socket_file_of_a_stopped_service_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("tollgate.sock");
    drop(UnixListener::bind(&socket).unwrap());
    assert!(socket.exists(), "a closed listener leaves its file behind");

    let setup = Setup::new().rules("d.yaml", RULES).env("GRPC_UDS", socket.to_str().unwrap());
    let mut server = setup.start();
    assert!(server.ask(request("d", &[&[("k", "v")]])).is_ok());
    server.process.stop();
    assert!(!socket.exists(), "a graceful shutdown removes the file");
}

#[test]
fn the_socket_of_a_running_service_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("tollgate.sock");
    let setup = || Setup::new().rules("d.yaml", RULES).env("GRPC_UDS", socket.to_str().unwrap());
    let first = setup().start();
    let mut second = setup().launch();
    let status = second.process.wait(PATIENCE).expect("it exits");
    assert!(!status.success());
    let log = second.process.final_log();
    assert!(log.contains("tollgate.sock"), "{log}");
    assert!(first.ask(request("d", &[&[("k", "v")]])).is_ok());
}

#[test]
fn a_file_that_is_not_a_socket_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes.txt");
    fs::write(&path, "keep me").unwrap();
    let mut server = Setup::new().env("GRPC_UDS", path.to_str().unwrap()).launch();
    let status = server.process.wait(PATIENCE).expect("it exits");
    assert!(!status.success());
    assert_eq!(fs::read_to_string(&path).unwrap(), "keep me");
}

#[test]
fn connections_at_their_maximum_age_lose_no_request() {
    let server = Setup::new().rules("d.yaml", RULES).env("GRPC_MAX_CONNECTION_AGE", "500ms").start();
    let load = Load::start(&[server.ports.grpc], 4, &request("d", &[&[("k", "v")]]));
    sleep(Duration::from_secs(3));
    let outcome = load.stop();
    outcome.assert_nothing_lost();
    // 3 s are five times 550 ms, the longest age; a busy machine misses some.
    assert!(outcome.connections > 4, "only {} connections of 4 clients in 3 s", outcome.connections);
}

/// Clients may treat a thousand streams that are reset before they end as an attack.
#[test]
fn a_client_may_end_requests_in_a_separate_frame() {
    let server = Setup::new().rules("d.yaml", RULES).start();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = RawClient::connect(server.ports.grpc).await.unwrap();
        for _ in 0..40 {
            let mut asked = JoinSet::new();
            for _ in 0..50 {
                let mut client = client.clone();
                let body = Question::Apart(framed(&request("d", &[&[("k", "v")]])));
                asked.spawn(async move { client.exchange(body, &HeaderMap::new()).await });
            }
            for exchange in asked.join_all().await {
                assert!(matches!(&exchange, Exchange::Answered(status) if status.code == 0), "{exchange:?}");
            }
        }
    });
}

#[test]
fn a_connection_is_closed_after_its_grace_period() {
    let setup = Setup::new().rules("d.yaml", RULES).env("GRPC_MAX_CONNECTION_AGE", "200ms");
    let server = setup.env("GRPC_MAX_CONNECTION_AGE_GRACE", "200ms").start();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = RawClient::connect(server.ports.grpc).await.unwrap();
        let (_never_sent, body) = oneshot::channel();
        let (headers, patience) = (HeaderMap::new(), PATIENCE);
        let exchange = tokio::time::timeout(patience, client.exchange(body, &headers)).await;
        assert!(matches!(exchange, Ok(Exchange::Failed(_))), "{exchange:?}");
    });
}
