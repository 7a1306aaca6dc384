//! Silent, slow or numerous clients do not block others.

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use http::HeaderMap;
use tokio::runtime::{Builder, Runtime};

use support::{
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

async fn is_answered(client: &mut RawClient) -> bool {
    let message = framed(&request("d", &[&[("k", "v")]]));
    matches!(client.exchange(message, &HeaderMap::new()).await, Exchange::Answered(status) if status.code == 0)
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
