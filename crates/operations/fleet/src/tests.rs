//! Merged counts compared with the true ones, latencies, and the size of summaries.

use std::collections::HashMap;

use serde_json::json;

use crate::{
    KeyRefusals, Summary,
    latency::Buckets,
    merge::merge,
    summary::{MAX_BYTES, RuleHits},
};
use api::{Entry, KeyHits};
use metrics::Distribution;

fn key(user: &str, refused: u64, allowed: u64) -> KeyHits {
    KeyHits {
        domain: "shop".to_owned(),
        rule: Some("shop.user".to_owned()),
        descriptor: vec![Entry { key: "user".to_owned(), value: user.to_owned() }],
        refused,
        allowed,
        ..KeyHits::default()
    }
}

fn refusal(user: &str, count: u64, last: u64) -> KeyRefusals {
    let example = json!({
        "id": 1, "time": format!("2026-11-22T10:00:{last:02}.000Z"), "code": "over_limit", "domain": "shop",
        "descriptor": [{"key": "user", "value": user}], "rule": "shop.user", "file": "shop.yaml", "line": 3,
        "limit": {"requests_per_unit": 2, "unit": "HOUR", "unit_multiplier": 1, "number": 1, "of": 1},
        "count": 3, "hits": 1, "retry_after_seconds": 45, "decided_by": "counter", "governs": true,
    });
    KeyRefusals {
        domain: "shop".to_owned(),
        descriptor: vec![Entry { key: "user".to_owned(), value: user.to_owned() }],
        rule: Some("shop.user".to_owned()),
        file: Some("shop.yaml".to_owned()),
        line: Some(3),
        count,
        first: "2026-11-22T09:00:00.000Z".to_owned(),
        last: format!("2026-11-22T10:00:{last:02}.000Z"),
        reason: "over 2 per hour".to_owned(),
        example: example.as_object().unwrap().clone(),
        ..KeyRefusals::default()
    }
}

fn by_user(merged: &Summary) -> HashMap<String, (u64, u64, u64)> {
    let row = |key: &KeyHits| (key.descriptor[0].value.clone(), (key.refused, key.allowed, key.error));
    merged.keys.iter().map(row).collect()
}

#[test]
fn a_packed_summary_reads_back() {
    let one = Summary {
        keys: vec![key("ann", 7, 3), key("bob", 0, 5)],
        refusals: vec![refusal("ann", 7, 1)],
        unmatched: vec![key("x", 0, 4)],
        per_second: [1.0, 2.5, 0.0],
        ..Summary::default()
    };
    assert_eq!(Summary::read(&one.clone().packed()), Some(one));
    assert_eq!(Summary::read("{\"later\": [1]}"), Some(Summary::default()), "another version");
    assert_eq!(["x", "", "[]", "{\"keys\":7}"].map(Summary::read), [const { None }; 4]);
}

#[test]
fn merged_counts_are_within_their_error_although_each_summary_is_cut() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut truth = HashMap::<String, (u64, u64)>::new();
    let summaries: Vec<Summary> = (0..10)
        .map(|_| {
            let keys = (0..300).map(|n| {
                // Zipf: the first keys are loud on every replica, the others differ.
                let user = if n < 20 { format!("loud{n}") } else { format!("u{}", random.u32(0..2000)) };
                (user, 20_000 / (n + 1) + random.u64(0..40), random.u64(0..50) + 3_000 / (n + 1))
            });
            let mut own = HashMap::<String, (u64, u64)>::new();
            for (user, refused, allowed) in keys {
                let sum = own.entry(user).or_default();
                *sum = (sum.0 + refused, sum.1 + allowed);
            }
            for (user, (refused, allowed)) in &own {
                let sum = truth.entry(user.clone()).or_default();
                *sum = (sum.0 + refused, sum.1 + allowed);
            }
            let keys = own.iter().map(|(user, (refused, allowed))| key(user, *refused, *allowed)).collect();
            Summary::read(&Summary { keys, ..Summary::default() }.packed()).unwrap()
        })
        .collect();
    assert!(summaries.iter().all(|summary| summary.keys.len() < 200), "they are cut");
    let merged = by_user(&merge(&summaries.iter().collect::<Vec<_>>()));
    for (user, (refused, allowed, error)) in &merged {
        let (true_refused, true_allowed) = truth[user];
        let (off, off_too) = (refused.abs_diff(true_refused), allowed.abs_diff(true_allowed));
        assert!(
            off <= *error && off_too <= *error,
            "{user}: {refused} {allowed} ±{error}, {:?}",
            truth[user]
        );
    }
    for n in 0..20 {
        let user = format!("loud{n}");
        assert_eq!(merged[&user].0, truth[&user].0, "every summary has it");
    }
    let most_missing = truth.iter().filter(|(user, _)| !merged.contains_key(*user)).map(|(_, n)| n.0).max();
    let bound: u64 = summaries.iter().map(|summary| summary.missing.of(Some("shop.user"))[1]).sum();
    assert!(most_missing <= Some(bound), "{most_missing:?} {bound}");
}

#[test]
fn a_summary_of_any_content_fits() {
    let long = |n: usize| format!("{n}\u{1}\u{202e}\"\\").repeat(200);
    let one = Summary {
        keys: (0..5000).map(|n| key(&long(n), n as u64, 5)).collect(),
        refusals: (0..500).map(|n| refusal(&long(n), n as u64, 3)).collect(),
        unmatched: (0..500).map(|n| key(&long(n), 0, n as u64)).collect(),
        ..Summary::default()
    };
    let packed = one.packed();
    assert!(packed.len() <= MAX_BYTES, "{}", packed.len());
    let read = Summary::read(&packed).unwrap();
    assert!(!read.keys.is_empty() && !read.refusals.is_empty() && !read.unmatched.is_empty());
    assert!(read.keys.iter().all(|key| key.descriptor_cut));
    let all: u64 = (0..500).sum();
    assert_eq!(read.refusals.iter().map(|refusal| refusal.count).sum::<u64>() + read.other_refusals, all);
    // The limit of names: a rule of 16 kB.
    let huge = KeyHits { rule: Some("r".repeat(20_000)), ..key("ann", 1, 1) };
    let status = json!({"error": "e".repeat(20_000)});
    let packed = Summary { keys: vec![huge], status, total: [1, 2, 3], ..Summary::default() }.packed();
    assert!(packed.len() <= MAX_BYTES && Summary::read(&packed).unwrap().total == [1, 2, 3]);
}

#[test]
fn a_summary_has_the_loudest_and_the_last_refusals() {
    let mut refusals: Vec<_> = (0..200).map(|n| refusal(&format!("flood{n}"), 1, 30)).collect();
    refusals.push(refusal("loud", 100_000, 2));
    refusals.push(refusal("last", 1, 59));
    let read = Summary::read(&Summary { refusals, ..Summary::default() }.packed()).unwrap();
    let has = |user: &str| read.refusals.iter().any(|one| one.descriptor[0].value == user);
    assert!(has("loud") && has("last"));
}

#[test]
fn refusals_of_a_key_on_several_replicas_are_one_line() {
    let one = Summary { refusals: vec![refusal("ann", 7, 1)], other_refusals: 2, ..Summary::default() };
    let mut early = refusal("ann", 5, 9);
    early.first = "2026-11-22T08:00:00.000Z".to_owned();
    early.reason = "over 5 per day".to_owned();
    let other = Summary { refusals: vec![early.clone(), refusal("bob", 1, 4)], ..Summary::default() };
    let merged = merge(&[&one, &other]);
    let ann = merged.refusals.iter().find(|one| one.descriptor[0].value == "ann").unwrap();
    assert_eq!((ann.count, &*ann.first, &*ann.last), (12, &*early.first, &*early.last));
    assert_eq!((&*ann.reason, &ann.example), ("over 5 per day", &early.example), "those of the last one");
    assert_eq!((merged.refusals.len(), merged.other_refusals), (2, 2));
}

/// The distribution of these seconds, as a store reports it.
fn distribution(values: &[f64]) -> Distribution {
    let bounds = [0.001, 0.002, 0.005, 0.01, 0.1];
    let within = |bound: &f64| (*bound, values.iter().filter(|value| *value <= bound).count() as u64);
    let buckets = bounds.iter().map(within).collect();
    Distribution { buckets, count: values.len() as u64, sum: 0.0 }
}

#[test]
fn latencies_of_replicas_add_up_to_those_of_all_requests() {
    let mut random = fastrand::Rng::with_seed(1);
    // A fast replica with much traffic and a slow one with little: the mean of their percentiles would be wrong.
    let fast: Vec<f64> = (0..9_900).map(|_| random.f64() * 0.001).collect();
    let slow: Vec<f64> = (0..100).map(|_| 0.05 + random.f64() * 0.04).collect();
    let nothing = Distribution::default();
    let of = |values: &[f64]| Buckets::between(&nothing, &distribution(values));
    let mut merged = of(&fast);
    merged.add(&of(&slow));
    let all = [fast, slow].concat();
    for part in [0.1, 0.5, 0.9, 0.99, 0.999] {
        assert_eq!(merged.quantile(part), of(&all).quantile(part), "{part}");
    }
    assert!(merged.quantile(0.5) < Some(0.001) && merged.quantile(0.995) > Some(0.01));
}

#[test]
fn buckets_are_the_values_between_two_readings() {
    let before = distribution(&[0.0005, 0.004]);
    let after = distribution(&[0.0005, 0.004, 0.0015, 0.0015, 5.0]);
    let buckets = Buckets::between(&before, &after);
    assert_eq!(buckets, Buckets::between(&Distribution::default(), &distribution(&[0.0015, 0.0015, 5.0])));
    assert_eq!(buckets.quantile(1.0), Some(0.1), "above the last bound it is the last bound");
    assert_eq!(Buckets::default().quantile(0.5), None);
    let read: Buckets = serde_json::from_str(&serde_json::to_string(&buckets).unwrap()).unwrap();
    assert_eq!(read, buckets);
}

#[test]
fn a_rule_that_a_summary_may_lack_is_partial() {
    let rule = |rule: &str, hits: u64| RuleHits {
        rule: rule.to_owned(),
        hits: [hits, 1, 0, 0],
        per_second: [0.25, 0.0, 0.0, 0.0],
        ..RuleHits::default()
    };
    let all = Summary { rules: vec![rule("d.a", 5), rule("d.b", 7)], ..Summary::default() };
    let many = (0..1000).map(|n| rule(&format!("d.rule-with-a-name-{n}"), 1)).chain([rule("d.a", 9)]);
    let packed = Summary { rules: many.collect(), ..Summary::default() }.packed();
    assert!(packed.len() <= MAX_BYTES, "{}", packed.len());
    let cut = Summary::read(&packed).unwrap();
    assert!(cut.rules.len() > 20 && cut.rules.len() as u64 + cut.other_rules == 1001, "{}", cut.rules.len());
    let merged = merge(&[&all, &cut]);
    let of = |name: &str| merged.rules.iter().find(|rule| rule.rule == name).unwrap();
    // Rates have one digit there.
    assert_eq!((of("d.a").hits, of("d.a").is_partial), ([14, 2, 0, 0], false));
    assert!((of("d.a").per_second[0] - 0.55).abs() < 1e-9, "{:?}", of("d.a"));
    assert_eq!((of("d.b").hits, of("d.b").is_partial), ([7, 1, 0, 0], true));
    assert_eq!(merged.other_rules, cut.other_rules);
}

#[test]
fn what_shadow_mode_prevented_is_published_beside_refusals_and_displaces_none() {
    let shadowed = |user: &str, hits| KeyHits { shadowed: hits, ..key(user, 0, 1) };
    let prevented = |user: &str, count| {
        let mut one = refusal(user, count, 3);
        one.example.insert("code".to_owned(), "ok".into());
        one.example.insert("shadowed".to_owned(), true.into());
        one
    };
    let one = Summary {
        keys: vec![shadowed("ann", 9), key("bob", 4, 1)],
        refusals: vec![refusal("bob", 4, 1)],
        shadowed: vec![prevented("ann", 9)],
        ..Summary::default()
    };
    assert_eq!(Summary::read(&one.clone().packed()), Some(one.clone()));
    let merged = merge(&[&one, &one]);
    assert_eq!(merged.keys.iter().map(|key| key.shadowed).sum::<u64>(), 18);
    assert_eq!((merged.refusals[0].count, merged.shadowed[0].count), (8, 18));

    // A flood in shadow mode leaves refusals their room, and many refusals leave some for it.
    let flood: Vec<_> = (0..200).map(|n| prevented(&format!("flood{n}"), 1000 + n)).collect();
    let crowded = Summary { shadowed: flood.clone(), other_shadowed: 1, ..one };
    let read = Summary::read(&crowded.packed()).unwrap();
    assert_eq!((read.refusals.len(), read.refusals[0].count), (1, 4));
    let (kept, all) = (
        read.shadowed.iter().map(|one| one.count).sum::<u64>(),
        flood.iter().map(|one| one.count).sum::<u64>(),
    );
    assert_eq!(kept + read.other_shadowed, all + 1);
    let refusals = (0..200).map(|n| refusal(&format!("r{n}"), 1, 2)).collect();
    let read = Summary::read(&Summary { refusals, shadowed: flood, ..Summary::default() }.packed()).unwrap();
    assert!(
        read.refusals.len() > 3 && read.shadowed.len() > 1,
        "{} {}",
        read.refusals.len(),
        read.shadowed.len()
    );
}

#[test]
fn refusals_by_a_block_are_not_added_to_those_by_the_limit() {
    let mut blocked = refusal("ann", 2, 9);
    blocked.reason = "blocked until the override is removed".to_owned();
    blocked.example.insert("blocked".to_owned(), json!({ "until": null }));
    let one = Summary { refusals: vec![refusal("ann", 7, 1), blocked], ..Summary::default() };
    let mut merged = merge(&[&one, &one]).refusals;
    merged.sort_by_key(|refusal| refusal.count);
    let rows: Vec<_> = merged.iter().map(|refusal| (refusal.count, refusal.reason.as_str())).collect();
    assert_eq!(rows, [(4, "blocked until the override is removed"), (14, "over 2 per hour")]);
}
