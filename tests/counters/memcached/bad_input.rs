//! Servers that are not memcached, and values that are not counters: each is logged with its address, and the service
//! continues.

use support::{fake::Fake, server::Server};

use super::{Code, Memcached, code, counter, one, request, setup, with_rules};

fn start(address: &str) -> Server {
    let setup = with_rules(setup(address)).env("MEMCACHE_CONNECT_TIMEOUT", "300ms");
    setup.env("MEMCACHE_TIMEOUT", "300ms").start()
}

/// Requests return an error, and the log contains all of `texts`.
fn logs(address: &str, texts: &[&str]) {
    let server = start(address);
    let client = server.client();
    for _ in 0..3 {
        let error = client.ask(one("two", "v")).expect_err("expected an error");
        assert_eq!(error.code(), tonic::Code::Unknown, "{error:?}");
    }
    server.wait_for_log(&[&[address], texts].concat());
    assert_eq!(code(&client, "control", "v").0, Code::Ok, "a request without a counter succeeds");
    drop(client);
    let log = server.final_log();
    assert!(!log.contains("panicked") && log.lines().count() < 100, "{log}");
}

#[test]
fn unreachable_servers() {
    logs("memcached.invalid:11211", &["MEMCACHE_HOST_PORT"]);
    logs(&Memcached::prepared(&[]).address(), &["connection refused"]);
    logs("/nowhere/memcached.sock", &["no such socket"]);
}

#[test]
fn servers_with_another_protocol() {
    for (bytes, seen) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "HTTP/1.1 400"),
        (b"\x15\x03\x03\0\x02\x02\x46", "expected a memcached reply"),
        (b"-ERR unknown command\r\n", "-ERR"),
        (b"12\r\n", "unexpected reply to version"),
        (b"CLIENT_ERROR unauthenticated\r\n", "without -Y"),
        (b"VERSION 1\r\nVERSION 1\r\nVALUE x 0 99999999999\r\n", "expected a memcached reply"),
        (b"VERSION 1\r\nERROR\r\n", "ERROR"),
    ] {
        let fake = Fake::saying(bytes);
        logs(&fake.address(), &[seen]);
    }
}

#[test]
fn a_silent_server() {
    let fake = Fake::saying(b"");
    logs(&fake.address(), &["no reply within 300ms (version)"]);
}

#[test]
fn a_value_that_is_not_a_number_fails_only_its_counter() {
    let memcached = Memcached::single();
    let server = with_rules(memcached.setup()).start_healthy();
    let client = server.client();
    assert_eq!(memcached.ask(&format!("set {} 0 0 3\r\nabc", counter("many", "text"))), "STORED\r\n");
    for hits in [0, 1] {
        let mut request = one("many", "text");
        request.descriptors[0].hits_addend = Some(hits);
        let error = client.ask(request).expect_err("expected an error");
        assert_eq!(error.code(), tonic::Code::Unknown, "{error:?}");
    }
    server.wait_for_log(&[&memcached.address(), "CACHE_KEY_PREFIX"]);
    assert_eq!(code(&client, "five", "v"), (Code::Ok, 4), "other counters work");
    assert_eq!(memcached.get(&counter("many", "text")).as_deref(), Some("abc"), "the value is not changed");
    assert!(server.is_healthy(), "one invalid counter does not make it unhealthy");
}

#[test]
fn a_value_that_is_too_long_fails_only_its_counter() {
    let memcached = Memcached::single();
    let server = with_rules(memcached.setup()).start_healthy();
    let client = server.client();
    let long = "7".repeat(900_000);
    let set = format!("set {} 0 0 {}\r\n{long}", counter("many", "long"), long.len());
    assert_eq!(memcached.ask(&set), "STORED\r\n");
    let mut look = one("many", "long");
    look.descriptors[0].hits_addend = Some(0);
    for left in (0..5).rev() {
        let error = client.ask(look.clone()).expect_err("it is no counter");
        assert_eq!(error.code(), tonic::Code::Unknown, "{error:?}");
        assert_eq!(code(&client, "five", "v"), (Code::Ok, left), "others are counted");
    }
    server.wait_for_log(&[&memcached.address(), "non-numeric value of 900000 bytes"]);
    assert_eq!(server.count("tollgate_memcached_reconnects_total"), 0, "the connection stays");
}

#[test]
fn a_counter_may_overflow() {
    let memcached = Memcached::single();
    let server = with_rules(memcached.setup()).start_healthy();
    let client = server.client();
    let full = u64::MAX.to_string();
    memcached.ask(&format!("set {} 0 0 {}\r\n{full}", counter("five", "full"), full.len()));
    let _ = client.ask(one("five", "full"));
    assert_eq!(code(&client, "five", "v"), (Code::Ok, 4));
    drop(client);
    assert!(!server.final_log().contains("panicked"));
}

#[test]
fn a_server_out_of_memory_is_logged() {
    let memcached = Memcached::with(&["-M", "-m", "2"]);
    let server = with_rules(memcached.setup()).start_healthy();
    let client = server.client();
    let refused = (0..1000).find_map(|batch| {
        let values = (0..50).map(|value| format!("{batch}-{value}-{}", "x".repeat(200)));
        let values: Vec<_> = values.collect();
        let entries: Vec<_> = values.iter().map(|value| [("many", value.as_str())]).collect();
        let descriptors: Vec<_> = entries.iter().map(<[_; 1]>::as_slice).collect();
        client.ask(request("d", &descriptors)).err()
    });
    assert!(refused.is_some(), "memcached did not run out of memory");
    server.wait_for_log(&[&memcached.address(), "out of memory", "-m"]);
    assert!(server.is_healthy(), "existing counters work");
}
