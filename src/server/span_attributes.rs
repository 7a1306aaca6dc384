//! What a span tells of a decision: the rules that were met and what they said, and what no rule said.
//!
//! The values of descriptors are told only where the operator wants them told: they may name people. What
//! is told of one request is bounded, because spans wait in memory.

use std::{borrow::Cow, fmt::Write};

use crate::{
    limiter::{Answer, Code, DecisionTrace, Descriptor, Request},
    telemetry::tracing::{OpenSpan, Value},
    text::{LONGEST, cut},
};

/// Of so many descriptors is told; hardly a request has more.
const MOST: usize = 32;

/// Tells of a request, of its answer if it got one, and of the way there.
pub(super) fn tell(
    span: &mut OpenSpan,
    request: &Request<'_>,
    answer: Option<&Answer>,
    trail: &DecisionTrace,
) {
    span.tell("tollgate.domain", cut(request.domain).to_owned().into());
    let count = i64::try_from(request.descriptors.len()).unwrap_or(i64::MAX);
    span.tell("tollgate.descriptor_count", count.into());
    if span.tells_values() {
        let descriptors = request.descriptors.iter().take(MOST).map(descriptor);
        span.tell("tollgate.descriptors", Value::Texts(descriptors.map(Cow::Owned).collect()));
    }
    let rules = trail.rules.iter().take(MOST).map(|rule| rule.as_deref().unwrap_or_default().to_owned());
    span.tell("tollgate.rules", Value::Texts(rules.map(Cow::Owned).collect()));
    if let Some(answer) = answer {
        span.tell("tollgate.code", code(answer.code).into());
        let statuses = || answer.statuses.iter().take(MOST);
        let codes = statuses().map(|status| code(status.code).into());
        span.tell("tollgate.codes", Value::Texts(codes.collect()));
        let remaining = statuses().map(|status| i64::from(status.limit_remaining));
        span.tell("tollgate.remaining", Value::Numbers(remaining.collect()));
    }
    if let Some((policy, reason)) = trail.failure {
        span.tell("tollgate.store_failure.policy", policy.into());
        span.tell("tollgate.store_failure.reason", reason.into());
    }
    if let Some(wait) = &trail.wait {
        let checks = i64::try_from(wait.checks).unwrap_or(i64::MAX);
        span.part(
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

/// `key=value,key=value`, its beginning if it is long.
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
    use crate::limiter::Entry;

    #[test]
    fn a_descriptor_is_told_as_pairs_and_never_at_length() {
        fn of(entries: &[(&str, &str)]) -> String {
            let entries = entries.iter().map(|(key, value)| Entry { key, value }).collect();
            descriptor(&Descriptor { entries, ..Descriptor::default() })
        }
        assert_eq!(of(&[("a", "b"), ("c", "")]), "a=b,c=");
        for text in ["ü".repeat(1000), "x".repeat(5_000_000)] {
            let told = of(&[(&text, &text), ("a", "b")]);
            assert!((LONGEST - 1..=LONGEST).contains(&told.len()), "{}", told.len());
        }
    }
}
