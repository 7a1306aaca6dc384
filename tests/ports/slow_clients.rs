//! Silent, slow or numerous clients do not block others.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use http::HeaderMap;
use tokio::{
    net::TcpSocket,
    runtime::{Builder, Runtime},
    sync::oneshot,
};

use crate::support::{
    PATIENCE,
    client::request,
    eventually,
    grpc_tls::{Authority, Files, TlsClient},
    holds,
    raw::{Exchange, RawClient, framed},
    server::{Server, Setup},
};

const RULES: &str =
    "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1000000}}]\n";

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn setup(max_connections: &str) -> Setup {
    Setup::new().rules("d.yaml", RULES).env("GRPC_MAX_CONNECTIONS", max_connections)
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Connections that send no more than this.
fn silent(port: u16, count: usize, sent: &[u8]) -> Vec<TcpStream> {
    let open = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        // The service may have closed it already.
        let _ = stream.write_all(sent);
        stream
    };
    (0..count).map(|_| open()).collect()
}

/// The number of these connections that the service has closed.
fn closed(streams: &mut [TcpStream]) -> usize {
    let is_closed = |stream: &mut TcpStream| {
        stream.set_nonblocking(true).unwrap();
        loop {
            match stream.read(&mut [0; 4096]) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() != ErrorKind::WouldBlock,
            }
        }
    };
    streams.iter_mut().filter_map(|stream| is_closed(stream).then_some(())).count()
}

async fn connect_from(address: [u8; 4], port: u16) -> Result<RawClient, String> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::from(address), 0).into()).unwrap();
    let stream = socket.connect(SocketAddr::from(([127, 0, 0, 1], port))).await;
    RawClient::over(stream.map_err(|error| error.to_string())?).await
}

async fn is_answered(client: &mut RawClient) -> bool {
    let message = framed(&request("d", &[&[("k", "v")]]));
    matches!(client.exchange(message, &HeaderMap::new()).await, Exchange::Answered(status) if status.code == 0)
}

/// A connection with a request that is open until the sender is used or dropped.
async fn busy(address: [u8; 4], port: u16) -> Option<(RawClient, oneshot::Sender<bytes::Bytes>)> {
    let mut client = connect_from(address, port).await.ok()?;
    let (finish, message) = oneshot::channel();
    let mut first = client.clone();
    tokio::spawn(async move { first.exchange(message, &HeaderMap::new()).await });
    tokio::task::yield_now().await;
    // Its response shows that everything before it has arrived.
    is_answered(&mut client).await.then_some((client, finish))
}

fn count(server: &Server, metric: &str, reason: &str) -> u64 {
    let name = format!("tollgate_connections_{metric}_total{{port=\"grpc\",reason=\"{reason}\"}}");
    // Integers are printed without a fraction.
    server.metrics()[&name].to_string().parse().unwrap()
}

#[test]
fn sixty_silent_sockets_do_not_block_fifty_places() {
    for (implementation, sent) in
        [("fast", &b""[..]), ("fast", b"PRI *"), ("fast", PREFACE), ("tonic", b""), ("tonic", PREFACE)]
    {
        let server = setup("50").env("GRPC_SERVER", implementation).start();
        let mut streams = silent(server.ports.grpc, 60, sent);
        runtime().block_on(async {
            for _ in 0..20 {
                let mut client = RawClient::connect(server.ports.grpc).await.unwrap();
                assert!(is_answered(&mut client).await, "after {sent:?}");
            }
        });
        eventually("silent connections are closed", || {
            let closed = closed(&mut streams);
            holds(closed > 10, || format!("{closed} closed after {sent:?}"))
        });
        assert!(count(&server, "closed", "silent") >= 11);
        assert_eq!(count(&server, "refused", "max_connections"), 0);
    }
}

#[test]
fn silent_tls_handshakes_do_not_block_the_port() {
    let authority = Authority::new("ours");
    let files = Files::new(&authority.server());
    let server = files.setup().rules("d.yaml", RULES).env("GRPC_MAX_CONNECTIONS", "5").start();
    let _silent = silent(server.ports.grpc, 10, &[22, 3, 1]);
    TlsClient::new(&[&authority], None).ask(server.ports.grpc).unwrap();
    assert!(count(&server, "closed", "silent") >= 6);
}

#[test]
fn an_idle_connection_makes_room_without_losing_a_request() {
    for implementation in ["fast", "tonic"] {
        let setup = setup("3").env("GRPC_MAX_CONNECTIONS_PER_ADDRESS", "3");
        idle_makes_room(&setup.env("GRPC_SERVER", implementation).start(), implementation == "fast");
    }
}

fn idle_makes_room(server: &Server, sends_goaway: bool) {
    runtime().block_on(async {
        let mut idle = Vec::new();
        for _ in 0..3 {
            let mut client = RawClient::connect(server.ports.grpc).await.unwrap();
            assert!(is_answered(&mut client).await);
            idle.push(client);
        }
        let mut newcomer = RawClient::connect(server.ports.grpc).await.unwrap();
        assert!(is_answered(&mut newcomer).await, "the one idle longest makes room");
        let message = framed(&request("d", &[&[("k", "v")]]));
        // The connection that made room has sent a GOAWAY: no request was accepted and lost.
        let last = idle[0].exchange(message, &HeaderMap::new()).await;
        let is_said = matches!(last, Exchange::NotTaken | Exchange::Answered(_));
        assert!(is_said || !sends_goaway, "{last:?}");
        for client in &mut idle[1..] {
            assert!(is_answered(client).await, "the others stay; the first: {last:?}");
        }
    });
    assert_eq!(count(server, "closed", "idle"), 1);
}

#[test]
fn a_connection_that_only_pings_makes_room_first() {
    const EMPTY_SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    const PING: &[u8] = &[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    const PONG: &[u8] = &[0, 0, 8, 6, 1, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    for implementation in ["fast", "tonic"] {
        let setup = setup("3").env("GRPC_MAX_CONNECTIONS_PER_ADDRESS", "3");
        let server = setup.env("GRPC_SERVER", implementation).start();
        let mut pinging = TcpStream::connect(("127.0.0.1", server.ports.grpc)).unwrap();
        pinging.set_read_timeout(Some(PATIENCE)).unwrap();
        pinging.write_all(&[PREFACE, EMPTY_SETTINGS].concat()).unwrap();
        let mut ping = || {
            pinging.write_all(PING).unwrap();
            let mut read = Vec::new();
            while !read.ends_with(PONG) {
                let mut byte = [0];
                pinging.read_exact(&mut byte).unwrap();
                read.push(byte[0]);
            }
        };
        ping();
        runtime().block_on(async {
            let mut later = Vec::new();
            for _ in 0..2 {
                let mut client = RawClient::connect(server.ports.grpc).await.unwrap();
                assert!(is_answered(&mut client).await);
                later.push(client);
            }
            ping();
            let mut newcomer = RawClient::connect(server.ports.grpc).await.unwrap();
            assert!(is_answered(&mut newcomer).await);
            for client in &mut later {
                assert!(is_answered(client).await, "{implementation}: the others stay");
            }
        });
        assert_eq!(count(&server, "closed", "idle"), 1);
    }
}

#[test]
fn busy_connections_stay_and_new_ones_are_refused() {
    for implementation in ["fast", "tonic"] {
        let setup = setup("2").env("GRPC_MAX_CONNECTIONS_PER_ADDRESS", "2");
        busy_stay(&setup.env("GRPC_SERVER", implementation).start());
    }
}

fn busy_stay(server: &Server) {
    runtime().block_on(async {
        let mut kept = Vec::new();
        for _ in 0..2 {
            kept.push(busy([127, 0, 0, 1], server.ports.grpc).await.expect("a place is free"));
        }
        let mut third = connect_from([127, 0, 0, 2], server.ports.grpc).await.unwrap();
        assert!(!is_answered(&mut third).await, "no connection can make room");
        for (client, _) in &mut kept {
            assert!(is_answered(client).await, "busy connections stay");
        }
        assert_eq!(count(server, "refused", "max_connections"), 1);
        server.wait_for_log(&["GRPC_MAX_CONNECTIONS"]);
    });
}

#[test]
fn one_address_cannot_block_the_others() {
    // By default, an address may have three quarters.
    for (max, per_address) in [("4", None), ("8", Some("3"))] {
        let setup = per_address
            .into_iter()
            .fold(setup(max), |setup, most| setup.env("GRPC_MAX_CONNECTIONS_PER_ADDRESS", most));
        let server = setup.start();
        runtime().block_on(async {
            let mut kept = Vec::new();
            for _ in 0..3 {
                kept.push(busy([127, 0, 0, 3], server.ports.grpc).await.expect("a place is free"));
            }
            let mut fourth = connect_from([127, 0, 0, 3], server.ports.grpc).await.unwrap();
            assert!(!is_answered(&mut fourth).await, "its address is at its limit");
            assert_eq!(count(&server, "refused", "max_connections_per_address"), 1);
            let mut other = connect_from([127, 0, 0, 4], server.ports.grpc).await.unwrap();
            assert!(is_answered(&mut other).await, "another address is below its limit");
        });
    }
}

#[test]
fn a_connection_without_a_preface_is_closed_in_ten_seconds() {
    let servers = ["fast", "tonic"].map(|name| setup("50").env("GRPC_SERVER", name).start());
    let begun = Instant::now();
    let mut streams = Vec::new();
    for server in &servers {
        streams.extend(silent(server.ports.grpc, 2, b""));
        streams.extend(silent(server.ports.grpc, 2, PREFACE));
    }
    eventually("they are closed", || {
        let closed = closed(&mut streams);
        holds(closed == streams.len(), || format!("{closed} closed"))
    });
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(9500), "closed after {took:?}");
    assert_eq!(servers.each_ref().map(|server| count(server, "closed", "preface_timeout")), [4, 4]);
}
