//! What summaries cost: bytes and CPU with 50 publishers, and that publishing grows with the number of replicas.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::*;

/// A number of Redis's `INFO stats`.
fn info(redis: &Redis, name: &str) -> u64 {
    let text = redis.ask(&["INFO", "stats"]).word().unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:"))).unwrap();
    line.trim().parse().unwrap()
}

/// The bytes that Redis receives and sends in a while, with this many replicas that nobody asks.
fn bytes_of(replicas: usize) -> (u64, u64) {
    let redis = Redis::single();
    let admins: Vec<_> = (0..replicas).map(|_| replica(&redis, &[])).collect();
    for admin in &admins {
        admin.ask("ann", 5);
    }
    eventually("all publish", || {
        let keys = redis.ask(&["KEYS", "{tollgate}:summary:*"]).words();
        holds(keys.len() == replicas, || format!("{keys:?}"))
    });
    let before = (info(&redis, "total_net_input_bytes"), info(&redis, "total_net_output_bytes"));
    thread::sleep(Duration::from_secs(6));
    let after = (info(&redis, "total_net_input_bytes"), info(&redis, "total_net_output_bytes"));
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn publishing_grows_with_the_replicas_and_not_with_their_square() {
    let (few, many) = thread::scope(|scope| {
        let few = scope.spawn(|| bytes_of(2));
        let many = bytes_of(8);
        (few.join().unwrap(), many)
    });
    println!("bytes to and from Redis in 6 s: 2 replicas {few:?}, 8 replicas {many:?}");
    assert!(many.0 < few.0 * 6 && many.1 < few.1 * 6, "4 times the replicas: {few:?}, {many:?}");
}

/// A summary of nearly 16 KB: keys that are loud everywhere, and some that only this replica has.
fn summary(number: usize) -> String {
    let key = |n: usize| {
        let user = if n < 10 { format!("loud{n}") } else { format!("replica{number}-user{n}") };
        serde_json::json!({
            "domain": "shop", "rule": "shop.user", "descriptor": [{"key": "user", "value": user}],
            "allowed": 2, "refused": 1000 - n, "error": 0,
        })
    };
    let keys: Vec<Value> = (0..45).map(key).collect();
    let mut summary = serde_json::json!({
        "keys": keys, "missing": {"by_rule": {"shop.user": [0, 900]}, "other": [0, 0]},
        "total": [10, 20, 0], "per_second": [1.0, 2.0, 0.0], "window_seconds": 200, "status": {"pad": ""},
    });
    let room = (16 << 10) - summary.to_string().len();
    summary["status"]["pad"] = "x".repeat(room).into();
    summary.to_string()
}

#[test]
fn fifty_publishers_are_read_only_when_someone_asks() {
    let redis = Redis::single();
    let one = replica(&redis, &[]);
    for number in 0..49 {
        let announcement = format!(
            r#"{{"id":"r{number}","version":"1","rules_hash":null,"requests_per_second":3,"started":1,"summary":"published"}}"#
        );
        redis.ask(&["SET", &format!("{{tollgate}}:replica:r{number}"), &announcement]);
        redis.ask(&["SET", &format!("{{tollgate}}:summary:r{number}"), &summary(number)]);
        redis.ask(&["SADD", "{tollgate}:replicas", &format!("r{number}")]);
    }
    let sent = || info(&redis, "total_net_output_bytes");
    let (before, begun, cpu) = (sent(), Instant::now(), one.server.process.cpu_time());
    let top = one.get("/api/v1/top?n=1000");
    let (read, took, cpu) =
        (sent() - before, begun.elapsed(), one.server.process.cpu_time().saturating_sub(cpu));
    println!("a reading of 50 publishers: {read} bytes, {took:?}, {cpu:?} of CPU");
    assert_eq!(top["replicas"], serde_json::json!({"known": 50, "answered": 50}));
    let all = top["keys"].as_array().unwrap();
    assert_eq!(all[0]["descriptor"][0]["value"], "loud0");
    assert_eq!(
        (&all[0]["refused"], &all[0]["error"]),
        (&49_000.into(), &0.into()),
        "this replica misses none"
    );
    let rare = all.iter().find(|key| key["descriptor"][0]["value"] == "replica7-user12").unwrap();
    assert_eq!(
        (&rare["refused"], &rare["error"]),
        (&988.into(), &(48 * 900).into()),
        "48 others may have it"
    );
    assert!(read > 49 * (16 << 10) && read < 51 * (17 << 10), "{read}");
    // Kept for two seconds, for every view.
    let before = sent();
    for path in ["/api/v1/top", "/api/v1/refusals", "/api/v1/top?unmatched=true", "/api/v1/status"] {
        one.get(path);
    }
    assert!(sent() - before < 200_000, "{}", sent() - before);
    // Nobody asks.
    thread::sleep(Duration::from_secs(2));
    let before = sent();
    thread::sleep(Duration::from_secs(4));
    assert!(sent() - before < 20_000, "{}", sent() - before);
}
