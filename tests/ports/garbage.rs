//! Invalid bytes on every port: the service stays up, serves others, and keeps its
//! memory.
//!
//! A failing test prints its seed; `TOLLGATE_TEST_SEED` reproduces the same bytes.

use std::{
    env,
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use support::{
    client::request,
    http as http1,
    noise::Noise,
    server::{Server, Setup},
};

const RULES: &str =
    "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1000000}}]\n";

/// The allowed growth of memory between the first round and the last, for the allocator.
const PLAY_KIB: u64 = 12 * 1024;

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Runs `round` a number of times and checks the service after each.
fn survives(rounds: usize, mut round: impl FnMut(&Server, &mut Noise)) {
    let now = || u64::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos());
    let seed = env::var("TOLLGATE_TEST_SEED").map_or_else(|_| now(), |text| text.parse().unwrap());
    println!("TOLLGATE_TEST_SEED={seed}");
    let mut noise = Noise::new(seed);
    // Without huge pages, each of which takes 2 MB at its first use.
    let mut server = Setup::new().rules("d.yaml", RULES).env("MIMALLOC_ALLOW_THP", "0").start();
    // The first round fills the pools of the service.
    round(&server, &mut noise);
    let before = server.process.resident_kib();
    for _ in 1..rounds {
        round(&server, &mut noise);
    }
    if let Some(status) = server.process.exited() {
        panic!("it ended with {status}:\n{}", server.process.log());
    }
    let answer = server.ask(request("d", &[&[("k", "v")]])).expect("it still responds");
    assert_eq!(answer.statuses.len(), 1);
    assert_eq!(http1::get(server.ports.http, "/healthcheck").status, 200);
    let after = server.process.resident_kib();
    println!("resident: {before} KiB after the first round, {after} KiB after the last");
    assert!(after < before + PLAY_KIB, "from {before} to {after} KiB");
    let log = server.final_log();
    assert!(!log.contains("panicked"), "{log}");
}

/// Sends bytes, closes the sending side, and reads until the connection closes.
fn throw(port: u16, bytes: &[u8]) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the port is open");
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    // The service may close the connection at any time.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read_to_end(&mut Vec::new());
}

#[test]
fn random_bytes_on_every_port() {
    survives(20, |server, noise| {
        let ports = server.ports;
        for port in [ports.http, ports.grpc, ports.debug, ports.metrics] {
            for _ in 0..5 {
                throw(port, &noise.bytes(4096));
                let start: &[u8] =
                    if port == ports.grpc { HTTP2_PREFACE } else { b"POST /json HTTP/1.1\r\n" };
                throw(port, &[start, &noise.bytes(4096)].concat());
            }
        }
    });
}
