//! A limit: the number of requests, the window and the algorithm, and its schedule: other numbers of requests at some
//! times of the week.
//!
//! The compiler creates those of rules, the limiter those of limit overrides. The number in force of a schedule changes
//! at boundaries, and is remembered until the next one. The counter is the same throughout.

use std::{
    fmt,
    num::{NonZeroU32, NonZeroU64},
    ops::{Deref, Range},
    sync::Arc,
};

use arc_swap::ArcSwap;

use crate::calendar::{
    Calendar,
    schedule::{self, TimeRange},
};
use crate::{Algorithm, FixedWindow, Kind, MAX_LIMIT, Period, Window, holds::HoldRule};
use clock::Time;
use text::thousands;

use super::unit::Unit;

/// A rate and its texts. The fields and methods of the rate are also those of the limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limit {
    pub rate: Rate,
    /// The name in responses, and in `replaces`.
    pub name: Option<Arc<str>>,
    /// The suffix of its counter's key; empty where the Go service has the same key.
    pub tag: Box<str>,
    pub hold: Option<Arc<HoldRule>>,
    /// Other numbers of requests at some times.
    pub schedule: Option<Arc<Schedule>>,
}

/// A number of requests in a window, and how a store counts them: a limit without its texts, so that a batch of checks
/// can outlive the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// At most [`crate::MAX_LIMIT`].
    pub requests_per_unit: u64,
    pub unit: Unit,
    pub multiplier: NonZeroU32,
    /// The calendar that its rule or override names. Its period may have one by default.
    pub calendar: Option<Calendar>,
    pub algorithm: Algorithm,
    /// Whether replicas may count hits ahead of time.
    pub counting: CountingMode,
    /// The keys of its counters end with a tag.
    pub is_tagged: bool,
    /// One of a rule with several limits, or an override in the place of one.
    pub is_of_list: bool,
    /// The limit has a `hold`.
    pub holds: bool,
    /// The seconds before its window begins at which hits are taken: their counter is kept for longer by them.
    pub ahead: u8,
}

impl Deref for Limit {
    type Target = Rate;

    fn deref(&self) -> &Rate {
        &self.rate
    }
}

text::named! {
    #[derive(Default)]
    pub enum CountingMode {
        /// Every hit is counted in the store before it is decided.
        #[default]
        Exact = "exact",
        /// A replica reserves hits of a hot key in the store ahead of time. Fixed windows in Redis only.
        Leased = "leased",
    }
}

/// The algorithms that a store can count. `lower` checks each limit, so that a limit that cannot be counted is an error
/// when rules are compiled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Countable {
    #[default]
    Everything,
    FixedWindows,
}

impl Countable {
    pub const fn may_lease(self) -> bool {
        matches!(self, Self::Everything)
    }

    pub const fn has(self, kind: Kind) -> bool {
        match self {
            Self::Everything => true,
            Self::FixedWindows => matches!(kind, Kind::FixedWindow),
        }
    }

    pub const fn may_hold(self) -> bool {
        matches!(self, Self::Everything)
    }
}

/// The limits of one rule: one or more, in the order of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    first: Limit,
    /// Empty for most rules, so that the only limit is inline.
    others: Box<[Limit]>,
}

impl Limit {
    /// A fixed window of one unit without a name, as in the Go service.
    pub fn plain(requests_per_unit: u64, unit: Unit) -> Self {
        let rate = Rate {
            requests_per_unit,
            unit,
            multiplier: NonZeroU32::MIN,
            calendar: None,
            algorithm: Kind::FixedWindow.at(requests_per_unit, unit.into(), None),
            counting: CountingMode::Exact,
            is_tagged: false,
            is_of_list: false,
            holds: false,
            ahead: 0,
        };
        Self { rate, name: None, tag: Box::default(), hold: None, schedule: None }
    }

    /// A limit of any kind; `None` if the window is too long, or the number larger than the algorithm counts.
    pub fn new(
        requests_per_unit: u64,
        unit: Unit,
        multiplier: NonZeroU32,
        kind: Kind,
        burst: Option<NonZeroU64>,
    ) -> Option<Self> {
        let window = window(unit, multiplier)?;
        if requests_per_unit.max(burst.map_or(0, NonZeroU64::get)) > kind.most() {
            return None;
        }
        let mut limit = Self::plain(requests_per_unit, unit);
        limit.rate.multiplier = multiplier;
        limit.rate.algorithm = kind.at(requests_per_unit, window, burst);
        let is_plain = kind == Kind::FixedWindow && multiplier == NonZeroU32::MIN;
        Some(if is_plain { limit } else { limit.tagged() })
    }

    pub fn of_calendar(requests_per_unit: u64, calendar: Calendar) -> Self {
        let mut limit = Self::plain(requests_per_unit, calendar.cycle().into());
        limit.rate.calendar = Some(calendar);
        limit.following(calendar)
    }

    /// The limit under `USE_CALENDAR_MONTH_RATE_LIMIT`: one per month of the Go service counts the months of UTC.
    pub fn with_calendar_months(self, calendar_months: bool) -> Self {
        let is_of_go =
            self.unit == Unit::Month && self.multiplier == NonZeroU32::MIN && self.calendar.is_none();
        let is_month = is_of_go && matches!(self.algorithm, Algorithm::FixedWindow(_));
        if calendar_months && is_month { self.following(Calendar::utc_month()) } else { self }
    }

    fn following(mut self, calendar: Calendar) -> Self {
        let fixed = FixedWindow { limit: self.requests_per_unit, period: Period::Calendar(calendar) };
        self.rate.algorithm = Algorithm::FixedWindow(fixed);
        self
    }

    pub fn concurrency(requests: u64, hold: HoldRule) -> Self {
        let mut limit = Self::plain(requests, Unit::Unknown);
        limit.rate.algorithm = Algorithm::Concurrency(requests);
        limit.tagged().holding(Some(Arc::new(hold)))
    }

    pub fn holding(mut self, hold: Option<Arc<HoldRule>>) -> Self {
        self.rate.holds = hold.is_some();
        self.hold = hold;
        self
    }

    pub fn named(self, name: Option<Arc<str>>) -> Self {
        Self { name, ..self }
    }

    /// The limit with this counting mode. Only fixed windows are leased.
    pub fn counted(mut self, counting: CountingMode) -> Self {
        let is_window = matches!(self.algorithm, Algorithm::FixedWindow(_));
        self.rate.counting = if is_window { counting } else { CountingMode::Exact };
        self
    }

    /// The limit with a key that no limit of another kind, window or rate has.
    pub fn tagged(mut self) -> Self {
        self.rate.is_tagged = true;
        self.tag = self.algorithm.tag().into();
        self
    }

    /// The limit with counters that no limit of a rule has, whatever its window.
    pub fn apart(mut self) -> Self {
        self.rate.is_tagged = true;
        self.tag = format!("*{}", self.algorithm.tag()).into();
        self
    }

    /// The limit in the place of another one of its rule: it continues that one's counter if it counts in the same way, else
    /// and if it is `apart`, it has a counter that no limit of a rule has.
    pub fn in_place_of(mut self, other: &Self, apart: bool) -> Self {
        let format = self.algorithm.tag();
        let continues = !apart && format == other.algorithm.tag();
        self.rate.is_of_list = other.is_of_list;
        self.rate.is_tagged = !continues || other.is_tagged;
        // With the other's tag, two buckets that are scaled to the same rate have two counters.
        self.tag = if continues { other.tag.clone() } else { format!("*{format}{}", other.tag).into() };
        self
    }

    /// The limit with other numbers: `scale` gives that of its requests and that of a bucket's burst. Each is at most what the
    /// algorithm counts. Its schedule is dropped: [`at`](Self::at) has applied it before.
    pub fn scaled(&self, scale: impl Fn(u64) -> u64) -> Self {
        let most = self.algorithm.kind().most();
        Self { rate: self.rate.scaled(|number| scale(number).min(most)), schedule: None, ..self.clone() }
    }

    /// The limit in force at an instant, which has no schedule.
    #[inline]
    pub fn at(&self, now: Time) -> &Self {
        self.schedule.as_ref().map_or(self, |schedule| schedule.limit(now))
    }

    /// What its schedule says at an instant.
    #[inline]
    pub fn scheduled(&self, now: Time) -> Option<Arc<InForce>> {
        self.schedule.as_ref().map(|schedule| schedule.in_force(now))
    }

    /// The limit of the same counter with another number of requests; `None` if the counter's state depends on it.
    pub fn with_requests(&self, requests_per_unit: u64) -> Option<Self> {
        let mut limit = self.clone();
        limit.rate.requests_per_unit = requests_per_unit;
        limit.rate.algorithm = self.algorithm.with_limit(requests_per_unit)?;
        Some(limit)
    }

    /// The window in words: `minute`, `15 minutes`.
    pub fn span(&self) -> String {
        if self.unit == Unit::Unknown {
            return "time".to_owned();
        }
        let unit = self.unit.lowercase();
        if self.multiplier == NonZeroU32::MIN { unit } else { format!("{} {unit}s", self.multiplier) }
    }

    /// `500 per month (Europe/Berlin, from the 15th)`
    pub fn in_words(&self) -> String {
        let calendar = self.period().calendar().map(|calendar| calendar.to_string());
        in_words(self.requests_per_unit, self.unit, self.multiplier.get().into(), calendar)
    }

    /// Writes the fields that the Go service does not have.
    pub fn write_extras(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.multiplier != NonZeroU32::MIN {
            write!(f, ", unit_multiplier: {}", self.multiplier)?;
        }
        if let Some(calendar) = self.calendar {
            write!(f, ", calendar: {calendar}")?;
        }
        let kind = self.algorithm.kind();
        if kind != Kind::FixedWindow {
            write!(f, ", algorithm: {}", kind.name())?;
        }
        if kind.has_burst() {
            write!(f, ", burst: {}", self.algorithm.capacity())?;
        }
        if self.is_leased() {
            write!(f, ", counting: {}", self.counting.name())?;
        }
        if let Some(hold) = &self.hold {
            write!(f, ", hold: {hold}")?;
        }
        if let Some(schedule) = &self.schedule {
            write!(f, ", schedule: {schedule}")?;
        }
        Ok(())
    }
}

impl Rate {
    #[inline]
    pub fn is_leased(&self) -> bool {
        self.counting == CountingMode::Leased
    }

    /// The rate with other numbers: `scale` gives that of its requests and that of a bucket's burst.
    pub(crate) fn scaled(&self, scale: impl Fn(u64) -> u64) -> Self {
        let requests_per_unit = scale(self.requests_per_unit);
        let bucket = || {
            let burst = NonZeroU64::new(scale(self.algorithm.capacity()));
            self.algorithm.kind().at(requests_per_unit, self.window(), burst)
        };
        let algorithm = self.algorithm.with_limit(requests_per_unit).unwrap_or_else(bucket);
        Self { requests_per_unit, algorithm, ..*self }
    }

    /// The windows that its number of requests refers to.
    #[inline]
    pub fn period(&self) -> Period {
        match self.algorithm {
            Algorithm::FixedWindow(fixed) => fixed.period,
            _ => self.window().into(),
        }
    }

    /// The time on the clock. Hits of a window that begins soon are taken `ahead` seconds before `within`.
    pub fn clock(&self, within: Time) -> Time {
        Time::from_micros(within.micros().saturating_sub(u64::from(self.ahead).saturating_mul(1_000_000)))
    }

    /// The length of the window by its unit.
    pub(crate) fn window(&self) -> Window {
        // `new` rejected a window that is too long.
        window(self.unit, self.multiplier).unwrap_or(Window::MAX)
    }

    #[inline]
    pub fn fixed(&self) -> FixedWindow {
        FixedWindow { limit: self.requests_per_unit, period: self.period() }
    }
}

/// A limit in words, as every page and every command shows it: `1,000 per 15 minutes (Europe/Berlin, from the 15th)`.
pub fn in_words(requests: u64, unit: Unit, units: u64, notes: impl IntoIterator<Item = String>) -> String {
    let span = match (unit, units) {
        (Unit::Unknown, _) => "at a time".to_owned(),
        (unit, 0 | 1) => format!("per {}", unit.lowercase()),
        (unit, units) => format!("per {units} {}s", unit.lowercase()),
    };
    let mut words = format!("{} {span}", thousands(requests));
    for note in notes {
        words.extend([" (", &note, ")"]);
    }
    words
}

/// Why an algorithm cannot have a limit, if it is larger than it counts, and what to do.
pub fn too_large(kind: Kind, requests: u64) -> Option<(String, String)> {
    let most = kind.most();
    let other = match kind {
        Kind::SlidingLog => "`sliding_window` counts nearly the same with two numbers".to_owned(),
        _ => format!("`fixed_window` counts up to {MAX_LIMIT}"),
    };
    let message = format!("a `{}` of {requests} is too large", kind.name());
    (requests > most).then(|| (message, format!("accepted: 0 to {most}; {other}")))
}

/// The window of a number of units; `None` if it is too long.
fn window(unit: Unit, multiplier: NonZeroU32) -> Option<Window> {
    Window::of_seconds(unit.seconds() * u64::from(multiplier.get()))
}

impl Limits {
    /// The limits of a list. The longest window of those that have the Go service's key alone keeps it, because it would
    /// lose most if its counter began anew; all others have a tag.
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Option<Self> {
        let mut limits: Vec<Limit> = limits.into_iter().collect();
        let untagged = limits.iter().enumerate().filter(|(_, limit)| !limit.is_tagged);
        let longest = untagged.rev().max_by_key(|(_, limit)| limit.unit.seconds()).map(|(index, _)| index);
        for (index, limit) in limits.iter_mut().enumerate() {
            limit.rate.is_of_list = true;
            if Some(index) != longest {
                *limit = limit.clone().tagged();
            }
        }
        let mut limits = limits.into_iter();
        let limits = Self { first: limits.next()?, others: limits.collect() };
        Some(limits.counted_alike())
    }

    /// A rule counts all or nothing: leases save nothing if one of its limits is checked for each hit.
    fn counted_alike(mut self) -> Self {
        if !self.iter().all(|limit| limit.is_leased()) {
            let all = std::iter::once(&mut self.first).chain(&mut self.others);
            all.for_each(|limit| limit.rate.counting = CountingMode::Exact);
        }
        self
    }

    /// The limits, each as `change` makes it, in the same order.
    pub fn map(&self, change: impl Fn(&Limit) -> Limit) -> Self {
        Self { first: change(&self.first), others: self.others.iter().map(change).collect() }.counted_alike()
    }

    /// The limits with their schedules, one for each. `None` if the state of a counter depends on its limit.
    pub fn scheduled(mut self, schedules: &[Box<[(TimeRange, u64)]>]) -> Option<Self> {
        let all = std::iter::once(&mut self.first).chain(&mut self.others);
        for (limit, entries) in all.zip(schedules).filter(|(_, entries)| !entries.is_empty()) {
            limit.schedule = Some(Arc::new(Schedule::new(limit, entries)?));
        }
        Some(self)
    }

    /// The limits whose counters begin anew when they replace these limits, although one of these has the same unit and
    /// algorithm: their keys or the formats of their states differ. In a cluster, those of a list have other keys.
    pub fn begin_anew<'l>(&self, after: &'l Self, in_cluster: bool) -> Vec<&'l Limit> {
        let kind = |limit: &Limit| (limit.unit, limit.algorithm.kind());
        let counter =
            |limit: &Limit| (limit.tag.clone(), limit.algorithm.tag(), in_cluster && limit.is_of_list);
        let begins_anew = |limit: &&Limit| {
            let mut known = self.iter().filter(|known| kind(known) == kind(limit)).peekable();
            known.peek().is_some() && !known.any(|known| counter(known) == counter(limit))
        };
        after.iter().filter(begins_anew).collect()
    }

    /// A limit in place of these, with the counter of the one that counts in the same way; else with one of its own.
    pub fn continued_by(&self, limit: Limit) -> Limit {
        if !self.are_several() {
            return limit;
        }
        let format = limit.algorithm.tag();
        let mut limit = limit.tagged();
        limit.rate.is_of_list = true;
        if let Some(same) = self.iter().find(|known| known.algorithm.tag() == format) {
            limit.rate.is_tagged = same.is_tagged;
            limit.tag = same.tag.clone();
        }
        limit
    }

    #[inline]
    pub fn first(&self) -> &Limit {
        &self.first
    }

    #[inline]
    pub fn are_several(&self) -> bool {
        !self.others.is_empty()
    }

    #[inline]
    pub fn get(&self, index: usize) -> Option<&Limit> {
        match index.checked_sub(1) {
            None => Some(&self.first),
            Some(index) => self.others.get(index),
        }
    }

    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &Limit> + Clone {
        std::iter::once(&self.first).chain(&self.others)
    }
}

impl From<Limit> for Limits {
    fn from(first: Limit) -> Self {
        Self { first, others: Box::default() }
    }
}

/// The most entries of a schedule. All are looked at when a boundary is computed.
pub const MAX_ENTRIES: usize = 50;

#[derive(Debug)]
pub struct Schedule {
    ranges: Box<[TimeRange]>,
    /// For each range the limit that is in force instead, and at the end the limit itself. They have no schedule.
    limits: Box<[Limit]>,
    /// What was looked up last: around a boundary both sides of it are in use.
    recent: [ArcSwap<InForce>; 2],
}

/// What is in force until the next boundary.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InForce {
    /// The index of the entry; `None` for the limit itself.
    pub entry: Option<usize>,
    /// The boundary; `None` if nothing changes.
    pub until: Option<Time>,
    /// `mon-fri 08:00-20:00 Europe/Berlin, then 100 at 20:00`
    pub words: Box<str>,
    /// The seconds in which it is valid.
    pub seconds: Range<u64>,
}

impl Schedule {
    /// The entries of a limit, each with its number of requests. `None` if its state depends on that number.
    pub fn new(limit: &Limit, entries: &[(TimeRange, u64)]) -> Option<Self> {
        let (ranges, numbers): (Vec<TimeRange>, Vec<u64>) = entries.iter().copied().unzip();
        let others = numbers.into_iter().map(|requests| limit.with_requests(requests));
        let limits = others.chain([Some(limit.clone())]).collect::<Option<_>>()?;
        // Valid in no second.
        let recent = [(); 2].map(|()| ArcSwap::from_pointee(InForce::default()));
        Some(Self { ranges: ranges.into(), limits, recent })
    }

    pub fn limit(&self, now: Time) -> &Limit {
        let known = self.recent.iter().map(ArcSwap::load).find(|known| known.holds(now));
        self.limit_of(known.map_or_else(|| self.computed(now).entry, |known| known.entry))
    }

    fn limit_of(&self, entry: Option<usize>) -> &Limit {
        &self.limits[entry.unwrap_or(self.ranges.len())]
    }

    /// What is in force at an instant. It is computed once a boundary.
    pub fn in_force(&self, now: Time) -> Arc<InForce> {
        let known = self.recent.iter().map(ArcSwap::load).find(|known| known.holds(now));
        known.map_or_else(|| self.computed(now), |known| Arc::clone(&known))
    }

    fn computed(&self, now: Time) -> Arc<InForce> {
        let found = schedule::in_force(&self.ranges, now);
        let next = found.next;
        let in_force = Arc::new(InForce {
            entry: found.range,
            until: next.map(|_| Time::from_seconds(found.until)),
            words: self.words(&found, now).into(),
            seconds: found.since..found.until,
        });
        // The one that is further away makes room.
        let [one, other] = &self.recent;
        let [from_one, from_other] =
            [one, other].map(|known| known.load().seconds.start.abs_diff(found.since));
        (if from_one >= from_other { one } else { other }).store(Arc::clone(&in_force));
        in_force
    }

    fn words(&self, found: &schedule::InForce, now: Time) -> String {
        let range = |index: Option<usize>| self.ranges.get(index?);
        let own = range(found.range).map(ToString::to_string);
        let then = found.next.map(|next| {
            let requests = self.limit_of(next).requests_per_unit;
            let zone = range(found.range).or(range(next)).map(|range| range.zone);
            let moment = zone.map(|zone| schedule::moment(zone, now, found.until)).unwrap_or_default();
            let zone = zone.filter(|_| own.is_none()).map(|zone| format!(" {}", zone.name()));
            format!("then {requests} {moment}{}", zone.unwrap_or_default())
        });
        own.into_iter().chain(then).collect::<Vec<_>>().join(", ")
    }

    /// True if an entry is in another zone than UTC.
    pub fn is_local(&self) -> bool {
        self.ranges.iter().any(|range| range.zone != crate::calendar::Zone::utc())
    }
}

impl InForce {
    fn holds(&self, now: Time) -> bool {
        self.seconds.contains(&now.seconds())
    }
}

/// `500 mon-fri 08:00-20:00 Europe/Berlin, 50 sat-sun UTC`
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (range, limit)) in self.ranges.iter().zip(&self.limits).enumerate() {
            write!(f, "{}{} {range}", if index > 0 { ", " } else { "" }, limit.requests_per_unit)?;
        }
        Ok(())
    }
}

impl PartialEq for Schedule {
    fn eq(&self, other: &Self) -> bool {
        (&self.ranges, &self.limits) == (&other.ranges, &other.limits)
    }
}

impl Eq for Schedule {}
