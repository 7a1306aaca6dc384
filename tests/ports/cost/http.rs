//! What clients of the HTTP ports can make the service spend.

use std::{env, fmt::Write as _, io, path::Path, time::Duration};

use super::{
    RULES, UPKEEP,
    attack::{End, Reader, Round, Script},
    meter::{Client, Cost, KEPT_KIB, as_float, measure},
};
use crate::support::{
    eventually,
    grpc_tls::{Authority, Files},
    http,
    ports::free_port,
    server::{BINARY, Server},
};

/// CPU time of an ordinary request, with those of its connection and of the kernel.
const NANOS_PER_REQUEST: f64 = 40_000.0;

/// The same of the admin API, where a request may ask for 10,000 overrides.
const NANOS_PER_ADMIN_REQUEST: f64 = 2_000_000.0;

const NANOS_PER_BYTE: f64 = 100.0;
const MOST_KIB: u64 = 96 * 1024;
const LONGEST_PROBE_MILLIS: u128 = 50;

/// The ports of HTTP.
#[derive(Clone, Copy, Debug)]
enum Port {
    Http,
    Debug,
    Metrics,
    Admin,
    /// The gRPC port, before a TLS handshake ends.
    Tls,
}

/// Requests that are repeated on each connection.
struct Shape {
    port: Port,
    script: Script,
    /// The requests of a round.
    requests: u64,
}

fn shape(port: Port, name: &str, request: &[u8]) -> Shape {
    let requests = (64 * 1024 / request.len()).max(1);
    Shape {
        port,
        requests: requests as u64,
        script: Script {
            name: name.to_owned(),
            connections: 8,
            opening: Vec::new(),
            round: Round { bytes: request.repeat(requests), ..Round::default() },
            rounds: usize::MAX,
            reader: Reader::All,
            end: End::Close,
        },
    }
}

/// A request on each connection.
fn one_each(connections: usize, reader: Reader, shape: Shape) -> Shape {
    let length = shape.script.round.bytes.len() / usize::try_from(shape.requests).unwrap();
    let round = Round { bytes: shape.script.round.bytes[..length].to_vec(), ..Round::default() };
    let end = if reader == Reader::All { End::Close } else { End::Stay };
    let name = format!("{}, {connections} connections with a request each, {reader:?}", shape.script.name);
    let script = Script { name, round, rounds: 1, connections, reader, end, ..shape.script };
    Shape { script, requests: 1, ..shape }
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").into_bytes()
}

fn post(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = "HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json";
    format!("POST {path} {head}\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
}

/// The head of a request, and the beginning of its body.
fn unfinished(path: &str, sent: usize) -> Vec<u8> {
    let head = "HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 2000000";
    format!("POST {path} {head}\r\n\r\n{}", " ".repeat(sent)).into_bytes()
}

/// The beginning of a ClientHello of 64,000 bytes.
fn client_hello(sent: usize) -> Vec<u8> {
    let record = [&[22, 3, 1, 0x3e, 0x80, 1, 0, 0xfa, 0, 3, 3][..], &[0; 16_000 - 6]].concat();
    record.repeat(4).into_iter().take(sent).collect()
}

fn chunked(chunk: &str, times: usize) -> Vec<u8> {
    let head = "POST /json HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n";
    format!("{head}{}0\r\n\r\n", chunk.repeat(times)).into_bytes()
}

/// A request of `/json` with these descriptors.
fn ask(descriptors: &str) -> String {
    format!(r#"{{"domain":"d","descriptors":[{descriptors}]}}"#)
}

fn json_shapes() -> Vec<Shape> {
    let entry = r#"{"entries":[{"key":"k","value":"v"}]}"#;
    let list = |item: &str, times: usize| ask(&vec![item; times].join(","));
    let text = |value: &str| ask(&format!(r#"{{"entries":[{{"key":"k","value":"{value}"}}]}}"#));
    let bodies = [
        ("an ordinary request", ask(entry)),
        ("no JSON", "{".to_owned()),
        ("128 descriptors", list(entry, 128)),
        ("128 descriptors without a rule", list(r#"{"entries":[{"key":"x","value":"v"}]}"#, 128)),
        ("1,000,000 empty descriptors", list("{}", 1_000_000)),
        ("100,000 entries", ask(&format!(r#"{{"entries":[{}]}}"#, vec!["{}"; 100_000].join(",")))),
        ("nested 20,000 times", format!(r#"{{"domain":{}"#, "[".repeat(20_000))),
        ("a text of 4 MB", text(&"x".repeat(4_000_000))),
        ("a text of 600,000 escapes", text(&"\\u0041".repeat(600_000))),
        ("a text of 10,000 escapes", text(&"\\u0041".repeat(10_000))),
        ("a number of 60,000 digits", format!(r#"{{"hitsAddend":{}}}"#, "1".repeat(60_000))),
        ("a fraction of 60,000 digits", format!(r#"{{"hitsAddend":0.{}}}"#, "1".repeat(60_000))),
        ("an exponent of 60,000 digits", format!(r#"{{"hitsAddend":1e{}}}"#, "1".repeat(60_000))),
        ("an unknown name of 60 kB", format!(r#"{{"{}":1}}"#, "x".repeat(60_000))),
        ("4,000 equal fields", format!("{{{}}}", vec![r#""domain":"d""#; 4_000].join(","))),
        ("60 kB of spaces", format!("{{{}}}", " ".repeat(60_000))),
    ];
    let shapes = bodies.iter().map(|(name, body)| shape(Port::Http, name, &post("/json", body)));
    shapes.collect()
}

fn shapes() -> Vec<Shape> {
    let headers = (0..90).map(|number| format!("x-{number}: y\r\n")).collect::<Vec<_>>().concat();
    let mut all = json_shapes();
    for (port, name, request) in [
        (Port::Http, "probes", get("/healthcheck")),
        (Port::Http, "unknown paths", get("/nowhere")),
        (Port::Http, "OPTIONS", b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec()),
        (Port::Http, "HEAD", b"HEAD /healthcheck HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec()),
        (
            Port::Http,
            "90 headers",
            format!("GET /healthcheck HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n").into_bytes(),
        ),
        (Port::Http, "a path of 10 kB", get(&format!("/{}", "x".repeat(10_000)))),
        (Port::Http, "chunks of a byte", chunked("1\r\n \r\n", 10_000)),
        (Port::Http, "chunks of a byte with an extension", chunked("1;xxxxxxxxxxxxxxxx\r\n \r\n", 500)),
        (Port::Http, "no HTTP", b"\0\0\0\0\r\n\r\n".to_vec()),
        (Port::Debug, "the list of pages", get("/")),
        (Port::Debug, "the rules", get("/rlconfig")),
        (Port::Metrics, "the metrics", get("/metrics")),
        (Port::Admin, "the status", get("/api/v1/status")),
        (Port::Admin, "a search", get("/api/v1/overrides?domain=x")),
        (Port::Admin, "a page of overrides", get("/api/v1/overrides?n=10000")),
        (Port::Admin, "8,000 parameters", get(&format!("/api/v1/status?{}", "a&".repeat(7_000)))),
        (Port::Admin, "5,000 percent signs", get(&format!("/api/v1/top?rule={}", "%41".repeat(5_000)))),
        (
            Port::Admin,
            "JSON of 1,000,000 numbers",
            post("/api/v1/overrides", &format!("[{}0]", "0,".repeat(1_000_000))),
        ),
        (
            Port::Admin,
            "JSON of 30,000 numbers",
            post("/api/v1/overrides", &format!("[{}0]", "0,".repeat(30_000))),
        ),
        (
            Port::Admin,
            "a line of 1,000,000 numbers",
            post("/api/v1/imports/x", &format!("[{}0]", "0,".repeat(1_000_000))),
        ),
        (Port::Admin, "lines that are no overrides", post("/api/v1/imports/x", &"{}\n".repeat(20_000))),
    ] {
        all.push(shape(port, name, &request));
    }
    all.push(one_each(64, Reader::All, shape(Port::Http, "probes", &get("/healthcheck"))));
    for (port, path) in [
        (Port::Http, "/json"),
        (Port::Http, "/nowhere"),
        (Port::Debug, "/rlconfig"),
        (Port::Metrics, "/metrics"),
        (Port::Admin, "/api/v1/overrides"),
        (Port::Admin, "/nowhere"),
    ] {
        for sent in [0, 60_000, 1_000_000] {
            let name = format!("{sent} bytes of an unfinished body to {path}");
            all.push(one_each(380, Reader::Never, shape(port, &name, &unfinished(path, sent))));
        }
    }
    for sent in [5, 4_000, 15_000, 64_000] {
        let name = format!("{sent} bytes of an unfinished ClientHello");
        all.push(one_each(2_000, Reader::Never, shape(Port::Tls, &name, &client_hello(sent))));
    }
    for (port, path) in [
        (Port::Debug, "/rlconfig"),
        (Port::Metrics, "/metrics"),
        (Port::Admin, "/api/v1/overrides?n=10000"),
        (Port::Admin, "/api/v1/rules?n=100000"),
        (Port::Admin, "/api/v1/events"),
    ] {
        all.push(one_each(380, Reader::Never, shape(port, path, &get(path))));
    }
    all
}

/// A probe on a connection of its own.
fn probe(port: u16) -> Vec<Client> {
    let ask = move || {
        let answer = http::send(port, "GET", "/healthcheck", &[], b"")?;
        if answer.status == 200 { Ok(()) } else { Err(io::Error::other(answer.status.to_string())) }
    };
    vec![("probe", Box::new(ask))]
}

fn exceeded(port: Port, cost: &Cost, requests: f64) -> Vec<String> {
    let mut exceeded = Vec::new();
    let upkeep = cost.took.as_secs_f64() * 1e9 * UPKEEP;
    let each = if matches!(port, Port::Admin) { NANOS_PER_ADMIN_REQUEST } else { NANOS_PER_REQUEST };
    let most = as_float(cost.sent.bytes) * NANOS_PER_BYTE + requests * each + upkeep;
    let over = cost.cpu.as_secs_f64() * 1e9 - most;
    if over > 0.0 {
        exceeded.push(format!("{:.0} ms of CPU more", over / 1e6));
    }
    if cost.most_kib > MOST_KIB {
        exceeded.push(format!("{} KiB of memory", cost.most_kib));
    }
    if cost.after_kib > KEPT_KIB {
        exceeded.push(format!("{} KiB of memory after 10 s", cost.after_kib));
    }
    let wait = cost.wait("probe", 99);
    if wait.as_millis() > LONGEST_PROBE_MILLIS {
        exceeded.push(format!("a probe waits {wait:?}"));
    }
    exceeded
}

/// A service with 5,000 rules and 100,000 overrides, its admin port, and its certificate.
fn start(binary: &str) -> (Server, u16, Files) {
    let (admin, mut rules) = (free_port(), "domain: many\ndescriptors:\n".to_owned());
    for number in 0..5_000 {
        writeln!(rules, "- {{key: k, value: v{number}, rate_limit: {{unit: day, requests_per_unit: 1}}}}")
            .unwrap();
    }
    let files = Files::new(&Authority::new("ours").server());
    let setup = files.setup().rules("d.yaml", RULES).rules("many.yaml", &rules);
    let setup = setup.env("ADMIN_ADDR", &format!("127.0.0.1:{admin}")).env("MEMORY_MAX_KEYS", "100000");
    let server = setup.program(Path::new(binary), &["serve"]).start_healthy();
    eventually("the admin port is open", || {
        http::send(admin, "GET", "/api/v1/status", &[], b"").map(drop).map_err(|error| error.to_string())
    });
    let import = http::post(admin, "/api/v1/imports", "").json()["import"].as_str().unwrap().to_owned();
    for first in (0..100_000).step_by(20_000) {
        let lines = (first..first + 20_000).fold(String::new(), |mut lines, n| {
            writeln!(lines, r#"{{"domain":"d","descriptor":"k=c{n}","action":"block"}}"#).unwrap();
            lines
        });
        assert_eq!(http::post(admin, &format!("/api/v1/imports/{import}"), &lines).status, 200);
    }
    assert_eq!(http::send(admin, "PUT", &format!("/api/v1/imports/{import}"), &[], b"").unwrap().status, 200);
    (server, admin, files)
}

#[test]
#[ignore = "takes minutes; tests/cost/run starts it"]
fn table_of_the_http_ports() {
    let binary = env::var("TOLLGATE_COST_BINARY").unwrap_or_else(|_| BINARY.to_owned());
    let only = env::var("TOLLGATE_COST_ONLY").unwrap_or_default();
    let seconds = env::var("TOLLGATE_COST_SECONDS").map_or(3, |text| text.parse().unwrap());
    println!(
        "| port | script | MB | ns/B | requests | µs each | MB more | after | probe p50/p99/most | exceeds |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|---:|---|");
    let mut failed = Vec::new();
    for shape in shapes() {
        let Shape { port, script, requests } = shape;
        if !script.name.contains(&only) {
            continue;
        }
        let (server, admin, _files) = start(&binary);
        let number = match port {
            Port::Http => server.ports.http,
            Port::Debug => server.ports.debug,
            Port::Metrics => server.ports.metrics,
            Port::Admin => admin,
            Port::Tls => server.ports.grpc,
        };
        let cost =
            measure(&server, number, &script, None, Duration::from_secs(seconds), probe(server.ports.http));
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let requests = as_float(cost.sent.bytes) * requests as f64 / script.round.bytes.len() as f64;
        let exceeded = exceeded(port, &cost, requests);
        println!(
            "| {port:?} | {} | {} | {:.0} | {requests:.0} | {:.1} | {} | {} | {} | {} |",
            script.name,
            cost.sent.bytes / 1_000_000,
            cost.nanos_per_byte(),
            cost.cpu.as_secs_f64() * 1e6 / requests.max(1.0),
            cost.most_kib / 1024,
            cost.after_kib / 1024,
            cost.waits[0],
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
