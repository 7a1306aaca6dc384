//! What is noted of a decision: the hits of its keys, its refusal, and a line of the log of decisions.
//!
//! Called once a request was concluded. [`recent`](crate::recent) says what it wants to know; mostly it is nothing.

use super::{
    Served,
    answer::Code,
    conclude::Conclusion,
    outcome::LimitOutcome,
    plan::{CounterSource, Limited},
    request::{Entry, Request},
};
use crate::{
    clock::Time,
    overrides::Action,
    recent::{DecidedBy, Decision, Hits, LimitShown, Recent, Wanted},
    rules::{Limits, Rule},
    store::Outcome,
};

/// Refused descriptors of one request that are kept. Most requests have one or two.
const MAX_REFUSED: usize = 4;

/// Notes a decision.
pub(super) fn observe(recent: &Recent, served: &Served, conclusion: &Conclusion<'_, '_, '_>, now: Time) {
    let is_refused = conclusion.code == Code::OverLimit;
    let wanted = recent.wanted(is_refused, now);
    if wanted.is_nothing() {
        return;
    }
    if let Some(weight) = wanted.hits {
        note_hits(recent, served, conclusion, weight, now);
    }
    if wanted.refusal.is_some() || wanted.line {
        note_decisions(recent, served, conclusion, wanted, now);
    }
}

fn note_hits(recent: &Recent, served: &Served, conclusion: &Conclusion<'_, '_, '_>, weight: u32, now: Time) {
    for (index, status) in conclusion.statuses.iter().enumerate() {
        let Some(limited) = conclusion.limited(index) else { continue };
        let rule = limited.rule.and_then(|rule| served.attached.recent(rule.id));
        let (Some(rule), count) = (rule, limited.hits.taken()) else { continue };
        if count > 0 {
            let hits = Hits { count, weight, refused: status.code == Code::OverLimit };
            recent.note_hits(rule, entries(conclusion.request, index), hits, now);
        }
    }
}

/// Notes the descriptors that are over their limits; of an allowed request all that have one.
fn note_decisions(
    recent: &Recent,
    served: &Served,
    conclusion: &Conclusion<'_, '_, '_>,
    wanted: Wanted,
    now: Time,
) {
    let code = conclusion.code;
    let decided = conclusion.statuses.iter().enumerate().filter(|(_, status)| status.code == code);
    let decided = decided.filter_map(|(index, _)| Some((index, conclusion.limited(index)?)));
    for (index, limited) in decided.take(MAX_REFUSED) {
        let Some(outcome) = conclusion.outcome(index) else { continue };
        recent.note_decision(wanted, |decision| {
            decision.time = now;
            decision.is_refused = code == Code::OverLimit;
            decision.domain.set([(conclusion.request.domain, "")].into_iter());
            decision.descriptor.set(entries(conclusion.request, index));
            decision.governs = conclusion.governs == Some(index);
            let rule = limited.rule.and_then(|rule| served.attached.recent(rule.id));
            decision.rule = rule.cloned();
            set_outcome(decision, limited, &outcome, conclusion);
        });
    }
}

fn set_outcome(
    decision: &mut Decision,
    limited: &Limited<'_>,
    outcome: &LimitOutcome<'_>,
    conclusion: &Conclusion<'_, '_, '_>,
) {
    // The limit of an override stands in place of all limits of the rule.
    let is_overridden = limited.steered.is_some_and(|found| found.action != Action::Shadow);
    let limits = limited.rule.and_then(Rule::limits).filter(|_| !is_overridden);
    let all = || limits.into_iter().flat_map(Limits::iter);
    decision.limit = Some(LimitShown::from(outcome.limit));
    decision.limit_index = all().position(|limit| std::ptr::eq(limit, outcome.limit)).unwrap_or_default();
    decision.limits = all().count().max(1);
    decision.hits = limited.hits.taken();
    decision.retry_after = outcome.retry_after().filter(|_| outcome.decision.over);
    let (by, count) = match outcome.source {
        CounterSource::Store(index) => {
            let by = if conclusion.is_without_store { DecidedBy::FailurePolicy } else { DecidedBy::Counter };
            let counted = conclusion.batch.checks().get(index).map(|check| check.outcome);
            let used = outcome.limit.algorithm.capacity().saturating_sub(outcome.verdict.remaining);
            let count = match counted {
                Some(Outcome::Counted(count) | Outcome::NotCounted(count)) => Some(count),
                Some(Outcome::Decided(_)) => Some(u64::from(used)),
                _ => None,
            };
            (by, count)
        }
        CounterSource::Blocked(_) => (DecidedBy::Override, None),
        CounterSource::Assumed { .. } if conclusion.is_without_store => (DecidedBy::FailurePolicy, None),
        // Of an assumed one, another limit of the rule is known to be over, and this one was not asked.
        CounterSource::KnownOver(_) | CounterSource::Assumed { .. } => (DecidedBy::OverLimitCache, None),
    };
    decision.decided_by = if is_overridden && by == DecidedBy::Counter { DecidedBy::Override } else { by };
    decision.count = count;
}

/// The entries of a descriptor.
fn entries<'a>(request: &'a Request<'_>, index: usize) -> impl Iterator<Item = (&'a str, &'a str)> + Clone {
    let entries: &[Entry<'_>] = request.descriptors.get(index).map_or(&[], |descriptor| &descriptor.entries);
    entries.iter().map(|entry| (entry.key, entry.value))
}
