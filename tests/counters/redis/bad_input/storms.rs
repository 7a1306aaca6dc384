//! Clusters whose servers redirect to each other: the caller receives a response, and the number of commands is bounded.

use std::{
    thread,
    time::{Duration, Instant},
};

use support::{fake::Fake, redis::tcp};

use super::{Code, Lost, one, set};

#[test]
fn a_cluster_that_redirects_in_circles() {
    let fake = Fake::answering(|words, port| {
        let all = format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n");
        let moved = format!("-MOVED 0 127.0.0.1:{port}\r\n");
        reply_of_a_node(words, all, moved)
    });
    assert_storm(&fake);
}

#[test]
fn a_cluster_that_redirects_slowly() {
    const TIMEOUT: Duration = Duration::from_secs(1);
    let fake = Fake::answering(|words, port| {
        let all = format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n");
        let reply = reply_of_a_node(words, all, format!("-MOVED 0 127.0.0.1:{port}\r\n"));
        if reply.starts_with("-MOVED") {
            thread::sleep(TIMEOUT * 4 / 5);
        }
        reply
    });
    let cluster = [tcp(&fake.address()), set("REDIS_TYPE", "CLUSTER"), set("REDIS_TIMEOUT", "1s")];
    let lost = Lost::start(&cluster);
    let begun = Instant::now();
    assert!(lost.client.ask(one("two", "v")).is_err());
    let took = begun.elapsed();
    // One reply, and all redirections together; each on its own would take 4.8 s.
    assert!(took < TIMEOUT * 3, "{took:?}");
}

/// The reply of a master that accepts logins and reports its slots, but does not count.
fn reply_of_a_node(words: &[String], slots: String, moved: String) -> String {
    match words[0].to_ascii_uppercase().as_str() {
        "PING" => "+PONG\r\n".to_owned(),
        "ROLE" => "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".to_owned(),
        "CLUSTER" if !slots.is_empty() => slots,
        "AUTH" | "SELECT" | "CLIENT" | "ASKING" | "READONLY" => "+OK\r\n".to_owned(),
        _ => moved,
    }
}

/// The caller receives a response, and the number of commands is bounded.
fn assert_storm(fake: &Fake) {
    let cluster = [tcp(&fake.address()), set("REDIS_TYPE", "CLUSTER")];
    let lost = Lost::start(&cluster);
    for _ in 0..5 {
        assert!(lost.client.ask(one("two", "v")).is_err());
    }
    let before = fake.asked();
    thread::sleep(Duration::from_secs(1));
    let more = fake.asked() - before;
    assert!(more < 200, "asked {more} times in a second without requests");
    lost.server.wait_for_log(&[&fake.address()]);
    assert_eq!(lost.client.ask(one("control", "v")).unwrap().overall_code(), Code::Ok);
    drop(lost.client);
    let log = lost.server.final_log();
    assert!(!log.contains("panicked") && log.lines().count() < 100, "{log}");
}
