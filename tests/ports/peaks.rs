//! Small inputs take little memory: the peak of the running service for every kind of input of a peer or a
//! user. Rejected input takes less than twice its size and 8 MB, in pages of 4 KiB: with huge pages
//! a process differs by 2 MB depending on the address of a single allocation.

use std::{
    convert::Infallible,
    net::TcpListener,
    pin::Pin,
    task::{Context, Poll},
    thread,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::{Message, encoding::encode_varint};
use prost_types::Any;
use proto::envoy::service::discovery::v3::DiscoveryResponse;
use tokio::{runtime::Builder, sync::watch};

use support::{
    client::request,
    http as http1,
    process::Process,
    raw::{Exchange, GrpcStatus, RawClient, frame},
    server::Setup,
};

const RULES: &str = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 9}}]\n";

/// A service without huge pages. With them, the offset of an allocation in its 2 MB changes the resident
/// memory as much as its size: the same file took 2 to 14 MB, and 3.1 to 3.2 MB without. The bound of rules is that of a
/// small machine, so that the inputs exceed it.
fn setup() -> Setup {
    Setup::new().env("MIMALLOC_ALLOW_THP", "0").env("RULES_MAX_VALUES", "200000")
}

/// The maximum growth of a process's memory during an action, in bytes. Each input is sent to a
/// new process in which its code has run before: memory that an earlier input left would
/// hide the growth.
fn growth(process: &Process, action: impl FnOnce()) -> u64 {
    let before = process.resident_kib();
    process.reset_peak();
    action();
    process.peak_kib().saturating_sub(before) * 1024
}

/// Asserts the limit for rejected input.
fn is_small(what: &str, size: usize, growth: u64) {
    let most = 2 * size as u64 + 8_000_000;
    println!("{what}: {size} bytes took {growth}, {most} at most");
    assert!(growth < most, "{what}: {size} bytes took {growth}, {most} at most");
}

/// A length-delimited field.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    encode_varint(value.len() as u64, &mut field);
    field.extend_from_slice(value);
    field
}

/// The status of a call with these bytes as its message.
fn status(client: &mut RawClient, runtime: &tokio::runtime::Runtime, message: &[u8]) -> GrpcStatus {
    match runtime.block_on(client.exchange(frame(message), &HeaderMap::new())) {
        Exchange::Answered(status) => status,
        lost => panic!("{lost:?}"),
    }
}

#[test]
fn a_grpc_message_of_many_empty_parts() {
    let domain = field(1, b"d");
    let message = |part: &[u8]| [domain.as_slice(), part].concat();
    // One below the bound, at it, and above it, with the status code.
    let descriptors = [(127, 0), (128, 0), (129, 3), (2_000_000, 3)]
        .map(|(count, code)| (format!("{count} descriptors"), message(&[0x12, 0].repeat(count)), code));
    let entries = [(63, 0), (64, 0), (65, 3), (2_000_000, 3)].map(|(count, code)| {
        (format!("{count} entries"), message(&field(2, &[0x0a, 0].repeat(count))), code)
    });
    let nested = [vec![0x2b; 2_000_000], vec![0x2c; 2_000_000]].concat();
    let malformed = [[0x12, 0].repeat(2_000_000), vec![0x12, 7]].concat();
    let others =
        [("groups within groups".to_owned(), nested, 13), ("a malformed message".to_owned(), malformed, 13)];
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    for (what, message, code) in descriptors.into_iter().chain(entries).chain(others) {
        let server = setup().rules("d.yaml", RULES).env("GRPC_WORKERS", "1").start();
        let mut client = runtime.block_on(RawClient::connect(server.ports.grpc)).unwrap();
        assert_eq!(status(&mut client, &runtime, &[0x12, 0]).code, 2);
        assert_eq!(status(&mut client, &runtime, &[0x12, 9]).code, 13);
        let grown = growth(&server.process, || {
            let answered = status(&mut client, &runtime, &message);
            assert_eq!(answered.code, code, "{what}: {answered:?}");
            assert!(answered.message.len() <= 256, "{}", answered.message.len());
        });
        is_small(&what, message.len(), grown);
    }
}

#[test]
fn an_accepted_grpc_message_takes_a_small_multiple_of_its_size() {
    let server = setup()
        .rules("d.yaml", RULES)
        .env("GRPC_WORKERS", "1")
        .env("RESPONSE_DYNAMIC_METADATA", "true")
        .start();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let mut client = runtime.block_on(RawClient::connect(server.ports.grpc)).unwrap();
    assert_eq!(status(&mut client, &runtime, &request("d", &[&[("k", "v")]]).encode_to_vec()).code, 0);
    let long = "x".repeat(4_000_000);
    let message = request("d", &[&[("k", &long)]]).encode_to_vec();
    let grown = growth(&server.process, || {
        assert_eq!(status(&mut client, &runtime, &message).code, 0);
    });
    println!("accepted: {} bytes took {grown}", message.len());
    assert!(grown < 10 * message.len() as u64 + 8_000_000, "{grown}");
}

/// A kind of input of any size. A small one is sent first, so that its code is in memory.
type Kind = (&'static str, fn(usize) -> String, usize);

#[test]
fn a_json_body_of_many_empty_parts_or_long_texts() {
    fn around(descriptors: &str) -> String {
        format!("{{\"domain\":\"d\",\"descriptors\":[{descriptors}]}}")
    }
    fn objects(count: usize) -> String {
        vec!["{}"; count].join(",")
    }
    let descriptors: fn(usize) -> String = |count| around(&objects(count));
    let entries: fn(usize) -> String = |count| around(&format!("{{\"entries\":[{}]}}", objects(count)));
    let full: fn(usize) -> String =
        |count| around(&format!("{{\"entries\":[{}]}}", vec!["{\"key\":\"\"}"; count].join(",")));
    let hits: fn(usize) -> String = |count| around(&vec!["{\"hits_addend\":1}"; count].join(","));
    let kinds: [Kind; 23] = [
        ("descriptors", descriptors, 127),
        ("descriptors", descriptors, 128),
        ("descriptors", descriptors, 129),
        ("descriptors", descriptors, 1_000_000),
        ("entries", entries, 63),
        ("entries", entries, 64),
        ("entries", entries, 65),
        ("entries", entries, 1_000_000),
        // The maximum number of objects, and one more.
        ("full entries", full, 8_575),
        ("full entries", full, 8_576),
        ("hits", hits, 4_288),
        ("hits", hits, 4_289),
        ("a long name", |n| format!("{{\"{}\":1}}", "x".repeat(n)), 4_000_000),
        ("a long name with an escape", |n| format!("{{\"\\u0061{}\":1}}", "x".repeat(n)), 4_000_000),
        ("a name of escapes", |n| format!("{{\"{}\":1}}", "\\n".repeat(n)), 2_000_000),
        ("a long text for a list", |n| format!("{{\"descriptors\":\"{}\"}}", "x".repeat(n)), 4_000_000),
        ("a long text for a number", |n| format!("{{\"hits_addend\":\"{}\"}}", "x".repeat(n)), 4_000_000),
        ("a long number", |n| format!("{{\"hits_addend\":{}}}", "1".repeat(n)), 4_000_000),
        ("lists within lists", |n| "[".repeat(n), 4_000_000),
        ("lists within lists of descriptors", |n| around(&"[".repeat(n)), 4_000_000),
        ("objects within objects", |n| "{\"descriptors\":[".repeat(n), 200_000),
        ("an unfinished text", |n| format!("{{\"domain\":\"{}", "x".repeat(n)), 4_000_000),
        (
            "a text and then nonsense",
            |n| format!("{{\"domain\":\"\\t{}\",\"x\":1}}", "x".repeat(n)),
            4_000_000,
        ),
    ];
    for (what, body, count) in kinds {
        let server = setup().rules("rules.yaml", RULES).start();
        http1::post(server.ports.http, "/json", &body(100));
        let text = body(count);
        let grown = growth(&server.process, || {
            let answer = http1::post(server.ports.http, "/json", &text);
            let accepted = matches!((what, count), ("descriptors", ..=128) | ("entries", ..=64));
            assert_eq!(answer.status, if accepted { 200 } else { 400 }, "{what}: {}", answer.text());
            assert!(accepted || answer.text().len() < 300, "{what}: {}", answer.text());
        });
        is_small(&format!("{count} {what}"), text.len(), grown);
    }
}

#[test]
fn a_rules_file_of_many_empty_values() {
    fn around(items: &str) -> String {
        format!("domain: d\ndescriptors: [{items}]\n")
    }
    fn pairs(count: usize) -> String {
        (0..count).map(|n| format!("k{n}: v")).collect::<Vec<_>>().join(",")
    }
    let merging: fn(usize) -> String =
        |n| format!("x: &m {{{}}}\ndomain: d\ndescriptors:\n{}", pairs(n / 50), "- {<<: *m}\n".repeat(n));
    let wide: fn(usize) -> String = |n| format!("a: &a [{}]\nb: [{}]\n", "x,".repeat(n / 2), "*a,".repeat(n));
    let kinds: [(Kind, &str); 7] = [
        (("empty", |n| around(&"{},".repeat(n)), 1_000_000), "RULES_MAX_VALUES"),
        (("texts", |n| around(&"a,".repeat(n)), 1_500_000), "RULES_MAX_VALUES"),
        (("merging", merging, 50_000), "RULES_MAX_VALUES"),
        (("wide", wide, 2_000), "RULES_MAX_VALUES"),
        (("deep", |n| around(&"[".repeat(n)), 1_000_000), "nested more than"),
        (("colons", |n| around(&"a:,".repeat(n)), 1_000_000), "put a space after the colon"),
        (("name", |n| format!("domain: d\n\"{}\": 1\n", "x".repeat(n)), 4_000_000), "xxx"),
    ];
    for ((name, text, count), message) in kinds {
        let server = setup().rules("rules.yaml", RULES).start();
        server.wait_for_rule("d.k:");
        let small = format!("small-{name}.yaml");
        server.write(&small, &text(100));
        server.wait_for_log(&[&small]);
        std::fs::remove_file(server.rules_dir().join(&small)).unwrap();
        let text = text(count);
        let grown = growth(&server.process, || {
            server.write(&format!("{name}.yaml"), &text);
            server.wait_for_log(&[&format!("/{name}.yaml"), message]);
        });
        is_small(name, text.len(), grown);
        let log = server.final_log();
        assert!(log.lines().all(|line| line.len() < 2_000), "a line of the log is long");
    }
}

/// The response of a control plane to every request, once `now` turns true.
struct LateBody {
    message: Option<Bytes>,
    now: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Body for LateBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.message.is_some() && self.now.as_mut().poll(context).is_ready() {
            return Poll::Ready(self.message.take().map(|message| Ok(Frame::data(message))));
        }
        Poll::Pending
    }
}

/// A control plane that sends these bytes as its only response.
fn control_plane(message: &[u8], now: watch::Receiver<bool>) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let message = frame(message);
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                let (message, now) = (message.clone(), now.clone());
                let answer = move |_: Request<Incoming>| {
                    let mut now = now.clone();
                    let now = async move { drop(now.wait_for(|now| *now).await) };
                    let body = LateBody { message: Some(message.clone()), now: Box::pin(now) };
                    let response = Response::builder().header("content-type", "application/grpc").body(body);
                    async move { Ok::<_, Infallible>(response.unwrap()) }
                };
                let serving = http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service_fn(answer));
                tokio::spawn(serving);
            }
        });
    });
    address
}

#[test]
fn a_control_plane_response_of_many_empty_parts() {
    let any = |config: Vec<u8>| Any {
        type_url: "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig".to_owned(),
        value: config,
    };
    let descriptors = any([0x1a, 0].repeat(4_000_000));
    let plain = |resource: &Any| {
        DiscoveryResponse { resources: vec![resource.clone()], ..DiscoveryResponse::default() }
            .encode_to_vec()
    };
    let metadata = any(field(3, &field(8, &field(1, &[]).repeat(4_000_000))));
    for (what, message, text) in [
        ("descriptors", plain(&descriptors), "the response: error: more than"),
        ("metadata", plain(&metadata), "the response: error: more than"),
        ("resources", [0x12, 0].repeat(8_000_000), "the response: error: more than"),
        ("malformed", [[0x12, 0].repeat(4_000_000), vec![0x12, 9]].concat(), "malformed"),
    ] {
        let (send, now) = watch::channel(false);
        let server = setup()
            .env("CONFIG_TYPE", "GRPC_XDS_SOTW")
            .env("CONFIG_GRPC_XDS_SERVER_URL", &control_plane(&message, now))
            .env("CONFIG_GRPC_XDS_NODE_ID", "tests")
            .env("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")
            // More than the bound of values allows, so that the messages in it are counted.
            .env("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "16777216")
            .start();
        let grown = growth(&server.process, || {
            send.send_replace(true);
            server.wait_for_log(&[text]);
        });
        is_small(what, message.len(), grown);
    }
}
