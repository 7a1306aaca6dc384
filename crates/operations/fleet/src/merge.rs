//! Combines the summaries of several replicas.
//!
//! Counts of a key add up, and so do their errors. A summary without the key adds the most hits that such a key may have
//! there ([`Missing`](crate::summary::Missing)) to the error. So the true count of a listed key is within `count ± error`,
//! and an unlisted key has at most as many hits as the sum of what each summary may miss.

use std::collections::{BTreeMap, HashMap};

use crate::{
    steps::Steps,
    summary::{KeyRefusals, RuleHits, Summary},
};
use api::{Answers, Entry, KeyHits, NotEnforced};

/// The sums over all replicas. Its keys are in no particular order.
pub type Merged = Summary;

/// Combines summaries. One alone stays as it is, except that keys which `KEY_VALUES` made equal are one.
pub fn merge(all: &[&Summary]) -> Merged {
    let mut merged = Summary {
        keys: keys(all, |summary| &summary.keys, |summary, rule| summary.missing.of(rule).into_iter().max()),
        unmatched: keys(all, |summary| &summary.unmatched, |summary, _| Some(summary.unmatched_missing)),
        refusals: refusals(all, |summary| &summary.refusals),
        shadowed: refusals(all, |summary| &summary.shadowed),
        rules: rules(all),
        not_enforced: not_enforced(all),
        steps: Steps::sum(all.iter().map(|summary| &summary.steps)),
        ..Summary::default()
    };
    for one in all {
        merged.other_refusals = merged.other_refusals.saturating_add(one.other_refusals);
        merged.other_shadowed = merged.other_shadowed.saturating_add(one.other_shadowed);
        merged.other_rules = merged.other_rules.saturating_add(one.other_rules);
        merged.missed = merged.missed.saturating_add(one.missed);
        merged.window_seconds = merged.window_seconds.max(one.window_seconds);
        for (reason, count) in &one.unmatched_total {
            let sum = merged.unmatched_total.entry(reason.clone()).or_default();
            *sum = sum.saturating_add(*count);
        }
        merged.per_second.iter_mut().zip(one.per_second).for_each(|(sum, rate)| *sum += rate);
        merged.without_store.iter_mut().zip(one.without_store).for_each(|(sum, rate)| *sum += rate);
        merged.total.iter_mut().zip(one.total).for_each(|(sum, n)| *sum = sum.saturating_add(n));
        merged.latency.add(&one.latency);
        let Answers { abandoned, late } = &mut merged.answers;
        *abandoned = abandoned.saturating_add(one.answers.abandoned);
        *late = late.saturating_add(one.answers.late);
    }
    merged
}

/// What distinguishes keys.
type Identity<'a> = (&'a str, Option<&'a str>, &'a [Entry]);

fn keys<'a>(
    all: &[&'a Summary],
    keys_of: impl Fn(&'a Summary) -> &'a Vec<KeyHits>,
    missing: impl Fn(&Summary, Option<&str>) -> Option<u64>,
) -> Vec<KeyHits> {
    // With the indexes of the summaries that have the key.
    let mut sums: HashMap<Identity<'a>, (KeyHits, Vec<usize>)> = HashMap::new();
    for (index, summary) in all.iter().enumerate() {
        for key in keys_of(summary) {
            let identity = (key.domain.as_str(), key.rule.as_deref(), key.descriptor.as_slice());
            let (sum, seen) = sums.entry(identity).or_insert_with(|| {
                (KeyHits { allowed: 0, refused: 0, shadowed: 0, error: 0, ..key.clone() }, Vec::new())
            });
            sum.allowed = sum.allowed.saturating_add(key.allowed);
            sum.refused = sum.refused.saturating_add(key.refused);
            sum.shadowed = sum.shadowed.saturating_add(key.shadowed);
            sum.error = sum.error.saturating_add(key.error);
            sum.by_override = sum.by_override.take().or_else(|| key.by_override.clone());
            seen.push(index);
        }
    }
    let mut bounds = BTreeMap::<Option<&str>, Vec<u64>>::new();
    let mut with_error = |(mut key, seen): (KeyHits, Vec<usize>), rule: Option<&'a str>| {
        let bounds = bounds.entry(rule).or_insert_with(|| {
            all.iter().map(|summary| missing(summary, rule).unwrap_or_default()).collect()
        });
        let unseen = bounds.iter().enumerate().filter(|(index, _)| !seen.contains(index));
        key.error = unseen.fold(key.error, |error, (_, bound)| error.saturating_add(*bound));
        key
    };
    sums.into_iter().map(|((_, rule, _), sum)| with_error(sum, rule)).collect()
}

/// The sums of each rule. One that a replica did not publish although it left rules out is partial.
fn rules(all: &[&Summary]) -> Vec<RuleHits> {
    let mut sums: HashMap<&str, (RuleHits, usize)> = HashMap::new();
    let cut = |one: &Summary| usize::from(one.other_rules > 0);
    let cuts: usize = all.iter().map(|one| cut(one)).sum();
    for one in all {
        for rule in &one.rules {
            let (sum, cuts_seen) = sums.entry(&rule.rule).or_default();
            sum.hits.iter_mut().zip(rule.hits).for_each(|(sum, n)| *sum = sum.saturating_add(n));
            sum.per_second.iter_mut().zip(rule.per_second).for_each(|(sum, rate)| *sum += rate);
            *cuts_seen = cuts_seen.saturating_add(cut(one));
        }
    }
    let rule = |(rule, (sum, cuts_seen)): (&str, (RuleHits, usize))| RuleHits {
        rule: rule.to_owned(),
        is_partial: cuts_seen < cuts,
        ..sum
    };
    sums.into_iter().map(rule).collect()
}

/// The reasons of all replicas, each once, with their sums; first what nobody chose.
fn not_enforced(all: &[&Summary]) -> Vec<NotEnforced> {
    let mut sums: BTreeMap<_, NotEnforced> = BTreeMap::new();
    for one in all.iter().flat_map(|summary| &summary.not_enforced) {
        let identity = (one.chosen, &one.domain, &one.why, &one.policy, one.alone);
        sums.entry(identity)
            .and_modify(|sum| {
                // RFC 3339 in UTC sorts by time.
                if one.since < sum.since {
                    sum.since.clone_from(&one.since);
                }
                // Rules are those of every replica.
                if !one.chosen {
                    (sum.n, sum.of) = (sum.n.saturating_add(one.n), sum.of.saturating_add(one.of));
                }
                sum.replicas = sum.replicas.saturating_add(one.replicas);
            })
            .or_insert_with(|| one.clone());
    }
    sums.into_values().collect()
}

/// The sums of each key. Refusals by a block are others than those by the key's limit.
fn refusals<'a>(
    all: &[&'a Summary],
    keys_of: impl Fn(&'a Summary) -> &'a Vec<KeyRefusals>,
) -> Vec<KeyRefusals> {
    let mut sums: HashMap<_, KeyRefusals> = HashMap::new();
    for key in all.iter().flat_map(|summary| keys_of(summary)) {
        let is_blocked = key.example.contains_key("blocked");
        let identity = (key.domain.as_str(), key.rule.as_deref(), key.descriptor.as_slice(), is_blocked);
        let Some(sum) = sums.get_mut(&identity) else {
            sums.insert(identity, key.clone());
            continue;
        };
        sum.count = sum.count.saturating_add(key.count);
        // RFC 3339 in UTC sorts by time.
        if key.first < sum.first {
            sum.first.clone_from(&key.first);
        }
        if key.last > sum.last {
            (sum.last, sum.reason, sum.example) = (key.last.clone(), key.reason.clone(), key.example.clone());
        }
    }
    sums.into_values().collect()
}
