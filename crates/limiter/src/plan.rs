//! The plan of a request: the rule that each descriptor matches, and its counter checks.
//!
//! [`plan`] fills the batch for the store; `conclude` reads the plan once the outcomes are set.

use std::{cell::Cell, sync::Arc};

use smallvec::SmallVec;

use super::{
    Policy, Served,
    counter_key::CounterKey,
    replacement::{By, Replacement, Replacements},
    request::Request,
};
use algorithms::{Hits, Verdict};
use clock::Time;
use overrides::{Action, Found};
use rules::{Limit, Limits, Matched, Metadata, Rule, model::Domain};
use store::Batch;
use telemetry::metrics::{RuleCounter, RuleStats, Stats};

/// The plan of each descriptor, in the request's order.
pub(super) type Plan<'r> = SmallVec<[Planned<'r>; 4]>;

pub(super) enum Planned<'r> {
    NoLimit,
    /// Other rules replace every limit of the rule.
    Replaced(&'r Rule),
    /// The rule is unlimited, or limits only descriptors with an override.
    Unlimited(&'r Rule),
    /// An override exempts the descriptor from the rule, if one matches.
    Allowed(Option<&'r Rule>, Found),
    Limited(Limited<'r>),
}

/// A descriptor's limits, each with its own counter.
pub(super) struct Limited<'r> {
    /// At least one.
    pub(super) limits: SmallVec<[LimitCheck<'r>; 1]>,
    pub(super) hits: Hits,
    pub(super) stats: Handle<'r>,
    /// The rule; `None` for limits without one.
    pub(super) rule: Option<&'r Rule>,
    pub(super) overridden: Option<Found>,
    pub(super) metadata: Option<&'r Arc<Metadata>>,
}

impl Planned<'_> {
    /// True for a quota, by its rule or `QUOTA_MODE`. A block is not one: it rejects the request even if other quotas have
    /// hits left.
    pub(super) fn is_quota(&self, quota_mode: bool) -> bool {
        match self {
            Self::Limited(limited) => {
                let is_blocked = limited.overridden.is_some_and(|found| found.action == Action::Block);
                !is_blocked && (quota_mode || limited.rule.is_some_and(|rule| rule.quota_mode))
            }
            _ => quota_mode,
        }
    }

    pub(super) fn rule(&self) -> Option<&Rule> {
        match self {
            Self::NoLimit => None,
            Self::Replaced(rule) | Self::Unlimited(rule) => Some(rule),
            Self::Allowed(rule, _) => *rule,
            Self::Limited(limited) => limited.rule,
        }
    }
}

impl Limited<'_> {
    /// True if the rule or its override never rejects a request.
    pub(super) fn is_shadow(&self) -> bool {
        match self.overridden.map(|found| found.action) {
            Some(Action::Block) => false,
            Some(Action::Shadow) => true,
            _ => self.rule.is_some_and(|rule| rule.shadow_mode),
        }
    }
}

/// One limit and the source of its counter's outcome.
pub(super) struct LimitCheck<'r> {
    pub(super) limit: &'r Limit,
    pub(super) source: CounterSource,
}

#[derive(Clone, Copy)]
pub(super) enum CounterSource {
    /// The check at this index of the batch.
    Store(usize),
    /// The over-limit cache: the counter rejects these hits for some time.
    KnownOver(Verdict),
    /// No counter: an override blocks the descriptor for this many microseconds, or until it is removed.
    Blocked(Option<u64>),
    /// No counter: the store failed and the policy decides, or another limit of the rule is known to be over.
    Assumed { over: bool },
}

/// A rule's statistics: attached to the rule, or looked up by a name that the request contains.
pub(super) enum Handle<'r> {
    Attached(&'r RuleStats),
    LookedUp(Arc<RuleStats>),
}

/// Plans a request, and fills the batch with its checks.
pub(super) fn plan<'r>(
    request: &'r Request<'_>,
    domain: Option<&'r Domain>,
    replacements: &'r Replacements,
    served: &'r Served,
    batch: &mut Batch,
    context: &Context<'_>,
) -> Plan<'r> {
    let Some(domain) = domain else {
        return request.descriptors.iter().map(|_| Planned::NoLimit).collect();
    };
    // One allocation for the keys of most requests.
    batch.keys().reserve(request.descriptors.len().saturating_add(1).saturating_mul(64));
    let find = |index: usize, scratch: &mut String| {
        let replacement = replacements.get(index).and_then(Option::as_ref);
        // A limit of the request has no rule.
        let has_rule = replacement.is_none_or(|replacement| replacement.by != By::Request);
        let matched = if has_rule { domain.find(request.entries(index), scratch) } else { None };
        RuleMatch { matched, replacement }
    };
    // Replaced names must be known before any descriptor is planned.
    let mut replaced: SmallVec<[&str; 4]> = SmallVec::new();
    if domain.has_replaces {
        for index in 0..request.descriptors.len() {
            let rule = find(index, batch.keys()).rule();
            replaced.extend(rule.into_iter().flat_map(|rule| rule.replaces.iter().map(|name| &**name)));
        }
    }
    let planned = |index: usize| {
        let rule_match = find(index, batch.keys());
        let overridden = rule_match.overridden();
        if let Some(found @ Found { action: Action::Allow, .. }) = overridden {
            return Planned::Allowed(rule_match.rule(), found);
        }
        let Some(limits) = rule_match.limits() else {
            return rule_match.rule().map_or(Planned::NoLimit, Planned::Unlimited);
        };
        if let Some(attempt) = context.attempt
            && !(rule_match.has_fixed_name()
                && (!attempt.needs_leases || limits.iter().all(|limit| limit.is_leased())))
        {
            attempt.is_given_up.set(true);
            return Planned::NoLimit;
        }
        let may_be_replaced =
            !replaced.is_empty() && overridden.is_none_or(|found| found.action != Action::Block);
        let is_replaced = |limit: &&Limit| {
            may_be_replaced && limit.name.as_deref().is_some_and(|name| replaced.contains(&name))
        };
        if may_be_replaced && limits.iter().all(|limit| is_replaced(&limit)) {
            return rule_match.rule().map_or(Planned::NoLimit, Planned::Replaced);
        }
        let limits = limits.iter().filter(|limit| !is_replaced(limit));
        Planned::Limited(checks(request, index, &rule_match, limits, served, batch, context))
    };
    (0..request.descriptors.len()).map(planned).collect()
}

pub(super) struct Context<'a> {
    pub(super) policy: &'a Policy,
    pub(super) stats: &'a Stats,
    pub(super) now: Time,
    pub(super) attempt: Option<&'a Attempt>,
}

/// An attempt to decide a request without waiting. If it fails, the request is planned again, so an attempt counts no
/// hits and looks up no statistics.
pub(super) struct Attempt {
    /// Only leases can decide.
    pub(super) needs_leases: bool,
    pub(super) is_given_up: Cell<bool>,
}

/// Counts the hits of a plan that was an attempt.
pub(super) fn count_hits(plan: &[Planned<'_>]) {
    for planned in plan {
        if let Planned::Limited(limited) = planned {
            limited.stats.add(RuleCounter::TotalHits, limited.hits.taken());
        }
    }
}

/// The rule that a descriptor matches, and the replacement of the rule's limits.
struct RuleMatch<'r> {
    matched: Option<Matched<'r>>,
    replacement: Option<&'r Replacement>,
}

impl<'r> RuleMatch<'r> {
    fn limits(&self) -> Option<&'r Limits> {
        let replaced = self.replacement.and_then(|replacement| replacement.limits.as_ref());
        replaced.or_else(|| {
            let rule = self.rule()?;
            // A rule for overrides alone limits descriptors that an override blocks or shadows.
            rule.limits().filter(|_| !rule.overrides_only || self.overridden().is_some())
        })
    }

    fn overridden(&self) -> Option<Found> {
        self.replacement?.operator()
    }

    fn rule(&self) -> Option<&'r Rule> {
        self.matched.as_ref().map(|matched| matched.rule)
    }

    /// True if its statistics are attached to a rule.
    fn has_fixed_name(&self) -> bool {
        self.matched.as_ref().is_some_and(Matched::is_as_written)
    }

    /// A bit for each level whose value is in the counter's key although the rule's counter is shared by its values: an
    /// override for one value has its own counter.
    fn own_levels(&self) -> u32 {
        match self.overridden() {
            Some(Found { action: Action::Limit { .. }, exact_levels, .. }) => exact_levels,
            _ => 0,
        }
    }
}

fn checks<'r>(
    request: &Request<'_>,
    index: usize,
    rule_match: &RuleMatch<'r>,
    limits: impl Iterator<Item = &'r Limit>,
    served: &'r Served,
    batch: &mut Batch,
    context: &Context<'_>,
) -> Limited<'r> {
    let hits = request.descriptors.get(index).map_or(Hits::Take(0), |descriptor| request.hits(descriptor));
    let stats = stats_handle(request, index, rule_match, served, batch.keys(), context);
    if context.attempt.is_none() {
        stats.add(RuleCounter::TotalHits, hits.taken());
    }
    let (rule, overridden) = (rule_match.rule(), rule_match.overridden());
    let metadata = rule_match.matched.as_ref().and_then(Matched::metadata);
    if let Some(found) = overridden.filter(|found| found.action == Action::Block) {
        let wait = found
            .expires
            .map(|end| Time::from_seconds(end.into()).micros().saturating_sub(context.now.micros()));
        let limits = limits.take(1).map(|limit| LimitCheck { limit, source: CounterSource::Blocked(wait) });
        return Limited { limits: limits.collect(), hits, stats, rule, overridden, metadata };
    }
    let (first, is_group) = (batch.checks().len(), rule_match.limits().is_some_and(Limits::are_several));
    // All limits of a domain that have no rule count as one rule.
    let rule_hash = rule.map_or_else(|| Rule::hash_of(request.domain), |rule| rule.hash);
    let mut checks = SmallVec::new();
    // A loop, because collecting would make a single limit, the usual case, cost as much as several.
    limits.for_each(|limit| {
        let start = batch.keys().len();
        let key = CounterKey {
            prefix: &context.policy.key_prefix,
            domain: request.domain,
            entries: request.entries(index),
            matched: rule_match.matched.as_ref(),
            own_levels: rule_match.own_levels(),
            limit,
        };
        let end = key.write(context.now, batch.keys());
        let end = if context.policy.full_keys { batch.keys().len() } else { end };
        let source = CounterSource::Store(batch.push(start..end, limit, rule_hash, hits));
        checks.push(LimitCheck { limit, source });
    });
    if is_group {
        batch.group(first);
    }
    Limited { limits: checks, hits, stats, rule, overridden, metadata }
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
    let entries = request.entries(index);
    let start = scratch.len();
    match &rule_match.matched {
        Some(matched) if matched.is_as_written() => {
            if let Some(attached) = served.attached.rules.get(matched.rule.id.0 as usize) {
                return Handle::Attached(attached);
            }
            scratch.push_str(&matched.rule.full_key);
        }
        Some(matched) => matched.write_metric_key(request.domain, entries, scratch),
        None => {
            // There may be a million overrides, so their values are not part of the name.
            let has_values = rule_match.overridden().is_none();
            scratch.push_str(request.domain);
            for entry in entries {
                scratch.push('.');
                scratch.push_str(entry.key);
                if has_values && !entry.value.is_empty() {
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

impl std::ops::Deref for Handle<'_> {
    type Target = RuleStats;

    fn deref(&self) -> &RuleStats {
        match self {
            Self::Attached(stats) => stats,
            Self::LookedUp(stats) => stats,
        }
    }
}
