//! Identities, costs and values that a caller makes up.

use proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;

use super::{Holder, life::everywhere, setup};
use support::{
    client::{hold_id, request},
    redis::Redis,
};

/// The largest number of JSON and Lua without rounding.
const MOST: u64 = (1 << 53) - 1;

#[test]
fn a_made_up_identity_is_ok_and_changes_nothing() {
    everywhere(|place, holder, server| {
        let id = holder.hold(&[("budget", "a")]).expect(place);
        let names = ["{0}holds", "{0}due", "{3560}holds:d_budget_a", "tollgate:check"].map(str::to_owned);
        let others = [
            "A".repeat(64 << 10),
            format!("{}\r\n{}", &id[..10], &id[12..]),
            format!("{id}="),
            format!("{}QAA", &id[..22]),
            format!("{id}AAA"),
            "\0\r\n*1\r\n$8\r\nFLUSHALL\r\n".to_owned(),
            "\u{e9}".repeat(22),
        ];
        for foreign in names.iter().chain(&others) {
            holder.settle(foreign, 5);
            holder.settle(foreign, u64::MAX);
            holder.end(foreign);
        }
        for currency in ["", "\0", "\r\n", &"x".repeat(5000)] {
            holder.settle_in(&id, currency, 5);
        }
        assert_eq!(holder.seen("budget", "a"), (0, 40), "{place}");
        assert!(server.count("tollgate_holds_unknown_ids_total") >= 20, "{place}");
        assert_eq!(server.count("tollgate_holds_settled_total{rule=\"d.budget\"}"), 0, "{place}");
    });
}

#[test]
fn hits_beyond_all_numbers_on_a_counter_with_holds_are_counted() {
    everywhere(|place, holder, server| {
        assert!(holder.hold(&[("budget", "a")]).is_some(), "{place}");
        let mut own = request("d", &[&[("budget", "a")]]);
        own.descriptors[0].hits_addend = Some(u64::MAX);
        own.descriptors[0].limit =
            Some(RateLimitOverride { requests_per_unit: u32::MAX, unit: 6, unit_multiplier: None });
        for _ in 0..3 {
            // What is spent is beyond any limit, and each is an answer.
            holder.ask(own.clone());
            holder.hold(&[("budget", "a")]);
        }
        let panics =
            server.metrics().into_iter().filter(|(name, _)| name.starts_with("tollgate_panics_total"));
        assert!(panics.map(|(_, times)| times).all(|times| times < 1.0), "{place}");
    });
}

#[test]
fn a_counter_with_a_foreign_value_holds_nothing() {
    let redis = Redis::single();
    let server = setup().redis(&redis.env()).start_healthy();
    let holder = Holder::of(&server);
    for (value, write) in [("text", "SET"), ("list", "RPUSH")] {
        assert!(holder.hold(&[("budget", value)]).is_some());
        let key =
            redis.keys().into_iter().find(|key| key.starts_with(&format!("d_budget_{value}_"))).unwrap();
        redis.ask(&["DEL", &key]);
        redis.ask(&[write, &key, "a foreign value"]);
        let failed = server.ask(request("d", &[&[("budget", value)]])).unwrap_err();
        assert!(failed.message().contains("unexpected reply"), "{value}: {failed:?}");
    }
    assert!(holder.hold(&[("budget", "other"), ("streams", "a")]).is_some(), "others are not meant");
}

#[test]
fn costs_and_estimates_beyond_all_numbers_stay_within_them() {
    everywhere(|place, holder, _| {
        let first = holder.hold(&[("budget", "a")]).expect(place);
        let second = holder.hold(&[("budget", "a")]).expect(place);
        holder.settle(&first, u64::MAX);
        assert_eq!(holder.seen("budget", "a"), (MOST, 40), "{place}");
        holder.settle(&second, MOST);
        assert_eq!(holder.seen("budget", "a"), (MOST, 0), "{place}");
        assert_eq!(holder.hold(&[("budget", "a")]), None, "{place}");
        for hits in [1 << 53, u64::MAX] {
            let id = holder.hold_hits("budget", &hits.to_string(), hits).expect("an unused budget");
            assert_eq!(holder.seen("budget", &hits.to_string()), (0, 100), "{place}");
            holder.settle(&id, 1);
            assert_eq!(holder.seen("budget", &hits.to_string()), (1, 0), "{place}");
        }
        // A refund has no cost, so it is an end.
        let id = holder.hold(&[("ten", "a")]).expect(place);
        let mut refund = request("d", &[&[("hold_settle", &id)]]);
        (refund.descriptors[0].hits_addend, refund.descriptors[0].is_negative_hits) = (Some(30), true);
        holder.ask(refund);
        assert_eq!(holder.seen("ten", "a"), (10, 0), "{place}");
    });
}

#[test]
fn any_value_has_a_counter_of_its_own() {
    everywhere(|place, holder, _| {
        let long = "v".repeat(60_000);
        let values = ["{x}", "}{", "\0\u{1}", "holds", "{0}due", "a:1:40", "a\r\nb", &long];
        let ids = values.map(|value| holder.hold(&[("budget", value)]).expect(value));
        for ((value, id), cost) in values.iter().zip(&ids).zip(1..) {
            assert_eq!(holder.seen("budget", value), (0, 40), "{place} {value:.10}");
            holder.settle(id, cost);
        }
        for (value, cost) in values.iter().zip(1..) {
            assert_eq!(holder.seen("budget", value), (cost, 0), "{place} {value:.10}");
        }
    });
}

#[test]
fn a_request_that_names_a_counter_twice_holds_twice() {
    everywhere(|place, holder, _| {
        let twice = holder.hold(&[("budget", "a"), ("budget", "a")]).expect(place);
        assert_eq!(holder.seen("budget", "a"), (0, 80), "{place}");
        assert_eq!(holder.hold(&[("budget", "b"); 3]), None, "{place}");
        assert_eq!(holder.seen("budget", "b"), (0, 0), "{place}");
        holder.settle(&twice, 10);
        assert_eq!(holder.seen("budget", "a"), (20, 0), "{place}");
        // A settle frees room for the holds of its own request.
        let first = holder.hold_hits("budget", "c", 90).expect(place);
        let mut both = request("d", &[&[("hold_settle", &first)], &[("budget", "c")]]);
        both.descriptors[0].hits_addend = Some(50);
        assert!(hold_id(&holder.ask(both)).is_some(), "{place}");
        assert_eq!(holder.seen("budget", "c"), (50, 40), "{place}");
    });
}
