//! Faults during the load: Redis fails, replicas restart, rules change, clients misbehave.

use std::{
    fs,
    io::Write as _,
    net::TcpStream,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use super::load::RULES;
use support::{
    PATIENCE,
    proxy::{Proxy, Way},
    redis::Redis,
    server::{Ports, Server, Setup},
};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The duration of a fault, and of the pauses before and after it.
const FAULT: Duration = Duration::from_secs(1);
const REST: Duration = Duration::from_secs(2);

/// One fault of Redis, in turn, for a second.
pub(super) fn break_redis(turn: usize, redis: &mut Redis, way: &Proxy) {
    thread::sleep(REST);
    match turn % 6 {
        0 => {
            redis.kill();
            thread::sleep(FAULT);
            redis.start();
        }
        1 => {
            redis.freeze();
            thread::sleep(FAULT);
            redis.thaw();
        }
        2 => during(way, Way::BlackHole),
        3 => during(way, Way::Cut),
        4 => during(way, Way::Open(Duration::from_millis(15))),
        _ => {
            redis.ask(&["SCRIPT", "FLUSH"]);
            redis.ask(&["FLUSHALL"]);
            redis.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
        }
    }
    thread::sleep(REST);
}

fn during(way: &Proxy, fault: Way) {
    way.set(fault);
    thread::sleep(FAULT);
    way.set(Way::CLEAR);
}

/// Stops a replica by SIGTERM, and starts it again on the same ports.
pub(super) fn restart(server: &mut Server, setup: &Setup) {
    server.process.signal("TERM");
    let ended = server.process.wait(PATIENCE).expect("a replica ends under load");
    assert!(ended.success(), "{ended}:\n{}", server.process.log());
    *server = setup.clone().start();
}

/// Writes valid and invalid rules in turn until it is stopped, and returns the number of changes.
pub(super) fn reload(directories: &[PathBuf], stop: &AtomicBool) -> usize {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let text = match count % 3 {
            0 => RULES.replace("requests_per_unit: 100", "requests_per_unit: 200"),
            1 => RULES.replace("unit: hour", "unit: fortnight"),
            _ => RULES.to_owned(),
        };
        for directory in directories {
            // The directory of a stopped replica is gone.
            let _ = put(directory, &text);
        }
        count += 1;
        thread::sleep(Duration::from_millis(500));
    }
    count
}

fn put(directory: &Path, text: &str) -> std::io::Result<()> {
    let part = directory.with_extension("part");
    fs::write(&part, text)?;
    fs::rename(part, directory.join("soak.yaml"))
}

/// Opens misbehaving connections, and closes them after some seconds, until it is stopped. Returns their number.
pub(super) fn pester(ports: &[Ports], stop: &AtomicBool) -> usize {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let opened: Vec<TcpStream> = ports.iter().copied().flat_map(opened).collect();
        count += opened.len();
        for _ in 0..30 {
            if !stop.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(100));
            }
        }
    }
    count
}

fn opened(ports: Ports) -> Vec<TcpStream> {
    let head = [PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    // A message of 4 MiB on a stream that is not open, and a frame of an unknown type.
    let nonsense = [&head[..], &[0, 64, 0, 0, 0, 0, 0, 0, 1], &[0, 0, 1, 255, 0, 0, 0, 0, 0, 0]].concat();
    let body = "POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: 4000000\r\n\r\n{";
    let page = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".repeat(20);
    let kinds: [(u16, &[u8]); 7] = [
        (ports.grpc, b""),
        (ports.grpc, PREFACE),
        (ports.grpc, &head),
        (ports.grpc, &nonsense),
        (ports.http, b"GET / HTTP/1.1\r\n"),
        (ports.http, body.as_bytes()),
        // It never reads the responses.
        (ports.metrics, page.as_bytes()),
    ];
    kinds
        .into_iter()
        .cycle()
        .take(kinds.len() * 6)
        .filter_map(|(port, bytes)| open(port, bytes).ok())
        .collect()
}

fn open(port: u16, bytes: &[u8]) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), Duration::from_secs(1))?;
    stream.set_write_timeout(Some(Duration::from_secs(1)))?;
    // The server may reset the connection or wait for the rest.
    let _ = stream.write_all(bytes);
    Ok(stream)
}
