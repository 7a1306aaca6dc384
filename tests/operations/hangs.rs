//! The end of a service while peers hang: it comes in time, and the log says in numbers what was not sent.

use std::{
    any::Any,
    io::Write as _,
    net::TcpStream,
    os::unix::net::UnixListener,
    path::Path,
    time::{Duration, Instant},
};

use socket2::{Domain, Socket, Type};
use tokio::runtime::Builder;

use crate::{drain, unread_output};
use support::{
    PATIENCE, at_best_within,
    client::{descriptor, request},
    eventually, holds,
    ports::free_port,
    receiver::{Manner, Receiver},
    redis::Redis,
    server::{Server, Setup},
    time_of,
};

const RULES: &str = "
domain: d
descriptors:
  - key: k
    detailed_metric: true
    rate_limit: {unit: hour, requests_per_unit: 1000000}
  - key: held
    rate_limit: {unit: hour, requests_per_unit: 100, hold: {amount: 4, ttl: 10m}}
";

type Begin = Box<dyn Fn(&Server) -> Box<dyn Any>>;

/// A peer that hangs, or several.
struct Hang {
    /// What makes the service depend on it.
    env: Vec<(&'static str, String)>,
    /// What hangs before the service starts.
    kept: Vec<Box<dyn Any>>,
    /// Fills what the service has to send; returns what hangs from now on.
    begin: Vec<Begin>,
    /// What the log says in numbers.
    numbers: Vec<&'static str>,
}

impl Hang {
    fn new<const N: usize>(
        env: [(&'static str, String); N],
        kept: impl Any,
        begin: impl Fn(&Server) -> Box<dyn Any> + 'static,
        number: &'static str,
    ) -> Self {
        Self {
            env: env.into(),
            kept: vec![Box::new(kept)],
            begin: vec![Box::new(begin)],
            numbers: vec![number],
        }
    }

    fn setup(&self, timeout: &str) -> Setup {
        let setup =
            Setup::new().rules("d.yaml", RULES).env("SHUTDOWN_TIMEOUT", timeout).env("LOG_LEVEL", "info");
        self.env.iter().fold(setup, |setup, (name, value)| setup.env(name, value))
    }

    fn begin(&self, server: &Server) -> Vec<Box<dyn Any>> {
        self.begin.iter().map(|begin| begin(server)).collect()
    }
}

/// Counts 4,000 keys with names of their own.
fn count(server: &Server) {
    let client = server.client();
    let names: Vec<String> = (0..4_000).map(|number| format!("{number:0>100}")).collect();
    for some in names.chunks(100) {
        let descriptors: Vec<[(&str, &str); 1]> = some.iter().map(|name| [("k", &**name)]).collect();
        let descriptors: Vec<&[(&str, &str)]> = descriptors.iter().map(|entry| &entry[..]).collect();
        client.ask(request("d", &descriptors)).unwrap();
    }
}

/// A statsd that accepts a connection and reads nothing.
fn statsd(dir: &Path) -> Hang {
    let path = dir.join("statsd");
    let listener = UnixListener::bind(&path).unwrap();
    let env = [
        ("USE_STATSD", "true".to_owned()),
        ("STATSD_PROTOCOL", path.to_str().unwrap().to_owned()),
        ("STATS_FLUSH_INTERVAL", "1h".to_owned()),
    ];
    let begin = |server: &Server| -> Box<dyn Any> {
        count(server);
        Box::new(())
    };
    Hang::new(env, listener, begin, "metric_values=")
}

/// A collector that never answers.
fn collector(_: &Path) -> Hang {
    let receiver = Receiver::start(false, None);
    receiver.set(Manner::Silent);
    let endpoint = format!("http://127.0.0.1:{}", receiver.port);
    let env = [
        ("TRACING_ENABLED", "true".to_owned()),
        ("TRACING_EXPORTER_PROTOCOL", "http".to_owned()),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
    ];
    let begin = |server: &Server| -> Box<dyn Any> {
        for _ in 0..10 {
            server.ask(request("d", &[&[("k", "v")]])).unwrap();
        }
        Box::new(())
    };
    Hang::new(env, receiver, begin, "spans=")
}

/// A collector of metrics that never answers.
fn metrics(_: &Path) -> Hang {
    let receiver = Receiver::start(true, None);
    receiver.set(Manner::Silent);
    let env = [
        ("OTEL_METRICS_EXPORTER", "otlp".to_owned()),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "grpc".to_owned()),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", format!("http://127.0.0.1:{}", receiver.port)),
    ];
    Hang::new(env, receiver, |_| Box::new(()), "metric_values=")
}

/// A Redis that is stopped after a request has held, and before it settles.
fn redis(_: &Path) -> Hang {
    let redis = Redis::single();
    let mut env: Vec<(&'static str, String)> = vec![
        ("BACKEND_TYPE", "redis".to_owned()),
        ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true".to_owned()),
        ("REDIS_TIMEOUT", "200ms".to_owned()),
        ("STORE_FAILURE_POLICY", "allow".to_owned()),
        ("RESPONSE_DYNAMIC_METADATA", "true".to_owned()),
        ("REPLICA_SYNC", "true".to_owned()),
    ];
    env.extend(redis.env());
    let begin = move |server: &Server| -> Box<dyn Any> {
        server.wait_until_healthy();
        let answer = server.ask(request("d", &[&[("held", "v")]])).unwrap();
        let id = support::client::hold_id(&answer).expect("it holds");
        redis.freeze();
        let mut settle = descriptor(&[("hold_settle", &id)]);
        settle.hits_addend = Some(3);
        let mut asked = request("d", &[]);
        asked.descriptors.push(settle);
        server.ask(asked).unwrap();
        eventually("the settle waits", || {
            let queued = server.count("tollgate_holds_queued");
            holds(queued == 1, || queued)
        });
        Box::new(())
    };
    Hang { env, kept: Vec::new(), begin: vec![Box::new(begin)], numbers: vec!["settles=1"] }
}

/// Clients of the HTTP ports that follow the events, request large pages and never read, and that never end a request.
fn readers(_: &Path) -> Hang {
    let admin = free_port();
    let begin = move |server: &Server| -> Box<dyn Any> {
        count(server);
        let follow = format!("GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1:{admin}\r\n\r\n");
        let page = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n".repeat(20);
        let unfinished = "POST /json HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{";
        let mut open = Vec::new();
        for (port, bytes, number) in [
            (admin, &*follow, 32),
            (server.ports.metrics, &page, 8),
            (server.ports.http, unfinished, 8),
            (server.ports.http, "GET /", 8),
        ] {
            for _ in 0..number {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                socket.set_recv_buffer_size(4096).unwrap();
                socket.connect(&std::net::SocketAddr::from(([127, 0, 0, 1], port)).into()).unwrap();
                let mut stream = TcpStream::from(socket);
                stream.write_all(bytes.as_bytes()).unwrap();
                open.push(stream);
            }
        }
        // The first client of the metrics has a part of its pages.
        open[32].set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(open[32].peek(&mut [0]).unwrap(), 1);
        Box::new(open)
    };
    Hang::new([("ADMIN_ADDR", format!("127.0.0.1:{admin}"))], (), begin, "clients that did not read")
}

/// A client of the gRPC port whose call has no message yet.
fn caller(_: &Path) -> Hang {
    let begin = |server: &Server| -> Box<dyn Any> {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let open = runtime.block_on(drain::begun(server));
        Box::new((runtime, open))
    };
    Hang::new([], (), begin, "connections=1")
}

/// A pipe in place of the log of decisions, which nobody reads.
fn decisions(dir: &Path) -> Hang {
    let dir = dir.join("decisions");
    std::fs::create_dir(&dir).unwrap();
    let path = unread_output::pipe(&dir);
    let unread = unread_output::filled(&path);
    let begin = |server: &Server| -> Box<dyn Any> {
        for _ in 0..10 {
            server.ask(request("d", &[&[("k", "v")]])).unwrap();
        }
        Box::new(())
    };
    let env = [("DECISION_LOG", "sampled:1".to_owned()), ("DECISION_LOG_FILE", path)];
    Hang::new(env, unread, begin, "decisions=")
}

type Make = fn(&Path) -> Hang;

const KINDS: [(&str, Make); 7] = [
    ("statsd", statsd),
    ("collector", collector),
    ("redis", redis),
    ("metrics", metrics),
    ("readers", readers),
    ("caller", caller),
    ("decisions", decisions),
];

/// All of them at once.
fn all(dir: &Path) -> Hang {
    let mut whole = Hang { env: Vec::new(), kept: Vec::new(), begin: Vec::new(), numbers: Vec::new() };
    // Redis stops last, because the others count.
    for (_, make) in KINDS.iter().filter(|(name, _)| *name != "redis").chain(&KINDS[2..3]) {
        let Hang { env, kept, begin, numbers } = make(dir);
        whole.env.extend(env);
        whole.kept.extend(kept);
        whole.begin.extend(begin);
        whole.numbers.extend(numbers);
    }
    whole
}

/// What may follow `SHUTDOWN_TIMEOUT`.
const MORE: Duration = Duration::from_secs(2);

/// The time from SIGTERM to the end with a timeout of a second. The log must have the numbers.
fn time_to_end(make: Make) -> Duration {
    let dir = tempfile::tempdir().unwrap();
    let hang = make(dir.path());
    let mut server = hang.setup("1s").start();
    let _hanging = hang.begin(&server);
    let took = time_of(|| {
        server.process.signal("TERM");
        assert!(
            server.process.wait(PATIENCE).is_some_and(|status| status.success()),
            "{}",
            server.process.log()
        );
    });
    let log = server.process.final_log();
    for number in hang.numbers {
        assert!(log.contains(number), "no {number:?} in\n{log}");
    }
    took
}

#[test]
fn whatever_hangs_the_end_comes_within_two_seconds_of_the_timeout() {
    for (name, make) in KINDS {
        at_best_within(name, Duration::from_secs(1) + MORE, 3, || time_to_end(make));
    }
    at_best_within("all of them", Duration::from_secs(1) + MORE, 3, || time_to_end(all));
}

#[test]
fn a_log_that_nobody_reads_delays_the_end_by_less_than_its_timeout() {
    at_best_within("the end", Duration::from_secs(1) + MORE, 3, || {
        let dir = tempfile::tempdir().unwrap();
        let path = unread_output::pipe(dir.path());
        let _unread = unread_output::filled(&path);
        let hang = all(dir.path());
        let setup = hang
            .env
            .iter()
            .fold(unread_output::with_output(2, &path), |setup, (name, value)| setup.env(name, value));
        let mut server = setup.rules("d.yaml", RULES).env("SHUTDOWN_TIMEOUT", "1s").start();
        let _hanging = hang.begin(&server);
        time_of(|| {
            server.process.signal("TERM");
            assert!(server.process.wait(PATIENCE).is_some(), "it ends");
        })
    });
}

#[test]
fn a_second_signal_ends_the_service_at_once() {
    for (first, second) in [("TERM", "TERM"), ("TERM", "INT"), ("INT", "HUP")] {
        at_best_within(second, Duration::from_secs(1), 3, || {
            let dir = tempfile::tempdir().unwrap();
            let hang = all(dir.path());
            let mut server = hang.setup("1h").start();
            let _hanging = hang.begin(&server);
            server.process.signal(first);
            server.wait_for_log(&["draining"]);
            let begun = Instant::now();
            server.process.signal(second);
            let status = server.process.wait(PATIENCE).expect("it ends");
            let took = begun.elapsed();
            let log = server.process.final_log();
            assert_eq!(status.code(), Some(1), "{log}");
            for text in [&format!("received SIG{second} while stopping"), "settles=1", "spans="] {
                assert!(log.contains(text), "no {text:?} in\n{log}");
            }
            took
        });
    }
}
