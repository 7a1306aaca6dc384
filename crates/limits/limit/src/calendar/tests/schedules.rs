//! Ranges of local time against those of Python's zoneinfo, and against a definition minute by minute.

use jiff::{Timestamp, civil::Date, tz::TimeZone};
use proptest::prelude::*;

use crate::calendar::{
    Weekday, Zone,
    schedule::{Days, InForce, TimeOfDay, TimeRange, in_force, moment},
};
use clock::Time;

/// The ranges that `schedules.py` has written.
const RECORDED: &str = include_str!("schedules.csv");

fn range(zone: &str, days: Days, from: &str, to: &str) -> TimeRange {
    let zone = Zone::find(zone).unwrap();
    TimeRange { zone, days, from: from.parse().unwrap(), to: to.parse().unwrap() }
}

fn at(ranges: &[TimeRange], time: &str) -> Option<usize> {
    in_force(ranges, Time::from_seconds(second(time))).range
}

fn second(time: &str) -> u64 {
    time.parse::<Timestamp>().unwrap().as_second().try_into().unwrap()
}

fn rules(zone: Zone) -> &'static TimeZone {
    &zone.data().rules
}

#[test]
fn ranges_are_those_of_python() {
    let mut compared = 0;
    for line in RECORDED.lines().filter(|line| !line.starts_with('#')) {
        let [zone, day, from, to, begin, end] = line.split(',').collect::<Vec<_>>().try_into().unwrap();
        let range = range(zone, Days::ALL, from, to);
        let found = range.on(rules(range.zone), day.parse().unwrap());
        let expected = (!begin.is_empty()).then(|| (begin.parse().unwrap(), end.parse().unwrap()));
        assert_eq!(found, expected, "{line}");
        compared += 1;
    }
    assert_eq!(compared, 7 * 4 * 10);
    assert!(
        RECORDED
            .lines()
            .next()
            .unwrap()
            .contains(&format!(" with {},", crate::calendar::zone::data_version()))
    );
}

#[test]
fn the_first_range_that_holds_is_in_force() {
    let office = range("Europe/Berlin", Days::range(Weekday::Monday, Weekday::Friday), "08:00", "20:00");
    let night = range("UTC", Days::range(Weekday::Friday, Weekday::Monday), "22:00", "06:00");
    let ranges = [office, night];
    for (time, expected) in [
        ("2026-11-23T06:59:59Z", None),
        ("2026-11-23T07:00:00Z", Some(0)),
        ("2026-11-23T18:59:59Z", Some(0)),
        ("2026-11-23T19:00:00Z", None),
        ("2026-11-23T22:00:00Z", Some(1)),
        ("2026-11-24T05:59:59Z", Some(1)),
        // Tuesday's night has no range.
        ("2026-11-24T22:00:00Z", None),
        ("2026-11-28T08:00:00Z", None),
    ] {
        assert_eq!(at(&ranges, time), expected, "{time}");
    }
    let now = Time::from_seconds(second("2026-11-23T12:00:00Z"));
    let found = in_force(&ranges, now);
    let (since, until) = (second("2026-11-23T07:00:00Z"), second("2026-11-23T19:00:00Z"));
    assert_eq!(found, InForce { range: Some(0), since, until, next: Some(None) });
    assert_eq!(moment(office.zone, now, until), "at 20:00");
    let friday = Time::from_seconds(second("2026-11-20T19:00:00Z"));
    let monday = in_force(&[office], friday).until;
    assert_eq!(moment(office.zone, friday, monday), "on mon at 08:00");
}

#[test]
fn a_range_without_end_never_changes() {
    for range in [
        range("Europe/Berlin", Days::ALL, "00:00", "24:00"),
        range("Europe/Berlin", Days::ALL, "12:00", "12:00"),
    ] {
        let found = in_force(&[range], Time::from_seconds(1_800_000_000));
        assert_eq!((found.range, found.next), (Some(0), None));
    }
}

#[test]
fn ranges_are_shown_as_they_are_written() {
    let week = Days::range(Weekday::Monday, Weekday::Friday);
    for (range, expected) in [
        (range("UTC", Days::ALL, "0:00", "24:00"), "every day UTC"),
        (range("UTC", week, "0:00", "24:00"), "mon-fri UTC"),
        (range("UTC", Days::ALL, "8:00", "20:30"), "08:00-20:30 UTC"),
        (range("asia/tokyo", week, "22:00", "6:00"), "mon-fri 22:00-06:00 Asia/Tokyo"),
    ] {
        assert_eq!(range.to_string(), expected);
    }
}

#[test]
fn what_is_in_force_is_so_since_then_also_by_ranges_of_other_zones() {
    // The last bound of the second range lies within Monday's of the first, which ended two dates ago.
    let apart = [
        range("America/Atikokan", Days::range(Weekday::Friday, Weekday::Monday), "00:00", "23:45"),
        range("Antarctica/Casey", Days::range(Weekday::Friday, Weekday::Tuesday), "00:00", "00:15"),
    ];
    // Samoa had no 2011-12-30: the night of the 28th ended a quarter of an hour before the 31st.
    let night = Days::range(Weekday::Wednesday, Weekday::Wednesday);
    let samoa = [range("Pacific/Apia", night, "23:45", "23:45")];
    for (ranges, time) in [(&apart[..], "2068-07-05T05:00:00Z"), (&samoa[..], "2011-12-30T10:00:00Z")] {
        let found = in_force(ranges, Time::from_seconds(second(time)));
        assert_eq!(found.range, None);
        for second in (found.since..second(time)).step_by(60) {
            assert_eq!(in_force(ranges, Time::from_seconds(second)).range, None, "{second}, {time}");
        }
    }
}

/// True if a range holds, by the clock's times around it.
fn holds_by_definition(range: TimeRange, now: u64) -> bool {
    let local = |minute: i64| {
        let shown = rules(range.zone).to_datetime(Timestamp::from_second(minute * 60).unwrap());
        (shown.date(), shown.hour(), shown.minute())
    };
    let now = i64::try_from(now).unwrap() / 60;
    let clock: Vec<(i64, (Date, i8, i8))> =
        (now - 3 * 1440..now + 3 * 1440).map(|minute| (minute, local(minute))).collect();
    let today = local(now).0;
    let (from, to) = (range.from.to_string(), range.to.to_string());
    (-2..=1).any(|days| {
        let day = today.checked_add(jiff::Span::new().days(days)).unwrap();
        let weekday = Weekday::ALL.into_iter().find(|one| day.weekday() == (*one).into()).unwrap();
        let of_day = Days::range(weekday, weekday);
        if range.days.and(of_day) != range.days {
            return false;
        }
        let is_within = |(date, hour, minute): &(Date, i8, i8)| {
            let time = format!("{hour:02}:{minute:02}");
            if to <= from {
                *date == day && time >= from || *date == day.tomorrow().unwrap() && time < to
            } else {
                *date == day && time >= from && time < to
            }
        };
        let mut within = clock.iter().filter(|(_, shown)| is_within(shown)).map(|(minute, _)| *minute);
        let first = within.next();
        let last = within.next_back().or(first);
        first.zip(last).is_some_and(|(first, last)| first <= now && now <= last)
    })
}

fn times() -> impl Strategy<Value = TimeOfDay> {
    (0_u16..1440)
        .prop_map(|minute| format!("{:02}:{:02}", minute / 60, minute / 15 % 4 * 15).parse().unwrap())
}

fn ranges() -> impl Strategy<Value = Vec<TimeRange>> {
    let zone = prop::sample::select(Zone::names().collect::<Vec<_>>());
    let day = || prop::sample::select(&Weekday::ALL[..]);
    let to = prop_oneof![times(), Just(TimeOfDay::END)];
    let one = (zone, day(), day(), times(), to).prop_map(|(zone, first, last, from, to)| TimeRange {
        zone: Zone::find(zone).unwrap(),
        days: Days::range(first, last),
        from,
        to,
    });
    prop::collection::vec(one, 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_range_in_force_is_that_of_the_definition(
        ranges in ranges(),
        now in 946_684_800_u64..4_102_444_800,
        within in 0_u64..8 * 86_400,
    ) {
        let found = in_force(&ranges, Time::from_seconds(now));
        let by_definition = |second| ranges.iter().position(|range| holds_by_definition(*range, second));
        prop_assert_eq!(found.range, by_definition(now));
        prop_assert!(found.since <= now && now < found.until);
        // Nothing changes within, and something does at the end.
        for second in [found.since, found.since + within % (found.until - found.since), found.until - 1] {
            prop_assert_eq!(in_force(&ranges, Time::from_seconds(second)).range, found.range);
        }
        prop_assert_eq!(by_definition(found.until - 1), found.range);
        if let Some(next) = found.next {
            prop_assert_ne!(next, found.range);
            prop_assert_eq!(by_definition(found.until), next);
        }
    }
}
