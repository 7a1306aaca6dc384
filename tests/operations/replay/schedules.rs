//! Limits with a schedule on access logs, on the days on which Berlin's clock changes.

use serde_json::{Value, json};

use super::Files;

/// A day's first three hours of UTC with four requests a minute, and the minutes in which 2:30 to 3:30 in Berlin holds.
struct Night {
    day: &'static str,
    held: u64,
    first: &'static str,
    last: &'static str,
}

const NIGHTS: [Night; 3] = [
    Night { day: "2026-10-18", held: 60, first: "00:30:15.000", last: "01:29:30.000" },
    // 2:30 comes at 0:30 and at 1:30 of UTC, and 3:30 at 2:30.
    Night { day: "2026-10-25", held: 120, first: "00:30:15.000", last: "02:29:30.000" },
    // After 1:59 comes 3:00, at 1:00 of UTC.
    Night { day: "2027-03-28", held: 30, first: "01:00:15.000", last: "01:29:30.000" },
];

const MINUTES: u64 = 180;

const SCHEDULE: &str = ", schedule: [{days: [sat, sun], from: \"02:30\", to: \"03:30\", time_zone: Europe/Berlin, \
                        requests_per_unit: 3}]";

/// An access log of a client.
fn log(day: &str) -> String {
    let line = |quarter: u64| {
        let (hour, minute, second) = (quarter / 240, quarter / 4 % 60, quarter % 4 * 15);
        let line = json!({
            "time": format!("{day}T{hour:02}:{minute:02}:{second:02}.000Z"),
            "x-user": "ann",
        });
        format!("{line}\n")
    };
    (0..MINUTES * 4).map(line).collect()
}

/// Rules with the schedule, and without it.
fn files(rules: impl Fn(&str) -> String) -> Files {
    let files = Files::new();
    files.put("new/edge.yaml", rules(SCHEDULE).as_bytes());
    files.put("now/edge.yaml", rules("").as_bytes());
    files
}

fn report(files: &Files, day: &str, arguments: &[&str]) -> Value {
    files.put("edge.json", log(day).as_bytes());
    files.report(&[&["edge.json", "--rules", "new", "--against", "now"], arguments].concat(), b"")
}

fn numbers(report: &Value) -> [u64; 4] {
    ["requests", "refused", "newly_refused", "newly_allowed"].map(|name| report[name].as_u64().unwrap())
}

#[test]
fn a_schedule_is_replayed_on_the_clock_of_its_zone() {
    let files = files(|schedule| {
        format!(
            "domain: edge\ndescriptors:\n- key: generic_key\n  value: exact\n  descriptors:\n  - key: user\n    \
             rate_limit: {{unit: minute, requests_per_unit: 1{schedule}}}\n"
        )
    });
    for Night { day, held, first, last } in NIGHTS {
        let descriptors = ["--domain", "edge", "--descriptor", "generic_key=exact,user=%REQ(X-USER)%"];
        let report = report(&files, day, &descriptors);
        // Four requests a minute are three over a limit of 1, and one over a limit of 3.
        let expected = [MINUTES * 4, (MINUTES - held) * 3 + held, 0, held * 2];
        assert_eq!(numbers(&report), expected, "{day}: {report}");
        let key = &report["newly_allowed_keys"][0];
        assert_eq!(key["requests"], held * 2, "{key}");
        let expected = [first, last].map(|time| format!("{day}T{time}Z"));
        assert_eq!([&key["first"], &key["last"]], [&expected[0], &expected[1]], "{key}");
    }
}

#[test]
fn a_quota_with_a_schedule_is_replayed_across_its_boundaries() {
    let files = files(|schedule| {
        let quota = |key: &str, limit: &str| {
            format!("- key: {key}\n  quota_mode: true\n  rate_limit: {{unit: minute, {limit}}}\n")
        };
        let user = quota("user", &format!("requests_per_unit: 1{schedule}"));
        format!("domain: edge\ndescriptors:\n{user}{}", quota("pool", "requests_per_unit: 2"))
    });
    let descriptors =
        ["--domain", "edge", "--descriptor", "user=%REQ(X-USER)%", "--descriptor", "pool=shared"];
    for Night { day, held, .. } in NIGHTS {
        // The larger of the two quotas admits.
        let expected = [MINUTES * 4, (MINUTES - held) * 2 + held, 0, held];
        assert_eq!(numbers(&report(&files, day, &descriptors)), expected, "{day}");
    }
}
