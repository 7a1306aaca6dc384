//! Replacements of the rules' limits: an operator's override, or the limit of a request.
//!
//! Looked up before the request is planned. A request without either costs one branch.

use std::num::NonZeroU32;

use super::{
    Policy,
    request::{LimitOverride, Request, RequestError},
};
use clock::Time;
use limit::{HoldRule, Kind, Limit, Limits, Unit};
use overrides::{Action, Found, Index};
use rules::{Rule, model::Domain};

/// The replacements of a request's limits.
#[derive(Default)]
pub(super) struct Replacements {
    /// That of each descriptor by its index; empty without any.
    pub(super) all: Vec<Option<Replacement>>,
    /// The switch of the domain, which allows or shadows all descriptors that no override blocks.
    pub(super) switch: Option<Found>,
}

impl Replacements {
    pub(super) fn get(&self, index: usize) -> Option<&Replacement> {
        self.all.get(index)?.as_ref()
    }
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct Replacement {
    pub(super) by: By,
    pub(super) limits: Option<Limits>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum By {
    Request,
    /// An operator's override, which takes precedence.
    Operator(Found),
}

impl Replacement {
    pub(super) fn operator(&self) -> Option<&Found> {
        match &self.by {
            By::Operator(found) => Some(found),
            By::Request => None,
        }
    }
}

#[expect(clippy::indexing_slicing, reason = "resized to the number of descriptors")]
pub(super) fn of(
    request: &Request<'_>,
    domain: Option<&Domain>,
    (overrides, policy): (&Index, &Policy),
    now: Time,
) -> Result<Replacements, RequestError> {
    let mut replacements = Replacements::default();
    let view = overrides.view(now);
    if view.is_none() && request.descriptors.iter().all(|descriptor| descriptor.limit.is_none()) {
        return Ok(replacements);
    }
    let Some(domain) = domain else { return Ok(replacements) };
    replacements.switch = view.as_ref().and_then(|view| view.switch(&domain.name));
    let all = &mut replacements.all;
    let mut scratch = String::new();
    for (index, descriptor) in request.descriptors.iter().enumerate() {
        let matched = || domain.find(&descriptor.entries, &mut scratch);
        let found = view.as_ref().and_then(|view| view.find(&domain.name, &descriptor.entries, matched));
        let of_request = descriptor.limit.map(|limit| of_request(limit, index, policy)).transpose()?;
        if found.is_none() && of_request.is_none() {
            continue;
        }
        let of_operator = found.map(|found| {
            let rule = domain.find(&descriptor.entries, &mut scratch).map(|matched| matched.rule);
            Replacement { limits: limits(&found, rule, policy), by: By::Operator(found) }
        });
        all.resize_with(request.descriptors.len(), || None);
        all[index] = of_operator.or(of_request);
    }
    Ok(replacements)
}

fn of_request(limit: LimitOverride, descriptor: usize, policy: &Policy) -> Result<Replacement, RequestError> {
    let unknown = RequestError::OverrideUnit { descriptor, unit: limit.unit };
    let unit = Unit::from_number(limit.unit).ok_or(unknown)?;
    let units = limit.unit_multiplier.unwrap_or(1);
    let with_units = |units| Limit::new(limit.requests_per_unit.into(), unit, units, Kind::FixedWindow, None);
    let limit = NonZeroU32::new(units).and_then(with_units);
    let limit = limit.ok_or(RequestError::OverrideUnits { descriptor, units })?;
    let limit = limit.with_calendar_months(policy.calendar_months).counted(policy.counting);
    Ok(Replacement { by: By::Request, limits: Some(limit.into()) })
}

/// The limits of an override. A new limit has the algorithm and the name of the rule's, and the calendar of its limit per
/// the same unit; one with a calendar is a fixed window. That of an override by entry has counters of its own.
#[expect(clippy::expect_used, reason = "only a multiple of a unit can be too long")]
fn limits(found: &Found, rule: Option<&Rule>, policy: &Policy) -> Option<Limits> {
    let of_rule = rule.and_then(Rule::limits).map(Limits::first);
    let (requests_per_unit, unit, calendar) = match found.action {
        Action::Limit { requests_per_unit, unit, calendar } => (requests_per_unit, unit, calendar),
        // The limit in the response, if the rule has none.
        Action::Block if of_rule.is_none() => return Some(Limit::plain(0, Unit::Second).into()),
        Action::Block | Action::Allow | Action::Shadow => return None,
    };
    // The rules may have changed since the override was set, and one by entry meets several rules.
    let of_rule_kind = of_rule.map(|limit| limit.algorithm.kind()).unwrap_or_default();
    let mut kinds = [of_rule_kind, Kind::SlidingWindow].into_iter();
    let kind = kinds.find(|kind| requests_per_unit <= kind.most()).unwrap_or_default();
    let mut of_unit =
        rule.and_then(Rule::limits).into_iter().flat_map(Limits::iter).filter(|limit| limit.unit == unit);
    // A limit of requests under way has no window.
    if let (Kind::Concurrency, Some(hold)) = (kind, of_rule.and_then(|limit| limit.hold.as_ref())) {
        let limit = Limit::concurrency(requests_per_unit, HoldRule::clone(hold));
        let limit = limit.named(of_rule.and_then(|limit| limit.name.clone()));
        return Some(if found.by.is_some() { limit.apart() } else { limit }.into());
    }
    let calendar = calendar.or_else(|| of_unit.find_map(|limit| limit.calendar));
    let of_length = || Limit::new(requests_per_unit, unit, NonZeroU32::MIN, kind, None);
    let limit = calendar.map(|calendar| Limit::of_calendar(requests_per_unit, calendar)).or_else(of_length);
    let limit = limit.expect("a window of one unit is not too long");
    let counting = of_rule.map(|limit| limit.counting).unwrap_or_default();
    let limit = limit.with_calendar_months(policy.calendar_months).counted(counting);
    let limit = limit.holding(of_rule.and_then(|limit| limit.hold.clone()));
    let limit = limit.named(of_rule.and_then(|limit| limit.name.clone()));
    Some(if found.by.is_some() { limit.apart() } else { limit }.into())
}
