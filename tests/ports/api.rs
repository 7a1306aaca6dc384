//! The API beside decisions: errors, reflection, `/json`, the debug pages.

use ::http::HeaderMap;
use prost::Message;
use prost_reflect::DescriptorPool;
use proto::envoy::{
    extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride,
    service::ratelimit::v3::rate_limit_response::Code,
};
use serde_json::json;
use tokio::runtime::Builder;
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, ServerReflectionResponse, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use support::{
    client::request,
    http,
    raw::{RawClient, frame},
    server::{Server, Setup},
};

const RULES: &str = "
domain: d
descriptors:
  - key: k
    rate_limit: {unit: hour, requests_per_unit: 2, name: two}
";

#[test]
fn incomplete_requests_return_unknown() {
    let server = Server::start(RULES);
    for (request, text) in [
        (request("", &[&[("k", "v")]]), "rate limit domain must not be empty"),
        (request("d", &[]), "rate limit descriptor list must not be empty"),
    ] {
        let status = server.ask(request).unwrap_err();
        assert_eq!((status.code(), status.message()), (tonic::Code::Unknown, text));
    }
    let errors = "ratelimit_service_should_rate_limit_error{err_type=\"service_error\"}";
    assert_eq!(server.metrics().get(errors), Some(&2.0));
}

#[test]
fn a_limit_with_an_unknown_unit_is_an_error() {
    let server = Server::start(RULES);
    let mut asked = request("d", &[&[("k", "v")]]);
    asked.descriptors[0].limit =
        Some(RateLimitOverride { requests_per_unit: 3, unit: 0, unit_multiplier: None });
    let status = server.ask(asked).unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unknown, "{status:?}");
}

/// A message in which the `?` of texts are other bytes.
fn message_with(bytes: &[u8]) -> Vec<u8> {
    let marked = "?".repeat(bytes.len());
    let mut message = request(&format!("d{marked}"), &[&[(&format!("k{marked}"), &format!("v{marked}"))]]);
    message.hits_addend = 2;
    let mut rest = bytes.iter().cycle();
    let replaced = |byte: u8| if byte == b'?' { *rest.next().unwrap() } else { byte };
    message.encode_to_vec().into_iter().map(replaced).collect()
}

#[test]
fn texts_that_are_not_utf8_are_decided_like_any_other() {
    let rules = r#"{domain: "d\uFFFDE9", descriptors: [{key: "k\uFFFDE9", rate_limit: {unit: hour, requests_per_unit: 4}}]}"#;
    let of_replacement = rules.replace("E9", r"EF\uFFFDBF\uFFFDBD");
    let setup = Setup::new().rules("d.yaml", rules).rules("e.yaml", &of_replacement);
    let server = setup.start();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    for bytes in [&b"\xe9"[..], "\u{fffd}".as_bytes()] {
        let mut seen = Vec::new();
        for _ in 0..3 {
            let answer = runtime.block_on(async {
                let mut client = RawClient::connect(server.ports.grpc).await.unwrap();
                client.ask(frame(&message_with(bytes)), &HeaderMap::new()).await.unwrap()
            });
            seen.push((answer.overall_code(), answer.statuses[0].limit_remaining));
        }
        assert_eq!(seen, [(Code::Ok, 2), (Code::Ok, 0), (Code::OverLimit, 0)], "{}", bytes.escape_ascii());
        // The same counter.
        let text = |name: &[u8]| [b"\"", name, bytes, b"\""].concat();
        let body = [
            &b"{\"domain\":"[..],
            &text(b"d"),
            b",\"descriptors\":[{\"entries\":[{\"key\":",
            &text(b"k"),
            b",\"value\":",
            &text(b"v"),
            b"}]}]}",
        ];
        let answer = http::send(server.ports.http, "POST", "/json", &[], &body.concat()).unwrap();
        assert_eq!(answer.status, 429, "{}", answer.text());
    }
    let errors = "ratelimit_service_should_rate_limit_error{err_type=\"service_error\"}";
    assert!(server.metric(errors) < 0.5);
    let lone = r#"{"domain":"d\ud800","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;
    let answer = http::post(server.ports.http, "/json", lone);
    assert_eq!(answer.status, 400);
    assert!(
        answer.text().contains("hex escape") && answer.text().contains("line 1 column"),
        "{}",
        answer.text()
    );
}

#[test]
fn json_uses_the_mapping_of_protobuf() {
    let server = Server::start(RULES);
    let ask = |body: &str| http::post(server.ports.http, "/json", body);
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}],"hits_addend":"2"}]}"#;

    let answer = ask(body);
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    let mut status = answer.json()["statuses"][0].clone();
    let reset = status.as_object_mut().unwrap().remove("durationUntilReset").unwrap();
    assert!(reset.as_str().unwrap().ends_with('s'), "{reset}");
    let limit = json!({"name": "two", "requestsPerUnit": 2, "unit": "HOUR"});
    assert_eq!(status, json!({"code": "OK", "currentLimit": limit}));

    let answer = ask(body);
    assert_eq!((answer.status, &answer.json()["overallCode"]), (429, &json!("OVER_LIMIT")));
}

#[test]
fn rejects_invalid_json_with_a_reason() {
    let server = Server::start(RULES);
    for (body, expected) in [
        ("{", "EOF"),
        (r#"{"domian":"d"}"#, "domian"),
        (r#"{"domain":"","descriptors":[{"entries":[{"key":"k"}]}]}"#, "domain must not be empty"),
    ] {
        let answer = http::post(server.ports.http, "/json", body);
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.text().starts_with("Bad Request"), "{}", answer.text());
        assert!(answer.text().contains(expected), "{expected:?} in {}", answer.text());
    }
}

#[test]
fn an_error_about_a_body_does_not_repeat_megabytes_of_it() {
    let server = Server::start(RULES);
    let long = "x".repeat(1 << 20);
    for body in [
        long.clone(),
        format!(r#"{{"{long}":1}}"#),
        format!(r#"{{"domain":"d","descriptors":"{long}"}}"#),
        format!(r#"{{"domain":"d","descriptors":[{{"limit":{{"unit":"{long}"}}}}]}}"#),
        format!(r#"{{"domain":"d","hitsAddend":"{long}"}}"#),
    ] {
        let answer = http::post(server.ports.http, "/json", &body);
        assert_eq!(answer.status, 400);
        assert!(answer.body.len() < 2_000, "{} bytes", answer.body.len());
    }
    let log = server.final_log();
    assert!(log.contains("request rejected") && log.len() < 20_000, "{} bytes", log.len());
}

#[test]
fn reflection_lists_the_services_and_their_messages() {
    let server = Server::start(RULES);
    let listed = reflect(&server, MessageRequest::ListServices(String::new()));
    let Some(MessageResponse::ListServicesResponse(list)) = listed.message_response else {
        panic!("{listed:?}");
    };
    let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    for name in [
        "envoy.service.ratelimit.v3.RateLimitService",
        "kuadrant.service.ratelimit.v1.RateLimitService",
        "grpc.health.v1.Health",
    ] {
        assert!(names.iter().any(|have| have == name), "{name} in {names:?}");
    }

    let commit = "kuadrant.service.ratelimit.v1.RateLimitService.Commit".to_owned();
    let found = reflect(&server, MessageRequest::FileContainingSymbol(commit));
    assert!(matches!(found.message_response, Some(MessageResponse::FileDescriptorResponse(_))), "{found:?}");
    let symbol = "envoy.service.ratelimit.v3.RateLimitService".to_owned();
    let found = reflect(&server, MessageRequest::FileContainingSymbol(symbol));
    let Some(MessageResponse::FileDescriptorResponse(files)) = found.message_response else {
        panic!("{found:?}");
    };
    let files: Vec<_> = files
        .file_descriptor_proto
        .iter()
        .map(|file| prost_types::FileDescriptorProto::decode(file.as_slice()).unwrap())
        .collect();
    assert!(files.iter().any(|file| file.name().ends_with("rls.proto")), "{files:?}");
}

fn reflect(server: &Server, question: MessageRequest) -> ServerReflectionResponse {
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(question) };
    server.client().call(|channel| async move {
        let questions = tonic::codegen::tokio_stream::once(request);
        let answers = ServerReflectionClient::new(channel).server_reflection_info(questions).await;
        answers.unwrap().into_inner().message().await.unwrap().expect("one response to one request")
    })
}

#[test]
fn the_compiled_descriptors_are_complete() {
    let pool = DescriptorPool::decode(proto::DESCRIPTORS).unwrap();
    assert!(pool.get_service_by_name("envoy.service.ratelimit.v3.RateLimitService").is_some());
}

#[test]
fn the_metrics_have_a_charset() {
    let server = Server::start(&RULES.replace("key: k", "key: ünï"));
    server.ask(request("d", &[&[("ünï", "v")]])).unwrap();
    let page = http::get(server.ports.metrics, "/metrics");
    // Without a charset some readers assume Latin-1 and show garbled labels.
    let content_type = page.header("content-type").unwrap();
    assert!(content_type.starts_with("text/plain; version=0.0.4; charset=utf-8"), "{content_type}");
    assert!(page.text().contains("key1=\"ünï\""), "{}", page.text());
}

#[test]
fn the_debug_port_lists_its_pages_and_shows_the_rules() {
    let server = Server::start(RULES);
    let index = http::get(server.ports.debug, "/").text();
    for page in ["/rlconfig", "/stats"] {
        assert!(index.contains(page), "{page} in {index}");
        assert_eq!(http::get(server.ports.debug, page).status, 200);
    }
    let rule = "d.k: unit=HOUR requests_per_unit=2, shadow_mode: false, quota_mode: false";
    assert_eq!(server.rules_shown(), [rule]);
    assert_eq!(http::get(server.ports.debug, "/nowhere").status, 404);
}
