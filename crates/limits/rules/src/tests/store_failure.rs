//! The failure policy of a domain's files.

use super::super::{CompileOptions, Compiled, SourceFile, compile};
use faults::OnStoreFailure;
use limit::Countable;

fn compiled(tops: &[&str], options: CompileOptions) -> Compiled {
    let file = |(at, top): (usize, &&str)| {
        let descriptor = format!("{{key: k{at}, rate_limit: {{unit: day, requests_per_unit: 1}}}}");
        let text = format!("domain: d\n{top}\ndescriptors: [{descriptor}]\n");
        SourceFile { name: format!("{at}.yaml"), text: text.into_bytes() }
    };
    compile(&tops.iter().enumerate().map(file).collect::<Vec<_>>(), options)
}

fn messages(compiled: &Compiled) -> Vec<String> {
    compiled.diagnostics.iter().map(ToString::to_string).collect()
}

const MERGING: CompileOptions = CompileOptions {
    merge_domains: true,
    portable: false,
    strict: false,
    countable: Countable::Everything,
    max_values: usize::MAX,
    counting: limit::CountingMode::Exact,
    calendar_months: false,
};

#[test]
fn a_domain_has_the_policy_of_its_files() {
    for (tops, expected) in [
        (&[""][..], None),
        (&["on_store_failure: error"], Some(OnStoreFailure::Error)),
        (&["on_store_failure: Allow"], Some(OnStoreFailure::Allow)),
        (&["on_store_failure: 'DENY'"], Some(OnStoreFailure::Deny)),
        (&["on_store_failure: ~"], None),
        (&["on_store_failure: &x local", ""], Some(OnStoreFailure::Local)),
        (&["", "on_store_failure: local", "on_store_failure: LOCAL"], Some(OnStoreFailure::Local)),
        (&["on_store_failure: share"], Some(OnStoreFailure::Share)),
        (&["<<: {on_store_failure: deny}"], Some(OnStoreFailure::Deny)),
    ] {
        let compiled = compiled(tops, MERGING);
        assert_eq!(messages(&compiled), [""; 0], "{tops:?}");
        let rules = compiled.rules.unwrap();
        assert_eq!(rules.domain("d").unwrap().on_store_failure, expected, "{tops:?}");
    }
}

#[test]
fn rejects_unknown_policies() {
    let accepted = "accepted (case-insensitive): error, allow, deny, local, share";
    for (top, expected) in [
        (
            "on_store_failure: alow",
            "unknown `on_store_failure` `alow` (at on_store_failure); help".to_owned(),
        ),
        ("on_store_failure: ''", format!("unknown `on_store_failure` `` (at on_store_failure); {accepted}")),
        (
            "on_store_failure: yes",
            format!("unknown `on_store_failure` `yes` (at on_store_failure); {accepted}"),
        ),
        ("on_store_failure: 1.5", "expected text, got the number `1.5`".to_owned()),
        ("on_store_failure: [deny]", "expected text, got a list".to_owned()),
    ] {
        let compiled = compiled(&[top], CompileOptions::default());
        let expected = expected.replace("help", &format!("did you mean `allow`? {accepted}"));
        let messages = messages(&compiled);
        assert!(messages.len() == 1 && messages[0].starts_with("0.yaml:2:19: error: "), "{messages:?}");
        assert!(messages[0].contains(&expected), "{messages:?} has no {expected:?}");
        assert!(compiled.rules.is_none());
    }
}

#[test]
fn rejects_conflicting_policies_with_both_places() {
    let tops = ["# none", "on_store_failure: allow", "on_store_failure:  deny"];
    let messages = messages(&compiled(&tops, MERGING));
    let expected = "2.yaml:2:20: error: this file sets `deny`, but 1.yaml sets `allow` at line 2, column 19 \
        (at on_store_failure); set the same value in all files of a domain, or in one of them";
    assert_eq!(messages, [expected]);
}

#[test]
fn the_policy_is_valid_only_at_the_top() {
    for within in ["- {key: k, on_store_failure: deny}", "- {key: k, name: {on_store_failure: deny}}"] {
        let text = format!("domain: d\ndescriptors:\n{within}\n");
        let file = SourceFile { name: "a.yaml".to_owned(), text: text.into_bytes() };
        let messages = messages(&compile(&[file], CompileOptions::default()));
        let expected = "error: unknown key `on_store_failure`";
        let found = messages.iter().find(|message| message.contains(expected)).unwrap();
        assert!(found.ends_with("; it belongs at the top of the file"), "{found}");
    }
}

#[test]
fn warns_that_the_go_service_rejects_it() {
    let portable = CompileOptions { portable: true, ..MERGING };
    let compiled = compiled(&["on_store_failure: deny", ""], portable);
    let expected = "0.yaml:2:1: warning: the Go service rejects `on_store_failure` (at on_store_failure); \
        remove it from files that the Go service reads too";
    assert_eq!(messages(&compiled), [expected]);
    assert!(compiled.rules.is_some());
}
