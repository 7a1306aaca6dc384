//! Peers of the gRPC port that send or read so slowly that they only hold memory.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use support::{
    PATIENCE,
    client::request,
    frames::{CONTINUATION, Connection, DATA, END_STREAM, HEADERS, PING, SETTINGS, WINDOW_UPDATE, head},
    raw::framed,
    server::{Server, Setup},
};

const RULES: &str =
    "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1000000}}]\n";

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

fn closed(server: &Server, reason: &str) -> usize {
    server.count(&format!("tollgate_connections_closed_total{{port=\"grpc\",reason=\"{reason}\"}}"))
}

fn assert_answers(client: &mut Connection, stream: u32) {
    client.begin(stream);
    client.send(DATA, END_STREAM, stream, &framed(&request("d", &[&[("k", "v")]])));
    assert!(client.end_of(stream).ends_with("grpc-status\u{1}0"));
}

/// Receives until the connection is closed, and does `meanwhile` about every 50 ms.
fn until_closed(client: &mut Connection, mut meanwhile: impl FnMut(&mut Connection)) -> Duration {
    let begun = Instant::now();
    while client.try_receive(Duration::from_millis(50)).is_ok() {
        assert!(begun.elapsed() < PATIENCE, "it is not closed");
        meanwhile(client);
    }
    begun.elapsed()
}

#[test]
fn an_incomplete_frame_or_header_block_closes_the_connection() {
    let server = Setup::new().rules("d.yaml", RULES).env("GRPC_RECEIVE_TIMEOUT", "400ms").start();
    let block = head(PATH);
    let (first, rest) = block.split_at(10);
    let open = |sent: &dyn Fn(&mut Connection)| {
        let mut client = Connection::open(server.ports.grpc);
        assert_answers(&mut client, 1);
        // A stream that we have reset: its data is dropped.
        client.call(3, "/a.Service/Unknown");
        client.end_of(3);
        sent(&mut client);
        client
    };
    let bytes: [(&str, &[u8]); 3] = [
        ("a frame header", &[0, 0, 8, PING, 0]),
        ("a payload", &[0, 0, 8, PING, 0, 0, 0, 0, 0, 1]),
        ("data for a stream that has ended", &[0, 0, 100, DATA, 0, 0, 0, 0, 3, 1, 2, 3]),
    ];
    for (number, (what, bytes)) in bytes.into_iter().enumerate() {
        let mut client = open(&|client| client.stream.write_all(bytes).unwrap());
        let took = until_closed(&mut client, |_| {});
        assert!(took >= Duration::from_millis(300), "{what}: after {took:?}");
        assert_eq!(closed(&server, "read_timeout"), number + 1, "{what}");
    }
    // Progress does not help.
    let mut client = open(&|client| client.send(HEADERS, 0, 5, first));
    let mut left = rest.iter();
    until_closed(&mut client, |client| {
        // The connection may be closed in this moment.
        let _ =
            left.next().map(|byte| client.stream.write_all(&[0, 0, 1, CONTINUATION, 0, 0, 0, 0, 5, *byte]));
    });
    assert!(left.len() > 0, "it was closed before the block was complete");
    let mut client = open(&|client| client.stream.write_all(&[0, 0, 100, PING, 0, 0, 0, 0, 0]).unwrap());
    until_closed(&mut client, |client| drop(client.stream.write_all(&[1])));
    assert_eq!(closed(&server, "read_timeout"), 5);
}

#[test]
fn a_slow_connection_of_complete_frames_stays() {
    let server = Setup::new().rules("d.yaml", RULES).env("GRPC_RECEIVE_TIMEOUT", "400ms").start();
    let mut client = Connection::open(server.ports.grpc);
    let ping = [&[0, 0, 8, PING, 0, 0, 0, 0, 0][..], &[7; 8]].concat();
    // Each write completes a frame and begins the next one.
    client.stream.write_all(&ping[..5]).unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        client.stream.write_all(&[&ping[5..], &ping[..5]].concat()).unwrap();
        client.frame_of(PING, 0);
        // More would be a flood.
        std::thread::sleep(Duration::from_millis(10));
    }
    client.stream.write_all(&ping[5..]).unwrap();
    client.frame_of(PING, 0);
    // A message may take its time beyond that of a frame.
    assert_answers(&mut client, 1);
    assert_eq!(closed(&server, "read_timeout"), 0);
}

/// 20 seconds, whatever it sends meanwhile.
#[test]
fn a_response_that_is_not_read_closes_the_connection() {
    let server = Setup::new().rules("d.yaml", RULES).start();
    let mut client = Connection::open(server.ports.grpc);
    // No response fits a window.
    client.send(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    client.begin(1);
    client.send(DATA, END_STREAM, 1, &framed(&request("d", &[&[("k", "v")]])));
    client.settle();
    let mut sent = Instant::now();
    let mut bytes = 0;
    let took = until_closed(&mut client, |client| {
        if sent.elapsed() > Duration::from_secs(3) {
            sent = Instant::now();
            bytes += 1;
            client.send(PING, 0, 0, &[0; 8]);
            client.send(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]);
            client.send(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]);
        }
    });
    assert!(bytes >= 3 && took >= Duration::from_secs(15), "{bytes} bytes in {took:?}");
    assert_eq!(closed(&server, "write_timeout"), 1);
}
