//! Schedules: what is in force, and every mistake with its place.

use crate::{CompileOptions, Compiled, RuleSet, SourceFile, compile, quota_policy::QuotaPolicy};
use clock::{Rfc3339, Time};
use limit::{Kind, Limit, Limits};
use text::diagnostics::Diagnostic;

fn compiled(limit: &str) -> Compiled {
    let text = format!("domain: d\ndescriptors:\n- key: k\n  rate_limit:\n{limit}");
    compile(&[SourceFile { name: "a.yaml".to_owned(), text: text.into_bytes() }], CompileOptions::default())
}

fn messages(compiled: &Compiled) -> Vec<String> {
    let one = |Diagnostic { place, severity, message, help, .. }: &Diagnostic| {
        let place = place.map(|place| format!("{}:{} ", place.line, place.column)).unwrap_or_default();
        format!("{severity} {place}{message}; {}", help.as_deref().unwrap_or_default())
    };
    compiled.diagnostics.iter().map(one).collect()
}

fn rules(limit: &str) -> RuleSet {
    let compiled = compiled(limit);
    let messages = messages(&compiled);
    compiled.rules.filter(|_| messages.is_empty()).unwrap_or_else(|| panic!("{messages:?}"))
}

fn limits(rules: &RuleSet) -> Vec<Limit> {
    rules.rules()[0].limits().into_iter().flat_map(Limits::iter).cloned().collect()
}

fn time(text: &str) -> Time {
    let Rfc3339(time) = text.parse().unwrap();
    time
}

const OFFICE: &str = "    unit: minute
    requests_per_unit: 100
    schedule:
    - {days: mon-fri, from: 08:00, to: 20:00, time_zone: europe/berlin, requests_per_unit: 500}
    - {days: sat-sun, requests_per_unit: 50}
";

#[test]
fn the_limit_in_force_follows_the_clock() {
    let limit = &limits(&rules(OFFICE))[0];
    for (at, requests, words) in [
        ("2026-11-23T06:59:59.999Z", 100, "then 500 at 08:00 Europe/Berlin"),
        ("2026-11-23T07:00:00Z", 500, "mon-fri 08:00-20:00 Europe/Berlin, then 100 at 20:00"),
        ("2026-11-23T18:59:59.999Z", 500, "mon-fri 08:00-20:00 Europe/Berlin, then 100 at 20:00"),
        ("2026-11-23T19:00:00Z", 100, "then 500 at 08:00 Europe/Berlin"),
        ("2026-11-27T20:00:00Z", 100, "then 50 at 00:00 UTC"),
        ("2026-11-28T00:00:00Z", 50, "sat-sun UTC, then 100 on mon at 00:00"),
        ("2026-11-29T23:59:59Z", 50, "sat-sun UTC, then 100 on mon at 00:00"),
        // In summer an hour earlier.
        ("2026-07-06T06:00:00Z", 500, "mon-fri 08:00-20:00 Europe/Berlin, then 100 at 20:00"),
    ] {
        let (now, in_force) = (time(at), limit.at(time(at)));
        assert_eq!((in_force.requests_per_unit, in_force.algorithm.capacity()), (requests, requests), "{at}");
        assert_eq!(&*limit.scheduled(now).unwrap().words, words, "{at}");
        assert_eq!(in_force.algorithm.tag(), limit.algorithm.tag(), "the counter is the same");
        assert!(in_force.schedule.is_none());
    }
    let in_force = limit.scheduled(time("2026-11-23T07:00:00Z")).unwrap();
    assert_eq!((in_force.entry, in_force.until), (Some(0), Some(time("2026-11-23T19:00:00Z"))));
    let policy = QuotaPolicy::new("n", limit).in_force(limit.at(time("2026-11-23T07:00:00Z")));
    let mut header = String::new();
    policy.write(limit, Time::default(), &mut header);
    assert_eq!(header, "\"n\";q=500;w=60");
}

#[test]
fn days_may_be_a_list() {
    let with = |days: &str| rules(&OFFICE.replace("mon-fri", days)).rules()[0].to_string();
    let text = with("\"mon,wed,fri-sun\"");
    assert_eq!(with("[Wednesday, fri-sun, mon]"), text);
    assert_eq!(with("[\"wed,fri-sun\", mon]"), text);
    assert_eq!(with("[\n      mon,\n      wed,\n      fri-sun]"), text);
}

#[test]
fn a_boundary_is_computed_once() {
    let limit = &limits(&rules(OFFICE))[0];
    let at = |text| limit.scheduled(time(text)).unwrap();
    let [first, same, next] =
        ["2026-11-23T07:00:00Z", "2026-11-23T18:59:59Z", "2026-11-23T19:00:00Z"].map(at);
    assert!(std::sync::Arc::ptr_eq(&first, &same));
    assert!(!std::sync::Arc::ptr_eq(&first, &next));
    // Both sides of the boundary are remembered.
    assert!(std::sync::Arc::ptr_eq(&at("2026-11-23T18:59:59Z"), &first));
    assert!(std::sync::Arc::ptr_eq(&at("2026-11-23T19:00:01Z"), &next));
    // A clock that was set back.
    assert_eq!(at("2026-11-20T19:30:00Z").entry, None);
}

#[test]
fn every_limit_of_a_list_and_every_algorithm_without_a_rate_in_its_state_may_have_one() {
    let text = "    - {unit: minute, requests_per_unit: 5, schedule: [{days: mon, requests_per_unit: 6}]}
    - {unit: day, requests_per_unit: 50, algorithm: sliding_window, schedule: [{days: mon, requests_per_unit: 60}]}
    - {unit: hour, requests_per_unit: 20, algorithm: sliding_log, schedule: [{days: tue, requests_per_unit: 30}]}
    - {unit: day, requests_per_unit: 9, calendar: {}, schedule: [{days: mon, requests_per_unit: 0}]}
";
    let monday = time("2026-11-23T12:00:00Z");
    let limits = limits(&rules(text));
    let in_force: Vec<u64> = limits.iter().map(|limit| limit.at(monday).requests_per_unit).collect();
    assert_eq!(in_force, [6, 60, 20, 0]);
    for limit in &limits {
        assert_eq!(limit.at(monday).tag, limit.tag, "the counter is the same");
    }
    let text = "    algorithm: concurrency\n    requests_per_unit: 2
    hold: {ttl: 1m}\n    schedule: [{days: mon, requests_per_unit: 3}]\n";
    let limit = &self::limits(&rules(text))[0];
    assert_eq!(limit.at(monday).algorithm.kind(), Kind::Concurrency);
    assert_eq!((limit.at(monday).requests_per_unit, limit.at(monday).hold.is_some()), (3, true));
}

#[test]
fn the_page_of_rules_names_the_entries() {
    let shown = rules(OFFICE).rules()[0].to_string();
    let schedule = "schedule: 500 mon-fri 08:00-20:00 Europe/Berlin, 50 sat-sun UTC";
    assert!(shown.ends_with(&format!("quota_mode: false, {schedule}")), "{shown}");
}

fn minute(schedule: &str) -> String {
    format!("    unit: minute\n    requests_per_unit: 1\n    schedule: {schedule}\n")
}

#[test]
fn mistakes_have_a_place_and_help() {
    let of_kind = |kind: &str, entry: &str| {
        let schedule = format!("[{{requests_per_unit: {entry}}}]");
        format!("    unit: hour\n    requests_per_unit: 1\n    algorithm: {kind}\n    schedule: {schedule}\n")
    };
    for (limit, expected) in [
        (minute("[]"), "error 7:15 this schedule has no entry; expected 1 to 50 items"),
        (minute("~"), ""),
        (
            minute("{}"),
            "error 7:15 expected a list of entries, got a map; begin each item with a dash: `- days: …`",
        ),
        (minute("[mon]"), "error 7:16 expected a map in this list of entries, got the text `mon`"),
        (minute("[{days: mon}]"), "error 7:16 this entry has no `requests_per_unit`; add a number"),
        (minute("[{requests_per_unit: x}]"), "error 7:36 expected an integer, got the text `x`"),
        (minute("[{requests_per_unit: 2, day: mon}]"), "error 7:39 unknown key `day`; did you mean `days`?"),
        (minute("[{requests_per_unit: 2, unit: day}]"), "warning 7:39 `unit` has no effect here"),
        (
            minute("[{requests_per_unit: 2, days: mon-fry}]"),
            "error 7:45 unknown weekday `fry`; accepted: days and ranges of days",
        ),
        (minute("[{requests_per_unit: 2, days: [mon, fry]}]"), "error 7:51 unknown weekday `fry`; accepted"),
        (minute("[{requests_per_unit: 2, days: [mon, [tue]]}]"), "error 7:51 expected text, got a list"),
        (minute("[{requests_per_unit: 2, days: [mon, ~]}]"), "error 7:51 expected text, got nothing"),
        (minute("[{requests_per_unit: 2, days: []}]"), "error 7:45 this list is empty; add an item"),
        (minute("[{requests_per_unit: 2, days: {mon: tue}}]"), "error 7:45 expected text, got a map"),
        (minute("[{requests_per_unit: 2, days: ~}]"), ""),
        (
            minute("[{requests_per_unit: 2, from: 8 am}]"),
            "error 7:45 expected a time of day, got `8 am`; accepted: 00:00 to 23:59",
        ),
        (minute("[{requests_per_unit: 2, from: '24:00'}]"), "error 7:45 expected a time of day, got `24:00`"),
        (minute("[{requests_per_unit: 2, to: '24:01'}]"), "error 7:43 expected a time of day, got `24:01`"),
        (
            minute("[{requests_per_unit: 2, time_zone: Europe/Berln}]"),
            "error 7:50 unknown time zone `Europe/Berln`; did you mean `Europe/Berlin`",
        ),
        (
            of_kind("token_bucket", "2"),
            "error 8:5 a `token_bucket` cannot have a schedule: its rate is part of its state; use",
        ),
        (of_kind("leaky_bucket", "2"), "error 8:5 a `leaky_bucket` cannot have a schedule"),
        (of_kind("sliding_log", "100001"), "error 8:36 a `sliding_log` of 100001 is too large"),
        (of_kind("sliding_window", "4294967295"), ""),
        (of_kind("sliding_window", "4294967296"), "error 8:36 a `sliding_window` of 4294967296 is too large"),
        (
            "    unlimited: true\n    schedule: []\n".to_owned(),
            "warning 6:5 `schedule` has no effect with `unlimited: true`",
        ),
        (
            "    unit: day\n    days: mon\n".to_owned(),
            "error 6:5 unknown key `days`; it belongs in an item of `schedule`",
        ),
    ] {
        let found = messages(&compiled(&limit));
        assert!(found.first().map_or("", |first| first).starts_with(expected), "{limit}: {found:#?}");
        let is_refused = expected.starts_with("error");
        assert_eq!(compiled(&limit).rules.is_none(), is_refused, "{limit}");
    }
}

#[test]
fn a_long_schedule_is_refused_and_all_mistakes_of_an_entry_are_found() {
    let many = vec!["{requests_per_unit: 1}"; 51].join(", ");
    let found = messages(&compiled(&minute(&format!("[{many}]"))));
    assert!(found[0].contains("a schedule of 51 entries is too long"), "{found:?}");
    let found = messages(&compiled(&minute("[{days: x, from: y, to: z, time_zone: q}]")));
    assert_eq!(found.len(), 5, "{found:#?}");
}

#[test]
fn entries_that_are_hidden_are_reported() {
    let entry = |times: &str| format!("    - {{requests_per_unit: 2, {times}}}\n");
    for (entries, expected) in [
        (["days: mon-fri", "days: sat-sun"], ""),
        (
            ["days: mon", "days: mon, from: '08:00'"],
            "warning 9:7 this entry never holds: at all of its times one before it does, first that at line 8, column 7",
        ),
        (
            ["days: mon-fri", "days: fri-sat"],
            "warning 9:7 this entry is partly hidden by the one at line 8, column 7",
        ),
        (["to: '24:00'", "days: mon, time_zone: Asia/Tokyo"], "warning 9:7 this entry never holds"),
        (["from: '12:00', to: '12:00'", "days: mon"], "warning 9:7 this entry never holds"),
        (
            ["days: sun, from: '22:00', to: '06:00'", "days: mon, from: '05:00', to: '07:00'"],
            "warning 9:7 this entry is partly",
        ),
        (["days: sun, from: '22:00', to: '06:00'", "days: mon, from: '06:00'"], ""),
        (["days: mon", "days: mon, time_zone: Asia/Tokyo"], ""),
    ] {
        let entries = entries.map(entry).join("");
        let limit = format!("    unit: day\n    requests_per_unit: 1\n    schedule:\n{entries}");
        let found = messages(&compiled(&limit));
        let first = found.first().map_or("", |first| first);
        assert!(first.starts_with(expected) && found.is_empty() == expected.is_empty(), "{limit}: {found:?}");
    }
}
