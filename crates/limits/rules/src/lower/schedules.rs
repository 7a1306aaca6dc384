//! Lowers the `schedule` of a limit.

use std::collections::HashMap;

use super::{
    super::{written_calendar, written_schedule},
    Context, Lowering,
    limits::{Reported, valid},
};
use crate::ast::{Field, Given, RawLimit, RawScheduleEntry};
use limit::{
    Limit, MAX_ENTRIES,
    calendar::{
        Zone,
        schedule::{Days, TimeOfDay, TimeRange},
    },
    too_large,
};
use text::diagnostics::Place;

/// The entries of a schedule, each with its number of requests; none without a schedule.
pub(super) type Entries = Box<[(TimeRange, u64)]>;

impl Lowering<'_> {
    pub(super) fn schedule(
        &mut self,
        limit: &Limit,
        raw: &RawLimit,
        context: Context<'_>,
    ) -> Result<Entries, Reported> {
        let Some(given) = valid(&raw.schedule)? else { return Ok(Box::default()) };
        let path = context.path.key("schedule");
        let kind = limit.algorithm.kind();
        if kind.has_burst() {
            let message =
                format!("a `{}` cannot have a schedule: its rate is part of its state", kind.name());
            let help = "use `fixed_window` or a sliding window, or remove `schedule`";
            self.error(context.at(given.key, &path), message, help);
        }
        if !(1..=MAX_ENTRIES).contains(&given.value.len()) {
            let message = match given.value.len() {
                0 => "this schedule has no entry".to_owned(),
                entries => format!("a schedule of {entries} entries is too long"),
            };
            let help = format!(
                "expected 1 to {MAX_ENTRIES} items such as `{{days: mon-fri, requests_per_unit: 500}}`"
            );
            self.error(context.at(given.place, &path), message, help);
            return Err(Reported);
        }
        let entries: Vec<_> = given
            .value
            .iter()
            .enumerate()
            .map(|(at, entry)| self.entry(limit, entry, Context { path: &path.item(at), ..context }))
            .collect();
        let entries = entries.into_iter().collect::<Result<Entries, Reported>>()?;
        if kind.has_burst() {
            return Err(Reported);
        }
        self.report_hidden(&given.value, &entries, Context { path: &path, ..context });
        Ok(entries)
    }

    fn entry(
        &mut self,
        limit: &Limit,
        raw: &RawScheduleEntry,
        context: Context<'_>,
    ) -> Result<(TimeRange, u64), Reported> {
        let mut read = |key: &str, field: &Field<String>, result: Result<(), (String, String)>| {
            let place = field.place().unwrap_or(raw.place);
            result.map_err(|(message, help)| {
                self.error(context.at(place, &context.path.key(key)), message, help);
            })
        };
        let (mut days, mut zone) = (None::<Days>, Zone::utc());
        let (mut from, mut to) = (TimeOfDay::START, TimeOfDay::END);
        let of_days = raw.days.iter().map(|field| {
            let mut some = Days::ALL;
            let result = of(field, &mut some, written_schedule::days);
            days = Some(days.map_or(some, |known| known.and(some)));
            ("days", field, result)
        });
        let all = of_days.collect::<Vec<_>>().into_iter().chain([
            ("from", &raw.from, of(&raw.from, &mut from, |text| written_schedule::time(text, false))),
            ("to", &raw.to, of(&raw.to, &mut to, |text| written_schedule::time(text, true))),
            ("time_zone", &raw.time_zone, of(&raw.time_zone, &mut zone, written_calendar::zone)),
        ]);
        let mut is_valid = true;
        for (key, field, result) in all {
            is_valid &= read(key, field, result).is_ok() && !field.is_wrong();
        }
        let requests = self.requests(limit, raw, context)?;
        let days = days.unwrap_or(Days::ALL);
        if is_valid { Ok((TimeRange { zone, days, from, to }, requests)) } else { Err(Reported) }
    }

    fn requests(
        &mut self,
        limit: &Limit,
        raw: &RawScheduleEntry,
        context: Context<'_>,
    ) -> Result<u64, Reported> {
        let Some(Given { value: requests, place, .. }) = valid(&raw.requests_per_unit)? else {
            let help = "add a number; write 0 to allow no request";
            self.error(context.at(raw.place, context.path), "this entry has no `requests_per_unit`", help);
            return Err(Reported);
        };
        let Some((message, help)) = too_large(limit.algorithm.kind(), *requests) else {
            return Ok(*requests);
        };
        self.error(context.at(*place, &context.path.key("requests_per_unit")), message, help);
        Err(Reported)
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
        for (at, (raw, (range, _))) in raw.iter().zip(entries).enumerate() {
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
                self.warning(context.at(raw.place, &context.path.item(at)), message, help);
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

/// Reads a given text into a value.
fn of<T>(
    field: &Field<String>,
    value: &mut T,
    read: impl Fn(&str) -> Result<T, (String, String)>,
) -> Result<(), (String, String)> {
    if let Some(text) = field.value() {
        *value = read(text)?;
    }
    Ok(())
}
