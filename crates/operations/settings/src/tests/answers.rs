//! Headers, bodies and metadata of responses.

use super::{problems, settings};
use limiter::PolicyHeaders;
use rules::template::Template;

#[test]
fn responses_contain_only_the_decision_by_default() {
    for variables in [
        &[][..],
        &[("LIMIT_RETRY_AFTER_HEADER", ""), ("OVER_LIMIT_BODY", ""), ("LIMIT_POLICY_HEADERS", "false")],
    ] {
        let answers = settings(variables).answers;
        assert_eq!((answers.retry_after_header, answers.over_limit_body), (None, None));
        assert!(!answers.headers);
        assert_eq!(answers.policy_headers, PolicyHeaders::Off);
        assert!(!answers.dynamic_metadata && !answers.dynamic_metadata_limits);
    }
}

#[test]
fn reads_headers_and_the_body() {
    let answers = settings(&[
        ("LIMIT_RETRY_AFTER_HEADER", "Retry-After"),
        ("LIMIT_POLICY_HEADERS", "true"),
        ("OVER_LIMIT_BODY", "wait {retry_after}s"),
    ])
    .answers;
    assert_eq!(answers.retry_after_header.as_deref(), Some("Retry-After"));
    assert_eq!(answers.policy_headers, PolicyHeaders::On);
    assert_eq!(answers.over_limit_body, Template::parse("wait {retry_after}s").ok());
    let answers = settings(&[("LIMIT_POLICY_HEADERS", "keys")]).answers;
    assert_eq!(answers.policy_headers, PolicyHeaders::WithKeys);
}

#[test]
fn rejects_invalid_headers_and_bodies() {
    for (name, value, expected) in [
        (
            "LIMIT_RETRY_AFTER_HEADER",
            "Retry After",
            "LIMIT_RETRY_AFTER_HEADER=\"Retry After\": expected a header",
        ),
        ("LIMIT_POLICY_HEADERS", "pk", "expected keys, true or false"),
        ("OVER_LIMIT_BODY", "{seconds}", "; unknown placeholder `{seconds}`"),
        ("OVER_LIMIT_BODY", "[wait]", "; body begins like JSON but is not valid: "),
    ] {
        let problems = problems(&[(name, value)]);
        assert!(problems.len() == 1 && problems[0].contains(expected), "{problems:?} has no {expected:?}");
    }
}
