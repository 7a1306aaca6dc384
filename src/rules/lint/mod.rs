//! Lints: what is valid but probably not what was meant.
//!
//! Called by [`compile`](super::compile()) for domains without errors. A warning here must be right:
//! what may be meant in some set-up is left alone.

mod flags;
mod reach;

use std::collections::HashSet;

use super::{
    diagnostic::Place,
    diagnostics::{Diagnostics, Path, quoted},
    lower::Sibling,
    spelling::nearest,
};
use crate::limiter::algorithm::Kind;
use crate::rules::ast::{RawDescriptor, RawFile, RawLimit};
use reach::Reach;

/// A log of so many hits takes up to 160 kB, as much as 6,000 other counters.
const COSTLY: u32 = 10_000;

/// Reports the lints of a domain, given its files and all descriptors of its first level.
pub(super) fn of_domain(
    files: &[(usize, &RawFile)],
    siblings: &[Sibling<'_>],
    diagnostics: &mut [Diagnostics],
) {
    for (file, raw) in files {
        if let Some(domain) = raw.domain.given()
            && raw.descriptors.items().is_empty()
        {
            let message = format!(
                "the domain {} has no descriptors here, so the {} limits nothing",
                quoted(&domain.value),
                diagnostics[*file].kind(),
            );
            diagnostics[*file].warning(domain.place, &Path::File.key("domain"), message, None);
        }
    }
    let mut names = HashSet::new();
    for sibling in siblings {
        gather_names(sibling.raw, &mut names);
    }
    let list = Path::File.key("descriptors");
    Walk { diagnostics, names }.level(siblings, &list);
}

/// The names of limits at or below a descriptor.
fn gather_names<'r>(raw: &'r RawDescriptor, names: &mut HashSet<&'r str>) {
    names.extend(raw.limits().iter().filter_map(|limit| limit.name.value()).map(String::as_str));
    for child in raw.descriptors.items() {
        gather_names(child, names);
    }
}

struct Walk<'w> {
    diagnostics: &'w mut [Diagnostics],
    names: HashSet<&'w str>,
}

/// The limits at or below a descriptor that its flags can affect.
#[derive(Clone, Copy, Default)]
struct Below {
    /// A limit that counts.
    counted: bool,
    /// A limit that counts and whose metrics are not named by `detailed_metric`.
    plainly_named: bool,
}

impl Walk<'_> {
    fn level(&mut self, siblings: &[Sibling<'_>], list: &Path<'_>) -> Below {
        let texts: Vec<String> =
            siblings.iter().map(|sibling| sibling.raw.text().unwrap_or_default()).collect();
        let reach = Reach::of(&texts);
        let mut below = Below::default();
        for (at, sibling) in siblings.iter().enumerate() {
            let path = list.item(sibling.raw.index);
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
            // Its overrides count.
            below.counted = true;
            below.plainly_named |= !raw.detailed_metric.is_set();
        }
        for idle in flags::idle(raw, below) {
            let message = format!("`{}` has no effect here: {}", idle.key, idle.reason);
            self.warning(sibling.file, idle.place, path, message, "remove it");
        }
        below
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
            let message = format!("{own} is unreachable: {by} at {place} matches all that it does");
            (message, "wildcards are tried in file order: put the narrower one first")
        } else {
            let message =
                format!("this descriptor is unreachable: {by} at {place} matches every value of {key}");
            (message, "wildcards take precedence over a key without value: remove one of the two")
        };
        self.warning(file, raw.place, &list.item(raw.index), message, help);
    }

    /// Reports a descriptor without a limit and levels below that exempts no value either.
    fn idle(&mut self, sibling: Sibling<'_>, at: usize, reach: &Reach<'_>, path: &Path<'_>) {
        let raw = sibling.raw;
        let says_more = raw.rate_limit.given().is_some()
            || !raw.descriptors.items().is_empty()
            || raw.metadata.given().is_some()
            || flags::any_set(raw);
        if !says_more && !reach.may_exempt(at) {
            let message =
                "this descriptor has no effect: it has no `rate_limit` and no `descriptors`".to_owned();
            self.warning(
                sibling.file,
                raw.place,
                path,
                message,
                "add a `rate_limit`, or remove the descriptor",
            );
        }
    }

    fn limit(&mut self, file: usize, limit: &RawLimit, path: &Path<'_>) {
        if limit.unlimited.is_set() {
            let idle = [
                ("requests_per_unit", limit.requests_per_unit.given().map(|given| given.key)),
                ("unit", limit.unit.given().map(|given| given.key)),
                ("name", limit.name.given().map(|given| given.key)),
                ("unit_multiplier", limit.unit_multiplier.given().map(|given| given.key)),
                ("algorithm", limit.algorithm.given().map(|given| given.key)),
                ("burst", limit.burst.given().map(|given| given.key)),
                ("counting", limit.counting.given().map(|given| given.key)),
            ];
            for (key, place) in idle {
                let Some(place) = place else { continue };
                let message = format!("`{key}` has no effect with `unlimited: true`");
                self.warning(file, place, path, message, "remove one of the two");
            }
        } else if limit.requests_per_unit.given().is_none() {
            let message =
                "`requests_per_unit` is missing, so every request is over the limit of 0".to_owned();
            self.warning(file, limit.place, path, message, "add a number; write 0 if that is intended");
        }
        self.costly_log(file, limit, path);
        let list = path.key("replaces");
        for (at, replaced) in limit.replaces.items().iter().enumerate() {
            let Some(name) = replaced.name.given().filter(|name| !self.names.contains(&*name.value)) else {
                continue;
            };
            let message = format!(
                "no limit of this domain has the name {}, so nothing is replaced",
                quoted(&name.value)
            );
            let own = limit.name.value().map_or("", String::as_str);
            let help = self.help_for_name(&name.value, own);
            self.warning(file, name.place, &list.item(at).key("name"), message, &help);
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
            u64::from(requests.value) * 16 / 1000
        );
        let help = "`sliding_window` counts nearly the same in two numbers";
        self.warning(file, requests.place, &path.key("requests_per_unit"), message, help);
    }

    fn help_for_name(&self, name: &str, own: &str) -> String {
        match nearest(name, self.names.iter().copied().filter(|other| *other != own)) {
            Some(meant) => format!("did you mean {}?", quoted(meant)),
            None => "give the other limit this `name`, beside its `unit`".to_owned(),
        }
    }

    fn warning(&mut self, file: usize, place: Place, path: &Path<'_>, message: String, help: &str) {
        self.diagnostics[file].warning(place, path, message, Some(help.to_owned()));
    }
}
