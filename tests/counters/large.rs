//! Limits beyond 32 bits: counted to the unit in every store, shown in full where a field has room.

use proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_response::Code::{self, Ok, OverLimit},
};
use serde_json::json;

use support::{
    client::{Client, request},
    clock::{YEAR, window},
    http,
    memcached::Memcached,
    server::Setup,
    stores::Stores,
};

/// Nanodollars: 30 dollars in the longest window, so that none ends or refills during a test.
const BUDGET: u64 = 30_000_000_000;

const MOST: u64 = 9_007_199_254_740_991;

const FIXED: &str = "domain: d
descriptors:
  - {key: fixed, rate_limit: {unit: year, unit_multiplier: 10, requests_per_unit: 30000000000}}
  - {key: most, rate_limit: {unit: year, unit_multiplier: 10, requests_per_unit: 9007199254740991}}
";

fn hits(key: &str, hits: u64) -> RateLimitRequest {
    let mut one = request("d", &[&[(key, "v")]]);
    one.descriptors[0].hits_addend = Some(hits);
    one
}

/// The code, and what is left by the header, which has all digits.
fn asked(client: &Client, key: &str, number: u64) -> (Code, u64) {
    seen(&client.ask(hits(key, number)).unwrap())
}

fn seen(answer: &RateLimitResponse) -> (Code, u64) {
    let [limit, left, _] = &answer.response_headers_to_add[..] else { panic!("{answer:?}") };
    let status = &answer.statuses[0];
    let [limit, left] = [limit, left].map(|header| header.value.parse::<u64>().unwrap());
    let in_32_bits = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    assert_eq!(status.current_limit.as_ref().unwrap().requests_per_unit, in_32_bits(limit));
    assert_eq!(status.limit_remaining, in_32_bits(left));
    (answer.overall_code(), left)
}

/// Spends a budget in hits of odd sizes; the last unit fits, and no other.
fn is_counted_to_the_unit(client: &Client, store: &str) {
    let (mut left, mut number) = (BUDGET, 1_000_003_u64);
    while left > number {
        left -= number;
        assert_eq!(asked(client, "fixed", number), (Ok, left), "{store}: {number}");
        number = (number * 3 + 7) % 5_000_000_029;
    }
    assert_eq!(asked(client, "fixed", 0), (Ok, left), "{store}");
    assert_eq!(asked(client, "fixed", left + 1).0, OverLimit, "{store}");
}

#[test]
fn a_budget_of_nanodollars_is_counted_to_the_unit() {
    let stores = Stores::start("domain: unused\n");
    for (store, setup) in stores.setups() {
        let setup = setup.rules("d.yaml", FIXED).env("LIMIT_RESPONSE_HEADERS_ENABLED", "true");
        let server = setup.start_healthy();
        is_counted_to_the_unit(&server.client(), store);
    }
}

#[test]
fn the_largest_limit_and_hits_saturate_above_it() {
    let stores = Stores::start("domain: unused\n");
    for (store, setup) in stores.setups() {
        let setup = setup.rules("d.yaml", FIXED).env("LIMIT_RESPONSE_HEADERS_ENABLED", "true");
        let server = setup.start_healthy();
        let client = server.client();
        assert_eq!(asked(&client, "most", MOST - 1), (Ok, 1), "{store}");
        assert_eq!(asked(&client, "most", 1), (Ok, 0), "{store}");
        assert_eq!(asked(&client, "most", 1), (OverLimit, 0), "{store}");
        // Sums that overflow 64 bits: no counter wraps.
        for _ in 0..3 {
            for huge in [MOST, 1 << 53, 1 << 63, u64::MAX] {
                assert_eq!(asked(&client, "most", huge), (OverLimit, 0), "{store} {huge}");
            }
        }
        assert_eq!(asked(&client, "most", 0).1, 0, "{store}");
    }
}

#[test]
fn a_counter_of_memcached_does_not_wrap() {
    let memcached = Memcached::single();
    let server = memcached.setup().rules("d.yaml", FIXED).start_healthy();
    let client = server.client();
    // Each adds 2⁵³: after 2,048, which are 32 requests, a counter would begin again.
    let mut huge = hits("most", u64::MAX);
    huge.descriptors = vec![huge.descriptors[0].clone(); 64];
    for number in 1..40 {
        let answer = client.ask(huge.clone()).unwrap();
        assert!(answer.statuses.iter().all(|status| status.code() == OverLimit), "{number}: {answer:?}");
        if number == 1 {
            let counter = memcached.counter(&format!("d_most_v_{}/{}", window(10 * YEAR), 10 * YEAR));
            assert_eq!(counter, 64 << 53, "none joins another one's command");
        }
        assert_eq!(client.ask(hits("most", 0)).unwrap().overall_code(), OverLimit, "{number}");
    }
}

#[test]
fn metadata_and_json_show_what_their_fields_hold() {
    let setup = Setup::new().rules("d.yaml", FIXED).env("RESPONSE_DYNAMIC_METADATA", "true");
    let setup =
        setup.env("RESPONSE_DYNAMIC_METADATA_LIMITS", "true").env("OVER_LIMIT_BODY", "{limit} {remaining}");
    let server = setup.start_healthy();
    let body = json!({"domain": "d", "descriptors": [
        {"entries": [{"key": "most", "value": "v"}], "hits_addend": "9007199254740990"},
    ]});
    let text = http::post(server.ports.http, "/json", &body.to_string()).text();
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["statuses"][0]["currentLimit"]["requestsPerUnit"], 4_294_967_295_u32, "{answer}");
    assert_eq!(answer["statuses"][0]["limitRemaining"], 1);
    // As text, because the parser of the test may round.
    assert!(text.contains("\"requestsPerUnit\":9007199254740991"), "{text}");
    let over = server.ask(hits("most", 2)).unwrap();
    assert_eq!(String::from_utf8(over.raw_body).unwrap(), format!("{MOST} 0"));
}
