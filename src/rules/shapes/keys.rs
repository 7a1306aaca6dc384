//! The keys that a rules file may hold, and where each of them counts.

use super::super::spelling::nearest;

/// The maps of a rules file that have keys of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Level {
    /// The file itself.
    File,
    /// An item of `descriptors`.
    Descriptor,
    /// The value of `rate_limit`.
    Limit,
    /// An item of `replaces`.
    Replaces,
}

/// Every known key and the maps in which it counts. Elsewhere it loads and does nothing.
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

/// What a key means where it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// It counts here.
    Counts,
    /// It is known and does nothing here.
    Idle,
    /// Nobody knows it.
    Unknown,
}

impl Level {
    /// What a key means on this level.
    pub(super) fn standing(self, key: &str) -> Standing {
        match places_of(key) {
            Some(levels) if levels.contains(&self) => Standing::Counts,
            Some(_) => Standing::Idle,
            None => Standing::Unknown,
        }
    }

    /// As messages say where the level is.
    pub(super) fn place(self) -> &'static str {
        match self {
            Self::File => "at the top of the file",
            Self::Descriptor => "in a descriptor",
            Self::Limit => "in `rate_limit`",
            Self::Replaces => "in an item of `replaces`",
        }
    }

    fn keys(self) -> String {
        let own = KEYS.iter().filter(|(_, levels)| levels.contains(&self));
        own.map(|(key, _)| format!("`{key}`")).collect::<Vec<_>>().join(", ")
    }

    /// What to do about an unknown key on this level.
    pub(super) fn help_for(self, unknown: &str) -> String {
        match nearest(unknown, KEYS.iter().map(|(key, _)| *key)) {
            Some(meant) if self.standing(meant) == Standing::Counts => format!("did you mean `{meant}`?"),
            Some(meant) => format!("did you mean `{meant}`? It belongs {}", home_of(meant)),
            None => format!("accepted {}: {}; below `metadata` any key is", self.place(), self.keys()),
        }
    }
}

/// True when a key is known on any level.
pub(super) fn is_known(key: &str) -> bool {
    places_of(key).is_some()
}

/// Where a known key counts, in words.
pub(super) fn home_of(key: &str) -> String {
    let levels = places_of(key).unwrap_or_default();
    levels.iter().map(|level| level.place()).collect::<Vec<_>>().join(" or ")
}

fn places_of(key: &str) -> Option<&'static [Level]> {
    KEYS.iter().find(|(known, _)| *known == key).map(|(_, levels)| *levels)
}

/// What to do about an unknown key where no level is expected.
pub(super) fn help_for_stray(unknown: &str) -> String {
    match nearest(unknown, KEYS.iter().map(|(key, _)| *key)) {
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
            (
                Level::Descriptor,
                "names",
                "did you mean `name`? It belongs in `rate_limit` or in an item of `replaces`",
            ),
            (
                Level::File,
                "rules",
                "accepted at the top of the file: `domain`, `descriptors`; below `metadata` any key is",
            ),
        ] {
            assert_eq!(level.help_for(unknown), help);
        }
    }
}
