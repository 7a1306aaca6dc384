//! The sinks of metrics.

use super::super::{Available, Settings};
use super::{problems, settings};
use exporters::statsd::{Dialect, settings::SinkAddress};
use net::HostPort;

#[test]
fn statsd_is_the_default_without_another_sink() {
    let statsd =
        |set: &[(&str, &str)]| settings(set).sinks.statsd.map(|sink| (sink.target, sink.is_configured));
    let usual = SinkAddress::Tcp(HostPort { host: "localhost".into(), port: 8125 });
    assert_eq!(statsd(&[]), Some((usual.clone(), false)));
    assert_eq!(statsd(&[("USE_STATSD", "true")]), Some((usual, true)));
    for set in
        [("USE_STATSD", "false"), ("USE_PROMETHEUS", "true"), ("USE_DOG_STATSD", "1"), ("DISABLE_STATS", "t")]
    {
        assert_eq!(statsd(&[set]), None, "{set:?}");
    }
    let both = settings(&[("USE_STATSD", "true"), ("USE_DOG_STATSD", "true"), ("USE_PROMETHEUS", "true")]);
    assert!(both.sinks.statsd.is_some() && both.sinks.dog.is_some() && both.metrics.use_prometheus);
}

#[test]
fn reads_the_addresses_of_sinks() {
    let host = |port| HostPort { host: "agent".into(), port };
    let at = [("STATSD_HOST", "agent"), ("STATSD_PORT", "9")];
    let statsd = |protocol| {
        let set = [&at[..], &[("STATSD_PROTOCOL", protocol)]].concat();
        settings(&set).sinks.statsd.unwrap().target
    };
    assert_eq!(statsd("tcp"), SinkAddress::Tcp(host(9)));
    assert_eq!(statsd("udp"), SinkAddress::Udp(host(9)));
    assert_eq!(statsd("/run/statsd"), SinkAddress::Unix("/run/statsd".into()));
    let dog = |address| {
        let set = [&at[..], &[("USE_DOG_STATSD", "true"), ("DOG_STATSD_ADDR", address)]].concat();
        settings(&set).sinks.dog.unwrap().target
    };
    assert_eq!(dog(""), SinkAddress::Udp(host(9)));
    assert_eq!(dog("agent:7"), SinkAddress::Udp(host(7)));
    assert_eq!(dog("unix:///run/dsd.socket"), SinkAddress::Unix("/run/dsd.socket".into()));
    for (name, value) in [
        ("STATSD_PROTOCOL", "sctp"),
        ("DOG_STATSD_ADDR", "agent"),
        ("EXTRA_TAGS", "a=b"),
        ("STATS_FLUSH_INTERVAL", "0s"),
    ] {
        let problems = problems(&[(name, value)]);
        assert!(problems.len() == 1 && problems[0].starts_with(name), "{problems:?}");
    }
}

#[test]
fn an_invalid_mogrifier_names_its_variable() {
    let dog = [("USE_DOG_STATSD", "true"), ("USE_DOG_STATSD_MOGRIFIERS", "HITS")];
    let hits = |part: &'static str, value| [&dog[..], &[(part, value)]].concat();
    for (set, expected) in [
        (dog.to_vec(), "DOG_STATSD_MOGRIFIER_HITS_PATTERN is not set"),
        (hits("DOG_STATSD_MOGRIFIER_HITS_PATTERN", "("), "invalid regular expression: unclosed group"),
        (hits("DOG_STATSD_MOGRIFIER_HITS_PATTERN", "a"), "DOG_STATSD_MOGRIFIER_HITS_NAME is not set"),
    ] {
        let problems = problems(&set);
        assert!(problems.len() == 1 && problems[0].contains(expected), "{problems:?}");
    }
}

#[test]
fn renames_metrics_as_the_go_service_does() {
    let recorded = include_str!("../../../../../tests/operations/statsd/mogrifiers.jsonl");
    // Spaces around a key or a value are trimmed here.
    let bare = |tag: &str| tag.split(':').map(str::trim).collect::<Vec<_>>().join(":");
    let mut seen = 0;
    for line in recorded.lines() {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        let keys = case["keys"].as_array().unwrap().iter().map(|key| key.as_str().unwrap());
        let env = |name: &str| case["env"][name].as_str().map(ToOwned::to_owned);
        let list = keys.collect::<Vec<_>>().join(",");
        let variable = |name: &str| match name {
            "USE_DOG_STATSD" => Some("true".to_owned()),
            "USE_DOG_STATSD_MOGRIFIERS" => Some(list.clone()),
            _ => env(name),
        };
        let read = Settings::read(&variable, &|_| false, 1, Available::default());
        if case["refused"].as_bool() == Some(true) {
            assert!(read.is_err(), "{case}");
            continue;
        }
        let dialect = read.unwrap().0.sinks.dog.unwrap().dialect;
        let Dialect::Dog { mogrifiers, .. } = dialect else { panic!("{dialect:?}") };
        for said in case["said"].as_array().unwrap() {
            let asked = said["asked"].as_str().unwrap();
            let (name, tags) = mogrifiers
                .iter()
                .find_map(|mogrifier| exporters::statsd::mogrify(mogrifier, asked))
                .unwrap_or((asked.to_owned(), Vec::new()));
            assert_eq!(name, said["name"].as_str().unwrap(), "{case}");
            let mut tags: Vec<_> = tags.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
            tags.sort();
            let expected: Vec<_> =
                said["tags"].as_array().unwrap().iter().map(|tag| bare(tag.as_str().unwrap())).collect();
            assert_eq!(tags, expected, "{case}");
            seen += 1;
        }
    }
    assert!(seen > 20, "only {seen} names");
}
