//! A hold from its check to its settle, its end or its expiry, in every store.

use std::{thread::sleep, time::Duration};

use super::{Holder, Places, setup};
use support::{
    client::{hold_id, request},
    eventually, holds,
};

pub(super) fn everywhere(test: impl Fn(&str, &Holder, &support::server::Server)) {
    let places = Places::start();
    for (place, setup) in places.setups() {
        let server = setup.start_healthy();
        test(place, &Holder::of(&server), &server);
    }
}

#[test]
fn a_hold_reserves_until_the_first_settle_charges_the_cost() {
    everywhere(|place, holder, server| {
        let ids = [1, 2].map(|_| holder.hold(&[("budget", "a")]).expect(place));
        assert_ne!(ids[0], ids[1]);
        assert_eq!(holder.seen("budget", "a"), (0, 80), "{place}");
        assert_eq!(holder.hold(&[("budget", "a")]), None, "{place}: 120 of 100");
        assert_eq!(holder.seen("budget", "b"), (0, 0), "{place}");
        holder.settle(&ids[0], 7);
        assert_eq!(holder.seen("budget", "a"), (7, 40), "{place}");
        holder.settle(&ids[0], 50);
        holder.end(&ids[0]);
        assert_eq!(holder.seen("budget", "a"), (7, 40), "{place}: a second settle changes nothing");
        assert_eq!(server.count("tollgate_holds_unknown_ids_total"), 1, "{place}");
        holder.settle(&ids[1], 60);
        assert_eq!(holder.seen("budget", "a"), (67, 0), "{place}: more than was held");
        assert_eq!(server.count("tollgate_holds_overspent_hits_total"), 20, "{place}");
        assert_eq!(server.count("tollgate_holds_settled_total{rule=\"d.budget\"}"), 2, "{place}");
        // As of the last sweep.
        eventually("no hold is open", || match server.count("tollgate_holds") {
            0 => Ok(()),
            open => Err(format!("{place}: {open}")),
        });
    });
}

#[test]
fn an_end_charges_what_unknown_says_and_a_late_settle_corrects_it() {
    everywhere(|place, holder, server| {
        for (key, charged) in [("budget", 40), ("zero", 0), ("ten", 10)] {
            let id = holder.hold(&[(key, "a")]).expect(place);
            holder.end(&id);
            assert_eq!(holder.seen(key, "a"), (charged, 0), "{place} {key}");
            holder.end(&id);
            holder.settle(&id, 33);
            assert_eq!(holder.seen(key, "a"), (33, 0), "{place} {key}");
            holder.settle(&id, 44);
            assert_eq!(holder.seen(key, "a"), (33, 0), "{place} {key}: only once");
        }
        // Without a cost of its own, a settle is an end.
        let id = holder.hold(&[("ten", "b")]).expect(place);
        holder.close(&[("hold_settle", &id)], None);
        assert_eq!(holder.seen("ten", "b"), (10, 0), "{place}");
        assert_eq!(server.count("tollgate_holds_late_total"), 3, "{place}");
        assert_eq!(server.count("tollgate_holds_ended_total{rule=\"d.ten\",how=\"ended\"}"), 2, "{place}");
    });
}

#[test]
fn a_hold_expires_alone_and_charges_what_unknown_says() {
    everywhere(|place, holder, server| {
        let first = holder.hold(&[("short", "a")]).expect(place);
        sleep(Duration::from_millis(700));
        let _second = holder.hold(&[("short", "a")]).expect(place);
        assert_eq!(holder.seen("short", "a"), (0, 80), "{place}");
        eventually("the first expires", || {
            let seen = holder.seen("short", "a");
            holds(seen == (0, 40), || format!("{place} {seen:?}"))
        });
        holder.settle(&first, 25);
        assert_eq!(holder.seen("short", "a").0, 25, "{place}: a late settle");
        let expired = "tollgate_holds_ended_total{rule=\"d.short\",how=\"expired\"}";
        eventually("both are counted", || holds(server.count(expired) == 2, || server.count(expired)));
        eventually("nothing is held", || holds(server.count("tollgate_holds") == 0, || place));
    });
}

#[test]
fn a_request_holds_on_all_of_its_limits_or_on_none() {
    everywhere(|place, holder, _| {
        let of_both = [("budget", "a"), ("dollars", "a"), ("streams", "a")];
        let ids = [1, 2].map(|_| holder.hold(&of_both).expect(place));
        assert_eq!((holder.seen("budget", "a"), holder.seen("dollars", "a")), ((0, 80), (0, 600)), "{place}");
        assert_eq!(holder.hold(&of_both), None);
        let nothing_more = || {
            let seen = (holder.seen("dollars", "a"), holder.seen("streams", "a"));
            holds(seen == ((0, 600), (0, 2)), || format!("{place} {seen:?}"))
        };
        eventually("a refused request holds nothing", nothing_more);
        holder.settle_in(&ids[0], "dollars", 11);
        assert_eq!(
            (holder.seen("budget", "a"), holder.seen("dollars", "a")),
            ((0, 80), (11, 300)),
            "{place}"
        );
        holder.settle_in(&ids[0], "tokens", 12);
        assert_eq!((holder.seen("budget", "a"), holder.seen("streams", "a")), ((12, 40), (0, 2)), "{place}");
        holder.end(&ids[0]);
        assert_eq!(holder.seen("streams", "a"), (0, 1), "{place}");
        holder.settle(&ids[1], 50);
        assert_eq!(holder.seen("budget", "a"), (62, 0), "{place}");
        assert_eq!((holder.seen("dollars", "a"), holder.seen("streams", "a")), ((61, 0), (0, 0)), "{place}");
    });
}

#[test]
fn the_estimate_is_the_hits_addend_cut_to_the_limit() {
    everywhere(|place, holder, _| {
        let id = holder.hold_hits("budget", "a", 1_000_000).expect("an unused budget admits a request");
        assert_eq!(holder.seen("budget", "a"), (0, 100), "{place}");
        assert_eq!(holder.hold_hits("budget", "a", 1), None, "{place}");
        holder.settle(&id, 100);
        assert_eq!(holder.seen("budget", "a"), (100, 0), "{place}");
        let mut asked = request("d", &[&[("budget", "b")]]);
        asked.hits_addend = 15;
        assert!(hold_id(&holder.ask(asked)).is_some());
        assert_eq!(holder.seen("budget", "b"), (0, 15), "{place}");
    });
}

#[test]
fn most_bounds_what_a_request_holds_and_not_what_it_costs() {
    everywhere(|place, holder, server| {
        let hold = |hits| holder.hold_hits("bounded", "a", hits);
        let ids = [1_000_000, 31, 30].map(|hits| hold(hits).expect(place));
        assert_eq!(holder.seen("bounded", "a"), (0, 90), "{place}");
        assert_eq!(hold(50), None, "{place}: 30 more do not fit");
        let last = holder.hold(&[("bounded", "a")]).expect("`amount` is below `most`");
        assert_eq!(holder.seen("bounded", "a"), (0, 100), "{place}");
        holder.settle(&ids[0], 45);
        assert_eq!(holder.seen("bounded", "a"), (45, 70), "{place}: the whole cost is charged");
        assert_eq!(server.count("tollgate_holds_overspent_hits_total"), 15, "{place}");
        holder.end(&ids[1]);
        assert_eq!(holder.seen("bounded", "a"), (75, 40), "{place}: without a cost, what was held");
        holder.settle(&ids[2], 5);
        holder.settle(&last, 10);
        assert_eq!(holder.seen("bounded", "a"), (90, 0), "{place}");
    });
}

#[test]
fn only_a_response_that_passes_and_holds_has_an_identity() {
    let server = setup().env("RESPONSE_DYNAMIC_METADATA", "false").start();
    let holder = Holder::of(&server);
    assert!(holder.hold(&[("budget", "a")]).is_some(), "whatever RESPONSE_DYNAMIC_METADATA says");
    assert_eq!(holder.hold(&[("plain", "a")]), None);
    assert_eq!(holder.hold(&[("unknown", "a")]), None);
    // An ordinary limit of the same request refuses: what was held is given back.
    let of_both = [("zero", "b"), ("plain", "b")];
    let held: Vec<bool> = (0..4).map(|_| holder.hold(&of_both).map(|id| holder.end(&id)).is_some()).collect();
    assert_eq!(held, [true, true, true, false]);
    assert_eq!(server.count("tollgate_holds"), 1);
}
