//! Lowers the `schedule` of a limit, and reads its days and times.

use std::collections::HashMap;

use super::{super::written_calendar, At, Context, Lowered, Lowering, valid};
use crate::ast::{Given, RawLimit, RawMap as _, RawScheduleEntry};
use limit::{
    Limit, MAX_ENTRIES,
    calendar::{
        Weekday, Zone,
        schedule::{Days, TimeOfDay, TimeRange},
    },
    too_large,
};
use text::{
    diagnostics::{Place, quoted},
    spelling::nearest,
};

/// The entries of a schedule, each with its number of requests; none without a schedule.
pub(super) type Entries = Box<[(TimeRange, u64)]>;

impl Lowering<'_> {
    pub(super) fn schedule(
        &mut self,
        limit: &Limit,
        raw: &RawLimit,
        context: Context<'_>,
    ) -> Lowered<Entries> {
        let Some(given) = valid(&raw.schedule)? else { return Ok(Box::default()) };
        let path = context.path.key("schedule");
        let context = Context { path: &path, ..context };
        let kind = limit.algorithm.kind();
        let fits = if kind.has_burst() {
            let message =
                format!("a `{}` cannot have a schedule: its rate is part of its state", kind.name());
            let help = "use `fixed_window` or a sliding window, or remove `schedule`";
            Err(self.error(context.at(given.key), message, help))
        } else {
            Ok(())
        };
        if !(1..=MAX_ENTRIES).contains(&given.value.len()) {
            let message = match given.value.len() {
                0 => "this schedule has no entry".to_owned(),
                entries => format!("a schedule of {entries} entries is too long"),
            };
            let help = format!(
                "expected 1 to {MAX_ENTRIES} items such as `{{days: mon-fri, requests_per_unit: 500}}`"
            );
            return Err(self.error(context.at(given.place), message, help));
        }
        // All entries are lowered before the first error ends it.
        let entries: Vec<_> = given
            .value
            .iter()
            .map(|entry| self.entry(limit, entry, Context { path: &entry.path(&path), ..context }))
            .collect();
        let entries = entries.into_iter().collect::<Lowered<Entries>>()?;
        fits?;
        self.report_hidden(&given.value, &entries, context);
        Ok(entries)
    }

    fn entry(
        &mut self,
        limit: &Limit,
        raw: &RawScheduleEntry,
        context: Context<'_>,
    ) -> Lowered<(TimeRange, u64)> {
        let RawScheduleEntry { place, index: _, requests_per_unit, time_zone, days, from, to } = raw;
        // The mistakes in all of them are reported before the first one ends it.
        let days = valid(days).map(|given| given.map(|given| given.value.as_slice()).unwrap_or_default());
        let days = days.and_then(|texts| {
            let read = texts.iter().map(|text| self.parsed("days", text, context, read_days));
            let read: Vec<_> = read.collect();
            read.into_iter()
                .filter_map(Result::transpose)
                .reduce(|one, other| Ok(one?.and(other?)))
                .transpose()
        });
        let from = self.parsed("from", from, context, |text| read_time(text, false));
        let to = self.parsed("to", to, context, |text| read_time(text, true));
        let zone = self.parsed("time_zone", time_zone, context, written_calendar::zone);
        let Some(Given { value: requests, place: at, .. }) = valid(requests_per_unit)? else {
            let help = "add a number; write 0 to allow no request";
            return Err(self.error(context.at(*place), "this entry has no `requests_per_unit`", help));
        };
        if let Some((message, help)) = too_large(limit.algorithm.kind(), *requests) {
            return Err(self.error(context.at_key(*at, "requests_per_unit"), message, help));
        }
        let range = TimeRange {
            zone: zone?.unwrap_or_else(Zone::utc),
            days: days?.unwrap_or(Days::ALL),
            from: from?.unwrap_or(TimeOfDay::START),
            to: to?.unwrap_or(TimeOfDay::END),
        };
        Ok((range, *requests))
    }

    /// Warns about entries that do not hold at some or all of their times, because one before holds. Entries of different
    /// zones are compared only if some hold all week.
    fn report_hidden(&mut self, raw: &[RawScheduleEntry], entries: &Entries, context: Context<'_>) {
        if entries.len() < 2 {
            return;
        }
        // For each minute of a zone's week, the place of the first entry that holds.
        let mut held: HashMap<&str, Vec<Option<Place>>> = HashMap::new();
        let mut always: Option<Place> = None;
        for (raw, (range, _)) in raw.iter().zip(entries) {
            let minutes = range.minutes_of_week();
            let known = held.entry(range.zone.name()).or_insert_with(|| vec![None; minutes.len()]);
            let hiding: Vec<Option<Place>> =
                known.iter().zip(&minutes).filter(|(_, own)| **own).map(|(place, _)| *place).collect();
            let all = hiding.iter().all(Option::is_some).then(|| hiding.first().copied().flatten()).flatten();
            let some = hiding.into_iter().flatten().next();
            let warning = match (always.or(all), some) {
                (Some(place), _) => Some((
                    format!(
                        "this entry never holds: at all of its times one before it does, first that at {place}"
                    ),
                    "the first entry that holds wins: move it up, or remove it",
                )),
                (None, Some(place)) => Some((
                    format!("this entry is partly hidden by the one at {place}, which holds first"),
                    "the first entry that holds wins: make the times disjoint to be clear",
                )),
                (None, None) => None,
            };
            if let Some((message, help)) = warning {
                self.warning(At { path: raw.path(context.path), ..context.at(raw.place) }, message, help);
            }
            for (place, _) in known.iter_mut().zip(&minutes).filter(|(_, own)| **own) {
                place.get_or_insert(raw.place);
            }
            if known.iter().all(Option::is_some) {
                always = always.or(Some(raw.place));
            }
        }
    }
}

const DAYS: &str = "accepted: days and ranges of days, such as `mon-fri` or `mon,wed,fri-sun`";

/// Reads `mon`, `sat-mon` or `mon,wed,fri-sun`, in short and long English names.
fn read_days(text: &str) -> Result<Days, (String, String)> {
    let mut all: Option<Days> = None;
    for part in text.split(',').map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let days = Days::range(weekday(first.trim())?, weekday(last.trim())?);
        all = Some(all.map_or(days, |known| known.and(days)));
    }
    all.ok_or_else(|| ("expected days".to_owned(), DAYS.to_owned()))
}

fn weekday(name: &str) -> Result<Weekday, (String, String)> {
    let lower = name.to_ascii_lowercase();
    // `mon`, `tues` and `thurs`, too.
    let is_its = |day: &Weekday| lower.len() >= 3 && day.name().starts_with(&lower);
    Weekday::ALL.into_iter().find(is_its).ok_or_else(|| {
        let meant = nearest(name, Weekday::ALL.map(Weekday::name));
        let help = meant.map_or_else(|| DAYS.to_owned(), |meant| format!("did you mean `{meant}`? {DAYS}"));
        (format!("unknown weekday {}", quoted(name)), help)
    })
}

/// Reads `08:00`. Only an end may be `24:00`.
fn read_time(text: &str, is_end: bool) -> Result<TimeOfDay, (String, String)> {
    text.trim().parse().ok().filter(|time| is_end || *time != TimeOfDay::END).ok_or_else(|| {
        let last = if is_end { "24:00" } else { "23:59" };
        (format!("expected a time of day, got {}", quoted(text)), format!("accepted: 00:00 to {last}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_read_and_shown() {
        for (text, expected) in [
            ("mon", "mon"),
            ("Mon-Fri", "mon-fri"),
            ("sat-mon", "sat-mon"),
            ("mon, wed ,fri-sun", "wed,fri-mon"),
            ("Monday,TUES-thursday", "mon-thu"),
            ("sun-mon,sun", "sun-mon"),
            ("tue,tue", "tue"),
        ] {
            assert_eq!(read_days(text).map(|days| days.to_string()).as_deref(), Ok(expected), "{text}");
        }
        assert_eq!(read_days("mon-sun"), Ok(Days::ALL));
        assert_eq!(read_days("tue-mon"), Ok(Days::ALL));
        for (text, message) in [
            ("", "unknown weekday ``"),
            ("mo", "unknown weekday `mo`"),
            ("mon-", "unknown weekday ``"),
            ("mon,", "unknown weekday ``"),
            ("mon-tue-wed", "unknown weekday `tue-wed`"),
            ("mondy", "unknown weekday `mondy`"),
            ("mondays", "unknown weekday `mondays`"),
        ] {
            assert_eq!(read_days(text).unwrap_err().0, message, "{text}");
        }
        assert!(read_days("tusday").unwrap_err().1.starts_with("did you mean `tuesday`?"));
    }

    #[test]
    fn times_are_read() {
        for (text, expected) in
            [("08:00", "08:00"), ("8:05", "08:05"), ("00:00", "00:00"), ("23:59", "23:59")]
        {
            assert_eq!(read_time(text, false).map(|time| time.to_string()).as_deref(), Ok(expected));
        }
        assert_eq!(read_time("24:00", true), Ok(TimeOfDay::END));
        for text in
            ["24:00", "", "8", "08:0", "08:60", "25:00", "-1:00", "+8:00", "08:00:00", "8 am", "008:00"]
        {
            assert!(read_time(text, false).is_err(), "{text}");
        }
        assert!(read_time("24:01", true).is_err());
    }
}
