//! Problems and warnings.

use super::{super::*, problems, read, warnings};

#[test]
fn reports_all_mistakes_at_once() {
    let reported = problems(&[
        ("PORT", "http"),
        ("GRPC_PORT", "65536"),
        ("GRPC_MAX_CONNECTION_AGE", "24"),
        ("SHADOW_MODE", "on"),
        ("NEAR_LIMIT_RATIO", "NaN"),
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LIMIT_RESET_HEADER", "Reset: "),
        ("PROMETHEUS_PATH", "metrics"),
        ("LOG_LEVEL", "loud"),
        ("MEMORY_MAX_KEYS", "0"),
        ("GRPC_MAX_CONCURRENT_STREAMS", "4294967296"),
    ]);
    assert_eq!(reported.len(), 10, "{reported:#?}");
    let age = "GRPC_MAX_CONNECTION_AGE=\"24\": expected a duration such as 10s, 150us, 1h30m or 1.5h, \
        in ns, us, ms, s, m and h; the unit is missing; 24s is in seconds";
    assert!(reported.contains(&age.to_owned()), "{reported:#?}");
    let port = "PORT=\"http\": expected an integer from 0 to 65535";
    assert!(reported.contains(&port.to_owned()), "{reported:#?}");
}

#[test]
fn rejects_values_that_would_weaken_a_deployment() {
    for (name, value, reported) in [
        ("BACKEND_TYPE", "memcached", "write memcache"),
        ("BACKEND_TYPE", "Memory", "expected redis, memcache or memory; write memory"),
        ("CONFIG_TYPE", "file", "write FILE"),
        ("GRPC_SERVER_USE_TLS", "yes", "write true"),
    ] {
        let problems = problems(&[(name, value)]);
        assert_eq!(problems.len(), 1, "{name}={value}: {problems:?}");
        assert!(problems[0].starts_with(name) && problems[0].contains(reported), "{}", problems[0]);
    }
}

#[test]
fn warns_about_settings_without_an_effect() {
    for (name, value) in [("EXTRA_TAGS", "a:b"), ("LOG_FORMAT", "logfmt")] {
        let warnings = warnings(&[("USE_STATSD", "false"), (name, value)]);
        assert!(warnings.len() == 1 && warnings[0].starts_with(name), "{warnings:?}");
    }
    for ratio in ["1.01", "-0.1"] {
        assert_eq!(warnings(&[("NEAR_LIMIT_RATIO", ratio)]).len(), 1, "{ratio}");
    }
}

#[test]
fn rejects_two_listeners_on_one_port() {
    for (set, reported) in [
        (
            &[("PORT", "8081")][..],
            "GRPC_PORT: expected a port that no other listener has; 0.0.0.0:8081 collides with PORT, 0.0.0.0:8081",
        ),
        (&[("DEBUG_PORT", "8080"), ("DEBUG_HOST", "127.0.0.1")], "DEBUG_PORT"),
        (&[("PROMETHEUS_ADDR", "127.0.0.1:6070")], "PROMETHEUS_ADDR"),
    ] {
        let problems = problems(set);
        assert!(problems.len() == 1 && problems[0].starts_with(reported), "{problems:?}");
    }
    let free = [("PORT", "0"), ("GRPC_PORT", "0"), ("DEBUG_PORT", "0"), ("PROMETHEUS_ADDR", ":0")];
    assert!(read(&free).is_ok());
    assert!(read(&[("PROMETHEUS_ADDR", ":8080"), ("USE_PROMETHEUS", "false")]).is_ok());
    assert!(read(&[("PROMETHEUS_ADDR", ":8080"), ("DISABLE_STATS", "true")]).is_ok());
}

#[test]
fn any_value_in_any_variable_is_accepted_or_rejected() {
    let values = [
        "",
        " ",
        "0",
        "-1",
        "1",
        "x",
        "true",
        "9999999999999999999999",
        "\u{0}",
        "\u{fffd}",
        ":",
        "[",
        "tcp://1.2.3.4:5",
    ];
    let around =
        [("REDIS_URL", "redis:6379"), ("REDIS_PERSECOND", "true"), ("REDIS_PERSECOND_URL", "redis:6380")];
    for var in vars::ALL {
        for value in values {
            // The files that TLS requires.
            let files = [("GRPC_SERVER_TLS_CERT", "c"), ("GRPC_SERVER_TLS_KEY", "k")];
            let around = if var.name.starts_with("REDIS_") { &around[..] } else { &files };
            if let Err(problems) = read(&[&[(var.name, value)], around].concat()) {
                assert_eq!(problems[0].variable, var.name, "{value:?}");
            }
        }
    }
}
