//! The start of the service, and starts that fail.

use std::{
    net::{TcpListener, TcpStream},
    process::Command,
    time::{Duration, Instant},
};

use support::{
    PATIENCE, at_best_within,
    client::{Client, request},
    clock::Clock,
    eventually,
    grpc_tls::Files,
    holds, http,
    ports::free_port,
    redis::{self, Redis},
    server::{BINARY, Server, Setup},
};

const RULES: &str = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 2}}]\n";

#[test]
fn the_first_answer_comes_at_once() {
    let first_answer = || {
        let begun = Instant::now();
        let server = Setup::new().rules("d.yaml", RULES).launch();
        let address = format!("http://127.0.0.1:{}", server.ports.grpc);
        eventually("the service answers", || {
            let answer = Client::connect(&address)?.ask(request("d", &[&[("k", "v")]]));
            answer.map(drop).map_err(|status| status.to_string())
        });
        begun.elapsed()
    };
    // The goal is 50 ms for a release build on an idle machine.
    at_best_within("from start to first answer", Duration::from_millis(500), 30, first_answer);
}

#[test]
fn an_idle_service_uses_little_memory() {
    let server = Server::start(RULES);
    // Without the code: of a debug build it is four times that of a release build, and the page cache decides how
    // much of it is resident.
    let own = server.process.anonymous_kib();
    println!("own memory when idle: {own} KiB");
    assert!(own < 9 * 1024, "{own} KiB");
}

#[test]
fn loads_the_rules_in_the_working_directory_by_default() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("config")).unwrap();
    std::fs::write(dir.path().join("config").join("d.yaml"), RULES).unwrap();
    let server = Setup::bare(dir.path()).start();

    let answer = server.ask(request("d", &[&[("k", "v")]])).unwrap();
    assert_eq!(answer.statuses[0].limit_remaining, 1);
    // A warning that each replica counts alone.
    server.wait_for_log(&["memory"]);
}

#[test]
fn a_start_logs_version_store_rules_and_listeners_at_info_and_no_warning() {
    let server = Setup::new().unset("LOG_LEVEL").rules("d.yaml", RULES).start();
    let ports = server.ports;
    let listening = format!(
        "grpc=127.0.0.1:{} tls=false http=127.0.0.1:{} debug=127.0.0.1:{} metrics=127.0.0.1:{}/metrics",
        ports.grpc, ports.http, ports.debug, ports.metrics
    );
    let version = format!("version={}", env!("CARGO_PKG_VERSION"));
    let log = server.final_log();
    for (event, fields) in [
        ("starting tollgate", &[&*version, "commit=", "store=memory", "workers="][..]),
        ("rules loaded", &["source=", "files=1", "domains=1", "rules=1", "hash="]),
        ("listening", &[&listening]),
    ] {
        let line =
            log.lines().find(|line| line.contains(event)).unwrap_or_else(|| panic!("no {event:?} in {log}"));
        assert!(line.contains(" info "), "{line}");
        assert!(fields.iter().all(|field| line.contains(field)), "{fields:?} in {line}");
    }
    assert!(!log.contains(" warning ") && !log.contains(" error "), "{log}");
}

#[test]
fn a_start_without_rules_is_a_warning() {
    let server = Setup::new().start();
    server.wait_for_log(&[" warning ", "no rules: every request is allowed", "config"]);
}

#[test]
fn a_start_names_the_servers_of_its_store_without_credentials() {
    let server = Setup::new()
        .env("LOG_LEVEL", "info")
        .env("BACKEND_TYPE", "redis")
        .env("REDIS_URL", "redis://user:hunter2@127.0.0.1:1/0")
        .start();
    let log = server.final_log();
    assert!(log.contains("store=redis address=127.0.0.1:1") && !log.contains("hunter2"), "{log}");
}

#[test]
fn the_default_store_in_memory_is_a_warning() {
    let log = |setup: Setup| setup.env("LOG_LEVEL", "info").start().final_log();
    let warning = "each replica counts alone";
    assert!(log(Setup::new().unset("BACKEND_TYPE")).contains(warning));
    assert!(!log(Setup::new()).contains(warning));
}

#[test]
fn bad_requests_are_logged_with_their_reason_at_most_once_a_second() {
    let clock = Clock::ordinary().steerable();
    let _clock = clock.enter();
    let server = Setup::new().rules("d.yaml", RULES).start();
    let client = server.client();
    for _ in 0..50 {
        assert!(client.ask(request("", &[&[("k", "v")]])).is_err());
    }
    clock.step(60.0);
    assert!(client.ask(request(&"x\n".repeat(5_000), &[])).is_err());
    client.ask(request("d", &[&[("k", "v")]])).unwrap();
    drop(client);
    let log = server.final_log();
    let lines = |text: &str| log.lines().filter(|line| line.contains(text)).count();
    // The clock may have passed into a second or two more meanwhile.
    let begun = lines("domain must not be empty");
    assert!((1..=20).contains(&begun), "{begun} lines for 50 requests:\n{log}");
    assert_eq!(lines("descriptor list must not be empty"), 1, "{log}");
    assert_eq!(lines("request rejected"), begun + 1, "a valid request is not logged: {log}");
    assert!(log.contains("suppressed="), "{log}");
    assert!(log.lines().all(|line| line.len() < 2_000), "a caller's domain is cut: {log}");
}

#[test]
fn requests_that_cannot_be_decoded_are_logged_with_their_reason_at_most_once_a_second() {
    let server = Setup::new().rules("d.yaml", RULES).start();
    let begun = Instant::now();
    for _ in 0..50 {
        assert_eq!(http::post(server.ports.http, "/json", r#"{"domain": 7}"#).status, 400);
    }
    let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap();
    // The next line reports how many were suppressed. A request within the same second is suppressed too.
    let client = server.client();
    server.process.wait_until_log("a log line about a message that is too large", |log| {
        assert!(client.ask(request(&"x".repeat(5 << 20), &[&[("k", "v")]])).is_err());
        holds(log.contains("GRPC_MAX_REQUEST_BYTES"), || log)
    });
    drop(client);
    let log = server.final_log();
    let lines = log.lines().filter(|line| line.contains("expected a string")).count();
    assert!((1..=seconds + 2).contains(&lines), "{log}");
    assert!(log.contains("suppressed="), "{log}");
}

#[test]
fn reports_invalid_files_of_every_kind_in_one_start() {
    let files = Files::empty();
    let put = |name: &str, text: &str| files.put(name, text).display().to_string();
    let bad = [
        (
            "PROMETHEUS_MAPPER_YAML",
            put("mapper.yaml", "mappings:\n- match: a..b\n  name: x\n"),
            "invalid glob `a..b`",
        ),
        ("GRPC_CLIENT_TLS_CACERT", put("ca.crt", ""), "contains no CA certificate"),
        ("MEMCACHE_TLS_CACERT", put("memcached.crt", "no certificate\n"), "memcached.crt"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", put("collector.crt", "no certificate\n"), "expected a PEM file"),
    ];
    put("tls.crt", "no certificate\n");
    let setup = [
        ("BACKEND_TYPE", "memcache"),
        ("MEMCACHE_HOST_PORT", "localhost:11211"),
        ("MEMCACHE_TLS", "true"),
        ("TRACING_ENABLED", "true"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://localhost:4318"),
    ];
    let setup = setup.iter().fold(files.setup(), |setup, (name, value)| setup.env(name, value));
    let log = bad.iter().fold(setup, |setup, (name, path, _)| setup.env(name, path)).refused();
    let certificate =
        [("GRPC_SERVER_TLS_CERT", "contains no certificate"), ("GRPC_SERVER_TLS_KEY", "No such file")];
    let all = bad.iter().map(|(name, _, why)| (*name, *why)).chain(certificate);
    for (name, why) in all {
        let is_logged = log.lines().any(|line| line.contains(name) && line.contains(why));
        assert!(is_logged, "{name} and {why:?} in {log}");
    }
}

#[test]
fn nothing_is_bound_when_a_setting_is_invalid() {
    let mut server = Setup::new().env("SHUTDOWN_DELAY", "soon").launch();
    let begun = Instant::now();
    while server.process.exited().is_none() {
        assert!(TcpStream::connect(("127.0.0.1", server.ports.grpc)).is_err());
        assert!(begun.elapsed() < PATIENCE, "the process exits");
    }
}

#[test]
fn the_error_of_a_port_in_use_names_it_and_its_variable() {
    for variable in ["PORT", "GRPC_PORT", "DEBUG_PORT", "PROMETHEUS_ADDR", "ADMIN_ADDR"] {
        let port = free_port();
        let _taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let host = if variable.ends_with("ADDR") { "127.0.0.1:" } else { "" };
        let log = Setup::new().env(variable, &format!("{host}{port}")).refused();
        assert!(log.contains(&port.to_string()), "{variable}={port} in {log}");
        assert!(log.contains(&format!("; see {variable}")), "{variable} in {log}");
    }
}

#[test]
fn the_error_of_a_host_that_cannot_be_bound_names_its_variable() {
    // A label of 64 characters is asked of no name server; no machine has an address of TEST-NET-1.
    let long = "x".repeat(64);
    for variable in ["HOST", "GRPC_HOST", "DEBUG_HOST", "PROMETHEUS_ADDR"] {
        for host in [&*long, "192.0.2.1"] {
            let port = if variable.ends_with("ADDR") { ":0" } else { "" };
            let log = Setup::new().env(variable, &format!("{host}{port}")).refused();
            for text in
                [&*format!("on {host}:"), "expected an address of this machine", &format!("; see {variable}")]
            {
                assert!(log.contains(text), "{text} of {variable}={host} in {log}");
            }
        }
    }
}

#[test]
fn invalid_rules_do_not_prevent_the_start() {
    let server = Server::start("domain: d\ndescriptors: [{value: v}]\n");
    let status = server.ask(request("d", &[&[("k", "v")]])).unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (tonic::Code::Unknown, "no rate limit configuration loaded")
    );
    server.wait_for_log(&["rules.yaml"]);
    let page = http::get(server.ports.debug, "/rlconfig").text();
    assert!(page.contains("rules.yaml:2:") && page.contains("No rules are in force."), "{page}");
}

#[test]
fn a_pipe_in_place_of_a_file_is_an_error_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe").to_str().unwrap().to_owned();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for (variable, others) in [
        ("OVERRIDES_FILE", &[][..]),
        ("PROMETHEUS_MAPPER_YAML", &[]),
        ("ADMIN_TOKEN_FILE", &[("ADMIN_ADDR", "127.0.0.1:0")]),
        ("GRPC_SERVER_TLS_CERT", &[("GRPC_SERVER_USE_TLS", "true"), ("GRPC_SERVER_TLS_KEY", "/absent")]),
        (
            "REDIS_TLS_CACERT",
            &[("BACKEND_TYPE", "redis"), ("REDIS_URL", "localhost:1"), ("REDIS_TLS", "true")],
        ),
    ] {
        let setup = others.iter().fold(Setup::new(), |setup, (name, value)| setup.env(name, value));
        let log = setup.env(variable, &pipe).refused();
        assert!(log.contains(variable) && log.contains("not a regular file"), "{variable}: {log}");
    }
}

/// Each cause has one line, with what to do.
#[test]
fn a_path_that_cannot_be_written_is_an_error_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let absent = dir.path().join("absent/file").display().to_string();
    for variable in ["OVERRIDES_FILE", "GRPC_UDS", "ADMIN_UDS"] {
        let log = Setup::new().env(variable, &absent).refused();
        let said =
            log.lines().rfind(|line| line.contains(variable)).unwrap_or_else(|| panic!("{variable}: {log}"));
        assert!(said.contains(&absent) && said.contains("create its directory"), "{variable}: {said}");
    }
    let written = [("DECISION_LOG", "refused"), ("REQUEST_LOG", "all")];
    let setup = written.iter().fold(Setup::new().rules("d.yaml", RULES), |setup, (name, value)| {
        setup.env(name, value).env(&format!("{name}_FILE"), &absent)
    });
    let server = setup.start();
    for log in ["decision log", "request log"] {
        server.wait_for_log(&[
            &format!("cannot write the {log}: its lines are dropped"),
            &absent,
            "create its directory",
        ]);
    }
}

#[test]
fn a_directory_of_rules_that_is_missing_is_an_error_with_what_to_do() {
    let server = Setup::new().env("RUNTIME_ROOT", "/absent").start();
    server.wait_for_log(&[
        "/absent/",
        "the directory does not exist",
        "create it",
        "RUNTIME_ROOT/RUNTIME_SUBDIRECTORY",
    ]);
}

#[test]
fn a_redis_with_a_password_is_a_warning_with_what_to_do() {
    let redis = Redis::single();
    redis.ask(&["config", "set", "requirepass", "hunter2"]);
    let setup = || Setup::new().rules("d.yaml", RULES).redis(&redis::tcp(&redis.address()));
    setup().start().wait_for_log(&["it requires a password: set REDIS_AUTH"]);
    setup().env("REDIS_AUTH", "wrong").start().wait_for_log(&["WRONGPASS", "see REDIS_AUTH"]);
}

#[test]
fn too_few_open_files_are_an_error_and_few_leave_room_for_probes() {
    let limited = |files: &str| {
        let run = format!("ulimit -n {files} && exec \"$0\"");
        Setup::new().program(std::path::Path::new("/bin/sh"), &["-c", &run, BINARY]).env("GRPC_WORKERS", "2")
    };
    let log = limited("64").refused();
    assert!(
        log.contains("the limit of open files (RLIMIT_NOFILE) is 64") && log.contains("ulimit -n"),
        "{log}"
    );
    let server = limited("256").start();
    let port = server.ports.grpc;
    let ports = [server.ports.http, server.ports.debug, server.ports.metrics, port, port, port];
    let idle: Vec<_> =
        ports.into_iter().cycle().take(1200).map(|port| TcpStream::connect(("127.0.0.1", port))).collect();
    for _ in 0..20 {
        assert!(server.is_healthy());
    }
    drop(idle);
}

#[test]
fn a_clock_after_2095_is_an_error() {
    let clock = support::clock::Clock::at("2107-01-01T00:00:00Z");
    let _clock = clock.enter();
    let log = Setup::new().refused();
    assert!(log.contains("the clock says 2107-01-01T00:00:0"), "{log}");
}
