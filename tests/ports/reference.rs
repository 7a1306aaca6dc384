//! `GRPC_SERVER=tonic`, the reference for the service's own HTTP/2 connection: both pass the same tests, and return the
//! same answers to random requests.

use std::{
    env,
    time::{SystemTime, UNIX_EPOCH},
};

use proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride},
    },
    service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
};

use support::{
    noise::Noise,
    server::{Server, Setup, pass_on_tonic},
};

#[test]
fn the_tests_of_the_grpc_port_pass_on_tonic() {
    pass_on_tonic(&["api::", "bounds::"], 14);
}

const RULES: &str = "
domain: d
descriptors:
  - {key: few, rate_limit: {unit: year, requests_per_unit: 3, name: few}, metadata: {tier: free, deep: {a: [1, x]}}}
  - {key: many, rate_limit: {unit: year, requests_per_unit: 4000000000}}
  - {key: path, value: /a*, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: quota, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: any, rate_limit: {unlimited: true}}
  - key: few
    value: nested
    descriptors:
      - {key: many, rate_limit: {unit: year, requests_per_unit: 7, replaces: [{name: few}]}}
";

const REQUESTS: usize = 3000;

#[test]
fn random_requests_get_the_same_answers_from_both_implementations() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let seed = env::var("TOLLGATE_TEST_SEED").map_or(now, |text| text.parse().unwrap());
    println!("TOLLGATE_TEST_SEED={seed}");
    let start = |implementation| {
        let setup = Setup::new().rules("d.yaml", RULES).env("GRPC_SERVER", implementation);
        let setup = setup.env("LIMIT_RESPONSE_HEADERS_ENABLED", "true");
        setup.env("RESPONSE_DYNAMIC_METADATA", "true").env("OVER_LIMIT_BODY", "slow down").start()
    };
    let servers = ["fast", "tonic"].map(start);
    let [fast, tonic] = servers.each_ref().map(Server::client);
    let mut noise = Noise::new(seed);
    for number in 0..REQUESTS {
        let request = random_request(&mut noise);
        let answers = [&fast, &tonic].map(|client| match client.ask(request.clone()) {
            Ok(answer) => Ok(without_seconds(answer)),
            Err(status) => Err((status.code(), status.message().to_owned())),
        });
        assert_eq!(answers[0], answers[1], "request {number}: {request:?}");
    }
}

/// The answer without the second in which it was made.
fn without_seconds(mut answer: RateLimitResponse) -> RateLimitResponse {
    for status in &mut answer.statuses {
        status.duration_until_reset = None;
    }
    answer.response_headers_to_add.retain(|header| header.key != "RateLimit-Reset");
    answer
}

fn random_request(noise: &mut Noise) -> RateLimitRequest {
    let domain = ["d", "d", "d", "d", "d", "d", "unknown", ""][noise.below(8)];
    let descriptors = noise.below(5);
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: (0..descriptors).map(|_| random_descriptor(noise)).collect(),
        hits_addend: [0, 0, 1, 2, u32::MAX][noise.below(5)],
    }
}

fn random_descriptor(noise: &mut Noise) -> RateLimitDescriptor {
    let entries = 1 + noise.below(2);
    RateLimitDescriptor {
        entries: (0..entries).map(|_| random_entry(noise)).collect(),
        limit: (noise.below(8) == 0).then(|| RateLimitOverride {
            requests_per_unit: [0, 2, u32::MAX][noise.below(3)],
            // The window of a year does not end in a test; 0 and 9 are not units.
            unit: [6, 6, 6, 0, 9][noise.below(5)],
            unit_multiplier: None,
        }),
        hits_addend: (noise.below(4) == 0).then(|| [0, 1, 5, u64::MAX][noise.below(4)]),
        is_negative_hits: noise.below(16) == 0,
    }
}

fn random_entry(noise: &mut Noise) -> Entry {
    let key = ["few", "many", "path", "quota", "any", "", "no rule"][noise.below(7)];
    let value = match noise.below(6) {
        0 => String::new(),
        1 => "nested".to_owned(),
        2 => "/a/b".to_owned(),
        3 => "x".repeat(noise.below(300)),
        // The protocol allows only UTF-8.
        4 => String::from_utf8_lossy(&noise.bytes(20)).into_owned(),
        _ => noise.below(20).to_string(),
    };
    Entry { key: key.to_owned(), value }
}
