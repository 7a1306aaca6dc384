//! "When set, the `hits_addend` value decrements the rate limit counter […]. The counter is floored at 0 […]. Negative hits
//! bypass over-limit and near-limit checks (always return OK). New `total_negative_hits` stat tracks requested decrements
//! per descriptor."

use proto::envoy::service::ratelimit::v3::{RateLimitResponse, rate_limit_response::Code};

use super::hits;
use crate::support::{client::Client, server::Server, stores::Stores};

const RULES: &str = "
domain: d
descriptors:
  - key: ten
    rate_limit: {unit: year, requests_per_unit: 10}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: year, requests_per_unit: 10}
";

/// The codes and the hits that are left.
fn seen(answer: &RateLimitResponse) -> (Code, Vec<(Code, u32)>) {
    let statuses = answer.statuses.iter().map(|status| (status.code(), status.limit_remaining));
    (answer.overall_code(), statuses.collect())
}

fn asked(client: &Client, key: &str, number: i64) -> (Code, u32) {
    let (code, statuses) = seen(&client.ask(hits(key, "v", number)).unwrap());
    assert_eq!(statuses[0].0, code);
    (code, statuses[0].1)
}

fn counted(server: &Server, stat: &str, key: &str) -> usize {
    server.count(&format!("ratelimit_service_rate_limit_{stat}{{domain=\"d\",key1=\"{key}\"}}"))
}

#[test]
fn a_refund_is_ok_and_skips_the_checks_in_every_store() {
    let stores = Stores::start(RULES);
    for (store, setup) in stores.setups() {
        let server = setup.start_healthy();
        let client = server.client();
        for key in ["ten", "shadow"] {
            assert_eq!(asked(&client, key, -3), (Code::Ok, 10), "{store}: a counter is never below 0");
            asked(&client, key, 25);
            assert_eq!(asked(&client, key, -5), (Code::Ok, 0), "{store}: OK, though 20 of 10 are counted");
            assert_eq!(asked(&client, key, -11), (Code::Ok, 1), "{store}");
            assert_eq!(asked(&client, key, 1), (Code::Ok, 0), "{store}");
            assert_eq!(asked(&client, key, -100), (Code::Ok, 10), "{store}");
            let stats = ["total_hits", "over_limit", "near_limit", "within_limit"];
            // Of the 25 hits 2 are near the limit and 15 over it; then one more is near it.
            let counts = stats.map(|stat| counted(&server, stat, key));
            assert_eq!(counts, [26, 15, 3, 1], "{store}: refunds count elsewhere");
            assert_eq!(counted(&server, "total_negative_hits", key), 3 + 5 + 11 + 100, "{store}");
        }
    }
}

#[test]
fn a_refund_is_ok_beside_a_rejected_descriptor() {
    let stores = Stores::start(RULES);
    for (store, setup) in stores.setups() {
        for stop in ["false", "true"] {
            let server = setup.clone().env("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", stop).start_healthy();
            let client = server.client();
            for key in [format!("over {stop}"), format!("back {stop}")] {
                client.ask(hits("ten", &key, 20)).unwrap();
            }
            let mut both = hits("ten", &format!("back {stop}"), -4);
            both.descriptors.push(hits("ten", &format!("other {stop}"), 4).descriptors.remove(0));
            let expected = vec![(Code::Ok, 0), (Code::Ok, 6)];
            assert_eq!(seen(&client.ask(both.clone()).unwrap()), (Code::Ok, expected), "{store} {stop}");
            both.descriptors.push(hits("ten", &format!("over {stop}"), 1).descriptors.remove(0));
            let left = if stop == "true" { 6 } else { 2 };
            let expected = vec![(Code::Ok, 0), (Code::Ok, left), (Code::OverLimit, 0)];
            assert_eq!(seen(&client.ask(both).unwrap()), (Code::OverLimit, expected), "{store} {stop}");
            // Both refunds were counted: 12 of 10 are left.
            let rest = client.ask(hits("ten", &format!("back {stop}"), -3)).unwrap();
            assert_eq!(seen(&rest), (Code::Ok, vec![(Code::Ok, 1)]), "{store} {stop}");
        }
    }
}
