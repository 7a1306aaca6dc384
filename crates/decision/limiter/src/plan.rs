//! The plan of a request: the rule that each descriptor matches, and its counter checks.
//!
//! [`plan`] fills the batch for the store; `conclude` reads the plan once the outcomes are set.

use std::{ops::Deref, sync::Arc};

use smallvec::SmallVec;

use super::{
    Policy, Served,
    counter_key::CounterKey,
    holds,
    matches::{Match, Matches},
    quota_groups,
    request::{Ask, Entry, Request},
};
use clock::Time;
use counters::{Batch, Counting, HoldAccount};
use limit::{Fit, Hits, Kind, Limit, Limits, Verdict};
use metrics::{RuleCounter, RuleStats, Stats};
use overrides::{Action, Found};
use rules::{Rule, RuleId};

/// The plan of each descriptor, in the request's order. It owns what it needs, so that a decision can wait for its
/// store. Room for one without an allocation: requests that wait are many.
pub(super) type Plan = SmallVec<[Planned; 1]>;

pub(super) enum Planned {
    NoLimit,
    /// The rules have the descriptor, and no limit for it.
    Exempt,
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

impl Planned {
    pub(super) fn limited(&self) -> Option<&Limited> {
        match self {
            Self::Limited(limited) => Some(limited),
            _ => None,
        }
    }
}

/// A descriptor's limits, each with its own counter.
pub(super) struct Limited {
    /// At least one.
    pub(super) limits: SmallVec<[LimitCheck; 1]>,
    /// Limits of an override or the request, instead of the rule's.
    replacing: Option<Box<Limits>>,
    pub(super) hits: Hits,
    pub(super) stats: Handle,
    /// The rule; `None` for limits without one.
    pub(super) rule: Option<RuleId>,
    pub(super) overridden: Option<Found>,
    /// The switch of its domain that shadows it.
    pub(super) switch: Option<Box<Found>>,
    /// Never rejects a request.
    pub(super) is_shadow: bool,
    /// Of a quota, by the rule or `QUOTA_MODE`: one of several, of which one must have hits left. A block is none: it rejects
    /// the request.
    candidate: Option<Fit>,
    /// The response has the rule's metadata.
    pub(super) has_metadata: bool,
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

    fn is_refund(&self) -> bool {
        matches!(self.hits, Hits::Refund(_))
    }

    /// The verdict of the override that blocks the descriptor until it expires or is removed.
    pub(super) fn blocked(&self) -> Verdict {
        let left = self.overridden.as_ref().and_then(|found| found.left);
        Verdict { admitted: false, reset: left.unwrap_or_default(), retry_after: left, ..Verdict::default() }
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
    pub(super) policy: &'a Policy,
    /// The time of the whole decision.
    pub(super) now: Time,
    pub(super) ask: Ask,
}

impl<'a> Scope<'a> {
    /// True if the request is refused when a limit of the descriptor is over.
    pub(super) fn refuses(self, limited: &Limited) -> bool {
        !limited.is_shadow && self.ask != Ask::Report
    }

    pub(super) fn rule(self, id: RuleId) -> &'a Rule {
        self.served.rules.rule(id)
    }

    /// The limit of a check as it is written. [`Limit::at`] is the one in force.
    #[expect(clippy::expect_used, reason = "a plan refers to limits that exist in its scope")]
    pub(super) fn limit(self, limited: &'a Limited, check: &LimitCheck) -> &'a Limit {
        self.limits(limited)
            .and_then(|limits| limits.get(check.index))
            .expect("a check is of a limit of its plan")
    }

    /// The limits of an override or the request, or the rule's.
    pub(super) fn limits(self, limited: &'a Limited) -> Option<&'a Limits> {
        limited.replacing.as_deref().or_else(|| self.rule_of_limits(limited)?.limits())
    }

    #[expect(clippy::expect_used, reason = "only a rule with attached statistics has such a handle")]
    pub(super) fn stats(self, limited: &'a Limited) -> &'a RuleStats {
        match &limited.stats {
            Handle::Attached(id) => self
                .served
                .attached
                .stats(*id)
                .expect("statistics are attached to each rule when rules are published"),
            Handle::LookedUp(stats) => stats,
        }
    }

    pub(super) fn rule_of(self, planned: &Planned) -> Option<&'a Rule> {
        let id = match planned {
            Planned::NoLimit | Planned::Exempt | Planned::Closes => return None,
            Planned::Replaced(rule) | Planned::Unlimited(rule) => Some(*rule),
            Planned::Allowed(rule, _) => *rule,
            Planned::Limited(limited) => limited.rule,
        };
        id.map(|id| self.rule(id))
    }

    pub(super) fn rule_of_limits(self, limited: &Limited) -> Option<&'a Rule> {
        limited.rule.map(|id| self.rule(id))
    }

    pub(super) fn is_quota(self, planned: &Planned) -> bool {
        match planned {
            Planned::Closes => false,
            Planned::Limited(limited) => limited.candidate.is_some(),
            _ => self.policy.quota_mode,
        }
    }

    /// What it means for the request that a descriptor is over.
    pub(super) fn fit(
        self,
        request: &dyn Deref<Target = Request<'_>>,
        index: usize,
        planned: &Planned,
    ) -> Fit {
        match planned {
            Planned::Limited(limited) => limited.candidate.unwrap_or(Fit::Must),
            _ if self.is_quota(planned) => candidate(request, index, self.policy),
            _ => Fit::Must,
        }
    }
}

/// Plans each descriptor of a request, and fills the batch with its checks.
pub(super) fn plan(
    request: &Request<'_>,
    matches: &Matches<'_>,
    scope: Scope<'_>,
    PlannedRequest { plan, batch }: &mut PlannedRequest,
    context: &Context<'_>,
) {
    if matches.all.is_empty() {
        plan.extend(request.descriptors.iter().map(|_| Planned::NoLimit));
        return;
    }
    if context.names {
        // One allocation for the keys of most requests.
        batch.keys().reserve((request.descriptors.len() + 1) * 64);
    }
    // The names of limits that rules of the request replace.
    let rules = matches.all.iter().filter_map(Match::rule_in_force);
    let replaced: SmallVec<[&str; 4]> = rules.flat_map(|rule| &rule.replaces).map(|name| &**name).collect();
    let planner = Planner { request, switch: matches.switch.as_ref(), replaced: &replaced, scope, context };
    for (index, matched) in matches.all.iter().enumerate() {
        plan.push(planner.descriptor(index, matched, batch));
    }
    if batch.may_hold() {
        batch.hold_account = context.hold_account.cloned();
    }
    if scope.policy.shadow_mode && batch.may_hold() {
        // Every request passes, so it holds. Without holds it counts as if it were refused, as in the Go service.
        batch.refuse_nothing();
    } else if batch.counting == Counting::StopWhenOver || batch.may_hold() {
        add_free_candidates(request, scope, plan, batch);
    }
}

struct Planner<'p, 'm> {
    request: &'p Request<'m>,
    switch: Option<&'p Found>,
    replaced: &'p [&'p str],
    scope: Scope<'p>,
    context: &'p Context<'p>,
}

impl Planner<'_, '_> {
    fn descriptor(&self, index: usize, matched: &Match<'_>, batch: &mut Batch) -> Planned {
        if self.context.closes && holds::closes(self.request.descriptor(index)) {
            return Planned::Closes;
        }
        let overridden = matched.overridden();
        if let Some(found) = overridden
            && found.action == Action::Allow
        {
            return Planned::Allowed(matched.id(), found.clone());
        }
        let is_blocked = overridden.is_some_and(|found| found.action == Action::Block);
        let Some(limits) = matched.limits() else {
            if matched.is_exempt {
                return Planned::Exempt;
            }
            return matched.id().map_or(Planned::NoLimit, Planned::Unlimited);
        };
        if let Some(switch) = self.switch
            && switch.action == Action::Allow
            && !is_blocked
        {
            return Planned::Allowed(matched.id(), switch.clone());
        }
        let may_be_replaced = !self.replaced.is_empty() && !is_blocked;
        let is_replaced = |limit: &&Limit| {
            may_be_replaced && limit.name.as_deref().is_some_and(|name| self.replaced.contains(&name))
        };
        if may_be_replaced && limits.iter().all(|limit| is_replaced(&limit)) {
            return matched.id().map_or(Planned::NoLimit, Planned::Replaced);
        }
        let limits = limits.iter().enumerate().filter(|(_, limit)| !is_replaced(limit));
        let limits = limits.map(|(index, limit)| (index, limit.at(self.scope.now)));
        Planned::Limited(self.limited(index, matched, limits, batch))
    }

    fn limited<'l>(
        &self,
        index: usize,
        matched: &Match<'_>,
        limits: impl Iterator<Item = (usize, &'l Limit)>,
        batch: &mut Batch,
    ) -> Limited {
        let Self { request, scope, .. } = *self;
        let rule = matched.rule();
        let action = matched.overridden().map(|found| found.action);
        let is_quota = action != Some(Action::Block)
            && (scope.policy.quota_mode || rule.is_some_and(|rule| rule.quota_mode));
        let mut limited = Limited {
            limits: SmallVec::new(),
            replacing: matched.replacing_limits().map(|limits| Box::new(limits.clone())),
            hits: hits_of(request, index, matched.limits().map(Limits::first)),
            stats: stats_handle(request, index, matched, scope, batch.keys(), self.context.stats),
            rule: matched.id(),
            overridden: matched.overridden().cloned(),
            switch: self.switch.map(|switch| Box::new(switch.clone())),
            is_shadow: match action {
                Some(Action::Block) => false,
                Some(Action::Shadow) => true,
                // A switch that allows leaves only blocks.
                _ => self.switch.is_some() || rule.is_some_and(|rule| rule.shadow_mode),
            },
            candidate: is_quota.then(|| candidate(request, index, scope.policy)),
            has_metadata: matched.matched.as_ref().is_some_and(|matched| matched.metadata().is_some()),
        };
        if limited.is_blocked() {
            limited.limits.extend(limits.take(1).map(|(index, _)| LimitCheck { index, check: None }));
            return limited;
        }
        let first = batch.checks().len();
        let never_refuses = !scope.refuses(&limited) || limited.is_refund();
        let fit = if never_refuses { Fit::Always } else { limited.candidate.unwrap_or(Fit::Must) };
        // A loop: to collect would make a single limit, the usual case, cost as much as several.
        limits.for_each(|(at, limit)| {
            let check = self.check(index, matched, &limited, limit, batch);
            batch.set_fit(check, fit);
            limited.limits.push(LimitCheck { index: at, check: Some(check) });
        });
        if matched.limits().is_some_and(Limits::are_several) && scope.ask != Ask::Report {
            batch.group(first);
        }
        limited
    }

    /// Adds the check of a limit to the batch, and returns its index.
    #[inline]
    fn check(
        &self,
        index: usize,
        matched: &Match<'_>,
        limited: &Limited,
        limit: &Limit,
        batch: &mut Batch,
    ) -> usize {
        let Self { request, scope, context, .. } = *self;
        let changing = matched.changing(limit);
        let key = CounterKey {
            prefix: &scope.policy.key_prefix,
            domain: request.domain,
            entries: request.entries(index),
            matched: matched.matched.as_ref(),
            own_levels: changing.map_or(0, Found::exact_levels),
            limit,
        };
        let start = batch.keys().len();
        let mut end = start;
        if context.names {
            end = key.write(scope.now, batch.keys());
            // Callers choose the descriptors that an override by entry meets, so their counters have full keys everywhere.
            let is_by_entry = changing.is_some_and(Found::is_apart);
            if scope.policy.full_keys || is_by_entry {
                end = batch.keys().len();
            }
        }
        // Statistics and logs have what the request asked for. A report is a cost, and not an estimate.
        let hits = limit.hold.as_ref().map_or(limited.hits, |hold| {
            let asked = hits_of(request, index, Some(limit));
            if scope.ask == Ask::Report { asked } else { hold.cut(asked, limit.requests_per_unit) }
        });
        // All limits of a domain that have no rule count as one rule.
        let rule_hash = matched.rule().map_or_else(|| Rule::hash_of(request.domain), |rule| rule.hash);
        let check = batch.push(key.ids(scope.now), start..end, limit, rule_hash, hits);
        if limit.hold.is_some() {
            let name = matched.rule().map_or(request.domain, |rule| &rule.full_key);
            if let Some(hold) = holds::hold_of(limit, hits, name, scope.ask) {
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
            Planned::Limited(limited) => limited.is_shadow || limited.is_refund(),
            Planned::NoLimit | Planned::Exempt | Planned::Closes | Planned::Replaced(_) => true,
        };
        if is_free && scope.is_quota(planned) {
            batch.free.add(scope.fit(&request, index, planned), false);
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
    /// Hears of holds that are found expired, if anything is counted.
    pub(super) hold_account: Option<&'a HoldAccount>,
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

/// The statistics that count this descriptor. `scratch` is working memory.
#[expect(clippy::expect_used, reason = "`scratch` only grows until it is truncated")]
fn stats_handle(
    request: &Request<'_>,
    index: usize,
    matched: &Match<'_>,
    scope: Scope<'_>,
    scratch: &mut String,
    stats: &Stats,
) -> Handle {
    let entries = request.entries(index);
    let start = scratch.len();
    match &matched.matched {
        Some(matched) if matched.is_as_written() => {
            if scope.served.attached.stats(matched.rule.id).is_some() {
                return Handle::Attached(matched.rule.id);
            }
            scratch.push_str(&matched.rule.full_key);
        }
        Some(matched) => matched.write_metric_key(request.domain, entries, scratch),
        None => {
            // There may be a million overrides, so their values are not part of the name. Those of a request's limit
            // are, as in the Go service, while they have room.
            if matched.overridden().is_none() {
                write_name(request.domain, entries, true, scratch);
                let name = scratch.get(start..).expect("the name was appended");
                let found = stats.of_override(request.domain, name, scope.now);
                scratch.truncate(start);
                if let Some(found) = found {
                    return Handle::LookedUp(found);
                }
            }
            write_name(request.domain, entries, false, scratch);
        }
    }
    let name = scratch.get(start..).expect("the name was appended");
    let found = stats.dynamic(request.domain, name, scope.now);
    scratch.truncate(start);
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

/// Counts the hits of each descriptor in the statistics of its rule, also if the store fails.
pub(super) fn count_hits(plan: &Plan, scope: Scope<'_>) {
    if !scope.ask.counts() {
        return;
    }
    for planned in plan {
        let Planned::Limited(limited) = planned else { continue };
        match limited.hits {
            Hits::Take(hits) => scope.stats(limited).add(RuleCounter::TotalHits, hits),
            Hits::Refund(hits) => scope.stats(limited).add(RuleCounter::TotalNegativeHits, hits),
        }
    }
}
