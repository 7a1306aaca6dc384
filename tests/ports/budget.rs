//! The budget of memory: all bounds full at the same time under the limits of the deployments, rules that are reloaded
//! beside them, and an import in progress. The service stays alive within the limit, and serves.

use std::{fmt::Write as _, fs, io::Write as _, net::TcpStream, path::PathBuf, process, time::Duration};

use ::http::HeaderMap;
use serde_json::json;
use tokio::runtime::Builder;

use support::{
    client::request,
    eventually,
    frames::Connection,
    holds, http, or_deep,
    ports::free_port,
    quotas::Quotas,
    raw::{Exchange, RawClient, framed},
    server::{BINARY, Server, Setup},
};

const RULES: &str = "
domain: d
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 9}}
  - {key: log, rate_limit: {unit: day, requests_per_unit: 9, algorithm: sliding_log}}
  - {key: series, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}
  - {key: stream, rate_limit: {algorithm: concurrency, requests_per_unit: 1000000, hold: {ttl: 1h}}}
";

/// The descriptors of one request.
const AT_ONCE: usize = 125;

/// A cgroup with a limit of memory, in which a program starts.
struct Cgroup(PathBuf);

impl Cgroup {
    /// `None` where the test may not make one.
    fn new(mib: usize) -> Option<Self> {
        let name = format!("tollgate-test-{}-{mib}", process::id());
        let version_1 = ("/sys/fs/cgroup/memory", "memory.limit_in_bytes");
        let version_2 = ("/sys/fs/cgroup", "memory.max");
        for (root, file) in [version_1, version_2] {
            let path = PathBuf::from(root).join(&name);
            if fs::create_dir(&path).is_err() {
                continue;
            }
            let cgroup = Self(path);
            if fs::write(cgroup.0.join(file), (mib << 20).to_string()).is_ok() {
                return Some(cgroup);
            }
        }
        None
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn start(mib: usize, admin: u16) -> (Server, Option<Cgroup>) {
    let setup = Setup::new().rules("d.yaml", RULES).env("ADMIN_ADDR", &format!("127.0.0.1:{admin}"));
    let setup = setup.env("GRPC_WORKERS", "1").env("GRPC_RECEIVE_TIMEOUT", "5m").env("HTTP_TIMEOUT", "5m");
    limited(mib, setup)
}

/// A service with this limit: that of a cgroup if the test may make one, else the variable.
fn limited(mib: usize, setup: Setup) -> (Server, Option<Cgroup>) {
    let (cgroup, setup) = (Cgroup::new(mib), setup.env("LOG_LEVEL", "info"));
    let setup = match &cgroup {
        Some(Cgroup(path)) => {
            let script = format!("echo $$ > {}/cgroup.procs && exec {BINARY} serve", path.display());
            setup.program("/bin/sh".as_ref(), &["-c", &script])
        }
        None => setup.env("MEMORY_LIMIT", &format!("{mib}Mi")),
    };
    (setup.start_healthy(), cgroup)
}

fn bound(server: &Server, name: &str) -> usize {
    server.count(&format!("tollgate_memory_bound_bytes{{bound=\"{name}\"}}"))
}

fn used(server: &Server, name: &str) -> usize {
    server.count(&format!("tollgate_memory_used_bytes{{bound=\"{name}\"}}"))
}

/// Requests of many descriptors with different values of a key, whatever their answers are.
fn ask_for(server: &Server, key: &str, values: usize) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = RawClient::connect(server.ports.grpc).await.unwrap();
        for first in (0..values).step_by(AT_ONCE) {
            let values: Vec<_> = (first..first + AT_ONCE).map(|number| format!("value-{number}")).collect();
            let descriptors: Vec<_> = values.iter().map(|value| [(key, value.as_str())]).collect();
            let descriptors: Vec<_> = descriptors.iter().map(<[_; 1]>::as_slice).collect();
            match client.exchange(framed(&request("d", &descriptors)), &HeaderMap::new()).await {
                Exchange::Answered(status) if status.code == 0 => {}
                other => panic!("{key} {first}: {other:?}"),
            }
        }
    });
}

/// The bytes of a value, of which a plain rule has eleven.
const VALUE: usize = 300;

/// As many plain rules as nearly fill this memory.
fn rules_that_fill(bytes: usize) -> usize {
    bytes / (VALUE * 12)
}

fn plain_rules(rules: usize, limit: u32) -> String {
    let mut text = "domain: many\ndescriptors:\n".to_owned();
    for number in 0..rules {
        writeln!(
            text,
            "- {{key: k, value: v{number}, rate_limit: {{unit: day, requests_per_unit: {limit}}}}}"
        )
        .unwrap();
    }
    text
}

/// Replaces the rules, and waits until they are in force.
fn reload(server: &Server, rules: usize, limit: u32) {
    let count = |log: &str| log.matches("rules loaded").count();
    let before = server.process.wait_until_log("the log can be read", |log| Ok(count(log)));
    server.write("many.yaml", &plain_rules(rules, limit));
    server
        .process
        .wait_until_log("the rules are loaded", |log| holds(count(log) > before, || log.to_owned()));
}

/// Connections that send a head and a part of what follows it, and read nothing.
fn unfinished(port: u16, count: usize, head: &str, body: usize) -> Vec<TcpStream> {
    let connections = (0..count).map(|_| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&vec![b' '; body]));
        stream
    });
    connections.collect()
}

fn lines(first: usize, count: usize) -> String {
    (first..first + count).fold(String::new(), |mut lines, n| {
        writeln!(lines, r#"{{"domain":"d","descriptor":"user=caller-{n}","action":"block"}}"#).unwrap();
        lines
    })
}

/// Begins an import and adds overrides until they are `count`, or the bound refuses them.
fn import(admin: u16, count: usize) -> String {
    let import = http::post(admin, "/api/v1/imports", "").json()["import"].as_str().unwrap().to_owned();
    for first in (0..count).step_by(5_000) {
        let answer =
            http::post(admin, &format!("/api/v1/imports/{import}"), &lines(first, 5_000.min(count - first)));
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    import
}

/// Envoys that report buckets of many entries until there is no room for more.
fn fill_quotas(server: &Server) -> Vec<Quotas> {
    let keys: Vec<String> = (0..60).map(|entry| format!("key-{entry}")).collect();
    let mut streams = Vec::new();
    for stream in 0..10 {
        let mut quotas = Quotas::open(server);
        for number in 0..1000 {
            let value = format!("{stream}-{number}");
            let entries: Vec<(&str, &str)> = keys.iter().map(|key| (&**key, &*value)).collect();
            quotas.report("d", &[(&entries, 1, 0)]);
        }
        let reported = (stream + 1) * 1000;
        eventually("the reports are taken", || {
            quotas.read_for(Duration::from_millis(100));
            let taken = server.count("tollgate_quota_reports_total");
            holds(taken >= reported, || format!("{taken} of {reported}"))
        });
        streams.push(quotas);
        if server.count("tollgate_quota_refused_total{reason=\"memory\"}") > 0 {
            break;
        }
    }
    streams
}

/// Tries as many rules as are in force, or as a body may have. What has no room is refused.
fn try_rules(admin: u16, rules: usize) {
    let body = json!({ "rules": plain_rules(rules.min(11_000), 5) }).to_string();
    let answer =
        http::send(admin, "POST", "/api/v1/try", &[("content-type", "application/json")], body.as_bytes());
    let answer = answer.unwrap();
    let is_refused = answer.status == 503 && answer.text().contains("(MEMORY_LIMIT) are free");
    assert!(answer.status == 200 || is_refused, "{} {}", answer.status, answer.text());
}

/// Fills all that stays full by itself.
fn fill(server: &Server, admin: u16) {
    reload(server, rules_that_fill(bound(server, "rules")), 1);
    ask_for(server, "user", bound(server, "counters") / 64 * 11 / 10);
    ask_for(server, "log", bound(server, "counters") / 64);
    ask_for(server, "series", bound(server, "series") / 1536);
    ask_for(server, "stream", bound(server, "holds") / 1024 * 11 / 10);
    let overrides = bound(server, "overrides") / 560;
    let first = import(admin, overrides);
    assert_eq!(http::send(admin, "PUT", &format!("/api/v1/imports/{first}"), &[], b"").unwrap().status, 200);
    // This one stays in progress.
    import(admin, overrides);
}

/// Fills what connections hold.
fn hold(server: &Server, admin: u16) -> (Vec<TcpStream>, Vec<Connection>) {
    let ports = server.ports;
    let mut streams = Vec::new();
    let post = |path: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n"
        )
    };
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let many = |name| (bound(server, name) / 700_000).clamp(1, 60);
    streams.extend(unfinished(ports.http, many("json_bodies"), &post("/json"), 700_000));
    streams.extend(unfinished(admin, many("admin_bodies"), &post("/api/v1/overrides"), 700_000));
    // Messages within the first window of their streams.
    let message = [&[0_u8, 0, 0, 0xff, 0][..], &vec![b'x'; 65_000]].concat();
    let each = 16;
    let clients = bound(server, "inflight_requests") / (each * 65_000) + 1;
    let mut unanswered: Vec<_> = (0..clients).map(|_| Connection::open(ports.grpc)).collect();
    for client in &mut unanswered {
        for number in 0..u32::try_from(each).unwrap() {
            client.begin(2 * number + 1);
            client.data(2 * number + 1, &message[..64_000]);
        }
    }
    streams.extend(unfinished(ports.metrics, 40, &get("/metrics"), 0));
    streams.extend(unfinished(ports.debug, 40, &get("/rlconfig"), 0));
    streams.extend(unfinished(admin, 20, &get("/api/v1/overrides?n=10000"), 0));
    streams.extend(unfinished(admin, 20, &get("/api/v1/rules?n=100000"), 0));
    (streams, unanswered)
}

#[test]
fn all_bounds_full_at_once_under_the_limit_leave_the_service_alive_and_serving() {
    for &mib in or_deep(&[128][..], &[256, 128, 64]) {
        let admin = free_port();
        let (mut server, cgroup) = start(mib, admin);
        eventually("the admin port is open", || {
            http::send(admin, "GET", "/api/v1/status", &[], b"").map(drop).map_err(|error| error.to_string())
        });
        let limit = server.count("tollgate_memory_limit_bytes");
        assert_eq!(limit, mib << 20, "as found, in a cgroup: {}", cgroup.is_some());
        let rules = rules_that_fill(bound(&server, "rules"));
        fill(&server, admin);
        let envoys = fill_quotas(&server);
        try_rules(admin, rules);
        for name in ["counters", "holds", "series", "overrides", "quotas"] {
            let (used, bound) = (used(&server, name), bound(&server, name));
            println!("{mib} MiB: {name}: {used} of {bound}");
            assert!(used >= bound / 4, "{name} is not full: {used} of {bound}");
        }
        let held = hold(&server, admin);
        // The set in force, its predecessor, and the reading of the next one, beside all others.
        let mut peak = 0;
        for limit in 2..5 {
            reload(&server, rules, limit);
            peak = peak.max(server.process.anonymous_kib() >> 10);
        }
        assert!(server.process.exited().is_none(), "{mib} MiB: it was killed\n{}", server.process.log());
        let answer = server.ask(request("d", &[&[("user", "value-0")]])).unwrap();
        assert_eq!(answer.statuses.len(), 1, "it serves");
        assert!(server.is_healthy());
        let requests = || server.count("ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"}");
        let before = requests();
        server.ask(request("d", &[&[("user", "value-0")]])).unwrap();
        assert_eq!(
            requests(),
            before + 1,
            "the page is younger than its request, beside forty that nobody reads"
        );
        println!("{mib} MiB: {peak} MiB with everything full");
        // The least that some bounds may have is a larger share of a small limit.
        let most = if mib < 128 { mib } else { mib / 10 * 9 };
        assert!(peak < most as u64, "{mib} MiB: {peak} MiB");
        // It refuses a set that is too large with the reason, and keeps the one in force.
        server.write("more.yaml", &plain_rules(rules, 1).replace("many", "more"));
        server.process.wait_for_log(&["RULES_MAX_VALUES", "keeping previous rules"]);
        assert!(server.is_healthy());
        drop((held, envoys));
        drop(server);
        drop(cgroup);
    }
}

/// A reload must not need more than the one before it, nor leave anything of the rules before it.
#[test]
fn reloads_of_many_rules_need_no_more_memory_each_time() {
    const RULES_EACH: usize = 1000;
    const RELOADS: u32 = 24;
    // What the allocator keeps for later is not in the figures.
    let setup = Setup::new().env("MIMALLOC_PURGE_DELAY", "0").env("MIMALLOC_ALLOW_THP", "0");
    let server = setup.rules("d.yaml", RULES).env("LOG_LEVEL", "info").start();
    let reload = |limit| {
        reload(&server, RULES_EACH, limit);
        server.process.anonymous_kib()
    };
    for limit in 1..9 {
        reload(limit);
    }
    // As many reloads have a peak as high and leave as little, by chance too.
    let least_and_peak_of = |limits: std::ops::Range<u32>| {
        server.process.reset_peak();
        let least = limits.map(reload).min().unwrap();
        (least, server.process.peak_kib())
    };
    let before = least_and_peak_of(9..9 + RELOADS);
    let after = least_and_peak_of(9 + RELOADS..9 + 2 * RELOADS);
    println!("after a reload at least, and the peak, in KiB: {before:?}, {after:?} of as many more");
    // A third of the 108 bytes that each rule once left behind at each reload.
    let left = u64::from(RELOADS) * RULES_EACH as u64 * 36 / 1024;
    assert!(after.0 < before.0 + left, "{before:?} KiB, and {after:?} KiB in as many more reloads");
    assert!(after.1 < before.1 + before.1 / 8, "{before:?} KiB, and {after:?} KiB in as many more reloads");
}
