//! A calendar as users write it in rules, in overrides and on the command line, and the mistakes in it.

use limit::calendar::{AnchorDay, Calendar, CalendarFields, Cycle, Weekday, Zone};

use limit::Unit;
use text::{
    diagnostics::quoted,
    spelling::{choose, distance},
};

/// The fields of a calendar, all optional: `{}` is UTC, and weeks from Monday or months from the first day.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WrittenCalendar<'a> {
    pub time_zone: Option<&'a str>,
    pub week_start: Option<&'a str>,
    pub anchor_day: Option<u64>,
}

text::named! {
    /// The field that a mistake is in.
    pub enum CalendarField {
        Unit = "unit",
        TimeZone = "time_zone",
        WeekStart = "week_start",
        AnchorDay = "anchor_day",
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CalendarMistake {
    pub field: CalendarField,
    /// The field does not belong there, whatever its value.
    pub is_misplaced: bool,
    pub message: String,
    pub help: String,
}

/// The most names in the help for an unknown time zone.
const MAX_NAMES: usize = 3;

impl<'a> WrittenCalendar<'a> {
    /// Reads `Europe/Berlin,anchor_day=15`: the time zone, and the other fields with their names.
    pub fn parse(text: &'a str) -> Result<Self, String> {
        let mut written = Self::default();
        for part in text.split(',').map(str::trim) {
            let (name, value) = part.split_once('=').unwrap_or((CalendarField::TimeZone.name(), part));
            let name = name.trim();
            let value = value.trim();
            let is_new = match CalendarField::ALL.into_iter().find(|field| field.name() == name) {
                Some(CalendarField::TimeZone) => written.time_zone.replace(value).is_none(),
                Some(CalendarField::WeekStart) => written.week_start.replace(value).is_none(),
                Some(CalendarField::AnchorDay) => {
                    let day = value
                        .parse()
                        .map_err(|_| format!("anchor_day: expected 1 to 31, got {}", quoted(value)))?;
                    written.anchor_day.replace(day).is_none()
                }
                Some(CalendarField::Unit) | None => {
                    return Err(format!(
                        "unknown field {}; expected a time zone, week_start or anchor_day, as in Europe/Berlin,anchor_day=15",
                        quoted(name)
                    ));
                }
            };
            if !is_new {
                return Err(format!("{name} is given twice"));
            }
        }
        Ok(written)
    }

    /// The calendar of a limit with this unit, or every mistake. Without a known unit only the values are checked.
    pub fn read(self, unit: Option<Unit>) -> Result<Calendar, Vec<CalendarMistake>> {
        let mut mistakes = Vec::new();
        let mut note = |field, is_misplaced, (message, help): (String, String)| {
            mistakes.push(CalendarMistake { field, is_misplaced, message, help });
        };
        let zone = self.time_zone.map_or_else(|| Ok(Zone::utc()), zone);
        let zone = zone.map_err(|mistake| note(CalendarField::TimeZone, false, mistake)).ok();
        let belongs = |field: CalendarField, home: Unit| {
            let unit = unit.filter(|unit| *unit != home)?.lowercase();
            let message = format!("`{}` has no meaning for a {unit}", field.name());
            Some((message, format!("remove it, or write `unit: {}`", home.lowercase())))
        };
        let mut week_start = Some(Weekday::default());
        if let Some(written) = self.week_start {
            let known = choose("weekday", written, &Weekday::ALL, Weekday::name);
            week_start = known.map_err(|mistake| note(CalendarField::WeekStart, false, mistake)).ok();
            if let Some(mistake) = belongs(CalendarField::WeekStart, Unit::Week) {
                note(CalendarField::WeekStart, true, mistake);
            }
        }
        let mut anchor = Some(AnchorDay::FIRST);
        if let Some(day) = self.anchor_day {
            anchor = AnchorDay::new(day);
            if anchor.is_none() {
                let help = "accepted: 1 to 31; in a shorter month it is the last day".to_owned();
                note(CalendarField::AnchorDay, false, (format!("no month has a day {day}"), help));
            }
            if let Some(mistake) = belongs(CalendarField::AnchorDay, Unit::Month) {
                note(CalendarField::AnchorDay, true, mistake);
            }
        }
        let cycle = match unit {
            Some(Unit::Day) => Some(Cycle::Day),
            Some(Unit::Week) => week_start.map(Cycle::Week),
            Some(Unit::Month) => anchor.map(Cycle::Month),
            Some(Unit::Year) => Some(Cycle::Year),
            Some(unit @ (Unit::Unknown | Unit::Second | Unit::Minute | Unit::Hour)) => {
                let message = format!("the unit `{}` cannot follow a calendar", unit.lowercase());
                let help = "accepted with `calendar`: day, week, month, year".to_owned();
                note(CalendarField::Unit, false, (message, help));
                None
            }
            None => None,
        };
        match (zone, cycle, mistakes.is_empty()) {
            (Some(zone), Some(cycle), true) => Ok(Calendar::new(zone, cycle)),
            _ => Err(mistakes),
        }
    }
}

/// `Europe/Berlin,anchor_day=15`, which [`WrittenCalendar::parse`] reads.
pub fn calendar_text(calendar: Calendar) -> String {
    let CalendarFields { time_zone, week_start, anchor_day } = calendar.fields();
    let week_start = week_start.map(|day| format!(",week_start={day}")).unwrap_or_default();
    let anchor_day = anchor_day.map(|day| format!(",anchor_day={day}")).unwrap_or_default();
    format!("{time_zone}{week_start}{anchor_day}")
}

pub(super) fn zone(name: &str) -> Result<Zone, (String, String)> {
    Zone::find(name).ok_or_else(|| {
        let names = nearest_zones(name).map(|name| format!("`{name}`")).collect::<Vec<_>>();
        let help = match names.split_last() {
            None => {
                "expected a name of the IANA time zone database, such as `Europe/Berlin` or `UTC`".to_owned()
            }
            Some((only, [])) => format!("did you mean {only}?"),
            Some((last, others)) => format!("did you mean {} or {last}?", others.join(", ")),
        };
        (format!("unknown time zone {}", quoted(name)), help)
    })
}

/// The names that are nearest to a misspelt one, or to the part after the slash.
fn nearest_zones(name: &str) -> impl Iterator<Item = &'static str> {
    let city = |name| str::rsplit(name, '/').next().unwrap_or_default();
    let mut near: Vec<_> = Zone::names()
        .filter_map(|zone| {
            let whole = distance(name, zone);
            let cities = distance(city(name), city(zone));
            Some((whole.into_iter().chain(cities).min()?, whole.unwrap_or(usize::MAX), zone))
        })
        .collect();
    near.sort_unstable();
    near.into_iter().map(|(_, _, zone)| zone).take(MAX_NAMES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, unit: Unit) -> Result<String, String> {
        let read = WrittenCalendar::parse(text)?.read(Some(unit));
        read.map(calendar_text).map_err(|mistakes| mistakes[0].message.clone())
    }

    #[test]
    fn the_text_of_a_calendar_reads_back() {
        for (text, unit, expected) in [
            ("utc", Unit::Day, "UTC"),
            ("Europe/Berlin", Unit::Month, "Europe/Berlin,anchor_day=1"),
            (" anchor_day=31 , asia/tokyo", Unit::Month, "Asia/Tokyo,anchor_day=31"),
            ("week_start=Sunday,time_zone=Asia/Tokyo", Unit::Week, "Asia/Tokyo,week_start=sunday"),
        ] {
            assert_eq!(read(text, unit).as_deref(), Ok(expected), "{text}");
            assert_eq!(read(expected, unit).as_deref(), Ok(expected));
        }
        for (text, unit, expected) in [
            ("Mars", Unit::Day, "unknown time zone `Mars`"),
            ("", Unit::Day, "unknown time zone ``"),
            ("UTC,UTC", Unit::Day, "time_zone is given twice"),
            ("UTC,anchor_day=x", Unit::Month, "anchor_day: expected 1 to 31, got `x`"),
            ("UTC,anchor_day=32", Unit::Month, "no month has a day 32"),
            ("UTC,day=1", Unit::Month, "unknown field `day`"),
            ("UTC,unit=1", Unit::Month, "unknown field `unit`"),
            ("UTC", Unit::Hour, "the unit `hour` cannot follow a calendar"),
        ] {
            let error = read(text, unit).unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
