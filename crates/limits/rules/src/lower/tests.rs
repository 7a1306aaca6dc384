//! Extensions in `rate_limit`, and every diagnostic about them.

use std::num::NonZeroU64;

use crate::{CompileOptions, Compiled, SourceFile, compile};
use limit::{
    Algorithm, Bucket, Countable, CountingMode, FixedWindow, Limit, Limits, Period, SlidingLog,
    SlidingWindow, Window,
    calendar::{AnchorDay, Calendar, Cycle, Weekday, Zone},
};
use text::diagnostics::{Diagnostic, Place};

fn file(rate_limit: &str) -> String {
    format!("domain: d\ndescriptors:\n- key: k\n  rate_limit: {rate_limit}\n")
}

fn compiled(rate_limit: &str, portable: bool) -> Compiled {
    let file = SourceFile { name: "a.yaml".to_owned(), text: file(rate_limit).into_bytes() };
    compile(&[file], CompileOptions { portable, ..CompileOptions::default() })
}

/// The diagnostics as `where: message; help`, with the word at their place.
fn messages(compiled: &Compiled, rate_limit: &str) -> Vec<String> {
    let text = file(rate_limit);
    let one = |Diagnostic { place, message, help, .. }: &Diagnostic| {
        let Place { line, column } = place.unwrap();
        let line = text.lines().nth(line as usize - 1).unwrap();
        let rest: String = line.chars().skip(column as usize - 1).collect();
        let word = rest.split([' ', ',', '}', ']', ':']).next().unwrap();
        format!("{word}: {message}; {}", help.as_deref().unwrap_or_default())
    };
    compiled.diagnostics.iter().map(one).collect()
}

fn limits(rate_limit: &str) -> Limits {
    let compiled = compiled(rate_limit, false);
    assert_eq!(messages(&compiled, rate_limit), [""; 0]);
    compiled.rules.unwrap().rules()[0].limits().unwrap().clone()
}

fn window(seconds: u64) -> Window {
    Window::of_seconds(seconds).unwrap()
}

#[test]
fn reads_the_algorithm_of_a_limit() {
    let burst = NonZeroU64::new;
    for (written, algorithm, tag) in [
        ("unit: minute", Algorithm::FixedWindow(FixedWindow { limit: 9, period: window(60).into() }), ""),
        (
            "unit: minute, unit_multiplier: 1, algorithm: Fixed_Window",
            Algorithm::FixedWindow(FixedWindow { limit: 9, period: window(60).into() }),
            "",
        ),
        (
            "unit: minute, unit_multiplier: 15",
            Algorithm::FixedWindow(FixedWindow { limit: 9, period: window(900).into() }),
            "/900",
        ),
        (
            "unit: year, unit_multiplier: 10, algorithm: sliding_window",
            Algorithm::SlidingWindow(SlidingWindow { limit: 9, window: window(315_360_000) }),
            "sw/315360000",
        ),
        (
            "unit: week, algorithm: sliding_log",
            Algorithm::SlidingLog(SlidingLog { limit: 9, window: window(604_800) }),
            "sl/604800",
        ),
        (
            "unit: second, algorithm: token_bucket",
            Algorithm::Bucket(Bucket::token(9, window(1), None)),
            "b/1000008/111112",
        ),
        (
            "unit: second, algorithm: TOKEN_BUCKET, burst: 20",
            Algorithm::Bucket(Bucket::token(9, window(1), burst(20))),
            "b/1000008/111112",
        ),
        (
            "unit: second, unit_multiplier: 3, algorithm: leaky_bucket",
            Algorithm::Bucket(Bucket::leaky(9, window(3), None)),
            "b/1000002/333334",
        ),
    ] {
        let limits = limits(&format!("{{{written}, requests_per_unit: 9}}"));
        let [limit] = limits.iter().collect::<Vec<_>>()[..] else { panic!("{limits:?}") };
        assert_eq!((limit.algorithm, &*limit.tag), (algorithm, tag), "{written}");
    }
}

#[test]
fn each_limit_of_a_list_has_its_own_key_and_the_longest_that_of_the_go_service() {
    let limits = limits(
        "[{unit: second, requests_per_unit: 10, name: spike}, {unit: hour, requests_per_unit: 5000},\n   \
         {unit: second, unit_multiplier: 3600, requests_per_unit: 5000, algorithm: sliding_window}]",
    );
    let messages: Vec<_> = limits.iter().map(|limit: &Limit| (limit.name.as_deref(), &*limit.tag)).collect();
    assert_eq!(messages, [(Some("spike"), "/1"), (None, ""), (None, "sw/3600")]);
}

#[test]
fn lists_may_use_anchors_and_merges() {
    let block = "\n  - &x\n    unit: minute\n    requests_per_unit: 1\n  - <<: *x\n    unit: hour\n  - <<: *x\n    \
                 algorithm: leaky_bucket";
    assert_eq!(limits(block).iter().count(), 3);
}

#[test]
fn a_line_of_rlconfig_ends_with_extensions() {
    for (rate_limit, shown) in [
        ("{unit: day, requests_per_unit: 1, algorithm: fixed_window}", ""),
        (
            "{unit: day, requests_per_unit: 1, unit_multiplier: 2, algorithm: token_bucket}",
            ", unit_multiplier: 2, algorithm: token_bucket, burst: 1",
        ),
        ("{unit: day, requests_per_unit: 1, calendar: {time_zone: Asia/Tokyo}}", ", calendar: Asia/Tokyo"),
        (
            "[{unit: day, requests_per_unit: 1}, {unit: HOUR, requests_per_unit: 2, algorithm: sliding_log}]",
            ", and unit=HOUR requests_per_unit=2, algorithm: sliding_log",
        ),
    ] {
        let rules = compiled(rate_limit, false).rules.unwrap();
        let plain = "d.k: unit=DAY requests_per_unit=1, shadow_mode: false, quota_mode: false";
        assert_eq!(rules.rules()[0].to_string(), format!("{plain}{shown}"));
    }
}

#[test]
fn rejects_invalid_limits_with_their_place() {
    let bucket = "remove it: `burst` is the capacity of a `token_bucket` or a `leaky_bucket`";
    let algorithms = "accepted (case-insensitive): fixed_window, sliding_window, sliding_log, token_bucket, leaky_bucket, concurrency";
    for (limit, expected) in [
        ("unit: day, unit_multiplier: 0", "0: a window has at least one unit; accepted for a day: 1 to 3650"),
        (
            "unit: week, unit_multiplier: 600",
            "600: a window of 600 times a week is longer than 10 years; accepted for a week: 1 to 521",
        ),
        (
            "unit: second, unit_multiplier: 4294967295",
            "4294967295: a window of 4294967295 times a second is longer than 10 years; accepted for a second: \
             1 to 315360000",
        ),
        (
            "unit: day, unit_multiplier: 1.5",
            "1.5: expected an integer, got the number `1.5`; accepted: 0 to 4294967295",
        ),
        (
            "unit: day, algorithm: tokenbucket",
            &format!(
                "tokenbucket: unknown algorithm `tokenbucket`; did you mean `token_bucket`? {algorithms}"
            ),
        ),
        ("unit: day, algorithm: gcra", &*format!("gcra: unknown algorithm `gcra`; {algorithms}")),
        ("unit: day, algorithm: [a]", "[a: expected text, got a list; "),
        ("unit: day, burst: 5", &*format!("burst: `fixed_window` has no burst; {bucket}")),
        ("unit: day, burst: 0", &*format!("burst: `fixed_window` has no burst; {bucket}")),
        (
            "unit: day, algorithm: leaky_bucket, burst: 0",
            "0: a bucket with a burst of 0 rejects every request; accepted: 1 to 4294967295",
        ),
    ] {
        let limit = format!("{{{limit}, requests_per_unit: 5}}");
        let compiled = compiled(&limit, false);
        assert_eq!(messages(&compiled, &limit), [expected], "{limit}");
        assert!(compiled.rules.is_none());
    }
}

fn berlin(cycle: Cycle) -> Calendar {
    Calendar::new(Zone::find("Europe/Berlin").unwrap(), cycle)
}

#[test]
fn reads_the_calendar_of_a_limit() {
    let anchor = |day| Cycle::Month(AnchorDay::new(day).unwrap());
    let utc = |cycle| Calendar::new(Zone::utc(), cycle);
    for (written, calendar) in [
        ("unit: day, calendar: {}", utc(Cycle::Day)),
        ("unit: week, calendar: {}", utc(Cycle::Week(Weekday::Monday))),
        ("unit: month, calendar: {}", utc(anchor(1))),
        ("unit: year, calendar: {}", utc(Cycle::Year)),
        ("unit: month, calendar: {time_zone: UTC, anchor_day: 31}", utc(anchor(31))),
        ("unit: MONTH, calendar: {time_zone: europe/berlin, anchor_day: 0xf}", berlin(anchor(15))),
        ("unit: day, calendar: {time_zone: Europe/Berlin}", berlin(Cycle::Day)),
        (
            "unit: week, calendar: {time_zone: Europe/Berlin, week_start: Sunday}",
            berlin(Cycle::Week(Weekday::Sunday)),
        ),
        (
            "unit: year, calendar: {time_zone: Europe/Berlin, week_start: , anchor_day: ~}",
            berlin(Cycle::Year),
        ),
        (
            "unit: day, algorithm: fixed_window, counting: leased, calendar: {time_zone: Europe/Berlin}",
            berlin(Cycle::Day),
        ),
    ] {
        let limits = limits(&format!("{{{written}, requests_per_unit: 9}}"));
        let fixed = FixedWindow { limit: 9, period: Period::Calendar(calendar) };
        let limit = limits.first();
        assert_eq!(limit.algorithm, Algorithm::FixedWindow(fixed), "{written}");
        assert_eq!(
            (limit.calendar, &*limit.tag),
            (Some(calendar), ""),
            "its key has the form of the Go service"
        );
    }
}

#[test]
fn calendars_of_a_list_have_their_own_keys() {
    let month = "unit: month, requests_per_unit: 5";
    let list = format!(
        "[{{{month}}}, {{{month}, calendar: {{}}}}, {{{month}, calendar: {{anchor_day: 15, time_zone: Europe/Berlin}}}},\n   \
         {{unit: week, requests_per_unit: 5, calendar: {{week_start: friday}}}}, {{unit: day, requests_per_unit: 5, calendar: {{}}}}]"
    );
    let limits = limits(&list);
    let tags: Vec<_> = limits.iter().map(|limit| &*limit.tag).collect();
    assert_eq!(tags, ["", "/month.1@UTC", "/month.15@Europe/Berlin", "/week.friday@UTC", "/day@UTC"]);
}

/// Limits with calendars, and their errors.
const INVALID_CALENDARS: &[(&str, &[&str])] = &[
    (
        "unit: hour, calendar: {}",
        &["hour: the unit `hour` cannot follow a calendar; accepted with `calendar`: day, week, month, year"],
    ),
    (
        "unit: month, calendar: {time_zone: Europe/Berln}",
        &[
            "Europe/Berln: unknown time zone `Europe/Berln`; did you mean `Europe/Berlin`, `Europe/Dublin` or \
           `Europe/Jersey`?",
        ],
    ),
    (
        "unit: month, calendar: {time_zone: Tokyo}",
        &["Tokyo: unknown time zone `Tokyo`; did you mean `Asia/Tokyo`?"],
    ),
    (
        "unit: month, calendar: {time_zone: Mars}",
        &[
            "Mars: unknown time zone `Mars`; expected a name of the IANA time zone database, such as `Europe/Berlin` or \
           `UTC`",
        ],
    ),
    (
        "unit: month, calendar: {anchor_day: 0, time_zone: Europe/Pariss}",
        &[
            "Europe/Pariss: unknown time zone `Europe/Pariss`; did you mean `Europe/Paris`, `Europe/Madrid` or \
             `Europe/Prague`?",
            "0: no month has a day 0; accepted: 1 to 31; in a shorter month it is the last day",
        ],
    ),
    (
        "unit: month, calendar: {anchor_day: 32}",
        &["32: no month has a day 32; accepted: 1 to 31; in a shorter month it is the last day"],
    ),
    (
        "unit: month, calendar: {anchor_day: -1}",
        &["-1: expected a day of a month, got the number `-1`; accepted: 1 to 31, without quotes"],
    ),
    (
        "unit: month, calendar: {anchor_day: '1'}",
        &["'1': expected a day of a month, got the text `1`; accepted: 1 to 31, without quotes"],
    ),
    (
        "unit: month, calendar: {week_start: monday}",
        &["week_start: `week_start` has no meaning for a month; remove it, or write `unit: week`"],
    ),
    (
        "unit: day, calendar: {anchor_day: 2, week_start: mon}",
        &[
            "mon: unknown weekday `mon`; accepted (case-insensitive): monday, tuesday, wednesday, thursday, friday, \
             saturday, sunday",
            "week_start: `week_start` has no meaning for a day; remove it, or write `unit: week`",
            "anchor_day: `anchor_day` has no meaning for a day; remove it, or write `unit: month`",
        ],
    ),
    (
        "unit: week, unit_multiplier: 1, algorithm: sliding_window, calendar: {week_start: sundy}",
        &[
            "sundy: unknown weekday `sundy`; did you mean `sunday`? accepted (case-insensitive): monday, tuesday, \
             wednesday, thursday, friday, saturday, sunday",
            "unit_multiplier: a limit with a calendar has windows of one unit; remove `unit_multiplier` or `calendar`",
            "sliding_window: a `sliding_window` cannot follow a calendar: its window ends now and always has one \
             length; use `fixed_window`, or remove `calendar`",
        ],
    ),
    (
        "unit: day, algorithm: token_bucket, burst: 5, calendar: {}",
        &[
            "token_bucket: a `token_bucket` cannot follow a calendar: it refills at a steady rate and has no windows; \
           use `fixed_window`, or remove `calendar`",
        ],
    ),
    ("unit: day, calendar: ", &[": expected a map, got nothing; write `calendar: {}` for UTC"]),
    (
        "unit: day, calendar: Asia/Tokyo",
        &["Asia/Tokyo: expected a map, got the text `Asia/Tokyo`; write `calendar: {time_zone: …}`"],
    ),
    (
        "unit: day, calendar: {timezone: Asia/Tokyo}",
        &["timezone: unknown key `timezone`; did you mean `time_zone`?"],
    ),
    ("unit: day, time_zone: Asia/Tokyo", &["time_zone: unknown key `time_zone`; it belongs in `calendar`"]),
    (
        "unit: fortnight, calendar: {time_zone: Marz}",
        &[
            "Marz: unknown time zone `Marz`; expected a name of the IANA time zone database, such as `Europe/Berlin` or \
             `UTC`",
            "fortnight: unknown unit `fortnight`; accepted (case-insensitive): second, minute, hour, day, week, month, \
             year",
        ],
    ),
];

#[test]
fn rejects_invalid_calendars_with_their_place() {
    for (limit, expected) in INVALID_CALENDARS {
        let limit = format!("{{requests_per_unit: 5, {limit}}}");
        let compiled = compiled(&limit, false);
        let (mut found, mut expected) = (messages(&compiled, &limit), expected.to_vec());
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "{limit}");
        assert!(compiled.rules.is_none());
    }
}

#[test]
fn a_calendar_is_named_once_as_an_extension() {
    let limit = "{unit: month, requests_per_unit: 1, calendar: {time_zone: UTC, anchor_day: 2}}";
    let expected =
        "calendar: the Go service rejects `calendar`; remove it from files that the Go service reads too";
    assert_eq!(messages(&compiled(limit, true), limit), [expected]);
}

#[test]
fn with_calendar_months_a_month_of_the_go_service_is_that_of_utc() {
    let of = |rate_limit: &str| {
        let file = SourceFile { name: "a.yaml".to_owned(), text: file(rate_limit).into_bytes() };
        let options = CompileOptions { calendar_months: true, ..CompileOptions::default() };
        let rules = compile(&[file], options).rules.unwrap();
        let limit = rules.rules()[0].limits().unwrap().first().clone();
        (limit.period().calendar(), limit.calendar, rules.rules()[0].to_string())
    };
    let (calendar, written, line) = of("{unit: month, requests_per_unit: 1}");
    assert_eq!((calendar, written), (Some(Calendar::utc_month()), None));
    assert!(
        line.starts_with("d.k: unit=MONTH requests_per_unit=1, shadow_mode: false, quota_mode: false"),
        "{line}"
    );
    assert!(!line.contains("calendar"), "as the Go service writes it: {line}");
    let own = "{unit: month, requests_per_unit: 1, calendar: {time_zone: Europe/Berlin}}";
    assert_eq!(of(own).0.unwrap().to_string(), "Europe/Berlin, from the 1st");
    for other in [
        "{unit: year, requests_per_unit: 1}",
        "{unit: month, requests_per_unit: 1, unit_multiplier: 2}",
        "{unit: month, requests_per_unit: 1, algorithm: sliding_window}",
    ] {
        assert_eq!(of(other).0, None, "{other}");
    }
}

const MOST: u64 = 9_007_199_254_740_991;

/// Limits that are larger than their algorithm counts, with the errors.
const TOO_LARGE: &[(&str, u64, &str)] = &[
    (
        "algorithm: sliding_window, ",
        4_294_967_296,
        "4294967296: a `sliding_window` of 4294967296 is too large; accepted: 0 to 4294967295; `fixed_window` counts \
         up to 9007199254740991",
    ),
    (
        "algorithm: token_bucket, ",
        30_000_000_000,
        "30000000000: a `token_bucket` of 30000000000 is too large; accepted: 0 to 4294967295; `fixed_window` counts \
         up to 9007199254740991",
    ),
    (
        "algorithm: leaky_bucket, ",
        MOST,
        "9007199254740991: a `leaky_bucket` of 9007199254740991 is too large; accepted: 0 to 4294967295; \
         `fixed_window` counts up to 9007199254740991",
    ),
    (
        "algorithm: leaky_bucket, burst: 4294967296, ",
        1_000_000,
        "4294967296: a burst of 4294967296 is too large; accepted: 1 to 4294967295",
    ),
    (
        "algorithm: sliding_log, ",
        MOST,
        "9007199254740991: a `sliding_log` of 9007199254740991 is too large; accepted: 0 to 100000; \
         `sliding_window` counts nearly the same with two numbers",
    ),
];

/// The errors of a limit, and whether it was loaded.
fn errors_of(more: &str, requests: u64) -> (Vec<String>, bool) {
    let limit = format!("{{unit: month, {more}requests_per_unit: {requests}}}");
    let compiled = compiled(&limit, false);
    (messages(&compiled, &limit), compiled.rules.is_some())
}

#[test]
fn refuses_a_limit_that_is_larger_than_its_algorithm_counts() {
    for requests in [4_294_967_296, 30_000_000_000, MOST] {
        assert_eq!(errors_of("", requests), (vec![], true), "{requests}");
    }
    let expected = "9007199254740992: expected an integer, got the number `9007199254740992`; accepted: 0 to \
        9007199254740991";
    assert_eq!(errors_of("", MOST + 1), (vec![expected.to_owned()], false));
    for (more, requests, expected) in TOO_LARGE {
        assert_eq!(errors_of(more, *requests), (vec![(*expected).to_owned()], false), "{more}{requests}");
    }
    for kind in ["sliding_window", "token_bucket", "leaky_bucket, burst: 4294967295"] {
        assert_eq!(errors_of(&format!("algorithm: {kind}, "), 4_294_967_295), (vec![], true), "{kind}");
    }
}

#[test]
fn names_limits_that_the_go_service_cannot_load_where_that_is_wanted() {
    let text =
        "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: day, requests_per_unit: 4294967296}\n";
    let file = SourceFile { name: "a.yaml".to_owned(), text: text.into() };
    let compiled = |strict| {
        let options = CompileOptions { strict, ..CompileOptions::default() };
        let compiled = compile(std::slice::from_ref(&file), options);
        assert!(compiled.rules.is_some());
        compiled.diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(compiled(false), [""; 0]);
    let [warning] = compiled(true).try_into().unwrap();
    assert!(
        warning.contains("the Go service cannot load a limit of 4294967296: its largest is 4294967295"),
        "{warning}"
    );
    assert!(warning.contains("4:48"), "{warning}");
}

#[test]
fn warns_about_the_cost_of_a_log() {
    let log = |requests: u64| {
        let limit = format!("{{unit: day, algorithm: sliding_log, requests_per_unit: {requests}}}");
        let compiled = compiled(&limit, false);
        (messages(&compiled, &limit), compiled.rules.is_some())
    };
    assert_eq!(log(9_999), (vec![], true));
    let costly = "100000: each counter of this `sliding_log` may keep 100000 hits, which take up to 1600 kB; \
        `sliding_window` counts nearly the same with two numbers";
    assert_eq!(log(100_000), (vec![costly.to_owned()], true));
    let long = "100001: a `sliding_log` of 100001 is too large; accepted: 0 to 100000; `sliding_window` counts nearly the same with two numbers";
    assert_eq!(log(100_001), (vec![long.to_owned()], false));
}

#[test]
fn rejects_invalid_lists_with_their_place() {
    let plain = "{unit: day, requests_per_unit: 5}";
    let several = "write a list for two or more limits; a single limit has no dash before its `unit`";
    for (list, expected) in [
        ("[]".to_owned(), &*format!("[: this list has no limit; {several}")),
        (format!("[{plain}]"), &*format!("[{{unit: this list has a single limit; {several}")),
        (
            format!("[{plain}, {{unit: hour, requests_per_unit: 5}}, x]"),
            "x: expected a map in this list of limits, got the text `x`; write `- unit: …`",
        ),
        (
            format!("[{plain}, {{unlimited: true}}]"),
            "unlimited: `unlimited` cannot be one of several limits; remove the item, or set only \
             `unlimited: true`",
        ),
        (
            format!("[{plain}, {{unit: hour, unit_multiplier: 24, requests_per_unit: 6}}]"),
            "{unit: duplicate limit: the one at line 4, column 16 counts the same hits; remove the larger of \
             the two, which has no effect",
        ),
        (
            format!("[{plain}, {{unit: hours, requests_per_unit: 6}}]"),
            "hours: unknown unit `hours`; did you mean `hour`? accepted (case-insensitive): second, minute, hour, day, \
             week, month, year",
        ),
        (
            "[{unit: day, requests_per_unit: 5, name: n}, {unit: hour, requests_per_unit: 5, name: m, \
             replaces: [{name: n}]}]"
                .to_owned(),
            "n: this limit replaces `n`, which is part of the same `rate_limit`; `replaces` names other \
             limits, which do not count if this one matches",
        ),
    ] {
        let compiled = compiled(&list, false);
        assert_eq!(messages(&compiled, &list), [expected], "{list}");
        assert!(compiled.rules.is_none());
    }
    let wrong_twice = compiled("[{unit: hours}, {unit: day, burst: 1}]", false);
    assert_eq!(wrong_twice.diagnostics.len(), 2, "{:?}", wrong_twice.diagnostics);
}

#[test]
fn limits_of_different_kind_or_rate_may_share_a_window() {
    limits(
        "[{unit: day, requests_per_unit: 5}, {unit: day, requests_per_unit: 5, algorithm: sliding_window},\n   \
         {unit: day, requests_per_unit: 5, algorithm: token_bucket}, {unit: day, requests_per_unit: 7,\n   \
         algorithm: token_bucket, burst: 3}]",
    );
}

#[test]
fn warns_about_keys_without_effect_beside_unlimited() {
    let compiled =
        compiled("{unlimited: true, unit_multiplier: 2, algorithm: token_bucket, burst: 5}", false);
    let keys: Vec<_> = compiled.diagnostics.iter().map(|found| &*found.message).collect();
    let expected = ["unit_multiplier", "algorithm", "burst"]
        .map(|key| format!("`{key}` has no effect with `unlimited: true`"));
    assert_eq!(keys, expected);
    assert!(compiled.rules.is_some());
}

#[test]
fn warns_that_the_go_service_rejects_extensions() {
    let list = "[{unit: day, unit_multiplier: 2, requests_per_unit: 1}, {unit: hour, requests_per_unit: 1, \
        algorithm: token_bucket, burst: 5}]";
    let compiled = compiled(list, true);
    let expected = [
        ("rate_limit", "a list of limits"),
        ("unit_multiplier", "`unit_multiplier`"),
        ("algorithm", "`algorithm`"),
        ("burst", "`burst`"),
    ];
    let help = "remove it from files that the Go service reads too";
    let expected = expected.map(|(word, what)| format!("{word}: the Go service rejects {what}; {help}"));
    assert_eq!(messages(&compiled, list), expected);
    assert!(compiled.rules.is_some());
}

#[test]
fn a_limit_with_leased_counting_is_leased_if_possible() {
    for (written, expected) in [
        ("{unit: day, requests_per_unit: 9}", "exact"),
        ("{unit: day, requests_per_unit: 9, counting: exact}", "exact"),
        ("{unit: day, requests_per_unit: 9, counting: Leased}", "leased"),
        ("{unit: day, unit_multiplier: 3, requests_per_unit: 9, counting: leased}", "leased"),
    ] {
        assert_eq!(limits(written).first().counting.name(), expected, "{written}");
    }
    let both = limits(
        "[{unit: day, requests_per_unit: 9, counting: leased}, {unit: hour, requests_per_unit: 5, counting: leased}]",
    );
    assert!(both.iter().all(|limit| limit.is_leased()));
}

#[test]
fn limits_without_counting_use_the_default_mode() {
    let options = CompileOptions { counting: CountingMode::Leased, ..CompileOptions::default() };
    let of = |rate_limit: &str, options| {
        let file = SourceFile { name: "a.yaml".to_owned(), text: file(rate_limit).into_bytes() };
        let compiled = compile(&[file], options);
        assert_eq!(messages(&compiled, rate_limit), [""; 0], "{rate_limit}");
        compiled.rules.unwrap().rules()[0].limits().unwrap().first().is_leased()
    };
    let plain = "{unit: day, requests_per_unit: 9}";
    assert!(of(plain, options));
    assert!(!of("{unit: day, requests_per_unit: 9, counting: exact}", options));
    assert!(!of("{unit: day, requests_per_unit: 9, algorithm: token_bucket}", options));
    assert!(!of(
        "[{unit: day, requests_per_unit: 9}, {unit: day, requests_per_unit: 9, algorithm: sliding_log}]",
        options
    ));
    assert!(!of(plain, CompileOptions { countable: Countable::FixedWindows, ..options }));
}

#[test]
fn a_lease_that_is_not_possible_is_a_warning() {
    let help = "remove it: only fixed windows in Redis are leased";
    for kind in ["token_bucket", "leaky_bucket", "sliding_window", "sliding_log"] {
        let written = format!("{{unit: day, requests_per_unit: 9, algorithm: {kind}, counting: leased}}");
        let expected =
            format!("leased: `counting: leased` has no effect: `{kind}` is counted exactly; {help}");
        let compiled = compiled(&written, false);
        assert_eq!(messages(&compiled, &written), [expected]);
        assert!(!compiled.rules.unwrap().rules()[0].limits().unwrap().first().is_leased());
    }
    let written = "[{unit: day, requests_per_unit: 9, counting: leased}, {unit: hour, requests_per_unit: 5}]";
    let mixed = compiled(written, false);
    let expected = "leased: `counting: leased` has no effect: the limit at line 4, column 69 is exact; the limits of a rule count all or nothing; lease all or none";
    assert_eq!(messages(&mixed, written), [expected]);
    assert!(!mixed.rules.unwrap().rules()[0].limits().unwrap().iter().any(|limit| limit.is_leased()));
    let wrong = "{unit: day, requests_per_unit: 9, counting: lease}";
    let expected =
        "lease: unknown counting `lease`; did you mean `leased`? accepted (case-insensitive): exact, leased";
    assert_eq!(messages(&compiled(wrong, false), wrong), [expected]);
    let text = file("{unit: day, requests_per_unit: 9, counting: leased}");
    let file = SourceFile { name: "a.yaml".to_owned(), text: text.into_bytes() };
    let memcached = CompileOptions { countable: Countable::FixedWindows, ..CompileOptions::default() };
    let compiled = compile(&[file], memcached);
    let message = "`counting: leased` has no effect: memcached counts exactly";
    assert_eq!(compiled.diagnostics.iter().map(|one| &*one.message).collect::<Vec<_>>(), [message]);
}
