//! Clients of the admin port that guess tokens, do not read, or leave an import behind: they cost others nothing, and
//! the guesses are seen.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use socket2::{Domain, Socket, Type};

use super::{Admin, setup};
use support::{clock::Clock, eventually, holds, http, server::Setup};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

/// A client that sends a request, and never reads.
fn unread(port: u16, path: &str) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&SocketAddr::from(([127, 0, 0, 1], port)).into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n").as_bytes()).unwrap();
    stream
}

/// A service with rules whose list has 4 MB.
fn with_many_rules() -> (Setup, u16) {
    let (setup, port) = setup();
    let rule = |number: usize| {
        format!("- {{key: k, value: v{number}, rate_limit: {{unit: hour, requests_per_unit: 9}}}}\n")
    };
    let rules: String = (0..13_000).map(rule).collect();
    (setup.rules("many.yaml", &format!("domain: many\ndescriptors:\n{rules}")), port)
}

#[test]
fn small_calls_are_answered_beside_clients_that_do_not_read_large_replies() {
    let (setup, port) = with_many_rules();
    let server = setup.env("HTTP_TIMEOUT", "1h").start();
    let admin = Admin { server, port };
    let list = "/api/v1/rules?n=100000";
    let clients: Vec<TcpStream> = (0..8).map(|_| unread(port, list)).collect();
    // Until the last of them has been answered, with a list or without.
    for client in &clients {
        eventually("it is answered", || {
            holds(client.peek(&mut [0]).is_ok_and(|read| read == 1), || "not yet")
        });
    }
    let large = http::get(port, list);
    assert!(large.status == 503 && large.text().contains("do not read"), "{} {}", large.status, large.text());
    for number in 0..5 {
        let block = format!(r#"{{"domain":"shop","descriptor":"user=u{number}","action":"block"}}"#);
        let set = http::send(port, "POST", "/api/v1/overrides", &JSON, block.as_bytes()).unwrap();
        assert_eq!(set.status, 200, "{}", set.text());
        for path in ["status", "rules?rule=shop.user", "top", "counters?domain=shop&descriptor=user%3Da"] {
            assert_eq!(http::get(port, &format!("/api/v1/{path}")).status, 200, "{path}");
        }
    }
    let rules = admin.get("/api/v1/rules?domain=shop&rule=shop.user");
    assert_eq!((&rules["total"], &rules["rules"][0]["rule"]), (&1.into(), &"shop.user".into()), "{rules}");
    drop(clients);
    eventually("the room is free again", || holds(http::get(port, list).status == 200, || "full"));
}

#[test]
fn followers_that_never_read_leave_their_places_to_others() {
    let (setup, port) = setup();
    let _server = setup.env("HTTP_TIMEOUT", "2s").start();
    let follow = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let head = format!("GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        (String::from_utf8_lossy(&status[9..]).into_owned(), stream)
    };
    let begun = Instant::now();
    let silent: Vec<_> = (0..32).map(|_| follow()).collect();
    // On a busy machine the first ones may have ended before the last one asked.
    if begun.elapsed() < Duration::from_secs(2) {
        assert!(silent.iter().all(|(status, _)| status == "200"));
        assert_eq!(follow().0, "503", "all places are taken");
    }
    eventually("a place is free", || {
        let (status, _stream) = follow();
        holds(status == "200", || status.clone())
    });
    drop(silent);
}

#[test]
fn an_import_that_nobody_continues_makes_room_for_the_next() {
    let clock = Clock::at("2026-06-01T12:00:00Z").steerable();
    let _clock = clock.enter();
    let admin = Admin::start();
    let begin = || http::post(admin.port, "/api/v1/imports", "");
    let first = begin().json()["import"].as_str().unwrap().to_owned();
    assert_eq!(begin().status, 409);
    clock.step(5.0);
    let line = r#"{"domain":"shop","descriptor":"user=a","action":"block"}"#;
    assert_eq!(http::post(admin.port, &format!("/api/v1/imports/{first}"), line).status, 200);
    clock.step(5.0);
    assert_eq!(begin().status, 409, "it is continued");
    clock.step(5.0);
    assert_eq!(begin().status, 200);
}

#[test]
fn unknown_tokens_are_counted_and_leave_one_line_with_the_address() {
    let (setup, port) = setup();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    fs::write(&path, format!("ann {TOKEN}\n")).unwrap();
    let server = setup.env("ADMIN_TOKEN_FILE", path.to_str().unwrap()).start();
    for _ in 0..50 {
        let headers = [("authorization", "Bearer 0000000000000000")];
        assert_eq!(http::send(port, "GET", "/api/v1/status", &headers, b"").unwrap().status, 401);
    }
    assert_eq!(http::get(port, "/api/v1/status").status, 401);
    let headers = [("authorization", &*format!("Bearer {TOKEN}"))];
    assert_eq!(http::send(port, "GET", "/api/v1/status", &headers, b"").unwrap().status, 200);
    assert_eq!(server.count("tollgate_admin_unauthorized_total{reason=\"unknown\"}"), 50);
    assert_eq!(server.count("tollgate_admin_unauthorized_total{reason=\"missing\"}"), 1);
    let log = server.final_log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("unknown token")).collect();
    assert!((1..10).contains(&lines.len()) && lines[0].contains("peer=127.0.0.1:"), "{log}");
    assert!(!log.contains("in plaintext") && !log.contains("0000000000000000"), "{log}");
}

#[test]
fn tokens_in_plaintext_on_another_address_are_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    fs::write(&path, format!("ann {TOKEN}\n")).unwrap();
    for (address, is_warned) in [("0.0.0.0:0", true), (":0", true), ("127.0.0.1:0", false)] {
        let (setup, _) = setup();
        let setup = setup.env("ADMIN_ADDR", address).env("ADMIN_TOKEN_FILE", path.to_str().unwrap());
        let log = setup.start().final_log();
        assert_eq!(log.contains("in plaintext"), is_warned, "{address}: {log}");
    }
}
