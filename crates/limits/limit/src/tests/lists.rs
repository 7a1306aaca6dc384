//! The keys of limits of a list, and of limits in their place.

use crate::{Kind, Limit, Limits, Unit};
use std::num::NonZeroU32;

fn of(unit: Unit, units: u32, kind: Kind) -> Limit {
    Limit::new(5, unit, NonZeroU32::new(units).unwrap(), kind, None).unwrap()
}

fn plain(unit: Unit) -> Limit {
    Limit::plain(5, unit)
}

fn tags(limits: &Limits) -> Vec<&str> {
    limits.iter().map(|limit| &*limit.tag).collect()
}

#[test]
fn the_longest_window_of_the_go_service_has_its_key() {
    use Unit::{Day, Hour, Minute, Year};
    for (limits, expected) in [
        (vec![plain(Minute), plain(Day)], ["/60", ""]),
        (vec![plain(Day), plain(Minute)], ["", "/60"]),
        (vec![of(Day, 2, Kind::FixedWindow), plain(Hour)], ["/172800", ""]),
        (vec![of(Year, 1, Kind::SlidingWindow), plain(Minute)], ["sw/31536000", ""]),
        (vec![of(Minute, 2, Kind::FixedWindow), of(Hour, 1, Kind::SlidingLog)], ["/120", "sl/3600"]),
    ] {
        let list = Limits::new(limits.clone()).unwrap();
        assert_eq!(tags(&list), expected);
        assert!(list.iter().zip(&limits).all(|(of_list, alone)| {
            of_list.is_of_list && !alone.is_of_list && of_list.is_tagged != of_list.tag.is_empty()
        }));
    }
}

#[test]
fn a_limit_in_place_of_a_list_has_the_counter_of_the_same_window() {
    let list = Limits::new([plain(Unit::Minute), plain(Unit::Day)]).unwrap();
    for (unit, tag) in [(Unit::Minute, "/60"), (Unit::Day, ""), (Unit::Hour, "/3600")] {
        let other = list.continued_by(Limit::plain(9, unit));
        assert_eq!((&*other.tag, other.is_of_list, other.is_tagged), (tag, true, !tag.is_empty()));
    }
    let alone = Limits::from(plain(Unit::Day));
    assert_eq!(alone.continued_by(Limit::plain(9, Unit::Hour)), Limit::plain(9, Unit::Hour));
}

#[test]
fn a_counter_begins_anew_if_its_key_or_the_format_of_its_state_differs() {
    let begin = |before: &[&Limit], after: &[&Limit], in_cluster| {
        let limits = |all: &[&Limit]| match all {
            [one] => Limits::from(Limit::clone(one)),
            _ => Limits::new(all.iter().copied().cloned()).unwrap(),
        };
        let (before, after) = (limits(before), limits(after));
        before.begin_anew(&after, in_cluster).into_iter().map(|limit| limit.unit).collect::<Vec<_>>()
    };
    let [minute, day, year] = &[Unit::Minute, Unit::Day, Unit::Year].map(plain);
    assert_eq!(begin(&[year], &[minute, year], false), []);
    assert_eq!(begin(&[year], &[minute, year], true), [Unit::Year]);
    assert_eq!(begin(&[minute, year], &[year], true), [Unit::Year]);
    assert_eq!(begin(&[day], &[day, year], false), [Unit::Day], "the year has its key");
    assert_eq!(begin(&[minute], &[day], false), [], "nobody expects it to go on");
    let bucket = |hits| Limit::new(hits, Unit::Minute, NonZeroU32::MIN, Kind::TokenBucket, None).unwrap();
    assert_eq!(begin(&[&bucket(5)], &[&bucket(6)], false), [Unit::Minute]);
    assert_eq!(begin(&[&bucket(5)], &[&bucket(5)], false), []);
}
