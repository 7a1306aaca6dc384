//! Bodies of HTTP requests: nothing is read before the head was routed and authenticated.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
};

use support::{PATIENCE, eventually, http, ports::free_port, server::Setup};

const RULES: &str =
    "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1000000}}]\n";

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A connection with a request whose body stays unfinished.
fn unfinished(port: u16, head: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("{head}\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    // It may be answered and closed already.
    let _ = stream.write_all(&vec![b' '; 200_000]);
    stream
}

/// The status of a response, which arrives while the body is unfinished.
fn status(mut stream: TcpStream) -> u16 {
    let mut start = [0; 12];
    stream.read_exact(&mut start).expect("a response to the head");
    std::str::from_utf8(&start[9..]).unwrap().parse().unwrap()
}

fn import(port: u16) -> u16 {
    let authorization = format!("Bearer {TOKEN}");
    let headers = [("authorization", &*authorization)];
    let call = |path: &str, body: &[u8]| http::send(port, "POST", path, &headers, body).unwrap();
    let import = call("/api/v1/imports", b"").json()["import"].as_str().unwrap().to_owned();
    let line = r#"{"domain":"d","descriptor":"k=a","action":"block"}"#;
    let lines = format!("{line}\n").repeat(1_000_000 / line.len());
    let answer = call(&format!("/api/v1/imports/{import}"), lines.as_bytes());
    assert_eq!(
        http::send(port, "DELETE", &format!("/api/v1/imports/{import}"), &headers, b"").unwrap().status,
        200
    );
    answer.status
}

#[test]
fn strangers_take_no_memory_from_imports() {
    let port = free_port();
    let setup = Setup::new().rules("d.yaml", RULES).env("ADMIN_ADDR", &format!("127.0.0.1:{port}"));
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens");
    fs::write(&tokens, TOKEN).unwrap();
    let _server = setup.env("ADMIN_TOKEN_FILE", tokens.to_str().unwrap()).start();
    eventually("an import succeeds", || {
        TcpStream::connect(("127.0.0.1", port)).map(drop).map_err(|error| error.to_string())
    });
    let authorized = format!("authorization: Bearer {TOKEN}");
    for (head, expected) in [
        ("POST /api/v1/imports/x HTTP/1.1".to_owned(), 401),
        ("POST /api/v1/imports/x HTTP/1.1\r\nauthorization: Bearer 0123456789abcdefX".to_owned(), 401),
        ("POST /api/v1/imports/x HTTP/1.1\r\norigin: http://evil.test".to_owned(), 403),
        ("POST /nowhere HTTP/1.1".to_owned(), 401),
        (format!("POST /nowhere HTTP/1.1\r\n{authorized}"), 404),
        (format!("PATCH /api/v1/overrides HTTP/1.1\r\n{authorized}"), 405),
        (format!("GET /api/v1/status HTTP/1.1\r\n{authorized}"), 200),
    ] {
        let waiting: Vec<_> = (0..20).map(|_| unfinished(port, &head)).collect();
        assert_eq!(import(port), 200, "beside {head}");
        for stream in waiting {
            assert_eq!(status(stream), expected, "{head}");
        }
    }
}

#[test]
fn the_head_alone_is_answered_where_no_body_is_wanted() {
    let server = Setup::new().rules("d.yaml", RULES).start();
    let ports = server.ports;
    for (port, head, expected) in [
        (ports.http, "POST /nowhere HTTP/1.1", 404),
        (ports.http, "PUT /nowhere HTTP/1.1", 404),
        (ports.http, "GET /json HTTP/1.1", 405),
        (ports.http, "GET /healthcheck HTTP/1.1", 200),
        (ports.http, "POST /healthcheck HTTP/1.1", 200),
        (ports.http, "POST /json HTTP/1.1\r\norigin: http://evil.test", 403),
        (ports.debug, "POST /nowhere HTTP/1.1", 404),
        (ports.debug, "POST /rlconfig HTTP/1.1", 200),
        (ports.metrics, "POST /nowhere HTTP/1.1", 404),
        (ports.metrics, "POST /metrics HTTP/1.1", 200),
    ] {
        assert_eq!(status(unfinished(port, head)), expected, "{head}");
    }
    let server = Setup::new().rules("d.yaml", RULES).env("JSON_ENABLED", "false").start();
    assert_eq!(status(unfinished(server.ports.http, "POST /json HTTP/1.1")), 404);
}

/// A reset after the response would make most clients lose it.
#[test]
fn a_client_that_sends_its_whole_body_reads_the_response() {
    let server = Setup::new().rules("d.yaml", RULES).start();
    for _ in 0..20 {
        let answer = http::post(server.ports.http, "/nowhere", &" ".repeat(3_000_000));
        assert_eq!(answer.status, 404);
        let answer = http::post(server.ports.http, "/json", &" ".repeat(5_000_000));
        assert_eq!(answer.status, 400, "{}", answer.text());
    }
}
