//! Limits at the times when windows begin and end: midnight, the ends of months and years, leap days, and clocks that
//! step. Each test sets the clock of the service and of its store; see `support/clock.rs`.

use std::time::Duration;

use proto::envoy::service::ratelimit::v3::{
    RateLimitResponse,
    rate_limit_response::{Code, DescriptorStatus},
};

use support::{
    client::{Client, request},
    clock::Clock,
    http,
    memcached::{self, Memcached},
    redis::Redis,
    server::{Server, Setup},
};

/// The limit of each rule.
const LIMIT: u32 = 2;

const UNITS: [(&str, u64); 6] = [
    ("minute", 60),
    ("hour", 3600),
    ("day", 86_400),
    ("week", 7 * 86_400),
    ("month", 30 * 86_400),
    ("year", 365 * 86_400),
];

/// Times, and the windows that begin then. Windows are aligned to 1970, so weeks begin on Thursdays, and months and years
/// after another 30 and 365 days.
const MOMENTS: [(&str, &str); 11] = [
    ("2026-11-24T10:31:00Z", "a minute"),
    ("2026-11-24T10:00:00Z", "an hour"),
    ("2026-11-25T00:00:00Z", "a day"),
    ("2026-11-26T00:00:00Z", "a week"),
    ("2026-12-03T00:00:00Z", "a month of the service, and a week"),
    ("2026-12-18T00:00:00Z", "a year of the service"),
    ("2026-12-01T00:00:00Z", "a month of the calendar"),
    ("2027-01-01T00:00:00Z", "a year of the calendar"),
    ("2028-02-29T00:00:00Z", "a leap day"),
    ("2028-03-01T00:00:00Z", "the day after a leap day"),
    ("2038-01-19T03:14:08Z", "what 31 bits cannot count"),
];

/// A service with a rule for each unit, and its store.
struct Counting {
    server: Server,
    client: Client,
    _redis: Option<Redis>,
    _memcached: Option<Memcached>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Store {
    Memory,
    Redis,
    Memcached,
}

const STORES: [Store; 3] = [Store::Memory, Store::Redis, Store::Memcached];

impl Counting {
    /// Starts both with the clock of this thread.
    fn start(store: Store, rules: &str, env: &[(&str, &str)]) -> Self {
        let redis = (store == Store::Redis).then(Redis::single);
        let memcached = (store == Store::Memcached).then(Memcached::single);
        let setup = match (&redis, &memcached) {
            (Some(redis), _) => Setup::new().redis(&redis.env()),
            (_, Some(memcached)) => memcached::setup(&memcached.address()),
            _ => Setup::new(),
        };
        let setup = env.iter().fold(setup, |setup, (name, value)| setup.env(name, value));
        let server = setup.rules("d.yaml", rules).start_healthy();
        Self { client: server.client(), server, _redis: redis, _memcached: memcached }
    }

    fn ask(&self, key: &str, value: &str) -> RateLimitResponse {
        self.client.ask(request("d", &[&[(key, value)]])).expect("the request is answered")
    }

    fn status(&self, key: &str, value: &str) -> DescriptorStatus {
        self.ask(key, value).statuses.remove(0)
    }

    /// True if a request is admitted.
    fn admits(&self, key: &str, value: &str) -> bool {
        self.ask(key, value).overall_code() == Code::Ok
    }

    /// Spends a limit and one hit more. A read before that warms up the connections.
    fn spend(&self, key: &str, value: &str) {
        for hit in 0..=LIMIT {
            assert_eq!(self.admits(key, value), hit < LIMIT, "hit {hit} of {key}={value}");
        }
    }
}

fn rules(algorithm: &str) -> String {
    let rule = |(unit, _)| {
        format!("  - key: {unit}\n    rate_limit: {{unit: {unit}, requests_per_unit: {LIMIT}{algorithm}}}\n")
    };
    format!("domain: d\ndescriptors:\n{}", UNITS.map(rule).concat())
}

fn seconds(status: &DescriptorStatus) -> i64 {
    status.duration_until_reset.expect("a limit resets").seconds
}

/// A clock set to a few seconds before or after a time.
fn near(moment: &str, seconds: f64) -> Clock {
    let clock = Clock::at(moment).steerable();
    clock.step(seconds);
    clock
}

/// Crosses each of the times with exhausted counters.
fn windows_that_end_reset_and_others_do_not(store: Store, env: &[(&str, &str)]) {
    let clock = near(MOMENTS[0].0, -10.0);
    let _clock = clock.enter();
    let counting = Counting::start(store, &rules(""), env);
    for (number, (moment, what)) in MOMENTS.iter().enumerate() {
        // A slow machine has half a minute before the time, in which no minute ends.
        clock.move_to(moment, -30.0);
        let before = clock.now();
        let value = number.to_string();
        for (unit, _) in UNITS {
            counting.spend(unit, &value);
        }
        clock.step(35.0);
        for (unit, length) in UNITS {
            let ended = Duration::from_secs_f64(before).as_secs() / length
                != Duration::from_secs_f64(clock.now()).as_secs() / length;
            assert_eq!(counting.admits(unit, &value), ended, "{store:?}, {what}: the limit per {unit}");
        }
    }
}

#[test]
fn windows_that_end_reset_and_others_do_not_in_memory() {
    windows_that_end_reset_and_others_do_not(Store::Memory, &[]);
}

#[test]
fn windows_that_end_reset_and_others_do_not_in_redis() {
    windows_that_end_reset_and_others_do_not(Store::Redis, &[]);
}

#[test]
fn windows_that_end_reset_and_others_do_not_in_memcached() {
    windows_that_end_reset_and_others_do_not(Store::Memcached, &[]);
}

#[test]
fn the_over_limit_cache_forgets_keys_when_their_windows_end() {
    let cache = [("LOCAL_CACHE_SIZE_IN_BYTES", "1000000")];
    windows_that_end_reset_and_others_do_not(Store::Memory, &cache);
    windows_that_end_reset_and_others_do_not(Store::Redis, &cache);
}

#[test]
fn the_time_until_reset_falls_to_one_second_and_then_begins_again() {
    for store in STORES {
        for (moment, what) in [MOMENTS[2], MOMENTS[5], MOMENTS[8]] {
            // Both reads are half a second away from the end of a second.
            let clock = near(moment, -30.5);
            let _clock = clock.enter();
            let counting = Counting::start(store, &rules(""), &[("LIMIT_RESPONSE_HEADERS_ENABLED", "true")]);
            let reset_at = |offset: f64, value: &str| {
                clock.move_to(moment, offset);
                UNITS.map(|(unit, _)| {
                    let answer = counting.ask(unit, value);
                    let reset = seconds(&answer.statuses[0]);
                    let header =
                        answer.response_headers_to_add.iter().find(|header| header.key == "RateLimit-Reset");
                    assert_eq!(
                        header.expect("the header is enabled").value,
                        reset.to_string(),
                        "{store:?}, {what}: {unit}"
                    );
                    (unit, reset)
                })
            };
            let last = reset_at(-0.95, "before");
            let first = reset_at(0.05, "behind");
            let starts =
                |length: u64| Duration::from_secs_f64(Clock::at(moment).now()).as_secs() % length < 5;
            for (((unit, length), (_, last)), (_, first)) in UNITS.into_iter().zip(last).zip(first) {
                if starts(length) {
                    let length = i64::try_from(length).expect("a small number");
                    assert!((1..=2).contains(&last), "{store:?}, {what}: {last} s before the {unit} ends");
                    assert!(
                        (length - 10..=length).contains(&first),
                        "{store:?}, {what}: {first} s of a {unit}"
                    );
                } else {
                    assert!(
                        (0..10).contains(&(last - first)),
                        "{store:?}, {what}: {last} s and {first} s of a {unit}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_clock_that_steps_back_within_a_window_changes_nothing() {
    for store in STORES {
        for cache in ["0", "1000000"] {
            let clock = near("2026-11-24T10:31:00Z", 20.0);
            let _clock = clock.enter();
            let counting = Counting::start(store, &rules(""), &[("LOCAL_CACHE_SIZE_IN_BYTES", cache)]);
            for (unit, _) in UNITS {
                counting.spend(unit, "v");
            }
            let before = UNITS.map(|(unit, _)| seconds(&counting.status(unit, "v")));
            for back in [0.5, 1.0, 5.0, 10.0] {
                clock.step(-back);
                for ((unit, _), before) in UNITS.into_iter().zip(before) {
                    let status = counting.status(unit, "v");
                    assert_eq!(
                        status.code(),
                        Code::OverLimit,
                        "{store:?}, {back} s back: the limit per {unit}"
                    );
                    let further = seconds(&status) - before;
                    assert!(
                        (-20..=20).contains(&further),
                        "{store:?}, {back} s back: {unit}, {further} s further"
                    );
                }
            }
        }
    }
}

#[test]
fn a_clock_that_steps_back_over_midnight_locks_no_caller_out_and_admits_no_third_window() {
    for store in STORES {
        for cache in ["0", "1000000"] {
            let clock = near("2027-01-01T00:00:00Z", -20.0);
            let _clock = clock.enter();
            let counting = Counting::start(store, &rules(""), &[("LOCAL_CACHE_SIZE_IN_BYTES", cache)]);
            let admitted = |value: &str| (0..5).filter(|_| counting.admits("day", value)).count();
            assert_eq!(admitted("both"), 2, "{store:?}: before midnight");
            clock.step(25.0);
            assert_eq!([admitted("both"), admitted("new")], [2, 2], "{store:?}: after midnight");
            clock.step(-15.0);
            // Callers who spent the limit of a future day are rejected until it begins, or not at all.
            assert!(admitted("both") <= 2, "{store:?}: before midnight again");
            assert!(admitted("fresh") == 2, "{store:?}: a new caller");
            clock.step(15.0);
            assert!(admitted("both") <= 2, "{store:?}: after midnight again");
            clock.step(86_400.0);
            assert_eq!([admitted("both"), admitted("new")], [2, 2], "{store:?}: a day later");
        }
    }
}

#[test]
fn other_algorithms_cross_midnight_as_if_it_were_no_boundary() {
    for store in [Store::Memory, Store::Redis] {
        for algorithm in ["sliding_window", "sliding_log", "token_bucket", "leaky_bucket, burst: 2"] {
            let clock = near("2026-12-18T00:00:00Z", -20.0);
            let _clock = clock.enter();
            let counting = Counting::start(store, &rules(&format!(", algorithm: {algorithm}")), &[]);
            for (unit, _) in &UNITS[1..] {
                counting.spend(unit, "v");
            }
            clock.step(25.0);
            for (unit, length) in &UNITS[1..] {
                let status = counting.status(unit, "v");
                // The previous window's part decreases; less than one hit does not count.
                let fades = algorithm == "sliding_window" && status.code() == Code::Ok;
                assert!(fades || status.code() == Code::OverLimit, "{store:?}, {algorithm}: {unit}");
                assert!(!counting.admits(unit, "v"), "{store:?}, {algorithm}: the limit per {unit}");
                let most = 2 * i64::try_from(*length).expect("a small number");
                assert!((1..=most).contains(&seconds(&status)), "{store:?}, {algorithm}: {unit} {status:?}");
            }
            // No caller waits for the hour by which the clock was wrong.
            clock.step(-3600.0);
            clock.step(2.0 * 3600.0);
            assert!(counting.admits("hour", "v"), "{store:?}, {algorithm}: an hour later");
        }
    }
}

#[test]
fn limits_per_hour_and_per_day_on_one_descriptor_are_two_at_midnight() {
    let rules = "domain: d\ndescriptors:\n  - key: k\n    rate_limit:\n      - {unit: hour, requests_per_unit: 2}\n      \
        - {unit: day, requests_per_unit: 3}\n";
    let clock = near("2026-12-18T00:00:00Z", 5.0);
    let _clock = clock.enter();
    let counting = Counting::start(Store::Memory, rules, &[]);
    let admits = |count: usize| -> Vec<bool> { (0..count).map(|_| counting.admits("k", "v")).collect() };
    assert_eq!(admits(2), [true; 2], "the hour admits two");
    clock.step(3600.0);
    assert_eq!(admits(2), [true, false], "the day admits one more");
    clock.step(86_400.0);
    assert_eq!(admits(3), [true, true, false], "both windows are new");
}

#[test]
fn retry_after_is_the_rest_of_the_window() {
    let rules = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]\n";
    let clock = near("2027-01-01T00:00:00Z", -30.0);
    let _clock = clock.enter();
    let counting = Counting::start(Store::Memory, rules, &[("LIMIT_RETRY_AFTER_HEADER", "Retry-After")]);
    let retry_after = || {
        counting.ask("k", "v");
        let answer = counting.ask("k", "v");
        let header = answer.response_headers_to_add.iter().find(|header| header.key == "Retry-After");
        header.expect("a rejected request has the header").value.parse::<i64>().expect("a number")
    };
    assert!((1..=30).contains(&retry_after()), "before midnight");
    clock.step(30.0);
    assert!((86_400 - 30..=86_400).contains(&retry_after()), "after midnight");
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"w"}]}]}"#;
    let answer = http::post(counting.server.ports.http, "/json", body);
    assert!(answer.text().contains("\"durationUntilReset\":\"86"), "{}", answer.text());
}
