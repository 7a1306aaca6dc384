//! What limits each descriptor of a request: the rule that it matches, and an operator's override or the request's own
//! limit in place of the rule's.
//!
//! Found once, before anything is planned.

use std::num::NonZeroU32;

use smallvec::SmallVec;

use super::{
    Policy,
    request::{LimitOverride, Request, RequestError},
};
use clock::Time;
use limit::{HoldRule, Kind, Limit, Limits, Unit};
use overrides::{Action, Found, Index};
use rules::{Matched, Rule, RuleId, model::Domain};

#[derive(Default)]
pub(super) struct Matches<'r> {
    /// In the order of the descriptors; empty for a domain without rules.
    pub(super) all: SmallVec<[Match<'r>; 1]>,
    /// The switch of the domain, which allows or shadows all descriptors that no override blocks.
    pub(super) switch: Option<Found>,
}

pub(super) struct Match<'r> {
    /// `None` also for a limit that comes with the request.
    pub(super) matched: Option<Matched<'r>>,
    pub(super) replacement: Option<Box<Replacement>>,
    /// No rule matches, and the rules say so.
    pub(super) is_exempt: bool,
}

pub(super) struct Replacement {
    /// The operator's override, which takes precedence over the request's limit.
    overridden: Option<Found>,
    /// In place of the rule's.
    limits: Option<Limits>,
}

impl<'r> Matches<'r> {
    #[inline]
    pub(super) fn of(
        request: &Request<'_>,
        domain: Option<&'r Domain>,
        overrides: &Index,
        policy: &Policy,
        scratch: &mut String,
        now: Time,
    ) -> Result<Self, RequestError> {
        let mut matches = Self::default();
        let Some(domain) = domain else { return Ok(matches) };
        let view = overrides.view(now);
        matches.switch = view.as_ref().and_then(|view| view.switch(&domain.name));
        matches.all.reserve_exact(request.descriptors.len());
        for (index, descriptor) in request.descriptors.iter().enumerate() {
            let mut matched = domain.find(&descriptor.entries, scratch);
            let found =
                view.as_ref().and_then(|view| view.find(&domain.name, &descriptor.entries, matched.as_ref()));
            let of_request = descriptor.limit.map(|limit| of_request(limit, index, policy)).transpose()?;
            let replacement = match (found, of_request) {
                (Some(found), _) => {
                    let rule = matched.as_ref().map(|matched| matched.rule);
                    let limits = limits_under(&found, rule, policy.calendar_months, now);
                    Some(Box::new(Replacement { overridden: Some(found), limits }))
                }
                (None, Some(limit)) => {
                    let limit = continued(limit, matched.take().map(|matched| matched.rule));
                    Some(Box::new(Replacement { overridden: None, limits: Some(limit.into()) }))
                }
                (None, None) => None,
            };
            let is_unknown = matched.is_none() && replacement.is_none();
            let is_exempt = is_unknown && domain.exempts(&descriptor.entries, scratch);
            matches.all.push(Match { matched, replacement, is_exempt });
        }
        Ok(matches)
    }
}

impl<'r> Match<'r> {
    pub(super) fn limits(&self) -> Option<&Limits> {
        self.replacing_limits().or_else(|| self.rule_in_force()?.limits())
    }

    /// A rule for overrides alone is in force for descriptors that have one.
    pub(super) fn rule_in_force(&self) -> Option<&'r Rule> {
        self.rule().filter(|rule| !rule.overrides_only || self.overridden().is_some())
    }

    /// Limits of an override or the request, instead of the rule's.
    pub(super) fn replacing_limits(&self) -> Option<&Limits> {
        self.replacement.as_ref()?.limits.as_ref()
    }

    pub(super) fn overridden(&self) -> Option<&Found> {
        self.replacement.as_ref()?.overridden.as_ref()
    }

    pub(super) fn rule(&self) -> Option<&'r Rule> {
        self.matched.as_ref().map(|matched| matched.rule)
    }

    pub(super) fn id(&self) -> Option<RuleId> {
        self.rule().map(|rule| rule.id)
    }

    /// The override that changes this limit.
    pub(super) fn changing(&self, limit: &Limit) -> Option<&Found> {
        self.overridden().filter(|found| found.changes(limit))
    }
}

fn of_request(limit: LimitOverride, descriptor: usize, policy: &Policy) -> Result<Limit, RequestError> {
    let unknown = RequestError::OverrideUnit { descriptor, unit: limit.unit };
    let unit = Unit::from_number(limit.unit).ok_or(unknown)?;
    let units = limit.unit_multiplier.unwrap_or(1);
    let with_units = |units| Limit::new(limit.requests_per_unit.into(), unit, units, Kind::FixedWindow, None);
    let limit = NonZeroU32::new(units).and_then(with_units);
    let limit = limit.ok_or(RequestError::OverrideUnits { descriptor, units })?;
    Ok(limit.with_calendar_months(policy.calendar_months).counted(policy.counting))
}

/// The limits of a descriptor under an override; `None` for those of its rule. A new limit has the algorithm and the name of
/// the one that it replaces, and the calendar of the rule's limit per the same unit; one with a calendar is a fixed window. It
/// continues the counter of the rule's limit that counts in the same way; one by entry has counters of its own. Limits that
/// the override does not change are the rule's, with their counters.
pub fn limits_under(found: &Found, rule: Option<&Rule>, calendar_months: bool, now: Time) -> Option<Limits> {
    let of_rule = rule.and_then(Rule::limits);
    let is_apart = found.is_apart();
    match (found.action, of_rule) {
        // The limit in the response, if the rule has none.
        (Action::Block, None) => Some(Limit::plain(0, Unit::Second).into()),
        (Action::Limit { .. }, _) if found.limit_name.is_none() => {
            let all = of_rule.into_iter().flat_map(Limits::iter);
            let limit = new_limit(found.action, all, calendar_months)?;
            Some(if is_apart { limit.apart() } else { continued(limit, rule) }.into())
        }
        (Action::Limit { .. } | Action::Scale(_), Some(limits)) => Some(limits.map(|limit| {
            let changed = match found.action {
                _ if !found.changes(limit) => None,
                Action::Scale(percent) => Some(limit.at(now).scaled(|requests| percent.of(requests))),
                action => new_limit(action, std::iter::once(limit), calendar_months),
            };
            changed.map_or_else(|| limit.clone(), |changed| changed.in_place_of(limit, is_apart))
        })),
        _ => None,
    }
}

/// The limit of an override in place of `replaced`, with the algorithm and the name of the first of them.
#[expect(clippy::expect_used, reason = "only a multiple of a unit can be too long")]
fn new_limit<'l>(
    action: Action,
    replaced: impl Iterator<Item = &'l Limit> + Clone,
    calendar_months: bool,
) -> Option<Limit> {
    let of_rule = replaced.clone().next();
    let Action::Limit { requests_per_unit, unit, calendar } = action else { return None };
    // The rules may have changed since the override was set, and one by entry meets several rules.
    let of_rule_kind = of_rule.map(|limit| limit.algorithm.kind()).unwrap_or_default();
    let mut kinds = [of_rule_kind, Kind::SlidingWindow].into_iter();
    let kind = kinds.find(|kind| requests_per_unit <= kind.most()).unwrap_or_default();
    let name = of_rule.and_then(|limit| limit.name.clone());
    // A limit of requests under way has no window.
    if let (Kind::Concurrency, Some(hold)) = (kind, of_rule.and_then(|limit| limit.hold.as_ref())) {
        return Some(Limit::concurrency(requests_per_unit, HoldRule::clone(hold)).named(name));
    }
    let of_unit = || replaced.filter(|limit| limit.unit == unit).find_map(|limit| limit.calendar);
    let calendar = calendar.or_else(of_unit);
    let of_length = || Limit::new(requests_per_unit, unit, NonZeroU32::MIN, kind, None);
    let limit = calendar.map(|calendar| Limit::of_calendar(requests_per_unit, calendar)).or_else(of_length);
    let limit = limit.expect("a window of one unit is not too long");
    let counting = of_rule.map(|limit| limit.counting).unwrap_or_default();
    let limit = limit.with_calendar_months(calendar_months).counted(counting);
    Some(limit.holding(of_rule.and_then(|limit| limit.hold.clone())).named(name))
}

/// A limit in place of a rule's.
fn continued(limit: Limit, rule: Option<&Rule>) -> Limit {
    match rule.and_then(Rule::limits) {
        Some(limits) => limits.continued_by(limit),
        None => limit,
    }
}
