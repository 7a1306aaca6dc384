//! The two steps of a decision for the gRPC port and `POST /json`, and the attributes of the call's span: the request, the
//! rules that matched, and the decision. An untraced call costs one branch.
//!
//! Values of descriptors are added only with `TRACING_DESCRIPTOR_VALUES`, because they may identify people. The
//! attributes of one request are bounded, because spans wait in memory.

use std::{borrow::Cow, fmt::Write, sync::Arc, time::Instant};

use clock::Time;
use exporters::tracing::{OpenSpan, Value};
use limiter::{Answer, Code, Concluded, Decided, DecisionTrace, Descriptor, Limiter, Request, RequestError};
use text::{LONGEST, cut};

/// The maximum number of descriptors in a span; requests rarely have more.
const MOST: usize = 32;

/// [`Limiter::try_decide`], with the attributes of the request and of an answer.
pub(super) fn try_decide(
    limiter: &Arc<Limiter>,
    span: Option<&mut OpenSpan>,
    request: &Request<'_>,
    now: Time,
    until: Option<Instant>,
) -> Result<Decided, RequestError> {
    let Some(span) = span else { return limiter.try_decide(request, now, until, None) };
    let mut trace = DecisionTrace::default();
    let decided = limiter.try_decide(request, now, until, Some(&mut trace));
    add_request(span, request, &trace);
    if let Ok(Decided::Answer(answer)) = &decided {
        add_decision(span, Some(answer), &trace);
    }
    decided
}

/// Adds the attributes of a decision that has waited, and of its wait.
pub(super) fn concluded(span: Option<&mut OpenSpan>, concluded: Concluded) -> Result<Answer, RequestError> {
    if let (Some(span), Some(trace)) = (span, concluded.trace) {
        add_decision(span, concluded.decided.as_ref().ok(), &trace);
    }
    concluded.decided
}

fn add_request(span: &mut OpenSpan, request: &Request<'_>, trace: &DecisionTrace) {
    span.add("tollgate.domain", cut(request.domain).to_owned().into());
    let count = i64::try_from(request.descriptors.len()).unwrap_or(i64::MAX);
    span.add("tollgate.descriptor_count", count.into());
    if span.shows_values() {
        let descriptors = request.descriptors.iter().take(MOST).map(descriptor);
        span.add("tollgate.descriptors", Value::Texts(descriptors.map(Cow::Owned).collect()));
    }
    let rules = trace.rules.iter().take(MOST).map(|rule| rule.as_deref().unwrap_or_default().to_owned());
    span.add("tollgate.rules", Value::Texts(rules.map(Cow::Owned).collect()));
}

fn add_decision(span: &mut OpenSpan, answer: Option<&Answer>, trace: &DecisionTrace) {
    if let Some(answer) = answer {
        span.add("tollgate.code", code(answer.code).into());
        let statuses = || answer.statuses.iter().take(MOST);
        let codes = statuses().map(|status| code(status.code).into());
        span.add("tollgate.codes", Value::Texts(codes.collect()));
        let remaining = statuses().map(|status| i64::try_from(status.limit_remaining).unwrap_or(i64::MAX));
        span.add("tollgate.remaining", Value::Numbers(remaining.collect()));
    }
    if let Some((policy, reason)) = trace.failure {
        span.add("tollgate.store_failure.policy", policy.into());
        span.add("tollgate.store_failure.reason", reason.into());
    }
    if let Some(wait) = &trace.wait {
        let checks = i64::try_from(wait.checks).unwrap_or(i64::MAX);
        span.add_child(
            "wait for counters",
            wait.times,
            vec![("tollgate.checks", checks.into())],
            wait.error.as_deref(),
        );
    }
}

fn code(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::OverLimit => "OVER_LIMIT",
    }
}

/// `key=value,key=value`, cut to the maximum length.
fn descriptor(descriptor: &Descriptor<'_>) -> String {
    let mut text = String::new();
    for entry in &descriptor.entries {
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a String cannot fail.
        let _ = write!(text, "{comma}{}={}", cut(entry.key), cut(entry.value));
        if text.len() > LONGEST {
            break;
        }
    }
    cut(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use limiter::Entry;

    #[test]
    fn shows_descriptors_as_pairs_cut_to_a_maximum() {
        fn of(entries: &[(&str, &str)]) -> String {
            let entries = entries.iter().map(|(key, value)| Entry { key, value }).collect();
            descriptor(&Descriptor { entries, ..Descriptor::default() })
        }
        assert_eq!(of(&[("a", "b"), ("c", "")]), "a=b,c=");
        for text in ["ü".repeat(1000), "x".repeat(5_000_000)] {
            let shown = of(&[(&text, &text), ("a", "b")]);
            assert!((LONGEST - 1..=LONGEST).contains(&shown.len()), "{}", shown.len());
        }
    }
}
