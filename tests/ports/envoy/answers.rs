//! The headers, body and metadata that Envoy returns to a rejected caller, and writes to its access log.

use serde_json::{Value, json};

use support::{
    bootstrap::{Wanted, by_header},
    envoy::Envoy,
    http::Answer,
    server::{Server, Setup},
};

/// One request an hour for each user, ten for each plan, and a body for those without a plan.
const RULES: &str = r#"
domain: edge
descriptors:
  - key: user
    over_limit_body: '{"error": "{limit} per {unit} is all", "rule": {rule}, "retry_after": {retry_after}}'
    rate_limit: {unit: hour, requests_per_unit: 1, name: "per \"user\""}
  - key: plan
    rate_limit:
      - {unit: second, requests_per_unit: 1000, name: spike}
      - {unit: day, requests_per_unit: 2, unit_multiplier: 3, algorithm: token_bucket, burst: 1}
"#;

fn envoy(variables: &[(&str, &str)]) -> (Server, Envoy) {
    let setup = Setup::new().rules("edge.yaml", RULES);
    let server = variables.iter().fold(setup, |setup, (name, value)| setup.env(name, value)).start();
    let limits = json!([by_header("user", "x-user"), by_header("plan", "x-plan")]);
    let envoy = Envoy::start(&Wanted::of(&server, limits));
    (server, envoy)
}

/// The number of seconds in a header.
fn seconds(answer: &Answer, name: &str) -> u64 {
    answer.header(name).and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} of {answer:?}"))
}

#[test]
fn a_rejected_caller_receives_retry_after_and_the_rules_body() {
    let (_server, envoy) = envoy(&[("LIMIT_RETRY_AFTER_HEADER", "Retry-After")]);
    let allowed = envoy.get(&[("x-user", "ann")]);
    assert_eq!((allowed.status, allowed.header("retry-after")), (200, None));
    assert_eq!(allowed.text(), "ok", "the upstream's own answer");

    let refused = envoy.get(&[("x-user", "ann")]);
    assert_eq!((refused.status, refused.header("content-type")), (429, Some("application/json")));
    let wait = seconds(&refused, "retry-after");
    assert!((1..=3600).contains(&wait), "the window ends within the hour, not in {wait} seconds");
    let body = refused.json();
    assert_eq!((&body["error"], &body["rule"]), (&json!("1 per hour is all"), &json!("edge.user")));
    assert_eq!(body["retry_after"], json!(wait));
    let content_types = refused.headers.iter().filter(|(name, _)| name == "content-type");
    assert_eq!(content_types.count(), 1, "Envoy's own type of a body gives way");
}

#[test]
fn a_rule_without_a_body_uses_that_of_the_settings() {
    let (_server, envoy) = envoy(&[("OVER_LIMIT_BODY", "{rule}: {limit} per {unit}, {remaining} left")]);
    assert_eq!(envoy.get(&[("x-plan", "gold")]).status, 200);
    let refused = envoy.get(&[("x-plan", "gold")]);
    assert_eq!((refused.status, refused.header("content-type")), (429, Some("text/plain; charset=utf-8")));
    assert_eq!(refused.text(), "edge.plan: 2 per 3 days, 0 left");
    assert_eq!(refused.header("retry-after"), None, "only if configured");
}

#[test]
fn a_rejected_caller_receives_problem_details_and_partition_keys() {
    let (_server, envoy) = envoy(&[("OVER_LIMIT_BODY", "problem"), ("LIMIT_POLICY_HEADERS", "keys")]);
    assert_eq!(envoy.get(&[("x-plan", "gold")]).status, 200);
    let refused = envoy.get(&[("x-plan", "gold")]);
    assert_eq!((refused.status, refused.header("content-type")), (429, Some("application/problem+json")));
    let body = refused.json();
    assert_eq!(body["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(body["violated-policies"], json!(["edge.plan#2"]));
    // printf %s plan=gold | openssl sha256 -binary | head -c 12 | base64
    let key = ";pk=:BtZGGwaIDfWM59H1:";
    for name in ["ratelimit-policy", "ratelimit"] {
        let items = refused.header(name).unwrap();
        assert!(items.split(", ").all(|item| item.ends_with(key)), "{name}: {items}");
    }
}

#[test]
fn every_response_has_the_policies_and_their_state() {
    let (_server, envoy) =
        envoy(&[("LIMIT_POLICY_HEADERS", "true"), ("LIMIT_RETRY_AFTER_HEADER", "Retry-After")]);
    let policies =
        r#""per \"user\"";q=1;w=3600, "spike";q=1000;w=1, "edge.plan#2";q=2;w=259200;tollgate-burst=1"#;
    for (status, names) in [
        (200, [r#""per \"user\"";r=0;t="#, r#""edge.plan#2";r=0;t="#]),
        (429, [r#""per \"user\"";r=0;t="#, r#""edge.plan#2";r=0;t="#]),
    ] {
        let answer = envoy.get(&[("x-user", "ann"), ("x-plan", "gold")]);
        assert_eq!((answer.status, answer.header("ratelimit-policy")), (status, Some(policies)));
        let standing = answer.header("ratelimit").unwrap();
        let items: Vec<&str> = standing.split(", ").collect();
        let until: Vec<u64> = items
            .iter()
            .zip(names)
            .map(|(item, name)| {
                item.strip_prefix(name).unwrap_or_else(|| panic!("{standing}")).parse().unwrap()
            })
            .collect();
        assert!(until.len() == 2 && (1..=3600).contains(&until[0]), "{standing}");
        // A token comes every day and a half.
        assert!((129_000..=129_600).contains(&until[1]), "{standing}");
        if status == 429 {
            let wait = seconds(&answer, "retry-after");
            assert_eq!(wait, until[1], "both limits refuse, and the bucket frees last");
        }
    }
}

#[test]
fn the_three_headers_and_the_policies_can_be_combined() {
    let (_server, envoy) =
        envoy(&[("LIMIT_POLICY_HEADERS", "true"), ("LIMIT_RESPONSE_HEADERS_ENABLED", "true")]);
    let answer = envoy.get(&[("x-user", "ann")]);
    assert_eq!(answer.header("ratelimit-limit"), Some("1"));
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""per \"user\"";q=1;w=3600"#));
    let reset = seconds(&answer, "ratelimit-reset");
    assert_eq!(answer.header("ratelimit"), Some(&*format!("\"per \\\"user\\\"\";r=0;t={reset}")));
}

#[test]
fn an_access_log_shows_who_was_blocked_by_what() {
    let (_server, envoy) = envoy(&[("RESPONSE_DYNAMIC_METADATA_LIMITS", "true")]);
    for status in [200, 429] {
        assert_eq!(envoy.get(&[("x-user", "ann"), ("x-plan", "gold"), ("x-other", "1")]).status, status);
    }
    let logged = envoy.logged_metadata(2);
    let decisions = |line: &Value| -> Vec<Value> {
        let descriptors = line["descriptors"].as_array().unwrap_or_else(|| panic!("{line}"));
        descriptors.iter().map(|descriptor| descriptor["decision"].clone()).collect()
    };
    let [first, second] = [&logged[0], &logged[1]].map(decisions);
    assert_eq!([&first[0]["why"], &first[1]["why"]], [&json!("within_limit"); 2], "{first:?}");
    assert_eq!([&second[0]["why"], &second[1]["why"]], [&json!("over_limit"); 2], "{second:?}");
    assert_eq!([&second[0]["governs"], &second[1]["governs"]], [&Value::Null, &json!(true)]);
    assert_eq!(logged[1]["descriptors"][0]["entries"], json!(["user=ann"]));
    let limit = json!({
        "name": "per \"user\"", "requestsPerUnit": 1, "unit": "HOUR", "unitMultiplier": 1,
        "algorithm": "fixed_window",
    });
    assert_eq!((&second[0]["rule"], &second[0]["limit"]), (&json!("edge.user"), &limit));
    let bucket =
        json!({"requestsPerUnit": 2, "unit": "DAY", "unitMultiplier": 3, "algorithm": "token_bucket"});
    assert_eq!(second[1]["limit"], bucket);
    let wait = second[1]["retryAfter"].as_f64().unwrap();
    assert!((129_000.0..=129_600.0).contains(&wait), "{second:?}");
    assert_eq!(first[1]["retryAfter"], Value::Null, "what passes need not wait");
}
