//! Unfinished handshakes: they take a bounded amount of memory, and clients connect beside them.

use std::{
    collections::VecDeque,
    io::Write as _,
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use socket2::{Domain, Socket, Type};

use super::*;
use support::{at_best_within, server::Server, time_of};

/// The beginning of a ClientHello of 64,000 bytes, in records of 16,000.
fn client_hello(size: usize) -> Vec<u8> {
    let mut handshake = vec![1, 0, 0xfa, 0, 3, 3];
    handshake.resize(64_000, 0);
    let records = handshake.chunks(16_000).flat_map(|record| {
        let [high, low] = u16::try_from(record.len()).unwrap().to_be_bytes();
        [&[22, 3, 1, high, low], record].concat()
    });
    records.take(size).collect()
}

/// Connections that send so much of a ClientHello and then nothing.
fn unfinished(server: &Server, count: usize, size: usize) -> Vec<TcpStream> {
    let hello = client_hello(size);
    let connections = (0..count).map(|_| {
        let mut stream = TcpStream::connect(("127.0.0.1", server.ports.grpc)).unwrap();
        // It may be closed before it has taken all.
        let _ = stream.write_all(&hello);
        stream
    });
    connections.collect()
}

#[test]
fn unfinished_handshakes_take_little_memory_and_clients_connect_beside_them() {
    const COUNT: usize = 2_500;
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let files = Files::new(&ours.server());
    let client = TlsClient::new(&[&ours], Some(&theirs.sign(&["envoy.test"])));
    for size in [100, 4_000, 15_000, 64_000] {
        let setup = files.mutual(&theirs).rules("d.yaml", RULES).env("MEMORY_LIMIT", "256Mi");
        let server = setup.env("GRPC_MAX_CONNECTIONS", "10000").start();
        client.ask(server.ports.grpc).unwrap();
        let before = server.process.resident_kib();
        server.process.reset_peak();
        let attack = thread::scope(|scope| {
            let attack = scope.spawn(|| unfinished(&server, COUNT, size));
            while !attack.is_finished() {
                at_best_within("a connection during the flood", Duration::from_secs(1), 20, || {
                    time_of(|| client.ask(server.ports.grpc).unwrap())
                });
            }
            attack.join().unwrap()
        });
        at_best_within("a connection", Duration::from_secs(1), 20, || {
            time_of(|| client.ask(server.ports.grpc).unwrap())
        });
        // What a connection has by itself, the memory of all handshakes, and what the allocator keeps.
        // Without optimization the states of tasks are several times larger.
        let each = if cfg!(debug_assertions) { 64 } else { 24 };
        let most = COUNT as u64 * each + (4 << 10) + (16 << 10);
        let grown = server.process.peak_kib().saturating_sub(before);
        assert!(grown < most, "{grown} KiB for {COUNT} handshakes of {size} bytes, at most {most}");
        let reason = match size {
            15_000 => Some("memory"),
            64_000 => Some("protocol"),
            _ => None,
        };
        if let Some(reason) = reason {
            eventually("they are counted", || {
                let metric = format!("tollgate_tls_handshake_failures_total{{reason=\"{reason}\"}}");
                let counted = server.metric(&metric);
                holds(counted > 0.0, || counted.to_string())
            });
        }
        drop(attack);
    }
}

/// Opens connections from another address that begin a ClientHello, and closes the oldest of the last `COUNT` for each.
fn flood(port: u16, size: usize, stop: &AtomicBool) {
    const COUNT: usize = 1_800;
    let hello = client_hello(size);
    let mut open = VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into()).unwrap();
        if socket.connect(&SocketAddr::from(([127, 0, 0, 1], port)).into()).is_ok() {
            let mut stream = TcpStream::from(socket);
            // The kernel takes what it has room for.
            stream.set_nonblocking(true).unwrap();
            let _ = stream.write(&hello);
            open.push_back(stream);
        }
        if open.len() > COUNT {
            open.pop_front();
        }
    }
}

#[test]
fn clients_connect_within_a_second_while_another_address_opens_handshakes_without_end() {
    const CLIENTS: usize = 30;
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let files = Files::new(&ours.server());
    let client = TlsClient::new(&[&ours], Some(&theirs.sign(&["envoy.test"])));
    for size in [4_000, 64_000] {
        let setup = files.mutual(&theirs).rules("d.yaml", RULES).env("MEMORY_LIMIT", "256Mi");
        let setup = setup.env("GRPC_MAX_CONNECTIONS", "10000").env("GRPC_WORKERS", "2");
        let (server, stop) = (setup.start(), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| flood(server.ports.grpc, size, &stop));
            }
            thread::sleep(Duration::from_secs(2));
            let slowest = || {
                let times = (0..CLIENTS).map(|_| time_of(|| client.ask(server.ports.grpc).unwrap()));
                times.max().unwrap_or_default()
            };
            let what = format!("the slowest of {CLIENTS} clients, with {size} bytes of a ClientHello");
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                at_best_within(&what, Duration::from_secs(1), 5, slowest);
            }));
            stop.store(true, Ordering::Relaxed);
            if let Err(panic) = result {
                std::panic::resume_unwind(panic);
            }
        });
    }
}
