//! Every diagnostic that a rules file can cause, with its place and text.

use crate::{CompileOptions, Compiled, RuleSet, SourceFile, compile};
use limit::Countable;
use text::diagnostics::Diagnostic;

const MERGING: CompileOptions = CompileOptions {
    merge_domains: true,
    portable: false,
    strict: false,
    countable: Countable::Everything,
    max_values: usize::MAX,
    counting: limit::CountingMode::Exact,
    calendar_months: false,
};

fn compile_files(files: &[(&str, &str)], options: CompileOptions) -> Compiled {
    let source =
        |(name, text): &(&str, &str)| SourceFile { name: (*name).to_owned(), text: text.as_bytes().to_vec() };
    compile(&files.iter().map(source).collect::<Vec<_>>(), options)
}

fn compile_one(text: &str) -> Compiled {
    compile_files(&[("a.yaml", text)], CompileOptions::default())
}

/// The diagnostics as `line:column message`.
fn messages(compiled: &Compiled) -> Vec<String> {
    let one = |Diagnostic { place, message, .. }: &Diagnostic| {
        let place = place.map(|place| format!("{}:{} ", place.line, place.column)).unwrap_or_default();
        format!("{place}{message}")
    };
    compiled.diagnostics.iter().map(one).collect()
}

fn shown(rules: &RuleSet) -> Vec<String> {
    let mut lines: Vec<String> = rules.rules().iter().map(ToString::to_string).collect();
    lines.sort();
    lines
}

/// A valid descriptor, and from line 4 on a descriptor with these lines.
fn with(descriptor: &str) -> Compiled {
    let sound =
        "domain: d\ndescriptors:\n- {key: sound, rate_limit: {unit: day, requests_per_unit: 4, name: n}}\n";
    compile_one(&format!("{sound}{descriptor}"))
}

#[test]
fn errors_of_one_descriptor() {
    for (descriptor, expected) in [
        ("- key: k\n  ratelimit: 1", "5:3 unknown key `ratelimit`"),
        ("- key: k\n  5: x", "5:3 expected a text key, got the number `5`"),
        ("- key: [k]", "4:8 expected text, got a list"),
        ("- key: 1.5", "4:8 expected text, got the number `1.5`"),
        ("- value: v", "4:3 this descriptor has no key"),
        ("- key: ''", "4:8 this descriptor has no key"),
        ("- key: k\n  metadata: 5", "5:13 expected a map, got the number `5`"),
        ("- key: k\n  shadow_mode: 1", "5:16 expected `true` or `false`, got the number `1`"),
        (
            "- key: k\n  value: v\n  share_threshold: yes",
            "6:20 `share_threshold` requires a wildcard, and `k_v` has no `*`",
        ),
        ("- key: k\n  descriptors: {key: m}", "5:16 expected a list of descriptors, got a map"),
        ("- key: k\n  descriptors: [~]", "5:17 expected a map in this list of descriptors, got nothing"),
        (
            "- key: k\n  descriptors:\n  - key: m\n  - key: m",
            "7:5 duplicate descriptor `m`, first at line 6, column 5",
        ),
        ("- key: k\n  name: [1]", "5:10 expected a map in this list, got the number `1`"),
        ("- key: k\n  rate_limit: hourly", "5:15 expected a map, got the text `hourly`"),
    ] {
        let errors: Vec<String> = messages(&with(descriptor))
            .into_iter()
            .filter(|message| !message.contains("has no effect here"))
            .collect();
        assert_eq!(errors, [expected], "{descriptor}");
    }
}

/// The place and the help of the only error of a file.
fn advice(text: &str) -> (Option<(u32, u32)>, String, String) {
    let compiled = compile_one(text);
    assert!(compiled.rules.is_none(), "{text}");
    let errors: Vec<_> = compiled.diagnostics.iter().filter(|one| one.is_error()).collect();
    let [one] = errors[..] else { panic!("{text}: {errors:#?}") };
    let place = one.place.map(|place| (place.line, place.column));
    (place, one.message.clone(), one.help.clone().unwrap_or_default())
}

#[test]
fn a_colon_without_a_space_is_reported_at_its_key() {
    for (text, place, written) in [
        (
            "domain: d\ndescriptors:\n  - key:tenant\n    rate_limit:\n      unit: day\n",
            (3, 5),
            "key: tenant",
        ),
        ("domain: d\ndescriptors:\n  - key:tenant\n\n    # which\n    value: x\n", (3, 5), "key: tenant"),
        ("domain: d\r\ndescriptors:\r\n- key:tenant\r\n  value: x\r\n", (3, 3), "key: tenant"),
        ("domain:d\ndescriptors: []\n", (1, 1), "domain: d"),
        (
            "domain: d\ndescriptors:\n- key: k\n  rate_limit:\n    unit:day\n    requests_per_unit: 5\n",
            (5, 5),
            "unit: day",
        ),
        (
            "domain: d\ndescriptors:\n- key: k\n  rate_limit:\n    unit: day\n    requests_per_unit:5\n",
            (6, 5),
            "requests_per_unit: 5",
        ),
    ] {
        let (seen, message, help) = advice(text);
        assert_eq!(seen, Some(place), "{text}: {message}");
        assert!(message.ends_with("is a text, not a key with a value"), "{message}");
        assert_eq!(help, format!("put a space after the colon: `{written}`"), "{text}");
    }
    // Another cause: the text above is no key.
    let (place, message, _) = advice("domain: d\ndescriptors:\n- see http://x\n  value: x\n");
    assert_eq!((place, message.contains("mapping values")), (Some((4, 8)), true), "{message}");
}

#[test]
fn a_number_that_is_no_limit_is_reported_with_one() {
    for (limit, column, help) in [
        ("unit: day, requests_per_unit: 10,000", 46, "write `10000`"),
        ("unit: day, requests_per_unit: 1,000,000", 46, "write `1000000`"),
        ("requests_per_unit: 10,000, unit: day", 35, "write `10000`"),
        ("unit: day, requests_per_unit: '10,000'", 46, "write `10000`"),
        ("unit: day, requests_per_unit: 10 000", 46, "write `10000`"),
        ("unit: day, requests_per_unit: '10'", 46, "remove the quotes: 10, 1_000, 0x10"),
        ("unit: day, requests_per_unit: 0.5", 46, "`requests_per_unit: 1, unit_multiplier: 2`"),
        ("unit: day, requests_per_unit: 1.5", 46, "`requests_per_unit: 3, unit_multiplier: 2`"),
        (
            "unit: day, requests_per_unit: 0.3333333333333333",
            46,
            "`requests_per_unit: 1, unit_multiplier: 3`",
        ),
        ("unit: day, requests_per_unit: 1e3", 46, "write `1000`"),
        ("unit: day, requests_per_unit: 3.14159265358979", 46, "accepted: 0 to"),
        ("unit: day, requests_per_unit: .nan", 46, "accepted: 0 to"),
        ("unit: day, requests_per_unit: -0.5", 46, "accepted: 0 to"),
        (
            "unit: day, requests_per_unit: 1, algorithm: sliding",
            60,
            "did you mean `sliding_window` or `sliding_log`?",
        ),
        (
            "unit: day, requests_per_unit: 1, algorithm: bucket",
            60,
            "did you mean `token_bucket` or `leaky_bucket`?",
        ),
        ("unit: day, requests_per_unit: 1, algorithm: fixed", 60, "did you mean `fixed_window`?"),
        ("unit:day, requests_per_unit: 1, unlimited: true", 16, "put a space after the colon: `unit: day`"),
    ] {
        let (place, message, seen) =
            advice(&format!("domain: d\ndescriptors:\n- key: k\n  value: v\n  rate_limit: {{{limit}}}\n"));
        assert_eq!(place, Some((5, column)), "{limit}: {message}");
        assert!(seen.contains(help), "{limit}: {message}: {seen}");
    }
}

#[test]
fn errors_of_one_limit() {
    for (limit, expected) in [
        ("requests_per_unit: 1", "5:15 this limit has no unit"),
        ("unit: hours, requests_per_unit: 1", "5:22 unknown unit `hours`"),
        ("unlimited: on, unit: day", "5:37 a limit is either `unlimited` or has a unit"),
        ("unit: day, requests_per_unit: '2'", "5:46 expected an integer, got the text `2`"),
        (
            "unit: day, requests_per_unit: 9007199254740992",
            "5:46 expected an integer, got the number `9007199254740992`",
        ),
        ("unit: day, requests_per_unit: -1", "5:46 expected an integer, got the number `-1`"),
        (
            "unit: day, requests_per_unit: 1, name: m, replaces: [{name: m}]",
            "5:76 this limit replaces `m`, which is itself",
        ),
        (
            "unit: day, requests_per_unit: 1, replaces: [{}]",
            "5:60 this item has no `name` of a limit to replace",
        ),
        (
            "unit: day, requests_per_unit: 1, replaces: [m]",
            "5:60 expected a map in this list of limits to replace, got the text `m`",
        ),
    ] {
        let compiled = with(&format!("- key: k\n  rate_limit: {{{limit}}}"));
        assert_eq!(messages(&compiled), [expected], "{limit}");
        assert!(compiled.rules.is_none());
    }
}

#[test]
fn errors_of_a_complete_file() {
    for (text, expected) in [
        ("", "the file is empty; a rules file must have a domain"),
        ("descriptors: []", "1:1 the file has no domain"),
        ("domain: ''", "1:9 the file has no domain"),
        ("- a", "1:1 expected a map with `domain` and `descriptors`, got a list"),
        (
            "domain: [",
            "2:1 invalid YAML: did not find expected node content, while parsing a flow node \
             that begins at line 2, column 1",
        ),
        (
            "domain: d\n\tx: 1",
            "2:1 invalid YAML: found a tab character that violates indentation, while scanning \
             a plain scalar that begins at line 1, column 9",
        ),
        ("domain: \x01", "1:9 the control character U+0001 is not allowed"),
    ] {
        assert_eq!(messages(&compile_one(text)), [expected], "{text:?}");
    }
}

#[test]
fn warnings() {
    for (descriptor, expected) in [
        (
            "- key: k\n  key: m\n  rate_limit: {unit: day, requests_per_unit: 1}",
            "4:3 `key` is set again at line 5, column 3, and the last one applies",
        ),
        (
            "- key: k\n  rate_limit: {unit: day, requests_per_unit: 1, shadow_mode: true}",
            "5:49 `shadow_mode` has no effect here",
        ),
        (
            "- key: k\n  shadow_mode: true\n  descriptors: [{key: m, rate_limit: {unit: day, \
             requests_per_unit: 1}}]",
            "5:3 `shadow_mode` has no effect here: the descriptor has no `rate_limit`",
        ),
        (
            "- key: k\n  value: v\n  value_to_metric: true\n  rate_limit: {unit: day, requests_per_unit: 1}",
            "6:3 `value_to_metric` has no effect here: metrics always contain an exact value",
        ),
        (
            "- key: k\n  value: v*\n  share_threshold: true",
            "6:3 `share_threshold` has no effect here: no limit at or below the descriptor counts hits",
        ),
        (
            "- key: k\n  rate_limit: {unit: day}",
            "5:15 `requests_per_unit` is missing, so every request is over the limit of 0",
        ),
        (
            "- key: k\n  rate_limit: {unlimited: true, requests_per_unit: 5}",
            "5:33 `requests_per_unit` has no effect with `unlimited: true`",
        ),
        (
            "- key: k\n  rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: m}]}",
            "5:67 no limit of this domain has the name `m`, so nothing is replaced",
        ),
        ("- key: k", "4:3 this descriptor has no effect: it has no `rate_limit` and no `descriptors`"),
        (
            "- key: sound\n  value: '*'\n  rate_limit: {unlimited: true}",
            "3:3 this descriptor is unreachable: `sound_*` at line 4, column 3 matches every value of `sound`",
        ),
        (
            "- key: k\n  value: 'a*'\n  rate_limit: {unlimited: on}\n- key: k\n  value: 'ab*'\n  \
             rate_limit: {unlimited: on}",
            "7:3 `k_ab*` is unreachable: `k_a*` at line 4, column 3 matches every text that it matches",
        ),
        ("---\ndomain: e", "4:1 only the first document of a file is read, and it ends above this line"),
    ] {
        let compiled = with(descriptor);
        assert_eq!(messages(&compiled), [expected], "{descriptor}");
        assert!(compiled.rules.is_some(), "{descriptor}");
    }
}

#[test]
fn common_rules_have_no_warnings() {
    for descriptor in [
        "- key: k\n  rate_limit: {unit: day, requests_per_unit: 0}",
        "- key: sound\n  value: exempt",
        "- key: k\n  value: 'a*'\n- key: k\n  value: '*'\n  rate_limit: {unit: day, \
         requests_per_unit: 1, replaces: [{name: n}]}",
        "- key: k\n  value_to_metric: true\n  descriptors: [{key: m, rate_limit: {unit: day, \
         requests_per_unit: 1}}]",
        "- key: k\n  shadow_mode: false\n  rate_limit: {unlimited: true}",
        "- key: k\n  rate_limit: &l {unit: day, requests_per_unit: 1}\n- key: m\n  rate_limit: {<<: \
         *l, unit: hour}",
        "---\n",
    ] {
        assert_eq!(messages(&with(descriptor)), [""; 0], "{descriptor}");
    }
}

#[test]
fn reports_all_errors_of_all_files_in_one_run_in_order() {
    let files = [
        ("b.yaml", "domain: d\ndescriptors: [{key: k, unitt: 1}, {value: v}]"),
        ("a.yaml", "domain: [\n"),
        ("c.yaml", "domain: d\ndescriptors: [{}]"),
    ];
    let compiled = compile_files(&files, CompileOptions::default());
    let places: Vec<String> = compiled.diagnostics.iter().map(ToString::to_string).collect();
    let starts = [
        "b.yaml:2:24: error",
        "b.yaml:2:35: error",
        "a.yaml:2:1: error",
        "c.yaml:1:9: error",
        "c.yaml:2:15: error",
    ];
    assert_eq!(places.len(), starts.len(), "{places:?}");
    assert!(places.iter().zip(starts).all(|(place, start)| place.starts_with(start)), "{places:?}");
    assert_eq!(compiled.diagnostics[3].message, "the domain `d` is already defined in b.yaml");
}

#[test]
fn merged_files_share_a_level() {
    let files = [
        ("a.yaml", "domain: d\ndescriptors: [{key: k, rate_limit: {unlimited: on}}]"),
        ("b.yaml", "domain: d\ndescriptors: [{key: k}]"),
    ];
    let message = "2:15 duplicate descriptor `k`, first at line 2, column 15 of a.yaml";
    assert_eq!(messages(&compile_files(&files, MERGING)), [message]);
    let files =
        [files[0], ("b.yaml", "domain: d\ndescriptors: [{key: k, value: '*', rate_limit: {unlimited: on}}]")];
    let compiled = compile_files(&files, MERGING);
    assert_eq!(
        messages(&compiled),
        ["2:15 this descriptor is unreachable: `k_*` at line 2, column 15 of b.yaml matches \
             every value of `k`"]
    );
    assert_eq!(compiled.diagnostics[0].file, "a.yaml");
    assert_eq!(compiled.rules.unwrap().rule_count(), 2);
}

#[test]
fn parts_of_a_limit_are_merged() {
    let compiled = with(
        "- &x\n  key: k\n  rate_limit: {unit: day, requests_per_unit: 1}\n- <<: *x\n  key: m\n  \
         rate_limit: {requests_per_unit: 9}",
    );
    let lines = shown(&compiled.rules.unwrap());
    assert_eq!(lines[1], "d.m: unit=DAY requests_per_unit=9, shadow_mode: false, quota_mode: false");
}

#[test]
fn reports_a_value_behind_an_alias_at_both_places() {
    let compiled =
        with("- key: k\n  rate_limit: &l {unit: day, requests_per_unit: '1'}\n- key: m\n  rate_limit: *l");
    assert_eq!(messages(&compiled), ["5:49 expected an integer, got the text `1`"]);
    let compiled = with("- key: k\n  metadata: &l {unit: day, requests_per_unit: '1'}\n  rate_limit: *l");
    let help = compiled.diagnostics[0].help.as_deref().unwrap_or_default();
    assert!(help.ends_with("; the value comes from the alias or merge at line 6, column 15"), "{help}");
}

/// The place and the help of the only diagnostic.
fn only_help(text: &str) -> String {
    let compiled = compile_one(text);
    let [Diagnostic { place: Some(place), help: Some(help), .. }] = &compiled.diagnostics[..] else {
        panic!("{text:?}: {:?}", compiled.diagnostics)
    };
    format!("{}:{} {help}", place.line, place.column)
}

#[test]
fn invalid_yaml_has_a_sentence_that_helps() {
    for (text, expected) in [
        (
            "domain: d\ndescriptors:\n  - key: k\n    value: v\n   rate_limit: {}\n",
            "5:4 the items of a list begin in one column: indent its `-` to column 3",
        ),
        (
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit:\n        unit: day\n      name: n\n",
            "6:7 the keys of a map begin in one column: indent this line to column 5 for the same map, or further for a value",
        ),
        (
            "domain: d\ndescriptors:\n- key: k\n   value: v\n",
            "4:9 indent this line like the keys above it; a text that contains `: ` must be quoted",
        ),
        ("domain: \"d\ndescriptors: []\n", "3:1 close the quote that opens at line 1, column 9"),
        ("domain: 'd\ndescriptors: []\n", "3:1 close the quote that opens at line 1, column 9"),
        (
            "domain: d\ndescriptors:\n- key: \"k\n  value: \"v\"\n",
            "4:11 the quote at line 3, column 8 is closed only on this line: its own closing quote is missing",
        ),
        (
            "domain d\ndescriptors: []\n",
            "2:12 indent this line like the keys above it; a text that contains `: ` must be quoted",
        ),
        ("domain: d\ndescriptors\n", "3:1 write `key: value`, with a colon and a space"),
        (
            "domain: d\ndescriptors: - key: k\n",
            "2:14 begin the list on the next line: `descriptors:`, then `- key: …`",
        ),
        ("domain: d\ndescriptors: [{key: k}\n", "3:1 close the `[` at line 2, column 14"),
        ("domain: d\ndescriptors: [{key: k]\n", "2:22 close the `{` at line 2, column 15"),
        (
            "domain: d\ndescriptors:\n{{- range .Values.keys }}\n- key: k\n{{- end }}\n",
            "3:1 check the rendered file: `helm template` prints it",
        ),
        (
            "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: {{ .Values.n }}}\n",
            "4:46 check the rendered file: `helm template` prints it",
        ),
        (
            "apiVersion: v1\nkind: ConfigMap\ndata:\n  a.yaml: |\n    domain: d\n",
            "1:1 move the text of each key below `data` into a file of its own",
        ),
        (
            "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: -1}\n",
            "4:46 a limit cannot be negative: 0 allows no request, and `unlimited: true` allows all",
        ),
    ] {
        assert_eq!(only_help(text), expected, "{text}");
    }
}

#[test]
fn a_second_document_is_an_error_for_check_alone() {
    let text = "domain: d\ndescriptors: [{key: k, rate_limit: {unlimited: on}}]\n---\ndomain: e\n";
    for strict in [false, true] {
        let compiled = compile_files(&[("a.yaml", text)], CompileOptions { strict, ..MERGING });
        assert_eq!(messages(&compiled).len(), 1);
        assert_eq!(compiled.rules.is_none(), strict);
    }
}

#[test]
fn texts_that_no_request_sends_are_warnings_at_their_places() {
    let compiled = compile_one(
        "domain: 'd '\ndescriptors:\n- key: ' k'\n  value: 10.0.0.0/8\n  rate_limit: {unlimited: on}\n",
    );
    let places: Vec<_> =
        compiled.diagnostics.iter().map(|one| (one.place.unwrap().line, &*one.path)).collect();
    assert_eq!(places, [(1, "domain"), (3, "descriptors[0].key"), (4, "descriptors[0].value")]);
    assert!(compiled.rules.is_some());
}
