//! The key of a counter in two forms: the Go service's, and an unambiguous one.
//!
//! `prefix domain _ (key _ value _)… window's start` is the compatible form. It joins values from callers without
//! escaping, so `path=/home_user_ann` and `path=/home, user=ann` share a key, and at midnight so do a limit per day
//! and one per hour. The full form appends `#`, the lengths of the parts, and the length of the window or its calendar:
//!
//! ```text
//! shop_path_/home_user_ann_1795276800#0.4.4.5.4.3/86400
//! ```
//!
//! Nothing after the last `#` comes from a caller, so the lengths can be parsed, and with them the parts: two limits
//! share a full key only if all parts are equal. `plan` writes keys; each store uses one of the forms.

use super::request::Entry;
use clock::Time;
use counters::{CounterId, Parts};
use limit::{Algorithm, Limit, Period};
use rules::Matched;

pub(super) struct CounterKey<'a, 'r> {
    pub(super) prefix: &'a str,
    pub(super) domain: &'a str,
    pub(super) entries: &'a [Entry<'a>],
    /// The rule; `None` for a limit without one.
    pub(super) matched: Option<&'a Matched<'r>>,
    /// A bit for each level whose value is in the key although the rule's counter is shared by its values.
    pub(super) own_levels: u32,
    pub(super) limit: &'a Limit,
}

impl CounterKey<'_, '_> {
    /// The identity of the counter in all windows, and in that of `now`.
    pub(super) fn ids(&self, now: Time) -> [CounterId; 2] {
        let mut parts = Parts::new(self.prefix, self.domain);
        for (level, entry) in self.entries.iter().enumerate() {
            let shared = self.shared(level);
            parts.entry(entry.key, shared.unwrap_or(entry.value), shared.is_some());
        }
        let id = parts.id_of(self.limit);
        match self.limit.algorithm {
            Algorithm::FixedWindow(fixed) => [id, id.in_window(fixed.period.start(now))],
            _ => [id, id],
        }
    }

    /// Appends the full key, and returns the end of its compatible part.
    pub(super) fn write(&self, now: Time, into: &mut String) -> usize {
        into.push_str(self.prefix);
        into.push_str(self.domain);
        into.push('_');
        for (level, entry) in self.entries.iter().enumerate() {
            into.push_str(entry.key);
            into.push('_');
            into.push_str(self.shared(level).unwrap_or(entry.value));
            into.push('_');
        }
        if let Algorithm::FixedWindow(fixed) = self.limit.algorithm {
            into.push_str(itoa::Buffer::new().format(fixed.period.start(now).seconds()));
        }
        // The Go service's limits have no tag. The key of a state that outlives a window does not contain its start.
        into.push_str(&self.limit.tag);
        let end = into.len();
        self.write_lengths(into);
        end
    }

    fn write_lengths(&self, into: &mut String) {
        into.push('#');
        write_number(self.prefix.len() as u64, into);
        into.push('.');
        write_number(self.domain.len() as u64, into);
        for (level, entry) in self.entries.iter().enumerate() {
            into.push('.');
            write_number(entry.key.len() as u64, into);
            into.push('.');
            let shared = self.shared(level);
            write_number(shared.unwrap_or(entry.value).len() as u64, into);
            if shared.is_some() {
                // Marks a pattern: a value may look like one.
                into.push('*');
            }
        }
        into.push('/');
        match self.limit.period() {
            Period::Length(window) => write_number(window.seconds(), into),
            Period::Calendar(calendar) => into.push_str(calendar.tag()),
        }
    }

    /// The pattern that replaces this level's value in the key of a shared counter.
    pub(super) fn shared(&self, level: usize) -> Option<&str> {
        if self.own_levels == u32::MAX || level < 32 && self.own_levels >> level & 1 == 1 {
            return None;
        }
        self.matched?.shared_value(level, self.entries.get(level)?)
    }
}

/// Faster than itoa for one or two digits, which most lengths have.
fn write_number(number: u64, into: &mut String) {
    let digit = |number: u64| char::from(b'0'.wrapping_add(u8::try_from(number % 10).unwrap_or_default()));
    match number {
        0..10 => into.push(digit(number)),
        10..100 => {
            into.push(digit(number / 10));
            into.push(digit(number));
        }
        _ => into.push_str(itoa::Buffer::new().format(number)),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;
    use limit::{Kind, Unit};
    use rules::{CompileOptions, SourceFile, compile};

    fn owned((key, value): (&str, &str)) -> (String, String) {
        (key.into(), value.into())
    }

    fn forms(parts: &Parts, now: Time) -> (String, String) {
        let (matched, mut key) = (None, String::from("what was there before"));
        let from = key.len();
        let Parts { prefix, domain, entries, limit } = parts;
        let entries: Vec<_> = entries.iter().map(|(key, value)| Entry { key, value }).collect();
        let counter = CounterKey { prefix, domain, entries: &entries, matched, own_levels: 0, limit };
        let end = counter.write(now, &mut key);
        let (id, start) = CounterId::of_full_key(&key[from..]).expect("a full key");
        assert_eq!(counter.ids(now), [id, start.map_or(id, |start| id.in_window(start))]);
        (key[from..end].to_owned(), key[from..].to_owned())
    }

    #[derive(Clone, PartialEq, Debug)]
    struct Parts {
        prefix: String,
        domain: String,
        entries: Vec<(String, String)>,
        limit: Limit,
    }

    fn parts(entries: &[(&str, &str)], limit: &Limit) -> Parts {
        let entries = entries.iter().copied().map(owned).collect();
        Parts { prefix: String::new(), domain: "d".into(), entries, limit: limit.clone() }
    }

    #[test]
    fn the_compatible_form_is_a_prefix_of_the_full_form() {
        let key = parts(&[("path", "/home"), ("user", "")], &Limit::plain(5, Unit::Minute));
        let (compatible, whole) = forms(&key, Time::from_seconds(130));
        assert_eq!(compatible, "d_path_/home_user__120");
        assert_eq!(whole, "d_path_/home_user__120#0.1.4.5.4.0/60");
        let long = parts(&[(&"k".repeat(10), &"v".repeat(100))], &Limit::plain(5, Unit::Day));
        assert!(forms(&long, Time::from_seconds(130)).1.ends_with("_0#0.1.10.100/86400"));
    }

    #[test]
    fn full_keys_separate_callers_that_collide_in_the_compatible_form() {
        let (hour, day) = (Limit::plain(5, Unit::Hour), Limit::plain(5, Unit::Day));
        let midnight = Time::from_seconds(1_795_305_600);
        for (one, other) in [
            (
                parts(&[("path", "/home_user_victim")], &hour),
                parts(&[("path", "/home"), ("user", "victim")], &hour),
            ),
            (parts(&[("a_b", "c")], &hour), parts(&[("a", "b_c")], &hour)),
            (parts(&[("k", "v")], &hour), parts(&[("k", "v")], &day)),
            (parts(&[("k", "__")], &hour), parts(&[("k", ""), ("", "")], &hour)),
        ] {
            let (one, other) = (forms(&one, midnight), forms(&other, midnight));
            assert_eq!(one.0, other.0);
            assert_ne!(one.1, other.1);
        }
    }

    #[test]
    fn a_shared_pattern_differs_from_an_equal_value() {
        let text = "domain: d\ndescriptors:\n- {key: path, value: /a/*, share_threshold: true, \
                    rate_limit: {unit: hour, requests_per_unit: 5}}\n";
        let file = SourceFile { name: "d.yaml".into(), text: text.into() };
        let rules = compile(&[file], CompileOptions::default()).rules.unwrap();
        let key = |value: &str, by_rule: bool| {
            let entries = [Entry { key: "path", value }];
            let found = rules.domain("d").unwrap().find(&entries, &mut String::new()).unwrap();
            let limit = Limit::plain(5, Unit::Hour);
            let matched = by_rule.then_some(&found);
            let mut key = String::new();
            let counter = CounterKey {
                prefix: "",
                domain: "d",
                entries: &entries,
                matched,
                own_levels: 0,
                limit: &limit,
            };
            counter.write(Time::from_seconds(7200), &mut key);
            key
        };
        assert_eq!(key("/a/x", true), "d_path_/a/*_7200#0.1.4.4*/3600");
        assert_eq!(key("/a/yz", true), key("/a/x", true));
        assert_eq!(
            key("/a/*", true),
            key("/a/x", true),
            "a caller that sends the pattern shares the counter"
        );
        assert_eq!(
            key("/a/*", false),
            "d_path_/a/*_7200#0.1.4.4/3600",
            "a limit of the request has its own counter"
        );
    }

    /// Few characters, among them separators, so that different parts often have equal concatenations.
    fn part() -> impl Strategy<Value = String> {
        prop_oneof![
            8 => "[_#./*0-2a\u{0}]{0,4}",
            1 => "[_a]{9,12}",
            1 => ".{0,5}",
        ]
    }

    fn limit() -> impl Strategy<Value = Limit> {
        let kinds = prop::sample::select(&Kind::ALL[..]);
        let units = prop::sample::select(vec![Unit::Second, Unit::Minute, Unit::Hour, Unit::Day]);
        (kinds, units, prop_oneof![Just(1_u32), Just(60)], 1..3_u64, any::<bool>()).prop_map(
            |(kind, unit, multiplier, requests, in_a_list)| {
                let multiplier = NonZeroU32::new(multiplier).unwrap();
                let limit = Limit::new(requests, unit, multiplier, kind, None).unwrap();
                if in_a_list { limit.tagged() } else { limit }
            },
        )
    }

    fn any_parts() -> impl Strategy<Value = Parts> {
        let entries = prop::collection::vec((part(), part()), 0..4);
        (part(), part(), entries, limit()).prop_map(|(prefix, domain, entries, limit)| Parts {
            prefix,
            domain,
            entries,
            limit,
        })
    }

    /// Parts with the same concatenation, but other boundaries.
    fn cut_elsewhere(parts: &Parts, cut: usize) -> Parts {
        let joined = parts.entries.iter().map(|(key, value)| format!("{key}_{value}"));
        let joined = joined.collect::<Vec<_>>().join("_");
        let mut texts: Vec<&str> = joined.split('_').collect();
        while texts.len() % 2 == 1 || texts.len() > 2 + cut % 5 {
            let Some(last) = texts.pop() else { break };
            if texts.is_empty() {
                texts = vec![last, ""];
                break;
            }
        }
        let entries = texts.chunks(2).map(|pair| owned((pair[0], pair.get(1).copied().unwrap_or_default())));
        Parts { entries: entries.collect(), ..parts.clone() }
    }

    proptest! {
        #[test]
        fn two_counters_never_share_a_full_key(
            one in any_parts(), other in any_parts(), same in 0..16_u8, cut: usize,
            seconds in prop_oneof![Just(1_795_305_600_u64), 0..200_000_u64],
        ) {
            let mut other = if same & 8 > 0 { cut_elsewhere(&one, cut) } else { other };
            if same & 1 > 0 {
                other.limit = one.limit.clone();
            }
            if same & 2 > 0 {
                other.domain.clone_from(&one.domain);
            }
            if same & 4 > 0 {
                other.prefix.clone_from(&one.prefix);
            }
            let now = Time::from_seconds(seconds);
            let state = |parts: &Parts| {
                let Parts { prefix, domain, entries, limit } = parts.clone();
                // The number of a limit is not part of the counter, except for a bucket, whose ticks depend on it.
                let counts_alike = (limit.algorithm.tag(), limit.tag);
                (prefix, domain, entries, counts_alike)
            };
            let (one_key, other_key) = (forms(&one, now).1, forms(&other, now).1);
            prop_assert!(one_key != other_key || state(&one) == state(&other), "{} {}", one_key, other_key);
            prop_assert_eq!(forms(&one.clone(), now).1, one_key);
        }
    }
}
