//! The keys of rules files, a row each. A row defines everything about its key but its meaning: its field in the AST, how it
//! is read, the messages about misplaced and misspelt keys, and the JSON Schema, of which the table in
//! docs/reference/rules.md is made.
//!
//! A row has the field (and the key, where it is another word), the type of its value and a reader if the type has several
//! (`as`), whether the Go service knows the key (`go`) or rejects it (`own`), what the schema accepts, and the description.
//! `lower` takes each map apart by name, so that a new row does not compile until its value is used.

use serde_json::{Value, json};

use super::{
    Field, Rare, RawLimits, Read,
    reader::{Reader, Spot},
};
use crate::{
    model::Metadata,
    schema::{TEXT, flag, list, name, names, number, reference, time},
};
use faults::OnStoreFailure;
use limit::{CountingMode, Kind, MAX_LIMIT, Unit, calendar::Weekday};
use text::{
    diagnostics::{Path, Place, quoted},
    spelling::nearest,
};

/// A key of a map.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    is_of_go: bool,
    /// The values that its JSON Schema accepts.
    pub(crate) accepts: fn() -> Value,
    pub(crate) about: &'static str,
}

/// A map of a rules file, as it is read.
pub(crate) trait RawMap: Default {
    const KIND: MapKind;

    /// An empty map, which is this item of a list, counted from 0.
    fn at(place: Place, index: usize) -> Self;

    /// Reads the value of a key that is valid in this map.
    fn set(&mut self, key: &str, reader: &mut Reader<'_>, value: Spot<'_>);

    /// Its path, as an item of `list`.
    fn path<'a>(&self, list: &'a Path<'a>) -> Path<'a>;

    /// The keys that are given, with their places.
    fn given_keys(&self) -> Vec<(&'static str, Place)>;
}

macro_rules! key_name {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $name:literal) => {
        $name
    };
}

macro_rules! read {
    ($reader:ident, $value:ident, $field:expr) => {
        Read::read($reader, $value, $field.set())
    };
    ($reader:ident, $value:ident, $field:expr, $read:expr) => {
        *$field.set() = $read($reader, $value)
    };
}

macro_rules! maps {
    ($(
        $(#[$meta:meta])*
        $map:ident is $kind:ident, $definition:literal, $place:literal {
            $($field:ident $(= $name:literal)?: $holder:ident<$type:ty> $(as $read:expr)?, $origin:ident, $accepts:expr, $about:literal;)*
        }
    )*) => {
        $(
            $(#[$meta])*
            #[derive(Debug, Default)]
            pub(crate) struct $map {
                pub(crate) place: Place,
                pub(crate) index: usize,
                $(pub(crate) $field: $holder<$type>,)*
            }

            impl RawMap for $map {
                const KIND: MapKind = MapKind::$kind;

                fn at(place: Place, index: usize) -> Self {
                    Self { place, index, ..Self::default() }
                }

                fn set(&mut self, key: &str, reader: &mut Reader<'_>, value: Spot<'_>) {
                    match key {
                        $(key_name!($field $($name)?) => read!(reader, value, self.$field $(, $read)?),)*
                        _ => unreachable!("`{key}` has no row in this map"),
                    }
                }

                fn path<'a>(&self, list: &'a Path<'a>) -> Path<'a> {
                    list.item(self.index)
                }

                fn given_keys(&self) -> Vec<(&'static str, Place)> {
                    let keys = [$((key_name!($field $($name)?), self.$field.key())),*];
                    keys.into_iter().filter_map(|(key, place)| Some((key, place?))).collect()
                }
            }
        )*

        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum MapKind {
            $($kind,)*
        }

        impl MapKind {
            pub(crate) const ALL: [Self; [$($definition),*].len()] = [$(Self::$kind),*];

            /// Its name in the JSON Schema.
            pub(crate) const fn definition(self) -> &'static str {
                match self {
                    $(Self::$kind => $definition,)*
                }
            }

            /// Where its keys are, in messages.
            const fn place(self) -> &'static str {
                match self {
                    $(Self::$kind => $place,)*
                }
            }

            /// The keys that are valid in this map.
            pub(crate) fn keys(self) -> &'static [Key] {
                match self {
                    $(Self::$kind => {
                        const KEYS: &[Key] = &[$(Key {
                            name: key_name!($field $($name)?),
                            is_of_go: is_of_go!($origin),
                            accepts: || $accepts,
                            about: $about,
                        }),*];
                        KEYS
                    })*
                }
            }
        }
    };
}

macro_rules! is_of_go {
    (go) => {
        true
    };
    (own) => {
        false
    };
}

maps! {
    RawFile is File, "file", "at the top of the file" {
        domain: Field<String>, go, name(), "The domain of Envoy's rate limit filter.";
        descriptors: Field<Vec<RawDescriptor>>, go, list(MapKind::Descriptor, 0), "One level of the tree of descriptors.";
        on_store_failure: Rare<String>, own, names(OnStoreFailure::ALL.map(OnStoreFailure::name)),
            "The policy while the counters cannot be reached.";
    }
    RawDescriptor is Descriptor, "descriptor", "in a descriptor" {
        descriptors: Field<Vec<RawDescriptor>>, go, list(MapKind::Descriptor, 0), "One level of the tree of descriptors.";
        key: Field<String>, go, name(), "The key of a request's entry. May contain `*`.";
        value: Field<String>, go, json!({"type": TEXT}),
            "The value of a request's entry, compared as text. May contain `*`. Without it every value matches.";
        // With `anyOf` an editor would report the mismatch of both.
        rate_limit: Field<RawLimits>, go, json!({
            "if": {"type": "array"},
            "then": list(MapKind::Limit, 2),
            "else": {"if": {"type": "null"}, "else": reference(MapKind::Limit)},
        }), "The limit of this level, or a list of several.";
        shadow_mode: Rare<bool>, go, flag(), "Counts, but is never over limit.";
        quota_mode: Rare<bool>, go, flag(), "Over limit only when every quota of the request is.";
        detailed_metric: Rare<bool>, go, flag(), "Metric names contain the request's keys and values of all levels.";
        value_to_metric: Rare<bool>, go, flag(), "Metric names contain the request's value of this level.";
        share_threshold: Rare<bool>, go, flag(), "All values that match this wildcard share one counter.";
        metadata: Rare<Metadata>, go, json!({"type": ["object", "null"]}),
            "Any map. Sent to Envoy when the descriptor is allowed.";
        over_limit_body: Rare<String>, own, json!({"type": TEXT}), "The body of over-limit responses.";
        overrides_only: Rare<bool>, own, flag(), "Limits only values that have an override.";
    }
    /// The value of `rate_limit`, or an item of it.
    RawLimit is Limit, "limit", "in `rate_limit`" {
        unit: Field<String>, go, names(Unit::ALL.map(Unit::name)), "The unit of the window.";
        requests_per_unit: Field<u64> as Reader::limit, go, number(0, MAX_LIMIT),
            "Requests in a window. 0 allows none.";
        unlimited: Rare<bool>, go, flag(), "Allows every request. A limit has either this or a unit.";
        name: Rare<String>, go, json!({"type": TEXT}), "The name of the limit in responses, and in `replaces`.";
        replaces: Rare<Vec<RawReplaces>>, go, list(MapKind::Replaces, 0),
            "Limits that do not count when this one matches.";
        unit_multiplier: Rare<u64> as Reader::number::<{ u32::MAX as u64 }>, own,
            number(1, u32::MAX.into()), "Units in a window, up to 10 years.";
        algorithm: Rare<String>, own, names(Kind::ALL.map(Kind::name)), "How requests are counted.";
        burst: Rare<u64> as Reader::number::<MAX_LIMIT>, own,
            number(1, Kind::TokenBucket.most()), "The capacity of a bucket.";
        counting: Rare<String>, own, names(CountingMode::ALL.map(CountingMode::name)),
            "`leased` lets a replica reserve hits of a hot key ahead of time.";
        calendar: Rare<RawCalendar>, own, reference(MapKind::Calendar),
            "Windows are days, weeks, months or years of a time zone.";
        hold: Rare<RawHold>, own, reference(MapKind::Hold),
            "Reserves what a request may cost until its cost is known.";
        schedule: Rare<Vec<RawScheduleEntry>>, own, list(MapKind::Schedule, 1),
            "Other numbers of requests at some times: the first entry that holds is in force.";
    }
    RawReplaces is Replaces, "replaces", "in an item of `replaces`" {
        name: Field<String>, go, json!({"type": TEXT}), "The name of the limit in responses, and in `replaces`.";
    }
    RawCalendar is Calendar, "calendar", "in `calendar`" {
        time_zone: Field<String>, own, json!({"type": TEXT}), "A name of the IANA time zone database. UTC by default.";
        week_start: Field<String>, own, names(Weekday::ALL.map(Weekday::name)),
            "The first day of a week. Monday by default.";
        anchor_day: Field<u64> as Reader::day, own, json!({"type": ["integer", "null"], "minimum": 1, "maximum": 31}),
            "The first day of a month. In a shorter month it is the last day.";
    }
    RawHold is Hold, "hold", "in `hold`" {
        amount: Field<u64> as Reader::number::<MAX_LIMIT>, own, number(1, MAX_LIMIT),
            "The estimate of a request without a `hits_addend`.";
        most: Field<String>, own, json!({
            "type": ["integer", "string", "null"], "minimum": 1, "maximum": MAX_LIMIT, "pattern": "^([0-9_]+|([1-9][0-9]?|100)%)$",
        }), "What one request holds at most: a number of hits, or a percentage of the limit, such as `20%`.";
        ttl: Field<String>, own, name(), "The time after which a hold ends by itself, such as `15m`.";
        unknown: Field<String>, own, json!({"type": TEXT}),
            "What a hold costs that ends without a cost: `held`, `zero` or a number.";
        currency = "in": Field<String>, own, name(), "The currency in which its cost is stated, such as `tokens`.";
    }
    /// An item of `schedule`.
    RawScheduleEntry is Schedule, "schedule", "in an item of `schedule`" {
        requests_per_unit: Field<u64> as Reader::limit, go, number(0, MAX_LIMIT),
            "Requests in a window. 0 allows none.";
        time_zone: Field<String>, own, json!({"type": TEXT}), "A name of the IANA time zone database. UTC by default.";
        days: Field<Vec<Field<String>>>, own, json!({"type": ["string", "array", "null"], "items": {"type": "string"}, "minItems": 1}),
            "Days of the week, such as `mon-fri` or `[mon, wed]`. Every day by default.";
        from: Field<String>, own, time(), "The local time at which the entry begins to hold. 00:00 by default.";
        to: Field<String>, own, time(),
            "The local time at which the entry ends to hold, on the next day if it is not after `from`. 24:00 by default.";
    }
}

pub(super) enum KeyStatus {
    Valid,
    /// It is valid here, but not in the Go service.
    Extension,
    /// It is known but has no effect here.
    NoEffect,
    Unknown,
}

impl MapKind {
    /// Extensions are errors in other maps, because no file in use has them there.
    pub(super) fn status(self, key: &str) -> KeyStatus {
        match (is_of_go(key), self.has(key)) {
            (true, true) => KeyStatus::Valid,
            (true, false) => KeyStatus::NoEffect,
            // `calendar` or `schedule` itself has been reported.
            (false, true) if matches!(self, Self::Calendar | Self::Schedule) => KeyStatus::Valid,
            (false, true) => KeyStatus::Extension,
            (false, false) => KeyStatus::Unknown,
        }
    }

    pub(super) fn has(self, key: &str) -> bool {
        self.keys().iter().any(|known| known.name == key)
    }

    pub(super) fn help_for_no_effect(self, key: &str) -> String {
        let place = match self {
            Self::Limit if Self::Descriptor.has(key) => ": move it out of `rate_limit`, beside `key`",
            Self::Descriptor if Self::Limit.has(key) => ": move it there",
            _ => "",
        };
        format!("it belongs {}{place}", home_of(key))
    }
}

pub(super) fn is_of_go(key: &str) -> bool {
    all().any(|known| known.is_of_go && known.name == key)
}

/// Every key, those of the Go service first.
fn all() -> impl Iterator<Item = &'static Key> {
    let with_origin = |is_of_go| {
        let keys = MapKind::ALL.into_iter().flat_map(MapKind::keys);
        keys.filter(move |key| key.is_of_go == is_of_go)
    };
    with_origin(true).chain(with_origin(false))
}

fn home_of(key: &str) -> String {
    let maps: Vec<MapKind> = MapKind::ALL.into_iter().filter(|map| map.has(key)).collect();
    // What a schedule shares with other maps is meant for those.
    let maps = maps.iter().filter(|map| **map != MapKind::Schedule || maps.len() == 1);
    maps.map(|map| map.place()).collect::<Vec<_>>().join(" or ")
}

/// The help for an unknown key in this map, or in an ignored one.
pub(super) fn help_for(map: Option<MapKind>, unknown: &str) -> String {
    if let Some((key, value)) = unknown.split_once(':')
        && all().any(|known| known.name == key)
    {
        return format!("put a space after the colon: {}", quoted(&format!("{key}: {value}")));
    }
    match (nearest(unknown, all().map(|key| key.name)), map) {
        (Some(known), _) if known == unknown => format!("it belongs {}", home_of(known)),
        (Some(meant), Some(map)) if map.has(meant) => format!("did you mean `{meant}`?"),
        (Some(meant), _) => format!("did you mean `{meant}`? It belongs {}", home_of(meant)),
        (None, Some(map)) => {
            let accepted: Vec<String> = map.keys().iter().map(|key| format!("`{}`", key.name)).collect();
            format!("accepted {}: {}; any key is accepted below `metadata`", map.place(), accepted.join(", "))
        }
        (None, None) => "any key is accepted only below `metadata`".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_the_nearest_key_and_its_level() {
        for (map, unknown, help) in [
            (MapKind::Descriptor, "ratelimit", "did you mean `rate_limit`?"),
            (MapKind::Limit, "shadowMode", "did you mean `shadow_mode`? It belongs in a descriptor"),
            (MapKind::Replaces, "nmae", "did you mean `name`?"),
            (MapKind::File, "onStoreFailures", "did you mean `on_store_failure`?"),
            (MapKind::Limit, "on_store_failure", "it belongs at the top of the file"),
            (MapKind::Limit, "unitMultiplier", "did you mean `unit_multiplier`?"),
            (MapKind::Descriptor, "burst", "it belongs in `rate_limit`"),
            (
                MapKind::Descriptor,
                "names",
                "did you mean `name`? It belongs in `rate_limit` or in an item of `replaces`",
            ),
            (
                MapKind::File,
                "rules",
                "accepted at the top of the file: `domain`, `descriptors`, `on_store_failure`; any key is accepted below `metadata`",
            ),
        ] {
            assert_eq!(help_for(Some(map), unknown), help);
        }
    }
}
