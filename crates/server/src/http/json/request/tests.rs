//! Compares the reader with `prost-reflect`, an independent reader of the same mapping.

use proptest::{collection::vec, prelude::*, sample::select};

use super::*;

const NONE: Bounds = Bounds { descriptors: usize::MAX, entries: usize::MAX };

fn check(json: &str) -> Result<bool, TestCaseError> {
    let ours = read(json.as_bytes(), NONE);
    match (&ours, by_prost_reflect(json.as_bytes())) {
        (Ok(ours), Ok(message)) => {
            prop_assert_eq!(ours.to_limiter(), crate::wire::request(&message), "{}", json);
        }
        (Err(_), Err(_)) => {}
        (ours, theirs) => prop_assert!(false, "{ours:?} but {theirs:?} for {json}"),
    }
    Ok(ours.is_ok())
}

/// A valid or invalid scalar of any kind.
fn scalar() -> impl Strategy<Value = String> {
    const SOME: &[&str] = &[
        "null",
        "true",
        "false",
        "0",
        "1",
        "-1",
        "-0",
        "2.0",
        "2.5",
        "1e3",
        "1e400",
        "4294967295",
        "4294967296",
        "4294967295.0",
        "4294967296.0",
        "18446744073709551615",
        "18446744073709551616",
        "1.8446744073709552e19",
        "3.7e19",
        "-2147483648",
        "2147483648",
        r#""""#,
        r#""7""#,
        r#""+7""#,
        r#""-7""#,
        r#"" 7""#,
        r#""MINUTE""#,
        r#""minute""#,
        r#""WEEK""#,
        r#""true""#,
        r#""\u0061\n""#,
        r#""é""#,
        "[]",
        "{}",
        "[1]",
        r#""\ud800""#,
        "01",
        "nul",
        "\"\u{1}\"",
    ];
    prop_oneof![6 => select(SOME).prop_map(str::to_owned), 1 => any::<f64>().prop_map(|number| number.to_string())]
}

fn object(
    names: &'static [&'static str],
    value: impl Strategy<Value = String> + 'static,
) -> BoxedStrategy<String> {
    let pairs = vec((select(names), prop_oneof![9 => value, 1 => scalar()]), 0..4);
    pairs
        .prop_map(|pairs| {
            let pairs: Vec<String> =
                pairs.into_iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
            format!("{{{}}}", pairs.join(","))
        })
        .boxed()
}

fn list(item: BoxedStrategy<String>) -> BoxedStrategy<String> {
    vec(prop_oneof![20 => item, 1 => scalar()], 0..4)
        .prop_map(|items| format!("[{}]", items.join(",")))
        .boxed()
}

fn request() -> impl Strategy<Value = String> {
    let text = || prop_oneof![5 => select(&[r#""""#, r#""a""#, r#""b\tc""#][..]).prop_map(str::to_owned), 1 => scalar()];
    let entries = list(object(&["key", "value", "key", "value", "k\\u0065y", "Key"], text()));
    let number =
        || prop_oneof![3 => select(&["3", "\"3\"", "3.0", "0"][..]).prop_map(str::to_owned), 1 => scalar()];
    let limit = object(&["requestsPerUnit", "requests_per_unit", "unit"], number());
    let of = |names, value| object(names, value);
    let descriptor = prop_oneof![
        6 => of(&["entries"], entries),
        2 => of(&["limit"], limit),
        2 => of(&["hitsAddend", "hits_addend", "isNegativeHits", "is_negative_hits"], scalar().boxed()),
    ];
    let descriptors = list(descriptor.boxed());
    prop_oneof![
        6 => of(&["descriptors", "descriptors", "d\\u0065scriptors"], descriptors),
        2 => of(&["domain", "hits_addend", "hitsAddend", "domian"], scalar().boxed()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn accepts_the_requests_that_prost_reflect_accepts(json in request()) {
        check(&json)?;
    }

    #[test]
    fn accepts_the_damaged_requests_that_prost_reflect_accepts(
        json in request(),
        damage in vec((any::<prop::sample::Index>(), select(&b"{}[],:\"\\ 0a"[..]), any::<bool>()), 0..3),
    ) {
        let mut json = json.into_bytes();
        for (at, byte, insert) in damage {
            let at = at.index(json.len());
            if insert { json.insert(at, byte) } else { json[at] = byte }
        }
        if let Ok(json) = str::from_utf8(&json) {
            check(json)?;
        }
    }
}

#[test]
fn reads_both_forms_of_names_and_numbers_as_text() {
    for json in [
        r#"{"domain":"d","hitsAddend":"2","descriptors":[{"entries":[{"key":"k"}],"hits_addend":3}]}"#,
        r#"{"domain":"d","hits_addend":2.0,"descriptors":[{"entries":[{"key":"k"}],"hitsAddend":"3"}]}"#,
    ] {
        assert!(check(json).unwrap());
        let read = read(json.as_bytes(), NONE).unwrap();
        let request = read.to_limiter();
        assert_eq!((request.hits_addend, request.descriptors[0].hits_addend), (2, Some(3)), "{json}");
    }
}

#[test]
fn an_error_names_the_place_and_cuts_long_texts() {
    let long = "x".repeat(4_000_000);
    for (json, shown) in [
        (r#"{"domian":"d"}"#.to_owned(), "unrecognized field name 'domian' at line 1"),
        (r#"{"domain":"d"} x"#.to_owned(), "trailing"),
        (r#"{"domain":1}"#.to_owned(), "expected a string at line 1"),
        (r#"{"descriptors":[{"limit":{"unit":"WEEK"}}]}"#.to_owned(), "WEEK"),
        ("[]".to_owned(), "map"),
        (String::new(), "EOF"),
        (format!("{{\"{long}\":1}}"), "unrecognized field name 'xxx"),
        // A name longer than any field's is not decoded.
        (format!("{{\"\\u0078{long}\":1}}"), "unrecognized field name '\\u0078xxx"),
        (format!("{{\"hits_addend\":\"{long}\"}}"), "xxx"),
        (format!("{{\"descriptors\":\"{long}\"}}"), "xxx"),
        (format!("{{\"descriptors\":[\"{long}\"]}}"), "xxx"),
        (format!("{{\"descriptors\":[{{\"limit\":{{\"unit\":\"{long}\"}}}}]}}"), "xxx"),
        (format!("{{\"descriptors\":[{{\"is_negative_hits\":\"{long}\"}}]}}"), "xxx"),
        (format!("\"{long}\""), "xxx"),
    ] {
        let error = read(json.as_bytes(), NONE).unwrap_err();
        assert!(error.contains(shown), "{error}");
        assert!(error.len() <= text::LONGEST, "{} bytes", error.len());
    }
}

#[test]
fn items_beyond_a_bound_are_counted_and_not_kept() {
    let bounds = Bounds { descriptors: 3, entries: 2 };
    for count in [0, 1, 2, 3, 4, 300_000] {
        let list = vec!["{}"; count].join(",");
        let json = format!("{{\"descriptors\":[{list}]}}");
        let read = read(json.as_bytes(), bounds).unwrap();
        assert_eq!((read.descriptors.len(), read.excess), (count.min(3), count.saturating_sub(3)));
        let json = format!("{{\"descriptors\":[{{\"entries\":[{list}]}}]}}");
        let read = super::read(json.as_bytes(), bounds).unwrap();
        let descriptor = &read.descriptors[0];
        assert_eq!((descriptor.entries.len(), descriptor.excess), (count.min(2), count.saturating_sub(2)));
    }
}
