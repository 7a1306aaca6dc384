//! The statsd key and the Prometheus labels of a rule, from its full key.
//!
//! The Go service splits the statsd name at its dots into labels, so a dot inside a domain, a key or a value starts the
//! next label. Dashboards rely on it.

use std::{borrow::Cow, sync::LazyLock};

use regex::{Captures, Regex};

/// The labels of a rule's series. Counts of rules with the same labels are summed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Labels {
    pub domain: String,
    pub key1: String,
    /// Levels beyond the second are dropped.
    pub key2: Option<String>,
}

impl Labels {
    pub fn of(full_key: &str) -> Self {
        let key = statsd_key(full_key);
        let mut parts = key.split('.').map(str::to_owned);
        let mut next = || parts.next();
        Self { domain: next().unwrap_or_default(), key1: next().unwrap_or_default(), key2: next() }
    }

    /// Two or three.
    pub fn values(&self) -> Vec<&str> {
        [Some(&*self.domain), Some(&self.key1), self.key2.as_deref()].into_iter().flatten().collect()
    }
}

/// A full key in a statsd name: `_` replaces `:` and `|`, which are syntax there, and the dots of IPv4 addresses.
pub fn statsd_key(full_key: &str) -> Cow<'_, str> {
    static ADDRESS: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}").ok());
    let key = if full_key.contains([':', '|']) {
        Cow::Owned(full_key.replace([':', '|'], "_"))
    } else {
        Cow::Borrowed(full_key)
    };
    let dots = |address: &Captures<'_>| address.get(0).map_or("", |found| found.as_str()).replace('.', "_");
    match ADDRESS.as_ref().map(|address| address.replace_all(&key, dots)) {
        Some(Cow::Owned(replaced)) => Cow::Owned(replaced),
        _ => key,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The regular expression `\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`, by trying all lengths, longest first.
    fn slow_address_length(text: &[char]) -> Option<usize> {
        let lengths = || (1..=3_usize).rev();
        for first in lengths() {
            for second in lengths() {
                for third in lengths() {
                    for fourth in lengths() {
                        let shape: Vec<char> = [first, second, third, fourth]
                            .map(|length| "0".repeat(length))
                            .join(".")
                            .chars()
                            .collect();
                        let fits = shape.len() <= text.len()
                            && shape.iter().zip(text).all(|(shape, c)| match shape {
                                '.' => *c == '.',
                                _ => c.is_ascii_digit(),
                            });
                        if fits {
                            return Some(shape.len());
                        }
                    }
                }
            }
        }
        None
    }

    fn slow_statsd_key(full_key: &str) -> String {
        let text: Vec<char> = full_key.chars().map(|c| if ":|".contains(c) { '_' } else { c }).collect();
        let mut out = String::new();
        let mut at = 0;
        while at < text.len() {
            if let Some(length) = slow_address_length(&text[at..]) {
                out.extend(text[at..at + length].iter().map(|c| if *c == '.' { '_' } else { *c }));
                at += length;
            } else {
                out.push(text[at]);
                at += 1;
            }
        }
        out
    }

    proptest! {
        #[test]
        fn keys_are_escaped_as_by_the_regular_expression(key in "[0-9.:|aü]{0,40}") {
            prop_assert_eq!(statsd_key(&key), slow_statsd_key(&key));
        }

        #[test]
        fn addresses_are_found_among_digits_and_dots(key in "([0-9]{1,4}\\.){0,12}[0-9]{0,4}") {
            prop_assert_eq!(statsd_key(&key), slow_statsd_key(&key));
        }

        #[test]
        fn labels_are_the_first_three_parts(key in "[0-9.a:]{0,30}") {
            let cleaned = slow_statsd_key(&key);
            let parts: Vec<&str> = cleaned.split('.').collect();
            let labels = Labels::of(&key);
            prop_assert_eq!(labels.domain, parts[0]);
            prop_assert_eq!(labels.key1, *parts.get(1).unwrap_or(&""));
            prop_assert_eq!(labels.key2.as_deref(), parts.get(2).copied());
        }
    }

    #[test]
    fn known_keys_are_escaped_as_by_the_go_service() {
        let cases = [
            ("d.ip_10.0.0.1", "d.ip_10_0_0_1"),
            ("d.a:b|c", "d.a_b_c"),
            ("d.1234.5.6.7", "d.1234_5_6_7"),
            ("1.2.3.4.5.6.7.8", "1_2_3_4.5_6_7_8"),
            ("1.2.3.4444.5.6.7", "1_2_3_4444_5_6_7"),
            ("d.1.2.3", "d.1.2.3"),
            ("d.x.y_ünï", "d.x.y_ünï"),
        ];
        for (full_key, expected) in cases {
            assert_eq!(statsd_key(full_key), expected, "{full_key}");
        }
    }

    #[test]
    fn a_key_without_special_characters_is_not_copied() {
        assert!(matches!(statsd_key("domain.key_value.other"), Cow::Borrowed(_)));
    }

    #[test]
    fn a_dot_inside_a_key_starts_the_next_label() {
        let labels = Labels::of("d.x.y_v.deeper");
        assert_eq!((labels.key1.as_str(), labels.key2.as_deref()), ("x", Some("y_v")));
    }
}
