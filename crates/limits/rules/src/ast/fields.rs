//! The keys of rules files: where each is valid, and the errors and warnings about all others.

use std::collections::HashMap;

use super::{
    super::yaml::{Content, Meaning, Node, Pair, Scalar},
    reader::{Reader, Spot, kind, scalar},
};
use text::{diagnostics::quoted, spelling::nearest};

impl Reader<'_> {
    /// Passes the value of each valid key to `take`, in order, and reports all other keys.
    pub(super) fn fields(
        &mut self,
        spot: Spot<'_>,
        pairs: &[Pair],
        level: Level,
        take: &mut dyn FnMut(&mut Self, &str, Spot<'_>),
    ) {
        let last = self.last_of_each(&spot, pairs, Some(level));
        for (at, pair) in pairs.iter().enumerate() {
            let key = key_text(pair);
            let live = spot.live && key.is_none_or(|key| last[key] == at);
            let path = spot.path.key(key.unwrap_or("?"));
            let value = spot.value(pair, &path, live);
            match key.map(|key| (key, level.status(key))) {
                Some((key, KeyStatus::Valid)) => take(self, key, value),
                Some((key, KeyStatus::Extension)) => {
                    self.diagnostics.unportable(value.key, &path, &quoted(key));
                    take(self, key, value);
                }
                Some((key, KeyStatus::NoEffect)) if live => {
                    let has_limit = pairs.iter().any(|pair| key_text(pair) == Some("rate_limit"));
                    let lost = level.loses_limit_by(key) && !has_limit;
                    let more = if lost { ", so this descriptor has no limit" } else { "" };
                    let message = format!("`{key}` has no effect here{more}");
                    let help = level.help_for_no_effect(key);
                    self.diagnostics.warning(value.key, spot.path, message, Some(help));
                    // The first pass ignores metadata anywhere.
                    if key != "metadata" {
                        self.check_ignored(value);
                    }
                }
                Some((key, KeyStatus::Unknown)) if live => {
                    self.key_error(
                        &spot,
                        pair,
                        format!("unknown key {}", quoted(key)),
                        help_for(Some(level), key),
                    );
                }
                None if live => self.key_is_not_text(&spot, pairs, at),
                _ => {}
            }
        }
    }

    /// The index of the last pair of each key. Reports the earlier ones, except merged ones, which are meant to be
    /// replaced.
    pub(super) fn last_of_each<'p>(
        &mut self,
        spot: &Spot<'_>,
        pairs: &'p [Pair],
        level: Option<Level>,
    ) -> HashMap<&'p str, usize> {
        let mut last = HashMap::with_capacity(pairs.len());
        for (at, pair) in pairs.iter().enumerate() {
            if let Some(key) = key_text(pair) {
                last.insert(key, at);
            }
        }
        for (at, pair) in pairs.iter().enumerate().filter(|(_, pair)| pair.merged().is_none() && spot.live) {
            let Some(key) = key_text(pair).filter(|key| last[key] != at) else { continue };
            let winner = &pairs[last[key]];
            let both_maps =
                [pair, winner].iter().all(|pair| matches!(pair.value.node.content, Content::Map(_)));
            let again = winner.merged().unwrap_or(winner.key.place);
            let by = if winner.merged().is_some() { " by a merge" } else { "" };
            let outcome = match level {
                Some(Level::Descriptor) if both_maps && key != "descriptors" => "the two are merged",
                _ => "the last one applies",
            };
            let message = format!("{} is set again{by} at {again}, and {outcome}", quoted(key));
            let help = match winner.merged() {
                Some(_) => "put `<<` before the keys that take precedence",
                None => "remove one of the two",
            };
            self.diagnostics.warning(pair.key.place, spot.path, message, Some(help.to_owned()));
        }
        last
    }

    /// Checks an ignored value as the first pass of the Go service does.
    fn check_ignored(&mut self, spot: Spot<'_>) {
        match &spot.node.content {
            Content::Scalar(scalar) => {
                if matches!(scalar.meaning, Meaning::Float(_) | Meaning::Large(_)) {
                    self.mismatch(
                        &spot,
                        "text, a flag or an integer",
                        "such numbers are allowed only below `metadata`",
                    );
                }
            }
            Content::List(links) => {
                for (at, link) in links.iter().enumerate() {
                    let path = spot.path.item(at);
                    let item = spot.item(link, &path);
                    if let Content::Map(pairs) = &item.node.content {
                        self.check_ignored_map(item, pairs);
                    } else {
                        let seen = kind(item.node);
                        let message = format!("expected a map in this list, got {seen}");
                        self.error(&item, message, "");
                    }
                }
            }
            Content::Map(pairs) => self.check_ignored_map(spot, pairs),
        }
    }

    fn check_ignored_map(&mut self, spot: Spot<'_>, pairs: &[Pair]) {
        let last = self.last_of_each(&spot, pairs, None);
        for (at, pair) in pairs.iter().enumerate() {
            let Some(key) = key_text(pair) else {
                self.key_is_not_text(&spot, pairs, at);
                continue;
            };
            if last[key] != at || key == "metadata" {
                continue;
            }
            let path = spot.path.key(key);
            if is_of_go(key) {
                self.check_ignored(spot.value(pair, &path, true));
            } else {
                self.key_error(&spot, pair, format!("unknown key {}", quoted(key)), help_for(None, key));
            }
        }
    }

    /// True for a Kubernetes manifest, which is reported.
    pub(super) fn is_manifest(&mut self, spot: &Spot<'_>, pairs: &[Pair]) -> bool {
        let value =
            |name: &str| pairs.iter().find(|pair| key_text(pair) == Some(name)).map(|pair| &pair.value.node);
        let (Some(_), Some(kind)) = (value("apiVersion"), value("kind")) else { return false };
        let Content::Scalar(kind) = &kind.content else { return false };
        let message =
            format!("this is a Kubernetes manifest of the kind {}, not a rules file", quoted(&kind.text));
        let help = match &*kind.text {
            "ConfigMap" => "move the text of each key below `data` into a file of its own",
            _ => "a rules file has `domain` and `descriptors`",
        };
        self.error(spot, message, help);
        true
    }

    fn key_is_not_text(&mut self, spot: &Spot<'_>, pairs: &[Pair], at: usize) {
        let pair = &pairs[at];
        if let Some((number, digits)) = grouped_number(pairs, at) {
            let spot = Spot { node: &number.value.node, place: number.value.place, ..*spot };
            let message =
                format!("a number has no commas: the one in {} begins another key", quoted(&digits));
            self.error(&spot, message, format!("write {}", quoted(&digits.replace(',', ""))));
            return;
        }
        let message = format!("expected a text key, got {}", kind(&pair.key.node));
        self.key_error(spot, pair, message, "other keys are accepted only below `metadata`".to_owned());
    }

    fn key_error(&mut self, spot: &Spot<'_>, pair: &Pair, message: String, help: String) {
        let via = spot.via.or(pair.merged()).or(pair.key.alias());
        self.error(&Spot { node: &pair.key.node, place: pair.key.place, via, ..*spot }, message, help);
    }
}

/// The pair of a number like `{requests_per_unit: 10,000}`, and the number as written, if this key is one of its groups of
/// digits.
fn grouped_number(pairs: &[Pair], at: usize) -> Option<(&Pair, String)> {
    let digits = |node: &Node| match &node.content {
        Content::Scalar(Scalar { text, meaning: Meaning::Int(_) })
            if text.bytes().all(|b| b.is_ascii_digit()) =>
        {
            Some(text.clone())
        }
        _ => None,
    };
    let is_group = |pair: &Pair| {
        scalar(&pair.value.node) == Some(&Meaning::Null)
            && digits(&pair.key.node).is_some_and(|digits| digits.len() == 3)
    };
    let first = pairs[..=at].iter().rposition(|pair| !is_group(pair)).filter(|first| *first < at)?;
    let groups = pairs[first + 1..].iter().take_while(|pair| is_group(pair));
    let written: Vec<_> = groups.filter_map(|pair| digits(&pair.key.node)).collect();
    Some((&pairs[first], format!("{},{}", digits(&pairs[first].value.node)?, written.join(","))))
}

fn key_text(pair: &Pair) -> Option<&str> {
    match &pair.key.node.content {
        Content::Scalar(scalar) => match &scalar.meaning {
            Meaning::Text => Some(&scalar.text),
            Meaning::Binary(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        },
        _ => None,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Level {
    File,
    Descriptor,
    /// The value of `rate_limit`, or an item of it.
    Limit,
    Replaces,
    Calendar,
    Hold,
    /// An item of `schedule`.
    Schedule,
}

/// The Go service's keys, and the maps in which each is valid. Elsewhere it has no effect.
const KEYS: [(&str, &[Level]); 16] = [
    ("domain", &[Level::File]),
    ("descriptors", &[Level::File, Level::Descriptor]),
    ("key", &[Level::Descriptor]),
    ("value", &[Level::Descriptor]),
    ("rate_limit", &[Level::Descriptor]),
    ("shadow_mode", &[Level::Descriptor]),
    ("quota_mode", &[Level::Descriptor]),
    ("detailed_metric", &[Level::Descriptor]),
    ("value_to_metric", &[Level::Descriptor]),
    ("share_threshold", &[Level::Descriptor]),
    ("metadata", &[Level::Descriptor]),
    ("unit", &[Level::Limit]),
    ("requests_per_unit", &[Level::Limit, Level::Schedule]),
    ("unlimited", &[Level::Limit]),
    ("name", &[Level::Limit, Level::Replaces]),
    ("replaces", &[Level::Limit]),
];

/// Extensions, which the Go service rejects. In other maps they are errors, because no file in use has them there.
const OWN_KEYS: [(&str, &[Level]); 20] = [
    ("on_store_failure", &[Level::File]),
    ("over_limit_body", &[Level::Descriptor]),
    ("overrides_only", &[Level::Descriptor]),
    ("unit_multiplier", &[Level::Limit]),
    ("algorithm", &[Level::Limit]),
    ("burst", &[Level::Limit]),
    ("counting", &[Level::Limit]),
    ("calendar", &[Level::Limit]),
    ("time_zone", &[Level::Calendar, Level::Schedule]),
    ("week_start", &[Level::Calendar]),
    ("anchor_day", &[Level::Calendar]),
    ("hold", &[Level::Limit]),
    ("amount", &[Level::Hold]),
    ("ttl", &[Level::Hold]),
    ("unknown", &[Level::Hold]),
    ("in", &[Level::Hold]),
    ("schedule", &[Level::Limit]),
    ("days", &[Level::Schedule]),
    ("from", &[Level::Schedule]),
    ("to", &[Level::Schedule]),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum KeyStatus {
    Valid,
    /// It is valid here, but not in the Go service.
    Extension,
    /// It is known but has no effect here.
    NoEffect,
    Unknown,
}

impl Level {
    fn status(self, key: &str) -> KeyStatus {
        let counts = places_of(key).is_some_and(|levels| levels.contains(&self));
        match (is_of_go(key), counts) {
            (true, true) => KeyStatus::Valid,
            (true, false) => KeyStatus::NoEffect,
            // `calendar` or `schedule` itself has been reported.
            (false, true) if matches!(self, Self::Calendar | Self::Schedule) => KeyStatus::Valid,
            (false, true) => KeyStatus::Extension,
            (false, false) => KeyStatus::Unknown,
        }
    }

    fn place(self) -> &'static str {
        match self {
            Self::File => "at the top of the file",
            Self::Descriptor => "in a descriptor",
            Self::Limit => "in `rate_limit`",
            Self::Replaces => "in an item of `replaces`",
            Self::Calendar => "in `calendar`",
            Self::Hold => "in `hold`",
            Self::Schedule => "in an item of `schedule`",
        }
    }

    fn accepted(self) -> String {
        keys(self).map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ")
    }

    fn loses_limit_by(self, key: &str) -> bool {
        self == Self::Descriptor && places_of(key).is_some_and(|levels| levels.contains(&Self::Limit))
    }

    fn help_for_no_effect(self, key: &str) -> String {
        let homes = places_of(key).unwrap_or_default();
        let place = match self {
            Self::Limit if homes.contains(&Self::Descriptor) => ": move it out of `rate_limit`, beside `key`",
            Self::Descriptor if homes.contains(&Self::Limit) => ": move it there",
            _ => "",
        };
        format!("it belongs {}{place}", home_of(key))
    }
}

fn is_of_go(key: &str) -> bool {
    KEYS.iter().any(|(known, _)| *known == key)
}

fn home_of(key: &str) -> String {
    let levels = places_of(key).unwrap_or_default();
    // What a schedule shares with other maps is meant for those.
    let levels = levels.iter().filter(|level| **level != Level::Schedule || levels.len() == 1);
    levels.map(|level| level.place()).collect::<Vec<_>>().join(" or ")
}

fn places_of(key: &str) -> Option<&'static [Level]> {
    all().find(|(known, _)| *known == key).map(|(_, levels)| levels)
}

/// The keys that are valid on a level.
pub(crate) fn keys(level: Level) -> impl Iterator<Item = &'static str> {
    all().filter(move |(_, levels)| levels.contains(&level)).map(|(key, _)| key)
}

fn all() -> impl Iterator<Item = (&'static str, &'static [Level])> {
    KEYS.into_iter().chain(OWN_KEYS)
}

/// The help for an unknown key on this level, or in an ignored map.
fn help_for(level: Option<Level>, unknown: &str) -> String {
    if let Some((key, value)) = unknown.split_once(':')
        && places_of(key).is_some()
    {
        return format!("put a space after the colon: {}", quoted(&format!("{key}: {value}")));
    }
    match (nearest(unknown, all().map(|(key, _)| key)), level) {
        (Some(known), _) if known == unknown => format!("it belongs {}", home_of(known)),
        (Some(meant), Some(level)) if places_of(meant).is_some_and(|levels| levels.contains(&level)) => {
            format!("did you mean `{meant}`?")
        }
        (Some(meant), _) => format!("did you mean `{meant}`? It belongs {}", home_of(meant)),
        (None, Some(level)) => {
            format!("accepted {}: {}; any key is accepted below `metadata`", level.place(), level.accepted())
        }
        (None, None) => "any key is accepted only below `metadata`".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_the_nearest_key_and_its_level() {
        for (level, unknown, help) in [
            (Level::Descriptor, "ratelimit", "did you mean `rate_limit`?"),
            (Level::Limit, "shadowMode", "did you mean `shadow_mode`? It belongs in a descriptor"),
            (Level::Replaces, "nmae", "did you mean `name`?"),
            (Level::File, "onStoreFailures", "did you mean `on_store_failure`?"),
            (Level::Limit, "on_store_failure", "it belongs at the top of the file"),
            (Level::Limit, "unitMultiplier", "did you mean `unit_multiplier`?"),
            (Level::Descriptor, "burst", "it belongs in `rate_limit`"),
            (
                Level::Descriptor,
                "names",
                "did you mean `name`? It belongs in `rate_limit` or in an item of `replaces`",
            ),
            (
                Level::File,
                "rules",
                "accepted at the top of the file: `domain`, `descriptors`, `on_store_failure`; any key is accepted below `metadata`",
            ),
        ] {
            assert_eq!(help_for(Some(level), unknown), help);
        }
    }
}
