//! The report of a replay, as data. Its JSON is what `tollgate replay --json` prints.

use std::collections::HashMap;

use serde::{Serialize, Serializer};

use super::{
    Fraction, Outcome,
    block::{LogNotes, SampledBy},
    changes::{Changes, Slot},
    decider::Decider,
    tally::{LimitTally, RuleTally},
};
use clock::{Rfc3339, Time};
use recent::LimitShown;

/// Keys in the report, of each kind.
const MAX_KEYS: usize = 50;

#[derive(Serialize, Debug)]
pub struct Report {
    pub requests: u64,
    pub admitted: u64,
    /// By `--rules`.
    pub refused: u64,
    /// Refused by `--rules` and admitted by `--against`, or by no rules.
    pub newly_refused: u64,
    pub newly_allowed: u64,
    pub compares: bool,
    #[serde(serialize_with = "rfc3339")]
    pub from: Option<Time>,
    #[serde(serialize_with = "rfc3339")]
    pub to: Option<Time>,
    pub logs: LogNotes,
    pub over_time: OverTime,
    pub rules: Vec<RuleReport>,
    pub newly_refused_keys: Vec<KeyReport>,
    pub newly_allowed_keys: Vec<KeyReport>,
    pub unmet: Vec<String>,
}

#[derive(Serialize, Debug)]
pub struct OverTime {
    pub seconds: u64,
    pub slots: Vec<Slot>,
}

#[derive(Serialize, Debug)]
pub struct RuleReport {
    pub rule: String,
    pub file: Option<String>,
    pub line: Option<u32>,
    /// The rule is only one of `--against`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
    pub requests: u64,
    pub refused: u64,
    pub newly_refused: u64,
    pub newly_allowed: u64,
    pub limits: Vec<LimitReport>,
}

#[derive(Serialize, Debug)]
pub struct LimitReport {
    #[serde(flatten)]
    pub limit: LimitShown,
    /// The hits that keys ask for in a window.
    #[serde(rename = "use")]
    pub used: UseReport,
    /// A suggestion: with this limit the share of `--suggest` would be refused anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suggested: Option<u64>,
}

/// The most hits of a key in one window, over all keys.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct UseReport {
    pub keys: usize,
    /// Keys that ask for more than the limit.
    pub keys_over: usize,
    pub p50: u64,
    pub p99: u64,
    #[serde(rename = "p99.9")]
    pub p99_9: u64,
    pub most: u64,
}

#[derive(Serialize, Clone, Debug)]
pub struct KeyReport {
    pub rule: String,
    pub descriptor: String,
    pub requests: u64,
    #[serde(serialize_with = "rfc3339_of")]
    pub first: Time,
    #[serde(serialize_with = "rfc3339_of")]
    pub last: Time,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
pub(crate) fn rfc3339_of<S: Serializer>(time: &Time, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Rfc3339(*time))
}

#[expect(clippy::ref_option, reason = "the form that serde calls")]
fn rfc3339<S: Serializer>(time: &Option<Time>, serializer: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => rfc3339_of(time, serializer),
        None => serializer.serialize_none(),
    }
}

impl Report {
    /// `suggest` is the share of keys that a suggested limit refuses.
    pub(crate) fn new(
        rules: &Decider,
        against: Option<&Decider>,
        outcome: &Outcome,
        notes: LogNotes,
        suggest: Option<Fraction>,
    ) -> Self {
        let tally = rules.tally();
        let allowing = against.map(Decider::tally);
        let Outcome { requests, refused, refusals, allowances, timeline } = outcome;
        let (from, to) = timeline.range().unzip();
        let mut rules: Vec<RuleReport> = tally
            .rules
            .iter()
            .enumerate()
            .map(|(id, rule)| RuleReport {
                newly_refused: refusals.of_rule(id),
                limits: rule.limits.iter().map(|limit| limit_report(limit, suggest)).collect(),
                ..rule_report(rule)
            })
            .collect();
        if let Some(allowing) = &allowing {
            add_allowances(&mut rules, allowances, &allowing.rules);
        }
        rules.sort_by_key(|rule| {
            std::cmp::Reverse((rule.newly_refused + rule.newly_allowed, rule.refused, rule.requests))
        });
        let unmet = rules.iter().filter(|rule| rule.requests == 0 && !rule.removed);
        Self {
            requests: *requests,
            admitted: requests - refused,
            refused: *refused,
            newly_refused: refusals.requests,
            newly_allowed: allowances.requests,
            compares: against.is_some(),
            from,
            to,
            logs: notes,
            over_time: timeline.report(),
            unmet: unmet.map(|rule| rule.rule.clone()).collect(),
            newly_refused_keys: keys(refusals, &tally.rules),
            newly_allowed_keys: allowing.map(|tally| keys(allowances, &tally.rules)).unwrap_or_default(),
            rules,
        }
    }

    /// The share of all requests that is newly refused is above this one.
    pub fn is_above(&self, share: Fraction) -> bool {
        share.is_below(self.newly_refused, self.requests)
    }

    /// True if the logs have only some requests of a key, so that a limit looks less used than it is.
    pub fn is_partial(&self) -> bool {
        self.logs.missing > 0 || self.logs.sample.is_some_and(|sample| sample.by == SampledBy::Request)
    }
}

fn rule_report(rule: &RuleTally) -> RuleReport {
    let (file, line) = rule.place.as_ref().map(|(file, line)| (file.to_string(), *line)).unzip();
    RuleReport {
        rule: rule.full_key.to_string(),
        file,
        line,
        removed: false,
        requests: rule.requests,
        refused: rule.refused,
        newly_refused: 0,
        newly_allowed: 0,
        limits: Vec::new(),
    }
}

/// Adds what the other rules refused to the rules of the same name, or as rules that were removed.
fn add_allowances(rules: &mut Vec<RuleReport>, allowances: &Changes, others: &[RuleTally]) {
    let known: HashMap<String, usize> =
        rules.iter().enumerate().map(|(index, rule)| (rule.rule.clone(), index)).collect();
    for (id, other) in others.iter().enumerate() {
        let newly_allowed = allowances.of_rule(id);
        match known.get(&*other.full_key).and_then(|index| rules.get_mut(*index)) {
            Some(rule) => rule.newly_allowed = newly_allowed,
            None if newly_allowed > 0 => rules.push(RuleReport {
                removed: true,
                requests: 0,
                refused: 0,
                newly_allowed,
                ..rule_report(other)
            }),
            None => {}
        }
    }
}

fn limit_report(limit: &LimitTally, suggest: Option<Fraction>) -> LimitReport {
    let most = limit.most_by_key();
    // The nearest rank.
    let rank = |per_mille: usize| {
        let rank = (most.len() * per_mille).div_ceil(1000);
        rank.checked_sub(1).and_then(|index| most.get(index)).copied().unwrap_or_default()
    };
    let used = UseReport {
        keys: most.len(),
        keys_over: limit.keys_over(),
        p50: rank(500),
        p99: rank(990),
        p99_9: rank(999),
        most: rank(1000),
    };
    let suggested = suggest.filter(|_| !most.is_empty()).map(|share| {
        let refused = share.of(most.len());
        (most.len() - refused).checked_sub(1).and_then(|index| most.get(index)).copied().unwrap_or_default()
    });
    LimitReport { limit: limit.limit.clone(), used, suggested }
}

fn keys(changes: &Changes, rules: &[RuleTally]) -> Vec<KeyReport> {
    let name = |rule: u32| rules.get(rule as usize).map_or("", |rule| &rule.full_key).to_owned();
    changes.top(MAX_KEYS, name)
}
