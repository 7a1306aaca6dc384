//! The plan of a request: the rule that each descriptor matches, and its counter checks.
//!
//! [`plan`] fills the batch for the store; `conclude` reads the plan once the outcomes are set.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    Policy, Served,
    counter_key::CounterKey,
    holds, quota_groups,
    replacement::{By, Replacement, Replacements},
    request::{Entry, Request},
};
use clock::Time;
use counters::{Batch, Counting};
use limit::{Fit, Hits, Kind, Limit, Limits, Verdict};
use metrics::{RuleCounter, RuleStats, Stats};
use overrides::{Action, Found};
use rules::{Matched, Rule, RuleId, model::Domain};

/// The plan of each descriptor, in the request's order. It owns what it needs, so that a decision can wait for its
/// store. Room for one without an allocation: requests that wait are many.
pub(super) type Plan = SmallVec<[Planned; 1]>;

pub(super) enum Planned {
    NoLimit,
    /// Other rules replace every limit of the rule.
    Replaced(RuleId),
    /// The rule is unlimited, or limits only descriptors with an override.
    Unlimited(RuleId),
    /// An override exempts the descriptor from the rule, if one matches.
    Allowed(Option<RuleId>, Found),
    /// Settles or ends holds.
    Closes,
    Limited(Limited),
}

/// A descriptor's limits, each with its own counter.
pub(super) struct Limited {
    /// At least one.
    pub(super) limits: SmallVec<[LimitCheck; 1]>,
    of: LimitsOf,
    pub(super) hits: Hits,
    pub(super) stats: Handle,
    /// The rule; `None` for limits without one.
    pub(super) rule: Option<RuleId>,
    pub(super) overridden: Option<Found>,
    /// The response has the rule's metadata.
    pub(super) has_metadata: bool,
}

#[derive(Clone, Copy)]
enum LimitsOf {
    Rule(RuleId),
    /// The replacement for the descriptor at this index.
    Replacement(usize),
}

#[derive(Clone, Copy)]
pub(super) struct LimitCheck {
    /// Its index among the limits of the rule or the replacement.
    pub(super) index: usize,
    /// The index of its check in the batch; `None` if an override blocks the descriptor.
    pub(super) check: Option<usize>,
}

impl Limited {
    pub(super) fn is_blocked(&self) -> bool {
        self.overridden.as_ref().is_some_and(|found| found.action == Action::Block)
    }

    /// The verdict of the override that blocks the descriptor until it expires or is removed.
    pub(super) fn blocked(&self, now: Time) -> Verdict {
        let end = self
            .overridden
            .as_ref()
            .and_then(|found| found.expires)
            .map(|end| Time::from_seconds(end.into()));
        let wait = end.map(|end| end.micros().saturating_sub(now.micros()));
        Verdict { admitted: false, reset: wait.unwrap_or_default(), retry_after: wait, ..Verdict::default() }
    }
}

/// A rule's statistics: attached to the rule, or looked up by a name that the request contains.
pub(super) enum Handle {
    Attached(RuleId),
    LookedUp(Arc<RuleStats>),
}

/// A planned request: what its descriptors are limited by, and the checks of their counters.
pub(super) struct PlannedRequest {
    pub(super) plan: Plan,
    pub(super) batch: Batch,
}

/// By what a request is decided.
#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    pub(super) served: &'a Served,
    pub(super) replacements: &'a Replacements,
    pub(super) policy: &'a Policy,
    /// The time of the whole decision.
    pub(super) now: Time,
}

impl<'a> Scope<'a> {
    pub(super) fn rule(self, id: RuleId) -> &'a Rule {
        self.served.rules.rule(id)
    }

    /// The limit of a check as it is written. [`Limit::at`] is the one in force.
    #[expect(clippy::expect_used, reason = "a plan refers to limits that exist in its scope")]
    pub(super) fn limit(self, limited: &Limited, check: &LimitCheck) -> &'a Limit {
        let limits = match limited.of {
            LimitsOf::Rule(id) => self.rule(id).limits(),
            LimitsOf::Replacement(index) => {
                self.replacements.get(index).and_then(|replacement| replacement.limits.as_ref())
            }
        };
        limits.and_then(|limits| limits.get(check.index)).expect("the limit of a check")
    }

    #[expect(clippy::expect_used, reason = "only a rule with attached statistics has such a handle")]
    pub(super) fn stats(self, limited: &'a Limited) -> &'a RuleStats {
        match &limited.stats {
            Handle::Attached(id) => self.served.attached.stats(*id).expect("the rule has statistics"),
            Handle::LookedUp(stats) => stats,
        }
    }

    pub(super) fn rule_of(self, planned: &Planned) -> Option<&'a Rule> {
        let id = match planned {
            Planned::NoLimit | Planned::Closes => return None,
            Planned::Replaced(rule) | Planned::Unlimited(rule) => Some(*rule),
            Planned::Allowed(rule, _) => *rule,
            Planned::Limited(limited) => limited.rule,
        };
        id.map(|id| self.rule(id))
    }

    pub(super) fn rule_of_limits(self, limited: &Limited) -> Option<&'a Rule> {
        limited.rule.map(|id| self.rule(id))
    }

    /// True for a quota, by its rule or `QUOTA_MODE`. A block is not one: it rejects the request even if other quotas have
    /// hits left.
    pub(super) fn is_quota(self, planned: &Planned) -> bool {
        let quota_mode = self.policy.quota_mode;
        match planned {
            Planned::Closes => false,
            Planned::Limited(limited) => {
                !limited.is_blocked()
                    && (quota_mode || self.rule_of_limits(limited).is_some_and(|rule| rule.quota_mode))
            }
            _ => quota_mode,
        }
    }

    /// True if the rule or its override never rejects a request.
    pub(super) fn is_shadow(self, limited: &Limited) -> bool {
        match limited.overridden.as_ref().map(|found| found.action) {
            Some(Action::Block) => false,
            Some(Action::Shadow) => true,
            // A switch that allows leaves only blocks.
            _ if self.replacements.switch.is_some() => true,
            _ => self.rule_of_limits(limited).is_some_and(|rule| rule.shadow_mode),
        }
    }
}

/// Plans each descriptor of a request, and fills the batch with its checks.
pub(super) fn plan(
    request: &Request<'_>,
    domain: Option<&Domain>,
    scope: Scope<'_>,
    PlannedRequest { plan, batch }: &mut PlannedRequest,
    context: &Context<'_>,
) {
    let Some(domain) = domain else {
        plan.extend(request.descriptors.iter().map(|_| Planned::NoLimit));
        return;
    };
    if context.names {
        // One allocation for the keys of most requests.
        batch.keys().reserve((request.descriptors.len() + 1) * 64);
    }
    let planner = Planner { request, domain, scope, context };
    let replaced = planner.replaced(batch.keys());
    plan.extend((0..request.descriptors.len()).map(|index| planner.descriptor(index, &replaced, batch)));
    if scope.policy.shadow_mode && batch.may_hold() {
        // Every request passes, so it holds. Without holds it counts as if it were refused, as in the Go service.
        batch.refuse_nothing();
    } else if batch.counting == Counting::StopWhenOver || batch.may_hold() {
        add_free_candidates(request, scope, plan, batch);
    }
}

struct Planner<'p, 'm> {
    request: &'p Request<'m>,
    domain: &'p Domain,
    scope: Scope<'p>,
    context: &'p Context<'p>,
}

impl<'p> Planner<'p, '_> {
    fn find(&self, index: usize, scratch: &mut String) -> RuleMatch<'p> {
        let replacement = self.scope.replacements.get(index);
        // A limit of the request has no rule.
        let has_rule = replacement.is_none_or(|replacement| replacement.by != By::Request);
        let matched = if has_rule { self.domain.find(self.request.entries(index), scratch) } else { None };
        RuleMatch { matched, replacement }
    }

    /// The names of limits that rules of the request replace: known before any descriptor is planned.
    fn replaced(&self, scratch: &mut String) -> SmallVec<[&'p str; 4]> {
        let mut replaced = SmallVec::new();
        if self.domain.has_replaces {
            for index in 0..self.request.descriptors.len() {
                let rule = self.find(index, scratch).rule_in_force();
                replaced.extend(rule.into_iter().flat_map(|rule| rule.replaces.iter().map(|name| &**name)));
            }
        }
        replaced
    }

    fn descriptor(&self, index: usize, replaced: &[&str], batch: &mut Batch) -> Planned {
        if self.context.closes && holds::closes(self.request.descriptor(index)) {
            return Planned::Closes;
        }
        let rule_match = self.find(index, batch.keys());
        let overridden = rule_match.overridden();
        if let Some(found @ Found { action: Action::Allow, .. }) = overridden {
            return Planned::Allowed(rule_match.id(), found.clone());
        }
        let is_blocked = overridden.is_some_and(|found| found.action == Action::Block);
        let Some(limits) = rule_match.limits() else {
            return rule_match.id().map_or(Planned::NoLimit, Planned::Unlimited);
        };
        if let Some(switch @ Found { action: Action::Allow, .. }) = &self.scope.replacements.switch
            && !is_blocked
        {
            return Planned::Allowed(rule_match.id(), switch.clone());
        }
        let may_be_replaced = !replaced.is_empty() && !is_blocked;
        let is_replaced = |limit: &&Limit| {
            may_be_replaced && limit.name.as_deref().is_some_and(|name| replaced.contains(&name))
        };
        if may_be_replaced && limits.iter().all(|limit| is_replaced(&limit)) {
            return rule_match.id().map_or(Planned::NoLimit, Planned::Replaced);
        }
        let limits = limits.iter().enumerate().filter(|(_, limit)| !is_replaced(limit));
        let limits = limits.map(|(index, limit)| (index, limit.at(self.scope.now)));
        Planned::Limited(self.limited(index, &rule_match, limits, batch))
    }

    fn limited<'r>(
        &self,
        index: usize,
        rule_match: &RuleMatch<'r>,
        limits: impl Iterator<Item = (usize, &'r Limit)>,
        batch: &mut Batch,
    ) -> Limited {
        let Self { request, scope, .. } = *self;
        let hits = hits_of(request, index, rule_match.limits().map(Limits::first));
        let stats = stats_handle(request, index, rule_match, scope, hits, batch.keys(), self.context.stats);
        let overridden = rule_match.overridden().cloned();
        let has_metadata = rule_match.matched.as_ref().is_some_and(|matched| matched.metadata().is_some());
        let of = match rule_match.id().filter(|_| rule_match.replaced().is_none()) {
            Some(id) => LimitsOf::Rule(id),
            None => LimitsOf::Replacement(index),
        };
        let (checks, rule) = (SmallVec::new(), rule_match.id());
        let mut limited = Limited { limits: checks, of, hits, stats, rule, overridden, has_metadata };
        if limited.is_blocked() {
            limited.limits.extend(limits.take(1).map(|(index, _)| LimitCheck { index, check: None }));
            return limited;
        }
        let first = batch.checks().len();
        let fit = fit(request, index, scope, &limited);
        // A loop: to collect would make a single limit, the usual case, cost as much as several.
        limits.for_each(|(at, limit)| {
            let check = self.check(index, rule_match, &limited, limit, batch);
            batch.set_fit(check, fit);
            limited.limits.push(LimitCheck { index: at, check: Some(check) });
        });
        if rule_match.limits().is_some_and(Limits::are_several) {
            batch.group(first);
        }
        limited
    }

    /// Adds the check of a limit to the batch, and returns its index.
    #[inline]
    fn check(
        &self,
        index: usize,
        rule_match: &RuleMatch<'_>,
        limited: &Limited,
        limit: &Limit,
        batch: &mut Batch,
    ) -> usize {
        let Self { request, scope, context, .. } = *self;
        let key = CounterKey {
            prefix: &scope.policy.key_prefix,
            domain: request.domain,
            entries: request.entries(index),
            matched: rule_match.matched.as_ref(),
            own_levels: rule_match.own_levels(),
            limit,
        };
        let start = batch.keys().len();
        let mut end = start;
        if context.names {
            end = key.write(scope.now, batch.keys());
            // Callers choose the descriptors that an override by entry meets, so their counters have full keys everywhere.
            let by_entry = limited.overridden.as_ref().filter(|found| found.by.is_some());
            if scope.policy.full_keys || by_entry.is_some_and(Found::is_limit) {
                end = batch.keys().len();
            }
        }
        let hits = if limit.holds { hits_of(request, index, Some(limit)) } else { limited.hits };
        // All limits of a domain that have no rule count as one rule.
        let rule_hash = rule_match.rule().map_or_else(|| Rule::hash_of(request.domain), |rule| rule.hash);
        let check = batch.push(key.ids(scope.now), start..end, limit, rule_hash, hits);
        if limit.hold.is_some() {
            let name = rule_match.rule().map_or(request.domain, |rule| &rule.full_key);
            if let Some(hold) = holds::hold_of(limit, hits, name) {
                batch.hold(check, hold);
            }
        }
        check
    }
}

/// Adds the quotas that cannot be exhausted, beside which the others do not refuse the request.
fn add_free_candidates(request: &Request<'_>, scope: Scope<'_>, plan: &Plan, batch: &mut Batch) {
    for (index, planned) in plan.iter().enumerate() {
        let is_free = match planned {
            // No candidates, as in the Go service.
            Planned::Unlimited(_) | Planned::Allowed(..) => false,
            Planned::Limited(limited) => scope.is_shadow(limited),
            Planned::NoLimit | Planned::Closes | Planned::Replaced(_) => true,
        };
        if is_free && scope.is_quota(planned) {
            batch.free.add(candidate(request, index, scope.policy), false);
        }
    }
}

/// The candidate of a quota: its descriptor, or its group of descriptors.
fn candidate(request: &Request<'_>, index: usize, policy: &Policy) -> Fit {
    let first = if policy.quota_groups { quota_groups::first_of_group(request, index) } else { index };
    Fit::May(u16::try_from(first).unwrap_or(u16::MAX))
}

pub(super) struct Context<'a> {
    pub(super) stats: &'a Stats,
    /// The request settles or ends holds.
    pub(super) closes: bool,
    /// The keys of counters are written, as shared stores need them.
    pub(super) names: bool,
}

/// The rule that a descriptor matches, and the replacement of the rule's limits.
struct RuleMatch<'r> {
    matched: Option<Matched<'r>>,
    replacement: Option<&'r Replacement>,
}

impl<'r> RuleMatch<'r> {
    fn limits(&self) -> Option<&'r Limits> {
        self.replaced().or_else(|| self.rule_in_force()?.limits())
    }

    /// A rule for overrides alone is in force for descriptors that have one.
    fn rule_in_force(&self) -> Option<&'r Rule> {
        self.rule().filter(|rule| !rule.overrides_only || self.overridden().is_some())
    }

    fn replaced(&self) -> Option<&'r Limits> {
        self.replacement.and_then(|replacement| replacement.limits.as_ref())
    }

    fn overridden(&self) -> Option<&'r Found> {
        self.replacement?.operator()
    }

    fn rule(&self) -> Option<&'r Rule> {
        self.matched.as_ref().map(|matched| matched.rule)
    }

    fn id(&self) -> Option<RuleId> {
        self.rule().map(|rule| rule.id)
    }

    /// A bit for each level whose value is in the counter's key although the rule's counter is shared by its values: an
    /// override for one value has its own counter.
    fn own_levels(&self) -> u32 {
        match self.overridden() {
            Some(Found { action: Action::Limit { .. }, exact_levels, .. }) => *exact_levels,
            _ => 0,
        }
    }
}

/// The hits of a descriptor: of a limit that holds, the estimate.
fn hits_of(request: &Request<'_>, index: usize, limit: Option<&Limit>) -> Hits {
    let descriptor = request.descriptor(index);
    let hits = request.hits(descriptor);
    match limit.and_then(|limit| Some((limit, limit.hold.as_ref()?))) {
        Some((limit, hold)) if matches!(hits, Hits::Take(_)) => {
            let is_concurrency = limit.algorithm.kind() == Kind::Concurrency;
            Hits::Take(request.estimate(descriptor, hold, is_concurrency))
        }
        _ => hits,
    }
}

/// What it means for the request that the limits of a descriptor are over, as `conclude` decides it.
fn fit(request: &Request<'_>, index: usize, scope: Scope<'_>, limited: &Limited) -> Fit {
    if scope.is_shadow(limited) {
        Fit::Always
    } else if scope.policy.quota_mode || scope.rule_of_limits(limited).is_some_and(|rule| rule.quota_mode) {
        candidate(request, index, scope.policy)
    } else {
        Fit::Must
    }
}

/// The statistics that count this descriptor, with its hits added or refunded. `scratch` is working memory.
#[expect(clippy::expect_used, reason = "`scratch` only grows until it is truncated")]
fn stats_handle(
    request: &Request<'_>,
    index: usize,
    rule_match: &RuleMatch<'_>,
    scope: Scope<'_>,
    hits: Hits,
    scratch: &mut String,
    stats: &Stats,
) -> Handle {
    let entries = request.entries(index);
    let start = scratch.len();
    match &rule_match.matched {
        Some(matched) if matched.is_as_written() => {
            if let Some(attached) = scope.served.attached.stats(matched.rule.id) {
                count_hits(attached, hits);
                return Handle::Attached(matched.rule.id);
            }
            scratch.push_str(&matched.rule.full_key);
        }
        Some(matched) => matched.write_metric_key(request.domain, entries, scratch),
        None => {
            // There may be a million overrides, so their values are not part of the name. Those of a request's limit
            // are, as in the Go service, while they have room.
            if rule_match.overridden().is_none() {
                write_name(request.domain, entries, true, scratch);
                let name = scratch.get(start..).expect("the name was appended");
                let found = stats.of_override(request.domain, name, scope.now);
                scratch.truncate(start);
                if let Some(found) = found {
                    count_hits(&found, hits);
                    return Handle::LookedUp(found);
                }
            }
            write_name(request.domain, entries, false, scratch);
        }
    }
    let name = scratch.get(start..).expect("the name was appended");
    let found = stats.dynamic(request.domain, name, scope.now);
    scratch.truncate(start);
    count_hits(&found, hits);
    Handle::LookedUp(found)
}

/// Appends the metric name of a limit without a rule.
fn write_name(domain: &str, entries: &[Entry<'_>], has_values: bool, into: &mut String) {
    into.push_str(domain);
    for entry in entries {
        into.push('.');
        into.push_str(entry.key);
        if has_values && !entry.value.is_empty() {
            into.push('_');
            into.push_str(entry.value);
        }
    }
}

fn count_hits(stats: &RuleStats, hits: Hits) {
    match hits {
        Hits::Take(hits) => stats.add(RuleCounter::TotalHits, hits),
        Hits::Refund(hits) => stats.add(RuleCounter::TotalNegativeHits, hits),
    }
}
