//! What is filled in where, and what is refused.

use proptest::prelude::*;
use serde_json::Value;

use super::*;

const VALUES: Values<'_> =
    Values { limit: 100, unit: "15 minutes", remaining: 0, retry_after: Some(42), rule: "shop.\"vip\"\n" };

fn filled(text: &str) -> (Kind, String) {
    let template = Template::read(text).unwrap();
    (template.kind(), template.fill(&VALUES))
}

#[test]
fn a_text_is_filled_in_as_it_stands() {
    for (text, body) in [
        ("slow down", "slow down"),
        ("{limit} per {unit}, again in {retry_after}s", "100 per 15 minutes, again in 42s"),
        ("{rule}", "shop.\"vip\"\n"),
        ("{limit}{remaining}", "1000"),
        ("a brace: {{limit}", "a brace: {limit}"),
        ("no place: {;} {} } {{{limit}", "no place: {;} {} } {100"),
    ] {
        assert_eq!(filled(text), (Kind::Text, body.to_owned()));
    }
}

#[test]
fn json_stays_json_wherever_a_place_stands() {
    let text = r#" {"a": {limit}, "b": "{rule}", "c": {unit}, "\"{unit}": {"d": [{retry_after}]}}"#;
    let (kind, body) = filled(text);
    let expected = serde_json::json!({
        "a": 100, "b": VALUES.rule, "c": "15 minutes", "\"15 minutes": {"d": [42]},
    });
    assert_eq!((kind, serde_json::from_str::<Value>(&body).unwrap()), (Kind::Json, expected));
    assert_eq!(filled("[{limit}]"), (Kind::Json, "[100]".to_owned()));
}

#[test]
fn a_request_that_would_never_pass_is_told_so() {
    let never = Values { retry_after: None, ..VALUES };
    for (text, body) in [
        ("again: {retry_after}", "again: never"),
        (r#"{"again": {retry_after}}"#, r#"{"again": null}"#),
        (r#"{"again": "{retry_after}"}"#, r#"{"again": "never"}"#),
    ] {
        assert_eq!(Template::read(text).unwrap().fill(&never), body);
    }
}

#[test]
fn nothing_is_no_body() {
    assert!(Template::read("").unwrap().is_empty());
    assert!(!Template::read(" ").unwrap().is_empty());
}

#[test]
fn what_is_no_template_is_told_with_what_would_be_one() {
    let accepted = "accepted are {limit}, {unit}, {remaining}, {retry_after}, {rule}; a brace that is only a \
        brace is written `{{`";
    for name in ["limits", " limit ", "Limit", "retry-after", "0", "\u{fc}"] {
        let fault = Template::read(&format!("wait {{{name}}}")).unwrap_err();
        assert_eq!(fault.message, format!("`{{{name}}}` stands for nothing"));
        assert_eq!(fault.help, accepted);
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
        let fault = Template::read(text).unwrap_err();
        assert!(
            fault.message.starts_with("the body begins as JSON does, and is none: "),
            "{text}: {fault:?}"
        );
    }
    let fault = Template::read(&"x".repeat(16 * 1024 + 1)).unwrap_err();
    assert_eq!(fault.message, "the body has 16385 bytes, at most 16384 are sent");
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "[{}a\"\\\\\\[ ]{0,12}\\PC{0,9}") {
        if let Ok(template) = Template::read(&text) {
            let body = template.fill(&VALUES);
            prop_assert!(template.kind() == Kind::Text || serde_json::from_str::<Value>(&body).is_ok());
        }
    }

    #[test]
    fn json_stays_json_whatever_is_filled_in(
        limit: u32, remaining: u32, retry_after: Option<u64>, unit in "\\PC*", rule in any::<String>(),
    ) {
        let text = r#"{"\\{rule}": ["{unit}", {rule}, {limit}, {remaining}, {retry_after}, "{retry_after}"]}"#;
        let body = Template::read(text).unwrap().fill(&Values {
            limit, unit: &unit, remaining, retry_after, rule: &rule,
        });
        let never = retry_after.map_or("never".to_owned(), |seconds| seconds.to_string());
        let list = serde_json::json!([unit, rule, limit, remaining, retry_after, never]);
        let key = format!("\\{rule}");
        prop_assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), serde_json::json!({ key: list }));
    }

    #[test]
    fn doubled_braces_are_braces(text in "\\PC{0,20}") {
        let doubled = format!("-{}", text.replace('{', "{{"));
        prop_assert_eq!(Template::read(&doubled).unwrap().fill(&VALUES), format!("-{text}"));
    }
}
