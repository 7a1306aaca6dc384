//! Ranges of local time on days of the week, of which the first that holds is in force: the schedule of a limit.
//!
//! A range lasts from the first to the last instant of its day at which the clock of the zone shows a time within it.
//! So it has no gap: where the clock jumps over its beginning or its end, it begins or ends at the jump, and where a
//! time comes twice, it begins with the earlier one and ends with the later one.

use std::{fmt, str::FromStr};

use jiff::{
    Timestamp,
    civil::{Date, DateTime},
    tz::TimeZone,
};

use super::{
    Weekday, Zone,
    boundary::{end_at, first_at, in_range, seconds},
};
use clock::Time;

/// A range of local time on some days of the week.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeRange {
    pub zone: Zone,
    pub days: Days,
    pub from: TimeOfDay,
    /// If it is not after `from`, it is one of the next day.
    pub to: TimeOfDay,
}

/// Days of the week: a bit for each, from Monday.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Days(u8);

/// Minutes since midnight, up to 24:00.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TimeOfDay(u16);

/// What is in force at an instant, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InForce {
    /// The index of the first range that holds.
    pub range: Option<usize>,
    /// Nothing changes from this second on.
    pub since: u64,
    /// It is valid before this second.
    pub until: u64,
    /// What is in force then; `None` if nothing changes.
    pub next: Option<Option<usize>>,
}

/// A schedule repeats every week, but for changes of the clock.
const LOOKAHEAD: u64 = 8 * 86_400;

/// Within this time, the bounds of all ranges are known, in whatever zone, also where a date is skipped.
const LOOKBACK: u64 = 86_400 / 2;

/// The range of these that is in force at an instant.
pub fn in_force(ranges: &[TimeRange], now: Time) -> InForce {
    let now = now.seconds();
    let spans: Vec<(usize, u64, u64)> = ranges
        .iter()
        .enumerate()
        .flat_map(|(index, range)| range.spans(now).map(move |(begin, end)| (index, begin, end)))
        .collect();
    let first_at = |second: u64| {
        let held = spans.iter().filter(|(_, begin, end)| *begin <= second && second < *end);
        held.map(|(index, ..)| *index).min()
    };
    let range = first_at(now);
    let mut bounds: Vec<u64> = spans.iter().flat_map(|(_, begin, end)| [*begin, *end]).collect();
    bounds.sort_unstable();
    let first = now.saturating_sub(LOOKBACK);
    let since = bounds.iter().copied().filter(|bound| (first..=now).contains(bound)).max().unwrap_or(first);
    // A time is less than 2⁴⁵ seconds after 1970.
    let last = now + LOOKAHEAD;
    let ahead = bounds.into_iter().filter(|bound| (now.saturating_add(1)..last).contains(bound));
    let change = ahead.map(|bound| (bound, first_at(bound))).find(|(_, next)| *next != range);
    let (until, next) = change.map_or((last, None), |(bound, next)| (bound, Some(next)));
    InForce { range, since, until, next }
}

/// A later instant in words, as the clock of the zone shows it: `at 20:00`, or `on mon at 08:00` beyond a day.
pub fn moment(zone: Zone, now: Time, later: u64) -> String {
    let at = in_range(i64::try_from(later).ok().and_then(|second| Timestamp::from_second(second).ok()));
    let local = zone.data().rules.to_datetime(at);
    let time = format!("at {:02}:{:02}", local.hour(), local.minute());
    if later.saturating_sub(now.seconds()) < 86_400 {
        return time;
    }
    let day = Weekday::ALL.into_iter().find(|day| jiff::civil::Weekday::from(*day) == local.weekday());
    format!("on {} {time}", day.map_or("", short))
}

impl TimeRange {
    /// Begin and end of the range on each day around an instant, in seconds.
    fn spans(self, now: u64) -> impl Iterator<Item = (u64, u64)> {
        let rules = &self.zone.data().rules;
        let instant = i64::try_from(now).ok().and_then(|second| Timestamp::from_second(second).ok());
        let today = rules.to_datetime(in_range(instant)).date();
        // Days before: a range may end on the next day, the date goes back where a clock is set back, and one is skipped
        // where the date line moves.
        let day = move |days: i64| in_range(today.checked_add(jiff::Span::new().days(days)).ok());
        (-3..=9).filter_map(move |days| self.on(rules, day(days)))
    }

    pub(crate) fn on(self, rules: &TimeZone, day: Date) -> Option<(u64, u64)> {
        if !self.days.has(day.weekday()) {
            return None;
        }
        let last = if self.goes_over_midnight() { in_range(day.tomorrow().ok()) } else { day };
        let begin = seconds(first_at(rules, self.from.on(day)));
        let end = seconds(end_at(rules, self.to.on(last)));
        (begin < end).then_some((begin, end))
    }

    fn goes_over_midnight(self) -> bool {
        self.to <= self.from
    }

    /// True for each minute of a week of the zone, from Monday, at which it holds.
    // There is a place for each minute of a week.
    pub fn minutes_of_week(self) -> Vec<bool> {
        const DAY: usize = 1440;
        let mut minutes = vec![false; 7 * DAY];
        let length = (usize::from(self.to.0) + DAY - usize::from(self.from.0) - 1) % DAY + 1;
        for day in (0..7).filter(|day| self.days.0 >> day & 1 == 1) {
            let begin = day * DAY + usize::from(self.from.0);
            (begin..begin + length).for_each(|minute| minutes[minute % (7 * DAY)] = true);
        }
        minutes
    }
}

impl Days {
    pub const ALL: Self = Self(0x7f);

    /// A range of days, which may go on from Sunday to Monday.
    // There are seven days.
    pub fn range(first: Weekday, last: Weekday) -> Self {
        let count = (last as u8 + 7 - first as u8) % 7;
        (0..=count).fold(Self(0), |days, day| Self(days.0 | 1 << ((first as u8 + day) % 7)))
    }

    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn has(self, day: jiff::civil::Weekday) -> bool {
        self.0 >> day.to_monday_zero_offset() & 1 == 1
    }

    const fn contains(self, day: Weekday) -> bool {
        self.0 >> day as u8 & 1 == 1
    }
}

impl TimeOfDay {
    pub const START: Self = Self(0);
    pub const END: Self = Self(1440);

    fn on(self, day: Date) -> DateTime {
        let hour = i8::try_from(self.0 / 60).ok().filter(|hour| *hour < 24);
        let minute = i8::try_from(self.0 % 60).unwrap_or_default();
        match hour {
            Some(hour) => day.at(hour, minute, 0, 0),
            None => in_range(day.tomorrow().ok()).at(0, 0, 0, 0),
        }
    }
}

/// Reads `08:00`, or `24:00`.
impl FromStr for TimeOfDay {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (hours, minutes) = text.split_once(':').ok_or(())?;
        let number = |part: &str, digits: std::ops::RangeInclusive<usize>| {
            let is_number = digits.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
            part.parse::<u16>().ok().filter(|_| is_number).ok_or(())
        };
        match (number(hours, 1..=2)?, number(minutes, 2..=2)?) {
            (24, 0) => Ok(Self::END),
            // The arm bounds both.
            (hours @ 0..24, minutes @ 0..60) => Ok(Self(hours * 60 + minutes)),
            _ => Err(()),
        }
    }
}

/// `mon`
fn short(day: Weekday) -> &'static str {
    day.name().split_at(3).0
}

/// `08:00`
impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

/// `mon-fri`, `mon,wed,fri-sun`
impl fmt::Display for Days {
    // There are seven days.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after = |day: Weekday, days: usize| Weekday::ALL[(day as usize + days) % 7];
        // Runs of days begin where the day before is missing: `sat-mon` is one.
        let begins = |day: &Weekday| self.contains(*day) && !self.contains(after(*day, 6));
        for (index, first) in Weekday::ALL.into_iter().filter(begins).enumerate() {
            f.write_str(if index > 0 { "," } else { "" })?;
            f.write_str(short(first))?;
            let last = (0..7).take_while(|days| self.contains(after(first, *days))).last().unwrap_or(0);
            if last > 0 {
                write!(f, "-{}", short(after(first, last)))?;
            }
        }
        Ok(())
    }
}

/// `mon-fri 08:00-20:00 Europe/Berlin`
impl fmt::Display for TimeRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_all_day = (self.from, self.to) == (TimeOfDay::START, TimeOfDay::END);
        match (self.days == Days::ALL, is_all_day) {
            (true, true) => f.write_str("every day")?,
            (false, true) => write!(f, "{}", self.days)?,
            (true, false) => write!(f, "{}-{}", self.from, self.to)?,
            (false, false) => write!(f, "{} {}-{}", self.days, self.from, self.to)?,
        }
        write!(f, " {}", self.zone.name())
    }
}
