//! Sends the same requests to two services, one with leases and one without, each with its own Redis. No other replica
//! counts, so their answers and statistics must be equal, to the last hit.

use std::collections::BTreeMap;

use support::{
    noise::Noise,
    redis::Redis,
    server::{Server, Setup},
};

use super::{Code, RateLimitRequest, ask, descriptor, hits, leased, metric, request};

const RULES: &str = "
domain: d
descriptors:
  - key: hundred
    rate_limit: {unit: year, requests_per_unit: 100}
  - key: many
    rate_limit: {unit: year, requests_per_unit: 1000}
  - key: day
    rate_limit: {unit: day, unit_multiplier: 30, requests_per_unit: 1000}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: year, requests_per_unit: 300}
  - key: quota
    quota_mode: true
    rate_limit: {unit: year, requests_per_unit: 300}
  - key: several
    rate_limit:
      - {unit: year, requests_per_unit: 500}
      - {unit: year, unit_multiplier: 2, requests_per_unit: 700}
  - key: bucket
    rate_limit: {unit: year, requests_per_unit: 300, algorithm: token_bucket}
";

/// Both services, and their stores.
struct Pair {
    _redis: [Redis; 2],
    exact: Server,
    leased: Server,
}

impl Pair {
    fn start(env: &[(&str, &str)]) -> Self {
        let redis = [Redis::single(), Redis::single()];
        let with = |setup: Setup| env.iter().fold(setup, |setup, (name, value)| setup.env(name, value));
        let exact = with(Setup::new().redis(&redis[0].env()).rules("d.yaml", RULES)).start_healthy();
        // One worker sends requests and returns of hits in order: else an answer may count hits as left that were returned.
        let leased = leased(&redis[1].env(), RULES).env("GRPC_WORKERS", "1");
        let leased = with(leased).start_healthy();
        // A script that Redis does not know is sent again, after later commands.
        let warm_up = request("d", &[&[("many", "warm")], &[("several", "warm")]]);
        for service in [&exact, &leased] {
            super::admitted(&service.client(), &warm_up, 50);
        }
        Self { _redis: redis, exact, leased }
    }

    /// Sends the same requests to both, and compares the answers and finally the statistics of the rules. Leases must have
    /// decided at least this many checks.
    fn compare(&self, requests: &[RateLimitRequest], by_leases: f64) {
        let (exact, leased) = (self.exact.client(), self.leased.client());
        let before = metric(&self.leased, "tollgate_lease_hits_total");
        for (index, request) in requests.iter().enumerate() {
            let [expected, actual] = [&exact, &leased].map(|client| {
                let answer = ask(client, request);
                let statuses = answer.statuses.iter().map(|status| {
                    let limit = status.current_limit.as_ref().map(|limit| limit.requests_per_unit);
                    (status.code(), status.limit_remaining, limit)
                });
                (answer.overall_code(), statuses.collect::<Vec<_>>())
            });
            assert_eq!(actual, expected, "request {index}: {request:?}");
        }
        let decided = metric(&self.leased, "tollgate_lease_hits_total") - before;
        assert!(decided >= by_leases, "{decided} of {} by leases", requests.len());
        assert_eq!(statistics(&self.leased), statistics(&self.exact));
    }
}

/// The statistics of the rules. What a lease refuses is not refused by the local cache.
fn statistics(server: &Server) -> BTreeMap<String, f64> {
    let is_of_rule = |name: &str| {
        let is_named =
            name.starts_with("ratelimit_service_rate_limit_") || name.starts_with("tollgate_rule_hits_total");
        is_named && !name.contains("_with_local_cache{")
    };
    server.metrics().into_iter().filter(|(name, _)| is_of_rule(name)).collect()
}

fn times(request: &RateLimitRequest, times: usize) -> Vec<RateLimitRequest> {
    vec![request.clone(); times]
}

#[test]
fn single_hits_up_to_the_limit_and_beyond() {
    let pair = Pair::start(&[]);
    pair.compare(&times(&hits("many", 1), 1100), 850.0);
    pair.compare(&times(&hits("hundred", 1), 150), 50.0);
    pair.compare(&times(&hits("day", 1), 300), 220.0);
}

#[test]
fn many_hits_reads_and_refunds() {
    let pair = Pair::start(&[]);
    let mut noise = Noise::new(11);
    let mut requests = times(&hits("many", 1), 50);
    for _ in 0..130 {
        let count = i64::try_from(noise.below(9)).unwrap();
        requests.extend([hits("many", count), hits("many", 0), hits("many", 1)]);
        if noise.below(20) == 0 {
            requests.push(hits("many", -3));
        }
    }
    // More than a lease has, and more than the limit has left.
    requests.extend([
        hits("many", 200),
        hits("many", 1),
        hits("many", 900),
        hits("many", 0),
        hits("many", 1),
    ]);
    pair.compare(&requests, 150.0);
}

#[test]
fn several_descriptors_each_with_its_own_lease() {
    let pair = Pair::start(&[]);
    let mut both =
        request("d", &[&[("many", "v")], &[("hundred", "v")], &[("bucket", "v")], &[("none", "v")]]);
    pair.compare(&times(&both, 350), 100.0);
    both.descriptors[0].hits_addend = Some(3);
    both.descriptors.push(descriptor(&[("many", "v")]));
    pair.compare(&times(&both, 50), 50.0);
}

#[test]
fn the_limits_of_a_rule_count_all_or_nothing() {
    let pair = Pair::start(&[]);
    let mut requests = times(&hits("several", 1), 300);
    requests.extend(times(&hits("several", 7), 20));
    requests.extend([hits("several", -5), hits("several", 0), hits("several", 90)]);
    requests.extend(times(&hits("several", 1), 150));
    pair.compare(&requests, 300.0);
}

#[test]
fn shadow_and_quota_modes() {
    let pair = Pair::start(&[]);
    pair.compare(&times(&hits("shadow", 1), 350), 150.0);
    pair.compare(&times(&hits("quota", 1), 350), 150.0);
    let both = request("d", &[&[("quota", "w")], &[("hundred", "w")]]);
    pair.compare(&times(&both, 350), 150.0);
}

#[test]
fn requests_over_one_limit_add_nothing_to_the_others() {
    let pair = Pair::start(&[("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true")]);
    pair.compare(&times(&request("d", &[&[("many", "v")], &[("hundred", "v")]]), 95), 20.0);
    pair.compare(&times(&request("d", &[&[("many", "w")], &[("several", "w")]]), 400), 200.0);
    let with_exact = request("d", &[&[("many", "x")], &[("bucket", "x")]]);
    pair.compare(&times(&with_exact, 100), 0.0);
}

#[test]
fn limits_of_requests() {
    let pair = Pair::start(&[]);
    let mut brought = hits("many", 1);
    brought.descriptors[0].limit =
        Some(proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride {
            requests_per_unit: 250,
            unit: 6,
            unit_multiplier: None,
        });
    pair.compare(&times(&brought, 300), 100.0);
    assert_eq!(ask(&pair.leased.client(), &brought).overall_code(), Code::OverLimit);
}

#[test]
fn keys_over_their_limit_are_refused_by_leases_and_the_local_cache() {
    let pair = Pair::start(&[("LOCAL_CACHE_SIZE_IN_BYTES", "1000000")]);
    pair.compare(&times(&hits("hundred", 1), 300), 50.0);
    // What a lease knows is not remembered again by the cache, which would know it for longer.
    let [cached, leased] =
        ["ratelimit_localcache_hitCount", "tollgate_lease_hits_total"].map(|name| metric(&pair.leased, name));
    assert!(cached + leased >= 190.0, "{cached} were decided by the cache, {leased} by the lease");
}
