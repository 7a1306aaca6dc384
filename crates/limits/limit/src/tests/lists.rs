//! The keys of limits of a list, and of limits in their place.

use crate::{Kind, Limit, Limits, Unit};
use std::num::{NonZeroU32, NonZeroU64};

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
fn a_limit_in_place_of_one_of_a_list_never_shares_the_counter_of_another() {
    let bucket =
        |requests| Limit::new(requests, Unit::Second, NonZeroU32::MIN, Kind::TokenBucket, None).unwrap();
    let list = Limits::new([plain(Unit::Second), plain(Unit::Day), bucket(1), bucket(2)]).unwrap();
    let [second, day, one, two] = [0, 1, 2, 3].map(|index| list.get(index).unwrap());
    let tag = |limit: &Limit, other, apart| limit.clone().in_place_of(other, apart).tag;
    assert_eq!(tag(&Limit::plain(9, Unit::Day), day, false), day.tag, "it continues the counter");
    assert_eq!(&*tag(&Limit::plain(9, Unit::Second), day, false), "*/1", "not that of the other limit");
    assert_eq!(&*tag(&Limit::plain(9, Unit::Second), second, true), "*/1/1");
    let half = |limit: &Limit| limit.scaled(|requests| requests.div_ceil(2));
    assert_eq!(half(one).algorithm, half(two).algorithm);
    assert_ne!(tag(&half(one), one, false), tag(&half(two), two, false));
    let in_place = half(second).in_place_of(second, false);
    assert_eq!((in_place.requests_per_unit, &in_place.tag, in_place.is_of_list), (3, &second.tag, true));
}

#[test]
fn a_scaled_limit_has_at_most_what_its_algorithm_counts() {
    for kind in Kind::ALL {
        let limit = Limit::new(4, Unit::Hour, NonZeroU32::MIN, kind, NonZeroU64::new(8)).unwrap();
        let scaled = limit.scaled(|requests| requests * 3);
        assert_eq!(scaled.requests_per_unit, 12, "{kind:?}");
        let expected = if kind.has_burst() { 24 } else { 12 };
        assert_eq!((scaled.algorithm.kind(), scaled.algorithm.capacity()), (kind, expected));
        assert_eq!(limit.scaled(|_| u64::MAX).requests_per_unit, kind.most());
    }
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
