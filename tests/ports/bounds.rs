//! Bounds of requests: the error names the variable to change.

use http::HeaderMap;
use proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tokio::{runtime::Builder, sync::oneshot};

use support::{
    client::request,
    http as http1,
    raw::{Exchange, GrpcStatus, RawClient},
    server::{Server, Setup},
};

const RULES: &str = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 9}}]\n";

fn refusal(server: &Server, request: RateLimitRequest) -> (tonic::Code, String) {
    let status = server.ask(request).expect_err("it is too much");
    (status.code(), status.message().to_owned())
}

#[test]
fn rejects_a_message_above_the_size_limit() {
    let server = Setup::new().rules("d.yaml", RULES).env("GRPC_MAX_REQUEST_BYTES", "1000").start();
    let value = "v".repeat(1000);
    let (code, text) = refusal(&server, request("d", &[&[("k", &value)]]));
    assert_eq!(code, tonic::Code::ResourceExhausted);
    assert!(text.contains("GRPC_MAX_REQUEST_BYTES") && text.contains("1000"), "{text}");
    assert!(server.ask(request("d", &[&[("k", "v")]])).is_ok(), "the next request is answered");

    let body = format!("{{\"domain\":\"{value}\"}}");
    assert_eq!(http1::post(server.ports.http, "/json", &body).status, 400);
}

#[test]
fn rejects_a_request_with_too_many_descriptors() {
    let server = Setup::new().rules("d.yaml", RULES).env("MAX_DESCRIPTORS_PER_REQUEST", "3").start();
    let one: &[(&str, &str)] = &[("k", "v")];
    let (code, text) = refusal(&server, request("d", &[one; 4]));
    assert_eq!(code, tonic::Code::InvalidArgument);
    assert!(text.contains("MAX_DESCRIPTORS_PER_REQUEST") && text.contains('4'), "{text}");
    let answer = server.ask(request("d", &[one; 3])).unwrap();
    assert_eq!(answer.statuses[2].limit_remaining, 6, "the rejected request counted nothing");
}

#[test]
fn rejects_a_descriptor_with_too_many_entries() {
    let server = Setup::new().rules("d.yaml", RULES).env("MAX_ENTRIES_PER_DESCRIPTOR", "2").start();
    let (code, text) = refusal(&server, request("d", &[&[("k", "v")], &[("k", "v"); 3]]));
    assert_eq!(code, tonic::Code::InvalidArgument);
    assert!(text.contains("MAX_ENTRIES_PER_DESCRIPTOR") && text.contains('3'), "{text}");
}

#[test]
fn the_callers_timeout_is_honoured() {
    let server = Server::start(RULES);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = RawClient::connect(server.ports.grpc).await.unwrap();
        let headers = HeaderMap::from_iter([("grpc-timeout".parse().unwrap(), "100m".parse().unwrap())]);
        // The message arrives too late, so the answer is the deadline's.
        let (_never_sent, body) = oneshot::channel();
        match client.exchange(body, &headers).await {
            Exchange::Answered(GrpcStatus { code, .. }) => assert_eq!(code, 4, "DEADLINE_EXCEEDED"),
            lost => panic!("{lost:?}"),
        }
    });
}
