//! Servers that the service connects to and that send without end: the service keeps its memory, and answers.

use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use support::{
    client::request,
    eventually, holds,
    redis::read,
    server::{Server, Setup},
};

const RULES: &str = "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: hour, requests_per_unit: 5}}\n\
                     - {key: free, rate_limit: {unlimited: true}}\n";

/// How a flood begins, and what is repeated.
type Shape = (&'static [u8], &'static [u8]);

/// A flood ends after so many bytes, or so long.
const MOST: u64 = 64 << 20;
const LONGEST: Duration = Duration::from_secs(3);

/// The service may grow by this: two connections with the longest replies, and the buffers of sockets.
const GROWTH_KIB: u64 = 64 << 10;

const OF_REDIS: [Shape; 8] = [
    (b"*100000000\r\n", b"$-1\r\n"),
    (b"*100000000\r\n", b":1\r\n"),
    (b"*100000000\r\n", b"+\r\n"),
    (b"-", b"E"),
    (b"", b"*1\r\n"),
    (b"$500000000\r\n", b"x"),
    (b"%100000000\r\n", b"+a\r\n"),
    (b"", b"*3\r\n$7\r\nmessage\r\n$18\r\n{tollgate}:changes\r\n$2\r\nno\r\n"),
];

const OF_MEMCACHED: [Shape; 4] =
    [(b"", b"E"), (b"", b"1\r\n"), (b"VALUE k 0 60000\r\n", b"x"), (b"SERVER_ERROR ", b"x")];

const OF_HTTP: [Shape; 4] = [
    (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
    (b"HTTP/1.1 200 OK\r\na: ", b"b"),
    (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    (b"HTTP/1.1 200 OK\r\ncontent-length: 100000000000\r\n\r\n", b"x"),
];

const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
const OF_HTTP2: [Shape; 4] = [
    (SETTINGS, &[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]),
    (SETTINGS, SETTINGS),
    (&[0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1], &[0, 0, 1, 9, 0, 0, 0, 0, 1, 0x82]),
    (SETTINGS, &[0, 0, 1, 0, 0, 0, 0, 0, 1, b'x']),
];

struct Hostile {
    port: u16,
    /// The number of floods that have begun, and their bytes.
    floods: Arc<AtomicUsize>,
    sent: Arc<AtomicU64>,
}

impl Hostile {
    /// Floods in each of the shapes in turn, once `ready` has read what is answered so.
    fn start(
        shapes: &'static [Shape],
        ready: impl Fn(&mut BufReader<TcpStream>) -> bool + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (floods, sent) = (Arc::<AtomicUsize>::default(), Arc::<AtomicU64>::default());
        let (ready, count, bytes) = (Arc::new(ready), floods.clone(), sent.clone());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (ready, count, bytes) = (ready.clone(), count.clone(), bytes.clone());
                thread::spawn(move || {
                    let mut stream = BufReader::new(stream);
                    if ready(&mut stream) {
                        let shape = shapes[count.fetch_add(1, Relaxed) % shapes.len()];
                        flood(stream.into_inner(), shape, &bytes);
                    }
                });
            }
        });
        Self { port, floods, sent }
    }

    /// A Redis that floods in reply to one command.
    fn redis(command: &'static str) -> Self {
        Self::redis_with(&OF_REDIS, command)
    }

    fn redis_with(shapes: &'static [Shape], command: &'static str) -> Self {
        Self::start(shapes, move |stream| {
            while let Ok(asked) = read(stream) {
                let words = asked.words();
                if words[0].eq_ignore_ascii_case(command) {
                    return true;
                }
                if stream.get_mut().write_all(honest(&words).as_bytes()).is_err() {
                    break;
                }
            }
            false
        })
    }

    /// A server that floods after the first line, or the first bytes.
    fn other(shapes: &'static [Shape]) -> Self {
        Self::start(shapes, |stream| stream.fill_buf().is_ok_and(|bytes| !bytes.is_empty()))
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

/// What a Redis without any keys answers.
fn honest(words: &[String]) -> String {
    let text = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    match &*words[0].to_ascii_uppercase() {
        "HGET" | "GET" => "$-1\r\n".to_owned(),
        "TIME" => format!("*2\r\n{}{}", text("1800000000"), text("0")),
        "SUBSCRIBE" => format!("*3\r\n{}{}:1\r\n", text("subscribe"), text(&words[1])),
        "SRANDMEMBER" => "*0\r\n".to_owned(),
        "INCRBY" | "SADD" | "EXPIRE" => ":1\r\n".to_owned(),
        _ => "+OK\r\n".to_owned(),
    }
}

fn flood(mut stream: TcpStream, (begin, again): Shape, bytes: &AtomicU64) {
    let block = again.repeat(64 * 1024 / again.len());
    let (mut sent, until) = (0, Instant::now() + LONGEST);
    let _ = stream.set_write_timeout(Some(LONGEST));
    let mut next = begin;
    while sent < MOST && Instant::now() < until && stream.write_all(next).is_ok() {
        sent += next.len() as u64;
        bytes.fetch_add(next.len() as u64, Relaxed);
        next = &block;
    }
}

/// Runs a service for each of the shapes, at the same time: none waits for another one's pauses before a new connection.
fn each_withstands(
    shapes: &'static [Shape],
    hostile: impl Fn(&'static [Shape]) -> Hostile + Sync,
    setup: impl Fn(&Hostile) -> Setup + Sync,
) {
    thread::scope(|scope| {
        for shape in shapes.chunks(1) {
            let (hostile, setup) = (&hostile, &setup);
            scope.spawn(move || {
                let hostile = hostile(shape);
                withstands(&hostile, 1, setup(&hostile));
            });
        }
    });
}

/// Runs a service until each shape was sent.
fn withstands(hostile: &Hostile, shapes: usize, setup: Setup) {
    let setup = setup.rules("d.yaml", RULES).env("MIMALLOC_ALLOW_THP", "0").env("REDIS_TIMEOUT", "100ms");
    let mut server = setup.start();
    let before = server.process.resident_kib();
    eventually("each flood has begun", || {
        // The answer is that of the failure policy.
        drop(server.ask(request("d", &[&[("k", "v")]])));
        let begun = hostile.floods.load(Relaxed);
        holds(begun > shapes, || format!("{begun} of {shapes}: {}", server.process.log()))
    });
    serves(&mut server);
    let (peak, sent) = (server.process.peak_kib(), hostile.sent.load(Relaxed) >> 10);
    println!("{before} KiB at the start, at most {peak} KiB, {sent} KiB received");
    assert!(peak < before + GROWTH_KIB, "from {before} to {peak} KiB, by {sent} KiB");
    let log = server.final_log();
    assert!(!log.contains("panicked"), "{log}");
}

fn serves(server: &mut Server) {
    assert!(server.process.exited().is_none(), "{}", server.process.log());
    server.ask(request("d", &[&[("free", "v")]])).expect("it needs no store");
    server.wait_until_healthy();
}

fn on_redis(hostile: &Hostile) -> Setup {
    let setup = Setup::new().envs(&support::redis::tcp(&hostile.address()));
    setup.env("BACKEND_TYPE", "redis").env("REPLICA_SYNC", "true").env("STORE_FAILURE_POLICY", "allow")
}

#[test]
fn the_connections_that_count() {
    let hostile = Hostile::redis("INCRBY");
    withstands(&hostile, OF_REDIS.len(), on_redis(&hostile));
}

#[test]
fn the_first_replies_of_a_connection() {
    let hostile = Hostile::redis("PING");
    withstands(&hostile, OF_REDIS.len(), on_redis(&hostile));
}

#[test]
fn the_connection_that_follows_overrides() {
    each_withstands(&OF_REDIS, |shape| Hostile::redis_with(shape, "SUBSCRIBE"), on_redis);
}

#[test]
fn the_connections_of_other_commands() {
    for command in ["HGET", "SET"] {
        each_withstands(&OF_REDIS, |shape| Hostile::redis_with(shape, command), on_redis);
    }
}

#[test]
fn the_connections_to_the_nodes_of_a_cluster_and_to_sentinels() {
    for (kind, command, prefix) in [("CLUSTER", "CLUSTER", ""), ("SENTINEL", "SENTINEL", "main,")] {
        let hostile = Hostile::redis(command);
        let url = format!("{prefix}{}", hostile.address());
        withstands(
            &hostile,
            OF_REDIS.len(),
            on_redis(&hostile).env("REDIS_TYPE", kind).env("REDIS_URL", &url),
        );
    }
}

#[test]
fn the_connections_to_memcached() {
    let hostile = Hostile::other(&OF_MEMCACHED);
    let setup = Setup::new().env("BACKEND_TYPE", "memcache").env("MEMCACHE_HOST_PORT", &hostile.address());
    withstands(&hostile, OF_MEMCACHED.len(), setup.env("REPLICA_SYNC", "true"));
}

#[test]
fn the_connections_to_collectors_of_spans() {
    for (protocol, shapes) in [("http", &OF_HTTP), ("grpc", &OF_HTTP2)] {
        each_withstands(shapes, Hostile::other, |hostile| {
            let setup = Setup::new().env("TRACING_ENABLED", "true").env("OTEL_BSP_SCHEDULE_DELAY", "20");
            let setup = setup.env("TRACING_EXPORTER_PROTOCOL", protocol);
            setup.env("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{}", hostile.address()))
        });
    }
}

#[test]
fn the_connection_to_a_control_plane() {
    let shapes: &'static [Shape] = &OF_HTTP2;
    let withstands = |shape| {
        let hostile = Hostile::other(shape);
        let setup = Setup::new().env("CONFIG_TYPE", "GRPC_XDS_SOTW").env("CONFIG_GRPC_XDS_NODE_ID", "n");
        // It listens once it has rules.
        let mut server = setup.env("CONFIG_GRPC_XDS_SERVER_URL", &hostile.address()).launch();
        eventually("it connects", || holds(hostile.floods.load(Relaxed) > 0, || server.process.log()));
        let before = server.process.resident_kib();
        eventually("the flood has begun again", || {
            holds(hostile.floods.load(Relaxed) > 1, || server.process.log())
        });
        let peak = server.process.peak_kib();
        assert!(
            peak < before + GROWTH_KIB && server.process.exited().is_none(),
            "from {before} to {peak} KiB"
        );
    };
    thread::scope(|scope| {
        for shape in shapes.chunks(1) {
            scope.spawn(move || withstands(shape));
        }
    });
}

#[test]
fn the_connection_to_statsd() {
    let hostile = Hostile::other(&OF_MEMCACHED);
    let setup = Setup::new().env("USE_STATSD", "true").env("STATSD_PROTOCOL", "tcp");
    let setup = setup.env("STATSD_HOST", "127.0.0.1").env("STATSD_PORT", &hostile.port.to_string());
    let mut server = setup.rules("d.yaml", RULES).start();
    let before = server.process.resident_kib();
    eventually("the flood has begun", || {
        drop(server.ask(request("d", &[&[("k", "v")]])));
        holds(hostile.sent.load(Relaxed) > 1 << 20, || server.process.log())
    });
    serves(&mut server);
    assert!(server.process.peak_kib() < before + GROWTH_KIB);
}
