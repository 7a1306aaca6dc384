//! What whole environments come to.

use std::{cell::RefCell, collections::BTreeSet};

use super::{
    sinks::{SinkAddress, Statsd},
    *,
};

type Outcome = Result<(Settings, Vec<Warning>), Vec<Problem>>;

/// Reads an environment of these variables alone, on a machine with 3 cores and without rules.
fn read(set: &[(&str, &str)]) -> Outcome {
    read_on(set, &[])
}

/// The same where these paths exist.
fn read_on(set: &[(&str, &str)], paths: &[&str]) -> Outcome {
    let env = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
    Settings::read(&env, &|path| paths.iter().any(|there| Path::new(there) == path), 3)
}

fn settings(set: &[(&str, &str)]) -> Settings {
    read(set).unwrap().0
}

fn warnings(set: &[(&str, &str)]) -> Vec<String> {
    read(set).unwrap().1.iter().map(ToString::to_string).collect()
}

fn problems(set: &[(&str, &str)]) -> Vec<String> {
    read(set).unwrap_err().iter().map(ToString::to_string).collect()
}

#[test]
fn the_variables_of_the_table_are_those_that_are_read() {
    let asked = RefCell::new(BTreeSet::new());
    let env = |name: &str| {
        asked.borrow_mut().insert(name.to_owned());
        // Those of a collector mean nothing, and may mean others, where nothing is traced.
        (name == "TRACING_ENABLED").then(|| "true".to_owned())
    };
    assert!(Settings::read(&env, &|_| false, 1).is_ok());
    let known: BTreeSet<_> = vars::ALL.iter().map(|var| var.name.to_owned()).collect();
    assert_eq!(asked.into_inner(), known);
}

#[test]
fn memcached_is_asked_for_by_the_backends_type_alone() {
    let host = ("MEMCACHE_HOST_PORT", "memcached:11211");
    let warned = warnings(&[host]);
    assert_eq!(warned, ["BACKEND_TYPE: is not memcache, so that these do nothing: MEMCACHE_HOST_PORT"]);
    assert_eq!(warnings(&[host, ("BACKEND_TYPE", "memory")]), [""; 0]);
    let asked_for = [host, ("BACKEND_TYPE", "memcache")];
    assert!(matches!(settings(&asked_for).store.chosen, Backend::Memcached(_)));
    assert_eq!(warnings(&asked_for), [""; 0]);
}

#[test]
fn an_empty_environment_is_served_without_a_warning() {
    let (settings, warnings) = read(&[]).unwrap();
    assert_eq!(warnings, []);
    assert_eq!(settings.server.listen, GrpcListen::Tcp(HostPort { host: "0.0.0.0".into(), port: 8081 }));
    assert_eq!(settings.server.workers, 3);
    assert_eq!(settings.server.max_connection_age, Duration::from_secs(86_400));
    assert_eq!(settings.http.listen.to_string(), "0.0.0.0:8080");
    assert_eq!(settings.http.debug.to_string(), "0.0.0.0:6070");
    assert_eq!(settings.rules.root, Path::new("/srv/runtime_data/current"));
    assert_eq!(settings.rules.app_directory, "config");
    assert!(settings.rules.watch_root && !settings.rules.ignore_dot_files);
    assert!(settings.store.by_default);
    assert_eq!(settings.store.expiration_jitter_max, Duration::from_secs(300));
    assert!((settings.store.near_limit_ratio - 0.8).abs() < f32::EPSILON);
    assert_eq!(settings.answers.headers, None);
    let prometheus = settings.stats.prometheus.unwrap();
    assert_eq!((prometheus.listen.to_string(), &*prometheus.path), (":9090".into(), "/metrics"));
    assert_eq!(settings.log, Log { level: LevelFilter::WARN, format: LogFormat::Text });
}

#[test]
fn every_variable_takes_its_default_when_it_is_set_to_it() {
    let table: Vec<_> = vars::ALL.iter().map(|var| (var.name, var.default)).collect();
    let (mut written_out, warnings) = read(&table).unwrap();
    assert_eq!(warnings, []);
    assert!(!written_out.store.by_default);
    written_out.store.by_default = true;
    // What is set to its default is asked for all the same.
    written_out.stats.sinks.statsd = settings(&[]).stats.sinks.statsd;
    assert_eq!(written_out, settings(&[]));
}

#[test]
fn an_empty_value_is_the_default_but_of_texts() {
    let empty: Vec<_> = vars::ALL.iter().map(|var| (var.name, "")).collect();
    let (read, warnings) = read(&empty).unwrap();
    assert_eq!(warnings, []);
    assert_eq!(read.http.listen.to_string(), ":8080");
    assert_eq!((&*read.rules.root, &*read.rules.app_directory), (Path::new("."), ""));
    assert!(read.store.by_default);
    assert_eq!(read.log, settings(&[]).log);
    assert_eq!(read.stats, settings(&[]).stats);
}

#[test]
fn istios_sample_is_served() {
    let sample = [
        ("LOG_LEVEL", "debug"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", "redis:6379"),
        ("USE_STATSD", "false"),
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("HOST", "::"),
        ("GRPC_HOST", "::"),
    ];
    let read = settings(&sample);
    assert_eq!(read.http.listen.to_string(), "[::]:8080");
    assert_eq!((&*read.rules.root, &*read.rules.subdirectory), (Path::new("/data"), "ratelimit"));
    assert!(read.rules.ignore_dot_files && !read.rules.watch_root);
    assert!(matches!(read.store.chosen, Backend::Redis(_)) && !read.store.by_default);
    assert_eq!(read.log.level, LevelFilter::DEBUG);
    assert_eq!(warnings(&sample), [""; 0]);
    let in_memory = [&sample[..], &[("BACKEND_TYPE", "memory")]].concat();
    assert_eq!(settings(&in_memory).store.chosen, Backend::Memory);
    assert_eq!(warnings(&in_memory), [""; 0]);
}

#[test]
fn anything_said_of_redis_asks_for_it() {
    for var in vars::ALL.iter().filter(|var| var.name.starts_with("REDIS_")) {
        let value = match var.default {
            "" => "redis:6379",
            default => default,
        };
        let alone = read(&[(var.name, value)]);
        let told =
            alone.map_err(|problems| problems.iter().map(|problem| problem.variable).collect::<Vec<_>>());
        match told {
            Ok((settings, _)) => assert!(matches!(settings.store.chosen, Backend::Redis(_)), "{}", var.name),
            Err(told) => assert!(told.contains(&"REDIS_URL"), "{}: {told:?}", var.name),
        }
        assert_eq!(settings(&[(var.name, value), ("BACKEND_TYPE", "memory")]).store.chosen, Backend::Memory);
    }
    assert!(settings(&[("REDIS_PORT", "tcp://10.0.0.7:6379")]).store.by_default, "Kubernetes sets such");
}

#[test]
fn what_becomes_of_requests_without_counters_is_read_in_any_case() {
    for (text, expected) in [
        ("error", OnFailure::Error),
        ("Allow", OnFailure::Allow),
        ("DENY", OnFailure::Deny),
        ("local", OnFailure::Local),
    ] {
        assert_eq!(settings(&[("STORE_FAILURE_POLICY", text)]).store.on_failure, expected);
    }
    let told = problems(&[("STORE_FAILURE_POLICY", "open")]);
    let expected = "STORE_FAILURE_POLICY=\"open\": accepted is error, allow, deny or local, in any case";
    assert_eq!(told, [expected]);
}

#[test]
fn all_mistakes_are_told_at_once() {
    let told = problems(&[
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
    assert_eq!(told.len(), 10, "{told:#?}");
    let age = "GRPC_MAX_CONNECTION_AGE=\"24\": accepted is a duration such as 10s, 150us, 1h30m or 1.5h, \
        in ns, us, ms, s, m and h; the unit is missing: 24s is in seconds";
    assert!(told.contains(&age.to_owned()), "{told:#?}");
    let port = "PORT=\"http\": accepted is a whole number from 0 to 65535";
    assert!(told.contains(&port.to_owned()), "{told:#?}");
}

#[test]
fn what_would_weaken_a_deployment_is_refused() {
    for (name, value, told) in [
        ("BACKEND_TYPE", "memcached", "write memcache"),
        ("BACKEND_TYPE", "Memory", "accepted is redis, memcache or memory; write it in small letters"),
        ("CONFIG_TYPE", "file", "capitals"),
        ("GRPC_SERVER_USE_TLS", "yes", "write true"),
    ] {
        let problems = problems(&[(name, value)]);
        assert_eq!(problems.len(), 1, "{name}={value}: {problems:?}");
        assert!(problems[0].starts_with(name) && problems[0].contains(told), "{}", problems[0]);
    }
}

#[test]
fn what_does_nothing_is_warned_of() {
    for (name, value) in [("EXTRA_TAGS", "a:b"), ("LOG_FORMAT", "logfmt")] {
        let warnings = warnings(&[("USE_STATSD", "false"), (name, value)]);
        assert!(warnings.len() == 1 && warnings[0].starts_with(name), "{warnings:?}");
    }
    for ratio in ["1.01", "-0.1"] {
        assert_eq!(warnings(&[("NEAR_LIMIT_RATIO", ratio)]).len(), 1, "{ratio}");
    }
}

#[test]
fn a_unix_socket_takes_the_place_of_the_port() {
    let read = settings(&[("GRPC_UDS", "/run/rl.sock"), ("GRPC_PORT", "8080")]);
    assert_eq!(read.server.listen, GrpcListen::Unix("/run/rl.sock".into()));
}

#[test]
fn two_of_our_listeners_on_one_port_are_refused() {
    for (set, told) in [
        (
            &[("PORT", "8081")][..],
            "GRPC_PORT=\"0.0.0.0:8081\": accepted is a port of its own; PORT has 0.0.0.0:8081 already",
        ),
        (&[("DEBUG_PORT", "8080"), ("DEBUG_HOST", "127.0.0.1")], "DEBUG_PORT"),
        (&[("PROMETHEUS_ADDR", "127.0.0.1:6070")], "PROMETHEUS_ADDR"),
    ] {
        let problems = problems(set);
        assert!(problems.len() == 1 && problems[0].starts_with(told), "{problems:?}");
    }
    let free = [("PORT", "0"), ("GRPC_PORT", "0"), ("DEBUG_PORT", "0"), ("PROMETHEUS_ADDR", ":0")];
    assert!(read(&free).is_ok());
    assert!(read(&[("PROMETHEUS_ADDR", ":8080"), ("USE_PROMETHEUS", "false")]).is_ok());
    assert!(read(&[("PROMETHEUS_ADDR", ":8080"), ("DISABLE_STATS", "true")]).is_ok());
}

#[test]
fn rules_of_the_working_directory_are_found_where_nothing_else_is() {
    let (usual, here) = ("/srv/runtime_data/current", "./config");
    let root = |set: &[(&str, &str)], paths: &[&str]| {
        let (settings, warnings) = read_on(set, paths).unwrap();
        (settings.rules.root.to_str().unwrap().to_owned(), warnings.len())
    };
    assert_eq!(root(&[], &[here]), (".".into(), 1));
    assert_eq!(root(&[], &[usual, here]), (usual.into(), 0));
    assert_eq!(root(&[], &[]), (usual.into(), 0));
    assert_eq!(root(&[("RUNTIME_ROOT", "/data")], &[here]), ("/data".into(), 0));
    assert_eq!(root(&[("RUNTIME_SUBDIRECTORY", "a")], &["./a/config"]), (".".into(), 1));
    assert_eq!(root(&[("RUNTIME_SUBDIRECTORY", "a")], &[here]), (usual.into(), 0));
}

#[test]
fn workers_are_as_many_as_cores_unless_set() {
    assert_eq!(settings(&[("GRPC_WORKERS", "0")]).server.workers, 3);
    assert_eq!(settings(&[("GRPC_WORKERS", "7")]).server.workers, 7);
    let on_none = Settings::read(&|_| None, &|_| false, 0).unwrap().0;
    assert_eq!(on_none.server.workers, 1);
}

#[test]
fn headers_are_named_when_they_are_wanted() {
    let read = settings(&[("LIMIT_RESPONSE_HEADERS_ENABLED", "1"), ("LIMIT_LIMIT_HEADER", "X-Limit")]);
    let headers = read.answers.headers.unwrap();
    assert_eq!(
        [&*headers.limit, &headers.remaining, &headers.reset],
        ["X-Limit", "RateLimit-Remaining", "RateLimit-Reset"]
    );
}

#[test]
fn any_value_in_any_variable_is_read_or_refused() {
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
            // What TLS asks for beside itself.
            let files = [("GRPC_SERVER_TLS_CERT", "c"), ("GRPC_SERVER_TLS_KEY", "k")];
            let around = if var.name.starts_with("REDIS_") { &around[..] } else { &files };
            if let Err(problems) = read(&[&[(var.name, value)], around].concat()) {
                assert_eq!(problems[0].variable, var.name, "{value:?}");
            }
        }
    }
}

#[test]
fn the_working_directory_is_of_no_interest_when_a_control_plane_tells_the_rules() {
    let here = ["./config"];
    assert!(!read_on(&[], &here).unwrap().1.is_empty());
    assert_eq!(read_on(&[("CONFIG_TYPE", "GRPC_XDS_SOTW")], &here).unwrap().1, []);
}

#[test]
fn statsd_is_the_default_where_nothing_else_was_asked_for() {
    let statsd = |set: &[(&str, &str)]| settings(set).stats.sinks.statsd;
    let usual = SinkAddress::Tcp(HostPort { host: "localhost".into(), port: 8125 });
    assert_eq!(statsd(&[]), Some(Statsd { address: usual.clone(), is_asked_for: false }));
    assert_eq!(statsd(&[("USE_STATSD", "true")]), Some(Statsd { address: usual, is_asked_for: true }));
    for set in
        [("USE_STATSD", "false"), ("USE_PROMETHEUS", "true"), ("USE_DOG_STATSD", "1"), ("DISABLE_STATS", "t")]
    {
        assert_eq!(statsd(&[set]), None, "{set:?}");
    }
    let both =
        settings(&[("USE_STATSD", "true"), ("USE_DOG_STATSD", "true"), ("USE_PROMETHEUS", "true")]).stats;
    assert!(both.sinks.statsd.is_some() && both.sinks.dog.is_some() && both.prometheus.is_some());
}

#[test]
fn sinks_are_found_where_they_are_said_to_be() {
    let host = |port| HostPort { host: "agent".into(), port };
    let at = [("STATSD_HOST", "agent"), ("STATSD_PORT", "9")];
    let statsd = |protocol| {
        let set = [&at[..], &[("STATSD_PROTOCOL", protocol)]].concat();
        settings(&set).stats.sinks.statsd.unwrap().address
    };
    assert_eq!(statsd("tcp"), SinkAddress::Tcp(host(9)));
    assert_eq!(statsd("udp"), SinkAddress::Udp(host(9)));
    assert_eq!(statsd("/run/statsd"), SinkAddress::Unix("/run/statsd".into()));
    let dog = |address| {
        let set = [&at[..], &[("USE_DOG_STATSD", "true"), ("DOG_STATSD_ADDR", address)]].concat();
        settings(&set).stats.sinks.dog.unwrap().address
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
fn a_mogrifier_is_refused_with_the_variable_at_fault() {
    let dog = [("USE_DOG_STATSD", "true"), ("USE_DOG_STATSD_MOGRIFIERS", "HITS")];
    let hits = |part: &'static str, value| [&dog[..], &[(part, value)]].concat();
    for (set, told) in [
        (dog.to_vec(), "DOG_STATSD_MOGRIFIER_HITS_PATTERN is not set"),
        (hits("DOG_STATSD_MOGRIFIER_HITS_PATTERN", "("), "is no regular expression: unclosed group"),
        (hits("DOG_STATSD_MOGRIFIER_HITS_PATTERN", "a"), "DOG_STATSD_MOGRIFIER_HITS_NAME is not set"),
    ] {
        let problems = problems(&set);
        assert!(problems.len() == 1 && problems[0].contains(told), "{problems:?}");
    }
}
