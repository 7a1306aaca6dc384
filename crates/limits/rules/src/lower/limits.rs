//! Lowers a `rate_limit`.

use std::{
    collections::HashMap,
    num::{NonZeroU32, NonZeroU64},
    sync::Arc,
};

use super::{super::model::Allowance, Context, Lowering};
use crate::{
    ast::{Field, Given, RawCalendar, RawLimit, RawLimits, RawReplaces},
    written_calendar::{CalendarField, CalendarMistake, WrittenCalendar},
};
use limit::{CountingMode, Kind, Limit, Limits, Unit, Window, calendar::Calendar, too_large};
use text::{
    diagnostics::{Place, quoted},
    spelling::{choose, help_for},
};

/// A mistake was reported.
pub(super) struct Reported;

pub(super) type Lowered<T> = Result<T, Reported>;

impl Lowering<'_> {
    pub(super) fn allowance(&mut self, given: &Given<RawLimits>, context: Context<'_>) -> Lowered<Allowance> {
        let raw = match &given.value {
            RawLimits::One(raw) => {
                let requests_per_unit = raw.requests_per_unit.value().copied().unwrap_or(0);
                return Ok(match self.limit(raw, context)? {
                    Some(limit) => {
                        let schedule = self.schedule(&limit, raw, context)?;
                        let limits = Limits::from(limit).scheduled(&[schedule]);
                        limits.map(Allowance::Limited).ok_or(Reported)?
                    }
                    None => Allowance::Unlimited { requests_per_unit },
                });
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
            self.error(context.at(given.place, context.path), message, help);
        }
        // All limits are lowered before the first error ends it.
        let limits: Vec<_> = raw
            .iter()
            .map(|raw| {
                let path = given.value.path(context.path, raw);
                self.limit_of_list(raw, Context { path: &path, ..context })
            })
            .collect();
        let limits = limits.into_iter().collect::<Lowered<Vec<Limit>>>()?;
        let schedules = raw.iter().zip(&limits).map(|(raw, limit)| {
            self.schedule(limit, raw, Context { path: &given.value.path(context.path, raw), ..context })
        });
        let schedules: Vec<_> = schedules.collect();
        self.report_duplicates(&given.value, &limits, context);
        self.report_mixed_counting(&given.value, &limits, context);
        self.report_mixed_holds(&given.value, &limits, context);
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
        self.error(context.at(place, &context.path.key("unlimited")), message, help);
        Err(Reported)
    }

    /// Reports limits that count the same hits in the same way: only the smallest has an effect.
    fn report_duplicates(&mut self, raw: &RawLimits, limits: &[Limit], context: Context<'_>) {
        let mut first: HashMap<String, Place> = HashMap::new();
        for (raw_limit, limit) in raw.as_slice().iter().zip(limits) {
            let format = limit.algorithm.tag();
            let Some(place) = first.get(&format) else {
                first.insert(format, raw_limit.place);
                continue;
            };
            let message = format!("duplicate limit: the one at {place} counts the same hits");
            let help = "remove the larger of the two, which has no effect";
            let path = raw.path(context.path, raw_limit);
            self.error(context.at(raw_limit.place, &path), message, help);
        }
    }

    /// Warns about leased limits beside exact ones: the limits of a rule count all or nothing, so all are exact.
    fn report_mixed_counting(&mut self, raw: &RawLimits, limits: &[Limit], context: Context<'_>) {
        let Some(exact) = raw.as_slice().iter().zip(limits).find(|(_, limit)| !limit.is_leased()) else {
            return;
        };
        for (raw_limit, limit) in raw.as_slice().iter().zip(limits) {
            let Some(given) = raw_limit.counting.given().filter(|_| limit.is_leased()) else { continue };
            let message =
                format!("`counting: leased` has no effect: the limit at {} is exact", exact.0.place);
            let help = "the limits of a rule count all or nothing; lease all or none";
            let path = raw.path(context.path, raw_limit);
            self.warning(context.at(given.place, &path.key("counting")), message, help);
        }
    }

    /// The limit; `None` if it is `unlimited`.
    fn limit(&mut self, raw: &RawLimit, context: Context<'_>) -> Lowered<Option<Limit>> {
        if raw.unit.is_wrong() || raw.unlimited.is_wrong() {
            return Err(Reported);
        }
        let kind = raw.algorithm.value().and_then(|name| Kind::from_name(name));
        if kind == Some(Kind::Concurrency) && !raw.unlimited.is_set() {
            return self.concurrency(raw, context).map(Some);
        }
        let written = raw.unit.value().map_or("", String::as_str);
        let unit = Unit::from_name(written);
        let place = raw.unit.place().unwrap_or(raw.place);
        let path = context.path.key("unit");
        match (raw.unlimited.is_set(), unit) {
            (true, None) if raw.hold.given().is_some() => {
                let place = raw.hold.key().unwrap_or(raw.place);
                let path = context.path.key("hold");
                let message = "an `unlimited` descriptor cannot hold";
                self.error(context.at(place, &path), message, "remove `hold` or `unlimited`");
            }
            (true, None) => return Ok(None),
            (false, Some(unit)) => return self.limit_per(unit, raw, context).map(Some),
            (true, Some(_)) => {
                let message = "a limit is either `unlimited` or has a unit";
                self.error(context.at(place, &path), message, "remove `unit` or `unlimited`");
            }
            (false, None) if written.is_empty() => {
                let help = format!("add `unit` ({}), or `unlimited: true`", units());
                self.error(context.at(place, context.path), "this limit has no unit", help);
            }
            (false, None) => {
                // Reports the mistakes in it.
                let _ = self.calendar(None, raw, context);
                let help = help_for(
                    written,
                    &Unit::ALL.map(Unit::name),
                    Unit::from_abbreviation(written).map(Unit::name),
                );
                self.error(context.at(place, &path), format!("unknown unit {}", quoted(written)), help);
            }
        }
        Err(Reported)
    }

    fn limit_per(&mut self, unit: Unit, raw: &RawLimit, context: Context<'_>) -> Lowered<Limit> {
        let multiplier = self.multiplier(unit, raw, context);
        let calendar = self.calendar(Some(unit), raw, context);
        let kind = self.kind(raw, context)?;
        let burst = self.burst(kind, raw, context);
        let requests_per_unit = raw.requests_per_unit.value().copied().unwrap_or(0);
        if let Some((message, help)) = too_large(kind, requests_per_unit) {
            let place = raw.requests_per_unit.place().unwrap_or(raw.place);
            self.error(context.at(place, &context.path.key("requests_per_unit")), message, help);
        }
        let name = raw.name.value().filter(|name| !name.is_empty()).map(|name| name.as_str().into());
        let limit = if let Some(calendar) = calendar? {
            Limit::of_calendar(requests_per_unit, calendar)
        } else {
            let (multiplier, burst) = (multiplier?, burst?);
            // What is too large or too long was reported.
            Limit::new(requests_per_unit, unit, multiplier, kind, burst).ok_or(Reported)?
        };
        let limit = limit.with_calendar_months(self.options.calendar_months);
        let hold = self.hold(kind, raw, context)?.map(Arc::new);
        Ok(limit.named(name).counted(self.counting(kind, raw, context)?).holding(hold))
    }

    /// The calendar of a limit with this unit, if it has one.
    fn calendar(
        &mut self,
        unit: Option<Unit>,
        raw: &RawLimit,
        context: Context<'_>,
    ) -> Lowered<Option<Calendar>> {
        let Some(given) = valid(&raw.calendar)? else { return Ok(None) };
        let RawCalendar { time_zone, week_start, anchor_day } = &given.value;
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
                let place = if is_misplaced { key } else { value }.unwrap_or(given.place);
                let at = if field == CalendarField::Unit { context.path } else { &path };
                self.error(context.at(place, &at.key(field.name())), message, help);
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
            self.error(context.at(key, &context.path.key("unit_multiplier")), message, help);
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
            self.error(context.at(place, &context.path.key("algorithm")), message, help);
            fits = false;
        }
        fits
    }

    fn multiplier(&mut self, unit: Unit, raw: &RawLimit, context: Context<'_>) -> Lowered<NonZeroU32> {
        let Some(given) = valid(&raw.unit_multiplier)? else { return Ok(NonZeroU32::MIN) };
        let max = Window::MAX.seconds() / unit.seconds();
        let multiplier = u32::try_from(given.value).ok().filter(|units| u64::from(*units) <= max);
        multiplier.and_then(NonZeroU32::new).ok_or_else(|| {
            let unit = unit.name().to_ascii_lowercase();
            let message = match given.value {
                0 => "a window has at least one unit".to_owned(),
                units => format!("a window of {units} times a {unit} is longer than 10 years"),
            };
            let help = format!("accepted for a {unit}: 1 to {max}");
            self.error(context.at(given.place, &context.path.key("unit_multiplier")), message, help);
            Reported
        })
    }

    pub(super) fn kind(&mut self, raw: &RawLimit, context: Context<'_>) -> Lowered<Kind> {
        let Some(given) = valid(&raw.algorithm)? else { return Ok(Kind::default()) };
        let kind = self.choose("algorithm", given, &Kind::ALL, Kind::name, context)?;
        if !self.options.countable.has(kind) {
            let message = format!("`{}` cannot be counted: memcached counts only fixed windows", kind.name());
            let help = "use `fixed_window`, or set BACKEND_TYPE to redis or memory";
            self.error(context.at(given.place, &context.path.key("algorithm")), message, help);
        }
        Ok(kind)
    }

    /// The counting mode of the limit, else of the service. Warns about leases that are not possible; such limits are exact.
    fn counting(&mut self, kind: Kind, raw: &RawLimit, context: Context<'_>) -> Lowered<CountingMode> {
        let Some(given) = valid(&raw.counting)? else {
            let may_lease = self.options.countable.may_lease() && raw.hold.given().is_none();
            return Ok(if may_lease { self.options.counting } else { CountingMode::Exact });
        };
        let counting = self.choose("counting", given, &CountingMode::ALL, CountingMode::name, context)?;
        let reason = match counting {
            CountingMode::Leased if kind != Kind::FixedWindow => {
                format!("`{}` is counted exactly", kind.name())
            }
            CountingMode::Leased if raw.hold.given().is_some() => "holds are counted exactly".to_owned(),
            CountingMode::Leased if !self.options.countable.may_lease() => {
                "memcached counts exactly".to_owned()
            }
            _ => return Ok(counting),
        };
        let message = format!("`counting: leased` has no effect: {reason}");
        let help = "remove it: only fixed windows in Redis are leased";
        self.warning(context.at(given.place, &context.path.key("counting")), message, help);
        Ok(CountingMode::Exact)
    }

    /// The value of a key that accepts the names of `choices`.
    fn choose<T: Copy>(
        &mut self,
        key: &str,
        given: &Given<String>,
        choices: &[T],
        name: fn(T) -> &'static str,
        context: Context<'_>,
    ) -> Lowered<T> {
        choose(key, &given.value, choices, name).map_err(|(message, help)| {
            self.error(context.at(given.place, &context.path.key(key)), message, help);
            Reported
        })
    }

    fn burst(&mut self, kind: Kind, raw: &RawLimit, context: Context<'_>) -> Lowered<Option<NonZeroU64>> {
        let Some(given) = valid(&raw.burst)? else { return Ok(None) };
        let (place, message, help) = match NonZeroU64::new(given.value) {
            Some(burst) if kind.has_burst() && burst.get() <= kind.most() => return Ok(Some(burst)),
            Some(burst) if kind.has_burst() => {
                let message = format!("a burst of {burst} is too large");
                (given.place, message, format!("accepted: 1 to {}", kind.most()))
            }
            None if kind.has_burst() => {
                let message = "a bucket with a burst of 0 rejects every request".to_owned();
                (given.place, message, format!("accepted: 1 to {}", kind.most()))
            }
            _ => {
                let help =
                    "remove it: `burst` is the capacity of a `token_bucket` or a `leaky_bucket`".to_owned();
                (given.key, format!("`{}` has no burst", kind.name()), help)
            }
        };
        self.error(context.at(place, &context.path.key("burst")), message, help);
        Err(Reported)
    }

    /// The names of limits that do not count if one of these matches.
    pub(super) fn replaces(&mut self, limits: &RawLimits, context: Context<'_>) -> Box<[Box<str>]> {
        let own = |name: &str| {
            let names = limits.as_slice().iter().filter_map(|limit| limit.name.value());
            !name.is_empty() && names.into_iter().any(|own| own == name)
        };
        let mut names = Vec::new();
        for limit in limits.as_slice() {
            let list = limits.path(context.path, limit);
            let list = list.key("replaces");
            for (at, RawReplaces { place, name }) in limit.replaces.items().iter().enumerate() {
                let path = list.item(at);
                match name {
                    Field::Given(name) if own(&name.value) => {
                        self.replaces_itself(limit, name, Context { path: &path, ..context });
                    }
                    Field::Given(name) if !name.value.is_empty() => names.push(name.value.as_str().into()),
                    Field::Wrong => {}
                    Field::Given(_) | Field::Absent => {
                        let message = "this item has no `name` of a limit to replace";
                        let help = "add `name`, the name of another limit";
                        self.error(context.at(*place, &path), message, help);
                    }
                }
            }
        }
        names.into()
    }

    fn replaces_itself(&mut self, limit: &RawLimit, name: &Given<String>, context: Context<'_>) {
        let role =
            if limit.name.value() == Some(&name.value) { "itself" } else { "part of the same `rate_limit`" };
        let message = format!("this limit replaces {}, which is {role}", quoted(&name.value));
        let help = "`replaces` names other limits, which do not count if this one matches";
        self.error(context.at(name.place, &context.path.key("name")), message, help);
    }
}

fn units() -> String {
    Unit::ALL.map(|unit| unit.name().to_ascii_lowercase()).join(", ")
}

pub(super) fn valid<T>(field: &Field<T>) -> Lowered<Option<&Given<T>>> {
    match field {
        Field::Absent => Ok(None),
        Field::Wrong => Err(Reported),
        Field::Given(given) => Ok(Some(given)),
    }
}
