//! Lowers the `schedule` of a limit.

use std::collections::HashMap;

use super::{
    super::{written_calendar, written_schedule},
    At, Context, Lowered, Lowering, valid,
};
use crate::ast::{Given, RawLimit, RawMap as _, RawScheduleEntry};
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
            let read = texts.iter().map(|text| self.parsed("days", text, context, written_schedule::days));
            let read: Vec<_> = read.collect();
            read.into_iter()
                .filter_map(Result::transpose)
                .reduce(|one, other| Ok(one?.and(other?)))
                .transpose()
        });
        let from = self.parsed("from", from, context, |text| written_schedule::time(text, false));
        let to = self.parsed("to", to, context, |text| written_schedule::time(text, true));
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
