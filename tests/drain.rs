//! The end of a service: SIGTERM under load loses no request.

use std::time::{Duration, Instant};

use http::HeaderMap;
use tokio::{runtime::Builder, sync::oneshot, time::sleep};

use crate::support::{
    PATIENCE,
    client::request,
    load::Load,
    raw::{Exchange, RawClient, framed},
    server::{Server, Setup},
};

const RULES: &str =
    "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1000000}}]\n";

#[test]
fn sigterm_under_load_loses_no_request() {
    for delay in ["0s", "300ms"] {
        let mut ending = Setup::new().rules("d.yaml", RULES).env("SHUTDOWN_DELAY", delay).start();
        let staying = Server::start(RULES);
        let load = Load::start(&[ending.ports.grpc, staying.ports.grpc], 8, &request("d", &[&[("k", "v")]]));
        load.wait_for(500);

        ending.process.signal("TERM");
        let status = ending.process.wait(PATIENCE).expect("it ends while it is asked");
        assert!(status.success(), "{status}");
        load.wait_for(500);

        let outcome = load.stop();
        outcome.assert_nothing_lost();
        assert!(
            outcome.connections >= 16,
            "every client went on to the other replica: {}",
            outcome.connections
        );
    }
}

#[test]
fn a_request_that_is_under_way_at_sigterm_is_answered() {
    let mut server = Server::start(RULES);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = RawClient::connect(server.ports.grpc).await.unwrap();
        let (send, body) = oneshot::channel();
        let asking = tokio::spawn(async move { client.exchange(body, &HeaderMap::new()).await });
        sleep(Duration::from_millis(200)).await;
        server.process.signal("TERM");
        sleep(Duration::from_millis(300)).await;
        assert!(server.process.exited().is_none(), "it waits for the request");

        send.send(framed(&request("d", &[&[("k", "v")]]))).unwrap();
        match asking.await.unwrap() {
            Exchange::Answered(status) => assert_eq!(status.code, 0, "{status:?}"),
            lost => panic!("{lost:?}"),
        }
    });
    assert!(server.process.wait(PATIENCE).expect("it ends").success());
}

#[test]
fn a_request_that_never_ends_does_not_keep_the_service() {
    let mut server = Setup::new().rules("d.yaml", RULES).env("SHUTDOWN_TIMEOUT", "1s").start();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = RawClient::connect(server.ports.grpc).await.unwrap();
        let (_never_sent, body) = oneshot::channel();
        let asking = tokio::spawn(async move { client.exchange(body, &HeaderMap::new()).await });
        sleep(Duration::from_millis(200)).await;
        let begun = Instant::now();
        server.process.signal("TERM");
        let ended = asking.await.unwrap();
        assert!(matches!(ended, Exchange::Failed(_)), "{ended:?}");
        assert!(
            begun.elapsed() >= Duration::from_millis(900),
            "it was given its time: {:?}",
            begun.elapsed()
        );
    });
    assert!(server.process.wait(PATIENCE).is_some(), "it ends after its deadline");
}
