//! The way down the rules, what stands near it, and how all of it is told.

use proptest::prelude::*;

use super::{way::Why, *};
use crate::{
    limiter::{Bounds, Code, ResponseOptions, template::Template},
    rules::{CompileOptions, How, OnStoreFailure, RuleSet, SourceFile},
};

const RULES: &str = "\
domain: shop
descriptors:
  - key: client
    rate_limit: {unit: day, requests_per_unit: 9}
  - key: client
    value: bob
    rate_limit: {unit: hour, requests_per_unit: 3, name: hourly}
  - key: client
    value: 'a*'
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 4}
  - key: client
    value: 'an*'
  - key: client
    value: exempt
  - key: path
    descriptors:
      - {key: method, rate_limit: {unit: minute, requests_per_unit: 5}}
  - key: free
    rate_limit: {unlimited: true}
";

fn rules(text: &str) -> RuleSet {
    let file = SourceFile { name: "a.yaml".to_owned(), text: text.as_bytes().to_vec() };
    compile(&[file], CompileOptions::default()).rules.unwrap()
}

fn policy() -> Policy {
    Policy {
        bounds: Bounds { descriptors: 10, entries: 10 },
        near_limit_ratio: 0.8,
        key_prefix: "p:".to_owned(),
        full_keys: false,
        stop_when_over: false,
        shadow_mode: false,
        quota_mode: false,
        response: ResponseOptions::default(),
        on_store_failure: OnStoreFailure::Error,
        max_local_keys: 1,
    }
}

/// What is told of a question, 30 seconds after a day began.
fn told(question: &str, change: impl FnOnce(&mut Policy)) -> (String, serde_json::Value) {
    let mut policy = policy();
    change(&mut policy);
    let served = Served { rules: rules(RULES), attached: Vec::new() };
    let question = question.parse().unwrap();
    let explained = explain(&question, &served, &policy, Time::from_seconds(86_430)).unwrap();
    (text::of(&explained), serde_json::from_str(&json::of(&explained)).unwrap())
}

#[test]
fn the_rule_is_told_with_what_stood_near_its_counter_and_its_refusal() {
    let (text, json) = told("shop client=bob", |policy| {
        policy.response.retry_after = Some("Retry-After".into());
        policy.response.policy_headers = true;
        policy.response.over_limit_body = Template::parse("wait {retry_after}s\nfor {rule}").ok();
    });
    let expected = "\
shop.client_bob is met

client=bob
  met      client_bob     is the same text
  not met  client         takes it too, but the same text goes first
  not met  client_exempt  is for another value
  not met  client_a*      is a pattern that does not take it
  not met  client_an*     is a pattern that does not take it
  2 more on this level

limit \"hourly\": 3 per hour, fixed_window; this window ends in 3570s
  counted under p:shop_client_bob_86400

a refusal would say
  Retry-After: 3570
  RateLimit-Policy: \"hourly\";q=3;w=3600
  RateLimit: \"hourly\";r=0;t=3570
  content-type: text/plain; charset=utf-8

  wait 3570s
  for shop.client_bob
";
    assert_eq!(text, expected);
    assert_eq!(json["rule"]["key"], "shop.client_bob");
    assert_eq!(json["levels"][0]["met"], serde_json::json!({"text": "client_bob", "how": "exact"}));
    let limit = serde_json::json!({
        "name": "hourly", "requests_per_unit": 3, "unit": "HOUR", "unit_multiplier": 1, "window_seconds": 3600,
        "algorithm": "fixed_window", "at_once": 3, "counter": "p:shop_client_bob_86400",
    });
    assert_eq!(json["limits"], serde_json::json!([limit]));
    assert_eq!(json["refusal"]["body"], "wait 3570s\nfor shop.client_bob");
    assert_eq!(json["refusal"]["headers"][0], serde_json::json!({"name": "Retry-After", "value": "3570"}));
}

#[test]
fn what_refuses_nothing_says_why() {
    for (question, ends) in [
        ("shop client=ann", "\nnothing is refused: shadow_mode\n"),
        ("shop free=1", "\nunlimited: every request passes, and nothing is counted\n"),
        ("shop client=carl", "\na refusal would say\n  nothing but that the request is over its limit\n"),
    ] {
        let (text, _) = told(question, |_| ());
        assert!(text.ends_with(ends), "{question}:\n{text}");
    }
    let (text, json) = told("shop client=carl", |policy| policy.shadow_mode = true);
    assert!(text.ends_with("\nnothing is refused: SHADOW_MODE\n"), "{text}");
    assert_eq!(json["refusal"], serde_json::Value::Null);
}

#[test]
fn where_no_rule_is_met_it_is_said_why() {
    for (question, expected) in [
        ("shops client=bob", "there is no domain shops; is shop meant?"),
        ("other client=bob", "there is no domain other; there is shop"),
        ("shop clinet=bob", "nothing takes clinet=bob"),
        ("shop client=exempt", "client_exempt has no limit, which exempts it"),
        ("shop path=/", "path has no limit itself, and the rules below it ask for one more entry: method"),
        ("shop path=/,verb=GET", "nothing takes verb=GET"),
        ("shop client=bob,a=b", "the rules end above a=b, and a rule stands where the last entry does"),
    ] {
        let (text, json) = told(question, |_| ());
        assert_eq!(text.lines().next(), Some(&*format!("no rule is met: {expected}")));
        assert_eq!((&json["is_met"], &json["rule"]), (&false.into(), &serde_json::Value::Null));
        assert_eq!(json["limits"], serde_json::json!([]));
    }
}

/// The near descriptors of the last level, each with why it was not taken.
fn near(question: &str) -> Vec<(String, Why)> {
    let (rules, question) = (rules(RULES), question.parse::<Query>().unwrap());
    let way = way::walk(rules.domain("shop").unwrap(), &question.to_request().descriptors[0].entries);
    way.levels.last().unwrap().near.iter().map(|near| (near.text.to_owned(), near.why)).collect()
}

#[test]
fn near_descriptors_are_told_with_the_reason() {
    let of = |pairs: &[(&str, Why)]| -> Vec<(String, Why)> {
        pairs.iter().map(|(text, why)| ((*text).to_owned(), *why)).collect()
    };
    let expected = [
        ("client_an*", Why::AfterWildcard),
        ("client", Why::AfterValue),
        ("client_bob", Why::OtherValue),
        ("client_exempt", Why::OtherValue),
    ];
    assert_eq!(near("shop client=ann"), of(&expected));
    assert_eq!(near("shop path=/,verb=GET"), of(&[("method", Why::OtherKey)]));
    assert_eq!(near("shop clinet=bob"), of(&[("client", Why::Alike), ("client_bob", Why::Alike)]));
    assert_eq!(near("shop free=1"), of(&[]));
}

#[test]
fn a_long_level_is_told_in_part() {
    let descriptor = |n| format!("- {{key: k, value: v{n}, rate_limit: {{unlimited: true}}}}");
    let many: Vec<String> = (0..100).map(descriptor).collect();
    let rules = rules(&format!("domain: d\ndescriptors:\n{}\n", many.join("\n")));
    let question: Query = "d k=w".parse().unwrap();
    let request = question.to_request();
    let way = way::walk(rules.domain("d").unwrap(), &request.descriptors[0].entries);
    assert_eq!((way.levels[0].near.len(), way.levels[0].others), (8, 92));
}

proptest! {
    #[test]
    fn the_way_comes_out_where_a_request_does(
        texts in prop::collection::hash_set(("[ab]{1,2}", "[ab*]{0,2}", any::<bool>(), any::<bool>()), 1..12),
        entries in prop::collection::vec(("[ab]{1,2}", "[ab]{0,2}"), 1..3),
    ) {
        let mut seen = std::collections::HashSet::new();
        let below = "\n  descriptors: [{key: a, rate_limit: {unlimited: true}}]";
        let descriptors: Vec<String> = texts
            .iter()
            .filter(|(key, value, ..)| seen.insert((key, value)))
            .map(|(key, value, limited, deep)| {
                let limit = if *limited { "\n  rate_limit: {unlimited: true}" } else { "" };
                format!("- key: {key}\n  value: '{value}'{limit}{}\n", if *deep { below } else { "" })
            })
            .collect();
        let rules = rules(&format!("domain: d\ndescriptors:\n{}", descriptors.concat()));
        let domain = rules.domain("d").unwrap();
        let entries: Vec<_> = entries.iter().map(|(key, value)| limiter::Entry { key, value }).collect();
        let way = way::walk(domain, &entries);
        let met = domain.find(&entries, &mut String::new());
        let came_to = if let End::Rule(rule) = &way.end { Some(rule.id) } else { None };
        prop_assert_eq!(came_to, met.as_ref().map(|met| met.rule.id));
        // What is told to match and come after does match, and nothing else does.
        for (passage, entry) in way.levels.iter().zip(&entries) {
            let text = format!("{}_{}", entry.key, entry.value);
            for near in &passage.near {
                let matches = *near.text == text || *near.text == *entry.key
                    || crate::rules::wildcard::Pattern::new(near.text).matches(&text);
                let after = matches!(near.why, Why::AfterExact | Why::AfterWildcard | Why::AfterValue);
                prop_assert_eq!(matches, after, "{} {:?}", near.text, near.why);
            }
            let by_how = passage.taken.map(|taken| match taken.how {
                How::Exact => *taken.node.text == text,
                How::Wildcard => crate::rules::wildcard::Pattern::new(&taken.node.text).matches(&text),
                How::Bare => *taken.node.text == *entry.key,
            });
            prop_assert_ne!(by_how, Some(false));
        }
    }
}

#[test]
fn a_preview_counts_every_refusal_as_one() {
    let served = Served { rules: rules(RULES), attached: Vec::new() };
    let question: Query = "shop path=/,method=GET".parse().unwrap();
    let request = question.to_request();
    let preview = limiter::preview(&request, &served, &policy(), Time::from_seconds(90)).unwrap();
    assert_eq!(preview.keys, ["p:shop_path_/_method_GET_60"]);
    assert_eq!(preview.over_limit.code, Code::OverLimit);
}
