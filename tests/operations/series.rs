//! Series that contain callers' values are bounded in number and length, and rules start at zero.

use std::collections::BTreeMap;

use support::{
    client::{Client, request},
    http,
    server::{Server, Setup},
};

const RULES: &str = "domain: d\ndescriptors:\n- {key: ip, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 1}}\n";
const PREFIX: &str = "ratelimit_service_rate_limit_";

fn setup() -> Setup {
    Setup::new().rules("d.yaml", RULES).env("LOCAL_CACHE_SIZE_IN_BYTES", "1000000")
}

/// One hit for each of these values.
fn ask(client: &Client, domain: &str, values: &[String]) {
    for values in values.chunks(100) {
        let entries: Vec<_> = values.iter().map(|value| [("ip", value.as_str())]).collect();
        let descriptors: Vec<&[(&str, &str)]> = entries.iter().map(<[_; 1]>::as_slice).collect();
        client.ask(request(domain, &descriptors)).unwrap();
    }
}

/// The series with callers' values, by name and labels.
fn series(server: &Server) -> BTreeMap<String, f64> {
    let mut metrics = server.metrics();
    let made = [PREFIX, "tollgate_rule_hits_total"];
    metrics.retain(|name, _| {
        let is_limit = name.contains("_rate_limit_limit{");
        made.iter().any(|prefix| name.starts_with(prefix)) && !name.contains("__overflow__") && !is_limit
    });
    metrics
}

fn hits(metrics: &BTreeMap<String, f64>) -> f64 {
    metrics.iter().filter(|(name, _)| name.contains("total_hits{")).map(|(_, n)| n).sum()
}

#[test]
fn the_page_stays_small_whatever_callers_send() {
    let server = setup().env("METRICS_MAX_SERIES", "500").start();
    let client = server.client();
    // 1 KB each; consecutive ones differ in their last character only.
    let long = |n: usize| format!("{}{}{}", n / 2, "é".repeat(500), n % 2);
    for n in 0..100 {
        ask(&client, &format!("{}{n}", "x".repeat(1000)), &["v".to_owned()]);
    }
    ask(&client, "d", &(0..1000).map(long).collect::<Vec<_>>());
    let made = series(&server);
    assert_eq!(made.len(), 500, "at the bound");
    assert!(made.values().all(|n| *n > 0.0), "none is shown before its first hit: {made:?}");
    let domains = made.keys().filter(|name| name.contains("domain_not_found")).count();
    assert_eq!(domains, 50, "unknown domains have a tenth of the bound");
    let longest = |name: &String| name.split('"').map(str::len).max();
    assert!(made.keys().map(longest).max().flatten() <= Some(200));
    let page = http::get(server.ports.metrics, "/metrics").body.len();
    assert!(page < 500 * 300 + 100_000, "{page} bytes");
    let all = server.metrics();
    assert!((hits(&all) - 1000.0).abs() < 0.5, "no hit is lost: {}", hits(&all));
    assert!((all["tollgate_metrics_series"] - 500.0).abs() < 0.5);
    assert!((all["tollgate_metrics_series_max"] - 500.0).abs() < 0.5);
    assert!(all["tollgate_metrics_series_overflow_total{domain=\"d\"}"] > 0.0);
}

#[test]
fn rules_and_domains_start_at_zero_under_their_full_path() {
    let rules = "domain: shop.eu\ndescriptors:\n- key: a\n  descriptors:\n  - key: b\n    value: x\n    descriptors:\n    \
        - {key: c, rate_limit: {unit: year, requests_per_unit: 2}}\n    \
        - {key: s, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}\n\
        - {key: free, rate_limit: {unlimited: true}}\n- {key: each, detailed_metric: true, rate_limit: {unit: year, \
        requests_per_unit: 1}}\n";
    let server = Setup::new().rules("shop.yaml", rules).start();
    let values = |series: &[(&str, &str)]| -> Vec<Option<f64>> {
        let metrics = server.metrics();
        let value = |(name, labels): &(&str, &str)| {
            metrics.get(&format!("tollgate_{name}_total{{{labels}}}")).copied()
        };
        series.iter().map(value).collect()
    };
    let hits = [
        ("rule_hits", "domain=\"shop.eu\",rule=\"a.b_x.c\",outcome=\"allowed\""),
        ("rule_hits", "domain=\"shop.eu\",rule=\"a.b_x.c\",outcome=\"over_limit\""),
        ("rule_hits", "domain=\"shop.eu\",rule=\"a.b_x.s\",outcome=\"shadow\""),
    ];
    let codes = [
        ("requests", "domain=\"shop.eu\",code=\"ok\""),
        ("requests", "domain=\"shop.eu\",code=\"over_limit\""),
        ("requests", "domain=\"shop.eu\",code=\"error\""),
        ("requests", "domain=\"__unknown__\",code=\"ok\""),
        ("requests", "domain=\"__unknown__\",code=\"error\""),
    ];
    assert_eq!(values(&hits), [Some(0.0); 3]);
    assert_eq!(values(&codes), [Some(0.0); 5]);
    let shown =
        server.metrics().into_keys().filter(|name| name.starts_with("tollgate_rule_hits_total")).count();
    assert_eq!(shown, 6, "no series at 0 for unlimited rules and names from requests");

    let client = server.client();
    let path = |last: &'static str| [("a", "1"), ("b", "x"), (last, "2")];
    for _ in 0..3 {
        client.ask(request("shop.eu", &[&path("c")])).unwrap();
        client.ask(request("shop.eu", &[&path("s")])).unwrap();
    }
    client.ask(request("no.rules", &[&[("k", "v")]])).unwrap();
    assert!(client.ask(request("", &[&[("k", "v")]])).is_err());
    assert_eq!(values(&hits), [2.0, 1.0, 2.0].map(Some));
    assert_eq!(values(&codes), [5.0, 1.0, 0.0, 1.0, 1.0].map(Some));
}
