//! Sinks of the real service: their sums are those of the page, and absent or slow sinks do not delay the service.
//! `statsd/` has recorded names of the Go service, and the tests of mapper files.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    net::{TcpListener, UdpSocket},
    thread,
    time::Duration,
};

use support::{
    at_best_within,
    client::request,
    eventually, holds,
    redis::Redis,
    server::{Server, Setup},
    time_of,
};

mod mapper;

const RULES: &str = "domain: d\ndescriptors:\n- key: k\n  value: v\n  rate_limit: {unit: hour, requests_per_unit: 3}\n\
    - key: ip\n  value: 10.0.0.1\n  rate_limit: {unit: hour, requests_per_unit: 9}\n";
const HITS: &str = "ratelimit.service.rate_limit.d.k_v.total_hits";
const OVER: &str = "ratelimit.service.rate_limit.d.k_v.over_limit";

fn setup() -> Setup {
    Setup::new().rules("d.yaml", RULES).env("STATS_FLUSH_INTERVAL", "50ms").env("STATSD_HOST", "127.0.0.1")
}

/// Five requests for one rule, of which two are over the limit, and one for another.
fn ask(server: &Server) {
    let client = server.client();
    for _ in 0..5 {
        client.ask(request("d", &[&[("k", "v")]])).unwrap();
    }
    client.ask(request("d", &[&[("ip", "10.0.0.1")]])).unwrap();
    client.ask(request("nowhere", &[&[("k", "v")]])).unwrap();
    assert!(client.ask(request("", &[])).is_err());
}

/// The sums of the values by the rest of the line.
fn sums(text: &str) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for line in text.lines() {
        let (name, rest) = line.split_once(':').unwrap_or_else(|| panic!("not a statsd line: {line:?}"));
        let (value, kind) = rest.split_once('|').unwrap();
        let value: f64 = value.parse().unwrap();
        let sum = sums.entry(format!("{name}|{kind}")).or_default();
        *sum = if kind.starts_with('g') { value } else { *sum + value };
    }
    sums
}

/// Datagrams as lines, until the read times out.
fn drain(mut receive: impl FnMut(&mut [u8]) -> io::Result<usize>) -> String {
    let mut text = String::new();
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length) = receive(&mut buffer) {
        text.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
        text.push('\n');
    }
    text
}

fn udp() -> (UdpSocket, String) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port.to_string())
}

#[test]
fn over_tcp_the_sums_are_those_of_the_page_after_shutdown() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let mut server = setup()
        .env("USE_STATSD", "true")
        .env("STATSD_PORT", &port)
        .env("EXTRA_TAGS", "zone:eu.west,app:rl")
        .start();
    ask(&server);
    // The connection is open before the last requests, which the last flush sends.
    let mut stream = listener.accept().unwrap().0;
    ask(&server);
    let page = server.metrics();
    assert!(server.process.stop().success());
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let sums = sums(&text);
    let tagged = |name: &str| sums.get(&format!("{name}.__app=rl.__zone=eu_west|c")).copied();
    let shown = |series: &str| page.get(series).copied();
    let rule = r#"ratelimit_service_rate_limit_total_hits{domain="d",key1="k_v"}"#;
    assert_eq!((tagged(HITS), shown(rule)), (Some(10.0), Some(10.0)), "{text}");
    assert_eq!(tagged(OVER), Some(7.0));
    assert_eq!(tagged("ratelimit.service.rate_limit.d.ip_10_0_0_1.total_hits"), Some(2.0));
    assert_eq!(tagged("ratelimit.service.rate_limit.nowhere.domain_not_found"), Some(2.0));
    assert_eq!(tagged("ratelimit.service.call.should_rate_limit.service_error"), Some(2.0));
    assert_eq!(tagged("ratelimit_server.ShouldRateLimit.total_requests"), Some(16.0));
    assert_eq!(tagged("ratelimit.service.config_load_success"), Some(1.0));
    assert!(
        text.contains("ratelimit_server.ShouldRateLimit.response_time.__app=rl.__zone=eu_west:"),
        "{text}"
    );
}

#[test]
fn sends_to_all_sinks_at_once() {
    let (statsd, statsd_port) = udp();
    let (dog, dog_port) = udp();
    let server = setup()
        .env("USE_STATSD", "true")
        .env("STATSD_PROTOCOL", "udp")
        .env("STATSD_PORT", &statsd_port)
        .env("USE_DOG_STATSD", "true")
        .env("DOG_STATSD_ADDR", &format!("127.0.0.1:{dog_port}"))
        .env("DD_ENV", "test")
        .env("EXTRA_TAGS", "app:rl")
        .env("USE_DOG_STATSD_MOGRIFIERS", "HITS")
        .env("DOG_STATSD_MOGRIFIER_HITS_PATTERN", r"^ratelimit\.service\.rate_limit\.([^.]+)\.(.*)\.([^.]+)$")
        .env("DOG_STATSD_MOGRIFIER_HITS_NAME", "rate_limit.$3")
        .env("DOG_STATSD_MOGRIFIER_HITS_TAGS", "domain:$1,descriptor:$2");
    let mut server = server.start();
    ask(&server);
    assert!(
        server.metrics().contains_key(r#"ratelimit_service_rate_limit_total_hits{domain="d",key1="k_v"}"#)
    );
    assert!(server.process.stop().success());
    let plain = sums(&drain(|buffer| statsd.recv(buffer)));
    assert_eq!(plain.get(&format!("{HITS}.__app=rl|c")), Some(&5.0), "{plain:?}");
    let tagged = sums(&drain(|buffer| dog.recv(buffer)));
    let hits = "rate_limit.total_hits|c|#env:test,app:rl,domain:d,descriptor:k_v";
    assert_eq!(tagged.get(hits), Some(&5.0), "{tagged:?}");
    assert_eq!(tagged.get("ratelimit.service.config_load_success|c|#env:test,app:rl"), Some(&1.0));
}

#[test]
fn sends_metrics_of_each_redis_with_the_names_of_the_go_service_and_of_a_mapper() {
    let (main, per_second) = (Redis::single(), Redis::single());
    let (statsd, port) = udp();
    let (_dir, setup) = mapper::with_mapper(
        "mappings: [{match: ratelimit.*.cx_active, name: connections, labels: {redis: $1}}]",
    );
    let setup = setup.redis(&main.env()).env("REDIS_PERSECOND", "true");
    let setup = setup.env("REDIS_PERSECOND_URL", &per_second.address());
    let setup = setup.env("USE_STATSD", "true").env("STATSD_HOST", "127.0.0.1").env("STATSD_PORT", &port);
    let mut server = setup.env("STATSD_PROTOCOL", "udp").env("STATS_FLUSH_INTERVAL", "50ms").start_healthy();
    let mut text = String::new();
    let mut buffer = vec![0; 1 << 16];
    eventually("sink and page agree", || {
        let length = statsd.recv(&mut buffer).map_err(|error| error.to_string())?;
        text.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
        text.push('\n');
        let (sent, page) = (sums(&text), server.metrics());
        let agree = ["redis_pool", "redis_per_second_pool"].iter().all(|redis| {
            let open = page.get(&format!("connections{{redis=\"{redis}\"}}"));
            let opened = page.get(&format!("ratelimit_{redis}_cx_total"));
            open.is_some_and(|n| *n > 0.0)
                && opened.is_some_and(|n| *n > 0.0)
                && sent.get(&format!("ratelimit.{redis}.cx_active|g")) == open
                && sent.get(&format!("ratelimit.{redis}.cx_total|c")) == opened
        });
        holds(agree, || format!("sent {sent:?}, on the page {page:?}"))
    });
    assert!(server.process.stop().success());
}

#[test]
fn the_default_sink_may_be_absent() {
    let dir = tempfile::tempdir().unwrap();
    let start = || Setup::bare(dir.path()).env("USE_PROMETHEUS", "").start();
    let mut servers: Vec<_> = (0..3).map(|_| start()).collect();
    thread::sleep(Duration::from_millis(300));
    at_best_within("shutdown", Duration::from_secs(2), 3, || {
        let mut server = servers.pop().expect("there are three");
        let took = time_of(|| assert!(server.process.stop().success()));
        let log = server.process.final_log();
        assert!(!log.contains("statsd"), "{log}");
        took
    });
}
