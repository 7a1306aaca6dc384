//! A limit as an item of the header `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers-11): its name as a structured
//! field's string, and its numbers as parameters.
//!
//! Those of rules are formatted once, so that further responses only copy them; the limiter formats those of limit overrides.

use std::fmt::{self, Write as _};

use clock::Time;
use limit::{Limit, Limits, Period, Unit};

/// One item of the list in `RateLimit-Policy`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QuotaPolicy {
    text: Box<str>,
    /// The end of the quoted name.
    name_ends: usize,
}

/// An Integer of RFC 9651, which has at most 15 digits: a strict parser drops the whole header for a larger one.
pub struct FieldInteger(pub u64);

impl FieldInteger {
    const MAX: u64 = 999_999_999_999_999;
}

impl fmt::Display for FieldInteger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.min(Self::MAX).fmt(f)
    }
}

impl QuotaPolicy {
    pub fn new(name: &str, limit: &Limit) -> Self {
        Self::of_quoted(quoted(name), limit)
    }

    /// The policy of the limit that is in force in place of its own.
    pub fn in_force(&self, limit: &Limit) -> Self {
        Self::of_quoted(self.name().to_owned(), limit)
    }

    fn of_quoted(mut text: String, limit: &Limit) -> Self {
        let name_ends = text.len();
        // Writing to a String cannot fail.
        let _ = write!(text, ";q={}", FieldInteger(limit.requests_per_unit));
        match limit.period() {
            // Requests under way have no window.
            _ if limit.unit == Unit::Unknown => text.push_str(";qu=\"concurrent-requests\""),
            Period::Length(window) => drop(write!(text, ";w={}", FieldInteger(window.seconds()))),
            Period::Calendar(_) => text.push_str(";w="),
        }
        if limit.algorithm.capacity() != limit.requests_per_unit {
            let _ = write!(text, ";tollgate-burst={}", FieldInteger(limit.algorithm.capacity()));
        }
        Self { text: text.into(), name_ends }
    }

    /// The policies of a rule's limits. A limit without a name has the rule's full key, followed by its
    /// number if there are several.
    pub fn of_rule(full_key: &str, limits: &Limits) -> Box<[Self]> {
        let policies = limits.iter().enumerate().map(|(at, limit)| match &limit.name {
            Some(name) => Self::new(name, limit),
            None if limits.are_several() => Self::new(&format!("{full_key}#{}", at + 1), limit),
            None => Self::new(full_key, limit),
        });
        policies.collect()
    }

    /// Appends the policy of a limit. The window of a calendar has the length that it has now.
    pub fn write(&self, limit: &Limit, now: Time, into: &mut String) {
        into.push_str(&self.text);
        if limit.period().calendar().is_some() {
            // Nothing follows the length: a calendar has no burst.
            let _ = write!(into, "{}", FieldInteger(limit.period().seconds(now)));
        }
    }

    pub fn name(&self) -> &str {
        self.text.split_at(self.name_ends).0
    }
}

/// A string of RFC 9651. It has only printable ASCII: other bytes are percent-encoded.
fn quoted(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 32);
    text.push('"');
    for byte in name.bytes() {
        match byte {
            b'"' | b'\\' => text.extend(['\\', char::from(byte)]),
            b' '..=b'~' => text.push(char::from(byte)),
            // Writing to a String cannot fail.
            _ => drop(write!(text, "%{byte:02x}")),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::{
        super::{CompileOptions, SourceFile, compile},
        *,
    };
    use limit::{Kind, Unit, calendar::Calendar};
    use std::num::NonZeroU64;

    const NOW: Time = Time::from_seconds(1_800_000_000);

    fn text(policy: &QuotaPolicy, limit: &Limit) -> String {
        let mut text = String::new();
        policy.write(limit, NOW, &mut text);
        text
    }

    #[test]
    fn formats_the_numbers_of_a_policy() {
        let limit = |multiplier, kind, burst| {
            Limit::new(100, Unit::Minute, NonZeroU32::new(multiplier).unwrap(), kind, NonZeroU64::new(burst))
        };
        for (multiplier, kind, burst, expected) in [
            (1, Kind::FixedWindow, 0, "\"a\";q=100;w=60"),
            (15, Kind::SlidingLog, 0, "\"a\";q=100;w=900"),
            (1, Kind::TokenBucket, 0, "\"a\";q=100;w=60"),
            (1, Kind::TokenBucket, 20, "\"a\";q=100;w=60;tollgate-burst=20"),
            (1, Kind::LeakyBucket, 0, "\"a\";q=100;w=60;tollgate-burst=1"),
        ] {
            let limit = limit(multiplier, kind, burst).unwrap();
            let policy = QuotaPolicy::new("a", &limit);
            assert_eq!((&*text(&policy, &limit), policy.name()), (expected, "\"a\""));
        }
    }

    #[test]
    fn no_number_has_more_digits_than_a_structured_field_may_have() {
        let one = NonZeroU32::MIN;
        for (requests, burst, expected) in [
            (999_999_999_999_999, 0, "q=999999999999999;w=60"),
            (1_000_000_000_000_000, 0, "q=999999999999999;w=60"),
            (9_007_199_254_740_991, 0, "q=999999999999999;w=60"),
        ] {
            let limit = Limit::new(requests, Unit::Minute, one, Kind::FixedWindow, NonZeroU64::new(burst));
            let limit = limit.unwrap();
            assert_eq!(text(&QuotaPolicy::new("a", &limit), &limit), format!("\"a\";{expected}"));
        }
        assert_eq!(FieldInteger(u64::MAX).to_string().len(), 15);
    }

    #[test]
    fn the_window_of_a_calendar_has_its_current_length() {
        let limit = Limit::of_calendar(5, Calendar::utc_month());
        let policy = QuotaPolicy::new("a", &limit);
        for (now, days) in [(NOW, 31), (Time::from_seconds(1_801_500_000), 28)] {
            let mut text = String::new();
            policy.write(&limit, now, &mut text);
            assert_eq!(text, format!("\"a\";q=5;w={}", days * 86_400));
        }
    }

    #[test]
    fn quotes_any_name() {
        for (name, expected) in [
            ("per user; 100%", r#""per user; 100%""#),
            (r#"a"b\c"#, r#""a\"b\\c""#),
            ("gr\u{fc}n\r\n\u{7f}", r#""gr%c3%bcn%0d%0a%7f""#),
            ("", r#""""#),
        ] {
            let limit = Limit::plain(1, Unit::Second);
            let policy = QuotaPolicy::new(name, &limit);
            assert_eq!((policy.name(), text(&policy, &limit)), (expected, format!("{expected};q=1;w=1")));
        }
    }

    #[test]
    fn a_rule_has_a_policy_for_each_limit() {
        let text = "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 1}}\n\
            - {key: l, rate_limit: {unit: day, requests_per_unit: 1, name: n}}\n\
            - {key: u, rate_limit: {unlimited: true}}\n\
            - {key: s, rate_limit: [{unit: day, requests_per_unit: 1}, {unit: hour, requests_per_unit: 1, \
            name: n}]}\n\
            - {key: c, rate_limit: {algorithm: concurrency, requests_per_unit: 2, hold: {ttl: 1m}}}\n";
        let file = SourceFile { name: "a.yaml".to_owned(), text: text.as_bytes().to_vec() };
        let rules = compile(&[file], CompileOptions::default()).rules.unwrap();
        for (rule, expected) in [
            ("d.k", &["\"d.k\";q=1;w=86400"][..]),
            ("d.l", &["\"n\";q=1;w=86400"]),
            ("d.u", &[]),
            ("d.s", &["\"d.s#1\";q=1;w=86400", "\"n\";q=1;w=3600"]),
            ("d.c", &["\"d.c\";q=2;qu=\"concurrent-requests\""]),
        ] {
            let rules = rules.rules();
            let found = rules.iter().find(|known| *known.full_key == *rule).unwrap();
            let limits = found.limits().into_iter().flat_map(Limits::iter);
            let texts = limits.zip(found.policies()).map(|(limit, policy)| self::text(policy, limit));
            assert_eq!(texts.collect::<Vec<_>>(), expected);
        }
    }
}
