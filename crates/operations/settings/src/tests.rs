//! The settings of whole environments.

mod admin;
mod answers;
mod sinks;
mod store;
mod wrong;

use std::{cell::RefCell, collections::BTreeSet, time::Duration};

use tracing::Level;

use super::*;

type Outcome = Result<(Settings, Vec<Warning>), Vec<Problem>>;

/// Reads an environment of these variables alone, on a machine with 3 cores and without rules.
fn read(set: &[(&str, &str)]) -> Outcome {
    read_on(set, &[])
}

/// The same environment where these paths exist.
fn read_on(set: &[(&str, &str)], paths: &[&str]) -> Outcome {
    let env = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
    Settings::read(&env, &|path| paths.iter().any(|there| Path::new(there) == path), 3, Available::default())
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
    let read = RefCell::new(BTreeSet::new());
    // Those of a collector are read only if something is sent, and those of AWS with its login to Redis.
    let of_aws = [
        ("REDIS_URL", "rediss://cache"),
        ("REDIS_AWS_IAM_AUTH", "true"),
        ("REDIS_AWS_IAM_CACHE_NAME", "cache"),
        ("REDIS_AWS_IAM_USER_ID", "app"),
        ("AWS_REGION", "eu-west-1"),
    ];
    for set in [&[("TRACING_ENABLED", "true"), ("OTEL_METRICS_EXPORTER", "otlp")][..], &of_aws] {
        let env = |name: &str| {
            read.borrow_mut().insert(name.to_owned());
            set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned())
        };
        assert!(Settings::read(&env, &|_| false, 1, Available::default()).is_ok());
    }
    let known: BTreeSet<_> = vars::ALL.iter().map(|var| var.name.to_owned()).collect();
    assert_eq!(read.into_inner(), known);
}

#[test]
fn no_problem_warning_or_listing_repeats_a_login() {
    for var in vars::ALL {
        for value in ["user:hunter2@host:1", "tcp://user:hunter2@host:1", "host:1,user:hunter2@other:2"] {
            for backend in ["memory", "memcache", "redis"] {
                let on = [("TRACING_ENABLED", "true"), ("OTEL_METRICS_EXPORTER", "otlp")];
                let set = [on[0], on[1], ("BACKEND_TYPE", backend), (var.name, value)];
                let said = match read(&set) {
                    Ok((_, warnings)) => warnings.iter().map(ToString::to_string).collect::<Vec<_>>(),
                    Err(problems) => problems.iter().map(ToString::to_string).collect(),
                };
                assert!(!said.iter().any(|said| said.contains("hunter2")), "{said:?}");
            }
            assert!(!var.shown(value.to_owned()).unwrap_or_default().contains("hunter2"), "{}", var.name);
        }
    }
}

#[test]
fn an_empty_environment_has_no_warnings() {
    let (settings, warnings) = read(&[]).unwrap();
    assert_eq!(warnings, []);
    assert_eq!(settings.server.listen(), ServerAddress::Tcp(HostPort { host: "0.0.0.0".into(), port: 8081 }));
    assert_eq!(settings.server.grpc.workers, 3);
    assert_eq!(settings.server.grpc.max_connection_age, Duration::from_secs(86_400));
    assert_eq!(settings.http.listen().to_string(), "0.0.0.0:8080");
    assert_eq!(settings.http.debug().to_string(), "0.0.0.0:6070");
    assert_eq!(settings.rules.root, Path::new("/srv/runtime_data/current"));
    assert_eq!(settings.rules.app_directory, "config");
    assert!(settings.rules.watch_root && !settings.rules.ignore_dot_files);
    assert!(settings.is_backend_default);
    assert_eq!(settings.store.expiration_jitter_max, Duration::from_secs(300));
    assert!((settings.store.near_limit_ratio - 0.8).abs() < f32::EPSILON);
    assert!(!settings.answers.headers);
    assert!(settings.metrics.use_prometheus);
    assert_eq!(settings.metrics.prometheus_address.to_string(), ":9090");
    assert_eq!(settings.metrics.prometheus_path, "/metrics");
    assert_eq!(settings.log, Log { level: Some(Level::INFO), format: LogFormat::Text });
}

#[test]
fn every_variable_accepts_its_default() {
    let table: Vec<_> = vars::ALL.iter().map(|var| (var.name, var.default)).collect();
    let (mut written_out, warnings) = read(&table).unwrap();
    assert_eq!(warnings, []);
    assert!(!written_out.is_backend_default);
    written_out.is_backend_default = true;
    // A variable that is set to its default counts as set.
    written_out.sinks.statsd = settings(&[]).sinks.statsd;
    written_out.admin = settings(&[]).admin;
    assert_eq!(written_out, settings(&[]));
}

#[test]
fn an_empty_value_is_the_default_except_for_texts() {
    let empty: Vec<_> = vars::ALL.iter().map(|var| (var.name, "")).collect();
    let (read, warnings) = read(&empty).unwrap();
    assert_eq!(warnings, []);
    assert_eq!(read.http.listen().to_string(), ":8080");
    assert_eq!((&*read.rules.root, &*read.rules.app_directory), (Path::new("."), ""));
    assert!(read.is_backend_default);
    assert_eq!(read.log, settings(&[]).log);
    assert_eq!(read.sinks, settings(&[]).sinks);
}

#[test]
fn accepts_istios_sample() {
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
    assert_eq!(read.http.listen().to_string(), "[::]:8080");
    assert_eq!((&*read.rules.root, &*read.rules.subdirectory), (Path::new("/data"), "ratelimit"));
    assert!(read.rules.ignore_dot_files && !read.rules.watch_root);
    assert!(matches!(read.backend, Backend::Redis(_)) && !read.is_backend_default);
    assert_eq!(read.log.level, Some(Level::DEBUG));
    assert_eq!(warnings(&sample), [""; 0]);
    let in_memory = [&sample[..], &[("BACKEND_TYPE", "memory")]].concat();
    assert_eq!(settings(&in_memory).backend, Backend::Memory);
    assert_eq!(warnings(&in_memory), [""; 0]);
}

#[test]
fn a_unix_socket_replaces_the_port() {
    let read = settings(&[("GRPC_UDS", "/run/rl.sock"), ("GRPC_PORT", "8080")]);
    assert_eq!(read.server.listen(), ServerAddress::Unix("/run/rl.sock".into()));
}

#[test]
fn uses_rules_in_the_working_directory_if_the_default_root_is_missing() {
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
fn workers_default_to_the_number_of_cores() {
    assert_eq!(settings(&[("GRPC_WORKERS", "0")]).server.grpc.workers, 3);
    assert_eq!(settings(&[("GRPC_WORKERS", "7")]).server.grpc.workers, 7);
    let on_none = Settings::read(&|_| None, &|_| false, 0, Available::default()).unwrap().0;
    assert_eq!(on_none.server.grpc.workers, 1);
}

#[test]
fn reads_the_names_of_headers() {
    let read = settings(&[("LIMIT_RESPONSE_HEADERS_ENABLED", "1"), ("LIMIT_LIMIT_HEADER", "X-Limit")]);
    assert!(read.answers.headers);
    let names = read.answers.header_names;
    assert_eq!(
        [&*names.limit, &names.remaining, &names.reset],
        ["X-Limit", "RateLimit-Remaining", "RateLimit-Reset"]
    );
}

#[test]
fn ignores_the_working_directory_when_rules_come_from_a_control_plane() {
    let here = ["./config"];
    assert!(!read_on(&[], &here).unwrap().1.is_empty());
    assert_eq!(read_on(&[("CONFIG_TYPE", "GRPC_XDS_SOTW")], &here).unwrap().1, []);
}
