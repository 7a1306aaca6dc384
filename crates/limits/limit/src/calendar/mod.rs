//! Calendars: the days, weeks, months and years of a time zone, as windows of time, and [schedules](schedule) by its
//! clock.
//!
//! A [`Calendar`] is a reference to the windows of a cycle in a zone, which a limit copies. The window of an instant is
//! computed once a window and remembered by all threads; a lookup is two atomic loads. The zone data is in the binary,
//! so that replicas need no files; [`zone::data_version`] names it.
//!
//! ```
//! use limit::calendar::{AnchorDay, Calendar, Cycle, Zone};
//! use clock::Time;
//!
//! let berlin = Zone::find("europe/berlin").unwrap();
//! let calendar = Calendar::new(berlin, Cycle::Month(AnchorDay::new(15).unwrap()));
//! assert_eq!(calendar.to_string(), "Europe/Berlin, from the 15th");
//!
//! // 2026-11-23T09:00:00Z is in the month from 2026-11-15 to 2026-12-15, local time.
//! let (start, end) = calendar.window(Time::from_seconds(1_795_424_400));
//! assert_eq!((start.seconds(), end.seconds()), (1_794_697_200, 1_797_289_200));
//! ```

mod boundary;
mod recent;
pub mod schedule;
#[cfg(test)]
mod tests;
pub mod zone;

use std::fmt;

use clock::Time;
use recent::Recent;
use serde::Serialize;
pub use zone::Zone;

/// The windows of a cycle in a time zone.
#[derive(Clone, Copy)]
pub struct Calendar(&'static Windows);

/// What is kept of a calendar: there is one for each cycle of a zone.
struct Windows {
    zone: Zone,
    cycle: u8,
    recent: Recent,
    /// `month.15@Europe/Berlin`.
    tag: Box<str>,
}

/// What begins at the boundary of two windows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cycle {
    Day,
    /// A week that begins on this day.
    Week(Weekday),
    /// A month that begins on this day.
    Month(AnchorDay),
    Year,
}

text::named! {
    #[derive(Default)]
    pub enum Weekday {
        #[default]
        Monday = "monday",
        Tuesday = "tuesday",
        Wednesday = "wednesday",
        Thursday = "thursday",
        Friday = "friday",
        Saturday = "saturday",
        Sunday = "sunday",
    }
}

/// A calendar as fields, which are those of rules and of the admin API.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CalendarFields<'a> {
    pub time_zone: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub week_start: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anchor_day: Option<u64>,
}

/// A day of a month, from 1 to 31. In a shorter month it is the last day.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AnchorDay(u8);

impl AnchorDay {
    pub const FIRST: Self = Self(1);

    /// The day of this number; `None` unless it is from 1 to 31.
    pub fn new(day: u64) -> Option<Self> {
        u8::try_from(day).ok().filter(|day| (1..=31).contains(day)).map(Self)
    }
}

impl Cycle {
    /// A day, seven weeks, 31 months and a year.
    const COUNT: u8 = 40;

    const fn index(self) -> u8 {
        match self {
            Self::Day => 0,
            Self::Year => 1,
            Self::Week(day) => 2 + day as u8,
            Self::Month(anchor) => 8 + anchor.0,
        }
    }

    const fn of_index(index: u8) -> Self {
        match index {
            0 => Self::Day,
            1 => Self::Year,
            2..=8 => Self::Week(Weekday::ALL[index as usize - 2]),
            _ => Self::Month(AnchorDay(index - 8)),
        }
    }
}

impl Calendar {
    /// The calendar of this cycle in a zone, whose data is parsed here, and not on the path of a request.
    pub fn new(zone: Zone, cycle: Cycle) -> Self {
        Self(&zone.data().calendars[usize::from(cycle.index())])
    }

    /// The months of UTC.
    pub fn utc_month() -> Self {
        Self::new(Zone::utc(), Cycle::Month(AnchorDay::FIRST))
    }

    pub const fn zone(self) -> Zone {
        self.0.zone
    }

    /// True unless its zone is UTC, which is the same in every release of the zone data.
    pub fn is_local(self) -> bool {
        self.zone() != Zone::utc()
    }

    pub const fn cycle(self) -> Cycle {
        Cycle::of_index(self.0.cycle)
    }

    /// A number for records in memory: other releases of the zone data have other numbers.
    pub const fn number(self) -> u32 {
        (self.0.zone.number() as u32) << 8 | self.0.cycle as u32
    }

    /// The calendar with this number.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the lower byte has the cycle, the next two the zone"
    )]
    pub fn of_number(number: u32) -> Option<Self> {
        let zone = Zone::of_number((number >> 8) as u16)?;
        let cycle = number as u8;
        (number >> 24 == 0 && cycle < Cycle::COUNT).then(|| Self::new(zone, Cycle::of_index(cycle)))
    }

    pub fn fields(self) -> CalendarFields<'static> {
        let (week_start, anchor_day) = match self.cycle() {
            Cycle::Day | Cycle::Year => (None, None),
            Cycle::Week(day) => (Some(day.name()), None),
            Cycle::Month(AnchorDay(day)) => (None, Some(day.into())),
        };
        CalendarFields { time_zone: self.zone().name(), week_start, anchor_day }
    }

    /// Identifies the calendar in the keys of counters: `month.15@Europe/Berlin`.
    pub fn tag(self) -> &'static str {
        &self.0.tag
    }

    /// Start and end of the window that contains `now`. A window that began before 1970 starts at 0.
    #[inline]
    pub fn window(self, now: Time) -> (Time, Time) {
        let compute = || boundary::window(&self.zone().data().rules, self.cycle(), now.seconds());
        let (start, end) = self.0.recent.get(now.seconds(), compute);
        (Time::from_seconds(start), Time::from_seconds(end))
    }
}

impl Windows {
    fn new(zone: Zone, zone_name: &str, cycle: Cycle) -> Self {
        let tag = match cycle {
            Cycle::Day => format!("day@{zone_name}"),
            Cycle::Week(day) => format!("week.{}@{zone_name}", day.name()),
            Cycle::Month(AnchorDay(day)) => format!("month.{day}@{zone_name}"),
            Cycle::Year => format!("year@{zone_name}"),
        };
        Self { zone, cycle: cycle.index(), recent: Recent::new(), tag: tag.into() }
    }
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Calendar {}

impl std::hash::Hash for Calendar {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.number().hash(state);
    }
}

/// `Europe/Berlin, from the 15th`; for days and years the zone alone.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fields().fmt(f)
    }
}

impl fmt::Display for CalendarFields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.time_zone)?;
        let mut week_start = self.week_start.unwrap_or_default().chars();
        if let Some(first) = week_start.next() {
            write!(f, ", from {}{}", first.to_ascii_uppercase(), week_start.as_str())?;
        }
        let Some(day) = self.anchor_day else { return Ok(()) };
        let ordinal = match (day % 10, day) {
            (_, 11..=13) => "th",
            (1, _) => "st",
            (2, _) => "nd",
            (3, _) => "rd",
            _ => "th",
        };
        write!(f, ", from the {day}{ordinal}")
    }
}

/// As its fields.
impl Serialize for Calendar {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.fields().serialize(serializer)
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {}", self.cycle(), self.zone().name())
    }
}
