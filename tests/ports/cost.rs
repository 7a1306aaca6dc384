//! What a peer can make the service spend: CPU time, memory, and the waits of others, for each byte that it sends.
//!
//! [`grammar`] composes connection scripts of HTTP/2, [`attack`] runs them and [`meter`] measures. `tests/cost/run` runs
//! all scripts against the release binary; docs/dev/cost.md has its table. The suite runs some of them for a moment, with
//! bounds that hold on a busy machine.

use std::{env, iter, path::Path, time::Duration};

use prost::Message;
use proto::envoy::service::rate_limit_quota::v3::RateLimitQuotaUsageReports;
use regex::Regex;

use crate::support::{
    client,
    noise::Noise,
    quotas::usage,
    server::{BINARY, Server, Setup},
};

mod attack;
mod grammar;
mod http;
mod meter;

use attack::{End, Reader, Script};
use grammar::{Body, CHECK, Fields, Flood, Item, LIMIT, Place, REFLECTION, SERVICES, Service, Shape, WATCH};
use meter::{Cost, KEPT_KIB, as_float, grpc_clients, measure};

const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: &limit {unit: hour, requests_per_unit: 1000000000}}
  - {key: over, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: detail, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1000}}
";

/// The bytes per second of a client that does not keep a core busy.
const SLOWLY: u32 = 1024 * 1024;

struct Bounds {
    nanos_per_byte: f64,
    /// CPU time besides, as a part of one core.
    upkeep: f64,
    most_kib: u64,
    /// A percentile of the waits of an honest PING, and its bound.
    wait: (usize, Duration),
}

/// CPU time that honest clients and maintenance take, as a part of one core.
const UPKEEP: f64 = 0.05;

/// The bounds for a client that sends as fast as it can.
const FAST: Bounds = Bounds {
    nanos_per_byte: 100.0,
    upkeep: UPKEEP,
    most_kib: 96 * 1024,
    wait: (100, Duration::from_secs(1)),
};

/// The bounds for a client of [`SLOWLY`].
const SLOW: Bounds = Bounds { wait: (99, Duration::from_millis(20)), ..FAST };

/// Bounds for a build without optimization, on one core, beside a busy neighbour.
const SUITE: Bounds =
    Bounds { nanos_per_byte: 500.0, upkeep: 0.2, wait: (100, Duration::from_secs(10)), ..FAST };

/// All scripts; the first is ordinary load.
fn scripts(random: u64) -> Vec<Script> {
    let mut shapes = Vec::new();
    for service in SERVICES {
        shapes.extend(Body::ALL.iter().map(|body| Shape::of(&[(1, plain(service, *body))])));
    }
    for fields in &Fields::ALL[1..] {
        let places = [(LIMIT, Place::Head), (LIMIT, Place::Trailers), (CHECK, Place::Head)];
        shapes.extend(places.map(|(service, place)| with(service, *fields, place)));
    }
    shapes.extend(Flood::ALL.iter().map(|flood| Shape::of(&[(1, Item::Flood(*flood))])));
    for held in [plain(LIMIT, Body::Declared), plain(LIMIT, Body::Whole), plain(WATCH, Body::Whole)] {
        let floods = [Flood::Ping, Flood::Settings, Flood::WindowUpdate, Flood::StreamWindowUpdate];
        shapes.extend(floods.map(|flood| beside(held, flood)));
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
    // As many streams as are free of charge, and a full table.
    let free = Shape::of(&[(1, plain(LIMIT, Body::Declared))]);
    shapes.push(Shape { connections: Some(1_000), open: 60, ..free });
    shapes.extend((0..random).map(|seed| Shape::random(&mut Noise::new(seed))));
    iter::once(ordinary()).chain(keys()).chain(reports()).chain(shapes.iter().map(Shape::script)).collect()
}

fn plain(service: Service, body: Body) -> Item {
    Item::Call(service, body, Fields::None, Place::Head)
}

/// Calls with fields. Others are between them, since a block that repeats the last one is not decoded.
fn with(service: Service, fields: Fields, place: Place) -> Shape {
    let call = Item::Call(service, Body::Whole, fields, place);
    Shape::of(&[(1, call), (1, plain(service, Body::Absent))])
}

/// As many frames as the responses between them allow, each of which may concern all streams that are held.
fn beside(held: Item, flood: Flood) -> Shape {
    let shape = Shape::of(&[(8, Item::Flood(flood)), (1, plain(LIMIT, Body::Absent))]);
    Shape { held: Some(held), window: 0, ..shape }
}

/// Fields that exceeded a bound before it was enforced.
fn worst_fields() -> Vec<Shape> {
    vec![
        with(LIMIT, Fields::References, Place::Head),
        with(LIMIT, Fields::References, Place::Trailers),
        with(LIMIT, Fields::Names, Place::Trailers),
        with(CHECK, Fields::FewReferences, Place::Head),
    ]
}

/// The same for calls and for frames.
fn worst_calls() -> Vec<Shape> {
    let calls = [
        plain(CHECK, Body::Declared),
        plain(CHECK, Body::Huge),
        plain(WATCH, Body::Whole),
        plain(WATCH, Body::Declared),
        plain(REFLECTION, Body::Whole),
        plain(REFLECTION, Body::Declared),
    ];
    let held = plain(LIMIT, Body::Whole);
    let floods = [Flood::Settings, Flood::WindowUpdate].map(|flood| beside(held, flood));
    calls.map(|call| Shape::of(&[(1, call)])).into_iter().chain(floods).collect()
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
        Script { name: "1,000 connections".to_owned(), connections: 1_000, ..ordinary() },
        calls("invented keys", request(&[("k", NEW)], 1)),
        calls("keys over their limit", request(&[("over", "same")], 1)),
        calls("metrics of invented keys", request(&[("detail", NEW)], 1)),
        calls("long keys", request(&[("k", &long)], 1)),
        calls("long values beside 100 wildcards", request(&[("path", &long)], 1)),
        calls("entries without a rule", request(&[("unknown", NEW); 64], 1)),
        calls("many descriptors", request(&[("k", NEW)], 128)),
    ]
}

/// Frames of RLQS. Those that are served pay for themselves, and all others are a flood.
fn reports() -> Vec<Script> {
    const NEW: &str = "########";
    let report = |usages: Vec<_>| {
        RateLimitQuotaUsageReports { domain: "d".to_owned(), bucket_quota_usages: usages }.encode_to_vec()
    };
    let of_user = |user| report(vec![usage(&[("k", user)], 1, 0)]);
    vec![
        grammar::reports("reports of a bucket, each a DATA frame", &of_user("ordinary"), b""),
        grammar::reports("reports of new buckets, each a DATA frame", &of_user(NEW), NEW.as_bytes()),
        grammar::reports("reports of nothing, each a DATA frame", &report(Vec::new()), b""),
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
    fn exceeded(&self, cost: &Cost) -> Vec<String> {
        let most = as_float(cost.sent.bytes) * self.nanos_per_byte / 1e9;
        let (percent, longest) = self.wait;
        let wait = cost.wait("PING", percent);
        let all = [
            (
                cost.cpu.as_secs_f64() > most + self.upkeep * cost.took.as_secs_f64(),
                format!("{:.0} ns of CPU a byte", cost.nanos_per_byte()),
            ),
            (cost.most_kib > self.most_kib, format!("{} MiB more memory", cost.most_kib / 1024)),
            (cost.after_kib > KEPT_KIB, format!("{} MiB of it after 10 s", cost.after_kib / 1024)),
            (wait > longest, format!("a PING waits {wait:.0?}")),
        ];
        all.into_iter().filter_map(|(is_exceeded, what)| is_exceeded.then_some(what)).collect()
    }
}

/// Runs each for a moment.
fn cost_little(scripts: impl IntoIterator<Item = Script>) {
    let server = setup().start_healthy();
    let moment = Duration::from_millis(200);
    // A byte of hostile load costs little more than one of ordinary load, however fast the machine is.
    let ordinary = run(&server, &ordinary(), None, moment).nanos_per_byte();
    let bounds = Bounds { nanos_per_byte: SUITE.nanos_per_byte.max(1.5 * ordinary), ..SUITE };
    for script in scripts {
        // A busy neighbour makes one moment dear, and no cheap one of a defect.
        let attempts = std::iter::repeat_with(|| {
            let cost = run(&server, &script, Some(4 * SLOWLY), moment);
            println!("{}: {:.0} ns/B, {} KiB", script.name, cost.nanos_per_byte(), cost.most_kib);
            bounds.exceeded(&cost)
        });
        let exceeded: Vec<_> = attempts.take(3).take_while(|exceeded| !exceeded.is_empty()).collect();
        assert!(exceeded.len() < 3, "{}: {exceeded:?}", script.name);
    }
    let log = server.final_log();
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn hostile_header_fields_cost_little() {
    cost_little(worst_fields().iter().map(Shape::script));
}

/// `TOLLGATE_TEST_SEED` chooses the random scripts.
#[test]
fn hostile_calls_and_floods_cost_little() {
    let seed = env::var("TOLLGATE_TEST_SEED").map_or(0, |text| text.parse().unwrap());
    let random = (seed..seed + 12).map(|seed| Shape::random(&mut Noise::new(seed)));
    cost_little(worst_calls().into_iter().chain(random).map(|shape| shape.script()));
}

#[test]
fn reports_of_quotas_in_small_frames_cost_little() {
    cost_little(reports());
}

#[test]
#[ignore = "takes a quarter of an hour; tests/cost/run starts it"]
fn table() {
    let number = |name: &str, default| env::var(name).map_or(default, |text| text.parse().unwrap());
    let binary = env::var("TOLLGATE_COST_BINARY").unwrap_or_else(|_| BINARY.to_owned());
    let only = Regex::new(&env::var("TOLLGATE_COST_ONLY").unwrap_or_default()).unwrap();
    let time = Duration::from_secs(number("TOLLGATE_COST_SECONDS", 3));
    println!(
        "| script | MB | connections | ns/B | MB more | after | PING p50/p99/most | request | slow: ns/B | PING | request | exceeds |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|");
    let (mut failed, warm_up) = (Vec::new(), ordinary());
    for script in scripts(number("TOLLGATE_COST_RANDOM", 20)) {
        if !only.is_match(&script.name) {
            continue;
        }
        let server = setup().program(Path::new(&binary), &["serve"]).start_healthy();
        // Memory that is allocated once does not count.
        run(&server, &warm_up, Some(SLOWLY), Duration::from_millis(300));
        let fast = run(&server, &script, None, time);
        let slow = run(&server, &script, Some(SLOWLY), time);
        let exceeded = [FAST.exceeded(&fast), SLOW.exceeded(&slow)].concat();
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
