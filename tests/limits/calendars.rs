//! Limits that follow a calendar, at the moments when its windows begin, on each store. The windows themselves are
//! compared with another implementation in `crates/limits/limit/src/calendar`.

use std::process::{Command, Output, Stdio};

use proto::envoy::{
    extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride,
    service::ratelimit::v3::{RateLimitResponse, rate_limit_response::Code},
};
use serde_json::{Value, json};

use support::{
    client::{Client, request},
    clock::Clock,
    eventually, holds, http,
    memcached::{self, Memcached},
    ports::free_port,
    process::assert_exit,
    redis::Redis,
    server::{BINARY, Server, Setup},
    stores::with_redis,
};

const RULES: &str = "
domain: d
descriptors:
- key: berlin
  rate_limit: {unit: day, requests_per_unit: 2, calendar: {time_zone: Europe/Berlin}}
- key: bill
  rate_limit: {unit: month, requests_per_unit: 2, calendar: {time_zone: Europe/Berlin, anchor_day: 31}}
- key: sunday
  rate_limit: {unit: week, requests_per_unit: 2, calendar: {week_start: sunday}}
- key: cairo
  rate_limit: {unit: day, requests_per_unit: 2, calendar: {time_zone: Africa/Cairo}}
- key: tokyo
  rate_limit: {unit: year, requests_per_unit: 2, calendar: {time_zone: Asia/Tokyo}}
- key: several
  rate_limit:
  - {unit: day, requests_per_unit: 2, calendar: {time_zone: Europe/Berlin}}
  - {unit: month, requests_per_unit: 1000, calendar: {}}
";

const KEYS: [&str; 6] = ["berlin", "bill", "sunday", "cairo", "tokyo", "several"];

/// Moments, and the keys whose windows begin then.
const MOMENTS: [(&str, &[&str]); 9] = [
    // A Sunday of 25 hours in Berlin.
    ("2026-10-24T22:00:00Z", &["berlin", "several"]),
    ("2026-10-25T00:00:00Z", &["sunday"]),
    ("2026-10-25T22:00:00Z", &[]),
    ("2026-10-25T23:00:00Z", &["berlin", "several"]),
    // The last days of months, for a month from the 31st.
    ("2026-10-30T23:00:00Z", &["berlin", "several", "bill"]),
    ("2026-11-29T23:00:00Z", &["berlin", "several", "bill"]),
    ("2026-12-31T15:00:00Z", &["tokyo"]),
    ("2027-02-27T23:00:00Z", &["berlin", "several", "bill"]),
    // In Cairo the clock jumps over this midnight; the last day of April begins in Berlin.
    ("2027-04-29T22:00:00Z", &["cairo", "berlin", "several", "bill"]),
];

fn ask(client: &Client, key: &str, value: &str) -> RateLimitResponse {
    client.ask(request("d", &[&[(key, value)]])).expect("the request is answered")
}

fn admits(client: &Client, key: &str, value: &str) -> bool {
    ask(client, key, value).overall_code() == Code::Ok
}

/// Crosses each moment with exhausted counters.
fn windows_end_at_local_boundaries(setup: impl FnOnce() -> (Setup, Box<dyn std::any::Any>)) {
    let clock = Clock::at("2026-10-24T10:00:00Z").steerable();
    let _clock = clock.enter();
    let (setup, _store) = setup();
    let server = setup.rules("d.yaml", RULES).start_healthy();
    let client = server.client();
    for (moment, begin) in MOMENTS {
        clock.move_to(moment, -30.0);
        for key in KEYS {
            let admitted = [(); 3].map(|()| admits(&client, key, moment));
            assert_eq!(admitted, [true, true, false], "{key} before {moment}");
        }
        clock.step(35.0);
        for key in KEYS {
            assert_eq!(admits(&client, key, moment), begin.contains(&key), "{key} after {moment}");
        }
    }
}

#[test]
fn windows_end_at_local_boundaries_in_memory() {
    windows_end_at_local_boundaries(|| (Setup::new(), Box::new(())));
}

#[test]
fn windows_end_at_local_boundaries_in_redis() {
    windows_end_at_local_boundaries(|| with_redis(&[]));
}

#[test]
fn windows_end_at_local_boundaries_in_redis_with_a_local_cache() {
    windows_end_at_local_boundaries(|| with_redis(&[("LOCAL_CACHE_SIZE_IN_BYTES", "1000000")]));
}

#[test]
fn windows_end_at_local_boundaries_in_redis_with_leases() {
    windows_end_at_local_boundaries(|| with_redis(&[("COUNTING", "leased")]));
}

#[test]
fn windows_end_at_local_boundaries_in_memcached() {
    windows_end_at_local_boundaries(|| {
        let memcached = Memcached::single();
        (memcached::setup(&memcached.address()), Box::new(memcached))
    });
}

#[test]
fn the_counter_in_redis_has_the_start_of_its_window_and_expires_after_its_end() {
    let _clock = Clock::at("2026-11-23T10:00:00Z").enter();
    let rules = "
domain: d
descriptors:
- key: bill
  rate_limit: {unit: month, requests_per_unit: 9, calendar: {time_zone: Europe/Berlin, anchor_day: 15}}
- key: two
  rate_limit:
  - {unit: month, requests_per_unit: 9, calendar: {time_zone: Europe/Berlin, anchor_day: 15}}
  - {unit: month, requests_per_unit: 9, calendar: {}}
";
    let redis = Redis::single();
    let setup = Setup::new().redis(&redis.env()).env("EXPIRATION_JITTER_MAX_SECONDS", "0");
    let server = setup.rules("d.yaml", rules).start_healthy();
    for key in ["bill", "two"] {
        ask(&server.client(), key, "v");
    }
    let mut keys = redis.keys();
    keys.sort_unstable();
    let expected = ["d_bill_v_1794697200", "d_two_v_1793491200/month.1@UTC", "d_two_v_1794697200"];
    assert_eq!(keys, expected);
    for (key, end) in keys.iter().zip([1_797_289_200, 1_796_083_200, 1_797_289_200_i64]) {
        let left = end - 1_795_428_000;
        let ttl = redis.ask(&["TTL", key]).number();
        // A minute later, for clocks that differ.
        assert!((left..=left + 60).contains(&ttl), "{key} ends in {ttl} seconds, its window in {left}");
    }
}

/// As in the Go service since its pull request 1206: `MonthStartUnix` is in the key, `MonthExpirationSeconds` is
/// `duration_until_reset` and, without jitter, the expiry; here a minute more, for clocks that differ.
#[test]
fn calendar_months_of_the_go_service_have_its_keys_and_expiries() {
    let rules = "
domain: d
descriptors:
- {key: month, rate_limit: {unit: month, requests_per_unit: 9}}
- {key: day, rate_limit: {unit: day, requests_per_unit: 9}}
";
    for (is_set, start, left) in [("true", 1_793_491_200, 655_200), ("false", 1_793_664_000, 828_000)] {
        let _clock = Clock::at("2026-11-23T10:00:00Z").enter();
        let redis = Redis::single();
        let setup = Setup::new().redis(&redis.env()).env("USE_CALENDAR_MONTH_RATE_LIMIT", is_set);
        let setup =
            setup.env("EXPIRATION_JITTER_MAX_SECONDS", "0").env("LIMIT_RESPONSE_HEADERS_ENABLED", "true");
        let server = setup.rules("d.yaml", rules).start_healthy();
        let mut own = request("d", &[&[("month", "v")], &[("day", "v")], &[("any", "v")]]);
        own.descriptors[2].limit =
            Some(RateLimitOverride { requests_per_unit: 9, unit: 5, unit_multiplier: None });
        let response = server.ask(own).unwrap();
        let mut keys = redis.keys();
        keys.sort_unstable();
        assert_eq!(
            keys,
            [format!("d_any_v_{start}"), "d_day_v_1795392000".to_owned(), format!("d_month_v_{start}")]
        );
        for (status, key) in [(2, &keys[0]), (0, &keys[2])] {
            let until = response.statuses[status].duration_until_reset.unwrap().seconds;
            assert!((left - 60..=left).contains(&until), "{until}");
            let ttl = redis.ask(&["TTL", key]).number();
            let kept = if is_set == "true" { left + 60 } else { 30 * 86_400 };
            assert!((kept - 60..=kept).contains(&ttl), "{key}: {ttl}");
            let limit = response.statuses[status].current_limit.as_ref().unwrap();
            assert_eq!(limit.calendar, None, "the response is that of the Go service");
        }
    }
}

/// A command on the clock of this thread.
fn tollgate(args: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    Clock::current().apply(&mut command);
    command.args(args).env_remove("ADMIN_TOKEN_FILE").stdin(Stdio::null()).output().unwrap()
}

fn with_admin(setup: Setup, rules: &str) -> (Server, String) {
    let admin = free_port();
    let setup = setup.env("ADMIN_ADDR", &format!("127.0.0.1:{admin}"));
    let server = setup.rules("d.yaml", rules).start_healthy();
    eventually("the admin port is open", || {
        http::send(admin, "GET", "/api/v1/status", &[], b"").map(drop).map_err(|error| error.to_string())
    });
    (server, format!("127.0.0.1:{admin}"))
}

const BUDGET: &str = "
domain: d
descriptors:
- key: tenant
  rate_limit: {unit: month, requests_per_unit: 500, calendar: {time_zone: Europe/Berlin, anchor_day: 15}}
- key: hourly
  rate_limit: {unit: hour, requests_per_unit: 5, algorithm: token_bucket}
";

#[test]
fn commands_show_the_calendar_and_the_end_of_the_window() {
    // Three days, four hours and some seconds before the 15th.
    let _clock = Clock::at("2026-12-11T18:59:00Z").enter();
    let setup = Setup::new().env("LIMIT_POLICY_HEADERS", "true");
    let (server, admin) = with_admin(setup, BUDGET);
    let shown = "500 per month (Europe/Berlin, from the 15th), ends in 3d 4h";
    let grpc = format!("127.0.0.1:{}", server.ports.grpc);
    let output = tollgate(&["request", "--addr", &grpc, "d", "tenant=a"]);
    assert_exit(&output, 0, &[&format!("tenant=a: OK, 499 remaining of {shown}"), ";q=500;w=2592000"]);
    let rules = server.rules_dir().join("d.yaml");
    let rules = rules.to_str().unwrap();
    assert_exit(&tollgate(&["explain", "--rules", rules, "d", "tenant=a"]), 0, &[&format!("limit: {shown}")]);
    assert_exit(&tollgate(&["check", rules]), 0, &[&format!("d.tenant: {shown}\n2 rules, ")]);
    let counter = tollgate(&["counter", "get", "d", "tenant=a", "--admin", &admin]);
    assert_exit(&counter, 0, &["500 per month (Europe/Berlin, from the 15th)", "3d 4h"]);
    assert_exit(&tollgate(&["status", "--admin", &admin]), 0, &[", zone data 20"]);
    let json = http::post(
        server.ports.http,
        "/json",
        r#"{"domain":"d","descriptors":[{"entries":[{"key":"tenant","value":"a"}]}]}"#,
    );
    let json: Value = serde_json::from_str(&json.text()).unwrap();
    let limit = &json["statuses"][0]["currentLimit"];
    assert_eq!(limit["calendar"], json!({"timeZone": "Europe/Berlin", "anchorDay": 15}), "{json}");
}

#[test]
fn an_override_may_have_a_calendar_for_a_billing_day() {
    let _clock = Clock::at("2026-11-23T10:00:00Z").enter();
    let redis = Redis::single();
    let setup = Setup::new().redis(&redis.env()).env("EXPIRATION_JITTER_MAX_SECONDS", "0");
    let (server, admin) = with_admin(setup, BUDGET);
    let run = |args: &[&str]| tollgate(&[args, &["--admin", &admin]].concat());
    let set = |target: &str, limit: &str, more: &[&str]| {
        run(&[&["override", "set", "d", target, "--limit", limit], more].concat())
    };
    let in_tokyo = &["--calendar", "Asia/Tokyo,anchor_day=20"];
    assert_exit(&set("tenant=a", "7/month", in_tokyo), 0, &["limit 7 per month (Asia/Tokyo, from the 20th)"]);
    assert_exit(&set("tenant=b", "8/month", &[]), 0, &["limit 8 per month"]);
    assert_exit(&set("hourly=c", "9/day", &["--calendar", "UTC"]), 0, &["limit 9 per day (UTC)"]);
    for (limit, calendar, expected) in [
        ("7/hour", "UTC", "the unit `hour` cannot follow a calendar"),
        ("7/month", "Asia/Tokio", "unknown time zone `Asia/Tokio`; did you mean `Asia/Tokyo`"),
        ("7/month", "UTC,anchor_day=32", "no month has a day 32"),
        ("7/month", "UTC,week_start=monday", "`week_start` has no meaning for a month"),
    ] {
        assert_exit(&set("tenant=z", limit, &["--calendar", calendar]), 2, &[expected]);
    }
    assert_exit(
        &run(&["override", "set", "d", "tenant=z", "--block", "--calendar", "UTC"]),
        2,
        &["--calendar"],
    );
    let csv = run(&["override", "list", "--csv"]);
    assert_exit(&csv, 0, &["d,tenant=a,,limit,7,MONTH,\"Asia/Tokyo,anchor_day=20\","]);
    let file = server.dir().join("overrides.csv");
    std::fs::write(&file, &csv.stdout).unwrap();
    assert_exit(&run(&["override", "import", file.to_str().unwrap()]), 0, &["3 overrides"]);

    let client = server.client();
    eventually("the overrides are in force", || {
        let response = ask(&client, "tenant", "a");
        let limit = response.statuses[0].current_limit.as_ref().map(|limit| limit.requests_per_unit);
        holds(limit == Some(7), || format!("{response:?}"))
    });
    for (key, value) in [("tenant", "b"), ("hourly", "c")] {
        ask(&client, key, value);
    }
    let mut keys = redis.keys();
    keys.retain(|key| key.starts_with("d_"));
    keys.sort_unstable();
    let expected = [
        "d_hourly_c_1795392000".to_owned(),
        // From the 20th in Tokyo; and from the 15th in Berlin, as in the rule.
        "d_tenant_a_1795100400".to_owned(),
        "d_tenant_b_1794697200".to_owned(),
    ];
    assert_eq!(keys.iter().filter(|key| expected.contains(key)).count(), 3, "{keys:?}");
}
