//! Limits that the store cannot count.

use super::super::{CompileOptions, Compiled, SourceFile, compile};
use limit::{Countable, Kind};

fn compiled(rate_limit: &str, countable: Countable) -> Compiled {
    let text = format!("domain: d\ndescriptors:\n- key: k\n  rate_limit: {rate_limit}\n");
    let file = SourceFile { name: "a.yaml".to_owned(), text: text.into_bytes() };
    compile(&[file], CompileOptions { countable, ..CompileOptions::default() })
}

fn messages(rate_limit: &str) -> Vec<String> {
    let compiled = compiled(rate_limit, Countable::FixedWindows);
    let messages: Vec<_> = compiled.diagnostics.iter().map(ToString::to_string).collect();
    assert_eq!(compiled.rules.is_some(), messages.is_empty(), "{messages:?}");
    messages
}

#[test]
fn rejects_an_algorithm_that_is_not_counted() {
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Concurrency) {
        let name = kind.name();
        let limit = format!("{{unit: day, requests_per_unit: 5, algorithm: {}}}", name.to_uppercase());
        let error = format!(
            "a.yaml:4:60: error: `{name}` cannot be counted: memcached counts only fixed windows \
             (at descriptors[0].rate_limit.algorithm); use `fixed_window`, or set BACKEND_TYPE to redis \
             or memory"
        );
        assert_eq!(messages(&limit), Vec::from_iter((kind != Kind::FixedWindow).then_some(error)));
        assert!(compiled(&limit, Countable::Everything).rules.is_some(), "{name}");
    }
}

#[test]
fn accepts_fixed_windows_of_any_length_and_number() {
    assert_eq!(messages("{unit: year, unit_multiplier: 10, requests_per_unit: 5}"), [""; 0]);
    assert_eq!(
        messages("[{unit: second, requests_per_unit: 5}, {unit: month, requests_per_unit: 9}]"),
        [""; 0]
    );
}

#[test]
fn reports_each_limit_of_a_list_with_its_other_errors() {
    let messages = messages(
        "[{unit: day, requests_per_unit: 5, algorithm: sliding_log}, {unit: day, requests_per_unit: 7,\n    \
         algorithm: token_bucket, burst: 0}]",
    );
    let starts = [
        "a.yaml:4:61: error: `sliding_log` cannot be counted",
        "a.yaml:5:16: error: `token_bucket` cannot be counted",
        "a.yaml:5:37: error: a bucket with a burst of 0",
    ];
    assert_eq!(messages.len(), starts.len(), "{messages:#?}");
    for (messages, start) in messages.iter().zip(starts) {
        assert!(messages.starts_with(start), "{messages}");
    }
    assert!(messages[1].contains("(at descriptors[0].rate_limit[1].algorithm)"), "{messages:?}");
}
