//! The keys of rules files, and where each is valid.

use super::super::spelling::nearest;

/// The maps of a rules file that have keys of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Level {
    /// The file itself.
    File,
    /// An item of `descriptors`.
    Descriptor,
    /// The value of `rate_limit`, or an item of it.
    Limit,
    /// An item of `replaces`.
    Replaces,
}

/// The Go service's keys and the maps in which each is valid. Elsewhere it has no effect.
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
    ("requests_per_unit", &[Level::Limit]),
    ("unlimited", &[Level::Limit]),
    ("name", &[Level::Limit, Level::Replaces]),
    ("replaces", &[Level::Limit]),
];

/// Extensions, which the Go service rejects. Elsewhere they are errors: no file in use has them there.
const OWN_KEYS: [(&str, &[Level]); 7] = [
    ("on_store_failure", &[Level::File]),
    ("over_limit_body", &[Level::Descriptor]),
    ("overrides_only", &[Level::Descriptor]),
    ("unit_multiplier", &[Level::Limit]),
    ("algorithm", &[Level::Limit]),
    ("burst", &[Level::Limit]),
    ("counting", &[Level::Limit]),
];

/// The meaning of a key on a level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeyStatus {
    /// It is valid here.
    Valid,
    /// It is valid here, but not in the Go service.
    Extension,
    /// It is known but has no effect here.
    NoEffect,
    /// It is not known.
    Unknown,
}

impl Level {
    /// The meaning of a key on this level.
    pub(super) fn status(self, key: &str) -> KeyStatus {
        let counts = places_of(key).is_some_and(|levels| levels.contains(&self));
        match (is_of_go(key), counts) {
            (true, true) => KeyStatus::Valid,
            (true, false) => KeyStatus::NoEffect,
            (false, true) => KeyStatus::Extension,
            (false, false) => KeyStatus::Unknown,
        }
    }

    /// The level in messages.
    pub(super) fn place(self) -> &'static str {
        match self {
            Self::File => "at the top of the file",
            Self::Descriptor => "in a descriptor",
            Self::Limit => "in `rate_limit`",
            Self::Replaces => "in an item of `replaces`",
        }
    }

    fn keys(self) -> String {
        let accepted = all().filter(|(_, levels)| levels.contains(&self));
        accepted.map(|(key, _)| format!("`{key}`")).collect::<Vec<_>>().join(", ")
    }

    /// True for a key of `rate_limit` in the descriptor itself.
    pub(super) fn loses_limit_by(self, key: &str) -> bool {
        self == Self::Descriptor && places_of(key).is_some_and(|levels| levels.contains(&Self::Limit))
    }

    /// The help for a known key without effect on this level.
    pub(super) fn help_for_no_effect(self, key: &str) -> String {
        let homes = places_of(key).unwrap_or_default();
        let place = match self {
            Self::Limit if homes.contains(&Self::Descriptor) => ": move it out of `rate_limit`, beside `key`",
            Self::Descriptor if homes.contains(&Self::Limit) => ": move it there",
            _ => "",
        };
        format!("it belongs {}{place}", home_of(key))
    }

    /// The help for an unknown key on this level.
    pub(super) fn help_for(self, unknown: &str) -> String {
        match nearest(unknown, all().map(|(key, _)| key)) {
            Some(known) if known == unknown => format!("it belongs {}", home_of(known)),
            Some(meant) if places_of(meant).is_some_and(|levels| levels.contains(&self)) => {
                format!("did you mean `{meant}`?")
            }
            Some(meant) => format!("did you mean `{meant}`? It belongs {}", home_of(meant)),
            None => format!("accepted {}: {}; below `metadata` any key is", self.place(), self.keys()),
        }
    }
}

/// True when the Go service knows a key, on any level.
pub(super) fn is_of_go(key: &str) -> bool {
    KEYS.iter().any(|(known, _)| *known == key)
}

/// Where a known key is valid, in words.
fn home_of(key: &str) -> String {
    let levels = places_of(key).unwrap_or_default();
    levels.iter().map(|level| level.place()).collect::<Vec<_>>().join(" or ")
}

fn places_of(key: &str) -> Option<&'static [Level]> {
    all().find(|(known, _)| *known == key).map(|(_, levels)| levels)
}

fn all() -> impl Iterator<Item = (&'static str, &'static [Level])> {
    KEYS.into_iter().chain(OWN_KEYS)
}

/// The help for an unknown key where no level is expected.
pub(super) fn help_for_stray(unknown: &str) -> String {
    match nearest(unknown, all().map(|(key, _)| key)) {
        Some(known) if known == unknown => format!("it belongs {}", home_of(known)),
        Some(meant) => format!("did you mean `{meant}`? It belongs {}", home_of(meant)),
        None => "only below `metadata` any key is accepted".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_says_what_was_meant_and_where_it_belongs() {
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
                "accepted at the top of the file: `domain`, `descriptors`, `on_store_failure`; below \
                 `metadata` any key is",
            ),
        ] {
            assert_eq!(level.help_for(unknown), help);
        }
    }
}
