//! Sinks of every kind, on real sockets: every count arrives once.

use std::{
    collections::BTreeMap,
    io::Read,
    net::{TcpListener, TcpStream, UdpSocket},
    os::unix::net::{UnixDatagram, UnixListener},
    sync::mpsc,
    thread,
};

use super::*;
use metrics::{Method, RuleCounter, StatsOptions, rows};
use net::HostPort;

const INTERVAL: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(10);
const HITS: &str = "ratelimit.service.rate_limit.d.k.total_hits";

fn stats() -> Arc<Stats> {
    // Rules without references are forgotten beyond this number, and tests hold none.
    Arc::new(Stats::new(StatsOptions { max_series: 100_000, ..StatsOptions::default() }))
}

fn hit(stats: &Stats, n: u64) {
    stats.rule("d", "d.k").add(RuleCounter::TotalHits, n);
}

rows! { CACHE = local_cache(keys: u64)
    Gauge "ratelimit_localcache_entryCount" as "ratelimit.localcache.entryCount" = keys;
        "Keys in the local cache.";
}

fn gauges() -> SharedGauges {
    Arc::new(|samples| local_cache(samples, 5))
}

fn begin(stats: &Arc<Stats>, target: SinkAddress) -> Flushing {
    let sink = Sink { target, dialect: Dialect::statsd(&[]), is_configured: true };
    start(stats, &gauges(), INTERVAL, vec![sink]).unwrap()
}

fn finish(flushing: &Flushing, patience: Duration) {
    let begun = Instant::now();
    flushing.stop();
    while !flushing.has_ended() && begun.elapsed() < patience {
        thread::sleep(Duration::from_millis(2));
    }
}

fn here(address: std::net::SocketAddr) -> (String, u16) {
    (address.ip().to_string(), address.port())
}

/// The sums of the counters in these lines, and the last of each gauge.
fn sums(text: &str) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for line in text.lines() {
        let (name, rest) = line.split_once(':').unwrap_or_else(|| panic!("not a statsd line: {line:?}"));
        let mut parts = rest.split('|');
        let (value, kind) = (parts.next().unwrap(), parts.next().unwrap());
        let sum = sums.entry(name.to_owned()).or_default();
        match kind {
            "c" => *sum += value.parse::<u64>().unwrap(),
            "g" => *sum = value.parse().unwrap(),
            "ms" => {
                let rate = parts.next().and_then(|rate| rate.strip_prefix('@'));
                let times = rate.map_or(1.0, |rate| rate.parse::<f64>().unwrap().recip());
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                {
                    *sum += times as u64;
                }
            }
            other => panic!("{other} in {line:?}"),
        }
    }
    sums
}

/// Reads a stream to its end.
fn read(mut stream: impl Read) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Ends what [`drain`] reads.
const END: &[u8] = b"end";

/// Reads datagrams as lines until [`END`] or a timeout.
fn drain(mut receive: impl FnMut(&mut [u8]) -> io::Result<usize>) -> (String, usize) {
    let (mut text, mut longest) = (String::new(), 0);
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length) = receive(&mut buffer)
        && buffer[..length] != *END
    {
        longest = longest.max(length);
        text.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
        text.push('\n');
    }
    (text, longest)
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn over_tcp_every_count_arrives_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (host, port) = here(listener.local_addr().unwrap());
    let stats = stats();
    let flushing = begin(&stats, SinkAddress::Tcp(HostPort { host, port }));
    for n in 0..200 {
        hit(&stats, n);
        stats.rule("d", &format!("d.many_{n}")).add(RuleCounter::OverLimit, n);
        stats.service().requests(Method::ShouldRateLimit).increment();
        stats.service().response_time(Method::ShouldRateLimit).observe(Duration::from_micros(n));
        thread::sleep(Duration::from_millis(1));
    }
    finish(&flushing, PATIENCE);
    let found = sums(&read(listener.accept().unwrap().0));
    let value = |name: &str| found.get(name).copied();
    assert_eq!(value(HITS), Some(199 * 100));
    assert_eq!(value("ratelimit.service.rate_limit.d.many_77.over_limit"), Some(77));
    assert_eq!(value("ratelimit.service.rate_limit.d.many_0.over_limit"), None, "zero is not sent");
    assert_eq!(value("ratelimit_server.ShouldRateLimit.total_requests"), Some(200));
    assert_eq!(value("ratelimit_server.ShouldRateLimit.response_time"), Some(200));
    assert_eq!(value("ratelimit.localcache.entryCount"), Some(5));
    assert!(found.keys().all(|name| name.starts_with("ratelimit")), "{found:?}");
}

#[test]
fn datagrams_respect_the_size_limit_of_their_socket() {
    let stats = stats();
    for n in 0..2_000_u64 {
        stats.rule("d", &format!("d.{}_{n}", "x".repeat(60))).add(RuleCounter::TotalHits, n + 1);
    }
    let check = |(text, longest): (String, usize), most: usize| {
        let found = sums(&text);
        let hits = found.iter().filter(|(name, _)| name.ends_with(".total_hits"));
        assert_eq!(hits.map(|(_, n)| n).sum::<u64>(), 2_000 * 2_001 / 2);
        assert!(longest <= most && longest > most - 200, "{longest} of {most}");
        assert!(!text.contains("\n\n"));
    };

    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let (host, port) = here(socket.local_addr().unwrap());
    let flushing = begin(&stats, SinkAddress::Udp(HostPort { host: host.clone(), port }));
    let reading = thread::spawn(move || drain(|buffer| socket.recv(buffer)));
    finish(&flushing, PATIENCE);
    UdpSocket::bind("127.0.0.1:0").unwrap().send_to(END, (host, port)).unwrap();
    check(reading.join().unwrap(), 1432);

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dsd.socket");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let flushing = begin(&stats, SinkAddress::Unix(path.clone()));
    let reading = thread::spawn(move || drain(|buffer| socket.recv(buffer)));
    finish(&flushing, PATIENCE);
    UnixDatagram::unbound().unwrap().send_to(END, path).unwrap();
    check(reading.join().unwrap(), 8192);
}

#[test]
fn sends_to_a_unix_stream_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("statsd");
    let listener = UnixListener::bind(&path).unwrap();
    let stats = stats();
    let flushing = begin(&stats, SinkAddress::Unix(path));
    hit(&stats, 9);
    finish(&flushing, PATIENCE);
    assert_eq!(sums(&read(listener.accept().unwrap().0))[HITS], 9);
}

#[test]
fn counts_for_an_absent_sink_are_sent_later() {
    // No other test gets the port before it is bound again.
    let gone = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = gone.local_addr().unwrap();
    drop(gone);
    let stats = stats();
    let (host, port) = here(address);
    let flushing = begin(&stats, SinkAddress::Udp(HostPort { host, port }));
    hit(&stats, 3);
    thread::sleep(5 * INTERVAL);
    hit(&stats, 4);
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    finish(&flushing, PATIENCE);
    assert_eq!(sums(&drain(|buffer| socket.recv(buffer)).0)[HITS], 7);
}

#[test]
fn a_sink_that_returns_receives_the_missed_counts() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (host, port) = here(address);
    let stats = stats();
    let flushing = begin(&stats, SinkAddress::Tcp(HostPort { host, port }));
    let (mut first, _) = listener.accept().unwrap();
    hit(&stats, 5);
    let mut text = String::new();
    eventually("the first part arrives", || {
        let mut buffer = vec![0; 1 << 16];
        let length = first.read(&mut buffer).unwrap();
        text.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
        text.contains(HITS) && text.ends_with('\n')
    });
    drop((first, listener));
    thread::sleep(3 * INTERVAL);
    hit(&stats, 6);
    thread::sleep(3 * INTERVAL);
    let listener = TcpListener::bind(address).unwrap();
    finish(&flushing, PATIENCE);
    text.push_str(&read(listener.accept().unwrap().0));
    assert_eq!(sums(&text)[HITS], 11);
}

#[test]
fn a_sink_that_does_not_read_delays_no_other_and_receives_every_count() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (host, port) = here(listener.local_addr().unwrap());
    let stats = stats();
    let count = || {
        for n in 0..20_000 {
            stats.rule("d", &format!("d.{}_{n}", "x".repeat(100))).add(RuleCounter::TotalHits, 1);
        }
    };
    count();
    let (silent, reading) = (UdpSocket::bind("127.0.0.1:0").unwrap(), stats.clone());
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    let (other_host, other_port) = here(silent.local_addr().unwrap());
    let sinks = [
        SinkAddress::Tcp(HostPort { host, port }),
        SinkAddress::Udp(HostPort { host: other_host, port: other_port }),
    ];
    let sinks = sinks.map(|target| Sink { target, dialect: Dialect::statsd(&[]), is_configured: true });
    let flushing = start(&stats, &gauges(), INTERVAL, sinks.into()).unwrap();
    let stuck: TcpStream = listener.accept().unwrap().0;
    // The other sink receives every batch while this one is stuck.
    let mut buffer = [0; 2048];
    eventually("the other sink receives a later hit", || {
        reading.rule("d", "d.later").add(RuleCounter::ShadowMode, 1);
        let length = silent.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).contains("d.later.shadow_mode")
    });
    count();
    let next = thread::spawn(move || {
        let (sent, texts) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let _ = sent.send(read(stream.unwrap()));
            }
        });
        let mut all = read(stuck);
        while let Ok(text) = texts.recv_timeout(Duration::from_secs(3)) {
            all.push_str(&text);
        }
        all
    });
    thread::sleep(Duration::from_secs(2));
    finish(&flushing, PATIENCE);
    // A truncated line does not count.
    let text = next.join().unwrap();
    let whole: String = text.split_inclusive('\n').filter(|line| line.contains('|')).collect();
    let hits: u64 =
        sums(&whole).iter().filter(|(name, _)| name.ends_with(".total_hits")).map(|(_, n)| n).sum();
    assert_eq!(hits, 40_000);
}

#[test]
fn a_rule_that_was_forgotten_and_returns_counts_from_zero() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (host, port) = here(listener.local_addr().unwrap());
    let mut connection = SinkConnection::new(SinkAddress::Tcp(HostPort { host, port }), true);
    let mut deltas = DeltaTracker::default();
    let dialect = Dialect::statsd(&[]);
    for n in [10, 4] {
        let stats = stats();
        hit(&stats, n);
        assert!(connection.is_open(false));
        deltas.enter(&stats, &|_| ());
        deltas.send(&mut Outbox::new(&mut connection, &dialect)).unwrap();
    }
    drop(connection);
    assert_eq!(sums(&read(listener.accept().unwrap().0))[HITS], 14);
}

#[test]
fn shutdown_does_not_wait_for_a_sink_that_does_not_read() {
    // It accepts the connection and reads nothing, so that writes block.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (host, port) = here(listener.local_addr().unwrap());
    let stats = stats();
    for n in 0..50_000 {
        stats.rule("d", &format!("d.{}_{n}", "x".repeat(100))).add(RuleCounter::TotalHits, 1);
    }
    let flushing = begin(&stats, SinkAddress::Tcp(HostPort { host, port }));
    let begun = Instant::now();
    finish(&flushing, Duration::from_millis(200));
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    // A slow machine collects them for longer than that.
    while flushing.unsent() <= 10_000 && begun.elapsed() < Duration::from_secs(60) {
        thread::sleep(Duration::from_millis(2));
    }
    assert!(flushing.unsent() > 10_000, "{}", flushing.unsent());
}
