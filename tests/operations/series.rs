//! Series that contain callers' values: bounded in number and length, shown from their first hit, and evicted for others
//! after an hour without hits. No hit is lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::UdpSocket,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use crate::support::{
    client::{Client, request},
    clock::Clock,
    eventually, holds, http,
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
fn a_callers_series_appears_with_its_first_value() {
    let server = setup().start();
    let client = server.client();
    let names = |expected: &[&str]| {
        let made = series(&server);
        let found: BTreeSet<_> =
            made.keys().filter_map(|name| name.strip_prefix(PREFIX)?.split('{').next()).collect();
        assert_eq!(found, expected.iter().copied().collect(), "{made:?}");
        assert!(made.values().all(|n| *n > 0.0), "{made:?}");
    };
    let v = ["v".to_owned()];
    ask(&client, "d", &v);
    names(&["near_limit", "total_hits", "within_limit"]);
    ask(&client, "d", &v);
    names(&["near_limit", "over_limit", "total_hits", "within_limit"]);
    ask(&client, "d", &v);
    names(&["near_limit", "over_limit", "over_limit_with_local_cache", "total_hits", "within_limit"]);
}

#[test]
fn idle_series_are_evicted_for_new_ones_every_hour() {
    let clock = Clock::ordinary().steerable();
    let _clock = clock.enter();
    let server = setup().env("METRICS_MAX_SERIES", "20").start();
    let client = server.client();
    let kept = ["kept".to_owned()];
    for hour in 0..5 {
        ask(&client, "d", &kept);
        let name = [format!("new{hour}")];
        // There is no room at the first hits; they are counted nevertheless.
        eventually("a new name finds room", || {
            ask(&client, "d", &name);
            let made = series(&server);
            holds(made.keys().any(|series| series.contains(&format!("ip_{}\"", name[0]))), || {
                format!("{made:?}")
            })
        });
        ask(&client, "d", &(0..20).map(|n| format!("{hour}of{n}")).collect::<Vec<_>>());
        let taken = server.metric("tollgate_metrics_series");
        assert!((taken - 20.0).abs() < 0.5 && series(&server).len() <= 20, "{taken} are taken");
        clock.step(1800.0);
        ask(&client, "d", &kept);
        clock.step(1800.0);
    }
    let of_kept = format!("{PREFIX}total_hits{{domain=\"d\",key1=\"ip_kept\"}}");
    assert!((server.metric(&of_kept) - 10.0).abs() < 0.5, "a used series stays and keeps counting");
}

#[test]
fn statsd_receives_every_hit_of_series_that_are_evicted_and_return() {
    let clock = Clock::ordinary().steerable();
    let _clock = clock.enter();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let port = socket.local_addr().unwrap().port().to_string();
    let (sent, stop) = (Arc::new(Mutex::new(0)), Arc::new(AtomicBool::new(false)));
    let receiver = {
        let (sent, stop) = (sent.clone(), stop.clone());
        thread::spawn(move || {
            let mut packet = vec![0; 1 << 16];
            while !stop.load(Relaxed) {
                let Ok(length) = socket.recv(&mut packet) else { continue };
                let text = String::from_utf8_lossy(&packet[..length]).into_owned();
                for line in text.lines().filter(|line| line.contains(".total_hits:")) {
                    let n = line.rsplit(':').next().and_then(|rest| rest.split('|').next()).unwrap();
                    *sent.lock().unwrap() += n.parse::<u64>().unwrap();
                }
            }
        })
    };
    let server = setup()
        .env("METRICS_MAX_SERIES", "20")
        .env("USE_STATSD", "true")
        .env("STATSD_HOST", "127.0.0.1")
        .env("STATSD_PORT", &port)
        .env("STATSD_PROTOCOL", "udp")
        .env("STATS_FLUSH_INTERVAL", "50ms")
        .start();
    let client = server.client();
    let mut asked = 0;
    let mut hit = |names: Vec<String>| {
        ask(&client, "d", &names);
        asked += names.len() as u64;
    };
    for round in 0..4 {
        // The same names return with more hits than before.
        let names: Vec<_> =
            (0..8).map(|n| format!("{}{n}", if round % 2 == 0 { "even" } else { "odd" })).collect();
        // Which of them is the first to find room depends on when the old ones leave.
        eventually("a name of this round found room", || {
            hit(names.clone());
            let made = series(&server);
            let is_of_round = |series: &String| names.iter().any(|name| series.contains(name));
            holds(made.keys().any(is_of_round), || format!("{made:?}"))
        });
        for _ in 0..=round {
            hit(names.clone());
        }
        clock.step(3600.0);
    }
    eventually("every hit is sent", || {
        let sent = *sent.lock().unwrap();
        holds(sent == asked, || format!("{sent} of {asked}"))
    });
    stop.store(true, Relaxed);
    receiver.join().unwrap();
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

#[test]
fn control_characters_of_values_are_escaped_on_the_page() {
    let server = setup().start();
    let values =
        ["a\u{1b}[31mb", "a\0b", "a\rb", "a\nb", "a\u{202e}b", "a\"b", "a\\b", "ü"].map(str::to_owned);
    ask(&server.client(), "d", &values);
    let page = http::get(server.ports.metrics, "/metrics").text();
    let raw = |character: char| character != '\n' && text::is_unprintable(character);
    assert!(!page.contains(raw), "{:?}", page.lines().find(|line| line.contains(raw)));
    for shown in [r"a\\u{1b}[31mb", r"a\\u{0}b", r"a\\rb", r"a\nb", r"a\\u{202e}b", r#"a\"b"#, r"a\\b", "ü"]
    {
        assert!(page.contains(shown), "no {shown}");
    }
}
