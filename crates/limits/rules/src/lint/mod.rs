//! Lints: warnings about valid rules that probably mean something else.
//!
//! Called by [`compile`](super::compile()) for domains without errors. There are no warnings about rules that make sense
//! in some deployment.

mod reach;
mod texts;

use std::{collections::HashSet, time::Duration};

use super::lower::{At, Sibling};
use crate::ast::{Field, RawDescriptor, RawFile, RawLimit, RawMap as _};
use limit::{Kind, MostHeld, Unit};
use reach::Reach;
use text::{
    diagnostics::{Diagnostics, Path, Place, quoted},
    duration,
    spelling::nearest,
};

/// A log of this many hits takes up to 160 kB, as much as 6,000 other counters.
const COSTLY: u64 = 10_000;

/// Reports the lints of a domain with these files and these descriptors of the first level.
pub(super) fn of_domain(
    files: &[(usize, &RawFile)],
    siblings: &[Sibling<'_>],
    diagnostics: &mut [Diagnostics],
) {
    for (file, raw) in files {
        let Some(domain) = raw.domain.given() else { continue };
        let path = Path::File.key("domain");
        let diagnostics = &mut diagnostics[*file];
        if raw.descriptors.items().is_empty() {
            let name = quoted(&domain.value);
            let kind = diagnostics.kind.name();
            let message = format!("the domain {name} has no descriptors here, so the {kind} has no effect");
            diagnostics.warning(domain.place, &path, message, None);
        }
        if let Some((message, help)) = texts::of_text(&domain.value) {
            diagnostics.warning(domain.place, &path, message, Some(help));
        }
    }
    let mut names = HashSet::new();
    for sibling in siblings {
        collect_names(sibling.raw, &mut names);
    }
    let list = Path::File.key("descriptors");
    Walk { diagnostics, names }.level(siblings, &list);
}

fn collect_names<'r>(raw: &'r RawDescriptor, names: &mut HashSet<&'r str>) {
    names.extend(raw.limits().iter().filter_map(|limit| limit.name.value()).map(String::as_str));
    for child in raw.descriptors.items() {
        collect_names(child, names);
    }
}

struct Walk<'w> {
    diagnostics: &'w mut [Diagnostics],
    names: HashSet<&'w str>,
}

/// The limits at or below a descriptor that its flags can affect.
#[derive(Clone, Copy, Default)]
struct Below {
    counted: bool,
    /// A limit that counts, without `detailed_metric`.
    plainly_named: bool,
}

impl Walk<'_> {
    fn level(&mut self, siblings: &[Sibling<'_>], list: &Path<'_>) -> Below {
        let texts: Vec<String> =
            siblings.iter().map(|sibling| sibling.raw.text().unwrap_or_default()).collect();
        let reach = Reach::of(&texts);
        let mut below = Below::default();
        for (at, sibling) in siblings.iter().enumerate() {
            let path = sibling.raw.path(list);
            self.texts(*sibling, &path);
            self.unreachable(siblings, at, &reach, list);
            self.idle(*sibling, at, &reach, &path);
            let own = self.descriptor(*sibling, &path);
            below.counted |= own.counted;
            below.plainly_named |= own.plainly_named;
        }
        below
    }

    fn descriptor(&mut self, sibling: Sibling<'_>, path: &Path<'_>) -> Below {
        let raw = sibling.raw;
        let children: Vec<Sibling<'_>> =
            raw.descriptors.items().iter().map(|raw| Sibling { raw, ..sibling }).collect();
        let mut below = self.level(&children, &path.key("descriptors"));
        if let Some(limits) = raw.rate_limit.value() {
            let list = path.key("rate_limit");
            for limit in limits.as_slice() {
                let counted = !limit.unlimited.is_set();
                below.counted |= counted;
                below.plainly_named |= counted && !raw.detailed_metric.is_set();
                self.limit(sibling.file, limit, &limits.path(&list, limit));
            }
        }
        if raw.overrides_only.is_set() {
            // Its overrides count hits.
            below.counted = true;
            below.plainly_named |= !raw.detailed_metric.is_set();
        }
        self.idle_keys(sibling, path, below);
        below
    }

    /// Warns about the keys of a descriptor without effect, given the limits at or below it.
    fn idle_keys(&mut self, sibling: Sibling<'_>, path: &Path<'_>, below: Below) {
        let raw = sibling.raw;
        let mut idle = |key: &str, place: Option<Place>, reason: Option<&str>| {
            if let (Some(place), Some(reason)) = (place, reason) {
                let message = format!("`{key}` has no effect here: {reason}");
                self.warning(sibling.at(place, *path), message, "remove it");
            }
        };
        let without_limit = match raw.limits() {
            [] if raw.overrides_only.is_set() => None,
            [] => Some("the descriptor has no `rate_limit`"),
            [limit, ..] if limit.unlimited.is_set() => Some("the limit is `unlimited`"),
            _ => None,
        };
        idle("shadow_mode", set_at(&raw.shadow_mode), without_limit);
        idle("quota_mode", set_at(&raw.quota_mode), without_limit);
        idle("detailed_metric", set_at(&raw.detailed_metric), without_limit);
        let metadata = raw.metadata.given().filter(|given| !given.value.is_empty());
        let lost = (raw.detailed_metric.is_set() && raw.descriptors.items().is_empty())
            .then_some("`detailed_metric` drops it on a descriptor without others below");
        idle("metadata", metadata.map(|given| given.key), without_limit.or(lost));
        let shadowed = raw.shadow_mode.is_set().then_some("with `shadow_mode` no request is over limit");
        idle("over_limit_body", raw.over_limit_body.key(), without_limit.or(shadowed));
        idle("value_to_metric", set_at(&raw.value_to_metric), value_to_metric(raw, below));
        let uncounted = (!below.counted).then_some("no limit at or below the descriptor counts hits");
        idle("share_threshold", set_at(&raw.share_threshold), uncounted);
    }

    /// Reports a key or a value that is compared as text, but was meant as something else.
    fn texts(&mut self, sibling: Sibling<'_>, path: &Path<'_>) {
        let RawDescriptor { key, value, .. } = sibling.raw;
        let Some(key) = key.given() else { return };
        if let Some((message, help)) = texts::of_text(&key.value) {
            self.warning(sibling.at(key.place, path.key("key")), message, help);
        }
        let Some(value) = value.given() else { return };
        if let Some((message, help)) = texts::of_value(&key.value, &value.value) {
            self.warning(sibling.at(value.place, path.key("value")), message, help);
        }
    }

    fn unreachable(&mut self, siblings: &[Sibling<'_>], at: usize, reach: &Reach<'_>, list: &Path<'_>) {
        let Sibling { file, raw } = siblings[at];
        let is_wildcard = raw.text().is_some_and(|text| text.contains('*'));
        let covered_by = match (is_wildcard, raw.has_value()) {
            (true, _) => reach.wildcard_covered_by(at),
            (false, false) => reach.bare_key_covered_by(at),
            (false, true) => None,
        };
        let Some(cover) = covered_by.map(|cover| siblings[cover]) else { return };
        let by = quoted(&cover.raw.text().unwrap_or_default());
        let place = cover.location(self.diagnostics, list, file);
        let key = quoted(raw.key.value().map_or("", String::as_str));
        let (message, help) = if is_wildcard {
            let own = quoted(&raw.text().unwrap_or_default());
            let message = format!("{own} is unreachable: {by} at {place} matches every text that it matches");
            (message, "wildcards are tried in the order of the file: put the narrower one first")
        } else {
            let message =
                format!("this descriptor is unreachable: {by} at {place} matches every value of {key}");
            (message, "wildcards take precedence over a key without a value: remove one of the two")
        };
        self.warning(At { file, place: raw.place, path: raw.path(list) }, message, help);
    }

    /// Reports a descriptor without a limit or descriptors below, which does not exempt a value either.
    fn idle(&mut self, sibling: Sibling<'_>, at: usize, reach: &Reach<'_>, path: &Path<'_>) {
        let raw = sibling.raw;
        let has_effect = raw.rate_limit.given().is_some()
            || !raw.descriptors.items().is_empty()
            || raw.metadata.given().is_some()
            || has_flag(raw);
        if !has_effect && !reach.may_exempt(at) {
            let message = "this descriptor has no effect: it has no `rate_limit` and no `descriptors`";
            let help = "add a `rate_limit`, or remove the descriptor";
            self.warning(sibling.at(raw.place, *path), message, help);
        }
    }

    fn limit(&mut self, file: usize, limit: &RawLimit, path: &Path<'_>) {
        if limit.unlimited.is_set() {
            // `lower` rejects `unlimited` beside a hold, and a matched rule replaces others whether or not it is limited.
            let has_effect = |key| ["unlimited", "hold", "replaces"].contains(&key);
            for (key, place) in limit.given_keys().into_iter().filter(|(key, _)| !has_effect(*key)) {
                let message = format!("`{key}` has no effect with `unlimited: true`");
                self.warning(At { file, place, path: *path }, message, "remove one of the two");
            }
        } else if limit.requests_per_unit.given().is_none() {
            let message = "`requests_per_unit` is missing, so every request is over the limit of 0";
            self.warning(
                At { file, place: limit.place, path: *path },
                message,
                "add a number; write 0 if that is intended",
            );
        }
        self.costly_log(file, limit, path);
        self.long_hold(file, limit, path);
        self.cut_holds(file, limit, path);
        let list = path.key("replaces");
        for replaced in limit.replaces.items() {
            let Some(name) = replaced.name.given().filter(|name| !self.names.contains(&*name.value)) else {
                continue;
            };
            let message = format!(
                "no limit of this domain has the name {}, so nothing is replaced",
                quoted(&name.value)
            );
            let own = limit.name.value().map_or("", String::as_str);
            let help = self.help_for_name(&name.value, own);
            self.warning(
                At { file, place: name.place, path: replaced.path(&list).key("name") },
                message,
                help,
            );
        }
    }

    /// Warns about holds that outlive their window: they reserve nothing in the next one.
    fn long_hold(&mut self, file: usize, limit: &RawLimit, path: &Path<'_>) {
        let Some(hold) = limit.hold.value() else { return };
        let unit = limit.unit.value().and_then(|unit| Unit::from_name(unit));
        let units = limit.unit_multiplier.value().copied().unwrap_or(1);
        let (Some(unit), Some(ttl)) = (unit, hold.ttl.given()) else { return };
        let window = Duration::from_secs(unit.seconds().saturating_mul(units));
        if duration::parse(&ttl.value).is_ok_and(|ttl| ttl > window) {
            let message = "a hold may outlive its window: it reserves nothing in the next one";
            let help = "keep it for requests that may take longer than a window; otherwise shorten `ttl`";
            self.warning(At { file, place: ttl.place, path: path.key("hold").key("ttl") }, message, help);
        }
    }

    /// Warns about an `amount` that is always cut, and a `most` that cuts nothing.
    fn cut_holds(&mut self, file: usize, limit: &RawLimit, path: &Path<'_>) {
        let Some(hold) = limit.hold.value() else { return };
        let Some(requests) = limit.requests_per_unit.value().copied().filter(|requests| *requests > 0) else {
            return;
        };
        let path = path.key("hold");
        let most = hold.most.value().and_then(|written| MostHeld::parse(written));
        if let Some(amount) = hold.amount.given() {
            let at = At { file, place: amount.place, path: path.key("amount") };
            if amount.value > requests {
                let message = format!("`amount` is above the limit of {requests}, so it is cut to the limit");
                self.warning(at, message, "one request at a time; estimate less, or raise the limit");
            } else if let Some(most) = most.filter(|most| amount.value > most.of(requests)) {
                let message = format!("`amount` is above `most`, so it is cut to {}", most.of(requests));
                self.warning(at, message, "estimate less, or raise `most`");
            }
        }
        let scheduled = limit.schedule.items().iter().filter_map(|entry| entry.requests_per_unit.value());
        let largest = scheduled.copied().fold(requests, u64::max);
        if let Some(given) = hold.most.given()
            && most.is_some_and(|most| most.of(largest) >= largest)
        {
            let message = format!("`most` is not below the limit of {largest}, to which every hold is cut");
            let help = "keep it for overrides that raise the limit; otherwise lower it, or remove it";
            self.warning(At { file, place: given.place, path: path.key("most") }, message, help);
        }
    }

    fn costly_log(&mut self, file: usize, limit: &RawLimit, path: &Path<'_>) {
        let is_log = limit.algorithm.value().and_then(|name| Kind::from_name(name)) == Some(Kind::SlidingLog);
        let Some(requests) = limit.requests_per_unit.given().filter(|given| is_log && given.value >= COSTLY)
        else {
            return;
        };
        let message = format!(
            "each counter of this `sliding_log` may keep {} hits, which take up to {} kB",
            requests.value,
            requests.value * 16 / 1000
        );
        let help = "`sliding_window` counts nearly the same with two numbers";
        self.warning(At { file, place: requests.place, path: path.key("requests_per_unit") }, message, help);
    }

    fn help_for_name(&self, name: &str, own: &str) -> String {
        match nearest(name, self.names.iter().copied().filter(|other| *other != own)) {
            Some(meant) => format!("did you mean {}?", quoted(meant)),
            None => "give the other limit this `name`, beside its `unit`".to_owned(),
        }
    }

    fn warning(&mut self, at: At<'_>, message: impl Into<String>, help: impl Into<String>) {
        self.diagnostics[at.file].warning(at.place, &at.path, message.into(), Some(help.into()));
    }
}

fn has_flag(raw: &RawDescriptor) -> bool {
    let flags = [
        &raw.shadow_mode,
        &raw.quota_mode,
        &raw.detailed_metric,
        &raw.value_to_metric,
        &raw.share_threshold,
        &raw.overrides_only,
    ];
    flags.iter().any(|flag| flag.is_set())
}

/// The reason if `value_to_metric` does not change the name of a metric.
fn value_to_metric(raw: &RawDescriptor, below: Below) -> Option<&'static str> {
    let is_wildcard = raw.text().is_some_and(|text| text.contains('*'));
    if raw.has_value() && !is_wildcard {
        Some("metrics always contain an exact value")
    } else if raw.share_threshold.is_set() {
        Some("with `share_threshold` metrics contain the pattern")
    } else if !below.counted {
        Some("no limit at or below the descriptor counts hits")
    } else if !below.plainly_named {
        Some("with `detailed_metric` metrics contain every value")
    } else {
        None
    }
}

fn set_at(flag: &Field<bool>) -> Option<Place> {
    flag.given().filter(|given| given.value).map(|given| given.key)
}
