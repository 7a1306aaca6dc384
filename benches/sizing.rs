//! What a decision costs Redis by kind of limit: the table of docs/reference/redis.md#sizing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement fails by panicking")]
#![expect(clippy::cast_precision_loss, reason = "a test's numbers are small")]

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use support::{
    client::{Client, hold_id, request},
    clock::Clock,
    redis::Redis,
    server::Setup,
};

/// Each kind of limit with its text in `rate_limit`.
const KINDS: [(&str, &str); 8] = [
    ("`fixed_window`", "{unit: hour, requests_per_unit: 1000000}"),
    ("`fixed_window`, `counting: leased`", "{unit: hour, requests_per_unit: 1000000, counting: leased}"),
    ("`sliding_window`", "{unit: hour, requests_per_unit: 1000000, algorithm: sliding_window}"),
    ("`token_bucket`", "{unit: hour, requests_per_unit: 1000, algorithm: token_bucket}"),
    ("`leaky_bucket`", "{unit: hour, requests_per_unit: 1000, algorithm: leaky_bucket, burst: 1000}"),
    ("`sliding_log`, ten requests", "{unit: hour, requests_per_unit: 9999, algorithm: sliding_log}"),
    (
        "a list of two fixed windows",
        "[{unit: hour, requests_per_unit: 1000000}, {unit: day, requests_per_unit: 2000000}]",
    ),
    (
        "`hold` on a fixed window, and its settle",
        "{unit: hour, requests_per_unit: 1000000, hold: {amount: 5, ttl: 15m}}",
    ),
];

const KEYS: usize = 1000;
const ROUNDS: usize = 10;
const BUSY: Duration = Duration::from_secs(4);

fn main() {
    let _clock = Clock::machine().enter();
    println!("| limit | commands, quiet keys | commands, a busy key | bytes a key |");
    println!("|---|---:|---:|---:|");
    for (name, limit) in KINDS {
        row(name, limit);
    }
}

fn row(name: &str, limit: &str) {
    let redis = Redis::single();
    let rules = format!("domain: d\ndescriptors:\n  - key: client\n    rate_limit: {limit}\n");
    let setup = Setup::new().redis(&redis.env()).rules("d.yaml", &rules).env("REPLICA_SYNC", "false");
    let server = setup.env("REDIS_TIMEOUT", "1s").env("COUNTING", "exact").start_healthy();
    let client = server.client();
    let is_hold = limit.contains("hold");
    decide(&client, "warm-up", is_hold);
    redis.ask(&["FLUSHALL"]);
    let sent = monitored(redis.port);
    let before = sent.load(Relaxed);
    quiet_keys(&client, is_hold);
    let quiet = commands(&sent, before) / (ROUNDS * KEYS) as f64;
    // A key may have expired since it was listed.
    let usage = |key: &String| redis.ask(&["MEMORY", "USAGE", key]).word()?.parse::<usize>().ok();
    let bytes = redis.keys().iter().filter_map(usage).sum::<usize>() / KEYS;
    let before = sent.load(Relaxed);
    let (begun, mut decisions) = (Instant::now(), 0_u32);
    while begun.elapsed() < BUSY && (decisions < 9000 || !limit.contains("sliding_log")) {
        decide(&client, "busy", is_hold);
        decisions += 1;
    }
    let busy = commands(&sent, before) / f64::from(decisions);
    println!("| {name} | {quiet:.2} | {busy:.3} | {bytes} |");
}

/// Decisions on each of many keys in turn.
fn quiet_keys(client: &Client, is_hold: bool) {
    for _ in 0..ROUNDS {
        for key in 0..KEYS {
            decide(client, &format!("client-{key:05}"), is_hold);
        }
    }
}

/// A decision; with a hold also its settle.
fn decide(client: &Client, value: &str, is_hold: bool) {
    let answer = client.ask(request("d", &[&[("client", value)]])).expect("an answer");
    if is_hold {
        let id = hold_id(&answer).expect("an id");
        let mut settle = request("d", &[&[("hold_settle", &id)]]);
        settle.descriptors[0].hits_addend = Some(3);
        client.ask(settle).expect("an answer");
    }
}

/// Counts the commands that clients send; those of scripts are not among them.
fn monitored(port: u16) -> Arc<AtomicU64> {
    let sent = Arc::new(AtomicU64::new(0));
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    stream.write_all(b"MONITOR\r\n").expect("the command is sent");
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("+OK"));
    let counted = sent.clone();
    thread::spawn(move || {
        // "x" is the sweep of holds, once a second.
        let decides = |line: &String| {
            let is_command = ["INCRBY", "EXPIRE", "EVALSHA"].iter().any(|name| line.contains(name));
            is_command && !line.contains(" lua]") && !line.ends_with("\"x\"")
        };
        lines.filter(decides).for_each(|_| _ = counted.fetch_add(1, Relaxed));
    });
    sent
}

/// The commands since then, once all of them have been read.
fn commands(sent: &AtomicU64, before: u64) -> f64 {
    let mut seen = 0;
    while seen != sent.load(Relaxed) {
        seen = sent.load(Relaxed);
        thread::sleep(Duration::from_millis(100));
    }
    (seen - before) as f64
}
