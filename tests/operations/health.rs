//! Health checks over HTTP and gRPC.

use std::time::{Duration, Instant};

use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use support::{
    PATIENCE,
    client::{Client, request},
    eventually, holds, http,
    server::{Server, Setup},
};

const RULES: &str = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 9}}]\n";

fn over_grpc(client: &Client, service: &str) -> Result<ServingStatus, tonic::Status> {
    let request = HealthCheckRequest { service: service.to_owned() };
    client
        .call(|channel| async move { HealthClient::new(channel).check(request).await })
        .map(|response| response.into_inner().status())
}

#[test]
fn a_running_service_is_healthy() {
    let server = Server::start(RULES);
    let answer = http::get(server.ports.http, "/healthcheck");
    assert_eq!((answer.status, answer.text().as_str()), (200, "OK"));
    let client = server.client();
    assert_eq!(over_grpc(&client, "ratelimit").unwrap(), ServingStatus::Serving);
    assert_eq!(over_grpc(&client, "").unwrap(), ServingStatus::Serving);
    assert_eq!(over_grpc(&client, "another").unwrap_err().code(), tonic::Code::NotFound);
}

#[test]
fn sigterm_makes_health_fail_while_requests_are_still_answered() {
    // Long enough for a slow machine.
    let delay = Duration::from_secs(8);
    let mut server = Setup::new().rules("d.yaml", RULES).env("SHUTDOWN_DELAY", "8s").start();
    let begun = Instant::now();
    server.process.signal("TERM");

    eventually("the health check fails", || {
        let answer = http::get(server.ports.http, "/healthcheck");
        let seen = (answer.status, answer.text());
        let expected = (500, "running: shutting down\n".to_owned());
        holds(seen == expected, || format!("{seen:?}"))
    });
    let client = server.client();
    assert_eq!(over_grpc(&client, "ratelimit").unwrap(), ServingStatus::NotServing);
    let answer = client.ask(request("d", &[&[("k", "v")]])).unwrap();
    assert_eq!(answer.statuses[0].limit_remaining, 8, "a new connection is answered during the delay");
    assert!(begun.elapsed() < delay, "the machine is too slow for this test");
    drop(client);

    let status = server.process.wait(PATIENCE).expect("it ends after the delay");
    assert!(status.success(), "{status}");
    assert!(begun.elapsed() >= delay, "it ended after {:?}", begun.elapsed());
}

#[test]
fn healthy_without_rules_by_default() {
    let server = Setup::new().start();
    assert_eq!(http::get(server.ports.http, "/healthcheck").status, 200);

    let server = Setup::new().env("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true").start();
    let answer = http::get(server.ports.http, "/healthcheck");
    assert_eq!(answer.status, 500);
    let why = answer.text();
    assert!(why.contains("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED") && why.lines().count() == 1, "{why}");
    assert_eq!(over_grpc(&server.client(), "ratelimit").unwrap(), ServingStatus::NotServing);

    server.write("d.yaml", RULES);
    eventually("the health check succeeds with the first rules", || {
        let status = http::get(server.ports.http, "/healthcheck").status;
        holds(status == 200, || format!("status {status}"))
    });
    assert_eq!(over_grpc(&server.client(), "ratelimit").unwrap(), ServingStatus::Serving);
}
