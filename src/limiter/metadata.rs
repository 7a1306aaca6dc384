//! The dynamic metadata of an answer: what was asked, what the rules that were passed have to say, and, for
//! those who ask, which limit decided of each descriptor and why.

use std::{collections::btree_map::Entry as Slot, fmt::Write};

use super::{
    answer::Code,
    conclude::Concluded,
    governing::LimitOutcome,
    plan::{CounterSource, Limited, Planned},
    request::{Descriptor, LimitOverride},
};
use crate::limiter::response::MetadataDetail;
use crate::rules::{Limit, Metadata, Value};

/// `{domain, descriptors, hitsAddend?, metadata?}`.
pub(super) fn of(concluded: &Concluded<'_, '_, '_>) -> Option<Metadata> {
    let with_limits = match concluded.policy.telling.metadata {
        MetadataDetail::None => return None,
        MetadataDetail::Plain => false,
        MetadataDetail::WithLimits => true,
    };
    let request = concluded.request;
    let mut all = Metadata::new();
    all.insert("domain".into(), Value::Text(request.domain.to_owned()));
    let descriptors = request.descriptors.iter().enumerate().map(|(at, asked)| {
        let mut one = descriptor(asked);
        if with_limits {
            one.insert("decision".into(), Value::Map(decision(concluded, at)));
        }
        Value::Map(one)
    });
    all.insert("descriptors".into(), Value::List(descriptors.collect()));
    if request.hits_addend != 0 {
        all.insert("hitsAddend".into(), Value::Number(f64::from(request.hits_addend)));
    }
    let mut passed = Metadata::new();
    for (at, status) in concluded.statuses.iter().enumerate() {
        if status.code == Code::Ok
            && let Some(metadata) = concluded.limited(at).and_then(|limited| limited.metadata)
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
    let mut one = Metadata::new();
    let entries =
        descriptor.entries.iter().map(|entry| Value::Text(format!("{}={}", entry.key, entry.value)));
    one.insert("entries".into(), Value::List(entries.collect()));
    if let Some(limit) = &descriptor.limit {
        one.insert("limit".into(), Value::Text(limit_text(*limit)));
    }
    if let Some(hits) = descriptor.hits_addend {
        #[expect(clippy::cast_precision_loss, reason = "protobuf's Struct holds nothing but doubles")]
        one.insert("hitsAddend".into(), Value::Number(hits as f64));
    }
    one
}

/// `{why, rule?, limit?, remaining?, reset?, retryAfter?, governs?}`: the rule, and of its limits the one
/// that spoke.
fn decision(concluded: &Concluded<'_, '_, '_>, at: usize) -> Metadata {
    let mut told = Metadata::new();
    let mut tell = |key: &str, value| told.insert(key.to_owned(), value);
    let (rule, why) = match concluded.plan.get(at) {
        None | Some(Planned::NoLimit) => (None, "no_rule"),
        Some(Planned::Unlimited(rule)) => (Some(*rule), "unlimited"),
        Some(Planned::Replaced(rule)) => (Some(*rule), "replaced"),
        Some(Planned::Limited(limited)) => {
            let why = concluded.ruling(at).map_or("no_rule", |ruling| why(limited, &ruling));
            (limited.rule, why)
        }
    };
    tell("why", text(why));
    if let Some(rule) = rule {
        tell("rule", text(&rule.full_key));
    }
    if let Some(ruling) = concluded.ruling(at) {
        tell("limit", Value::Map(limit(ruling.limit)));
        tell("remaining", Value::Number(ruling.verdict.remaining.into()));
        tell("reset", seconds(ruling.seconds_until_reset()));
        if ruling.decision.over
            && let Some(wait) = ruling.retry_after()
        {
            tell("retryAfter", seconds(wait));
        }
    }
    if concluded.governs == Some(at) {
        tell("governs", Value::Bool(true));
    }
    told
}

/// Why a descriptor's status is what it is.
fn why(limited: &Limited<'_>, ruling: &LimitOutcome<'_>) -> &'static str {
    match ruling.asked {
        _ if ruling.decision.over && limited.is_shadow() => "shadow",
        CounterSource::Nobody { .. } => "store_failure",
        CounterSource::KnownOver(_) => "local_cache",
        CounterSource::Store(_) if ruling.decision.over => "over_limit",
        CounterSource::Store(_) => "within_limit",
    }
}

fn limit(limit: &Limit) -> Metadata {
    let mut told = Metadata::new();
    if let Some(name) = &limit.name {
        told.insert("name".into(), text(name));
    }
    told.insert("requestsPerUnit".into(), Value::Number(limit.requests_per_unit.into()));
    told.insert("unit".into(), text(limit.unit.name()));
    told.insert("unitMultiplier".into(), Value::Number(limit.multiplier.get().into()));
    told.insert("algorithm".into(), text(limit.algorithm.kind().name()));
    told
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

#[expect(clippy::cast_precision_loss, reason = "protobuf's Struct holds nothing but doubles")]
fn seconds(seconds: u64) -> Value {
    Value::Number(seconds as f64)
}

/// The limit as protobuf's text format has it: with the two blanks that the Go service writes, and the
/// number of a week, whose name it does not know.
fn limit_text(limit: LimitOverride) -> String {
    let mut text = String::new();
    if limit.requests_per_unit != 0 {
        let _ = write!(text, "requests_per_unit:{}", limit.requests_per_unit);
    }
    if limit.unit != 0 {
        let gap = if text.is_empty() { "" } else { "  " };
        let _ = match limit.unit().filter(|_| limit.unit != 7) {
            Some(unit) => write!(text, "{gap}unit:{unit}"),
            None => write!(text, "{gap}unit:{}", limit.unit),
        };
    }
    text
}

/// Adds what is not there yet; maps are merged, anything else keeps its first value.
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
