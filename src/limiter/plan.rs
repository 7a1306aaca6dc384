//! What a request asks of the counters: which rule each descriptor meets, and the checks that follow.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    Policy, RequestError, Served,
    counter_key::CounterKey,
    request::{Descriptor, Request},
};
use crate::{
    clock::Time,
    limiter::algorithm::{Hits, Verdict},
    rules::{Limit, Limits, Matched, Metadata, Rule, model::Domain},
    store::Batch,
    telemetry::metrics::{RuleCounter, RuleStats, Stats},
};

/// What is planned for each descriptor, in the request's order.
pub(super) type Plan<'r> = SmallVec<[Planned<'r>; 4]>;

/// What is planned for one descriptor.
pub(super) enum Planned<'r> {
    /// No rule is met.
    NoLimit,
    /// Every limit of the rule is replaced by that of another one.
    Replaced(&'r Rule),
    /// A rule lifts every limit.
    Unlimited(&'r Rule),
    /// Counters are asked.
    Limited(Limited<'r>),
}

/// A descriptor's limits, each held against a counter of its own.
pub(super) struct Limited<'r> {
    /// One at least.
    pub(super) limits: SmallVec<[LimitCheck<'r>; 1]>,
    pub(super) hits: Hits,
    pub(super) stats: Handle<'r>,
    /// The rule; none where the request brought the limit.
    pub(super) rule: Option<&'r Rule>,
    pub(super) metadata: Option<&'r Arc<Metadata>>,
}

impl Planned<'_> {
    /// True when it counts among the request's quotas by its rule.
    pub(super) fn is_quota(&self) -> bool {
        matches!(self, Self::Limited(limited) if limited.rule.is_some_and(|rule| rule.quota_mode))
    }
}

impl Limited<'_> {
    /// True when it never refuses.
    pub(super) fn is_shadow(&self) -> bool {
        self.rule.is_some_and(|rule| rule.shadow_mode)
    }
}

/// One limit that is held against one counter.
pub(super) struct LimitCheck<'r> {
    pub(super) limit: &'r Limit,
    pub(super) asked: CounterSource,
}

/// Where the outcome comes from.
#[derive(Clone, Copy)]
pub(super) enum CounterSource {
    /// From the check at this place of the batch.
    Store(usize),
    /// The counter is known to refuse these hits for some time.
    KnownOver(Verdict),
    /// The counters are lost: by policy this one is supposed to be over its limit, or untouched. Or another
    /// limit of the rule is known to refuse, so that this one does not matter.
    Nobody { over: bool },
}

/// A rule's statistics: ready made, or looked up by a name that this request makes.
pub(super) enum Handle<'r> {
    Ready(&'r RuleStats),
    LookedUp(Arc<RuleStats>),
}

/// Limits that the descriptors bring along, each at its descriptor's place.
pub(super) type Overrides = Vec<Option<Limits>>;

/// The limits that a request brings along; nothing where it brings none.
pub(super) fn brought(request: &Request<'_>) -> Result<Overrides, RequestError> {
    if request.descriptors.iter().all(|descriptor| descriptor.limit.is_none()) {
        return Ok(Overrides::new());
    }
    let limits = request.descriptors.iter().enumerate().map(|(at, descriptor)| {
        let Some(limit) = descriptor.limit else { return Ok(None) };
        let unit = limit.unit().ok_or(RequestError::OverrideUnit { descriptor: at, unit: limit.unit })?;
        Ok(Some(Limit::plain(limit.requests_per_unit, unit).into()))
    });
    limits.collect()
}

/// Plans a request whose domain is loaded, and fills the batch with its checks.
pub(super) fn plan<'r>(
    request: &'r Request<'_>,
    domain: &'r Domain,
    brought: &'r Overrides,
    served: &'r Served,
    batch: &mut Batch<'r>,
    context: &Context<'_>,
) -> Plan<'r> {
    let met = |at: usize, descriptor: &Descriptor<'_>, scratch: &mut String| match brought.get(at) {
        Some(Some(limits)) => Met::Overrides(limits),
        _ => domain.find(&descriptor.entries, scratch).map_or(Met::Nothing, Met::Rule),
    };
    // Where rules replace others, all are met once before any is planned.
    let mut replaced: SmallVec<[&str; 4]> = SmallVec::new();
    if domain.has_replaces {
        for (at, descriptor) in request.descriptors.iter().enumerate() {
            replaced.extend(met(at, descriptor, batch.keys()).replaces().iter().map(|name| &**name));
        }
    }
    let planned = |(at, descriptor)| {
        let met = met(at, descriptor, batch.keys());
        let Some(limits) = met.limits() else {
            return met.rule().map_or(Planned::NoLimit, Planned::Unlimited);
        };
        let is_replaced = |limit: &&Limit| limit.name.as_deref().is_some_and(|name| replaced.contains(&name));
        if limits.iter().all(|limit| is_replaced(&limit)) {
            return met.rule().map_or(Planned::NoLimit, Planned::Replaced);
        }
        let limits = limits.iter().filter(|limit| !is_replaced(limit));
        Planned::Limited(checks(request, descriptor, &met, limits, served, batch, context))
    };
    request.descriptors.iter().enumerate().map(planned).collect()
}

/// What planning needs beside the request and the rules.
pub(super) struct Context<'a> {
    pub(super) policy: &'a Policy,
    pub(super) stats: &'a Stats,
    pub(super) now: Time,
}

/// What a descriptor meets.
enum Met<'r> {
    Nothing,
    Rule(Matched<'r>),
    Overrides(&'r Limits),
}

impl<'r> Met<'r> {
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

    fn replaces(&self) -> &'r [Box<str>] {
        match self {
            Self::Rule(matched) => &matched.rule.replaces,
            _ => &[],
        }
    }
}

fn checks<'r>(
    request: &Request<'_>,
    descriptor: &Descriptor<'_>,
    met: &Met<'r>,
    limits: impl Iterator<Item = &'r Limit>,
    served: &'r Served,
    batch: &mut Batch<'r>,
    context: &Context<'_>,
) -> Limited<'r> {
    let hits = request.hits(descriptor);
    let stats = handle(request, descriptor, met, served, batch.keys(), context);
    stats.add(RuleCounter::TotalHits, hits.taken());
    let (first, is_group) = (batch.checks().len(), met.limits().is_some_and(Limits::are_several));
    let held = limits.map(|limit| {
        let start = batch.keys().len();
        let end = counter_key(request, descriptor, met, limit, context).write(context.now, batch.keys());
        let end = if context.policy.full_keys { batch.keys().len() } else { end };
        LimitCheck { limit, asked: CounterSource::Store(batch.push_with_key(start..end, limit, hits)) }
    });
    let limits = held.collect();
    if is_group {
        batch.group(first);
    }
    let metadata = if let Met::Rule(matched) = met { matched.metadata() } else { None };
    Limited { limits, hits, stats, rule: met.rule(), metadata }
}

/// The key of the counter that a limit is held against.
fn counter_key<'a, 'r>(
    request: &'a Request<'_>,
    descriptor: &'a Descriptor<'_>,
    met: &'a Met<'r>,
    limit: &'a Limit,
    context: &Context<'a>,
) -> CounterKey<'a, 'r> {
    let matched = if let Met::Rule(matched) = met { Some(matched) } else { None };
    CounterKey {
        prefix: &context.policy.key_prefix,
        domain: request.domain,
        entries: &descriptor.entries,
        matched,
        limit,
    }
}

/// The statistics under which this request counts. `scratch` lends its space.
fn handle<'r>(
    request: &Request<'_>,
    descriptor: &Descriptor<'_>,
    met: &Met<'r>,
    served: &'r Served,
    scratch: &mut String,
    context: &Context<'_>,
) -> Handle<'r> {
    let entries = &descriptor.entries;
    let start = scratch.len();
    match met {
        Met::Rule(matched) if matched.is_as_written() => {
            if let Some(ready) = served.attached.rules.get(matched.rule.id.0 as usize) {
                return Handle::Ready(ready);
            }
            scratch.push_str(&matched.rule.full_key);
        }
        Met::Rule(matched) => matched.write_metric_key(request.domain, entries, scratch),
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
    let name = scratch.get(start..).unwrap_or_default();
    let found = context.stats.dynamic(request.domain, name, context.now);
    scratch.truncate(start);
    Handle::LookedUp(found)
}

impl std::ops::Deref for Handle<'_> {
    type Target = RuleStats;

    fn deref(&self) -> &RuleStats {
        match self {
            Self::Ready(stats) => stats,
            Self::LookedUp(stats) => stats,
        }
    }
}
