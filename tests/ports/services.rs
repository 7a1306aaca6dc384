//! Health checks, reflection and unknown methods: what a caller can make the service hold.

use std::time::Duration;

use prost::Message;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_reflection::pb::v1::{ServerReflectionRequest, server_reflection_request::MessageRequest};

use support::{
    PATIENCE,
    client::request,
    eventually,
    frames::{Connection, DATA, END_STREAM, Frame, HEADERS, RST_STREAM, SETTINGS, WINDOW_UPDATE},
    holds,
    raw::{frame, framed},
    server::{Server, Setup},
};

const RULES: &str =
    "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1000000}}]\n";

const CHECK: &str = "/grpc.health.v1.Health/Check";
const WATCH: &str = "/grpc.health.v1.Health/Watch";
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
/// A framed `HealthCheckResponse`.
const SERVING: &[u8] = &[0, 0, 0, 0, 2, 8, 1];
const NOT_SERVING: &[u8] = &[0, 0, 0, 0, 2, 8, 2];

fn setup() -> Setup {
    Setup::new().rules("d.yaml", RULES)
}

/// The start of a message of this length.
fn prefix(length: u32) -> Vec<u8> {
    [&[0][..], &length.to_be_bytes()].concat()
}

/// A health check with a message of this length.
fn check_of(length: usize) -> Vec<u8> {
    let message = (0..).map(|pad| HealthCheckRequest { service: "x".repeat(pad) }.encode_to_vec());
    frame(&message.into_iter().find(|message| message.len() >= length).unwrap()).to_vec()
}

fn question(text: &str) -> Vec<u8> {
    let message_request = Some(MessageRequest::FileContainingSymbol(text.to_owned()));
    frame(&ServerReflectionRequest { host: String::new(), message_request }.encode_to_vec()).to_vec()
}

fn is_status(block: &str, code: Code) -> bool {
    block.contains(&format!("grpc-status{}{}", char::from(if code as i32 > 9 { 2 } else { 1 }), code as i32))
}

fn refused(server: &Server, reason: &str) -> usize {
    server.count(&format!("tollgate_requests_refused_total{{reason=\"{reason}\"}}"))
}

/// Sends a request, which is answered.
fn assert_answers(client: &mut Connection, stream: u32) {
    client.begin(stream);
    client.send(DATA, END_STREAM, stream, &framed(&request("d", &[&[("k", "v")]])));
    assert!(client.end_of(stream).ends_with("grpc-status\u{1}0"));
}

#[test]
fn messages_are_accepted_up_to_their_maximum() {
    let server = setup().start();
    let mut client = Connection::open(server.ports.grpc);
    client.call(1, CHECK);
    client.send(DATA, END_STREAM, 1, &check_of(4096));
    let answer = client.end_of(1);
    assert!(is_status(&answer, Code::NotFound), "4096 bytes, of a service that does not exist: {answer}");
    client.call(3, CHECK);
    client.send(DATA, 0, 3, &prefix(4097));
    let answer = client.end_of(3);
    assert!(is_status(&answer, Code::ResourceExhausted), "{answer}");

    client.call(5, REFLECTION);
    let long = question(&"x".repeat(64_996));
    assert_eq!(long.len(), 65_005);
    client.data(5, &long);
    client.send(DATA, END_STREAM, 5, &[]);
    let answer = client.end_of(5);
    assert!(is_status(&answer, Code::Ok), "65000 bytes: {answer}");
    client.call(7, REFLECTION);
    client.send(DATA, 0, 7, &prefix(65_001));
    let answer = client.end_of(7);
    assert!(is_status(&answer, Code::ResourceExhausted), "{answer}");
    assert_eq!(refused(&server, "message_too_large"), 2);
}

#[test]
fn invalid_messages_fail() {
    let server = setup().start();
    let mut client = Connection::open(server.ports.grpc);
    let cases: [(&str, &[u8], Code); 9] = [
        (CHECK, &[1, 0, 0, 0, 0], Code::Unimplemented),
        (REFLECTION, &[1, 0, 0, 0, 0], Code::Unimplemented),
        (CHECK, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0], Code::Internal),
        (CHECK, &[0, 0, 0, 0, 2, 0], Code::Internal),
        (CHECK, &[], Code::Internal),
        (WATCH, &[0, 0, 0, 0, 1, 0xff], Code::Internal),
        (WATCH, &[0, 0, 0, 0, 3, 10, 1, b'x'], Code::NotFound),
        (REFLECTION, &[0, 0, 0, 0, 1, 0xff], Code::Internal),
        (REFLECTION, &[0, 0, 0, 0, 9, 1], Code::Internal),
    ];
    for (number, (path, message, code)) in cases.into_iter().enumerate() {
        let stream = u32::try_from(number).unwrap() * 2 + 1;
        client.call(stream, path);
        client.send(DATA, END_STREAM, stream, message);
        let answer = client.end_of(stream);
        assert!(is_status(&answer, code), "{path} {message:?}: {answer}, expected {code:?}");
    }
    assert_answers(&mut client, 101);
}

#[test]
fn an_unknown_method_is_answered_at_its_head_and_its_data_is_dropped() {
    let server = setup().start();
    let mut client = Connection::open(server.ports.grpc);
    client.call(1, "/a.Service/Unknown");
    let answer = client.end_of(1);
    assert!(is_status(&answer, Code::Unimplemented), "{answer}");
    // More than the window of the connection, in frames for a stream that has ended.
    let before = server.process.resident_kib();
    for _ in 0..40 {
        client.data(1, &vec![0; 65_536]);
        client.settle();
    }
    let grown = server.process.resident_kib().saturating_sub(before);
    assert!(grown < 8 * 1024, "{grown} KiB");
    assert_answers(&mut client, 3);
}

/// A peer that reads nothing: requests of 30 bytes ask for kilobytes.
#[test]
fn reflection_waits_for_the_reader_of_its_responses() {
    let server = setup().start();
    let before = server.process.resident_kib();
    let mut clients: Vec<_> = (0..20).map(|_| Connection::open(server.ports.grpc)).collect();
    let file = question("envoy.service.ratelimit.v3.RateLimitRequest");
    let many: Vec<u8> = std::iter::repeat_n(&file[..], 60_000 / file.len()).flatten().copied().collect();
    for client in &mut clients {
        // Unbounded windows: only the socket is full.
        client.send(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]);
        client.send(WINDOW_UPDATE, 0, 0, &[0x7f, 0xf0, 0, 0]);
        for number in 0..16 {
            client.call(2 * number + 1, REFLECTION);
            client.data(2 * number + 1, &many);
        }
    }
    let mut honest = Connection::open(server.ports.grpc);
    assert_answers(&mut honest, 1);
    let grown = server.process.resident_kib().saturating_sub(before);
    assert!(grown < 64 * 1024, "{grown} KiB for 20 connections");
    // They are answered to a client that reads.
    let reader = &mut clients[0];
    let answered = (0..20).map(|_| reader.frame_of(DATA, 1)).filter(|frame| frame.payload.len() > 1000);
    assert_eq!(answered.count(), 20);
}

#[test]
fn streaming_calls_are_bounded_on_a_connection_and_in_all() {
    let server =
        setup().env("GRPC_MAX_CONNECTIONS", "20").env("GRPC_MAX_CONNECTIONS_PER_ADDRESS", "20").start();
    let mut client = Connection::open(server.ports.grpc);
    let watch = |client: &mut Connection, stream: u32| {
        client.call(stream, WATCH);
        client.send(DATA, END_STREAM, stream, &frame(&[]));
    };
    for number in 0..16 {
        watch(&mut client, 2 * number + 1);
        assert_eq!(client.frame_of(DATA, 2 * number + 1).payload, SERVING);
    }
    watch(&mut client, 33);
    assert!(is_status(&client.end_of(33), Code::ResourceExhausted));
    client.call(35, REFLECTION);
    assert!(is_status(&client.end_of(35), Code::ResourceExhausted));
    // One that ends makes room.
    client.send(RST_STREAM, 0, 1, &[0, 0, 0, 8]);
    watch(&mut client, 37);
    assert_eq!(client.frame_of(DATA, 37).payload, SERVING);
    // 20 on all connections: 16 and 4.
    let mut other = Connection::open(server.ports.grpc);
    for stream in [1, 3, 5, 7] {
        watch(&mut other, stream);
        assert_eq!(other.frame_of(DATA, stream).payload, SERVING);
    }
    watch(&mut other, 9);
    assert!(is_status(&other.end_of(9), Code::ResourceExhausted));
    assert_eq!(refused(&server, "streaming_calls"), 3);
    drop(client);
    eventually("a closed connection makes room", || {
        let mut third = Connection::open(server.ports.grpc);
        watch(&mut third, 1);
        let first = third.frame_of(HEADERS, 1);
        holds(first.flags & END_STREAM == 0, || format!("{first:?}"))
    });
}

#[test]
fn a_connection_that_only_watches_makes_room_for_a_new_one() {
    for (path, message) in [(WATCH, frame(&[]).to_vec()), (REFLECTION, question("grpc.health.v1.Health"))] {
        let setup = setup().env("GRPC_MAX_CONNECTIONS", "2").env("GRPC_MAX_CONNECTIONS_PER_ADDRESS", "2");
        let server = setup.start();
        let mut watching: Vec<_> = (0..2).map(|_| Connection::open(server.ports.grpc)).collect();
        for client in &mut watching {
            client.call(1, path);
            client.send(DATA, if path == WATCH { END_STREAM } else { 0 }, 1, &message);
            client.frame_of(DATA, 1);
            client.settle();
        }
        let mut new = Connection::open(server.ports.grpc);
        assert_answers(&mut new, 1);
        let closed = "tollgate_connections_closed_total{port=\"grpc\",reason=\"idle\"}";
        assert_eq!(server.count(closed), 1, "{path}");
        // Its stream ends with a status.
        let ended = watching[0].end_of(1);
        assert!(is_status(&ended, Code::Unavailable), "{ended}");
    }
}

/// Every watcher is notified, and the shutdown does not wait for them.
#[test]
fn a_change_of_health_reaches_every_watcher() {
    let mut server = setup().env("SHUTDOWN_DELAY", "1s").start();
    let mut clients: Vec<_> = (0..3).map(|_| Connection::open(server.ports.grpc)).collect();
    for client in &mut clients {
        for stream in [1, 3, 5] {
            client.call(stream, WATCH);
            client.send(DATA, END_STREAM, stream, &frame(b"\x0a\x09ratelimit"));
            assert_eq!(client.frame_of(DATA, stream).payload, SERVING);
        }
        client.settle();
    }
    server.process.signal("TERM");
    for client in &mut clients {
        let mut notified = Vec::new();
        while notified.len() < 3 {
            let Frame { kind, stream, payload, .. } = client.receive(PATIENCE).expect("a change is sent");
            if kind == DATA {
                assert_eq!(payload, NOT_SERVING);
                notified.push(stream);
            }
        }
        notified.sort_unstable();
        assert_eq!(notified, [1, 3, 5]);
    }
    for client in &mut clients {
        let ended = client.end_of(1);
        assert!(is_status(&ended, Code::Unavailable), "{ended}");
        // As a client that reads the GOAWAY does.
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    }
    let begun = std::time::Instant::now();
    assert!(server.process.wait(PATIENCE).expect("it ends").success());
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}
