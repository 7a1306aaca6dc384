//! A hash of the meaning of rules, which replicas and `tollgate check` compare.
//!
//! Comments, formatting, the names of files, the order of exact values and the split of a domain into files do not change
//! it. The order of two wildcards changes it only if the text before the first `*` of one is a prefix of the other's.

use std::{collections::BTreeSet, fmt::Debug, hash::Hasher as _};

use limit::calendar::{Calendar, zone};
use siphasher::sip::SipHasher13;

use super::model::{Domain, Level, Node, Rule, RuleSet};
use limit::{Limit, Limits};

impl RuleSet {
    /// The hash of these rules, the same on every machine.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint_with(zone::data_version())
    }

    fn fingerprint_with(&self, zone_data: &str) -> u64 {
        let mut domains: Vec<&Domain> = self.domains().collect();
        domains.sort_unstable_by_key(|domain| &domain.name);
        let mut canon = Canon { hasher: SipHasher13::new(), zone_data };
        for Domain { name, index: _, root, has_replaces: _, on_store_failure } in domains {
            canon.add((name, on_store_failure));
            canon.level(root);
        }
        canon.hasher.finish()
    }
}

/// Hashes the derived texts of what is compiled: texts in them are quoted, so that they are unambiguous, and no field can be
/// forgotten.
struct Canon<'z> {
    hasher: SipHasher13,
    /// The release of the zone data, which determines the windows of calendars.
    zone_data: &'z str,
}

impl Canon<'_> {
    fn add(&mut self, value: impl Debug) {
        self.hasher.write(format!("{value:?}\n").as_bytes());
    }

    fn level(&mut self, level: &Level) {
        let nodes = level.in_order();
        let wildcards = nodes.iter().take_while(|(pattern, _)| pattern.is_some()).count();
        let (wildcards, exact) = nodes.split_at(wildcards);
        self.add(nodes.len());
        let wildcards: Vec<&Node> = wildcards.iter().map(|(_, node)| *node).collect();
        let exact = exact.iter().map(|(_, node)| *node);
        for node in canonical_order(&wildcards).into_iter().chain(exact) {
            let Node { text, key_bytes, rule, value_to_metric, share_threshold, children, origin: _ } = node;
            self.add((text, key_bytes, value_to_metric, share_threshold, rule.is_some()));
            if let Some(rule) = rule {
                self.rule(rule);
            }
            self.level(children);
        }
    }

    fn rule(&mut self, rule: &Rule) {
        let Rule {
            id: _,
            full_key: _,
            hash: _,
            // The number beside `unlimited` has no meaning.
            allowance: _,
            replaces,
            shadow_mode,
            quota_mode,
            overrides_only,
            detailed_metric,
            metadata,
            policies: _,
            over_limit_body,
        } = rule;
        let flags = (shadow_mode, quota_mode, overrides_only, detailed_metric);
        let replaces: BTreeSet<&str> = replaces.iter().map(|name| &**name).collect();
        self.add((flags, replaces, metadata, over_limit_body));
        for limit in rule.limits().into_iter().flat_map(Limits::iter) {
            let Limit { rate, name, tag, hold, schedule } = limit;
            let schedule_text = schedule.as_ref().map(ToString::to_string);
            let is_local = limit.period().calendar().is_some_and(Calendar::is_local)
                || schedule.as_ref().is_some_and(|schedule| schedule.is_local());
            self.add((rate, name, tag, hold, schedule_text, is_local.then_some(self.zone_data)));
        }
    }
}

/// The wildcards of a level: those whose prefixes exclude each other in the order of their texts, and the others in the
/// order of the file.
fn canonical_order<'r>(wildcards: &[&'r Node]) -> Vec<&'r Node> {
    let prefix = |node: &'r Node| node.text.split('*').next().unwrap_or_default();
    let mut sorted: Vec<(&str, usize, &Node)> =
        wildcards.iter().enumerate().map(|(index, node)| (prefix(node), index, *node)).collect();
    sorted.sort_unstable_by_key(|(prefix, index, _)| (*prefix, *index));
    // A group shares the prefix of its first member; the texts with that prefix follow directly.
    let mut groups = sorted.as_mut_slice();
    while let Some((shared, ..)) = groups.first() {
        let shared = *shared;
        let end = groups.iter().take_while(|(text, ..)| text.starts_with(shared)).count();
        let (group, rest) = groups.split_at_mut(end);
        group.sort_unstable_by_key(|(_, index, _)| *index);
        groups = rest;
    }
    sorted.into_iter().map(|(_, _, node)| node).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{CompileOptions, SourceFile, compile};

    fn rules(files: &[&str]) -> RuleSet {
        let file = |(index, text): (usize, &&str)| SourceFile {
            name: format!("{index}.yaml"),
            text: text.as_bytes().to_vec(),
        };
        let files: Vec<SourceFile> = files.iter().enumerate().map(file).collect();
        let options = CompileOptions { merge_domains: true, ..CompileOptions::default() };
        let compiled = compile(&files, options);
        compiled.rules.unwrap_or_else(|| panic!("{:?}", compiled.diagnostics))
    }

    fn fingerprint(files: &[&str]) -> u64 {
        rules(files).fingerprint()
    }

    const BASE: &str = "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: day, requests_per_unit: 1}}\n\
        - {key: b, value: v, rate_limit: {unit: day, requests_per_unit: 2}}\n";

    #[test]
    fn comments_formatting_and_harmless_reordering_keep_the_hash() {
        let base = fingerprint(&[BASE]);
        // A constant, because replicas on different machines compare it.
        assert_eq!(base, 0x9a1e_481b_ad0a_6996);
        for files in [
            &[
                "# a comment\ndomain: \"d\"\ndescriptors:\n  - key: b\n    value: v\n    rate_limit:\n      requests_per_unit: 2\n      unit: DAY\n  - key: a\n    rate_limit: {unit: day, requests_per_unit: 1}\n",
            ][..],
            &[
                "domain: d\ndescriptors: [{key: b, value: v, rate_limit: {unit: day, requests_per_unit: 2}}]",
                "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, unit_multiplier: 1, requests_per_unit: 1}}]",
            ],
        ] {
            assert_eq!(fingerprint(files), base, "{files:?}");
        }
    }

    #[test]
    fn every_change_of_meaning_changes_the_hash() {
        let base = fingerprint(&[BASE]);
        let mut seen = std::collections::HashSet::from([base]);
        for (from, to) in [
            ("domain: d", "domain: e"),
            ("domain: d", "on_store_failure: deny\ndomain: d"),
            ("key: a", "key: c"),
            ("value: v", "value: w"),
            ("value: v", "value: 'v*'"),
            ("requests_per_unit: 1", "requests_per_unit: 3"),
            ("unit: day, requests_per_unit: 1", "unit: hour, requests_per_unit: 1"),
            ("requests_per_unit: 1", "requests_per_unit: 1, unit_multiplier: 2"),
            ("requests_per_unit: 1", "requests_per_unit: 1, algorithm: token_bucket"),
            ("requests_per_unit: 1", "requests_per_unit: 1, algorithm: token_bucket, burst: 7"),
            ("requests_per_unit: 1", "requests_per_unit: 1, calendar: {}"),
            ("requests_per_unit: 1", "requests_per_unit: 1, calendar: {time_zone: Asia/Tokyo}"),
            ("requests_per_unit: 1", "requests_per_unit: 1, schedule: [{requests_per_unit: 2}]"),
            ("requests_per_unit: 1", "requests_per_unit: 1, schedule: [{requests_per_unit: 3}]"),
            ("requests_per_unit: 1", "requests_per_unit: 1, schedule: [{requests_per_unit: 2, days: mon}]"),
            (
                "requests_per_unit: 1",
                "requests_per_unit: 1, schedule: [{requests_per_unit: 2, days: mon, from: '08:00'}]",
            ),
            ("requests_per_unit: 1", "requests_per_unit: 1, name: n"),
            ("requests_per_unit: 1", "requests_per_unit: 1, replaces: [{name: n}]"),
            ("unit: day, requests_per_unit: 1", "unlimited: true"),
            ("{key: a,", "{key: a, shadow_mode: true,"),
            ("{key: a,", "{key: a, overrides_only: true,"),
            ("{key: a,", "{key: a, quota_mode: true,"),
            ("{key: a,", "{key: a, detailed_metric: true,"),
            ("{key: a,", "{key: a, value_to_metric: true,"),
            ("{key: a,", "{key: a, over_limit_body: x,"),
            ("{key: a,", "{key: a, over_limit_body: '{limit}',"),
            ("{key: a,", "{key: a, metadata: {x: 1},"),
            ("{key: a,", "{key: a, metadata: {x: '1'},"),
            ("{key: a,", "{key: a, metadata: {x: [1]},"),
            ("{key: a,", "{key: a, descriptors: [{key: b, rate_limit: {unlimited: true}}],"),
        ] {
            let changed = BASE.replacen(from, to, 1);
            assert_ne!(changed, BASE, "{from}");
            assert!(seen.insert(fingerprint(&[&changed])), "{to}");
        }
    }

    #[test]
    fn other_zone_data_changes_the_hash_of_rules_with_local_calendars() {
        let of = |zone: &str| {
            let limit = format!("requests_per_unit: 1, calendar: {{time_zone: {zone}}}");
            let rules = rules(&[&BASE.replacen("requests_per_unit: 1", &limit, 1)]);
            (rules.fingerprint_with("2026f"), rules.fingerprint_with("2027a"))
        };
        let ((berlin, later), (utc, utc_later)) = (of("Europe/Berlin"), of("UTC"));
        assert_ne!(berlin, later);
        assert_eq!(utc, utc_later);
        assert_eq!(rules(&[BASE]).fingerprint_with("2026f"), rules(&[BASE]).fingerprint_with("2027a"));
    }

    proptest! {
        /// Shuffled descriptors with the same hash match every request alike, and disjoint ones share it.
        #[test]
        fn a_significant_order_changes_the_hash(
            values in prop::collection::hash_set("[ab]{0,2}\\*[ab*]{0,2}", 2..6),
            seeds in prop::array::uniform8(0_usize..1000),
        ) {
            let values: Vec<String> = values.into_iter().collect();
            let mut shuffled = values.clone();
            let len = shuffled.len();
            for (index, seed) in seeds.into_iter().take(len).enumerate() {
                shuffled.swap(index, seed % len);
            }
            let file = |values: &[String]| {
                let descriptor = |value: &String| format!("- {{key: k, value: '{value}', rate_limit: {{unit: day, requests_per_unit: 1}}}}\n");
                format!("domain: d\ndescriptors:\n{}", values.iter().map(descriptor).collect::<String>())
            };
            let (one, other) = (rules(&[&file(&values)]), rules(&[&file(&shuffled)]));
            let prefixs = |values: &[String]| -> Vec<String> {
                values.iter().map(|value| value.split('*').next().unwrap().to_owned()).collect()
            };
            let all = prefixs(&values);
            let disjoint = all.iter().enumerate().all(|(at, text)| {
                all.iter().enumerate().all(|(other, begin)| at == other || !begin.starts_with(text.as_str()))
            });
            let same = one.fingerprint() == other.fingerprint();
            prop_assert!(same || !disjoint);
            if same {
                for value in ["", "a", "b", "aa", "ab", "ba", "bb", "aab", "abab", "baba", "abc"] {
                    let matched = |rules: &RuleSet| {
                        let entries = [("k", value)];
                        let found = rules.domain("d").unwrap().find(&entries, &mut String::new());
                        found.map(|found| found.rule.full_key.clone())
                    };
                    prop_assert_eq!(matched(&one), matched(&other), "{}", value);
                }
            }
        }
    }
}
