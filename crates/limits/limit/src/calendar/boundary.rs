//! The window of an instant, computed from the rules of its zone.
//!
//! A window begins at the first instant of a local day. Where the clock jumps over midnight, that is the instant of the
//! jump; where midnight comes twice, the earlier one. A day without any instant (Apia left out 2011-12-30) has an empty
//! window, which contains no instant.

use jiff::{
    Timestamp,
    civil::{Date, DateTime},
    tz::{AmbiguousOffset, TimeZone},
};

use super::{AnchorDay, Cycle, Weekday};

/// Start and end of the window that contains a second, in seconds since 1970.
pub(super) fn window(rules: &TimeZone, cycle: Cycle, now: u64) -> (u64, u64) {
    let now = in_range(i64::try_from(now).ok().and_then(|second| Timestamp::from_second(second).ok()));
    let mut first = cycle.first_day(rules.to_datetime(now).date());
    // The local date may be that of another window: where midnight comes twice, the day before returns after the first.
    while first_instant(rules, first) > now {
        first = cycle.first_day(in_range(first.yesterday().ok()));
    }
    loop {
        let next = cycle.first_day_after(first);
        let end = first_instant(rules, next);
        if now < end {
            return (seconds(first_instant(rules, first)), seconds(end));
        }
        first = next;
    }
}

/// The first instant of a local day, or the first one after it if the day has none.
fn first_instant(rules: &TimeZone, day: Date) -> Timestamp {
    first_at(rules, day.at(0, 0, 0, 0))
}

/// The first instant at which the clock shows this time or a later one.
pub(super) fn first_at(rules: &TimeZone, time: DateTime) -> Timestamp {
    match rules.to_ambiguous_timestamp(time).offset() {
        AmbiguousOffset::Unambiguous { offset } | AmbiguousOffset::Fold { before: offset, .. } => {
            in_range(offset.to_timestamp(time).ok())
        }
        // Where the time would have been: at the jump or later.
        AmbiguousOffset::Gap { before, .. } => last_change(rules, in_range(before.to_timestamp(time).ok())),
    }
}

/// The end of the last instant at which the clock shows an earlier time of its day than this one.
pub(super) fn end_at(rules: &TimeZone, time: DateTime) -> Timestamp {
    if let AmbiguousOffset::Fold { after, .. } = rules.to_ambiguous_timestamp(time).offset() {
        let second = in_range(after.to_timestamp(time).ok());
        // The first time that comes twice follows an earlier one only when it comes first.
        if last_change(rules, second) < second {
            return second;
        }
    }
    first_at(rules, time)
}

/// The last change of the offset at or before an instant.
fn last_change(rules: &TimeZone, instant: Timestamp) -> Timestamp {
    let after = in_range(instant.checked_add(jiff::SignedDuration::from_nanos(1)).ok());
    in_range(rules.preceding(after).next()).timestamp()
}

impl Cycle {
    /// The first day of the window that contains a day.
    fn first_day(self, day: Date) -> Date {
        match self {
            Self::Day => day,
            Self::Week(start) => {
                let days_since = day.weekday().since(start.into());
                in_range(day.checked_sub(jiff::Span::new().days(days_since)).ok())
            }
            Self::Month(anchor) => {
                let of_this_month = anchor.in_month_of(day);
                if of_this_month <= day {
                    return of_this_month;
                }
                anchor.in_month_of(in_range(day.first_of_month().yesterday().ok()))
            }
            Self::Year => day.first_of_year(),
        }
    }

    /// The first day of the window after the one that begins on this day.
    fn first_day_after(self, first: Date) -> Date {
        match self {
            Self::Day => in_range(first.tomorrow().ok()),
            Self::Week(_) => in_range(first.checked_add(jiff::Span::new().weeks(1)).ok()),
            Self::Month(anchor) => anchor.in_month_of(in_range(first.last_of_month().tomorrow().ok())),
            Self::Year => in_range(first.last_of_year().tomorrow().ok()),
        }
    }
}

impl AnchorDay {
    /// The day in the month of another one: the last one if the month is shorter.
    fn in_month_of(self, day: Date) -> Date {
        let last = day.last_of_month();
        let anchor = i8::try_from(self.0).ok();
        in_range(anchor.and_then(|anchor| Date::new(day.year(), day.month(), anchor.min(last.day())).ok()))
    }
}

impl From<Weekday> for jiff::civil::Weekday {
    fn from(day: Weekday) -> Self {
        match day {
            Weekday::Monday => Self::Monday,
            Weekday::Tuesday => Self::Tuesday,
            Weekday::Wednesday => Self::Wednesday,
            Weekday::Thursday => Self::Thursday,
            Weekday::Friday => Self::Friday,
            Weekday::Saturday => Self::Saturday,
            Weekday::Sunday => Self::Sunday,
        }
    }
}

/// Seconds since 1970; 0 before it.
pub(super) fn seconds(instant: Timestamp) -> u64 {
    u64::try_from(instant.as_second()).unwrap_or_default()
}

/// Dates and instants of the computation are at most two years away from the clock, which ends in 2262 on Linux.
#[expect(clippy::expect_used, reason = "jiff has the years -9999 to 9999")]
pub(super) fn in_range<T>(value: Option<T>) -> T {
    value.expect("the clock is between 1970 and 9997")
}
