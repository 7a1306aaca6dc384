//! Requests as JSON.

use proptest::prelude::*;
use prost::Message as _;
use proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride},
    },
    service::ratelimit::v3::RateLimitRequest,
};

use super::{request::fuzz, *};
use clock::{Clock as _, ManualClock, Time};
use limiter::{Policy, handles};
use memory::MemoryStore;
use metrics::{Stats, StatsOptions};
use rules::CompileOptions;
use rules_source::{RulesDir, Source};

const NONE: Bounds = Bounds { descriptors: usize::MAX, entries: usize::MAX };

fn read(json: &str) -> Result<RateLimitRequest, String> {
    let message = to_message(json.as_bytes(), NONE)?;
    RateLimitRequest::decode(&*message).map_err(|error| error.to_string())
}

#[test]
fn reads_both_forms_of_names_and_numbers_as_text() {
    let entry = Entry { key: "k".to_owned(), value: "\u{e9}\n".to_owned() };
    let limit = RateLimitOverride { requests_per_unit: 5, unit: 2, unit_multiplier: None };
    let descriptor = RateLimitDescriptor {
        entries: vec![entry],
        limit: Some(limit),
        hits_addend: Some(3),
        is_negative_hits: true,
    };
    let expected = RateLimitRequest { domain: "d".to_owned(), descriptors: vec![descriptor], hits_addend: 2 };
    for json in [
        r#"{"domain":"d","hitsAddend":"2","descriptors":[{"entries":[{"key":"k","value":"é\n"}],"limit":{"requestsPerUnit":5,"unit":"MINUTE"},"hitsAddend":3,"isNegativeHits":true}]}"#,
        r#"{"hits_addend":2.0,"descriptors":[{"is_negative_hits":true,"hits_addend":"3","limit":{"unit":2,"requests_per_unit":"5"},"entries":[{"k\u0065y":"k","value":"\u00e9\n"}]}],"domain":"d"}"#,
    ] {
        assert_eq!(read(json).unwrap(), expected, "{json}");
    }
    assert_eq!(read(r#"{"domain":null,"descriptors":null}"#).unwrap(), RateLimitRequest::default());
}

#[test]
fn texts_that_are_not_utf8_are_escaped() {
    let read = |domain: &[u8]| {
        let message = to_message(&[b"{\"domain\":\"", domain, b"\"}"].concat(), NONE)?;
        RateLimitRequest::decode(&*message).map(|message| message.domain).map_err(|error| error.to_string())
    };
    for (domain, escaped) in [
        (&b"caf\xe9"[..], "caf\u{fffd}E9"),
        (b"\xff\\n\\\"\xed\xa0\x80", "\u{fffd}FF\n\"\u{fffd}ED\u{fffd}A0\u{fffd}80"),
        ("\u{fffd}".as_bytes(), "\u{fffd}EF\u{fffd}BF\u{fffd}BD"),
        (br"\uFffD", "\u{fffd}EF\u{fffd}BF\u{fffd}BD"),
        (br"\\ufffd\\\ufffc\ud83d\ude00", "\\ufffd\\\u{fffc}\u{1f600}"),
        ("caf\u{e9}".as_bytes(), "caf\u{e9}"),
    ] {
        assert_eq!(read(domain).as_deref(), Ok(escaped));
    }
    for lone in [&br"\ud800"[..], br"\udfff", br"\ud800\ufffd"] {
        let error = read(lone).unwrap_err();
        assert!(error.contains("at line 1 column"), "{error}");
    }
    for outside in [&b"\xff{}"[..], b"{\xe9}", b"{}\xff", br"{}\ufffd", b"{\"domain\xff\":\"d\"}"] {
        to_message(outside, NONE).unwrap_err();
    }
}

#[test]
fn an_error_names_the_place_and_cuts_long_texts() {
    let long = "x".repeat(4_000_000);
    for (json, shown) in [
        (r#"{"domian":"d"}"#.to_owned(), "unrecognized field name 'domian' at line 1"),
        (r#"{"domain":"d"} x"#.to_owned(), "trailing"),
        (r#"{"domain":1}"#.to_owned(), "expected a string at line 1"),
        (r#"{"descriptors":[{"limit":{"unit":"WEEK"}}]}"#.to_owned(), "WEEK"),
        (r#"{"descriptors":[null]}"#.to_owned(), "null"),
        (r#"{"hits_addend":4294967296}"#.to_owned(), "out of range"),
        ("[]".to_owned(), "map"),
        (String::new(), "EOF"),
        (format!("{{\"{long}\":1}}"), "unrecognized field name 'xxx"),
        // A name longer than any field's is not decoded.
        (format!("{{\"\\u0078{long}\" :1}}"), "unrecognized field name '\\u0078xxx"),
        (format!("{{\"hits_addend\":\"{long}\"}}"), "xxx"),
        (format!("{{\"descriptors\":\"{long}\"}}"), "xxx"),
        (format!("{{\"descriptors\":[\"{long}\"]}}"), "xxx"),
        (format!("{{\"descriptors\":[{{\"limit\":{{\"unit\":\"{long}\"}}}}]}}"), "xxx"),
        (format!("{{\"descriptors\":[{{\"is_negative_hits\":\"{long}\"}}]}}"), "xxx"),
        (format!("\"{long}\""), "xxx"),
    ] {
        let error = read(&json).unwrap_err();
        assert!(error.contains(shown), "{error}");
        assert!(error.len() <= text::LONGEST, "{} bytes", error.len());
    }
}

#[test]
fn a_body_has_as_many_objects_as_a_request_within_the_bounds() {
    let bounds = Bounds { descriptors: 2, entries: 3 };
    let descriptor = r#"{"entries":[{},{},{"key":"{\"{"}],"limit":{}}"#;
    let body = |descriptors: &str| format!("{{\"descriptors\":[{descriptors}]}}");
    assert!(to_message(body(&format!("{descriptor},{descriptor}")).as_bytes(), bounds).is_ok());
    let error = to_message(body(&format!("{descriptor},{descriptor},{{}},{{}},{{}}")).as_bytes(), bounds)
        .unwrap_err();
    assert!(error.starts_with("more than 13 objects (MAX_DESCRIPTORS_PER_REQUEST"), "{error}");
}

proptest! {
    #[test]
    fn any_json_is_read_as_it_is_written_or_an_error(
        json in r#"(\{|\}|\[|\]|,|:|"domain"|"descriptors"|"entries"|"k\\u0065y"|"limit"|"unit"|"a\\"b"|"\\uFFfd\\\\"|"�"|-?[0-9]{1,11}|null){0,20}"#,
    ) {
        fuzz(json.as_bytes());
    }
}

const HOLDS: &str = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 9, hold: {amount: 2, ttl: 1h}}}]\n";

/// The endpoints with a limit that holds, counted in memory.
fn endpoints() -> Arc<Endpoints> {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("config")).unwrap();
    std::fs::write(root.path().join("config/rules.yaml"), HOLDS).unwrap();
    let stats = Arc::new(Stats::new(StatsOptions::default()));
    let counters = stats.clone();
    let source = Source::new(CompileOptions::default(), move |rules| handles(rules, &counters, Vec::new()));
    let (source, clock) = (Arc::new(source), Arc::new(ManualClock::at(Time::from_seconds(7200))));
    source.reload(&RulesDir::new(root.path(), "", "config", false), clock.now());
    let store = Arc::new(MemoryStore::new(100));
    let limiter = Limiter::new(Policy::default(), source, store, None, stats, clock);
    let limiter = Arc::new(limiter.with_holds(limiter::system_chance(), 100));
    let details: Box<dyn Fn() -> Vec<String> + Send + Sync> = Box::new(Vec::new);
    Arc::new(Endpoints {
        health: Arc::default(),
        details,
        limiter,
        tracer: None,
        key_values: recent::KeyValues::Plain,
        has_json: true,
        max_request_bytes: 4 << 20,
    })
}

#[tokio::test]
async fn a_hold_is_delivered_with_the_bytes_of_its_response_and_cancelled_without_them() {
    let endpoints = endpoints();
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;
    for (is_written, cancelled) in [(true, 0), (false, 1)] {
        let request = Request::post("/json").body(Bytes::from(body)).unwrap();
        let answer = respond(&endpoints, &request).await;
        assert_eq!(answer.status(), StatusCode::OK);
        assert!(answer.headers().contains_key(header::CONTENT_LENGTH));
        if is_written {
            let text = answer.into_body().collect().await.unwrap().to_bytes();
            assert!(std::str::from_utf8(&text).unwrap().contains("hold"), "{text:?}");
        } else {
            drop(answer);
        }
        assert_eq!(endpoints.limiter.queued_closings(), cancelled);
    }
}
