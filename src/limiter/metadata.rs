//! The dynamic metadata of an answer: what was asked, and what the rules that were passed have to say.

use std::{collections::btree_map::Entry as Slot, fmt::Write};

use super::{
    answer::{Code, Status},
    plan::Planned,
    request::{Descriptor, LimitOverride, Request},
};
use crate::rules::{Metadata, Value};

/// `{domain, descriptors, hitsAddend?, metadata?}`.
pub(super) fn of(request: &Request, plan: &[Planned<'_>], statuses: &[Status]) -> Metadata {
    let mut all = Metadata::new();
    all.insert("domain".into(), Value::Text(request.domain.clone()));
    all.insert("descriptors".into(), Value::List(request.descriptors.iter().map(descriptor).collect()));
    if request.hits_addend != 0 {
        all.insert("hitsAddend".into(), Value::Number(f64::from(request.hits_addend)));
    }
    let mut passed = Metadata::new();
    for (planned, status) in plan.iter().zip(statuses) {
        if let Planned::Limited(limited) = planned
            && status.code == Code::Ok
            && let Some(metadata) = limited.metadata
        {
            merge(&mut passed, metadata);
        }
    }
    if !passed.is_empty() {
        all.insert("metadata".into(), Value::Map(passed));
    }
    all
}

fn descriptor(descriptor: &Descriptor) -> Value {
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
    Value::Map(one)
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
