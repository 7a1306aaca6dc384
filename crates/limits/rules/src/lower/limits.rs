//! Lowers a `rate_limit`.

use std::{
    collections::HashMap,
    num::{NonZeroU32, NonZeroU64},
    sync::Arc,
};

use super::{super::model::Allowance, At, Context, Lowered, Lowering, Reported, valid};
use crate::{
    ast::{Field, Given, RawCalendar, RawLimit, RawLimits, RawMap as _, RawReplaces},
    written_calendar::{CalendarField, CalendarMistake, WrittenCalendar},
};
use limit::{CountingMode, Kind, Limit, Limits, Unit, Window, calendar::Calendar, too_large};
use text::{
    diagnostics::{Place, quoted},
    spelling::{choose, help_for},
};

impl Lowering<'_> {
    pub(super) fn allowance(&mut self, given: &Given<RawLimits>, context: Context<'_>) -> Lowered<Allowance> {
        let raw = match &given.value {
            RawLimits::One(raw) => {
                let Some(limit) = self.limit(raw, context)? else {
                    let requests_per_unit = raw.requests_per_unit.value().copied().unwrap_or(0);
                    return Ok(Allowance::Unlimited { requests_per_unit });
                };
                let schedule = self.schedule(&limit, raw, context)?;
                return Limits::from(limit).scheduled(&[schedule]).map(Allowance::Limited).ok_or(Reported);
            }
            RawLimits::List(raw) => raw,
        };
        // With a list of one, it would be unclear whether the counter has the Go service's key.
        if raw.len() < 2 {
            let message = match raw.len() {
                0 => "this list has no limit",
                _ => "this list has a single limit",
            };
            let help = "write a list for two or more limits; a single limit has no dash before its `unit`";
            self.error(context.at(given.place), message, help);
        }
        // All limits are lowered before the first error ends it.
        let limits: Vec<_> = raw
            .iter()
            .map(|raw| self.limit_of_list(raw, Context { path: &raw.path(context.path), ..context }))
            .collect();
        let limits = limits.into_iter().collect::<Lowered<Vec<Limit>>>()?;
        let schedules: Vec<_> = raw
            .iter()
            .zip(&limits)
            .map(|(raw, limit)| {
                self.schedule(limit, raw, Context { path: &raw.path(context.path), ..context })
            })
            .collect();
        self.report_duplicates(raw, &limits, context);
        self.report_mixed_counting(raw, &limits, context);
        self.report_mixed_holds(raw, &limits, context);
        let schedules = schedules.into_iter().collect::<Lowered<Vec<_>>>()?;
        let limits = Limits::new(limits).and_then(|limits| limits.scheduled(&schedules));
        limits.map(Allowance::Limited).ok_or(Reported)
    }

    /// One of several limits.
    fn limit_of_list(&mut self, raw: &RawLimit, context: Context<'_>) -> Lowered<Limit> {
        if let Some(limit) = self.limit(raw, context)? {
            return Ok(limit);
        }
        let place = raw.unlimited.key().unwrap_or(raw.place);
        let message = "`unlimited` cannot be one of several limits";
        let help = "remove the item, or set only `unlimited: true`";
        Err(self.error(context.at_key(place, "unlimited"), message, help))
    }

    /// Reports limits that count the same hits in the same way: only the smallest has an effect.
    fn report_duplicates(&mut self, raw: &[RawLimit], limits: &[Limit], context: Context<'_>) {
        let mut first: HashMap<String, Place> = HashMap::new();
        for (raw, limit) in raw.iter().zip(limits) {
            let format = limit.algorithm.tag();
            let Some(place) = first.get(&format) else {
                first.insert(format, raw.place);
                continue;
            };
            let message = format!("duplicate limit: the one at {place} counts the same hits");
            let help = "remove the larger of the two, which has no effect";
            self.error(At { path: raw.path(context.path), ..context.at(raw.place) }, message, help);
        }
    }

    /// Warns about leased limits beside exact ones: the limits of a rule count all or nothing, so all are exact.
    fn report_mixed_counting(&mut self, raw: &[RawLimit], limits: &[Limit], context: Context<'_>) {
        let Some((exact, _)) = raw.iter().zip(limits).find(|(_, limit)| !limit.is_leased()) else { return };
        for (raw, _) in raw.iter().zip(limits).filter(|(_, limit)| limit.is_leased()) {
            let Some(place) = raw.counting.place() else { continue };
            let message = format!("`counting: leased` has no effect: the limit at {} is exact", exact.place);
            let help = "the limits of a rule count all or nothing; lease all or none";
            let path = raw.path(context.path);
            self.warning(Context { path: &path, ..context }.at_key(place, "counting"), message, help);
        }
    }

    /// The limit; `None` if it is `unlimited`.
    fn limit(&mut self, raw: &RawLimit, context: Context<'_>) -> Lowered<Option<Limit>> {
        let RawLimit {
            place,
            index: _,
            unit,
            requests_per_unit,
            unlimited,
            name,
            // With the names of the other limits of the rule.
            replaces: _,
            unit_multiplier,
            algorithm,
            burst,
            counting: _,
            calendar: _,
            hold,
            // Of the limits that the rule has in the end.
            schedule: _,
        } = raw;
        if unit.is_wrong() || unlimited.is_wrong() {
            return Err(Reported);
        }
        let requests = requests_per_unit.value().copied().unwrap_or(0);
        let name = name.value().filter(|name| !name.is_empty()).map(|name| name.as_str().into());
        let written_kind = algorithm.value().and_then(|name| Kind::from_name(name));
        if written_kind == Some(Kind::Concurrency) && !unlimited.is_set() {
            let hold = self.hold_of_concurrency(raw, context)?;
            return Ok(Some(Limit::concurrency(requests, hold).named(name)));
        }
        let written = unit.value().map_or("", String::as_str);
        let at_unit = context.at_key(unit.place().unwrap_or(*place), "unit");
        let unit = match (unlimited.is_set(), Unit::from_name(written)) {
            (false, Some(unit)) => unit,
            (true, None) if hold.given().is_some() => {
                let at = context.at_key(hold.key().unwrap_or(*place), "hold");
                let message = "an `unlimited` descriptor cannot hold";
                return Err(self.error(at, message, "remove `hold` or `unlimited`"));
            }
            (true, None) => return Ok(None),
            (true, Some(_)) => {
                let message = "a limit is either `unlimited` or has a unit";
                return Err(self.error(at_unit, message, "remove `unit` or `unlimited`"));
            }
            (false, None) if written.is_empty() => {
                let help = format!(
                    "add `unit` ({}), or `unlimited: true`",
                    Unit::ALL.map(Unit::lowercase).join(", ")
                );
                return Err(self.error(context.at(at_unit.place), "this limit has no unit", help));
            }
            (false, None) => {
                // Reports the mistakes in it.
                let _ = self.calendar(None, raw, context);
                let abbreviated = Unit::from_abbreviation(written).map(Unit::name);
                let help = help_for(written, &Unit::ALL.map(Unit::name), abbreviated);
                return Err(self.error(at_unit, format!("unknown unit {}", quoted(written)), help));
            }
        };
        let multiplier = self.multiplier(unit, unit_multiplier, context);
        let calendar = self.calendar(Some(unit), raw, context);
        let kind = self.kind(raw, context)?;
        let burst = self.burst(kind, burst, context);
        if let Some((message, help)) = too_large(kind, requests) {
            let place = requests_per_unit.place().unwrap_or(*place);
            self.error(context.at_key(place, "requests_per_unit"), message, help);
        }
        let limit = if let Some(calendar) = calendar? {
            Limit::of_calendar(requests, calendar)
        } else {
            let multiplier = multiplier?;
            let burst = burst?;
            // What is too large or too long was reported.
            Limit::new(requests, unit, multiplier, kind, burst).ok_or(Reported)?
        };
        let limit = limit.with_calendar_months(self.options.calendar_months);
        let hold = self.hold(kind, hold, context)?.map(Arc::new);
        Ok(Some(limit.named(name).counted(self.counting(kind, raw, context)?).holding(hold)))
    }

    /// The calendar of a limit with this unit, if it has one.
    fn calendar(
        &mut self,
        unit: Option<Unit>,
        raw: &RawLimit,
        context: Context<'_>,
    ) -> Lowered<Option<Calendar>> {
        let Some(Given { value: calendar, .. }) = valid(&raw.calendar)? else { return Ok(None) };
        let RawCalendar { place, index: _, time_zone, week_start, anchor_day } = calendar;
        let is_wrong = time_zone.is_wrong() || week_start.is_wrong() || anchor_day.is_wrong();
        let written = WrittenCalendar {
            time_zone: time_zone.value().map(String::as_str),
            week_start: week_start.value().map(String::as_str),
            anchor_day: anchor_day.value().copied(),
        };
        let path = context.path.key("calendar");
        let read = written.read(unit).map_err(|mistakes| {
            for CalendarMistake { field, is_misplaced, message, help } in mistakes {
                let (value, key) = match field {
                    CalendarField::Unit => (raw.unit.place(), None),
                    CalendarField::TimeZone => (time_zone.place(), time_zone.key()),
                    CalendarField::WeekStart => (week_start.place(), week_start.key()),
                    CalendarField::AnchorDay => (anchor_day.place(), anchor_day.key()),
                };
                let path = if field == CalendarField::Unit { context.path } else { &path };
                let place = if is_misplaced { key } else { value }.unwrap_or(*place);
                self.error(Context { path, ..context }.at_key(place, field.name()), message, help);
            }
            Reported
        });
        let fits = self.fits_calendar(raw, context);
        match (read, fits && !is_wrong) {
            (Ok(calendar), true) => Ok(Some(calendar)),
            _ => Err(Reported),
        }
    }

    /// Reports what a limit with a calendar cannot have.
    fn fits_calendar(&mut self, raw: &RawLimit, context: Context<'_>) -> bool {
        let mut fits = true;
        if let Some(key) = raw.unit_multiplier.key() {
            let message = "a limit with a calendar has windows of one unit";
            let help = "remove `unit_multiplier` or `calendar`";
            self.error(context.at_key(key, "unit_multiplier"), message, help);
            fits = false;
        }
        let kind =
            raw.algorithm.given().and_then(|given| Some((given.place, Kind::from_name(&given.value)?)));
        if let Some((place, kind)) = kind.filter(|(_, kind)| *kind != Kind::FixedWindow) {
            let reason = if kind.has_burst() {
                "it refills at a steady rate and has no windows"
            } else {
                "its window ends now and always has one length"
            };
            let message = format!("a `{}` cannot follow a calendar: {reason}", kind.name());
            let help = "use `fixed_window`, or remove `calendar`";
            self.error(context.at_key(place, "algorithm"), message, help);
            fits = false;
        }
        fits
    }

    fn multiplier(&mut self, unit: Unit, raw: &Field<u64>, context: Context<'_>) -> Lowered<NonZeroU32> {
        let Some(given) = valid(raw)? else { return Ok(NonZeroU32::MIN) };
        let max = Window::MAX.seconds() / unit.seconds();
        let multiplier = u32::try_from(given.value).ok().filter(|units| u64::from(*units) <= max);
        multiplier.and_then(NonZeroU32::new).ok_or_else(|| {
            let unit = unit.lowercase();
            let message = match given.value {
                0 => "a window has at least one unit".to_owned(),
                units => format!("a window of {units} times a {unit} is longer than 10 years"),
            };
            let help = format!("accepted for a {unit}: 1 to {max}");
            self.error(context.at_key(given.place, "unit_multiplier"), message, help)
        })
    }

    pub(super) fn kind(&mut self, raw: &RawLimit, context: Context<'_>) -> Lowered<Kind> {
        let kind = self.parsed("algorithm", &raw.algorithm, context, |written| {
            choose("algorithm", written, &Kind::ALL, Kind::name)
        });
        let kind = kind?.unwrap_or_default();
        if !self.options.countable.has(kind) {
            let message = format!("`{}` cannot be counted: memcached counts only fixed windows", kind.name());
            let help = "use `fixed_window`, or set BACKEND_TYPE to redis or memory";
            let place = raw.algorithm.place().unwrap_or(raw.place);
            self.error(context.at_key(place, "algorithm"), message, help);
        }
        Ok(kind)
    }

    /// The counting mode of the limit, else of the service. Warns about leases that are not possible; such limits are exact.
    fn counting(&mut self, kind: Kind, raw: &RawLimit, context: Context<'_>) -> Lowered<CountingMode> {
        let counting = self.parsed("counting", &raw.counting, context, |written| {
            choose("counting", written, &CountingMode::ALL, CountingMode::name)
        });
        let may_lease = self.options.countable.may_lease();
        let holds = raw.hold.given().is_some();
        let reason = match counting? {
            None if may_lease && !holds => return Ok(self.options.counting),
            None | Some(CountingMode::Exact) => return Ok(CountingMode::Exact),
            Some(CountingMode::Leased) if kind != Kind::FixedWindow => {
                format!("`{}` is counted exactly", kind.name())
            }
            Some(CountingMode::Leased) if holds => "holds are counted exactly".to_owned(),
            Some(CountingMode::Leased) if !may_lease => "memcached counts exactly".to_owned(),
            Some(CountingMode::Leased) => return Ok(CountingMode::Leased),
        };
        let message = format!("`counting: leased` has no effect: {reason}");
        let help = "remove it: only fixed windows in Redis are leased";
        let place = raw.counting.place().unwrap_or(raw.place);
        self.warning(context.at_key(place, "counting"), message, help);
        Ok(CountingMode::Exact)
    }

    fn burst(&mut self, kind: Kind, raw: &Field<u64>, context: Context<'_>) -> Lowered<Option<NonZeroU64>> {
        let Some(given) = valid(raw)? else { return Ok(None) };
        let accepted = || format!("accepted: 1 to {}", kind.most());
        let (place, message, help) = match NonZeroU64::new(given.value) {
            _ if !kind.has_burst() => {
                let help = "remove it: `burst` is the capacity of a `token_bucket` or a `leaky_bucket`";
                (given.key, format!("`{}` has no burst", kind.name()), help.to_owned())
            }
            Some(burst) if burst.get() <= kind.most() => return Ok(Some(burst)),
            Some(burst) => (given.place, format!("a burst of {burst} is too large"), accepted()),
            None => (given.place, "a bucket with a burst of 0 rejects every request".to_owned(), accepted()),
        };
        Err(self.error(context.at_key(place, "burst"), message, help))
    }

    /// The names of limits that do not count if one of these matches.
    pub(super) fn replaces(&mut self, limits: &RawLimits, context: Context<'_>) -> Box<[Box<str>]> {
        let own: Vec<&String> = limits.as_slice().iter().filter_map(|limit| limit.name.value()).collect();
        let mut names = Vec::new();
        for limit in limits.as_slice() {
            let list = limits.path(context.path, limit);
            let list = list.key("replaces");
            for raw in limit.replaces.items() {
                let RawReplaces { place, index: _, name } = raw;
                let path = raw.path(&list);
                let context = Context { path: &path, ..context };
                match name {
                    Field::Given(name) if own.contains(&&name.value) && !name.value.is_empty() => {
                        let is_own = limit.name.value() == Some(&name.value);
                        let role = if is_own { "itself" } else { "part of the same `rate_limit`" };
                        let message = format!("this limit replaces {}, which is {role}", quoted(&name.value));
                        let help = "`replaces` names other limits, which do not count if this one matches";
                        self.error(context.at_key(name.place, "name"), message, help);
                    }
                    Field::Given(name) if !name.value.is_empty() => names.push(name.value.as_str().into()),
                    Field::Wrong => {}
                    Field::Given(_) | Field::Absent => {
                        let message = "this item has no `name` of a limit to replace";
                        let help = "add `name`, the name of another limit";
                        self.error(context.at(*place), message, help);
                    }
                }
            }
        }
        names.into()
    }
}
