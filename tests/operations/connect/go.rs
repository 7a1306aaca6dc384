//! The configurations of Envoy in the Go service's examples, as they are and with planted mistakes. The files in `go` are
//! those of `examples/` in envoyproxy/ratelimit at commit f2fb1577 (Apache License 2.0).

use super::{Value, check};

const PROXY: &str = include_str!("go/proxy.yaml");
const MOCK: &str = include_str!("go/mock.yaml");
const EXAMPLE: &str = include_str!("go/example.yaml");

/// The messages with their lines: of the rules if `envoy.yaml` is not named.
fn said(report: &Value) -> Vec<String> {
    let all = report["diagnostics"].as_array().unwrap().iter();
    let one = |one: &Value| {
        format!("{}:{} {}", one["file"].as_str().unwrap(), one["line"], one["message"].as_str().unwrap())
    };
    all.map(one).collect()
}

#[test]
fn the_examples_of_the_go_service_fit_together() {
    let (report, code) = check(PROXY, EXAMPLE, &[]);
    assert_eq!(
        said(&report),
        [
            "rules.yaml:76 Envoy sends no descriptor that meets the rule `rl.foo.bay`",
            "rules.yaml:84 Envoy sends no descriptor that meets the rule `rl.qux`",
        ]
    );
    let expected = serde_json::json!({
        "filters": 1, "descriptors": 17, "unmatched_descriptors": 0, "unreached_rules": 2,
    });
    assert_eq!((&report["envoy"], code), (&expected, Some(0)));
    // The upstream of the example limits nothing.
    let (report, code) = check(MOCK, EXAMPLE, &[]);
    assert!(said(&report)[0].contains("has no rate limit filter"), "{report:#}");
    assert_eq!(code, Some(1));
    let (report, code) = check(PROXY, include_str!("go/config.yaml"), &[]);
    assert!(said(&report).iter().any(|one| one.contains("the domain `rl` has no rules")), "{report:#}");
    assert!(said(&report).iter().any(|one| one.contains("these rules limit nothing")), "{report:#}");
    assert_eq!(code, Some(1));
}

#[test]
fn mistakes_planted_in_the_examples_are_named_at_their_lines() {
    for (from, to, line, expected) in [
        ("domain: rl", "domain: r1", 97, "the domain `r1` has no rules, so its requests are not limited"),
        (
            "descriptor_key: \"unspec\"",
            "descriptor_key: \"unspce\"",
            221,
            "no rule of the domain `rl` meets the descriptor `unspce=…`",
        ),
        (
            "http2_protocol_options: {}",
            "dns_lookup_family: V4_ONLY",
            9,
            "the cluster `ratelimit` has no `http2_protocol_options`, and gRPC needs HTTP/2",
        ),
    ] {
        assert_eq!(PROXY.matches(from).count(), 1, "{from}");
        let (report, code) = check(&PROXY.replace(from, to), EXAMPLE, &["--deny-warnings"]);
        let said = said(&report);
        let of_envoy: Vec<_> = said.iter().filter(|one| one.starts_with("envoy.yaml")).collect();
        assert_eq!(of_envoy, [&format!("envoy.yaml:{line} {expected}")], "{to}");
        assert_eq!(code, Some(1), "{to}");
    }
}
