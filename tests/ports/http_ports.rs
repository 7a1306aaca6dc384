//! The HTTP ports: slow, silent and many clients do not block probes; browsers and `/json`; errors of `/json`.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use socket2::{Domain, Socket, Type};

use support::{
    PATIENCE, at_best_within, eventually,
    grpc_tls::{Authority, Files},
    holds, http,
    memcached::Memcached,
    redis::Redis,
    server::{BINARY, Server, Setup},
    time_of,
};

const RULES: &str =
    "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1000000}}]\n";

const QUESTION: &str = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;

fn setup() -> Setup {
    Setup::new().rules("d.yaml", RULES)
}

fn connect(port: u16) -> TcpStream {
    TcpStream::connect(("127.0.0.1", port)).unwrap()
}

/// A client that repeats a request until the buffers are full, and reads nothing.
fn never_reading(port: u16, path: &str) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    // The kernel buffers little of the responses.
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&SocketAddr::from(([127, 0, 0, 1], port)).into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_nonblocking(true).unwrap();
    let requests = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").repeat(1000);
    // Each write goes on where the last one ended: half a request would be answered with 400 and close the connection.
    let mut sent = 0;
    for _ in 0..100 {
        // The connection may be closed already to make room for others.
        let Ok(more) = stream.write(&requests.as_bytes()[sent..]) else { break };
        sent = (sent + more) % requests.len();
    }
    stream
}

/// The answer of a POST to `/json` with these headers.
fn ask_json(server: &Server, headers: &[(&str, &str)]) -> http::Answer {
    http::send(server.ports.http, "POST", "/json", headers, QUESTION.as_bytes()).unwrap()
}

fn count(server: &Server, metric: &str, port: &str, reason: &str) -> u64 {
    let value = server.metrics()
        [&format!("tollgate_connections_{metric}_total{{port=\"{port}\",reason=\"{reason}\"}}")];
    // Whole numbers have no fraction when they are shown.
    value.to_string().parse().unwrap()
}

fn probe(server: &Server) {
    let ports = server.ports;
    for (port, path) in [(ports.http, "/healthcheck"), (ports.debug, "/"), (ports.metrics, "/metrics")] {
        // A new client may take the place of one that has not sent its request. The kubelet fails after three.
        let answers = (0..3).map(|_| http::send(port, "GET", path, &[], b"").map(|answer| answer.status));
        let answers: Vec<_> = answers.take_while(|answer| !matches!(answer, Ok(200))).collect();
        assert!(answers.len() < 3, "{path}: {answers:?}");
    }
}

#[test]
fn six_hundred_silent_clients_do_not_block_probes() {
    let server = setup().env("HTTP_MAX_CONNECTIONS", "256").start();
    let ports = server.ports;
    for port in [ports.http, ports.debug, ports.metrics] {
        let _clients: Vec<_> = (0..600).map(|_| connect(port)).collect();
        for _ in 0..10 {
            probe(&server);
        }
    }
    // 192 of one address have places, and 272 wait for one.
    assert!(count(&server, "closed", "metrics", "silent") >= 136);
}

/// Clients that repeat a request as fast as they are answered, on connections that they keep.
struct Busy<'scope> {
    stop: &'scope AtomicBool,
    answered: &'scope AtomicUsize,
}

impl Busy<'_> {
    fn repeat(&self, port: u16, clients: usize, request: &str) {
        let open = || {
            let stream = connect(port);
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream
        };
        let mut streams: Vec<_> = (0..clients).map(|_| open()).collect();
        while !self.stop.load(Ordering::Relaxed) {
            let sent: Vec<_> =
                streams.iter_mut().map(|stream| stream.write_all(request.as_bytes()).is_ok()).collect();
            for (stream, sent) in streams.iter_mut().zip(sent) {
                // The answers are small, so that each arrives as a whole. On a machine that is busy with other work, a
                // client is idle for so long that its connection is closed for another.
                if sent && stream.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {
                    self.answered.fetch_add(1, Ordering::Relaxed);
                } else {
                    *stream = open();
                }
            }
        }
    }
}

#[test]
fn a_probe_does_not_wait_for_a_place_beside_as_many_clients_as_there_are_places() {
    let server = setup().env("HTTP_MAX_CONNECTIONS", "64").start();
    // The clients take all places of the address. Until this is answered and closed, the connection by which `start`
    // found the port open may still have one of them.
    assert_eq!(http::get(server.ports.http, "/healthcheck").status, 200);
    let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let busy = Busy { stop: &stop, answered: &answered };
    let post = format!(
        "POST /json HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{QUESTION}",
        QUESTION.len()
    );
    thread::scope(|scope| {
        // Of one address: 48 of 64.
        scope.spawn(|| busy.repeat(server.ports.http, 48, &post));
        eventually("all clients are served", || {
            let answered = answered.load(Ordering::Relaxed);
            holds(answered > 96, || answered.to_string())
        });
        // A connection waits 200 ms for a place.
        at_best_within("a probe", Duration::from_millis(100), 100, || {
            time_of(|| assert_eq!(http::get(server.ports.http, "/healthcheck").status, 200))
        });
        let begun = Instant::now();
        let other = http::get(server.ports.http, "/other");
        assert!(begun.elapsed() >= Duration::from_millis(190) || other.status == 404, "{other:?}");
        assert!([404, 503].contains(&other.status), "{other:?}");
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_client_without_a_place_gets_one_when_another_is_idle() {
    let server = setup().env("HTTP_MAX_CONNECTIONS", "8").start();
    let idle: Vec<_> = (0..6)
        .map(|_| {
            let mut stream = connect(server.ports.http);
            stream.write_all(b"GET /nowhere HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
            assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
            stream
        })
        .collect();
    let answer = ask_json(&server, &[]);
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    assert_eq!(count(&server, "closed", "http", "idle"), 1);
    assert_eq!(count(&server, "refused", "http", "max_connections"), 0);
    drop(idle);
}

#[test]
fn slow_clients_are_closed_and_counted() {
    let server = setup().env("HTTP_TIMEOUT", "1s").start();
    let begun = Instant::now();
    let mut slow: Vec<_> =
        ["", "GET /healthcheck HT", "POST /json HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{"]
            .iter()
            .map(|sent| {
                let mut stream = connect(server.ports.http);
                stream.write_all(sent.as_bytes()).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream
            })
            .collect();
    let _deaf = never_reading(server.ports.http, "/healthcheck");
    let ends: Vec<_> = slow
        .iter_mut()
        .map(|stream| {
            let mut text = String::new();
            let end = stream.read_to_string(&mut text);
            assert!(end.is_ok() || end.unwrap_err().kind() != ErrorKind::WouldBlock, "it is closed");
            text
        })
        .collect();
    assert!(begun.elapsed() >= Duration::from_millis(950), "{:?}", begun.elapsed());
    assert!(ends[2].starts_with("HTTP/1.1 408") && ends[2].contains("HTTP_TIMEOUT"), "{ends:?}");
    eventually("all are counted", || {
        let counted = ["preface_timeout", "read_timeout", "write_timeout"]
            .map(|reason| count(&server, "closed", "http", reason));
        holds(counted == [1, 2, 1], || format!("{counted:?}"))
    });
}

#[test]
fn a_body_of_any_size_is_bounded() {
    let server = setup().env("GRPC_MAX_REQUEST_BYTES", "1000").start();
    let padded = |size: usize| format!("{QUESTION}{}", " ".repeat(size - QUESTION.len()));
    for (size, status) in [(999, 200), (1000, 200), (1001, 400), (1_000_000, 400)] {
        assert_eq!(http::post(server.ports.http, "/json", &padded(size)).status, status, "{size} bytes");
    }
    // A chunked body has no known length.
    let chunked = format!("{:x}\r\n{}\r\n0\r\n\r\n", 1001, padded(1001));
    let mut stream = connect(server.ports.http);
    let head =
        "POST /json HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    stream.write_all(format!("{head}{chunked}").as_bytes()).unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
}

#[test]
fn a_large_body_is_answered_like_a_small_one() {
    let server = setup().start();
    // A body from 16 KiB on is read by another thread.
    for size in [1_000, 16_383, 16_384, 1_000_000] {
        let padding = " ".repeat(size - QUESTION.len());
        let answer = http::post(server.ports.http, "/json", &format!("{padding}{QUESTION}"));
        assert_eq!((answer.status, answer.json()["overallCode"].as_str()), (200, Some("OK")), "{size} bytes");
        let escaped = QUESTION.replace('v', "\\u0076") + &padding;
        assert_eq!(http::post(server.ports.http, "/json", &escaped).status, 200, "{size} bytes");
        let answer = http::post(server.ports.http, "/json", &format!("{padding}{{}}}}"));
        assert_eq!(answer.status, 400, "{size} bytes");
        assert!(answer.text().starts_with("Bad Request: trailing characters"), "{}", answer.text());
    }
}

#[test]
fn probes_have_reserved_connections_while_all_others_wait_for_the_store() {
    let redis = Redis::single();
    let setup = setup().redis(&redis.env()).env("REDIS_TIMEOUT", "30s").env("HTTP_MAX_CONNECTIONS", "8");
    let server = setup.start_healthy();
    redis.freeze();
    let post = format!(
        "POST /json HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{QUESTION}",
        QUESTION.len()
    );
    let waiting: Vec<_> = (0..6)
        .map(|_| {
            let mut stream = connect(server.ports.http);
            stream.write_all(post.as_bytes()).unwrap();
            stream
        })
        .collect();
    // One address may have six of eight connections.
    eventually("one more connection is rejected", || {
        let answer = http::send(server.ports.http, "GET", "/nowhere", &[], b"");
        let status = answer.map(|answer| answer.status).map_err(|error| error.to_string());
        holds(status == Ok(503), || format!("{status:?}"))
    });
    for _ in 0..100 {
        // The status depends on Redis; there must be a response.
        assert!([200, 500].contains(&http::get(server.ports.http, "/healthcheck").status));
    }
    assert!(count(&server, "refused", "http", "max_connections") >= 1);
    let _silent: Vec<_> = (0..40).map(|_| connect(server.ports.http)).collect();
    assert!(
        [200, 500].contains(&http::get(server.ports.http, "/healthcheck").status),
        "silent connections are closed to make room"
    );
    redis.thaw();
    drop(waiting);
}

#[test]
fn rejects_requests_that_a_page_of_another_site_sends() {
    let server = setup().start();
    let refused: &[&[(&str, &str)]] = &[
        &[("origin", "http://evil.test")],
        &[("origin", "http://localhost:8080")],
        &[("origin", "null")],
        &[("Origin", "")],
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-site")],
        &[("content-type", "text/plain"), ("origin", "http://evil.test"), ("sec-fetch-mode", "no-cors")],
        &[("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")],
    ];
    for headers in refused {
        let answer = ask_json(&server, headers);
        assert_eq!(answer.status, 403, "{headers:?}");
        assert!(answer.header("access-control-allow-origin").is_none());
    }
    for (port, path) in [(server.ports.debug, "/stats"), (server.ports.metrics, "/metrics")] {
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
            let origin = [("origin", "http://evil.test")];
            assert_eq!(http::send(port, method, path, &origin, b"").unwrap().status, 403, "{method} {path}");
        }
        let read = http::send(port, "GET", path, &[("origin", "http://grafana.test")], b"").unwrap();
        assert_eq!(read.status, 200, "{path}");
    }
    let get = http::send(server.ports.http, "GET", "/json", &[], QUESTION.as_bytes()).unwrap();
    assert_eq!((get.status, get.header("allow")), (405, Some("POST")));
    let answer = ask_json(&server, &[("sec-fetch-site", "same-origin")]);
    let remaining = &answer.json()["statuses"][0]["limitRemaining"];
    assert_eq!((answer.status, remaining.as_u64()), (200, Some(999_999)), "nothing was counted before");
}

#[test]
fn json_is_disabled_by_default_if_clients_need_a_certificate() {
    let authority = Authority::new("ours");
    let files = Files::new(&authority.server());
    let mutual = || files.mutual(&authority).rules("d.yaml", RULES);
    for (setup, status, logged) in [
        (setup(), 200, None),
        (setup().env("JSON_ENABLED", "false"), 404, None),
        (files.setup().rules("d.yaml", RULES), 200, None),
        (mutual(), 404, Some("JSON_ENABLED: is false, because GRPC_CLIENT_TLS_CACERT")),
        (mutual().env("JSON_ENABLED", "true"), 200, Some("JSON_ENABLED: serves /json to clients without")),
        (mutual().env("JSON_ENABLED", "false"), 404, None),
    ] {
        let server = setup.start();
        assert_eq!(ask_json(&server, &[]).status, status, "{logged:?}");
        assert_eq!(http::get(server.ports.http, "/healthcheck").status, 200);
        let log = server.final_log();
        assert_eq!(log.matches("JSON_ENABLED").count(), usize::from(logged.is_some()), "{log}");
        assert!(logged.is_none_or(|text| log.contains(text)), "{log}");
    }
}

#[test]
fn a_lost_store_is_503_and_not_a_bad_request() {
    let redis = Redis::single();
    let memcached = Memcached::single();
    let lost_redis = setup().redis(&redis.env()).env("REDIS_TIMEOUT", "50ms").start_healthy();
    let lost_memcached =
        memcached.setup().rules("d.yaml", RULES).env("MEMCACHE_TIMEOUT", "50ms").start_healthy();
    let no_rules = Setup::new().rules("d.yaml", "domain: ''\n").start();
    assert_eq!(ask_json(&lost_redis, &[]).status, 200);
    redis.freeze();
    memcached.freeze();
    for (server, address) in
        [(&lost_redis, redis.address()), (&lost_memcached, memcached.address()), (&no_rules, String::new())]
    {
        for _ in 0..3 {
            let answer = ask_json(server, &[]);
            assert_eq!(answer.status, 503, "{}", answer.text());
            assert!(answer.text().starts_with("Service Unavailable: "), "{}", answer.text());
            hides(&answer.text(), &address);
            let over_grpc = server.ask(support::client::request("d", &[&[("k", "v")]])).unwrap_err();
            hides(over_grpc.message(), &address);
            assert_eq!(http::post(server.ports.http, "/json", "{").status, 400, "invalid input is still 400");
        }
        server.wait_for_log(&[&address]);
    }
    redis.thaw();
    memcached.thaw();
}

/// Asserts that a response does not contain the address of a store.
fn hides(text: &str, address: &str) {
    let port = address.rsplit(':').next().unwrap_or_default();
    assert!(port.is_empty() || !text.contains(port) && !text.contains("127.0.0.1"), "{text}");
}

#[test]
fn sigterm_under_load_never_answers_json_with_a_bad_request() {
    let redis = Redis::single();
    for setup in [setup(), setup().redis(&redis.env()).env("GRPC_WORKERS", "4").env("REDIS_POOL_SIZE", "1")] {
        for delay in ["0s", "300ms"] {
            stop_under_load(setup.clone().env("SHUTDOWN_DELAY", delay).start_healthy());
        }
    }
}

/// Concurrent clients.
const CLIENTS: usize = 8;

fn stop_under_load(mut server: Server) {
    let port = server.ports.http;
    let (over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let outcomes: Vec<Vec<Result<u16, ErrorKind>>> = thread::scope(|scope| {
        let clients: Vec<_> =
            (0..CLIENTS).map(|_| scope.spawn(|| ask_until(&over, &answered, port))).collect();
        eventually("the clients are answered", || match answered.load(Ordering::Relaxed) {
            enough if enough > 50 => Ok(()),
            few => Err(format!("{few} answers")),
        });
        server.process.signal("TERM");
        let ended = server.process.wait(PATIENCE).expect("the service stops under load");
        over.store(true, Ordering::Relaxed);
        assert!(ended.success(), "{ended}");
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let all: Vec<_> = outcomes.into_iter().flatten().collect();
    // The last connection of each client may wait in the backlog, or be open without a request, when the port is
    // closed: no request was sent on it.
    let closed = [ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof];
    let reset = all.iter().filter(|outcome| outcome.is_err_and(|kind| closed.contains(&kind))).count();
    let wrong: Vec<_> = all
        .iter()
        .filter(|outcome| {
            !matches!(
                outcome,
                Ok(200 | 503)
                    | Err(ErrorKind::ConnectionRefused
                        | ErrorKind::ConnectionReset
                        | ErrorKind::UnexpectedEof)
            )
        })
        .collect();
    assert!(
        wrong.is_empty() && reset <= CLIENTS,
        "{reset} reset, {wrong:?} of {}\n{}",
        all.len(),
        server.process.log()
    );
}

fn ask_until(over: &AtomicBool, answered: &AtomicUsize, port: u16) -> Vec<Result<u16, ErrorKind>> {
    let mut outcomes = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let answer = http::send(port, "POST", "/json", &[], QUESTION.as_bytes());
        let outcome = answer.map(|answer| answer.status).map_err(|error| error.kind());
        answered.fetch_add(usize::from(outcome == Ok(200)), Ordering::Relaxed);
        outcomes.push(outcome);
    }
    outcomes
}

#[test]
fn few_file_descriptors_lower_the_connection_limits() {
    let shell = format!("ulimit -n 256; exec {BINARY}");
    let server = setup().program("/bin/sh".as_ref(), &["-c", &shell]).start();
    server.wait_for_log(&["RLIMIT_NOFILE"]);
    for port in [server.ports.grpc, server.ports.http, server.ports.debug, server.ports.metrics] {
        let _silent: Vec<_> = (0..300).map(|_| connect(port)).collect();
        probe(&server);
        server.ask(support::client::request("d", &[&[("k", "v")]])).unwrap();
    }
}
