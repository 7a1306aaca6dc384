//! Rendered templates, and rejected ones.

use proptest::prelude::*;
use serde_json::Value;

use super::*;

const VALUES: Values<'_> = Values {
    limit: 100,
    unit: "15 minutes",
    remaining: 0,
    retry_after: Some(42),
    rule: "shop.\"vip\"\n",
    policies: r#""daily", "per \"user\"""#,
};

fn filled(text: &str) -> (BodyKind, String) {
    let template = Template::parse(text).unwrap();
    (template.kind(), template.fill(&VALUES))
}

#[test]
fn fills_in_text() {
    for (text, body) in [
        ("slow down", "slow down"),
        ("{limit} per {unit}, again in {retry_after}s", "100 per 15 minutes, again in 42s"),
        ("{rule}", "shop.\"vip\"\n"),
        ("{limit}{remaining}", "1000"),
        ("a brace: {{limit}", "a brace: {limit}"),
        ("no place: {;} {} } {{{limit}", "no place: {;} {} } {100"),
    ] {
        assert_eq!(filled(text), (BodyKind::Text, body.to_owned()));
    }
}

#[test]
fn fills_in_json_at_any_position() {
    let text = r#" {"a": {limit}, "b": "{rule}", "c": {unit}, "\"{unit}": {"d": [{retry_after}]}}"#;
    let (kind, body) = filled(text);
    let expected = serde_json::json!({
        "a": 100, "b": VALUES.rule, "c": "15 minutes", "\"15 minutes": {"d": [42]},
    });
    assert_eq!((kind, serde_json::from_str::<Value>(&body).unwrap()), (BodyKind::Json, expected));
    assert_eq!(filled("[{limit}]"), (BodyKind::Json, "[100]".to_owned()));
}

#[test]
fn retry_after_is_never_or_null_if_the_request_never_passes() {
    let never = Values { retry_after: None, ..VALUES };
    for (text, body) in [
        ("again: {retry_after}", "again: never"),
        (r#"{"again": {retry_after}}"#, r#"{"again": null}"#),
        (r#"{"again": "{retry_after}"}"#, r#"{"again": "never"}"#),
    ] {
        assert_eq!(Template::parse(text).unwrap().fill(&never), body);
    }
}

#[test]
fn names_violated_policies_in_text_and_json() {
    for (text, body) in [
        ("over {policies}", r#"over "daily", "per \"user\"""#),
        (r#"{"over": {policies}}"#, r#"{"over": ["daily", "per \"user\""]}"#),
        (r#"{"over": "{policies}"}"#, r#"{"over": "\"daily\", \"per \\\"user\\\"\""}"#),
    ] {
        let template = Template::parse(text).unwrap();
        assert_eq!((template.has_policies(), &*template.fill(&VALUES)), (true, body));
        assert!(template.kind() == BodyKind::Text || serde_json::from_str::<Value>(body).is_ok(), "{body}");
    }
    assert!(!Template::parse("{rule}").unwrap().has_policies());
}

#[test]
fn the_word_problem_stands_for_problem_details() {
    let (kind, body) = filled("problem");
    let expected = serde_json::json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "violated-policies": ["daily", "per \"user\""],
    });
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), expected);
    assert_eq!((kind, kind.content_type()), (BodyKind::Problem, "application/problem+json"));
    assert_eq!(filled("a problem").0, BodyKind::Text);
}

#[test]
fn an_empty_template_has_no_body() {
    assert!(Template::parse("").unwrap().is_empty());
    assert!(!Template::parse(" ").unwrap().is_empty());
}

#[test]
fn errors_list_the_accepted_placeholders() {
    let help = "expected one of {limit}, {unit}, {remaining}, {retry_after}, {rule}, {policies}; write a literal brace as \
        `{{`";
    for name in ["limits", " limit ", "Limit", "retry-after", "0", "\u{fc}"] {
        let error = Template::parse(&format!("wait {{{name}}}")).unwrap_err();
        assert_eq!(error.message, format!("unknown placeholder `{{{name}}}`"));
        assert_eq!(error.help, help);
    }
    for text in [
        r#"{"a": }"#,
        "[notice] wait",
        r#"{"a": 0{limit}}"#,
        r#"{"a": 1{retry_after}}"#,
        "{;",
        // Valid with some values only.
        "[{remaining}0]",
        "[{limit}{remaining}]",
        "[1e{limit}]",
        r#"["\{rule}"]"#,
        r#"["\u00{limit}"]"#,
        r#"["\u000{unit}"]"#,
    ] {
        let error = Template::parse(text).unwrap_err();
        assert!(error.message.starts_with("body begins like JSON but is not valid: "), "{text}: {error:?}");
    }
    let error = Template::parse(&"x".repeat(16 * 1024 + 1)).unwrap_err();
    assert_eq!(error.message, "body has 16385 bytes; the maximum is 16384");
}

proptest! {
    #[test]
    fn parses_or_refuses_any_text(text in "[{}a\"\\\\\\[ ]{0,12}\\PC{0,9}") {
        if let Ok(template) = Template::parse(&text) {
            let body = template.fill(&VALUES);
            prop_assert!(template.kind() == BodyKind::Text || serde_json::from_str::<Value>(&body).is_ok());
        }
    }

    #[test]
    fn any_values_keep_json_valid(
        limit: u64, remaining: u64, retry_after: Option<u64>, unit in "\\PC*", rule in any::<String>(),
    ) {
        let text = r#"{"\\{rule}": ["{unit}", {rule}, {limit}, {remaining}, {retry_after}, "{retry_after}"]}"#;
        let body = Template::parse(text).unwrap().fill(&Values {
            limit, unit: &unit, remaining, retry_after, rule: &rule, policies: "",
        });
        let never = retry_after.map_or("never".to_owned(), |seconds| seconds.to_string());
        let list = serde_json::json!([unit, rule, limit, remaining, retry_after, never]);
        let key = format!("\\{rule}");
        prop_assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), serde_json::json!({ key: list }));
    }

    #[test]
    fn doubled_braces_are_literal_braces(text in "\\PC{0,20}") {
        let doubled = format!("-{}", text.replace('{', "{{"));
        prop_assert_eq!(Template::parse(&doubled).unwrap().fill(&VALUES), format!("-{text}"));
    }
}
