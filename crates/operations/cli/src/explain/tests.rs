//! The path down the rules, the descriptors near it, and the output.

use proptest::prelude::*;

use super::{
    path::{End, Why},
    *,
};
use crate::terminal::plain;
use limiter::{Code, PolicyHeaders};
use rules::{
    template::Template,
    {CompileOptions, How, SourceFile, compile},
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
  - key: plan
    rate_limit: {unit: hour, requests_per_unit: 7, replaces: [{name: hourly}]}
";

fn rules(text: &str) -> RuleSet {
    let file = SourceFile { name: "a.yaml".to_owned(), text: text.as_bytes().to_vec() };
    compile(&[file], CompileOptions::default()).rules.unwrap()
}

fn policy() -> Policy {
    Policy { key_prefix: "p:".to_owned(), ..Policy::default() }
}

fn query(words: &str, hits: u64) -> Query {
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    Query::read(&words, hits).unwrap()
}

/// The explanation of a request 30 seconds after a day began, as text and as JSON.
fn explain_hits(words: &str, hits: u64, change: impl FnOnce(&mut Policy)) -> (String, serde_json::Value) {
    let mut policy = policy();
    change(&mut policy);
    let served = Served { rules: rules(RULES), files: Vec::new(), attached: Handles::default() };
    let query = query(words, hits);
    let explained = explain(&query, &served, &Index::default(), &policy, Time::from_seconds(86_430)).unwrap();
    (plain(&text::explanation(&explained)), serde_json::from_str(&json::explanation(&explained)).unwrap())
}

fn explained(words: &str) -> (String, serde_json::Value) {
    explain_hits(words, 1, |_| ())
}

#[test]
fn prints_the_rule_near_descriptors_the_counter_and_the_response() {
    let (text, json) = explain_hits("shop client=bob", 1, |policy| {
        policy.response.retry_after = Some("Retry-After".into());
        policy.response.policy_headers = PolicyHeaders::On;
        policy.response.over_limit_body = Template::parse("wait {retry_after}s\nfor {rule}").ok();
    });
    let expected = "\
client=bob: matches rule shop.client_bob (a.yaml:5)
    match      client_bob     a.yaml:5   exact value
    outranked  client         a.yaml:3   matches too, but an exact value takes precedence
    no match   client_exempt  a.yaml:14  another value
    no match   client_a*      a.yaml:8   the pattern does not match
    no match   client_an*     a.yaml:12  the pattern does not match
    3 more on this level

  limit \"hourly\": 3 per hour, fixed_window, resets in 3570s
    counter p:shop_client_bob_86400

over-limit response
  Retry-After: 3570
  RateLimit-Policy: \"hourly\";q=3;w=3600
  RateLimit: \"hourly\";r=0;t=3570
  content-type: text/plain; charset=utf-8

  wait 3570s
  for shop.client_bob
";
    assert_eq!(text, expected);
    assert_eq!((&json["matches"], &json["error"]), (&true.into(), &serde_json::Value::Null));
    let descriptor = &json["descriptors"][0];
    let place = serde_json::json!({"file": "a.yaml", "line": 5});
    assert_eq!(
        (&descriptor["rule"]["key"], &descriptor["rule"]["place"]),
        (&"shop.client_bob".into(), &place)
    );
    let matched = serde_json::json!({"text": "client_bob", "place": place, "reason": "exact"});
    assert_eq!(descriptor["levels"][0]["match"], matched);
    let limit = serde_json::json!({
        "name": "hourly", "requests_per_unit": 3, "unit": "HOUR", "unit_multiplier": 1, "calendar": null, "schedule": null, "window_seconds": 3600,
        "algorithm": "fixed_window", "counting": "exact", "capacity": 3, "hold": null,
        "counter": "p:shop_client_bob_86400", "replaced_by": null,
    });
    assert_eq!(descriptor["limits"], serde_json::json!([limit]));
    let response = &json["over_limit_response"];
    assert_eq!(response["body"], "wait 3570s\nfor shop.client_bob");
    assert_eq!(response["headers"][0], serde_json::json!({"name": "Retry-After", "value": "3570"}));
}

#[test]
fn a_request_that_is_never_over_limit_has_a_reason() {
    for (words, end) in [
        ("shop client=ann", "\nnever over limit: shadow_mode\n"),
        ("shop free=1", "\n  unlimited: every request is allowed, and nothing is counted\n"),
        ("shop client=carl", "\nover-limit response\n  no headers and no body\n"),
    ] {
        let (text, _) = explained(words);
        assert!(text.ends_with(end), "{words}:\n{text}");
    }
    let (text, json) = explain_hits("shop client=carl", 1, |policy| policy.shadow_mode = true);
    assert!(text.ends_with("\nnever over limit: SHADOW_MODE\n"), "{text}");
    assert_eq!(json["over_limit_response"], serde_json::Value::Null);
}

#[test]
fn distinguishes_an_unknown_domain_a_missing_rule_and_a_replaced_one() {
    for (words, expected) in [
        ("shops client=bob", "unknown domain \"shops\"; did you mean \"shop\"?"),
        ("other client=bob", "unknown domain \"other\"; known: shop"),
        ("shop clinet=bob", "clinet=bob: no rule matches: no descriptor matches clinet=bob"),
        (
            "shop client=exempt",
            "client=exempt: no rule matches: client_exempt has no limit, which exempts it (a.yaml:14)",
        ),
        (
            "shop path=/",
            "path=/: no rule matches: path has no limit itself, and the rules below it need one more entry: method",
        ),
        ("shop path=/,verb=GET", "path=/,verb=GET: no rule matches: no descriptor matches verb=GET"),
        (
            "shop client=bob,a=b",
            "client=bob,a=b: no rule matches: client_bob has no descriptors below it for a=b, and a limit applies only to its own level",
        ),
    ] {
        let (text, json) = explained(words);
        assert_eq!(text.lines().next(), Some(expected));
        assert_eq!(json["matches"], serde_json::json!(false), "{words}");
        let limits = json["descriptors"].as_array().unwrap().iter().map(|descriptor| &descriptor["limits"]);
        assert!(limits.into_iter().all(|limits| *limits == serde_json::json!([])), "{words}");
    }
    let (text, json) = explained("shop client=bob plan=gold");
    let expected =
        "client=bob: matches rule shop.client_bob (a.yaml:5), which is replaced by shop.plan (a.yaml:21)";
    assert_eq!(text.lines().next(), Some(expected));
    assert!(
        text.contains(
            "\n    not counted: replaced by shop.plan\n\nplan=gold: matches rule shop.plan (a.yaml:21)\n"
        ),
        "{text}"
    );
    assert_eq!(json["matches"], serde_json::json!(true));
    assert_eq!(json["descriptors"][0]["replaced_by"], "shop.plan");
    assert_eq!(json["descriptors"][1]["replaced_by"], serde_json::Value::Null);
}

#[test]
fn hits_are_printed_unless_they_are_one() {
    let (text, _) = explain_hits("shop client=bob", 3, |_| ());
    assert!(text.contains("    counter 3 hits under p:shop_client_bob_86400\n\nover-limit"), "{text}");
    let (text, json) = explain_hits("shop client=bob", 4, |_| ());
    assert!(text.contains("\n    4 hits exceed it at once: always over limit\n"), "{text}");
    assert_eq!(json["hits"], 4);
    let (text, _) = explain_hits("shop client=bob", 0, |_| ());
    assert!(text.contains("    counter 0 hits under p:shop_client_bob_86400\n"), "{text}");
}

/// The near descriptors of the last level, each with the reason.
fn near(words: &str) -> Vec<(String, Why)> {
    let (rules, query) = (rules(RULES), query(words, 1));
    let path = path::walk(rules.domain("shop").unwrap(), &query.to_request().descriptors[0].entries);
    path.levels.last().unwrap().near.iter().map(|near| (near.node.text.to_string(), near.why)).collect()
}

#[test]
fn near_descriptors_are_listed_with_the_reason() {
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
    assert_eq!(near("shop clinet=bob"), of(&[("client", Why::Similar), ("client_bob", Why::Similar)]));
    assert_eq!(near("shop free=1"), of(&[]));
}

#[test]
fn a_long_level_is_listed_in_part() {
    let descriptor = |n| format!("- {{key: k, value: v{n}, rate_limit: {{unlimited: true}}}}");
    let many: Vec<String> = (0..100).map(descriptor).collect();
    let rules = rules(&format!("domain: d\ndescriptors:\n{}\n", many.join("\n")));
    let query = query("d k=w", 1);
    let request = query.to_request();
    let path = path::walk(rules.domain("d").unwrap(), &request.descriptors[0].entries);
    assert_eq!((path.levels[0].near.len(), path.levels[0].others), (8, 92));
}

proptest! {
    #[test]
    fn the_path_ends_where_a_request_does(
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
        let path = path::walk(domain, &entries);
        let matched = domain.find(&entries, &mut String::new());
        let ended = if let End::Rule(_, rule) = &path.end { Some(rule.id) } else { None };
        prop_assert_eq!(ended, matched.as_ref().map(|matched| matched.rule.id));
        // A descriptor that is listed as outranked matches, and no other does.
        for (step, entry) in path.levels.iter().zip(&entries) {
            let text = format!("{}_{}", entry.key, entry.value);
            for near in &step.near {
                let node = &near.node.text;
                let matches = **node == text || **node == *entry.key
                    || rules::wildcard::Pattern::new(node).matches(&text);
                prop_assert_eq!(matches, near.why.matches(), "{} {:?}", node, near.why);
            }
            let by_how = step.matched.map(|matched| match matched.how {
                How::Exact => *matched.node.text == text,
                How::Wildcard => rules::wildcard::Pattern::new(&matched.node.text).matches(&text),
                How::Bare => *matched.node.text == *entry.key,
            });
            prop_assert_ne!(by_how, Some(false));
        }
    }
}

#[test]
fn a_preview_has_the_counters_of_every_descriptor() {
    let served = Served { rules: rules(RULES), files: Vec::new(), attached: Handles::default() };
    let query = query("shop path=/,method=GET other=1 client=bob plan=x", 1);
    let preview =
        limiter::preview(&query.to_request(), &served, &Index::default(), &policy(), Time::from_seconds(90))
            .unwrap();
    let key = |key: &str| Some(key.to_owned());
    let expected =
        [vec![key("p:shop_path_/_method_GET_60")], vec![], vec![None], vec![key("p:shop_plan_x_0")]];
    assert_eq!(preview.counters, expected);
    assert_eq!(preview.over_limit.code, Code::OverLimit);
}

#[test]
fn overrides_are_explained() {
    let served = Served { rules: rules(RULES), files: Vec::new(), attached: Handles::default() };
    let index = Index::default();
    for line in [
        r#"{"domain":"shop","descriptor":"client=bob","action":"limit","requests_per_unit":50,"unit":"minute"}"#,
        r#"{"domain":"shop","descriptor":"client=eve","action":"block","expires_at":"1970-01-02T01:00:00Z"}"#,
        r#"{"domain":"shop","descriptor":"plan=x","action":"shadow"}"#,
        r#"{"domain":"shop","descriptor":"unknown=1","action":"allow"}"#,
    ] {
        index.set(&::overrides::table::of_json_line(line, Time::default()).unwrap().one).unwrap();
    }
    let explained = |words| {
        let query = query(words, 1);
        let explained = explain(&query, &served, &index, &policy(), Time::from_seconds(86_430)).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json::explanation(&explained)).unwrap();
        (plain(&text::explanation(&explained)), json["descriptors"][0]["override"].clone())
    };
    let (text, json) = explained("shop client=bob");
    let expected = "\n  override limit 50 per minute\n\n  limit \"hourly\": 50 per minute, fixed_window, \
        resets in 30s\n    counter p:shop_client_bob_86400\n\nover-limit response\n";
    assert!(text.contains(expected), "{text}");
    assert_eq!((&json["action"], &json["requests_per_unit"]), (&"limit".into(), &50.into()));
    let (text, json) = explained("shop client=eve");
    assert!(
        text.contains("\n  override block until 1970-01-02T01:00:00Z: every request is over limit"),
        "{text}"
    );
    assert!(!text.contains("counter"), "{text}");
    assert_eq!(json["expires_at"], "1970-01-02T01:00:00Z");
    let (text, _) = explained("shop plan=x");
    assert!(text.contains("override shadow: counted by the limits below"), "{text}");
    assert!(
        text.contains("counter p:shop_plan_x_86400") && text.contains("never over limit: override shadow"),
        "{text}"
    );
    let (text, _) = explained("shop unknown=1");
    assert!(
        text.contains("no rule matches") && text.contains("override allow: every request is allowed"),
        "{text}"
    );
    assert_eq!(explained("shop client=ann").1, serde_json::Value::Null);
}

fn read(words: &[&str]) -> Result<Query, String> {
    Query::read(&words.iter().map(ToString::to_string).collect::<Vec<_>>(), 1)
}

#[test]
fn a_domain_and_descriptors_are_separate_words() {
    let query = read(&["shop", "name=ann lee,path=/", "a=b"]).unwrap();
    let request = query.to_request();
    let entries: Vec<Vec<_>> = request
        .descriptors
        .iter()
        .map(|descriptor| descriptor.entries.iter().map(|entry| (entry.key, entry.value)).collect())
        .collect();
    assert_eq!(entries, [vec![("name", "ann lee"), ("path", "/")], vec![("a", "b")]]);
    assert_eq!(request.domain, "shop");
}

#[test]
fn rejects_other_words_with_a_reason() {
    for (words, reason) in [
        (&["shop"][..], "expected a domain"),
        (&["name=ann"], "expected a domain"),
        (&[], "expected a domain"),
        (&["shop", "name"], "\"name\" has no ="),
        (&["shop name=ann"], "expected a domain"),
        (&["a.yaml", "shop", "k"], "\"shop\" has no ="),
    ] {
        let error = read(words).unwrap_err();
        assert!(error.contains(reason), "{words:?}: {error}");
    }
}
