//! The memory of the gRPC port for unfinished messages and idle connections.

use std::time::{Duration, Instant};

use tonic::Code;

use support::{
    PATIENCE,
    client::request,
    frames::{Connection, DATA, END_STREAM, HEADERS},
    raw::framed,
    server::Setup,
};

const RULES: &str =
    "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1000000}}]\n";

/// The start of a message of this length with an unknown field.
fn start_of(message: usize, bytes: usize) -> Vec<u8> {
    let mut framed = vec![0];
    framed.extend_from_slice(&u32::try_from(message).unwrap().to_be_bytes());
    let mut rest = message - 5;
    framed.push(15 << 3 | 2);
    for _ in 0..3 {
        framed.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
        rest >>= 7;
    }
    framed.push(u8::try_from(rest).unwrap());
    framed.resize(bytes, b'x');
    framed
}

#[test]
fn messages_beyond_the_budget_fail_and_later_requests_succeed() {
    let setup = Setup::new().rules("d.yaml", RULES).env("GRPC_RECEIVE_TIMEOUT", "5m");
    let setup = setup.env("GRPC_MAX_REQUEST_BYTES", "65536").env("GRPC_MAX_INFLIGHT_BYTES", "262144");
    let server = setup.start();
    let mut client = Connection::open(server.ports.grpc);
    let message = start_of(60_000 - 5, 60_000);
    for number in 0..8 {
        client.begin(2 * number + 1);
        client.data(2 * number + 1, &message[..59_999]);
    }
    let refused = client.end_of(9);
    assert!(refused.contains("GRPC_MAX_INFLIGHT_BYTES"), "four have room, the fifth has none: {refused}");
    client.send(DATA, END_STREAM, 1, b"x");
    assert!(client.end_of(1).contains("rate limit domain must not be empty"));
    client.begin(101);
    client.send(DATA, END_STREAM, 101, &framed(&request("d", &[&[("k", "v")]])));
    assert!(client.end_of(101).ends_with("grpc-status\u{1}0"));
    let counted = "tollgate_requests_refused_total{reason=\"inflight_bytes\"}";
    assert_eq!(server.metrics().get(counted), Some(&4.0));
}

#[test]
fn a_message_that_is_incomplete_at_the_timeout_fails() {
    let setup = Setup::new().rules("d.yaml", RULES).env("GRPC_RECEIVE_TIMEOUT", "600ms");
    let server = setup.start();
    let mut client = Connection::open(server.ports.grpc);
    let message = start_of(1000, 1005);
    let begun = Instant::now();
    client.begin(1);
    client.data(1, &message[..100]);
    client.begin(3);
    // One that has sent only its head, and one that sends single bytes.
    client.begin(5);
    let dribble = (100..).map_while(|at| {
        client.data(3, &message[at - 100..at - 99]);
        let frame = client.receive(Duration::from_millis(20));
        let ended = frame.is_some_and(|frame| (frame.kind, frame.stream) == (HEADERS, 3));
        (!ended && begun.elapsed() < PATIENCE).then_some(())
    });
    let sent = dribble.count();
    assert!(begun.elapsed() >= Duration::from_millis(600), "not before its time: {:?}", begun.elapsed());
    assert!(begun.elapsed() < PATIENCE, "{sent} bytes, and it is still waited for");
    client.begin(7);
    client.send(DATA, END_STREAM, 7, &framed(&request("d", &[&[("k", "v")]])));
    assert!(client.end_of(7).ends_with("grpc-status\u{1}0"), "the connection stays open");
    let mut alone = Connection::open(server.ports.grpc);
    alone.begin(1);
    let ended = alone.end_of(1);
    let code = format!("grpc-status\u{1}{}", Code::DeadlineExceeded as i32);
    assert!(ended.contains(&code) && ended.contains("GRPC_RECEIVE_TIMEOUT"), "{ended}");
}

/// A tenth of 2,000 connections in 20 MB, so that the limit of open files suffices. Without optimization the
/// states of tasks are several times larger.
#[test]
fn idle_connections_take_little_memory() {
    let most_kib_each = if cfg!(debug_assertions) { 40 } else { 10 };
    // Without huge pages, with which the growth is a multiple of 2 MB.
    let server = Setup::new().rules("d.yaml", RULES).env("MIMALLOC_ALLOW_THP", "0").start();
    let port = server.ports.grpc;
    let answered = |client: &mut Connection| {
        client.begin(1);
        client.send(DATA, END_STREAM, 1, &framed(&request("d", &[&[("k", "v")]])));
        assert!(client.end_of(1).ends_with("grpc-status\u{1}0"));
    };
    let mut warm: Vec<_> = (0..20).map(|_| Connection::open(port)).collect();
    warm.iter_mut().for_each(answered);
    let before = server.process.resident_kib();
    let mut idle: Vec<_> = (0..200).map(|_| Connection::open(port)).collect();
    idle.iter_mut().for_each(answered);
    let grown = server.process.resident_kib().saturating_sub(before);
    println!("200 idle connections: {grown} KiB");
    assert!(grown <= 200 * most_kib_each, "{grown} KiB");
}
