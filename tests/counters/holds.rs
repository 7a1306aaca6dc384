//! Holds on the real binary: budgets that are reserved while a request is under way, and settled at its cost.

mod features;
mod hostile;
mod kuadrant;
mod life;
mod lost;

use proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response::Code};

use support::{
    client::{Client, descriptor, hold_id, metadata, request},
    redis::{Cluster, Redis},
    server::{Server, Setup},
};

/// A budget of 100 an hour by what an unknown cost charges, requests under way, and ordinary limits.
const RULES: &str = "
domain: d
descriptors:
  - key: budget
    rate_limit: {unit: year, requests_per_unit: 100, hold: {amount: 40, ttl: 10m, in: tokens}}
  - key: bounded
    rate_limit: {unit: year, requests_per_unit: 100, hold: {amount: 10, most: 30%, ttl: 10m}}
  - key: dollars
    rate_limit: {unit: year, requests_per_unit: 1000, hold: {amount: 300, ttl: 10m, in: dollars}}
  - key: zero
    rate_limit: {unit: year, requests_per_unit: 100, hold: {amount: 40, ttl: 10m, unknown: zero}}
  - key: ten
    rate_limit: {unit: year, requests_per_unit: 100, hold: {amount: 40, ttl: 10m, unknown: 10}}
  - key: short
    rate_limit: {unit: year, requests_per_unit: 100, hold: {amount: 40, ttl: 1s, unknown: zero}}
  - key: streams
    rate_limit: {algorithm: concurrency, requests_per_unit: 2, hold: {ttl: 10m}}
  - key: brief
    rate_limit: {algorithm: concurrency, requests_per_unit: 1, hold: {ttl: 1s}}
  - key: plain
    rate_limit: {unit: year, requests_per_unit: 3}
";

/// A service with the metadata that shows what is spent and held.
fn setup() -> Setup {
    let shown =
        Setup::new().env("RESPONSE_DYNAMIC_METADATA", "true").env("RESPONSE_DYNAMIC_METADATA_LIMITS", "true");
    shown.rules("d.yaml", RULES)
}

/// The seconds of a header that says when to come back.
fn retry_after(answer: &RateLimitResponse) -> Option<u64> {
    let header = answer.response_headers_to_add.iter().find(|header| header.key == "retry-after");
    header?.value.parse().ok()
}

/// In memory, in Redis, in Redis with leases, and in a cluster; the servers stop with the list.
struct Places {
    redis: [Redis; 2],
    cluster: Cluster,
}

impl Places {
    fn start() -> Self {
        let cluster = Cluster::start(std::time::Duration::from_secs(5));
        Self { redis: [Redis::single(), Redis::single()], cluster }
    }

    fn setups(&self) -> [(&'static str, Setup); 4] {
        let [redis, leased] = self.redis.each_ref().map(|redis| setup().redis(&redis.env()));
        [
            ("memory", setup()),
            ("redis", redis),
            ("leased", leased.env("COUNTING", "leased")),
            ("cluster", setup().redis(&self.cluster.env())),
        ]
    }
}

/// A connection to a service, and what tests do with holds.
struct Holder(Client);

impl Holder {
    fn of(server: &Server) -> Self {
        Self(server.client())
    }

    fn ask(&self, request: RateLimitRequest) -> RateLimitResponse {
        self.0.ask(request).unwrap()
    }

    /// Holds with these descriptors; the identity, if it passes and holds.
    fn hold(&self, descriptors: &[(&str, &str)]) -> Option<String> {
        let lists: Vec<[(&str, &str); 1]> = descriptors.iter().map(|entry| [*entry]).collect();
        let lists: Vec<&[(&str, &str)]> = lists.iter().map(|list| &list[..]).collect();
        hold_id(&self.ask(request("d", &lists)))
    }

    /// Holds this estimate.
    fn hold_hits(&self, key: &str, value: &str, hits: u64) -> Option<String> {
        let mut asked = request("d", &[&[(key, value)]]);
        asked.descriptors[0].hits_addend = Some(hits);
        hold_id(&self.ask(asked))
    }

    fn close(&self, entries: &[(&str, &str)], cost: Option<u64>) {
        let mut closing = descriptor(entries);
        closing.hits_addend = cost;
        let asked =
            RateLimitRequest { domain: "no-such-domain".into(), descriptors: vec![closing], hits_addend: 0 };
        let answer = self.ask(asked);
        assert_eq!(answer.overall_code(), Code::Ok);
        assert_eq!(answer.statuses[0].code(), Code::Ok);
        assert!(answer.dynamic_metadata.is_none());
    }

    fn settle(&self, id: &str, cost: u64) {
        self.close(&[("hold_settle", id)], Some(cost));
    }

    fn settle_in(&self, id: &str, currency: &str, cost: u64) {
        self.close(&[("hold_settle", id), ("hold_in", currency), ("other", "ignored")], Some(cost));
    }

    fn end(&self, id: &str) {
        self.close(&[("hold_end", id)], Some(7));
    }

    /// What is spent and held, by a read.
    fn seen(&self, key: &str, value: &str) -> (u64, u64) {
        let mut asked = request("d", &[&[(key, value)]]);
        asked.descriptors[0].hits_addend = Some(0);
        let answer = self.ask(asked);
        assert_eq!(hold_id(&answer), None, "a read holds nothing");
        let metadata = metadata(&answer);
        let decision = &metadata["descriptors"][0]["decision"];
        let number = |name: &str| decision[name].as_f64().unwrap_or_else(|| panic!("{metadata}"));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small whole numbers")]
        (number("spent") as u64, number("held") as u64)
    }
}
