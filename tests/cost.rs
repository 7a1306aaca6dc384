//! What a peer can make the service spend: CPU time, memory, and the waits of others, for each byte that it sends.
//!
//! [`grammar`] composes connection scripts of HTTP/2, [`attack`] runs them and [`meter`] measures. `tests/cost/run` runs
//! all scripts against the release binary; docs/security.md has its table. The suite runs some of them for a moment, with
//! bounds that hold on a busy machine.

use std::{env, path::Path, time::Duration};

use crate::support::{
    noise::Noise,
    server::{BINARY, Server, Setup},
};

mod attack;
mod grammar;
mod meter;

use attack::{End, Reader, Round, Script};
use grammar::{BODIES, Body, FIELDS, FLOODS, Fields, Flood, Item, Place, SERVICES};
use meter::{Cost, KEPT_KIB, as_float, grpc_clients, measure};

const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {unit: hour, requests_per_unit: 1000000000}}
  - {key: over, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: detail, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1000}}
";

/// The bytes per second of a client that does not keep the service busy.
const SLOWLY: u32 = 1024 * 1024;

/// The bounds for all scripts.
struct Bounds {
    nanos_per_byte: f64,
    most_kib: u64,
    /// The longest wait of an honest PING beside a client that sends as fast as it can.
    beside_fast: Duration,
    /// The 99th percentile beside a client that does not.
    beside_slow: Duration,
}

const BOUNDS: Bounds = Bounds {
    nanos_per_byte: 100.0,
    most_kib: 96 * 1024,
    beside_fast: Duration::from_secs(1),
    beside_slow: Duration::from_millis(20),
};

/// CPU time that honest clients and maintenance take, as a part of one core.
const UPKEEP: f64 = 0.05;

/// All scripts; the first is ordinary load.
fn scripts(random: u64) -> Vec<Script> {
    let [limit, check, watch, reflection, ..] = SERVICES;
    let plain = |service, body| Item::Call(service, body, Fields::None, Place::Head);
    let with = |service, fields, place| Item::Call(service, Body::Whole, fields, place);
    let mut all = vec![ordinary()];
    all.extend(SERVICES.iter().flat_map(|service| BODIES.map(|body| grammar::of(&[plain(*service, body)]))));
    for fields in FIELDS {
        all.extend([Place::Head, Place::Trailers].map(|place| grammar::of(&[with(limit, fields, place)])));
        all.push(grammar::of(&[with(check, fields, Place::Head)]));
    }
    all.extend(FLOODS.map(|flood| grammar::of(&[Item::Flood(flood)])));
    let answered = [plain(limit, Body::Whole), plain(reflection, Body::Many), Item::Flood(Flood::Ping)];
    for reader in [Reader::Never, Reader::Slow] {
        all.extend(answered.map(|item| variant(grammar::of(&[item]), reader, End::Close, 65_535)));
    }
    for window in [0, 1] {
        all.extend(answered.map(|item| variant(grammar::of(&[item]), Reader::All, End::Close, window)));
    }
    for end in [End::Close, End::Reset] {
        let unfinished = [plain(limit, Body::Huge), plain(check, Body::Declared), plain(watch, Body::Whole)];
        all.extend(unfinished.map(|item| variant(grammar::of(&[item]), Reader::All, end, 65_535)));
    }
    all.extend(keys());
    all.extend((0..random).map(|seed| grammar::random(&mut Noise::new(seed))));
    all
}

/// Calls as Envoy sends them.
fn ordinary() -> Script {
    let mut round = Round::default();
    (0..500).for_each(|_| round.ask(&request(&[("k", "ordinary")], 1), b""));
    grammar::script("ordinary calls".to_owned(), round)
}

/// Calls whose keys cost something.
fn keys() -> Vec<Script> {
    const NEW: &str = "########";
    let calls = |name: &str, request: &[u8]| {
        let mut round = Round::default();
        while round.bytes.len() < 64 * 1024 {
            round.ask(request, NEW.as_bytes());
        }
        grammar::script(name.to_owned(), round)
    };
    let long = format!("{NEW}{}", "x".repeat(8_000));
    vec![
        calls("invented keys", &request(&[("k", NEW)], 1)),
        calls("keys over their limit", &request(&[("over", "same")], 1)),
        calls("metrics of invented keys", &request(&[("detail", NEW)], 1)),
        calls("long keys", &request(&[("k", &long)], 1)),
        calls("entries without a rule", &request(&[("unknown", NEW); 64], 1)),
        calls("many descriptors", &request(&[("k", NEW)], 128)),
    ]
}

/// A request of `times` equal descriptors.
fn request(entries: &[(&str, &str)], times: usize) -> Vec<u8> {
    use prost::Message;
    crate::support::client::request("d", &vec![entries; times]).encode_to_vec()
}

fn variant(script: Script, reader: Reader, end: End, window: u32) -> Script {
    let name = format!("{}, {reader:?}, {end:?}, window {window}", script.name);
    Script { name, reader, end, opening: grammar::opening(&[(4, window)]), ..script }
}

fn setup() -> Setup {
    // The counters of invented keys take memory up to this bound.
    Setup::new().rules("d.yaml", RULES).env("GRPC_WORKERS", "1").env("MEMORY_MAX_KEYS", "100000")
}

/// Measures a script, sent as fast as possible or at a rate.
fn run(server: &Server, script: &Script, rate: Option<u32>, time: Duration) -> Cost {
    measure(server, server.ports.grpc, script, rate, time, grpc_clients(server.ports.grpc))
}

impl Bounds {
    /// The bounds that a script exceeds.
    fn exceeded(&self, fast: &Cost, slow: &Cost) -> Vec<String> {
        let mut exceeded = Vec::new();
        let mut check = |is_exceeded: bool, what: String| {
            if is_exceeded {
                exceeded.push(what);
            }
        };
        for cost in [fast, slow] {
            let upkeep = cost.took.as_secs_f64() * UPKEEP;
            let most = as_float(cost.sent.bytes) * self.nanos_per_byte / 1e9;
            check(
                cost.cpu.as_secs_f64() > most + upkeep,
                format!("{:.0} ns of CPU a byte", cost.nanos_per_byte()),
            );
            check(cost.most_kib > self.most_kib, format!("{} KiB of memory", cost.most_kib));
            check(cost.after_kib > KEPT_KIB, format!("{} KiB of memory after 10 s", cost.after_kib));
        }
        let wait = fast.wait("PING", 100);
        check(wait > self.beside_fast, format!("a PING waits {wait:?}"));
        let wait = slow.wait("PING", 99);
        check(wait > self.beside_slow, format!("a PING waits {wait:?} beside a slow client"));
        exceeded
    }
}

#[test]
#[ignore = "takes a quarter of an hour; tests/cost/run starts it"]
fn table() {
    let number = |name: &str, default| env::var(name).map_or(default, |text| text.parse().unwrap());
    let binary = env::var("TOLLGATE_COST_BINARY").unwrap_or_else(|_| BINARY.to_owned());
    let only = env::var("TOLLGATE_COST_ONLY").unwrap_or_default();
    let time = Duration::from_secs(number("TOLLGATE_COST_SECONDS", 3));
    println!(
        "| script | MB | connections | ns/B | MB more | after | PING p50/p99/most | request | slow: ns/B | PING | request | exceeds |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|");
    let mut failed = Vec::new();
    for script in scripts(number("TOLLGATE_COST_RANDOM", 20)) {
        if !script.name.contains(&only) {
            continue;
        }
        let server = setup().program(Path::new(&binary), &["serve"]).start_healthy();
        // Memory that is allocated once does not count.
        run(&server, &ordinary(), Some(SLOWLY), Duration::from_millis(300));
        let fast = run(&server, &script, None, time);
        let slow = run(&server, &script, Some(SLOWLY), time);
        let exceeded = BOUNDS.exceeded(&fast, &slow);
        println!(
            "| {} | {} | {} | {:.1} | {} | {} | {} | {} | {:.1} | {} | {} | {} |",
            script.name,
            fast.sent.bytes / 1_000_000,
            fast.sent.connections,
            fast.nanos_per_byte(),
            fast.most_kib / 1024,
            fast.after_kib / 1024,
            fast.waits[0],
            fast.waits[1],
            slow.nanos_per_byte(),
            slow.waits[0],
            slow.waits[1],
            exceeded.join("; ")
        );
        let log = server.final_log();
        assert!(!log.contains("panicked"), "{log}");
        if !exceeded.is_empty() {
            failed.push(script.name);
        }
    }
    assert!(failed.is_empty(), "{} scripts exceed the bounds: {failed:#?}", failed.len());
}
