//! The dynamic metadata of an answer: the request, the metadata of the rules whose descriptors passed and, with
//! `RESPONSE_DYNAMIC_METADATA_LIMITS`, the limit that decided each descriptor and why.

use std::{collections::btree_map::Entry as Slot, fmt::Write};

use crate::{
    limiter::{
        answer::{Code, MetadataDetail},
        conclude::Conclusion,
        outcome::LimitOutcome,
        plan::{CounterSource, Limited, Planned},
        request::{Descriptor, LimitOverride},
    },
    overrides::{Found, model::timestamp},
    rules::{Limit, Metadata, Value},
};

/// `{domain, descriptors, hitsAddend?, metadata?}`.
pub(super) fn metadata(conclusion: &Conclusion<'_, '_, '_>) -> Option<Metadata> {
    let with_limits = match conclusion.policy.response.metadata {
        MetadataDetail::None => return None,
        MetadataDetail::Plain => false,
        MetadataDetail::WithLimits => true,
    };
    let request = conclusion.request;
    let mut all = Metadata::new();
    all.insert("domain".into(), text(request.domain));
    let descriptors = request.descriptors.iter().enumerate().map(|(index, entry)| {
        let mut fields = descriptor(entry);
        if with_limits {
            fields.insert("decision".into(), Value::Map(decision(conclusion, index)));
        }
        Value::Map(fields)
    });
    all.insert("descriptors".into(), Value::List(descriptors.collect()));
    if request.hits_addend != 0 {
        all.insert("hitsAddend".into(), Value::Number(f64::from(request.hits_addend)));
    }
    let mut passed = Metadata::new();
    for (index, status) in conclusion.statuses.iter().enumerate() {
        if status.code == Code::Ok
            && let Some(metadata) = conclusion.limited(index).and_then(|limited| limited.metadata)
        {
            merge(&mut passed, metadata);
        }
    }
    if !passed.is_empty() {
        all.insert("metadata".into(), Value::Map(passed));
    }
    Some(all)
}

fn descriptor(descriptor: &Descriptor<'_>) -> Metadata {
    let mut fields = Metadata::new();
    let entries =
        descriptor.entries.iter().map(|entry| Value::Text(format!("{}={}", entry.key, entry.value)));
    fields.insert("entries".into(), Value::List(entries.collect()));
    if let Some(limit) = &descriptor.limit {
        fields.insert("limit".into(), Value::Text(override_text(*limit)));
    }
    if let Some(hits) = descriptor.hits_addend {
        #[expect(clippy::cast_precision_loss, reason = "protobuf's Struct holds only doubles")]
        fields.insert("hitsAddend".into(), Value::Number(hits as f64));
    }
    fields
}

/// `{why, rule?, override?, limit?, remaining?, reset?, retryAfter?, governs?}`: the rule, and the state of the limit that
/// governs the descriptor.
fn decision(conclusion: &Conclusion<'_, '_, '_>, index: usize) -> Metadata {
    let mut fields = Metadata::new();
    let mut insert = |key: &str, value| fields.insert(key.to_owned(), value);
    let outcome = conclusion.outcome(index);
    let (rule, why) = match conclusion.plan.get(index) {
        Some(Planned::Unlimited(rule)) => (Some(*rule), "unlimited"),
        Some(Planned::Allowed(rule, _)) => (*rule, "allowed"),
        Some(Planned::Replaced(rule)) => (Some(*rule), "replaced"),
        Some(Planned::Limited(limited)) => {
            (limited.rule, outcome.map_or("no_rule", |outcome| why(limited, &outcome)))
        }
        Some(Planned::NoLimit) | None => (None, "no_rule"),
    };
    insert("why", text(why));
    if let Some(rule) = rule {
        insert("rule", text(&rule.full_key));
    }
    let steered = match conclusion.plan.get(index) {
        Some(Planned::Allowed(_, found)) => Some(*found),
        _ => conclusion.limited(index).and_then(|limited| limited.steered),
    };
    if let Some(found) = steered {
        insert("override", Value::Map(of_override(found)));
    }
    if let Some(outcome) = outcome {
        insert("limit", Value::Map(limit(outcome.limit)));
        insert("remaining", Value::Number(outcome.verdict.remaining.into()));
        insert("reset", seconds(outcome.seconds_until_reset()));
        if outcome.decision.over
            && let Some(wait) = outcome.retry_after()
        {
            insert("retryAfter", seconds(wait));
        }
    }
    if conclusion.governs == Some(index) {
        insert("governs", Value::Bool(true));
    }
    fields
}

/// `{action, expiresAt?}` of an operator's override.
fn of_override(found: Found) -> Metadata {
    let mut fields = Metadata::new();
    fields.insert("action".into(), text(found.action.name()));
    if let Some(end) = found.expires {
        fields.insert("expiresAt".into(), text(&timestamp(end)));
    }
    fields
}

/// The reason for a descriptor's status.
fn why(limited: &Limited<'_>, outcome: &LimitOutcome<'_>) -> &'static str {
    match outcome.source {
        _ if outcome.decision.over && limited.is_shadow() => "shadow",
        CounterSource::Assumed { .. } => "store_failure",
        CounterSource::KnownOver(_) => "local_cache",
        CounterSource::Blocked(_) => "blocked",
        CounterSource::Store(_) if outcome.decision.over => "over_limit",
        CounterSource::Store(_) => "within_limit",
    }
}

fn limit(limit: &Limit) -> Metadata {
    let mut fields = Metadata::new();
    if let Some(name) = &limit.name {
        fields.insert("name".into(), text(name));
    }
    fields.insert("requestsPerUnit".into(), Value::Number(limit.requests_per_unit.into()));
    fields.insert("unit".into(), text(limit.unit.name()));
    fields.insert("unitMultiplier".into(), Value::Number(limit.multiplier.get().into()));
    fields.insert("algorithm".into(), text(limit.algorithm.kind().name()));
    fields
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

#[expect(clippy::cast_precision_loss, reason = "protobuf's Struct holds only doubles")]
fn seconds(seconds: u64) -> Value {
    Value::Number(seconds as f64)
}

/// An override in protobuf's text format: with the two spaces that the Go service writes, and with the number of a
/// week, whose name it does not know.
fn override_text(limit: LimitOverride) -> String {
    let mut text = String::new();
    if limit.requests_per_unit != 0 {
        let _ = write!(text, "requests_per_unit:{}", limit.requests_per_unit);
    }
    if limit.unit != 0 {
        let separator = if text.is_empty() { "" } else { "  " };
        let _ = match limit.unit().filter(|_| limit.unit != 7) {
            Some(unit) => write!(text, "{separator}unit:{unit}"),
            None => write!(text, "{separator}unit:{}", limit.unit),
        };
    }
    text
}

/// Adds missing entries. Maps are merged; of other values the first one wins.
fn merge(into: &mut Metadata, from: &Metadata) {
    for (key, value) in from {
        match into.entry(key.clone()) {
            Slot::Vacant(slot) => {
                slot.insert(value.clone());
            }
            Slot::Occupied(mut slot) => {
                if let (Value::Map(into), Value::Map(from)) = (slot.get_mut(), value) {
                    merge(into, from);
                }
            }
        }
    }
}
