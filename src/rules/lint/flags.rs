//! Flags of a descriptor that have no effect.

use super::{super::diagnostic::Place, Below};
use crate::rules::ast::{Field, RawDescriptor};

/// A key without effect.
pub(super) struct Idle {
    pub(super) key: &'static str,
    pub(super) place: Place,
    pub(super) reason: &'static str,
}

/// True when any flag is set.
pub(super) fn any_set(raw: &RawDescriptor) -> bool {
    let RawDescriptor { shadow_mode, quota_mode, detailed_metric, value_to_metric, share_threshold, .. } =
        raw;
    [shadow_mode, quota_mode, detailed_metric, value_to_metric, share_threshold, &raw.overrides_only]
        .iter()
        .any(|flag| flag.is_set())
}

/// The keys of a descriptor without effect, given the limits at or below it.
pub(super) fn idle(raw: &RawDescriptor, below: Below) -> Vec<Idle> {
    let mut idle = Vec::new();
    let without_limit = match raw.limits() {
        [] if raw.overrides_only.is_set() => None,
        [] => Some("the descriptor has no `rate_limit`"),
        [limit, ..] if limit.unlimited.is_set() => Some("the limit is `unlimited`"),
        _ => None,
    };
    if let Some(reason) = without_limit {
        let keys = [
            ("shadow_mode", &raw.shadow_mode),
            ("quota_mode", &raw.quota_mode),
            ("detailed_metric", &raw.detailed_metric),
        ];
        for (key, flag) in keys {
            idle.extend(set_at(flag).map(|place| Idle { key, place, reason }));
        }
    }
    if let Some(metadata) = raw.metadata.given().filter(|given| !given.value.is_empty()) {
        let lost = (raw.detailed_metric.is_set() && raw.descriptors.items().is_empty())
            .then_some("`detailed_metric` on a descriptor without others below drops it");
        let place = metadata.key;
        idle.extend(without_limit.or(lost).map(|reason| Idle { key: "metadata", place, reason }));
    }
    if let Some(body) = raw.over_limit_body.given() {
        let shadowed = raw.shadow_mode.is_set().then_some("with `shadow_mode` no request is over limit");
        let place = body.key;
        idle.extend(without_limit.or(shadowed).map(|reason| Idle { key: "over_limit_body", place, reason }));
    }
    let of_value = set_at(&raw.value_to_metric).zip(value_to_metric(raw, below));
    idle.extend(of_value.map(|(place, reason)| Idle { key: "value_to_metric", place, reason }));
    if let Some(place) = set_at(&raw.share_threshold).filter(|_| !below.counted) {
        let reason = "no limit at or below the descriptor counts anything";
        idle.push(Idle { key: "share_threshold", place, reason });
    }
    idle
}

/// Why `value_to_metric` changes no metric's name, if it does not.
fn value_to_metric(raw: &RawDescriptor, below: Below) -> Option<&'static str> {
    let is_wildcard = raw.text().is_some_and(|text| text.contains('*'));
    if raw.has_value() && !is_wildcard {
        Some("metrics name an exact value anyway")
    } else if raw.share_threshold.is_set() {
        Some("with `share_threshold` metrics name the pattern")
    } else if !below.counted {
        Some("no limit at or below the descriptor counts anything")
    } else if !below.plainly_named {
        Some("`detailed_metric` names every value anyway")
    } else {
        None
    }
}

fn set_at(flag: &Field<bool>) -> Option<Place> {
    flag.given().filter(|given| given.value).map(|given| given.key)
}
