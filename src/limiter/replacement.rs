//! What replaces the limits of the rules: an operator's override, or the limit that a request brings along.
//!
//! Found before the request is planned. A request that has neither costs one branch.

use std::num::NonZeroU32;

use super::{
    algorithm::Kind,
    request::{Request, RequestError},
};
use crate::{
    clock::Time,
    overrides::{Action, Found, Index},
    rules::{CountingMode, LONGEST_LOG, Limit, Limits, Rule, Unit, model::Domain},
};

/// What replaces the limits of each descriptor, by its index; empty if nothing does.
pub(super) type Replacements = Vec<Option<Replacement>>;

/// What replaces the limits of one descriptor.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Replacement {
    pub(super) by: By,
    /// The limits in their place; `None` if the rule's stay.
    pub(super) limits: Option<Limits>,
}

/// Who replaces limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    /// The request brings a limit along.
    Request,
    /// An operator has set an override, which comes first.
    Operator(Found),
}

/// What replaces limits of a request's descriptors.
///
/// # Errors
/// When the request brings a limit with an unknown unit.
pub(super) fn of(
    request: &Request<'_>,
    domain: &Domain,
    (overrides, counting): (&Index, CountingMode),
    now: Time,
) -> Result<Replacements, RequestError> {
    let mut all = Replacements::new();
    if overrides.is_empty() && request.descriptors.iter().all(|descriptor| descriptor.limit.is_none()) {
        return Ok(all);
    }
    let mut scratch = String::new();
    for (index, descriptor) in request.descriptors.iter().enumerate() {
        let brought = descriptor.limit.map(|limit| {
            let unit =
                limit.unit().ok_or(RequestError::OverrideUnit { descriptor: index, unit: limit.unit })?;
            let limits = Some(Limit::plain(limit.requests_per_unit, unit).counted(counting).into());
            Ok(Replacement { by: By::Request, limits })
        });
        let brought = brought.transpose()?;
        let matched = || domain.find(&descriptor.entries, &mut scratch);
        let found = overrides.find(&domain.name, &descriptor.entries, matched, now);
        let steered = found.map(|found| {
            let rule = domain.find(&descriptor.entries, &mut scratch).map(|matched| matched.rule);
            Replacement { by: By::Operator(found), limits: limits(found.action, rule) }
        });
        if let Some(replacement) = steered.or(brought) {
            all.resize_with(request.descriptors.len(), || None);
            if let Some(slot) = all.get_mut(index) {
                *slot = Some(replacement);
            }
        }
    }
    Ok(all)
}

/// The limits in place of the rule's.
fn limits(action: Action, rule: Option<&Rule>) -> Option<Limits> {
    let of_rule = rule.and_then(Rule::limits);
    match action {
        Action::Limit { requests_per_unit, unit } => {
            Some(limit(requests_per_unit, unit, of_rule.map(Limits::first)).into())
        }
        // A response shows a limit; without one of a rule it is 0.
        Action::Block if of_rule.is_none() => Some(Limit::plain(0, Unit::Second).into()),
        Action::Block | Action::Allow | Action::Shadow => None,
    }
}

/// A limit that is counted as the rule's, and has its name.
fn limit(requests_per_unit: u32, unit: Unit, of_rule: Option<&Limit>) -> Limit {
    let kind = match of_rule.map(|limit| limit.algorithm.kind()) {
        Some(Kind::SlidingLog) if requests_per_unit > LONGEST_LOG => Kind::SlidingWindow,
        kind => kind.unwrap_or_default(),
    };
    let limit = Limit::new(requests_per_unit, unit, NonZeroU32::MIN, kind, None);
    let limit = limit.unwrap_or_else(|| Limit::plain(requests_per_unit, unit));
    let counting = of_rule.map(|limit| limit.counting).unwrap_or_default();
    limit.counted(counting).named(of_rule.and_then(|limit| limit.name.clone()))
}
