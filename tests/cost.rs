//! What a peer can make the service spend: CPU time, memory, and the waits of others, for each byte that it sends.
//!
//! [`grammar`] composes connection scripts of HTTP/2, [`attack`] runs them and [`meter`] measures. `tests/cost/run` runs
//! all scripts against the release binary; docs/security.md has its table. The suite runs some of them for a moment, with
//! bounds that hold on a busy machine.

use std::{env, iter, path::Path, time::Duration};

use prost::Message;

use crate::support::{
    client,
    noise::Noise,
    server::{BINARY, Server, Setup},
};

mod attack;
mod grammar;
mod meter;

use attack::{End, Reader, Script};
use grammar::{Body, CHECK, Fields, Flood, Item, LIMIT, Place, REFLECTION, SERVICES, Shape, WATCH};
use meter::{Cost, KEPT_KIB, as_float, grpc_clients, measure};

const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: &limit {unit: hour, requests_per_unit: 1000000000}}
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
    let plain = |service, body| Item::Call(service, body, Fields::None, Place::Head);
    let with = |service, fields, place| Item::Call(service, Body::Whole, fields, place);
    let mut shapes = Vec::new();
    for service in SERVICES {
        shapes.extend(Body::ALL.iter().map(|body| Shape::of(&[(1, plain(service, *body))])));
    }
    for fields in &Fields::ALL[1..] {
        for (service, place) in [(LIMIT, Place::Head), (LIMIT, Place::Trailers), (CHECK, Place::Head)] {
            // A block that repeats the last one is not decoded.
            shapes.push(Shape::of(&[(1, with(service, *fields, place)), (1, plain(service, Body::Absent))]));
        }
    }
    shapes.extend(Flood::ALL.iter().map(|flood| Shape::of(&[(1, Item::Flood(*flood))])));
    // Responses allow more frames; each may concern all streams that are held.
    let held = [plain(LIMIT, Body::Declared), plain(LIMIT, Body::Whole), plain(WATCH, Body::Whole)];
    for held in held {
        for flood in [Flood::Ping, Flood::Settings, Flood::WindowUpdate, Flood::StreamWindowUpdate] {
            let shape = Shape::of(&[(8, Item::Flood(flood)), (1, plain(LIMIT, Body::Absent))]);
            shapes.push(Shape { held: Some(held), window: 0, ..shape });
        }
        let calls = Shape::of(&[(1, plain(CHECK, Body::Whole))]);
        shapes.push(Shape { held: Some(held), window: 0, ..calls });
    }
    let answered = [plain(LIMIT, Body::Whole), plain(REFLECTION, Body::Many), Item::Flood(Flood::Ping)];
    for shape in answered.map(|item| Shape::of(&[(1, item)])) {
        let readers = &Reader::ALL[1..];
        shapes.extend(readers.iter().map(|reader| Shape { reader: *reader, ..shape.clone() }));
        shapes.extend([0, 1, 0x7fff_ffff].map(|window| Shape { window, ..shape.clone() }));
    }
    for unfinished in [plain(LIMIT, Body::Huge), plain(CHECK, Body::Declared), plain(WATCH, Body::Whole)] {
        let shape = Shape::of(&[(1, unfinished)]);
        shapes.extend([End::Close, End::Reset].map(|end| Shape { end: Some(end), ..shape.clone() }));
    }
    shapes.extend((0..random).map(|seed| Shape::random(&mut Noise::new(seed))));
    iter::once(ordinary()).chain(keys()).chain(shapes.iter().map(Shape::script)).collect()
}

/// Calls as Envoy sends them.
fn ordinary() -> Script {
    grammar::calls("ordinary calls", &request(&[("k", "ordinary")], 1), b"")
}

/// Calls whose keys cost something.
fn keys() -> Vec<Script> {
    const NEW: &str = "########";
    let calls = |name, request: Vec<u8>| grammar::calls(name, &request, NEW.as_bytes());
    let long = format!("{NEW}{}", "x".repeat(8_000));
    vec![
        calls("invented keys", request(&[("k", NEW)], 1)),
        calls("keys over their limit", request(&[("over", "same")], 1)),
        calls("metrics of invented keys", request(&[("detail", NEW)], 1)),
        calls("long keys", request(&[("k", &long)], 1)),
        calls("long values beside 100 wildcards", request(&[("path", &long)], 1)),
        calls("entries without a rule", request(&[("unknown", NEW); 64], 1)),
        calls("many descriptors", request(&[("k", NEW)], 128)),
    ]
}

/// A request of `times` equal descriptors.
fn request(entries: &[(&str, &str)], times: usize) -> Vec<u8> {
    client::request("d", &vec![entries; times]).encode_to_vec()
}

fn setup() -> Setup {
    let wildcard = |number| format!("  - {{key: path, value: '*x*x*x*{number}', rate_limit: *limit}}\n");
    let wildcards: Vec<_> = (0..100).map(wildcard).collect();
    // The counters of invented keys take memory up to this bound.
    Setup::new()
        .rules("d.yaml", &[RULES, &wildcards.concat()].concat())
        .env("GRPC_WORKERS", "1")
        .env("MEMORY_MAX_KEYS", "100000")
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
    let (mut failed, warm_up) = (Vec::new(), ordinary());
    for script in scripts(number("TOLLGATE_COST_RANDOM", 20)) {
        if !script.name.contains(&only) {
            continue;
        }
        let server = setup().program(Path::new(&binary), &["serve"]).start_healthy();
        // Memory that is allocated once does not count.
        run(&server, &warm_up, Some(SLOWLY), Duration::from_millis(300));
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
