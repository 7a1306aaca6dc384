//! Mappers against recorded results of `statsd_exporter` 0.26.1, the version in the Go service, and their pages.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use proptest::prelude::*;
use serde_json::Value as Json;

use super::*;
use crate::{Exposition, Method, Metric, RuleCounter, Stats, StatsOptions, rows};

/// A file per line, with the results of some names.
const RECORDED: &str = include_str!("../../../../../tests/operations/statsd/mapper.jsonl");

fn mapper(yaml: &str) -> Mapper {
    read("mapper.yaml", yaml.as_bytes()).unwrap().0
}

fn diagnostics(yaml: &str) -> Vec<String> {
    let found = match read("mapper.yaml", yaml.as_bytes()) {
        Ok((_, warnings)) => warnings,
        Err(errors) => errors,
    };
    found.iter().map(ToString::to_string).collect()
}

/// The metrics on the page.
fn declared() -> Vec<Metric> {
    [rows::RULES, rows::REQUESTS, rows::HITS, rows::SERVICE, rows::SERIES, rows::PROCESS].concat()
}

/// The page of this file.
fn page(yaml: &str, fill: impl FnOnce(&Stats)) -> String {
    let stats = Stats::new(StatsOptions::default());
    let stats = stats.shown(Exposition::Mapped(Box::new(Mapped::new(mapper(yaml), declared()))));
    fill(&stats);
    let first = stats.render(&|_| ());
    assert_eq!(without_process(&stats.render(&|_| ())), without_process(&first));
    first
}

/// The page without the metrics of the process, which change between scrapes.
fn without_process(page: &str) -> String {
    page.lines().filter(|line| !line.contains("process_")).collect::<Vec<_>>().join("\n")
}

fn render(mapped: &Mapped, stats: &Stats) -> String {
    let mut text = String::new();
    mapped.write(stats, &|_| (), &mut text).unwrap();
    text
}

#[test]
fn maps_names_as_the_exporter_does() {
    let kinds = |name: &str| match name {
        "counter" => MetricType::Counter,
        "gauge" => MetricType::Gauge,
        _ => MetricType::Histogram,
    };
    let mut seen = 0;
    for line in RECORDED.lines() {
        let case: Json = serde_json::from_str(line).unwrap();
        let yaml = case["yaml"].as_str().unwrap();
        let read = read("mapper.yaml", yaml.as_bytes());
        if case["refused"].as_bool() == Some(true) {
            assert!(read.is_err(), "{yaml}");
            continue;
        }
        let (mapper, _) = read.unwrap_or_else(|errors| panic!("{yaml}\n{errors:?}"));
        for said in case["said"].as_array().unwrap() {
            let name = said["name"].as_str().unwrap();
            let expected = match (&said["to"], said["dropped"].as_bool()) {
                (Json::String(to), _) if to.is_empty() => "dropped".to_owned(),
                (Json::String(to), _) => {
                    let labels: BTreeMap<String, String> =
                        serde_json::from_value(said["labels"].clone()).unwrap();
                    format!("{to} {labels:?}")
                }
                (_, Some(true)) => "dropped".to_owned(),
                _ => "unmapped".to_owned(),
            };
            let found = match mapper.map(name, kinds(said["type"].as_str().unwrap())) {
                MappingResult::Unmapped => "unmapped".to_owned(),
                MappingResult::Dropped => "dropped".to_owned(),
                MappingResult::Mapped { name, labels, .. } => {
                    format!("{name} {:?}", labels.into_iter().collect::<BTreeMap<_, _>>())
                }
            };
            assert_eq!(found, expected, "{name} by\n{yaml}");
            seen += 1;
        }
    }
    assert!(seen > 100, "only {seen} names");
}

#[test]
fn the_example_of_the_manual_has_no_warnings() {
    let (_, rest) =
        include_str!("../../../../../docs/reference/statsd.md").split_once("```yaml mapper\n").unwrap();
    assert_eq!(diagnostics(rest.split_once("```").unwrap().0), [""; 0]);
}

#[test]
fn reports_every_mistake_with_its_path() {
    let yaml = "mappings:\n- match: 'a..b'\n  name: 9x\n- match: '('\n  match_type: regex\n  name: ok\n  \
                labels: {a-b: x, le: y, __name__: z}\n- {name: x}\n";
    let reported = diagnostics(yaml);
    for expected in [
        "mapper.yaml: error: invalid glob `a..b` (at mappings[0].match); expected words of",
        "mapper.yaml: error: `9x` is not a valid metric name (at mappings[0].name)",
        "mapper.yaml: error: invalid regular expression `(`: unclosed group (at mappings[1].match)",
        "mapper.yaml: error: `a-b` is not a valid label name (at mappings[1].labels.a-b)",
        "mapper.yaml: error: label `le` is reserved by Prometheus",
        "mapper.yaml: error: label `__name__`",
        "mapper.yaml: error: missing `match` (at mappings[2])",
    ] {
        assert!(reported.iter().any(|one| one.starts_with(expected)), "{expected}\n{reported:#?}");
    }
}

#[test]
fn reports_a_file_that_cannot_be_parsed_with_its_place() {
    let bomb: Vec<_> = (0..30).map(|n| format!("a{n}: &a{n} [*a{0}, *a{0}, *a{0}]\n", n - 1)).collect();
    let bomb = bomb.concat();
    for (yaml, expected) in [
        ("a: b: c\n", "mapper.yaml:1:5: error: mapping values are not allowed in this context"),
        (
            "mappings: {match: a}\n",
            "mapper.yaml:1:11: error: mappings: invalid type: map, expected a sequence",
        ),
        ("mappings:\n- {name: x, name: y}\n", "mapper.yaml:2:3: error: mappings[0]: duplicate field `name`"),
        (
            "mappings:\n- {match: a.b, action: destroy}\n- 7\n",
            "mapper.yaml:2:24: error: mappings[0].action: unknown variant `destroy`, expected `map` or `drop`",
        ),
        ("7", "mapper.yaml:1:1: error: invalid type: integer `7`, expected a map"),
        (&bomb.replace("*a-1", "x"), "mapper.yaml: error: repetition limit exceeded"),
        (
            &" ".repeat((1 << 20) + 1),
            "mapper.yaml: error: the file has 1048577 bytes, expected at most 1048576",
        ),
    ] {
        let reported = diagnostics(yaml);
        assert!(reported.len() == 1 && reported[0].starts_with(expected), "{expected}\n{reported:#?}");
    }
}

#[test]
fn merges_and_numbers_as_text_are_read_as_yaml_1_1_does() {
    let merged = "mappings:\n- &base {match: a.*, name: x, labels: {v: 1.10}}\n- {<<: *base, match: b.*}\n";
    for (yaml, name, version) in
        [(merged, "b.c", "1.1"), (&merged[..merged.rfind('-').unwrap()], "a.c", "1.10")]
    {
        let mapper = mapper(yaml);
        let MappingResult::Mapped { labels, .. } = mapper.map(name, MetricType::Counter) else {
            panic!("{name}")
        };
        assert_eq!(labels, [("v", version.to_owned())]);
    }
}

#[test]
fn every_known_option_is_suggested_and_accepted() {
    let mapping = "mappings:\n- {match: a.b, name: x, match_type: glob, match_metric_type: timer, labels: {}, action: map, \
        help: h, scale: 1, observer_type: histogram, timer_type: histogram, histogram_options: {buckets: []}, \
        buckets: [], honor_labels: true}\ndefaults: {glob_disable_ordering: true}\n";
    assert_eq!(diagnostics(mapping), [""; 0]);
}

#[test]
fn warns_about_options_without_effect_with_their_path() {
    let yaml = "defaults:\n  ttl: 5m\n  quantile: []\nmappings:\n- match: ratelimit_server.*.response_time\n  \
                name: took\n  observer_type: summary\n  lables: {}\n  buckets: [10, 12]\n";
    let reported = diagnostics(yaml);
    for expected in [
        "mapper.yaml: warning: `ttl` has no effect: a series exists as long as its rule (at defaults.ttl)",
        "mapper.yaml: warning: unknown option `quantile` is ignored (at defaults.quantile); did you mean `quantiles`?",
        "mapper.yaml: warning: `observer_type: summary` has no effect: summaries are not supported",
        "mapper.yaml: warning: unknown option `lables` is ignored (at mappings[0].lables); did you mean `labels`?",
        "mapper.yaml: warning: bucket 12 is ignored (at mappings[0].buckets[1]); times are counted in the buckets 0.01, 0.025",
    ] {
        assert!(reported.iter().any(|one| one.starts_with(expected)), "{expected}\n{reported:#?}");
    }
    assert_eq!(reported.len(), 5, "{reported:#?}");
}

#[test]
fn a_page_has_the_names_and_labels_of_the_file() {
    let yaml = r#"
mappings:
- match: ratelimit.service.rate_limit.*.*.over_limit
  name: refused
  help: "Too\nmany."
  labels: {rule: "$1/$2"}
- match: 'ratelimit\.service\.rate_limit\..*\.(near|within)_limit$'
  match_type: regex
  name: passed
  labels: {how: $1}
- {match: "*.*.*.*.*.shadow_mode", action: drop}
- {match: ratelimit_server.*.response_time, name: took_ms, buckets: [10, 1000]}
- {match: ratelimit_server.*.total_requests, name: kilo_requests, scale: 0.001}
"#;
    let page = page(yaml, |stats| {
        for (counter, n) in RuleCounter::ALL.into_iter().zip(1..) {
            stats.rule("d", "d.k").add(counter, n);
            stats.rule("d", "d.q\"\\.k").add(counter, 10 * n);
        }
        stats.service().requests(Method::ShouldRateLimit).add(1500);
        for method in Method::ALL {
            stats.service().response_time(method).observe(std::time::Duration::from_millis(3));
        }
    });
    for line in [
        "# HELP refused Too\\nmany.\n# TYPE refused counter\nrefused{rule=\"d/k\"} 2\n",
        "passed{how=\"near\"} 33\npassed{how=\"within\"} 44\n",
        "ratelimit_service_rate_limit_over_limit{domain=\"d\",key1=\"q\\\"\\\\\",key2=\"k\"} 20\n",
        "ratelimit_service_rate_limit_total_hits{domain=\"d\",key1=\"k\"} 1\n",
        "ratelimit_service_rate_limit_shadow_mode{domain=\"d\",key1=\"q\\\"\\\\\",key2=\"k\"} 60\n",
        "# TYPE took_ms histogram\ntook_ms_bucket{le=\"10\"} 6\ntook_ms_bucket{le=\"1000\"} 6\n\
         took_ms_bucket{le=\"+Inf\"} 6\ntook_ms_sum 18\ntook_ms_count 6\n",
        "kilo_requests 1.5\n",
        "tollgate_build_info{",
        "process_open_fds ",
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }
    assert!(!page.contains("shadow_mode{domain=\"d\",key1=\"k\"}"), "{page}");
    assert_eq!(page.matches("# TYPE passed ").count(), 1);
}

#[test]
fn an_empty_file_does_not_change_the_page() {
    let fill = |stats: &Stats| {
        stats.rule("d", "d.k.x").add(RuleCounter::TotalHits, 7);
        stats.domain_not_found("nowhere", clock::Time::default());
        stats.service().response_time(Method::ShouldRateLimit).observe(std::time::Duration::from_micros(30));
    };
    let stats = Stats::new(StatsOptions::default());
    fill(&stats);
    let sorted = |page: &str| {
        let page = without_process(page);
        let mut lines: Vec<String> = page.lines().map(ToOwned::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&page("mappings: []", fill)), sorted(&stats.render(&|_| ())));
}

#[test]
fn a_name_has_one_type() {
    let yaml = "mappings:\n- {match: ratelimit_server.*.response_time, name: same}\n\
                - {match: ratelimit_server.*.total_requests, name: same}\n\
                - {match: ratelimit.service.global_shadow_mode, name: process_open_fds}\n";
    let page = page(yaml, |stats| stats.service().global_shadow_mode.add(5));
    assert_eq!(page.matches("# TYPE same ").count(), 1, "{page}");
    assert_eq!(page.matches("# TYPE process_open_fds ").count(), 1, "{page}");
}

#[test]
fn forgets_names_that_are_gone() {
    let mapped = Mapped::new(mapper("mappings: []"), declared());
    for round in 0..3 {
        let stats = Stats::new(StatsOptions::default());
        for n in 0..2_000 {
            stats.rule("d", &format!("d.{round}-{n}")).add(RuleCounter::TotalHits, 1);
        }
        render(&mapped, &stats);
    }
    let page = render(&mapped, &Stats::new(StatsOptions::default()));
    assert!(!page.contains("key1"), "{page}");
    assert!(format!("{mapped:?}").len() < 100_000);
}

#[test]
fn a_known_page_takes_at_most_twice_the_time_of_the_default_page() {
    let yaml = "mappings:\n- match: 'ratelimit\\.service\\.rate_limit\\.([^.]*)\\.(.*)\\.([^.]*)'\n  \
                match_type: regex\n  name: rl_$3\n  labels: {domain: $1, rule: $2}\n";
    let stats = Stats::new(StatsOptions::default());
    for n in 0..3_000 {
        stats.rule("domain", &format!("domain.key_{n}.deeper_{n}")).add(RuleCounter::TotalHits, 1);
    }
    let mapped = Mapped::new(mapper(yaml), declared());
    let time_of = |render: &dyn Fn() -> String| {
        let begun = Instant::now();
        assert!(render().len() > 300_000);
        begun.elapsed()
    };
    // The fastest of each: others may use the machine in any of these moments.
    let [mut own, mut by_mapper] = [Duration::MAX; 2];
    for _ in 0..100 {
        own = own.min(time_of(&|| stats.render(&|_| ())));
        by_mapper = by_mapper.min(time_of(&|| render(&mapped, &stats)));
        if by_mapper < 2 * own {
            return;
        }
    }
    panic!("{by_mapper:?} with the mapper, {own:?} without");
}

#[test]
fn reports_a_bounded_number_of_errors() {
    let yaml = format!("mappings:\n{}", "- {match: a.b, name: 9, what: ever}\n".repeat(500));
    let reported = diagnostics(&yaml);
    assert_eq!(reported.len(), 101, "{reported:#?}");
    assert!(reported[100].contains("900 more errors and warnings"), "{}", reported[100]);
}

proptest! {
    #[test]
    fn no_file_panics(yaml in "\\PC{0,60}", known in "(mappings|defaults): *\n?[-{\\[]? ?(match|name|labels|buckets|ttl): [$a-z.*0-9{}\\[\\]'\"]{0,12}") {
        for text in [yaml, known] {
            if let Ok((mapper, _)) = read("mapper.yaml", text.as_bytes()) {
                mapper.map("a.b.c", MetricType::Counter);
            }
        }
    }

    #[test]
    fn no_template_panics(template in "[$1{}_a9é]{0,12}", name in "[a.é]{0,8}") {
        let yaml = format!("mappings:\n- match: '*.*'\n  name: x\n  labels: {{l: '{template}'}}\n- match: '(.*)'\n  match_type: regex\n  name: x\n  labels: {{l: '{template}'}}\n");
        mapper(&yaml).map(&name, MetricType::Counter);
    }
}
