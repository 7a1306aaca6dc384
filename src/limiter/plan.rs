//! The plan of a request: the rule that each descriptor matches, and the counter checks that follow from it.
//!
//! [`plan`] fills the batch for the store; `conclude` reads the plan again when the outcomes are there.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    Policy, Served,
    counter_key::CounterKey,
    request::{Entry, Request, RequestError},
};
use crate::{
    clock::Time,
    limiter::algorithm::{Hits, Verdict},
    rules::{CountingMode, Limit, Limits, Matched, Metadata, Rule, model::Domain},
    store::Batch,
    telemetry::metrics::{RuleCounter, RuleStats, Stats},
};

/// The plan of each descriptor, in the request's order.
pub(super) type Plan<'r> = SmallVec<[Planned<'r>; 4]>;

/// The plan of one descriptor.
pub(super) enum Planned<'r> {
    /// No rule matches.
    NoLimit,
    /// Other rules replace every limit of the rule.
    Replaced(&'r Rule),
    /// The rule is unlimited.
    Unlimited(&'r Rule),
    /// Counters are checked.
    Limited(Limited<'r>),
}

/// A descriptor's limits, each with its own counter.
pub(super) struct Limited<'r> {
    /// At least one.
    pub(super) limits: SmallVec<[LimitCheck<'r>; 1]>,
    pub(super) hits: Hits,
    pub(super) stats: Handle<'r>,
    /// The rule; `None` for an override.
    pub(super) rule: Option<&'r Rule>,
    pub(super) metadata: Option<&'r Arc<Metadata>>,
}

impl Planned<'_> {
    /// True when the rule is a quota.
    pub(super) fn is_quota(&self) -> bool {
        matches!(self, Self::Limited(limited) if limited.rule.is_some_and(|rule| rule.quota_mode))
    }
}

impl Limited<'_> {
    /// True when the rule never rejects a request.
    pub(super) fn is_shadow(&self) -> bool {
        self.rule.is_some_and(|rule| rule.shadow_mode)
    }
}

/// One limit and the source of its counter's outcome.
pub(super) struct LimitCheck<'r> {
    pub(super) limit: &'r Limit,
    pub(super) source: CounterSource,
}

/// Where an outcome comes from.
#[derive(Clone, Copy)]
pub(super) enum CounterSource {
    /// The check at this index of the batch.
    Store(usize),
    /// The over-limit cache: the counter rejects these hits for some time.
    KnownOver(Verdict),
    /// No counter. The store failed and the policy decides, or another limit of the rule is known to be over and
    /// this one does not matter.
    Assumed { over: bool },
}

/// A rule's statistics: attached to the rule, or looked up by a name made from the request.
pub(super) enum Handle<'r> {
    Attached(&'r RuleStats),
    LookedUp(Arc<RuleStats>),
}

/// The overrides, by descriptor index; empty if there are none.
pub(super) type Overrides = Vec<Option<Limits>>;

/// The limits that come with a request, counted in this way.
///
/// # Errors
/// When a unit is unknown.
pub(super) fn overrides(request: &Request<'_>, counting: CountingMode) -> Result<Overrides, RequestError> {
    if request.descriptors.iter().all(|descriptor| descriptor.limit.is_none()) {
        return Ok(Overrides::new());
    }
    let limits = request.descriptors.iter().enumerate().map(|(index, descriptor)| {
        let Some(limit) = descriptor.limit else { return Ok(None) };
        let unit = limit.unit().ok_or(RequestError::OverrideUnit { descriptor: index, unit: limit.unit })?;
        Ok(Some(Limit::plain(limit.requests_per_unit, unit).counted(counting).into()))
    });
    limits.collect()
}

/// Plans a request to a known domain, and fills the batch with its checks. `None` for an attempt of what leases do not
/// decide.
pub(super) fn plan<'r>(
    request: &'r Request<'_>,
    domain: &'r Domain,
    overrides: &'r Overrides,
    served: &'r Served,
    batch: &mut Batch<'r>,
    context: &Context<'_>,
) -> Option<Plan<'r>> {
    let find = |index: usize, scratch: &mut String| {
        if let Some(Some(limits)) = overrides.get(index) {
            return RuleMatch::Overrides(limits);
        }
        domain.find(entries(request, index), scratch).map_or(RuleMatch::Nothing, RuleMatch::Rule)
    };
    // Replaced names must be known before any descriptor is planned.
    let mut replaced: SmallVec<[&str; 4]> = SmallVec::new();
    if domain.has_replaces {
        for index in 0..request.descriptors.len() {
            replaced.extend(find(index, batch.keys()).replaces().iter().map(|name| &**name));
        }
    }
    let planned = |index: usize| {
        let rule_match = find(index, batch.keys());
        let Some(limits) = rule_match.limits() else {
            return Some(rule_match.rule().map_or(Planned::NoLimit, Planned::Unlimited));
        };
        if context.is_attempt && !(rule_match.has_fixed_name() && limits.iter().all(Limit::is_leased)) {
            return None;
        }
        let is_replaced = |limit: &&Limit| limit.name.as_deref().is_some_and(|name| replaced.contains(&name));
        if limits.iter().all(|limit| is_replaced(&limit)) {
            return Some(rule_match.rule().map_or(Planned::NoLimit, Planned::Replaced));
        }
        let limits = limits.iter().filter(|limit| !is_replaced(limit));
        Some(Planned::Limited(checks(request, index, &rule_match, limits, served, batch, context)))
    };
    (0..request.descriptors.len()).map(planned).collect()
}

/// What planning needs beside the request and the rules.
pub(super) struct Context<'a> {
    pub(super) policy: &'a Policy,
    pub(super) stats: &'a Stats,
    pub(super) now: Time,
    /// The request is planned again if it cannot be decided at once: so nothing is counted yet, nor looked up that is
    /// counted.
    pub(super) is_attempt: bool,
}

/// Counts the hits of a plan that was an attempt.
pub(super) fn count_hits(plan: &[Planned<'_>]) {
    for planned in plan {
        if let Planned::Limited(limited) = planned {
            limited.stats.add(RuleCounter::TotalHits, limited.hits.taken());
        }
    }
}

/// What limits a descriptor.
enum RuleMatch<'r> {
    Nothing,
    Rule(Matched<'r>),
    Overrides(&'r Limits),
}

impl<'r> RuleMatch<'r> {
    fn limits(&self) -> Option<&'r Limits> {
        match self {
            Self::Nothing => None,
            Self::Rule(matched) => matched.rule.limits(),
            Self::Overrides(limits) => Some(limits),
        }
    }

    fn rule(&self) -> Option<&'r Rule> {
        match self {
            Self::Rule(matched) => Some(matched.rule),
            Self::Nothing | Self::Overrides(_) => None,
        }
    }

    /// True if its statistics hang on a rule.
    fn has_fixed_name(&self) -> bool {
        matches!(self, Self::Rule(matched) if matched.is_as_written())
    }

    fn replaces(&self) -> &'r [Box<str>] {
        match self {
            Self::Rule(matched) => &matched.rule.replaces,
            _ => &[],
        }
    }
}

fn checks<'r>(
    request: &Request<'_>,
    index: usize,
    rule_match: &RuleMatch<'r>,
    limits: impl Iterator<Item = &'r Limit>,
    served: &'r Served,
    batch: &mut Batch<'r>,
    context: &Context<'_>,
) -> Limited<'r> {
    let hits = request.descriptors.get(index).map_or(Hits::Take(0), |descriptor| request.hits(descriptor));
    let stats = stats_handle(request, index, rule_match, served, batch.keys(), context);
    if !context.is_attempt {
        stats.add(RuleCounter::TotalHits, hits.taken());
    }
    let (first, is_group) = (batch.checks().len(), rule_match.limits().is_some_and(Limits::are_several));
    let checks = limits.map(|limit| {
        let start = batch.keys().len();
        let end = counter_key(request, index, rule_match, limit, context).write(context.now, batch.keys());
        let end = if context.policy.full_keys { batch.keys().len() } else { end };
        LimitCheck { limit, source: CounterSource::Store(batch.push_with_key(start..end, limit, hits)) }
    });
    let limits = checks.collect();
    if is_group {
        batch.group(first);
    }
    let metadata = if let RuleMatch::Rule(matched) = rule_match { matched.metadata() } else { None };
    Limited { limits, hits, stats, rule: rule_match.rule(), metadata }
}

/// The key of a limit's counter.
fn counter_key<'a, 'r>(
    request: &'a Request<'_>,
    index: usize,
    rule_match: &'a RuleMatch<'r>,
    limit: &'a Limit,
    context: &Context<'a>,
) -> CounterKey<'a, 'r> {
    let matched = if let RuleMatch::Rule(matched) = rule_match { Some(matched) } else { None };
    CounterKey {
        prefix: &context.policy.key_prefix,
        domain: request.domain,
        entries: entries(request, index),
        matched,
        limit,
    }
}

/// The statistics that count this descriptor. `scratch` is working memory.
fn stats_handle<'r>(
    request: &Request<'_>,
    index: usize,
    rule_match: &RuleMatch<'r>,
    served: &'r Served,
    scratch: &mut String,
    context: &Context<'_>,
) -> Handle<'r> {
    let entries = entries(request, index);
    let start = scratch.len();
    match rule_match {
        RuleMatch::Rule(matched) if matched.is_as_written() => {
            if let Some(attached) = served.attached.rules.get(matched.rule.id.0 as usize) {
                return Handle::Attached(attached);
            }
            scratch.push_str(&matched.rule.full_key);
        }
        RuleMatch::Rule(matched) => matched.write_metric_key(request.domain, entries, scratch),
        _ => {
            scratch.push_str(request.domain);
            for entry in entries {
                scratch.push('.');
                scratch.push_str(entry.key);
                if !entry.value.is_empty() {
                    scratch.push('_');
                    scratch.push_str(entry.value);
                }
            }
        }
    }
    let found = context.stats.dynamic(request.domain, scratch.get(start..).unwrap_or_default(), context.now);
    scratch.truncate(start);
    Handle::LookedUp(found)
}

/// The entries of a descriptor.
fn entries<'a, 'm>(request: &'a Request<'m>, index: usize) -> &'a [Entry<'m>] {
    request.descriptors.get(index).map_or(&[], |descriptor| descriptor.entries.as_slice())
}

impl std::ops::Deref for Handle<'_> {
    type Target = RuleStats;

    fn deref(&self) -> &RuleStats {
        match self {
            Self::Attached(stats) => stats,
            Self::LookedUp(stats) => stats,
        }
    }
}
