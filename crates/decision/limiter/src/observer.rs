//! Observers of requests and their decisions: the request log and replays.
//!
//! [`Limiter`](super::Limiter) calls its observers for each request within the bounds. An observer reads; it cannot
//! change a decision.

use super::{
    answer::Code,
    conclude::Conclusion,
    outcome::outcome,
    plan::{Limited, Planned},
    request::Request,
};
use clock::Time;
use counters::HoldId;
use limit::{Hits, Limit};
use rules::Rule;

pub trait Observer: Send + Sync {
    /// A request that will be counted, or that closes holds, in the order of counting within a worker.
    fn requested(&self, _request: &Request<'_>, _holding: Holding<'_>, _now: Time) {}

    /// A request of a domain with rules was decided.
    fn decided(&self, _decision: &Observed<'_, '_>) {}
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holding<'a> {
    Nothing,
    /// It may hold, with this identity unless it is refused without asking the store.
    As(Option<&'a HoldId>),
}

/// A decision, by descriptor.
pub struct Observed<'a, 'm>(pub(super) &'a Conclusion<'a, 'm>);

/// A limit of a descriptor's rule and what it made of the hits.
pub struct ObservedLimit<'a> {
    /// Its index among the limits of the rule.
    pub index: usize,
    pub limit: &'a Limit,
    pub hits: Hits,
    /// The hits exceed this limit.
    pub is_over: bool,
}

pub struct ObservedDescriptor<'a, 'm> {
    pub index: usize,
    pub rule: &'a Rule,
    /// Its status is over limit. The request may pass anyway, because of other quotas or in shadow mode.
    pub is_over: bool,
    /// An override replaces the limits or the action of the rule.
    pub is_overridden: bool,
    limited: Option<&'a Limited>,
    conclusion: &'a Conclusion<'a, 'm>,
}

impl<'a, 'm> Observed<'a, 'm> {
    pub fn request(&self) -> &Request<'m> {
        self.0.request
    }

    pub fn now(&self) -> Time {
        self.0.scope.now
    }

    pub fn is_refused(&self) -> bool {
        self.0.code == Code::OverLimit
    }

    pub fn descriptors(&self) -> impl Iterator<Item = ObservedDescriptor<'a, 'm>> {
        let conclusion = self.0;
        let statuses = conclusion.planned.plan.iter().zip(&conclusion.statuses).enumerate();
        statuses.filter_map(move |(index, (planned, status))| {
            let rule = conclusion.scope.rule_of(planned)?;
            let limited = planned.limited();
            let is_overridden = match planned {
                Planned::Allowed(..) => true,
                _ => limited.is_some_and(|limited| limited.overridden.is_some()),
            };
            let is_over = status.code == Code::OverLimit;
            Some(ObservedDescriptor { index, rule, is_over, is_overridden, limited, conclusion })
        })
    }
}

impl<'a> ObservedDescriptor<'a, '_> {
    /// The limits that its hits were checked against: those of its rule, or of the override.
    pub fn limits(&self) -> impl Iterator<Item = ObservedLimit<'a>> {
        let conclusion = self.conclusion;
        let limited = self.limited.into_iter();
        limited.flat_map(|limited| limited.limits.iter().map(move |check| (limited, check))).map(
            move |(limited, check)| {
                let outcome = outcome(conclusion.scope, limited, check, &conclusion.planned.batch);
                let is_over = self.is_over && outcome.decision.over;
                ObservedLimit { index: check.index, limit: outcome.limit, hits: limited.hits, is_over }
            },
        )
    }
}
