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
use proto::kuadrant::service::ratelimit::v1::{
    CommitRequest, ReserveRequest, rate_limit_service_client::RateLimitServiceClient,
};
use tonic::transport::Channel;

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

#[test]
fn random_calls_of_kuadrants_service_get_the_same_answers_from_both_implementations() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let seed = env::var("TOLLGATE_TEST_SEED").map_or(now, |text| text.parse().unwrap());
    println!("TOLLGATE_TEST_SEED={seed}");
    let held =
        "  - {key: no rule, rate_limit: {unit: year, requests_per_unit: 9000, hold: {amount: 1, ttl: 1h}}}";
    let rules = format!("{RULES}{held}\n");
    let servers = ["fast", "tonic"]
        .map(|server| Setup::new().rules("d.yaml", &rules).env("GRPC_SERVER", server).start());
    let clients = servers.each_ref().map(Server::client);
    let mut ids = [vec![String::new()], vec![String::new()]];
    let mut noise = Noise::new(seed);
    for number in 0..REQUESTS {
        let asked = random_request(&mut noise);
        let (method, amount) = (noise.below(4), [0, 1, 7, 50, 91, u64::MAX][noise.below(6)]);
        let which = noise.below(ids[0].len());
        let answers = [0, 1].map(|at| {
            let id = ids[at][which].clone();
            let (answer, id) =
                clients[at].call(|channel| kuadrant(channel, method, asked.clone(), amount, id));
            ids[at].extend(id);
            answer
        });
        assert_eq!(answers[0], answers[1], "call {number}: method {method}, {amount}, {asked:?}");
    }
    assert!(ids[0].len() > 5, "some are reserved");
}

/// The answer to a call of Kuadrant's service as text, and the id of a reservation.
async fn kuadrant(
    channel: Channel,
    method: usize,
    asked: RateLimitRequest,
    amount: u64,
    id: String,
) -> (String, Option<String>) {
    let mut client = RateLimitServiceClient::new(channel);
    let RateLimitRequest { domain, descriptors, .. } = asked.clone();
    let answer = match method {
        0 => client
            .check_rate_limit(asked)
            .await
            .map(|answer| format!("{:?}", without_seconds(answer.into_inner()))),
        1 => client.report(asked).await.map(|answer| format!("{:?}", without_seconds(answer.into_inner()))),
        2 => {
            let asked = ReserveRequest { domain, descriptors, amount, ttl: None };
            match client.reserve(asked).await.map(tonic::Response::into_inner) {
                Ok(answer) if !answer.reservation_id.is_empty() => {
                    return (format!("reserved {:?}", answer.code()), Some(answer.reservation_id));
                }
                answer => answer.map(|answer| format!("{answer:?}")),
            }
        }
        _ => {
            let asked = CommitRequest { domain, descriptors, reservation_id: id, actual_amount: amount };
            client.commit(asked).await.map(|answer| format!("{:?}", answer.into_inner()))
        }
    };
    (answer.unwrap_or_else(|status| format!("{:?} {}", status.code(), status.message())), None)
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
