//! `tollgate replay --envoy` on the access logs of a real Envoy: the requests are those that Envoy sent.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use replay::{AccessLog, Log, Replay, Side};
use serde_json::{Value, json};
use tempfile::TempDir;
use tollgate::cli::envoy::access_log;

use super::Files;
use crate::support::{
    envoy::Envoy,
    eventually, holds,
    process::assert_exit,
    server::{Server, Setup},
};
use limiter::Policy;
use rules::{CompileOptions, SourceFile, compile};

pub(super) const CONFIG: &str = include_str!("edge.yaml");

/// A service that records requests, and an Envoy that logs them.
struct Edge {
    dir: TempDir,
    server: Server,
    envoy: Envoy,
}

impl Edge {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let recorded = dir.path().join("requests.jsonl");
        let setup = Setup::new().env("BACKEND_TYPE", "memory").rules("edge.yaml", "domain: edge\n");
        let setup = setup.env("REQUEST_LOG", "all").env("REQUEST_LOG_FILE", recorded.to_str().unwrap());
        let server = setup.start_healthy();
        let envoy = Envoy::with(|[admin, listener], upstream, _| {
            let config =
                CONFIG.replace("ADMIN", &admin.to_string()).replace("LISTENER", &listener.to_string());
            let config = config.replace("port_value: SERVICE", &format!("port_value: {}", server.ports.grpc));
            let config = config.replace("port_value: UPSTREAM", &format!("port_value: {}", upstream.port));
            config.replace("DIR", dir.path().to_str().unwrap())
        });
        Self { dir, server, envoy }
    }

    /// Waits until both access logs have this many lines. Returns their names.
    fn wait_for_lines(&self, lines: usize) -> [String; 2] {
        ["edge.json", "edge.log"].map(|name| {
            let path = self.dir.path().join(name);
            eventually("the access log is written", || {
                let written = fs::read_to_string(&path).unwrap_or_default().lines().count();
                holds(written >= lines, || format!("{written} lines"))
            });
            path.to_str().unwrap().to_owned()
        })
    }

    /// The recorded requests.
    fn recorded(&self) -> Vec<String> {
        let text = fs::read_to_string(self.dir.path().join("requests.jsonl")).unwrap_or_default();
        text.lines().map(|line| shown(&serde_json::from_str(line).unwrap())).collect()
    }

    fn log(&self, path: &str) -> AccessLog {
        let name = self.envoy.config().display().to_string();
        let file = SourceFile { text: fs::read(&name).unwrap(), name };
        access_log(&file, &[path.into()], None).unwrap()
    }
}

/// A recorded request: its domain, and the descriptors with their hits.
fn shown(line: &Value) -> String {
    let descriptor = |one: &Value| {
        let entries = one["entries"].as_array().unwrap().iter();
        let entries = entries.map(|entry| format!("{}={}", entry["key"], entry["value"]));
        let hits = one["hits"].as_u64().unwrap_or(1);
        format!("{} {hits} {}", entries.collect::<Vec<_>>().join(","), one["refund"] == true)
    };
    let descriptors = line["descriptors"].as_array().unwrap().iter().map(descriptor);
    format!("{}: {}", line["domain"].as_str().unwrap(), descriptors.collect::<Vec<_>>().join("; "))
}

/// The requests that a replay makes of a log, in order, and its report.
fn computed(log: &Path, access_log: AccessLog) -> (Vec<String>, replay::Report) {
    let files = [SourceFile { name: "edge.yaml".into(), text: "domain: edge\n".into() }];
    let rules = compile(&files, CompileOptions::default()).rules.unwrap();
    let rules = Side::new(rules, Policy::default(), Arc::default(), 0);
    let bytes = Box::new(fs::File::open(log).unwrap());
    let logs = vec![Log { name: log.display().to_string(), bytes }];
    let access_log = Some(access_log);
    let replay =
        Replay { logs, access_log, rules, against: None, from: None, to: None, suggest: None, threads: 2 };
    let mut requests = Vec::new();
    let report = replay.run(&mut |decision| {
        let descriptor = |one: &limiter::Descriptor<'_>| {
            let entries = one.entries.iter().map(|entry| json!({"key": entry.key, "value": entry.value}));
            let entries = entries.collect::<Vec<_>>();
            json!({"entries": entries, "hits": one.hits_addend, "refund": one.is_negative_hits})
        };
        let descriptors = decision.request.descriptors.iter().map(descriptor).collect::<Vec<_>>();
        requests.push(shown(&json!({"domain": decision.request.domain, "descriptors": descriptors})));
    });
    (requests, report.unwrap_or_else(|error| panic!("{error:?}")))
}

fn counted(requests: &[String]) -> BTreeMap<&str, u32> {
    let mut counts = BTreeMap::new();
    for one in requests {
        *counts.entry(&**one).or_default() += 1;
    }
    counts
}

const PATHS: [&str; 34] = [
    "/exact",
    "/exact/",
    "/literal",
    "/headers/x",
    "/match",
    "/match/a",
    "/query",
    "/address",
    "/clusters",
    "/hits",
    "/ignored-hits",
    "/done",
    "/rewritten/a",
    "/Case",
    "/cAsE/x",
    "/segment",
    "/segment/a",
    "/segments",
    "/regex/12",
    "/regex/12/3",
    "/regex/x",
    "/by-header",
    "/by-query",
    "/redirect",
    "/direct",
    "/include",
    "/own-domain",
    "/ignore",
    "/only-route",
    "/stages",
    "/all",
    "//exact",
    "/",
    "/other",
];

const QUERIES: [&str; 12] = [
    "",
    "",
    "",
    "?",
    "?q",
    "?q=",
    "?q=a%20b",
    "?q=a+b&r",
    "?q=1&q=2",
    "?r=1;q=2",
    "?Q=%41%zz",
    "?a&q=x%3Dy%26&r=",
];

const HOSTS: [&str; 12] = [
    "api.example.com",
    "API.example.com",
    "api.example.com:80",
    "x.example.com",
    "x.deep.example.com",
    "foo-bar.example.com",
    "-bar.example.com",
    "static.foo",
    "static.",
    "ported.test:8080",
    "ported.test",
    "example.com",
];

const ADDRESSES: [&str; 7] = [
    "192.0.2.7",
    "192.0.2.7, 10.1.2.3",
    "2001:db8:1:2:3::4",
    "2001:DB8:0:0::7",
    "nonsense",
    "::ffff:192.0.2.1",
    "10.255.255.255",
];

/// Random headers of a request.
fn headers(random: &mut fastrand::Rng) -> Vec<(&'static str, &'static str)> {
    let mut headers = Vec::new();
    let mut add = |random: &mut fastrand::Rng, name, values: &[&'static str]| {
        if random.bool() {
            headers.push((name, values[random.usize(..values.len())]));
        }
    };
    add(random, "x-user", &["ann", "", "a\"b\\c", "a%20b", "12", "ä", "a b", "true", "null"]);
    add(random, "x-kind", &["a", "b", "bc", "A", "", "abc"]);
    add(
        random,
        "x-number",
        &["7", "5", "10", "-1", "1.9", "2000000000", "1000000000", "x", "0", "+3", "1e2"],
    );
    add(random, "x-forwarded-for", &ADDRESSES);
    headers
}

const REQUESTS: usize = 500;

#[test]
fn a_replay_computes_the_descriptors_that_envoy_sent() {
    let edge = Edge::start();
    let seed = std::env::var("TOLLGATE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    let mut random = fastrand::Rng::with_seed(seed);
    let mut lines = Vec::new();
    for number in 0..REQUESTS {
        // Each of them at least once.
        let path = PATHS.get(number).copied().unwrap_or_else(|| PATHS[random.usize(..PATHS.len())]);
        let path = format!("{path}{}", QUERIES[random.usize(..QUERIES.len())]);
        let method = ["GET", "POST"][random.usize(..2)];
        let mut headers = headers(&mut random);
        if number >= PATHS.len() && random.u32(0..4) == 0 {
            headers.push(("host", HOSTS[random.usize(..HOSTS.len())]));
        }
        let status = edge.envoy.send(method, &path, &headers).status;
        lines.push(format!("{status} {method} {path} {headers:?}"));
    }
    let [json, text] = edge.wait_for_lines(REQUESTS);
    let mut sent = Vec::new();
    eventually("every request is recorded", || {
        let (logged, _) = computed(Path::new(&json), edge.log(&json));
        sent = edge.recorded();
        holds(sent.len() == logged.len(), || differences(&logged, &sent))
    });
    let configs = [fs::read_to_string(edge.envoy.config()).unwrap(), edge.envoy.config_dump()];
    for (log, config) in
        [&json, &text].into_iter().flat_map(|log| configs.each_ref().map(|config| (log, config)))
    {
        let file = SourceFile { name: "config".into(), text: config.clone().into_bytes() };
        let access_log = access_log(&file, &[log.into()], None).unwrap();
        let (logged, report) = computed(Path::new(log), access_log);
        assert_eq!(differences(&logged, &sent), "", "{log}, seed {seed}:\n{}", lines.join("\n"));
        assert!(report.logs.untold.is_empty(), "{:?}", report.logs);
        assert!(report.logs.without_descriptors > 0 && sent.len() > REQUESTS / 2, "{:?}", report.logs);
    }
}

/// What one list has more often than the other.
fn differences(logged: &[String], sent: &[String]) -> String {
    let (logged, sent) = (counted(logged), counted(sent));
    let all: std::collections::BTreeSet<&&str> = logged.keys().chain(sent.keys()).collect();
    let of = |counts: &BTreeMap<&str, u32>, one: &str| counts.get(one).copied().unwrap_or_default();
    let differing = all.into_iter().filter(|one| of(&logged, one) != of(&sent, one));
    let lines = differing.map(|one| format!("computed {}, sent {}: {one}", of(&logged, one), of(&sent, one)));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn what_the_log_does_not_tell_is_named_and_never_guessed() {
    let edge = Edge::start();
    let paths = ["/metadata", "/changed", "/long", "/unlogged", "/unknown", "/unknown", "/exact"];
    for path in paths {
        let headers = [("x-user", "ann"), ("x-long", "abcdef"), ("x-unlogged", "u")];
        assert_eq!(edge.envoy.send("GET", path, &headers).status, 200, "{path}");
    }
    // A short value is whole, and the missing header of another action ends a descriptor anyway.
    edge.envoy.send("GET", "/long", &[("x-long", "abc")]);
    edge.envoy.send("GET", "/all", &[("x-kind", "a")]);
    let [json, _] = edge.wait_for_lines(paths.len() + 2);
    let (logged, report) = computed(Path::new(&json), edge.log(&json));
    let expected = [
        "edge: \"generic_key\"=\"beside\" 1 false",
        "edge: \"generic_key\"=\"exact\",\"user\"=\"ann\" 1 false",
        "edge: \"long\"=\"abc\" 1 false",
        "edge: \"generic_key\"=\"host\" 1 false",
    ];
    assert_eq!(logged, expected);
    let untold: Vec<(String, u64)> =
        report.logs.untold.iter().map(|one| (one.what.sentence(), one.dropped)).collect();
    let dropped = |what: &str| format!("descriptor dropped: action {what}, which the log does not have");
    let line = CONFIG.lines().position(|line| line.contains("prefix: /unknown, headers")).unwrap() + 1;
    let unknown = format!(
        "request dropped: the match of the route at line {line} needs %REQ(X-UNLOGGED)%, which the log does not have"
    );
    let expected = [
        (
            dropped(
                "request_headers of route \"changed\" needs the header x-user before the route changes it",
            ),
            1,
        ),
        (dropped("request_headers of route \"long\" needs %REQ(X-LONG)%"), 1),
        (dropped("metadata of route \"meta\" needs dynamic metadata"), 1),
        (dropped("request_headers of route \"unlogged\" needs %REQ(X-UNLOGGED)%"), 1),
        (unknown, 2),
    ];
    assert_eq!(untold, expected);
    // The command says the same.
    let files = Files::new();
    let config = edge.envoy.config();
    let args = [&json, "--rules", "strict", "--envoy", config.to_str().unwrap()];
    assert_exit(&files.replay(&args, b""), 0, &["warning: 2 times: request dropped: the match of the route"]);
    let report = files.report(&args, b"");
    assert_eq!(report["logs"]["untold"][2]["needs"], "dynamic metadata", "{}", report["logs"]);
    drop(edge.server);
}

#[test]
fn mistakes_of_a_configuration_are_named() {
    let files = Files::new();
    files.put("edge.yaml", CONFIG.as_bytes());
    files.put("no.yaml", b"static_resources: {}\n");
    files.put("bad.yaml", b"static_resources: [\n");
    files.put("edge.json", b"{}\n");
    files.put("other", b"\n");
    let replay = |log: &str, config: &str, more: &[&str]| {
        files.replay(&[&[log, "--rules", "strict", "--envoy", config], more].concat(), b"")
    };
    for (log, config, more, message) in [
        ("edge.json", "gone.yaml", &[][..], "gone.yaml"),
        ("edge.json", "bad.yaml", &[], "bad.yaml"),
        ("edge.json", "no.yaml", &[], "no HTTP listener has a rate limit filter"),
        ("other", "edge.yaml", &[], "which access log is replayed?"),
        ("edge.json", "edge.yaml", &[], "edge.json:1: the line has no start_time"),
        ("edge.json", "edge.yaml", &["--domain", "d", "--descriptor", "a=b"], "cannot be used with"),
        ("edge.json", "edge.yaml", &["--access-log-format", "%PROTOCOL%"], "expected %START_TIME%"),
    ] {
        assert_exit(&replay(log, config, more), 2, &[message]);
    }
    let lines = b"{\"t\":\"2026-11-01T00:00:00Z\",\"p\":\"/regex/1\",\"h\":\"x\"}\n";
    files.put("other", lines);
    let format = r#"{"t":"%START_TIME%","p":"%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%","h":"%REQ(:AUTHORITY)%"}"#;
    assert_exit(
        &replay("other", "edge.yaml", &["--access-log-format", format]),
        0,
        &["1 request, 0 refused"],
    );
}

/// What is sent at the end of a response is newer than the lines behind it, which are in time nevertheless.
#[test]
fn requests_at_the_end_of_long_responses_make_no_line_late() {
    let files = Files::new();
    let line = |number: u32| {
        let (minute, second) = (number / 6000, f64::from(number % 6000) / 100.0);
        format!(
            "{{\"time\":\"2026-11-01T00:{minute:02}:{second:06.3}Z\",\"request\":{{\"line\":\"GET localhost HTTP/1.1\",\
             \"path\":\"/done\"}},\"client\":\"10.0.0.1:80\",\"route\":null,\"cluster\":\"upstream\",\"sent\":2,\
             \"milliseconds\":60000}}\n"
        )
    };
    let log = files.put("edge.json", (0..20_000).map(line).collect::<String>().as_bytes());
    let file = SourceFile { name: "edge.yaml".into(), text: CONFIG.into() };
    let (requests, report) = computed(&log, access_log(&file, std::slice::from_ref(&log), None).unwrap());
    assert_eq!((report.requests, report.logs.late), (40_000, 0));
    assert!(requests[..6000].iter().all(|one| one.contains("start")), "{:?}", &requests[..3]);
    assert!(requests[34_000..].iter().all(|one| one.contains("end")), "{:?}", requests.last());
}
