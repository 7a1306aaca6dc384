//! The optional parts of answers: headers, bodies, and metadata.

use super::{
    setup::{Setup, request},
    *,
};
use rules::{Metadata, template::Template};

const RULES: &str = r#"
domain: d
descriptors:
  - {key: hour, rate_limit: {unit: hour, requests_per_unit: 2, name: "per \"hour\""}}
  - key: minute
    over_limit_body: '{"rule": {rule}, "again": {retry_after}}'
    rate_limit: {unit: minute, requests_per_unit: 1}
  - {key: silent, over_limit_body: '', rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: day_quota, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: hour_quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: streams, rate_limit: {algorithm: concurrency, requests_per_unit: 2, hold: {ttl: 15m}}}
  - {key: shared, value: "a*", share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 5}}
  - key: pair
    rate_limit: [{unit: hour, requests_per_unit: 1, name: first}, {unit: day, requests_per_unit: 1, name: second}]
  - {key: gold, rate_limit: {unit: hour, requests_per_unit: 9, replaces: [{name: "per \"hour\""}]}}
"#;

/// A limiter with all optional parts enabled, ten seconds before the end of the third hour.
fn setup(change: impl FnOnce(&mut Policy)) -> Setup {
    let setup = Setup::new(OnStoreFailure::Deny, |policy| {
        policy.response = ResponseOptions {
            headers: None,
            retry_after: Some("Retry-After".into()),
            policy_headers: PolicyHeaders::On,
            over_limit_body: Template::parse("{limit} per {unit}, {remaining} left").ok(),
            metadata: MetadataDetail::WithLimits,
            ..ResponseOptions::default()
        };
        change(policy);
    });
    setup.load(RULES);
    setup.clock.set(Time::from_seconds(3 * 3600 - 10));
    setup
}

fn headers(answer: &Answer) -> Vec<(&str, &str)> {
    answer.response_headers.iter().map(|header| (&*header.name, &*header.value)).collect()
}

#[test]
fn an_admitted_request_gets_only_policy_headers() {
    let answer = setup(|_| ()).decide(&["hour", "minute", "free", "unknown", "shadow"]).unwrap();
    assert_eq!(answer.code, Code::Ok);
    let expected = [
        ("RateLimit-Policy", r#""per \"hour\"";q=2;w=3600, "d.minute";q=1;w=60"#),
        ("RateLimit", r#""per \"hour\"";r=1;t=10, "d.minute";r=0;t=10"#),
    ];
    assert_eq!((headers(&answer), &*answer.body), (expected.into(), ""));
}

#[test]
fn a_rejected_request_gets_retry_after_and_the_rules_body() {
    let setup = setup(|policy| policy.response.policy_headers = PolicyHeaders::Off);
    setup.decide(&["minute"]).unwrap();
    let answer = setup.decide(&["hour", "minute"]).unwrap();
    assert_eq!(headers(&answer), [("Retry-After", "10"), ("content-type", "application/json")]);
    assert_eq!(&*answer.body, r#"{"rule": "d.minute", "again": 10}"#);

    setup.decide(&["hour"]).unwrap();
    let answer = setup.decide(&["hour"]).unwrap();
    assert_eq!(headers(&answer), [("Retry-After", "10"), ("content-type", "text/plain; charset=utf-8")]);
    assert_eq!(&*answer.body, "2 per hour, 0 left");
    let answer = setup.decide(&["hour", "silent"]).unwrap();
    assert_eq!(answer.response_headers, [], "a request with limit 0 never passes");
    assert_eq!(&*answer.body, "", "the governing rule disables the body");
}

#[test]
fn limits_of_one_name_are_one_policy_and_a_limit_of_0_has_no_time() {
    let setup = setup(|policy| policy.bounds.descriptors = 200);
    setup.decide(&["hour"]).unwrap();
    let answer = setup.decide(&["silent", "hour", "hour"]).unwrap();
    let expected = [
        ("RateLimit-Policy", r#""d.silent";q=0;w=86400, "per \"hour\"";q=2;w=3600"#),
        ("RateLimit", r#""d.silent";r=0, "per \"hour\"";r=0;t=10"#),
    ];
    assert_eq!(headers(&answer), expected);

    let keys: Vec<String> = (0..128).map(|n| format!("k{n}")).collect();
    let rule =
        |key: &String| format!("  - {{key: {key}, rate_limit: {{unit: hour, requests_per_unit: 1}}}}\n");
    let rules: String = keys.iter().map(rule).collect();
    setup.load(&format!("domain: d\ndescriptors:\n{rules}"));
    setup.decide(&["k127"]).unwrap();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let answer = setup.decide(&keys).unwrap();
    let state = headers(&answer).into_iter().find(|(name, _)| *name == "RateLimit").unwrap().1;
    assert!(state.contains(r#""d.k127";r=0;t=10"#), "the one that rejects the request: {state}");
    assert_eq!(state.matches(";r=").count(), 16);
}

#[test]
fn a_limit_of_concurrent_requests_has_its_unit_and_no_time_until_one_ends() {
    let answer = setup(|_| ()).decide(&["streams"]).unwrap();
    let expected = [
        ("RateLimit-Policy", r#""d.streams";q=2;qu="concurrent-requests""#),
        ("RateLimit", r#""d.streams";r=1"#),
    ];
    assert_eq!(headers(&answer), expected);
}

/// The two policy headers of a request with these entries, one a descriptor.
fn policy_headers(setup: &Setup, entries: &[(&str, &str)]) -> [String; 2] {
    let mut request = request(&vec![""; entries.len()]);
    for (descriptor, (key, value)) in request.descriptors.iter_mut().zip(entries) {
        descriptor.entries = std::iter::once(Entry { key, value }).collect();
    }
    let answer = finish(pin!(setup.limiter.decide(&request, None, None))).unwrap();
    ["RateLimit-Policy", "RateLimit"].map(|name| {
        let found = headers(&answer).into_iter().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("{answer:?} has no {name}")).1.to_owned()
    })
}

#[test]
fn partition_keys_tell_callers_of_one_policy_apart() {
    let setup = setup(|policy| {
        policy.bounds.descriptors = 200;
        policy.response.policy_headers = PolicyHeaders::WithKeys;
    });
    let [policies, states] =
        policy_headers(&setup, &[("minute", "ann"), ("minute", "bob"), ("minute", "ann")]);
    // printf %s minute=ann | openssl sha256 -binary | head -c 12 | base64
    let expected = [
        r#""d.minute";q=1;w=60;pk=:TD/VBc6P4IyGigq5:, "d.minute";q=1;w=60;pk=:aACM/NDPb29n7q59:"#,
        r#""d.minute";r=0;t=10;pk=:TD/VBc6P4IyGigq5:, "d.minute";r=0;t=10;pk=:aACM/NDPb29n7q59:"#,
    ];
    assert_eq!([&*policies, &*states], expected);

    // Values that share a counter share its key.
    let [policies, states] = policy_headers(&setup, &[("shared", "a1"), ("shared", "a2")]);
    let expected = [
        r#""d.shared_a*";q=5;w=3600;pk=:Cza5GaUPIX40SqF9:"#,
        r#""d.shared_a*";r=3;t=10;pk=:Cza5GaUPIX40SqF9:"#,
    ];
    assert_eq!([&*policies, &*states], expected);
    assert_eq!(policy_headers(&setup, &[("shared", "a3")])[1], expected[1].replace("r=3", "r=2"));

    let users: Vec<String> = (0..20).map(|user| user.to_string()).collect();
    let entries: Vec<_> = users.iter().map(|user| ("hour", &**user)).collect();
    let [policies, _] = policy_headers(&setup, &entries);
    assert_eq!(policies.matches(";pk=:").count(), 16);

    // No byte of a caller is in a header, and what would take long to hash has no key.
    let injected = "\";pk=:AAAA:, \"x\";q=1\r\nset-cookie: a";
    for header in policy_headers(&setup, &[("minute", injected), ("minute", &"x".repeat(5_000))]) {
        let keys: Vec<_> = header.split(", ").map(|item| item.contains(";pk=:")).collect();
        assert_eq!(keys, [true, false], "{header}");
        assert!(header.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{header}");
    }
}

#[test]
fn names_made_of_keys_of_requests_are_cut() {
    let setup = setup(|policy| policy.response.over_limit_body = Template::parse("problem").ok());
    let key = "\u{fc}".repeat(100_000);
    let mut request = request(&[&key]);
    request.descriptors[0].limit =
        Some(LimitOverride { requests_per_unit: 0, unit: 2, unit_multiplier: None });
    let answer = finish(pin!(setup.limiter.decide(&request, None, None))).unwrap();
    let name = format!("\"d.{}\"", "%c3%bc".repeat(127));
    assert_eq!(headers(&answer)[0], ("RateLimit-Policy", &*format!("{name};q=0;w=60")));
    assert!(answer.body.ends_with(&format!("[{name}]}}")), "{}", answer.body);
}

#[test]
fn problem_details_name_the_limits_that_reject_the_request() {
    let setup = setup(|policy| policy.response.over_limit_body = Template::parse("problem").ok());
    setup.decide(&["hour", "hour_quota", "streams"]).unwrap();
    setup.decide(&["hour"]).unwrap();
    let answer = setup.decide(&["silent", "streams", "hour", "hour", "shadow"]).unwrap();
    assert_eq!(&*answer.body, "", "the governing rule disables the body");
    let answer = setup.decide(&["streams", "hour", "hour", "shadow"]).unwrap();
    assert_eq!(headers(&answer).last(), Some(&("content-type", "application/problem+json")));
    let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    let expected = serde_json::json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "violated-policies": ["per \"hour\""],
    });
    assert_eq!(body, expected);
    setup.decide(&["pair"]).unwrap();
    let answer = setup.decide(&["pair"]).unwrap();
    assert!(answer.body.ends_with(r#":["first", "second"]}"#), "{}", answer.body);
    let minute = |names: &str| format!(r#"{{"rule": "d.minute", "again": 10, "over": [{names}]}}"#);
    setup.load(&RULES.replace(r#""again": {retry_after}"#, r#""again": {retry_after}, "over": {policies}"#));
    setup.decide(&["minute"]).unwrap();
    let answer = setup.decide(&["minute", "hour", "streams"]).unwrap();
    assert_eq!(&*answer.body, minute(r#""d.minute", "per \"hour\"""#));
}

#[test]
fn headers_of_every_descriptor_are_bounded() {
    let setup = setup(|policy| {
        policy.bounds.descriptors = 200;
        policy.response.all_headers = true;
        policy.response.policy_headers = PolicyHeaders::Off;
    });
    let answer = setup.decide(&["hour"; 128]).unwrap();
    let of_all = headers(&answer).into_iter().filter(|(name, _)| name.starts_with("ratelimit-"));
    assert_eq!(of_all.count(), 32);
}

#[test]
fn retry_after_covers_all_limits_and_the_first_quota() {
    let setup = setup(|_| ());
    setup.clock.set(Time::from_seconds(2 * 3600 + 20));
    let wait = |keys: &[&str]| {
        let answer = setup.decide(keys).unwrap();
        let mut headers = headers(&answer).into_iter();
        headers.find(|(name, _)| *name == "Retry-After").map(|(_, seconds)| seconds.parse::<u64>().unwrap())
    };
    let quotas = ["day_quota", "hour_quota"];
    for keys in [&["hour"][..], &["hour"], &["minute"], &quotas] {
        assert_eq!(wait(keys), None, "{keys:?}");
    }
    for (keys, seconds) in [
        (&["minute", "hour"][..], 3580),
        (&["hour", "minute"], 3580),
        (&["minute"], 40),
        (&quotas, 3580),
        (&["hour_quota", "day_quota", "minute"], 3580),
    ] {
        assert_eq!(wait(keys), Some(seconds), "{keys:?}");
    }
    assert_eq!(wait(&["day_quota", "gold"]), Some(22 * 3600 - 20), "its only quota is exhausted for the day");
    assert_eq!(wait(&["hour_quota", "free"]), Some(3580));
}

#[test]
fn hits_that_never_fit_get_no_retry_after() {
    let setup = setup(|policy| policy.response.policy_headers = PolicyHeaders::Off);
    let mut request = request(&["minute"]);
    request.hits_addend = 2;
    let answer = finish(pin!(setup.limiter.decide(&request, None, None))).unwrap();
    assert_eq!(headers(&answer), [("content-type", "application/json")]);
    assert_eq!(&*answer.body, r#"{"rule": "d.minute", "again": null}"#);
}

#[test]
fn shadow_mode_sends_no_retry_after() {
    let setup = setup(|policy| policy.shadow_mode = true);
    setup.decide(&["minute"]).unwrap();
    let answer = setup.decide(&["minute"]).unwrap();
    assert_eq!((answer.code, &*answer.body), (Code::Ok, ""));
    let names: Vec<_> = headers(&answer).iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["RateLimit-Policy", "RateLimit"]);
}

#[test]
fn an_override_is_named_by_its_keys() {
    let setup = setup(|_| ());
    let mut request = request(&["hour"]);
    request.descriptors[0].limit =
        Some(LimitOverride { requests_per_unit: 7, unit: 2, unit_multiplier: None });
    let answer = finish(pin!(setup.limiter.decide(&request, None, None))).unwrap();
    let expected = [("RateLimit-Policy", r#""d.hour";q=7;w=60"#), ("RateLimit", r#""d.hour";r=6;t=10"#)];
    assert_eq!(headers(&answer), expected);
}

/// The decision of each descriptor in the metadata, as JSON.
fn decisions(answer: &Answer) -> Vec<serde_json::Value> {
    fn json(value: &Value) -> serde_json::Value {
        match value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(value) => (*value).into(),
            // Small integers.
            #[allow(clippy::cast_possible_truncation)]
            Value::Number(value) => (*value as i64).into(),
            Value::Text(value) => value.as_str().into(),
            Value::List(values) => values.iter().map(json).collect(),
            Value::Map(map) => object(map),
        }
    }
    fn object(map: &Metadata) -> serde_json::Value {
        map.iter().map(|(key, value)| (key.clone(), json(value))).collect()
    }
    let metadata = object(answer.dynamic_metadata.as_ref().unwrap());
    metadata["descriptors"].as_array().unwrap().iter().map(|one| one["decision"].clone()).collect()
}

#[test]
fn metadata_contains_each_rule_its_limit_and_the_reason() {
    use serde_json::json;

    let setup = setup(|_| ());
    let first = decisions(&setup.decide(&["minute", "unknown", "free"]).unwrap());
    let limit =
        json!({"requestsPerUnit": 1, "unit": "MINUTE", "unitMultiplier": 1, "algorithm": "fixed_window"});
    let within =
        json!({"why": "within_limit", "rule": "d.minute", "limit": limit, "remaining": 0, "reset": 10});
    assert_eq!(first, [within, json!({"why": "no_rule"}), json!({"why": "unlimited", "rule": "d.free"})]);

    let over = decisions(&setup.decide(&["minute", "shadow"]).unwrap());
    let refused = json!({
        "why": "over_limit", "rule": "d.minute", "limit": limit, "remaining": 0, "reset": 10, "retryAfter": 10,
        "governs": true,
    });
    assert_eq!(over[0], refused);
    assert_eq!((&over[1]["why"], &over[1]["governs"]), (&json!("shadow"), &json!(null)));

    let known = decisions(&setup.decide(&["minute"]).unwrap());
    assert_eq!((&known[0]["why"], &known[0]["retryAfter"]), (&json!("local_cache"), &json!(10)));

    let replaced = decisions(&setup.decide(&["hour", "gold"]).unwrap());
    assert_eq!(replaced[0], json!({"why": "replaced", "rule": "d.hour"}));

    setup.store.set_lost(Some(FailureReason::Timeout));
    let lost = decisions(&setup.decide(&["hour"]).unwrap());
    assert_eq!((&lost[0]["why"], &lost[0]["governs"]), (&json!("store_failure"), &json!(true)));
    assert_eq!(lost[0]["limit"]["name"], json!("per \"hour\""));
}

#[test]
fn plain_metadata_has_no_limits() {
    let setup = setup(|policy| policy.response.metadata = MetadataDetail::Plain);
    let metadata = setup.decide(&["minute"]).unwrap().dynamic_metadata.unwrap();
    let Some(Value::List(descriptors)) = metadata.get("descriptors") else { panic!("{metadata:?}") };
    let Value::Map(descriptor) = &descriptors[0] else { panic!("{descriptors:?}") };
    assert_eq!(descriptor.keys().collect::<Vec<_>>(), ["entries"]);
}
