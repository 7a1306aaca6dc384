//! Passes the hits of keys, rejections and lines of the decision log to [`recent`].
//!
//! Called once a request is concluded. `recent` selects the requests, usually few of them.

use super::{
    answer::Code,
    conclude::Conclusion,
    outcome::LimitOutcome,
    plan::{Limited, Planned},
    request::Request,
};
use clock::Time;
use counters::Decider;
use limit::Limits;
use overrides::{Action, Found, Index};
use recent::{
    About, DecidedBy, Decision, HitOutcome, Hits, LimitShown, OverrideShown, Recent, Unmatched, Wanted,
};

/// The maximum number of recorded descriptors of a request. Most requests have one or two.
const MAX_REFUSED: usize = 4;

pub(super) fn observe(recent: &Recent, overrides: &Index, conclusion: &Conclusion<'_, '_>) {
    let is_refused = conclusion.code == Code::OverLimit;
    let wanted = recent.wanted(is_refused, conclusion.has_shadowed, conclusion.scope.now);
    if let Some(weight) = wanted.hits {
        note_hits(recent, conclusion, weight);
    }
    if wanted.refusal.is_some() || wanted.shadowed.is_some() || wanted.line {
        note_decisions(recent, overrides, conclusion, wanted);
    }
}

/// Records the descriptors of a request whose domain has no rules.
pub(super) fn observe_unknown_domain(recent: &Recent, request: &Request<'_>, now: Time) {
    let Some(weight) = recent.wanted(false, false, now).hits else { return };
    for index in 0..request.descriptors.len() {
        recent.note_unmatched(Unmatched::UnknownDomain, request.domain, entries(request, index), weight, now);
    }
}

fn note_hits(recent: &Recent, conclusion: &Conclusion<'_, '_>, weight: u32) {
    let request = conclusion.request;
    let now = conclusion.scope.now;
    for (index, status) in conclusion.statuses.iter().enumerate() {
        if !conclusion.scope.ask.counts() && status.code == Code::Ok {
            continue;
        }
        let (rule, hits) = match conclusion.planned(index) {
            Planned::Limited(limited) => (limited.rule, limited.hits),
            Planned::Allowed(rule, _) => (*rule, request.hits(request.descriptor(index))),
            Planned::NoLimit => {
                let entries = entries(request, index);
                recent.note_unmatched(Unmatched::NoRule, request.domain, entries, weight, now);
                continue;
            }
            Planned::Exempt | Planned::Unlimited(_) | Planned::Replaced(_) | Planned::Closes => continue,
        };
        if hits.taken() > 0 {
            let rule =
                rule.and_then(|rule| conclusion.scope.served.attached.recent(rule)).map(|rule| &**rule);
            let outcome = conclusion.hit_outcome(index, status);
            let hits = Hits { count: hits.taken(), weight, outcome };
            recent.note_hits(rule, request.domain, entries(request, index), hits, now);
        }
    }
}

/// Records the descriptors over their limits; for a line of the decision log, all limited descriptors of an allowed
/// request.
fn note_decisions(recent: &Recent, overrides: &Index, conclusion: &Conclusion<'_, '_>, wanted: Wanted) {
    let code = conclusion.code;
    let now = conclusion.scope.now;
    let decided = conclusion.statuses.iter().enumerate().filter_map(|(index, status)| {
        let is_shadowed = conclusion.hit_outcome(index, status) == HitOutcome::Shadowed;
        let is_logged = wanted.line && status.code == code;
        let is_wanted = is_shadowed || is_logged || code == Code::OverLimit && status.code == code;
        Some((index, conclusion.limited(index).filter(|_| is_wanted)?, is_shadowed))
    });
    for (index, limited, is_shadowed) in decided.take(MAX_REFUSED) {
        let Some(outcome) = conclusion.outcome(index) else { continue };
        let is_blocked = outcome.check.is_none();
        let about = About { is_shadowed, is_blocked };
        // A refused request is logged by what refused it.
        let wanted = Wanted { line: wanted.line && !(is_shadowed && code == Code::OverLimit), ..wanted };
        let rule = limited.rule.and_then(|rule| conclusion.scope.served.attached.recent(rule));
        let domain = conclusion.request.domain;
        let key = [(domain, "")].into_iter().chain(entries(conclusion.request, index));
        recent.note_decision(wanted, about, rule.map(|rule| &**rule), key, now, |decision| {
            decision.time = now;
            decision.is_refused = code == Code::OverLimit && !is_shadowed;
            decision.is_shadowed = is_shadowed;
            decision.domain.set([(domain, "")].into_iter());
            decision.descriptor.set(entries(conclusion.request, index));
            decision.governs = conclusion.governs == Some(index);
            decision.rule = rule.cloned();
            set_outcome(decision, limited, &outcome, conclusion);
            let overridden = limited.overridden.as_ref();
            let overridden = overridden.filter(|_| decision.decided_by == DecidedBy::Override);
            decision.by_override = overridden.map(|found| shown_override(found, overrides));
        });
    }
}

fn shown_override(found: &Found, overrides: &Index) -> OverrideShown {
    let target = &found.target;
    let entries = target.entries().iter().map(|(key, value)| (key.clone(), value.text().map(Box::from)));
    OverrideShown {
        id: overrides.shown_id(target),
        domain: target.domain().into(),
        is_by_entry: target.entry().is_some(),
        entries: entries.collect(),
    }
}

fn set_outcome(
    decision: &mut Decision,
    limited: &Limited,
    outcome: &LimitOutcome<'_>,
    conclusion: &Conclusion<'_, '_>,
) {
    let is_overridden = limited.overridden.as_ref().is_some_and(|found| match found.action {
        Action::Block => true,
        _ => found.changes(outcome.written),
    });
    let limits = conclusion.scope.limits(limited).filter(|_| !limited.is_blocked());
    let all = || limits.into_iter().flat_map(Limits::iter);
    decision.limit = Some(LimitShown::from(outcome.limit));
    decision.limit_index = all().position(|limit| std::ptr::eq(limit, outcome.written)).unwrap_or_default();
    decision.limits = all().count().max(1);
    decision.hits = limited.hits.taken();
    decision.retry_after = outcome.retry_after().filter(|_| outcome.decision.over);
    decision.is_blocked = outcome.check.is_none();
    let by = match outcome.decider() {
        None => DecidedBy::Override,
        Some(Decider::Fallback | Decider::Policy { .. }) => DecidedBy::FailurePolicy,
        Some(Decider::Store | Decider::Transient | Decider::Block) => DecidedBy::Counter,
        Some(Decider::OverLimitCache | Decider::Neighbor) => DecidedBy::OverLimitCache,
    };
    decision.decided_by = if is_overridden && by == DecidedBy::Counter { DecidedBy::Override } else { by };
    decision.count = outcome.used();
}

fn entries<'a>(request: &'a Request<'_>, index: usize) -> impl Iterator<Item = (&'a str, &'a str)> + Clone {
    request.entries(index).iter().map(|entry| (entry.key, entry.value))
}
