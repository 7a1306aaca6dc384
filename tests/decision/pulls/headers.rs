//! "`LIMIT_ALL_DESCRIPTORS_HEADERS_ENABLED` […], when enabled, returns per-unit limit and remaining headers for ALL
//! descriptors that have configured limits." And: "`RequestHeadersToAdd` […] mirrors `ResponseHeadersToAdd` exactly […],
//! independently enabled."

use proto::envoy::{
    config::core::v3::HeaderValue,
    service::ratelimit::v3::{RateLimitRequest, rate_limit_response::Code},
};

use support::{client::request, server::Setup};

const RULES: &str = "
domain: envoy
descriptors:
  - key: second
    rate_limit: {unit: second, requests_per_unit: 10}
  - key: minute
    rate_limit: {unit: minute, requests_per_unit: 1000}
  - key: year
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: free
    rate_limit: {unlimited: true}
";

fn two() -> RateLimitRequest {
    request(
        "envoy",
        &[&[("second", "10.0.0.1")], &[("minute", "10.0.0.1")], &[("free", "v")], &[("none", "v")]],
    )
}

fn read(headers: &[HeaderValue]) -> Vec<(&str, &str)> {
    headers.iter().map(|header| (&*header.key, &*header.value)).collect()
}

#[test]
fn every_descriptor_with_a_limit_has_headers_of_its_unit() {
    let setup = Setup::new().rules("envoy.yaml", RULES).env("LIMIT_ALL_DESCRIPTORS_HEADERS_ENABLED", "true");
    let server = setup.clone().start();
    let answer = server.ask(two()).unwrap();
    let expected = [
        ("ratelimit-limit-seconds", "10"),
        ("ratelimit-remaining-seconds", "9"),
        ("ratelimit-limit-minutes", "1000"),
        ("ratelimit-remaining-minutes", "999"),
    ];
    assert_eq!(read(&answer.response_headers_to_add), expected);
    assert!(answer.request_headers_to_add.is_empty());
    // With the three headers of the closest limit, which follow.
    let server = setup.env("LIMIT_RESPONSE_HEADERS_ENABLED", "true").start();
    let answer = server.ask(two()).unwrap();
    let headers = read(&answer.response_headers_to_add);
    assert_eq!(headers[..4], expected);
    assert_eq!(headers[4..6], [("RateLimit-Limit", "10"), ("RateLimit-Remaining", "9")]);
    assert_eq!((headers[6].0, headers.len()), ("RateLimit-Reset", 7));
}

#[test]
fn request_headers_are_those_of_the_closest_limit_under_their_own_names() {
    let setup = Setup::new().rules("envoy.yaml", RULES).env("LIMIT_REQUEST_HEADERS_ENABLED", "true");
    let server = setup.clone().start();
    let answer = server.ask(two()).unwrap();
    let headers = read(&answer.request_headers_to_add);
    assert_eq!(headers[..2], [("RateLimit-Limit", "10"), ("RateLimit-Remaining", "9")]);
    assert_eq!((headers[2].0, headers.len()), ("RateLimit-Reset", 3));
    assert!(answer.response_headers_to_add.is_empty(), "independent");

    let setup =
        setup.env("LIMIT_REQUEST_LIMIT_HEADER", "x-limit").env("LIMIT_REQUEST_REMAINING_HEADER", "x-left");
    let setup =
        setup.env("LIMIT_REQUEST_RESET_HEADER", "x-reset").env("LIMIT_RESPONSE_HEADERS_ENABLED", "true");
    let server = setup.start();
    for (code, left) in [(Code::Ok, "1"), (Code::Ok, "0"), (Code::OverLimit, "0")] {
        let answer = server.ask(request("envoy", &[&[("year", "v")]])).unwrap();
        assert_eq!(answer.overall_code(), code, "also when over the limit");
        let headers = read(&answer.request_headers_to_add);
        assert_eq!(headers[..2], [("x-limit", "2"), ("x-left", left)]);
        assert_eq!(headers[2].0, "x-reset");
        let headers = read(&answer.response_headers_to_add);
        assert_eq!(headers[..2], [("RateLimit-Limit", "2"), ("RateLimit-Remaining", left)]);
    }
    let unknown = server.ask(request("envoy", &[&[("none", "v")]])).unwrap();
    assert!(unknown.request_headers_to_add.is_empty(), "no limit, no headers");
}

#[test]
fn an_invalid_name_of_a_request_header_is_an_error() {
    let setup = Setup::new().rules("envoy.yaml", RULES).env("LIMIT_REQUEST_LIMIT_HEADER", "x limit");
    setup.clone().start();
    let error = setup.env("LIMIT_REQUEST_HEADERS_ENABLED", "true").refused();
    assert!(error.contains("LIMIT_REQUEST_LIMIT_HEADER"), "{error}");
}
