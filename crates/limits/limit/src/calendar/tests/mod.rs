//! Windows of every kind against those of Python's zoneinfo, and as a property.

mod schedules;

use proptest::prelude::*;

use super::*;

/// The windows that `windows.py` has written.
const RECORDED: &str = include_str!("windows.csv");

fn calendar(zone: &str, kind: &str) -> Calendar {
    let cycle = match kind.split_once(' ').unwrap_or((kind, "")) {
        ("day", _) => Cycle::Day,
        ("week", start) => Cycle::Week(Weekday::ALL.into_iter().find(|day| day.name() == start).unwrap()),
        ("month", anchor) => Cycle::Month(AnchorDay::new(anchor.parse().unwrap()).unwrap()),
        _ => Cycle::Year,
    };
    Calendar::new(Zone::find(zone).unwrap(), cycle)
}

fn seconds(calendar: Calendar, now: u64) -> (u64, u64) {
    let (start, end) = calendar.window(Time::from_seconds(now));
    (start.seconds(), end.seconds())
}

#[test]
fn windows_are_those_of_python() {
    let (mut compared, mut kinds) = (0, std::collections::HashSet::new());
    for line in RECORDED.lines().filter(|line| !line.starts_with('#')) {
        let [zone, kind, instant, start, end] = line.split(',').collect::<Vec<_>>().try_into().unwrap();
        let [instant, start, end] = [instant, start, end].map(|second| second.parse::<u64>().unwrap());
        assert_eq!(seconds(calendar(zone, kind), instant), (start, end), "{line}");
        compared += 1;
        kinds.insert((zone, kind));
    }
    assert_eq!((compared, kinds.len()), (7 * 7 * 16, 7 * 7));
}

#[test]
fn days_have_23_and_25_hours_and_a_missing_day_none() {
    let hours = |zone, now| {
        let (start, end) = seconds(calendar(zone, "day"), now);
        (end - start) / 3600
    };
    assert_eq!(hours("Europe/Berlin", 1_774_749_600), 23, "2026-03-29");
    assert_eq!(hours("Europe/Berlin", 1_792_886_400), 25, "2026-10-25");
    let apia = calendar("Pacific/Apia", "day");
    let (_, end) = seconds(apia, 1_325_152_800);
    let (start, _) = seconds(apia, end);
    assert_eq!((start, end), (1_325_239_200, 1_325_239_200), "2011-12-31 follows 2011-12-29");
}

#[test]
fn the_window_of_1970_begins_at_0() {
    assert_eq!(seconds(calendar("Europe/Berlin", "year"), 0), (0, 365 * 86_400 - 3600));
}

#[test]
fn every_zone_can_be_used() {
    assert_eq!(Zone::utc().name(), "UTC");
    assert!(Zone::names().count() > 500);
    for name in Zone::names() {
        let zone = Zone::find(&name.to_ascii_lowercase()).unwrap();
        assert_eq!(zone.name(), name);
        let (start, end) = seconds(Calendar::new(zone, Cycle::Year), 1_800_000_000);
        // Cuba moved to another offset in that year.
        assert!((end - start).abs_diff(365 * 86_400) <= 3600, "{name}");
    }
    assert!(Zone::find("Europe/Berln").is_none());
}

#[test]
fn the_recorded_windows_are_of_the_bundled_release() {
    let (heading, _) = RECORDED.split_once('\n').unwrap();
    assert!(
        heading.contains(&format!(" with {},", zone::data_version())),
        "{}: {heading}",
        zone::data_version()
    );
}

#[test]
fn calendars_have_numbers() {
    for kind in ["day", "week sunday", "month 31", "year"] {
        let calendar = calendar("Pacific/Apia", kind);
        assert_eq!(Calendar::of_number(calendar.number()), Some(calendar));
    }
    for number in [u32::MAX, 40, 1 << 24, u32::try_from(Zone::names().count()).unwrap() << 8] {
        assert_eq!(Calendar::of_number(number), None, "{number}");
    }
}

#[test]
fn calendars_are_shown_with_their_zone_and_start() {
    for (kind, expected) in [
        ("day", "Asia/Tokyo"),
        ("year", "Asia/Tokyo"),
        ("week sunday", "Asia/Tokyo, from Sunday"),
        ("month 1", "Asia/Tokyo, from the 1st"),
        ("month 2", "Asia/Tokyo, from the 2nd"),
        ("month 3", "Asia/Tokyo, from the 3rd"),
        ("month 11", "Asia/Tokyo, from the 11th"),
        ("month 13", "Asia/Tokyo, from the 13th"),
        ("month 21", "Asia/Tokyo, from the 21st"),
        ("month 31", "Asia/Tokyo, from the 31st"),
    ] {
        assert_eq!(calendar("Asia/Tokyo", kind).to_string(), expected);
    }
}

fn cycles() -> impl Strategy<Value = Cycle> {
    prop_oneof![
        Just(Cycle::Day),
        prop::sample::select(&Weekday::ALL[..]).prop_map(Cycle::Week),
        (1_u64..=31).prop_map(|day| Cycle::Month(AnchorDay::new(day).unwrap())),
        Just(Cycle::Year),
    ]
}

proptest! {
    #[test]
    fn cycles_have_indexes(cycle in cycles()) {
        prop_assert!(cycle.index() < Cycle::COUNT);
        prop_assert_eq!(Cycle::of_index(cycle.index()), cycle);
    }

    /// The end of a window is the start of the next, and the window of each of its seconds is the same.
    #[test]
    fn windows_tile_time(
        zone in prop::sample::select(Zone::names().collect::<Vec<_>>()),
        cycle in cycles(),
        now in 0_u64..4_102_444_800,
        step in 0_u64..40_000_000,
    ) {
        let zone = Zone::find(zone).unwrap();
        let calendar = Calendar::new(zone, cycle);
        let (start, end) = seconds(calendar, now);
        prop_assert!(start <= now && now < end);
        // Computed anew: the last lookup is remembered.
        let rules = &zone.data().rules;
        let within = start + step % (end - start);
        for second in [start, within, end - 1] {
            prop_assert_eq!(boundary::window(rules, cycle, second), (start, end), "{} {:?}", zone.name(), cycle);
        }
        prop_assert_eq!(boundary::window(rules, cycle, end).0, end);
        if start > 0 {
            prop_assert_eq!(boundary::window(rules, cycle, start - 1).1, start);
        }
    }
}
