//! The body of a rule's over-limit responses (`over_limit_body`).

use crate::{
    template::Template,
    {CompileOptions, Compiled, SourceFile, compile},
};

fn compiled(keys: &str, portable: bool) -> Compiled {
    let text = format!("domain: d\ndescriptors:\n- key: k\n{keys}");
    let file = SourceFile { name: "a.yaml".to_owned(), text: text.into_bytes() };
    compile(&[file], CompileOptions { portable, ..CompileOptions::default() })
}

fn messages(compiled: &Compiled) -> Vec<String> {
    compiled.diagnostics.iter().map(ToString::to_string).collect()
}

const LIMIT: &str = "  rate_limit: {unit: day, requests_per_unit: 1}\n";

#[test]
fn a_rule_has_the_body_beside_its_limit() {
    for (body, expected) in [
        ("# none\n", None),
        ("  over_limit_body: ~\n", None),
        ("  over_limit_body: ''\n", Some("")),
        ("  over_limit_body: wait {retry_after}s\n", Some("wait {retry_after}s")),
        ("  over_limit_body: |\n    {\"wait\": {retry_after}}\n", Some("{\"wait\": {retry_after}}\n")),
        ("  over_limit_body: 429\n", Some("429")),
    ] {
        let compiled = compiled(&format!("{body}{LIMIT}"), false);
        assert_eq!(messages(&compiled), [""; 0], "{body}");
        let rules = compiled.rules.unwrap();
        let template = rules.rules()[0].over_limit_body.as_deref().cloned();
        assert_eq!(template, expected.map(|text| Template::parse(text).unwrap()), "{body}");
    }
}

#[test]
fn rejects_invalid_templates_with_their_place() {
    for (body, expected) in [
        (
            "'{limits}'",
            "5:20: error: unknown placeholder `{limits}` (at descriptors[0].over_limit_body); expected one of",
        ),
        ("'[wait]'", "5:20: error: body begins like JSON but is not valid: "),
        ("{error: 1}", "5:20: error: expected text, got a map"),
        ("1.5", "5:20: error: expected text, got the number `1.5`"),
    ] {
        let compiled = compiled(&format!("{LIMIT}  over_limit_body: {body}\n"), false);
        let messages = messages(&compiled);
        assert!(messages.len() == 1 && messages[0].contains(expected), "{messages:?} has no {expected:?}");
        assert!(compiled.rules.is_none());
    }
}

#[test]
fn warns_about_a_body_without_effect() {
    for (keys, reason) in [
        ("  rate_limit: {unlimited: true}\n", "the limit is `unlimited`"),
        (
            "  descriptors:\n  - key: l\n    rate_limit: {unlimited: true}\n",
            "the descriptor has no `rate_limit`",
        ),
        (&*format!("{LIMIT}  shadow_mode: true\n"), "with `shadow_mode` no request is over limit"),
    ] {
        let compiled = compiled(&format!("  over_limit_body: wait\n{keys}"), false);
        let expected = format!("4:3: warning: `over_limit_body` has no effect here: {reason}");
        let messages = messages(&compiled);
        assert!(messages.len() == 1 && messages[0].contains(&expected), "{messages:?} has no {expected:?}");
    }
}

#[test]
fn warns_that_the_go_service_rejects_it() {
    let messages = messages(&compiled(&format!("{LIMIT}  over_limit_body: wait\n"), true));
    let expected =
        "5:3: warning: the Go service rejects `over_limit_body` (at descriptors[0].over_limit_body)";
    assert!(messages.len() == 1 && messages[0].contains(expected), "{messages:?}");
}
