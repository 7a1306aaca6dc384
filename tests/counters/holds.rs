//! Holds on the real binary: budgets that are reserved while a request is under way, and settled at its cost.

mod features;
mod hostile;
mod life;
mod lost;

use proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response::Code};

use crate::support::{
    client::{Client, descriptor, request},
    redis::{Cluster, Redis},
    server::{Server, Setup},
};

/// A budget of 100 an hour by what an unknown cost charges, requests under way, and ordinary limits.
const RULES: &str = "
domain: d
descriptors:
  - key: budget
    rate_limit: {unit: year, requests_per_unit: 100, hold: {amount: 40, ttl: 10m, in: tokens}}
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
        id(&self.ask(request("d", &lists)))
    }

    /// Holds this estimate.
    fn hold_hits(&self, key: &str, value: &str, hits: u64) -> Option<String> {
        let mut asked = request("d", &[&[(key, value)]]);
        asked.descriptors[0].hits_addend = Some(hits);
        id(&self.ask(asked))
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
        assert_eq!(id(&answer), None, "a read holds nothing");
        let metadata = json(&answer);
        let decision = &metadata["descriptors"][0]["decision"];
        let number = |name: &str| decision[name].as_f64().unwrap_or_else(|| panic!("{metadata}"));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small whole numbers")]
        (number("spent") as u64, number("held") as u64)
    }
}

/// The dynamic metadata of a response.
fn json(answer: &RateLimitResponse) -> serde_json::Value {
    fn value(one: &prost_types::Value) -> serde_json::Value {
        use prost_types::value::Kind;
        match one.kind.as_ref() {
            Some(Kind::NumberValue(number)) => (*number).into(),
            Some(Kind::StringValue(text)) => text.clone().into(),
            Some(Kind::BoolValue(flag)) => (*flag).into(),
            Some(Kind::StructValue(map)) => fields(map),
            Some(Kind::ListValue(list)) => list.values.iter().map(value).collect(),
            Some(Kind::NullValue(_)) | None => serde_json::Value::Null,
        }
    }
    fn fields(map: &prost_types::Struct) -> serde_json::Value {
        map.fields
            .iter()
            .map(|(key, one)| (key.clone(), value(one)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }
    answer.dynamic_metadata.as_ref().map_or(serde_json::Value::Null, fields)
}

/// The identity in a response, which only one that passes has.
pub(crate) fn id(answer: &RateLimitResponse) -> Option<String> {
    let id = json(answer)["hold"].as_str().map(str::to_owned)?;
    assert_eq!(answer.overall_code(), Code::Ok, "{id}");
    let is_opaque = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    assert!((22..=128).contains(&id.len()) && id.bytes().all(is_opaque), "{id}");
    Some(id)
}
