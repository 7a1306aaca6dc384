//! Three Envoys and two replicas on one Redis, while traffic moves, Envoys and replicas end, and the limit is lowered:
//! the figures of docs/reference/quota.md, and its picture. `tests/quota/run` starts it.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, sleep},
    time::{Duration, Instant},
};

use proto::envoy::service::rate_limit_quota::v3::RateLimitQuotaUsageReports;
use serde_json::{Value, json};

use crate::{
    ports::envoy::quota::filter,
    support::{
        bootstrap::{Service, Wanted, bootstrap},
        client::request,
        envoy::Envoy,
        http,
        ports::free_port,
        quotas::{Quotas, usage},
        redis::Redis,
        server::{Server, Setup},
        steady::{Outcome, Steady},
    },
};

/// The limit and the demand of all Envoys, in requests a second: one and a half times as much.
const LIMIT: u64 = 1000;
const DEMAND: u64 = 1500;

/// The length of a window in seconds, if `TOLLGATE_QUOTA_WINDOW` says nothing else.
const WINDOW: u64 = 10;

/// The seconds of each part, in whole windows.
const PARTS: [(&str, u64); 8] = [
    ("steady", 40),
    ("traffic moves", 75),
    ("most of it moves", 75),
    ("Envoys roll", 40),
    ("a replica is killed", 30),
    ("steady", 30),
    ("reload: ½", 30),
    ("override: ¼", 30),
];

fn window() -> u64 {
    env::var("TOLLGATE_QUOTA_WINDOW").map_or(WINDOW, |seconds| seconds.parse().expect("a number of seconds"))
}

/// The rules with a limit a second.
fn rules(limit: u64) -> String {
    let (seconds, requests) = (window(), limit * window());
    format!(
        "domain: edge\ndescriptors: [{{key: user, rate_limit: {{unit: second, unit_multiplier: {seconds}, \
         requests_per_unit: {requests}}}}}]\n"
    )
}

/// An Envoy with both replicas, which answers by itself what the filter admits.
fn start_envoy(grpc: [u16; 2]) -> Envoy {
    Envoy::with(|ports, upstream, access_log| {
        let wanted = Wanted {
            service: Service::Port(grpc[0]),
            cluster: "rate_limit",
            rate_limits: json!([]),
            filter: json!({}),
            filters_before: vec![filter()],
            transport_socket: Value::Null,
            tracing: Value::Null,
            collector: None,
        };
        let mut config = bootstrap(&wanted, ports, upstream, access_log);
        let endpoint = |port: &u16| json!({"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}});
        let resources = &mut config["static_resources"];
        resources["clusters"][1]["load_assignment"]["endpoints"] =
            json!([{"lb_endpoints": grpc.iter().map(endpoint).collect::<Vec<_>>()}]);
        let route = resources
            .pointer_mut(
                "/listeners/0/filter_chains/0/filters/0/typed_config/route_config/virtual_hosts/0/routes/0",
            )
            .expect("the route");
        *route = json!({"match": {"prefix": "/"}, "direct_response": {"status": 200}});
        config.to_string()
    })
}

/// Requests through one Envoy at a rate that changes.
#[derive(Default)]
struct Load {
    rate: AtomicU64,
    envoy: Mutex<Option<Envoy>>,
    /// Its listener.
    port: AtomicU16,
    /// Admitted requests by the second since the start.
    admitted: Mutex<BTreeMap<u64, u64>>,
}

impl Load {
    fn run(&self, begin: Instant, done: &AtomicBool) {
        let (mut next, mut connection) = (Instant::now(), None);
        while !done.load(Relaxed) {
            let rate = self.rate.load(Relaxed);
            if rate == 0 {
                sleep(Duration::from_millis(5));
                next = Instant::now();
                continue;
            }
            next += Duration::from_secs(1) / u32::try_from(rate).unwrap();
            sleep(next.saturating_duration_since(Instant::now()));
            match ask(&mut connection, self.port.load(Relaxed)) {
                Ok(true) => {
                    *self.admitted.lock().unwrap().entry(begin.elapsed().as_secs()).or_default() += 1;
                }
                Ok(false) => {}
                // Its Envoy has ended.
                Err(_) => connection = None,
            }
        }
    }

    fn set(&self, envoy: Envoy) {
        self.port.store(envoy.listener, Relaxed);
        *self.envoy.lock().unwrap() = Some(envoy);
    }
}

/// Asks on a connection that stays open; true if the request passes.
fn ask(connection: &mut Option<BufReader<TcpStream>>, port: u16) -> io::Result<bool> {
    let stream = match connection.take() {
        Some(stream) => stream,
        None => BufReader::new(TcpStream::connect(("127.0.0.1", port))?),
    };
    let stream = connection.insert(stream);
    stream.get_ref().write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nx-user: ann\r\n\r\n")?;
    let (mut status, mut length) = (String::new(), 0);
    stream.read_line(&mut status)?;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        match line.trim_end().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().unwrap_or(0),
            Some(_) => {}
            None if line == "\r\n" => break,
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
    stream.read_exact(&mut vec![0; length])?;
    Ok(status.contains(" 200 "))
}

struct Fleet {
    setup: Setup,
    redis: Redis,
    admin: u16,
    servers: Vec<Server>,
    loads: Vec<Arc<Load>>,
    grpc: [u16; 2],
    /// Reports and actions of replicas that have ended.
    calls: usize,
}

impl Fleet {
    fn start() -> Self {
        let (redis, admin) = (Redis::single(), free_port());
        let setup = Setup::new().rules("edge.yaml", &rules(LIMIT)).redis(&redis.env());
        let setup = setup.env("REPLICA_SYNC", "true");
        let setup = match env::var_os("TOLLGATE_QUOTA_BINARY") {
            Some(binary) => setup.program(&PathBuf::from(binary), &[]),
            None => setup,
        };
        let first = setup.clone().env("ADMIN_ADDR", &format!("127.0.0.1:{admin}")).start_healthy();
        let servers = vec![first, setup.clone().start_healthy()];
        let grpc = [servers[0].ports.grpc, servers[1].ports.grpc];
        let load = |_| {
            let load = Load::default();
            load.set(start_envoy(grpc));
            Arc::new(load)
        };
        Self { setup, redis, admin, servers, loads: (0..3).map(load).collect(), grpc, calls: 0 }
    }

    fn share(&self, shares: [u64; 3]) {
        for (load, share) in self.loads.iter().zip(shares) {
            load.rate.store(DEMAND * share / 100, Relaxed);
        }
    }

    fn calls(&self) -> usize {
        let of = |server: &Server| {
            let actions = ["grant", "renew", "allow", "deny", "abandon"]
                .map(|action| server.count(&format!("tollgate_quota_actions_total{{action=\"{action}\"}}")));
            server.count("tollgate_quota_reports_total") + actions.iter().sum::<usize>()
        };
        self.calls + self.servers.iter().map(of).sum::<usize>()
    }

    /// Does what a part is about, for its seconds.
    fn play(&mut self, part: &str, seconds: u64) {
        self.share([34, 33, 33]);
        let end = Instant::now() + Duration::from_secs(seconds);
        match part {
            "traffic moves" | "most of it moves" => {
                // At all times between reports, which are five seconds apart.
                for turn in 0..seconds * 10 / 107 {
                    let others = if part == "traffic moves" { 0 } else { 10 };
                    let mut shares = [others; 3];
                    shares[usize::try_from(turn % 3).unwrap()] = 100 - 2 * others;
                    self.share(shares);
                    sleep(Duration::from_millis(10_700));
                }
            }
            "Envoys roll" => {
                for load in &self.loads {
                    load.set(start_envoy(self.grpc));
                    sleep(Duration::from_secs(seconds / 4));
                }
            }
            "a replica is killed" => {
                let calls = self.calls();
                let mut killed = self.servers.pop().expect("two replicas");
                let ports = killed.ports;
                self.calls = 0;
                self.calls = calls - self.calls();
                killed.process.kill();
                sleep(Duration::from_secs(seconds / 2));
                self.servers.push(self.setup.clone().ports(ports).start_healthy());
            }
            "reload: ½" => self.servers.iter().for_each(|one| one.write("edge.yaml", &rules(LIMIT / 2))),
            "override: ¼" => {
                let body = format!(
                    "{{\"domain\":\"edge\",\"descriptor\":\"user=ann\",\"action\":\"limit\",\
                     \"requests_per_unit\":{},\"unit\":\"second\"}}",
                    LIMIT / 4
                );
                let answer = http::post(self.admin, "/api/v1/overrides", &body);
                assert!(answer.status < 300, "{}", answer.text());
            }
            _ => {}
        }
        sleep(end.saturating_duration_since(Instant::now()));
    }
}

#[test]
#[ignore = "takes five minutes and a quiet machine: tests/quota/run"]
fn measure() {
    let mut fleet = Fleet::start();
    let (begin, done) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let threads: Vec<_> = fleet
        .loads
        .iter()
        .cloned()
        .map(|load| {
            let done = done.clone();
            thread::spawn(move || load.run(begin, &done))
        })
        .collect();
    let mut bounds = Vec::new();
    for (part, seconds) in PARTS {
        let (from, calls) = (begin.elapsed().as_secs(), fleet.calls());
        fleet.play(part, seconds);
        bounds.push((part, from, begin.elapsed().as_secs(), fleet.calls() - calls));
    }
    done.store(true, Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    let lines: Vec<_> = fleet.loads.iter().map(|load| load.admitted.lock().unwrap().clone()).collect();
    let all = |second: u64| lines.iter().filter_map(|line| line.get(&second)).sum::<u64>();
    println!("| part | limit a second | admitted a second | unused | calls for each admitted request |");
    for (part, from, to, calls) in &bounds {
        // The change of a part is in its first ten seconds, but for those that are all change.
        let is_change = part.contains("move") || part.contains("roll") || part.contains("killed");
        let begin = if is_change { *from } else { from + 10 };
        let admitted: u64 = (begin..*to).map(all).sum();
        let limit = limit_of(part) as f64;
        let rate = admitted as f64 / (to - begin) as f64;
        let each = *calls as f64 / ((*from..*to).map(all).sum::<u64>() as f64).max(1.0);
        println!("| {part} | {limit} | {rate:.1} | {:.1} % | {each:.4} |", 100.0 - 100.0 * rate / limit);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/quota.svg");
    fs::write(path, drawn(&bounds, &lines)).expect("the picture can be written");
    drop(fleet.redis);
}

fn limit_of(part: &str) -> u64 {
    match part {
        "reload: ½" => LIMIT / 2,
        "override: ¼" => LIMIT / 4,
        _ => LIMIT,
    }
}

/// The admitted requests of each second, of all Envoys and of each, and the limit.
fn drawn(bounds: &[(&str, u64, u64, usize)], lines: &[BTreeMap<u64, u64>]) -> String {
    use std::fmt::Write as _;
    let (end, most) = (bounds.last().map_or(1, |(.., to, _)| *to), DEMAND as f64 * 1.2);
    let x = |second: u64| 50.0 + second as f64 / end as f64 * 730.0;
    let y = |count: f64| 280.0 - count.min(most) / most * 230.0;
    let mut picture = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 350\" width=\"800\" height=\"350\" \
        role=\"img\" aria-label=\"Requests that three Envoys admit each second, beside their common limit\">\n\
        <style>text{font:12px system-ui,sans-serif;fill:#57606a}path{fill:none;stroke-width:1.5}</style>\n\
        <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
        .to_owned();
    for count in [0, 500, 1000, 1500] {
        // Writing to a String cannot fail, here and below.
        let at = y(f64::from(count));
        let _ = writeln!(
            picture,
            "<path d=\"M50 {at:.1}H780\" stroke=\"#d0d7de\"/><text x=\"44\" y=\"{:.1}\" text-anchor=\"end\">{count}</text>",
            at + 4.0
        );
    }
    for (index, (part, from, to, _)) in bounds.iter().enumerate() {
        let (left, right, limit) = (x(*from), x(*to), y(limit_of(part) as f64));
        let _ = writeln!(
            picture,
            "<path d=\"M{left:.1} 50V280\" stroke=\"#d0d7de\"/><text x=\"{:.1}\" y=\"{}\">{part}</text>\
             <path d=\"M{left:.1} {limit:.1}H{right:.1}\" stroke=\"#cf222e\" stroke-dasharray=\"6 4\"/>",
            left + 4.0,
            if index % 2 == 0 { 42 } else { 28 }
        );
    }
    for (index, line) in lines.iter().enumerate() {
        let points = (0..end).map(|second| (second, line.get(&second).copied().unwrap_or(0)));
        let colour = ["#8c959f", "#afb8c1", "#d4a72c"][index % 3];
        let _ = writeln!(picture, "<path d=\"{}\" stroke=\"{colour}\"/>", path(points, x, y));
    }
    let all = (0..end).map(|second| (second, lines.iter().filter_map(|line| line.get(&second)).sum()));
    let _ = writeln!(picture, "<path d=\"{}\" stroke=\"#0969da\" stroke-width=\"2\"/>", path(all, x, y));
    let _ = writeln!(
        picture,
        "<text x=\"50\" y=\"300\">0 s</text><text x=\"780\" y=\"300\" text-anchor=\"end\">{end} s</text>\
         <text x=\"50\" y=\"320\">Admitted each second by all (blue) and by each of three Envoys.</text>\
         <text x=\"50\" y=\"338\">Dashes: the limit, in windows of {} s. Demand: {DEMAND} a second.</text>\n</svg>",
        window()
    );
    picture
}

fn path(points: impl Iterator<Item = (u64, u64)>, x: impl Fn(u64) -> f64, y: impl Fn(f64) -> f64) -> String {
    let points = points.map(|(second, count)| format!("{:.1} {:.1}", x(second), y(count as f64)));
    format!("M{}", points.collect::<Vec<_>>().join("L"))
}

/// The share of other calls that take longer than Envoy waits, while ten Envoys report a thousand buckets each.
#[test]
#[ignore = "takes half a minute and a quiet machine: TOLLGATE_TEST_BINARY"]
fn measure_callers() {
    const PATIENCE: Duration = Duration::from_millis(20);
    let rules =
        "domain: edge\ndescriptors:\n- {key: user, rate_limit: {unit: minute, requests_per_unit: 100000}}\n";
    let setup = Setup::new().env("GRPC_WORKERS", "1").rules("edge.yaml", rules);
    let binary = env::var_os("TOLLGATE_TEST_BINARY");
    let server = match &binary {
        Some(path) => setup.program(path.as_ref(), &[]).start_healthy(),
        None => setup.start_healthy(),
    };
    let call = request("edge", &[&[("user", "caller")]]);
    let share_of_late = |streams: usize| {
        let done = AtomicBool::new(false);
        let late = thread::scope(|scope| {
            for stream in 0..streams {
                let (server, done) = (&server, &done);
                scope.spawn(move || {
                    let mut quotas = Quotas::open(server);
                    let users: Vec<_> = (0..1000).map(|user| format!("{stream}-{user}")).collect();
                    while !done.load(Relaxed) {
                        let usages = users.iter().map(|user| usage(&[("user", user)], 7, 0)).collect();
                        quotas.send(RateLimitQuotaUsageReports {
                            domain: "edge".to_owned(),
                            bucket_quota_usages: usages,
                        });
                        quotas.read_for(Duration::from_secs(5));
                    }
                });
            }
            sleep(Duration::from_secs(3));
            let load =
                Steady::start(server.ports.grpc, 300, 10 * PATIENCE, std::slice::from_ref(&call), &call);
            sleep(Duration::from_secs(12));
            let Outcome { asked, .. } = load.stop();
            done.store(true, Relaxed);
            let late = asked.iter().filter(|one| one.took > PATIENCE).count();
            late as f64 / asked.len() as f64
        });
        late * 100.0
    };
    for streams in [0, 10] {
        println!("{streams} streams: {:.2} % of the calls are late", share_of_late(streams));
    }
}
