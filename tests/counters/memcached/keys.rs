//! The keys, values and expiries in memcached, which are those of the Go service.

use std::{thread, time::Duration};

use support::clock::{Clock, now, window};

use super::{Code, Memcached, code, counter, decision, one, request, with_rules};

const HOUR: u64 = 3600;
const YEAR: i64 = 365 * 24 * 3600;

#[test]
fn keys_and_values_are_those_of_the_go_service() {
    let memcached = Memcached::single();
    let server = with_rules(memcached.setup()).env("CACHE_KEY_PREFIX", "pre:").start_healthy();
    let client = server.client();
    assert_eq!(code(&client, "two", "v"), (Code::Ok, 1));
    let key = format!("pre:{}", counter("two", "v"));
    assert_eq!(memcached.get(&key).as_deref(), Some("1"));
    assert_eq!(memcached.ask(&format!("incr {key} 1")), "2\r\n", "a replica of the Go service counts");
    assert_eq!(code(&client, "two", "v"), (Code::OverLimit, 0));
    assert_eq!(memcached.get(&key).as_deref(), Some("3"));
}

#[test]
fn counters_expire_shortly_after_their_windows() {
    let units = [("second", 1), ("minute", 60), ("hour", 3600), ("day", 86_400), ("week", 604_800)];
    let units = [&units[..], &[("month", 30 * 86_400), ("year", YEAR)]].concat();
    let rule = |(unit, _): &(&str, i64)| {
        format!("  - key: {unit}\n    rate_limit: {{unit: {unit}, requests_per_unit: 5}}\n")
    };
    let rules = format!("domain: e\ndescriptors:\n{}", units.iter().map(rule).collect::<String>());
    let memcached = Memcached::single();
    let server = memcached.setup().rules("e.yaml", &rules).start_healthy();
    let client = server.client();
    for (unit, seconds) in units {
        let window = window(seconds.unsigned_abs());
        assert_eq!(code_of(&client, unit), Code::Ok, "{unit}");
        let left = memcached.expires_in(&format!("e_{unit}_v_{window}"));
        if let Some(left) = left {
            assert!((seconds - 5..=seconds + 2).contains(&left), "{unit}: {left} of {seconds}");
        } else {
            assert!(now() > window, "{unit}: the counter is not there");
        }
    }
}

#[test]
fn a_counter_of_a_calendar_outlives_the_window_by_the_clocks_of_others() {
    let rules = "domain: e\ndescriptors:\n- {key: day, rate_limit: {unit: day, requests_per_unit: 5, calendar: {}}}\n";
    let memcached = Memcached::single();
    let midnight = Clock::at("2026-11-25T00:00:00Z").now();
    let [ahead, behind] = [3.0, 0.0].map(|ahead| {
        let clock = Clock::at("2026-11-24T12:00:00Z").steerable();
        let _clock = clock.enter();
        let server = memcached.setup().rules("e.yaml", rules).start_healthy();
        clock.stop_at(midnight - 5.0 + ahead);
        (server, clock)
    });
    for _ in 0..5 {
        assert_eq!(code_of(&ahead.0.client(), "day"), Code::Ok);
    }
    thread::sleep(Duration::from_millis(3500));
    behind.1.stop_at(midnight - 1.5);
    assert_eq!(code_of(&behind.0.client(), "day"), Code::OverLimit, "by its clock the day is not over");
}

#[test]
fn windows_of_any_length_are_counted() {
    let rules = "domain: e\ndescriptors:\n  - key: long\n    rate_limit: {unit: year, unit_multiplier: 3, \
        requests_per_unit: 1}\n";
    let memcached = Memcached::single();
    let server = memcached.setup().rules("e.yaml", rules).start_healthy();
    let client = server.client();
    assert_eq!([code_of(&client, "long"), code_of(&client, "long")], [Code::Ok, Code::OverLimit]);
    let seconds = 3 * YEAR.unsigned_abs();
    assert_eq!(memcached.counter(&format!("e_long_v_{}/{seconds}", window(seconds))), 2);
}

fn code_of(client: &support::client::Client, unit: &str) -> Code {
    client.ask(request("e", &[&[(unit, "v")]])).unwrap().overall_code()
}

#[test]
fn jitter_spreads_the_expiries() {
    let memcached = Memcached::single();
    let rules = "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: hour, requests_per_unit: 5}\n";
    let setup = memcached.setup().rules("d.yaml", rules).env("EXPIRATION_JITTER_MAX_SECONDS", "100000");
    let server = setup.start_healthy();
    let client = server.client();
    let left: Vec<_> = (0..8)
        .map(|value| {
            code(&client, "k", &value.to_string());
            let key = format!("d_k_{value}_{}", window(HOUR));
            memcached.expires_in(&key).expect("the counter is there") / 600
        })
        .collect();
    assert!(left.iter().any(|one| *one != left[0]), "{left:?}");
}

#[test]
fn keys_that_memcached_rejects_are_hashed() {
    let memcached = Memcached::single();
    let server = with_rules(memcached.setup()).start_healthy();
    let client = server.client();
    let long = "x".repeat(300);
    for value in ["a blank", "a\r\nflush_all\r\nline", "\u{7f}", &long] {
        assert_eq!(code(&client, "two", value), (Code::Ok, 1), "{value:?}");
        assert_eq!(code(&client, "two", value), (Code::Ok, 0), "{value:?}");
        assert_eq!(code(&client, "two", value), (Code::OverLimit, 0), "{value:?}");
    }
    assert_eq!(code(&client, "two", "fine"), (Code::Ok, 1));
    assert_eq!(memcached.stat("curr_items"), 5);
    assert_eq!(memcached.stat("cmd_flush"), 0, "a key cannot contain a command");
}

#[test]
fn a_read_creates_no_counter() {
    let memcached = Memcached::single();
    let server = with_rules(memcached.setup()).start_healthy();
    let client = server.client();
    let look = |value: &str| {
        let mut look = one("five", value);
        look.descriptors[0].hits_addend = Some(0);
        decision(&client.ask(look).unwrap())
    };
    assert_eq!(look("v"), (Code::Ok, 5));
    assert_eq!(memcached.stat("curr_items"), 0);
    code(&client, "five", "v");
    assert_eq!(look("v"), (Code::Ok, 4));
    assert_eq!(memcached.counter(&counter("five", "v")), 1);
}

#[test]
fn refunds_stop_at_zero() {
    let memcached = Memcached::single();
    let server = with_rules(memcached.setup()).start_healthy();
    let client = server.client();
    let back = |hits: u64| {
        let mut back = one("many", "v");
        back.descriptors[0].hits_addend = Some(hits);
        back.descriptors[0].is_negative_hits = true;
        client.ask(back).unwrap();
        memcached.get(&counter("many", "v"))
    };
    assert_eq!(back(3), None, "nothing is made of it");
    let mut many = one("many", "v");
    many.hits_addend = 12;
    client.ask(many).unwrap();
    // memcached pads a shorter number with a space.
    assert_eq!(back(5).as_deref(), Some("7 "));
    assert_eq!(code(&client, "many", "v").1, 4_000_000_000 - 8);
    assert_eq!(back(100).as_deref().map(str::trim_end), Some("0"));
}

#[test]
fn a_lost_key_is_created_again() {
    let memcached = Memcached::single();
    let server = with_rules(memcached.setup()).start_healthy();
    let client = server.client();
    assert_eq!(code(&client, "two", "v"), (Code::Ok, 1));
    memcached.ask("flush_all");
    assert_eq!(code(&client, "two", "v"), (Code::Ok, 1));
    let left = memcached.expires_in(&counter("two", "v")).unwrap();
    assert!(left > YEAR - 10, "{left}");
}

#[test]
fn concurrent_hits_share_commands() {
    let memcached = Memcached::single();
    let server = with_rules(memcached.setup()).start_healthy();
    let client = server.client();
    code(&client, "many", "v");
    let before = memcached.stat("incr_hits");
    let same: &[(&str, &str)] = &[("many", "v")];
    client.ask(request("d", &[same; 20])).unwrap();
    assert_eq!(memcached.stat("incr_hits") - before, 1);
    assert_eq!(memcached.counter(&counter("many", "v")), 21);

    let metrics = server.metrics();
    assert!(metrics["tollgate_memcached_batch_checks_sum"] >= 21.0, "{metrics:?}");
    assert!(metrics["tollgate_memcached_connections_open"] >= 1.0, "{metrics:?}");
    assert!(!metrics.keys().any(|name| name.contains("redis_pool")), "{metrics:?}");
}
