//! Leases: hits of hot keys that replicas take from Redis ahead of time.

// Every feature of a request, compared with and without leases.
mod differential;
// A lost Redis, changed rules, and a clock that is set back.
mod faults;
// Several replicas on one counter.
mod replicas;

use std::time::Duration;

use proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response::Code};

use support::{
    client::{Client, descriptor, request},
    clock::YEAR,
    redis::Env,
    server::{Server, Setup},
};

/// A service that leases hits from this Redis, with these rules.
fn leased(redis: &Env, rules: &str) -> Setup {
    Setup::new().redis(redis).rules("d.yaml", rules).env("COUNTING", "leased")
}

/// A request of one descriptor with hits; negative ones are refunds.
fn hits(key: &str, hits: i64) -> RateLimitRequest {
    let mut request = request("d", &[&[(key, "v")]]);
    request.descriptors[0].hits_addend = Some(hits.unsigned_abs());
    request.descriptors[0].is_negative_hits = hits < 0;
    request
}

fn ask(client: &Client, request: &RateLimitRequest) -> RateLimitResponse {
    client.ask(request.clone()).expect("the request is answered")
}

/// Sends this many requests, and returns how many were admitted.
fn admitted(client: &Client, request: &RateLimitRequest, times: usize) -> usize {
    (0..times).filter(|_| ask(client, request).overall_code() == Code::Ok).count()
}

/// The value of a metric without labels; 0 where it is absent.
fn metric(server: &Server, name: &str) -> f64 {
    server.metrics().get(name).copied().unwrap_or_default()
}

/// Longer than any lease is held without a request.
const IDLE: Duration = Duration::from_secs(2);
