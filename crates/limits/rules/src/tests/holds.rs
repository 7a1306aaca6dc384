//! `hold` and `concurrency`: what is accepted, and every mistake with its place.

use std::time::Duration;

use super::super::{CompileOptions, Compiled, SourceFile, compile};
use limit::{Algorithm, Countable, Unit, holds::Unknown};

fn compiled(rate_limit: &str, countable: Countable) -> Compiled {
    let text = format!("domain: d\ndescriptors:\n- key: k\n  rate_limit: {rate_limit}\n");
    let file = SourceFile { name: "a.yaml".to_owned(), text: text.into_bytes() };
    compile(&[file], CompileOptions { countable, ..CompileOptions::default() })
}

fn messages(rate_limit: &str) -> Vec<String> {
    compiled(rate_limit, Countable::Everything).diagnostics.iter().map(ToString::to_string).collect()
}

#[test]
fn reads_holds() {
    for (written, amount, ttl, unknown, currency) in [
        ("{amount: 4000, ttl: 15m, unknown: held, in: tokens}", 4000, 900, Unknown::Held, "tokens"),
        ("{amount: 1, ttl: 1h30m}", 1, 5400, Unknown::Held, ""),
        ("{amount: 1, ttl: 744h, unknown: zero, in: 'US-D_1'}", 1, 2_678_400, Unknown::Hits(0), "US-D_1"),
        ("{amount: 9007199254740991, ttl: 1s, unknown: 7}", (1 << 53) - 1, 1, Unknown::Hits(7), ""),
    ] {
        let limit = format!("{{unit: year, requests_per_unit: 9007199254740991, hold: {written}}}");
        assert_eq!(messages(&limit), [""; 0]);
        let rules = compiled(&limit, Countable::Everything).rules.unwrap();
        let rule = rules.rules()[0];
        let hold = rule.limits().unwrap().first().hold.clone().unwrap();
        assert_eq!((hold.amount, hold.ttl), (amount, Duration::from_secs(ttl)), "{written}");
        assert_eq!((hold.unknown, &*hold.currency), (unknown, currency), "{written}");
        assert!(rule.to_string().contains(&format!(", hold: {hold}")), "{rule}");
    }
}

#[test]
fn reads_a_limit_of_requests_under_way() {
    let limit = "{algorithm: concurrency, requests_per_unit: 20, hold: {ttl: 15m}}";
    assert_eq!(messages(limit), [""; 0]);
    let rules = compiled(limit, Countable::Everything).rules.unwrap();
    let limit = rules.rules()[0].limits().unwrap().first().clone();
    assert_eq!((limit.algorithm, limit.unit), (Algorithm::Concurrency(20), Unit::Unknown));
    assert_eq!((limit.in_words(), limit.hold.unwrap().amount), ("20 at a time".to_owned(), 1));
}

#[test]
fn refuses_what_cannot_hold_with_its_place() {
    let of_month = |hold: &str| format!("{{unit: month, requests_per_unit: 9, hold: {hold}}}");
    for (limit, place, message) in [
        (of_month("{ttl: 1m}"), "4:57", "this hold has no `amount`"),
        (of_month("{amount: 1}"), "4:57", "this hold has no `ttl`"),
        (of_month("{amount: 0, ttl: 1m}"), "4:66", "a hold of 0 reserves nothing"),
        (of_month("{amount: x, ttl: 1m}"), "4:66", "expected an integer"),
        (of_month("{amount: 1, ttl: 1m, most: 0}"), "4:84", "expected a number of hits or a percentage, got `0`"),
        (of_month("{amount: 1, ttl: 1m, most: 0%}"), "4:84", "accepted: 1 to 9007199254740991, or 1% to 100%"),
        (of_month("{amount: 1, ttl: 1m, most: 101%}"), "4:84", "got `101%`"),
        (of_month("{amount: 1, ttl: 1m, most: half}"), "4:84", "got `half`"),
        (of_month("{amount: 1, ttl: 1m, most: 9007199254740992}"), "4:84", "got `9007199254740992`"),
        (of_month("{amount: 1, ttl: 1m, most: [1]}"), "4:84", "expected text"),
        (of_month("{amount: 1, ttl: 5}"), "4:74", "expected a duration"),
        (of_month("{amount: 1, ttl: 745h}"), "4:74", "a `ttl` of `745h` is out of range"),
        (of_month("{amount: 1, ttl: 0s}"), "4:74", "out of range"),
        (of_month("{amount: 1, ttl: 1m, unknown: some}"), "4:87", "unknown cost `some`"),
        (of_month("{amount: 1, ttl: 1m, unknown: -1}"), "4:87", "unknown cost `-1`"),
        (of_month("{amount: 1, ttl: 1m, in: 'a b'}"), "4:82", "invalid currency `a b`"),
        (of_month("{amount: 1, ttl: 1m, in: ''}"), "4:82", "invalid currency"),
        (of_month("{amount: 1, ttl: 1m, in: \u{20ac}}"), "4:82", "invalid currency"),
        (of_month("4000"), "4:57", "expected a map"),
        (of_month("{amount: 1, ttl: 1m, ammount: 2}"), "4:78", "unknown key"),
        ("{unlimited: true, hold: {amount: 1, ttl: 1m}}".into(), "4:33", "an `unlimited` descriptor cannot hold"),
        (
            "{unit: day, requests_per_unit: 9, algorithm: token_bucket, hold: {amount: 1, ttl: 1m}}".into(),
            "4:74",
            "a `token_bucket` cannot hold",
        ),
        (
            "{unit: day, algorithm: concurrency, requests_per_unit: 9, hold: {ttl: 1m}}".into(),
            "4:16",
            "a limit of requests under way has no `unit`",
        ),
        (
            "{algorithm: concurrency, requests_per_unit: 9, hold: {ttl: 1m, amount: 2}}".into(),
            "4:86",
            "a request under way holds 1",
        ),
        ("{algorithm: concurrency, requests_per_unit: 9, hold: {ttl: 1m, most: 1}}".into(), "4:84", "remove `most`"),
        ("{algorithm: concurrency, requests_per_unit: 9}".into(), "4:27", "this `concurrency` has no `hold`"),
        (
            "[{unit: day, requests_per_unit: 9, hold: {amount: 1, ttl: 1m}}, {unit: year, requests_per_unit: 9}]".into(),
            "4:79",
            "this limit does not hold, but the one at line 4, column 16 does",
        ),
    ] {
        let compiled = compiled(&limit, Countable::Everything);
        let all: Vec<String> = compiled.diagnostics.iter().map(ToString::to_string).collect();
        assert!(compiled.rules.is_none(), "{limit}");
        let expected = format!("a.yaml:{place}: error: ");
        assert!(all.iter().any(|one| one.starts_with(&expected) && one.contains(message)), "{limit}\n{all:?}");
    }
}

#[test]
fn most_is_read_and_part_of_the_hash() {
    let with = |most: &str| {
        let limit = format!("{{unit: day, requests_per_unit: 90, hold: {{amount: 1, {most}ttl: 1m}}}}");
        assert_eq!(messages(&limit), [""; 0]);
        compiled(&limit, Countable::Everything).rules.unwrap()
    };
    let hashes = ["", "most: 20%, ", "most: 1_8, ", "most: '19', "].map(|most| with(most).fingerprint());
    assert_eq!(hashes.iter().collect::<std::collections::BTreeSet<_>>().len(), 4, "{hashes:?}");
    for (written, most) in [("most: 20%, ", "20%"), ("most: 1_8, ", "18"), ("most: ~, ", "none")] {
        let rules = with(written);
        let rule = rules.rules()[0];
        let hold = rule.limits().unwrap().first().hold.clone().unwrap();
        assert_eq!(hold.most.map_or("none".to_owned(), |most| most.to_string()), most);
        assert!(rule.to_string().contains(&format!(", hold: {hold}")), "{rule}");
    }
}

#[test]
fn memcached_refuses_holds() {
    for limit in [
        "{unit: day, requests_per_unit: 9, hold: {amount: 1, ttl: 1m}}",
        "{algorithm: concurrency, requests_per_unit: 9, hold: {ttl: 1m}}",
    ] {
        let compiled = compiled(limit, Countable::FixedWindows);
        assert!(compiled.rules.is_none() && compiled.diagnostics[0].message.contains("memcached"), "{limit}");
    }
}

#[test]
fn warns_of_holds_that_outlive_their_window_and_amounts_above_the_limit() {
    let limit = |ttl, amount| {
        format!("{{unit: minute, requests_per_unit: 9, hold: {{amount: {amount}, ttl: {ttl}}}}}")
    };
    assert_eq!(messages(&limit("1m", 9)), [""; 0]);
    let [warning] = &messages(&limit("61s", 9))[..] else { panic!() };
    assert!(warning.starts_with("a.yaml:4:75: warning: a hold may outlive its window"), "{warning}");
    let [warning] = &messages(&limit("1m", 10))[..] else { panic!() };
    assert!(warning.contains("`amount` is above the limit of 9"), "{warning}");
}

#[test]
fn warns_of_a_most_that_cuts_every_amount_or_nothing() {
    for (limit, amount, most, warned) in [
        ("9", 2, "20%", None),
        ("9", 3, "20%", Some("4:64: warning: `amount` is above `most`, so it is cut to 2")),
        ("9", 3, "8", None),
        ("9", 3, "9", Some("4:73: warning: `most` is not below the limit of 9")),
        ("9", 3, "100%", Some("4:73: warning: `most` is not below the limit of 9")),
        ("9, schedule: [{requests_per_unit: 20, days: sun}]", 3, "19", None),
        ("9, schedule: [{requests_per_unit: 20, days: sun}]", 3, "20", Some("the limit of 20")),
        ("0", 3, "1", None),
    ] {
        let hold = format!("{{amount: {amount}, most: {most}, ttl: 1m}}");
        let all = messages(&format!("{{unit: day, requests_per_unit: {limit}, hold: {hold}}}"));
        assert_eq!(all.len(), usize::from(warned.is_some()), "{limit} {hold}: {all:?}");
        assert!(warned.is_none_or(|warned| all[0].contains(warned)), "{warned:?} {all:?}");
    }
}
