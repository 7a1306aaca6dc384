//! A panic costs one request, one connection or one reload, and never the process.
//!
//! The binary under test is a build with debug assertions, which panics at named points on
//! request; a release build has no such points.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpStream, UdpSocket},
    path::PathBuf,
    time::Duration,
};

use proto::envoy::service::ratelimit::v3::rate_limit_response::Code as Overall;
use serde_json::json;
use tonic::Code;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use support::{
    client::{Client, request},
    control_plane::ControlPlane,
    eventually,
    grpc_tls::{Authority, Files},
    holds,
    http::{get, post},
    ports::free_port,
    receiver::Receiver,
    redis::Redis,
    server::{Server, Setup},
};

/// A limit per hour.
fn rules(limit: u32) -> String {
    format!("domain: d\ndescriptors: [{{key: k, rate_limit: {{unit: hour, requests_per_unit: {limit}}}}}]\n")
}

/// A server that panics at chosen points.
struct Faulty(Server);

fn setup() -> Setup {
    Setup::new().rules("d.yaml", &rules(1000)).env("TOLLGATE_TEST_PANICS", "panics")
}

impl Faulty {
    fn start(setup: Setup) -> Self {
        let server = Self(setup.start());
        fs::create_dir_all(server.0.dir().join("panics")).unwrap();
        server
    }

    fn file(&self, point: &str) -> PathBuf {
        self.0.dir().join("panics").join(point)
    }

    /// Makes the next thread at this point panic.
    fn inject(&self, point: &str) {
        fs::write(self.file(point), "").unwrap();
    }

    /// Waits until a thread has panicked at this point.
    fn wait(&self, point: &str) {
        eventually("a thread panics", || {
            holds(!self.file(point).exists(), || format!("{point}\n{}", self.0.process.log()))
        });
    }

    /// Waits for these numbers of panics by boundary, and none elsewhere.
    fn assert_counted(&self, expected: &[(&str, f64)]) {
        eventually("panics are counted where they were stopped", || {
            let metrics = self.0.metrics();
            let counted: Vec<_> = metrics
                .iter()
                .filter_map(|(name, n)| {
                    let place = name.strip_prefix("tollgate_panics_total{where=\"")?.strip_suffix("\"}")?;
                    (*n > 0.0).then_some((place, *n))
                })
                .collect();
            holds(counted == expected, || format!("{counted:?}\n{}", self.0.process.log()))
        });
    }
}

/// The remaining hits of the limit.
fn ask(client: &Client) -> Result<u32, tonic::Status> {
    client.ask(request("d", &[&[("k", "v")]])).map(|answer| answer.statuses[0].limit_remaining)
}

fn check(client: &Client) -> Result<(), tonic::Status> {
    let check =
        |channel| async move { HealthClient::new(channel).check(HealthCheckRequest::default()).await };
    client.call(check).map(drop)
}

#[test]
fn a_panic_costs_one_grpc_call() {
    let server = Faulty::start(setup());
    let (client, other) = (server.0.client(), server.0.client());
    for round in 0..3 {
        for point in ["grpc_request", "grpc_request_head"] {
            server.inject(point);
            let status = ask(&client).unwrap_err();
            assert_eq!(status.code(), Code::Internal, "{status}");
            assert!(status.message().contains("internal error"), "{status}");
            assert!(!status.message().contains("a test"), "callers do not see the panic: {status}");
        }
        server.inject("grpc_request_other");
        assert_eq!(check(&client).unwrap_err().code(), Code::Internal);
        // On the same connection, and on another one.
        check(&client).unwrap();
        assert_eq!(ask(&client).unwrap(), 999 - 2 * round);
        assert_eq!(ask(&other).unwrap(), 998 - 2 * round);
    }
    server.assert_counted(&[("grpc_request", 9.0)]);
    let metrics = server.0.metrics();
    let answered = metrics["ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"}"];
    assert!((answered - 9.0).abs() < 0.5, "a call that panicked within was answered: {answered}");
    server.0.wait_for_log(&[
        "panicked: a test has this thread panic at grpc_request",
        "where=grpc_request",
        "crates/ports/server/src/grpc/calls.rs",
        "backtrace=",
    ]);
}

#[test]
fn a_panic_costs_one_http_request() {
    let server = Faulty::start(setup());
    let body = json!({"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "v"}]}]}).to_string();
    let ports = server.0.ports;
    for (point, port, path) in [
        ("http_request", ports.http, "/healthcheck"),
        ("http_request", ports.debug, "/"),
        ("http_request", ports.metrics, "/metrics"),
        ("admin_page", ports.metrics, "/metrics"),
        ("admin_page", ports.debug, "/rlconfig"),
        ("admin_page", ports.debug, "/stats"),
    ] {
        server.inject(point);
        assert_eq!(get(port, path).status, 500, "{path}");
        assert_eq!(get(port, path).status, 200, "{path}");
    }
    server.inject("json");
    assert_eq!(post(ports.http, "/json", &body).status, 500);
    assert_eq!(post(ports.http, "/json", &body).status, 200);
    server.assert_counted(&[("http_request", 7.0)]);
}

#[test]
fn a_panic_costs_one_connection() {
    let server = Faulty::start(setup());
    let kept = server.0.client();
    ask(&kept).unwrap();
    server.inject("grpc_connection");
    eventually("a connection is lost", || {
        let _ = Client::connect(&format!("http://127.0.0.1:{}", server.0.ports.grpc)).map(|new| ask(&new));
        holds(!server.file("grpc_connection").exists(), || server.0.process.log())
    });
    // A connection that was opened before the panic was served and counted.
    let remaining = ask(&kept).expect("other connections stay");
    server.inject("grpc_response_body");
    assert_eq!(ask(&kept).unwrap_err().code(), Code::Internal);
    assert_eq!(ask(&kept).unwrap(), remaining - 2, "other streams of the connection stay");

    let mut idle = TcpStream::connect(("127.0.0.1", server.0.ports.http)).unwrap();
    let mut answer = [0; 15];
    let mut ask = || {
        idle.write_all(b"GET /healthcheck HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        idle.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
    };
    ask();
    server.inject("http_connection");
    let mut lost = TcpStream::connect(("127.0.0.1", server.0.ports.http)).unwrap();
    server.wait("http_connection");
    assert_eq!(lost.read(&mut [0; 1]).unwrap_or(0), 0, "closed without a response");
    assert_eq!(get(server.0.ports.http, "/healthcheck").status, 200);
    server.assert_counted(&[("grpc_connection", 1.0), ("grpc_request", 1.0), ("http_connection", 1.0)]);
    eventually("lost connections are not counted as open", || {
        let open = server.0.metrics()["tollgate_connections_open"];
        holds(open <= 1.0, || format!("{open}"))
    });
}

#[test]
fn ports_accept_and_serve_connections_after_a_panic() {
    let server = Faulty::start(setup());
    let kept = server.0.client();
    // Only a response shows that the server has accepted a connection: `connect` succeeds before.
    ask(&kept).unwrap();
    for point in ["grpc_accept", "worker"] {
        server.inject(point);
        eventually("a connection is lost", || {
            let _ = TcpStream::connect(("127.0.0.1", server.0.ports.grpc));
            holds(!server.file(point).exists(), || server.0.process.log())
        });
        ask(&kept).unwrap();
        // With as many connections as workers, each worker has one.
        let each: Vec<_> = (0..8).map(|_| server.0.client()).collect();
        for client in &each {
            ask(client).unwrap();
        }
    }
    server.inject("http_accept");
    let _ = TcpStream::connect(("127.0.0.1", server.0.ports.http));
    server.wait("http_accept");
    assert_eq!(get(server.0.ports.http, "/healthcheck").status, 200);
    server.assert_counted(&[("listener", 3.0)]);
}

#[test]
fn a_panic_costs_one_reload_and_the_previous_rules_stay() {
    let server = Faulty::start(setup());
    let client = server.0.client();
    let mut limit = 1000;
    for (before, point) in [(0.0, "yaml_scan"), (1.0, "rules_compile"), (2.0, "rules_publish")] {
        server.inject(point);
        server.0.write("d.yaml", &rules(limit + 1));
        server.wait(point);
        eventually("the reload is refused", || {
            let errors = server.0.metrics()["ratelimit_service_config_load_error"];
            holds(errors > before, || server.0.process.log())
        });
        let shown = server.0.rules_shown();
        assert!(shown.iter().any(|line| line.contains(&format!("requests_per_unit={limit},"))), "{shown:?}");
        let is_reason = |line: &String| line.contains("internal error") || line.contains("panicked");
        assert!(shown.iter().any(is_reason), "a reason: {shown:?}");
        ask(&client).unwrap();
        limit += 10;
        server.0.write("d.yaml", &rules(limit));
        server.0.wait_for_rule(&format!("requests_per_unit={limit},"));
    }
    server.inject("rules_watcher");
    server.0.write("d.yaml", &rules(limit + 1));
    server.wait("rules_watcher");
    server.0.write("d.yaml", &rules(limit + 2));
    server.0.wait_for_rule(&format!("requests_per_unit={},", limit + 2));
    server.assert_counted(&[("rules_reload", 3.0), ("rules_watcher", 1.0)]);
    server.0.wait_for_log(&["d.yaml: error: invalid YAML after this value: the YAML reader panicked"]);
}

#[test]
fn a_panic_in_the_first_load_of_rules_does_not_prevent_the_start() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("yaml_scan"), "").unwrap();
    let setup = setup().env("TOLLGATE_TEST_PANICS", dir.path().to_str().unwrap());
    let server = setup.start();
    assert_eq!(ask(&server.client()).unwrap_err().message(), "no rate limit configuration loaded");
    server.write("d.yaml", &rules(7));
    server.wait_for_rule("requests_per_unit=7,");
    assert!(ask(&server.client()).is_ok());
}

#[test]
fn a_panic_costs_one_xds_response() {
    let resource = |limit: u32| {
        let rate_limit = json!({"unit": "HOUR", "requests_per_unit": limit});
        json!({"config": {"name": "a", "domain": "x", "descriptors": [{"key": "k", "rate_limit": rate_limit}]}})
    };
    let control_plane = ControlPlane::start();
    control_plane.publish("1", &[resource(1)]);
    let server = Faulty::start(
        setup()
            .env("CONFIG_TYPE", "GRPC_XDS_SOTW")
            .env("CONFIG_GRPC_XDS_SERVER_URL", &control_plane.address)
            .env("CONFIG_GRPC_XDS_NODE_ID", "tests")
            .env("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "50ms"),
    );
    server.0.wait_for_rule("requests_per_unit=1,");
    for (before, point) in [(0, "xds_response"), (1, "rules_compile")] {
        server.inject(point);
        control_plane.publish(&format!("bad{before}"), &[resource(100 + before)]);
        server.wait(point);
        eventually("the response is refused", || {
            let refused = server.0.metrics()["tollgate_xds_nacks_total"];
            holds(refused > f64::from(before), || server.0.process.log())
        });
        server.0.wait_for_rule("requests_per_unit=1,");
    }
    control_plane.publish("good", &[resource(2)]);
    server.0.wait_for_rule("requests_per_unit=2,");

    server.inject("xds_client");
    control_plane.hang_up();
    server.wait("xds_client");
    control_plane.publish("again", &[resource(3)]);
    server.0.wait_for_rule("requests_per_unit=3,");
    server.assert_counted(&[("rules_reload", 1.0), ("xds_client", 1.0), ("xds_response", 1.0)]);
}

#[test]
fn a_connection_to_redis_is_reopened_after_a_panic() {
    let redis = Redis::single();
    let server = Faulty::start(setup().redis(&redis.env()).env("STORE_FAILURE_POLICY", "deny"));
    server.0.wait_until_healthy();
    let client = server.0.client();
    assert_eq!(ask(&client).unwrap(), 999);
    let opened = server.0.metrics()["ratelimit_redis_pool_cx_active"];
    for _ in 0..3 {
        server.inject("store_exchange");
        let answer = client.ask(request("d", &[&[("k", "v")]])).unwrap();
        assert_eq!(answer.overall_code(), Overall::OverLimit, "by policy");
        eventually("it counts in Redis", || {
            let before = ask(&client).map_err(|status| status.to_string())?;
            let after = ask(&client).map_err(|status| status.to_string())?;
            holds(before > 0 && after + 1 == before, || format!("{before} {after}"))
        });
    }
    server.assert_counted(&[("store_connection", 3.0)]);
    eventually("closed connections are not counted as open", || {
        let active = server.0.metrics()["ratelimit_redis_pool_cx_active"];
        holds((active - opened).abs() < 0.5, || format!("{opened} before, {active} now"))
    });
}

#[test]
fn server_discovery_restarts_after_a_panic() {
    let nowhere = format!("mymaster,127.0.0.1:{}", free_port());
    let sentinel = [("BACKEND_TYPE", "redis"), ("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", &nowhere)];
    let srv = [
        ("BACKEND_TYPE", "memcache"),
        ("MEMCACHE_SRV", "_m._tcp.tollgate.invalid"),
        ("MEMCACHE_SRV_REFRESH", "1s"),
    ];
    for env in [sentinel, srv] {
        let server =
            Faulty::start(env.into_iter().fold(setup(), |setup, (name, value)| setup.env(name, value)));
        for _ in 0..2 {
            server.inject("store_discovery");
            server.wait("store_discovery");
        }
        server.assert_counted(&[("store_discovery", 2.0)]);
    }
}

#[test]
fn a_panic_costs_one_batch_of_spans() {
    let receiver = Receiver::start(false, None);
    let server = Faulty::start(
        setup()
            .env("TRACING_ENABLED", "true")
            .env("TRACING_EXPORTER_PROTOCOL", "http")
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://127.0.0.1:{}", receiver.port))
            .env("OTEL_BSP_SCHEDULE_DELAY", "20"),
    );
    let client = server.0.client();
    server.inject("span_exporter");
    ask(&client).unwrap();
    server.wait("span_exporter");
    ask(&client).unwrap();
    eventually("the next span arrives, and the lost one is counted", || {
        let metrics = server.0.metrics();
        let dropped = metrics["tollgate_spans_dropped_total{reason=\"panicked\"}"];
        let exported = metrics["tollgate_spans_exported_total"];
        holds((dropped, exported) == (1.0, 1.0), || format!("{dropped} {exported}"))
    });
    server.assert_counted(&[("span_exporter", 1.0)]);
}

#[test]
fn the_next_flush_to_statsd_includes_one_that_panicked() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let server = Faulty::start(
        setup()
            .env("USE_STATSD", "true")
            .env("STATSD_HOST", "127.0.0.1")
            .env("STATSD_PORT", &socket.local_addr().unwrap().port().to_string())
            .env("STATSD_PROTOCOL", "udp")
            .env("STATS_FLUSH_INTERVAL", "50ms"),
    );
    let client = server.0.client();
    server.inject("statsd");
    for _ in 0..3 {
        ask(&client).unwrap();
    }
    server.wait("statsd");
    let mut hits = 0;
    let mut packet = vec![0; 1 << 16];
    eventually("all three hits arrive", || {
        let length = socket.recv(&mut packet).map_err(|error| error.to_string())?;
        for line in String::from_utf8_lossy(&packet[..length]).lines() {
            if let Some(rest) = line.strip_prefix("ratelimit.service.rate_limit.d.k.total_hits:") {
                hits += rest.split('|').next().unwrap().parse::<u32>().unwrap();
            }
        }
        holds(hits == 3, || format!("{hits}"))
    });
    server.assert_counted(&[("statsd", 1.0)]);
}

#[test]
fn the_next_export_of_metrics_includes_one_that_panicked() {
    let receiver = Receiver::start(false, None);
    let server = Faulty::start(
        setup()
            .env("OTEL_METRICS_EXPORTER", "otlp")
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://127.0.0.1:{}", receiver.port))
            .env("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
            .env("OTEL_METRIC_EXPORT_INTERVAL", "50"),
    );
    server.inject("otlp_metrics");
    ask(&server.0.client()).unwrap();
    server.wait("otlp_metrics");
    let hits = "tollgate_rule_hits_total{domain=\"d\",rule=\"k\",outcome=\"allowed\"}";
    eventually("the hit arrives", || {
        let metrics = receiver.exports().into_iter().flat_map(|export| export.metrics);
        let sent: f64 = metrics.filter_map(|metric| metric.samples().remove(hits)).sum();
        holds(sent > 0.0, || "none yet")
    });
    server.assert_counted(&[("otlp_metrics", 1.0)]);
}

#[test]
fn periodic_work_restarts_after_a_panic() {
    let authority = Authority::new("ca");
    let files = Files::new(&authority.server());
    let tls = Faulty::start(files.setup().rules("d.yaml", &rules(1)).env("TOLLGATE_TEST_PANICS", "panics"));
    for point in ["maintenance", "tls_reload"].repeat(2) {
        tls.inject(point);
        tls.wait(point);
    }
    tls.assert_counted(&[("maintenance", 2.0), ("tls_reload", 2.0)]);
    assert_eq!(get(tls.0.ports.http, "/healthcheck").status, 200);
}

#[test]
fn every_panic_is_counted_and_few_are_logged() {
    let server = Faulty::start(setup());
    let client = server.0.client();
    for _ in 0..50 {
        server.inject("grpc_request");
        assert_eq!(ask(&client).unwrap_err().code(), Code::Internal);
    }
    server.assert_counted(&[("grpc_request", 50.0)]);
    drop(client);
    let log = server.0.final_log();
    let lines = log.lines().filter(|line| line.contains("panicked:")).count();
    assert!((1..50).contains(&lines), "{lines} lines: {log}");
}
