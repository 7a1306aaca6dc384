//! Measures leases: four replicas on one Redis, 20 keys, limits and windows of several sizes, and demand that is even, on
//! one replica or moving. `tests/lease/run` starts it; docs/dev/figures.md has its table.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers of replicas and windows"
)]

use std::{
    collections::BTreeMap,
    env, fmt,
    path::Path,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use http::HeaderMap;
use tokio::{runtime::Builder, task::JoinSet, time::Instant};

use crate::support::{
    clock::Clock,
    noise::Noise,
    raw::{RawClient, framed},
    redis::Redis,
    server::{BINARY, Server, Setup},
};

use super::{Code, leased, request};

const REPLICAS: usize = 4;

/// Demand, as a multiple of the limits.
const DEMAND: f64 = 1.2;

/// Limits, and how many keys have each: 20 keys.
const KEYS: [(u32, usize); 3] = [(100, 8), (1000, 8), (10_000, 4)];
/// The same for windows of a second: the maximum of one machine.
const KEYS_OF_A_SECOND: [(u32, usize); 2] = [(100, 16), (1000, 4)];
/// One more key is more than the machine can do.
const LARGEST_OF_A_SECOND: [(u32, usize); 1] = [(10_000, 1)];

#[derive(Clone, Copy)]
struct Window {
    name: &'static str,
    seconds: u64,
    /// The duration: a whole number of windows, or a part of one with the demand of a whole one.
    asked: u64,
    keys: &'static [(u32, usize)],
}

const WINDOWS: [Window; 4] = [
    Window { name: "second", seconds: 1, asked: 10, keys: &KEYS_OF_A_SECOND },
    Window { name: "second", seconds: 1, asked: 5, keys: &LARGEST_OF_A_SECOND },
    Window { name: "minute", seconds: 60, asked: 60, keys: &KEYS },
    Window { name: "day", seconds: 86_400, asked: 20, keys: &KEYS },
];

/// The replicas that receive requests.
#[derive(Clone, Copy, Debug)]
enum Demand {
    Equal,
    One,
    Moving,
}

/// The arrival of requests.
#[derive(Clone, Copy, Debug)]
enum Arrivals {
    Poisson,
    /// All requests of a second arrive in its first fifth.
    Bursts,
}

/// A request: its time, its replica and its key.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub(super) at: f64,
    pub(super) replica: usize,
    pub(super) key: usize,
}

/// The results of one limit.
#[derive(Default, Clone, Copy)]
struct Sum {
    asked: u64,
    exact: u64,
    admitted: u64,
    /// The largest part of a limit that one window admitted.
    most: f64,
}

/// The costs of the whole run.
struct Cost {
    commands: f64,
    waited: f64,
}

#[test]
#[ignore = "takes a quarter of an hour; tests/lease/run starts it"]
fn table() {
    let modes = env::var("TOLLGATE_LEASE_MODES").unwrap_or_else(|_| "leased".to_owned());
    println!(
        "| counting | window | limit | arrivals | demand | admitted of exact | most in a window | commands a decision | waited |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for mode in modes.split(',') {
        for window in WINDOWS {
            for arrivals in [Arrivals::Poisson, Arrivals::Bursts] {
                for demand in [Demand::Equal, Demand::One, Demand::Moving] {
                    let (sums, cost) = run(mode, window, arrivals, demand);
                    for (limit, sum) in sums {
                        assert!(sum.most <= 1.0, "{} of a limit of {limit} in one window", sum.most);
                        println!(
                            "| {mode} | {} | {limit} | {arrivals:?} | {demand:?} | {} | {:.3} | {:.3} | {:.1} % |",
                            window.name,
                            sum,
                            sum.most,
                            cost.commands,
                            100.0 * cost.waited
                        );
                    }
                }
            }
        }
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.4}", float(self.admitted) / float(self.exact.max(1)))
    }
}

pub(super) fn float(number: u64) -> f64 {
    f64::from(u32::try_from(number).expect("a run has fewer requests"))
}

fn run(mode: &str, window: Window, arrivals: Arrivals, demand: Demand) -> (BTreeMap<u32, Sum>, Cost) {
    let redis = Redis::single();
    let replicas = replicas(&setup(&redis, window, mode));
    let (limits, bodies) = keys(window);
    let schedule = schedule(&limits, window, arrivals, demand, DEMAND);
    let begin = begin(window);
    let answers = ask(&ports(&replicas), &bodies, &schedule, begin);
    let mut sums = BTreeMap::<u32, Sum>::new();
    for (key, limit) in limits.iter().enumerate() {
        let sum = sums.entry(*limit).or_default();
        add(sum, key, *limit, window, &schedule, &answers);
    }
    (sums, cost(&redis, &replicas, schedule.len()))
}

/// Replicas of one thread each.
fn replicas(setup: &Setup) -> Vec<Server> {
    (0..REPLICAS).map(|_| replica(setup)).collect()
}

pub(super) fn replica(setup: &Setup) -> Server {
    let binary = env::var("TOLLGATE_LEASE_BINARY").unwrap_or_else(|_| BINARY.to_owned());
    setup.clone().env("GRPC_WORKERS", "1").program(Path::new(&binary), &["serve"]).start_healthy()
}

/// Replicas that count the limits of a window.
fn setup(redis: &Redis, window: Window, mode: &str) -> Setup {
    let rule = |(limit, _): &(u32, usize)| {
        format!("  - {{key: l{limit}, rate_limit: {{unit: {}, requests_per_unit: {limit}}}}}\n", window.name)
    };
    let rules = format!("domain: d\ndescriptors:\n{}", window.keys.iter().map(rule).collect::<String>());
    leased(&redis.env(), &rules).env("COUNTING", mode)
}

/// The limit of each key, and a request on it.
fn keys(window: Window) -> (Vec<u32>, Vec<Bytes>) {
    let limits: Vec<u32> = window.keys.iter().flat_map(|(limit, keys)| vec![*limit; *keys]).collect();
    let body =
        |(key, limit): (usize, &u32)| framed(&request("d", &[&[(&format!("l{limit}"), &key.to_string())]]));
    let bodies = limits.iter().enumerate().map(body).collect();
    (limits, bodies)
}

/// Just after the start of a window of a second or a minute.
fn begin(window: Window) -> f64 {
    let now = now();
    if window.seconds > 60 {
        now.ceil() + 0.5
    } else {
        let seconds = float(window.seconds);
        (now / seconds).ceil() * seconds + if window.seconds == 1 { 1.0 } else { 0.0 }
    }
}

pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_secs_f64()
}

/// Requests in the order of their time, in seconds from the beginning.
fn schedule(
    limits: &[u32],
    window: Window,
    arrivals: Arrivals,
    demand: Demand,
    of_limit: f64,
) -> Vec<Arrival> {
    let mut noise = Noise::new(17);
    let mut uniform = || (float(noise.below(1 << 30) as u64) + 0.5) / float(1 << 30);
    let mut all = Vec::new();
    let asked = float(window.asked);
    for (key, limit) in limits.iter().enumerate() {
        let windows = float((window.asked / window.seconds).max(1));
        let rate = f64::from(*limit) * of_limit * windows / asked;
        let mut at = 0.0;
        loop {
            at -= uniform().ln() / rate;
            if at >= asked {
                break;
            }
            let at = match arrivals {
                Arrivals::Poisson => at,
                Arrivals::Bursts => at.floor() + at.fract() / 5.0,
            };
            let any = (uniform() * float(REPLICAS as u64)) as usize;
            let replica = match demand {
                Demand::Equal => any,
                Demand::One => key % REPLICAS,
                Demand::Moving => (key + (at * 2.0) as usize) % REPLICAS,
            };
            all.push(Arrival { at, replica, key });
        }
    }
    all.sort_by(|one, other| one.at.total_cmp(&other.at));
    all
}

pub(super) fn ports(replicas: &[Server]) -> Vec<u16> {
    replicas.iter().map(|server| server.ports.grpc).collect()
}

/// Sends the requests. Returns for each when it was sent and answered, and whether it was admitted. The answer of a failed
/// one has no time.
pub(super) fn ask(
    ports: &[u16],
    bodies: &[Bytes],
    schedule: &[Arrival],
    begin: f64,
) -> Vec<(f64, f64, bool)> {
    let answers = Arc::new(Mutex::new(vec![(0.0, 0.0, false); schedule.len()]));
    thread::scope(|scope| {
        for (replica, port) in ports.iter().copied().enumerate() {
            let mine = schedule.iter().copied().enumerate().filter(move |(_, one)| one.replica == replica);
            let answers = answers.clone();
            scope.spawn(move || {
                let runtime =
                    Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
                runtime.block_on(async {
                    let client = RawClient::connect(port).await.expect("the service takes connections");
                    let (start, mut open) =
                        (Instant::now() + Duration::from_secs_f64(begin - now()), JoinSet::new());
                    for (index, arrival) in mine {
                        tokio::time::sleep_until(start + Duration::from_secs_f64(arrival.at)).await;
                        let (mut client, body) = (client.clone(), bodies[arrival.key].clone());
                        let answers = answers.clone();
                        open.spawn(async move {
                            let sent = now();
                            let answer = client.ask(body, &HeaderMap::new()).await;
                            let answered = if answer.is_ok() { now() } else { f64::INFINITY };
                            let is_admitted = answer.is_ok_and(|answer| answer.overall_code() == Code::Ok);
                            answers.lock().unwrap()[index] = (sent, answered, is_admitted);
                        });
                    }
                    while open.join_next().await.is_some() {}
                });
            });
        }
    });
    Arc::into_inner(answers).unwrap().into_inner().unwrap()
}

/// Adds the results of one key.
fn add(
    sum: &mut Sum,
    key: usize,
    limit: u32,
    window: Window,
    schedule: &[Arrival],
    answers: &[(f64, f64, bool)],
) {
    let index = |time: f64| (time / float(window.seconds)) as u64;
    let mut windows = BTreeMap::<u64, (u64, u64)>::new();
    for (_, (sent, answered, is_admitted)) in schedule.iter().zip(answers).filter(|(one, _)| one.key == key) {
        sum.asked += 1;
        sum.admitted += u64::from(*is_admitted);
        let (asked, definite) = windows.entry(index(*sent)).or_default();
        *asked += 1;
        // The window is known only of requests that were answered in the window in which they were sent.
        *definite += u64::from(*is_admitted && index(*sent) == index(*answered));
    }
    for (asked, definite) in windows.into_values() {
        sum.exact += asked.min(limit.into());
        sum.most = sum.most.max(float(definite) / f64::from(limit));
    }
}

/// Counting commands of the replicas, and requests that waited for them.
fn cost(redis: &Redis, replicas: &[Server], requests: usize) -> Cost {
    let sum = |name: &str| -> f64 { replicas.iter().map(|one| super::metric(one, name)).sum() };
    let granted: f64 = sum("tollgate_lease_grants_total{result=\"granted\"}");
    let calls = |name: &str| float(redis.calls(name));
    let requests = float(requests as u64);
    // A granted lease calls INCRBY within its script.
    let commands = calls("evalsha") + calls("incrby") - granted;
    Cost { commands: commands / requests, waited: 1.0 - sum("tollgate_lease_hits_total") / requests }
}

/// A fault in the middle of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    ReplicaKilled,
    ReplicaTerminated,
    RedisEmptied,
    /// For 200 milliseconds.
    RedisStopped,
    /// Its clock, by a second.
    ReplicaBehind,
}

/// The time of the fault, in seconds. Shortly before, the requests of a replica that ends move to the next one.
const FAULT_AT: f64 = 8.0;
const BEFORE: f64 = 0.05;

#[test]
#[ignore = "takes four minutes; tests/lease/run starts it"]
fn faults() {
    use Fault::{None, RedisEmptied, RedisStopped, ReplicaBehind, ReplicaKilled, ReplicaTerminated};
    println!(
        "| fault | window | counting | limit | admitted of the limits | largest part in a window | failed |"
    );
    println!("|---|---|---|---|---|---|---|");
    let [second, _, _, day] = WINDOWS;
    for fault in [None, ReplicaKilled, ReplicaTerminated, RedisEmptied, RedisStopped] {
        for mode in ["exact", "leased"] {
            with_fault(fault, day, mode);
        }
    }
    for fault in [None, ReplicaBehind] {
        for mode in ["exact", "leased"] {
            with_fault(fault, second, mode);
        }
    }
}

fn with_fault(fault: Fault, window: Window, mode: &str) {
    let redis = Redis::single();
    let setup = setup(&redis, window, mode).env("REDIS_TIMEOUT", "10ms");
    let mut replicas = replicas(&setup);
    if fault == Fault::ReplicaBehind {
        let clock = Clock::machine().steerable();
        clock.step(-1.0);
        let _behind = clock.enter();
        replicas[0] = replica(&setup);
    }
    let (limits, bodies) = keys(window);
    // More than a new counter admits.
    let of_limit = if fault == Fault::RedisEmptied { 2.2 } else { DEMAND };
    let mut schedule = schedule(&limits, window, Arrivals::Poisson, Demand::Equal, of_limit);
    if matches!(fault, Fault::ReplicaKilled | Fault::ReplicaTerminated) {
        for arrival in schedule.iter_mut().filter(|one| one.at > FAULT_AT - BEFORE && one.replica == 0) {
            arrival.replica = 1 + arrival.key % (REPLICAS - 1);
        }
    }
    let (ports, begin) = (ports(&replicas), begin(window));
    let answers = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_secs_f64((begin + FAULT_AT - now()).max(0.0)));
            match fault {
                Fault::None | Fault::ReplicaBehind => {}
                Fault::ReplicaKilled => drop(replicas[0].process.kill()),
                Fault::ReplicaTerminated => drop(replicas[0].process.stop()),
                Fault::RedisEmptied => drop(redis.ask(&["FLUSHALL"])),
                Fault::RedisStopped => {
                    redis.freeze();
                    thread::sleep(Duration::from_millis(200));
                    redis.thaw();
                }
            }
        });
        ask(&ports, &bodies, &schedule, begin)
    });
    let failed = answers.iter().filter(|one| one.1.is_infinite()).count();
    for (limit, keys) in window.keys {
        let mut sum = Sum::default();
        for key in limits.iter().enumerate().filter(|(_, one)| *one == limit).map(|(key, _)| key) {
            add(&mut sum, key, *limit, window, &schedule, &answers);
        }
        let windows = (window.asked / window.seconds).max(1);
        let most = float(u64::from(*limit) * *keys as u64 * windows);
        println!(
            "| {fault:?} | {} | {mode} | {limit} | {:.4} | {:.4} | {failed} of {} |",
            window.name,
            float(sum.admitted) / most,
            sum.most,
            schedule.len()
        );
    }
}

/// The limit of the picture, its window in seconds, the duration, and the requests per second.
const LIMIT: u32 = 2000;
const LENGTH: u64 = 10;
const ASKED: f64 = 9.5;
const RATE: f64 = 1000.0;

#[test]
#[ignore = "takes half a minute; tests/lease/run starts it"]
fn picture() {
    let redis = Redis::single();
    let limit = format!("unit: second, unit_multiplier: {LENGTH}, requests_per_unit: {LIMIT}");
    let rules = format!("domain: d\ndescriptors:\n  - {{key: k, rate_limit: {{{limit}}}}}\n");
    let body = [framed(&request("d", &[&[("k", "v")]]))];
    let mut noise = Noise::new(5);
    let mut at = 0.0;
    let schedule: Vec<Arrival> = std::iter::from_fn(|| {
        at -= ((float(noise.below(1 << 30) as u64) + 0.5) / float(1 << 30)).ln() / RATE;
        (at < ASKED).then(|| Arrival { at, replica: noise.below(REPLICAS), key: 0 })
    })
    .collect();
    let lines = ["exact", "leased", "local"].map(|mode| {
        let setup = leased(&redis.env(), &rules);
        let setup = match mode {
            "local" => setup.env("BACKEND_TYPE", "memory"),
            mode => setup.env("COUNTING", mode),
        };
        let replicas = replicas(&setup);
        let begin = (now() / float(LENGTH)).ceil() * float(LENGTH) + 0.1;
        let answers = ask(&ports(&replicas), &body, &schedule, begin);
        redis.ask(&["FLUSHALL"]);
        let mut admitted: Vec<f64> = answers.iter().filter(|one| one.2).map(|one| one.1 - begin).collect();
        admitted.sort_by(f64::total_cmp);
        println!("{mode}: {} admitted of a limit of {LIMIT}", admitted.len());
        (mode, admitted)
    });
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/leases.svg");
    std::fs::write(path, drawn(&lines)).expect("the picture can be written");
}

/// Lines of admitted requests over time.
fn drawn(lines: &[(&str, Vec<f64>)]) -> String {
    use fmt::Write as _;
    let (width, height, most) = (640.0, 260.0, float(u64::from(LIMIT) * REPLICAS as u64) * 1.1);
    let x = |at: f64| 60.0 + at / 10.0 * width;
    let y = |count: f64| 20.0 + height - count / most * height;
    let mut picture =
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 330\" width=\"800\" height=\"330\" \
        role=\"img\" aria-label=\"Admitted requests over time under exact, leased and local counting\">\n\
        <style>text{font:13px system-ui,sans-serif;fill:#57606a}path{fill:none;stroke-width:2.5}</style>\n\
        <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
            .to_owned();
    for count in (0..=8).step_by(2) {
        let (count, y) = (count * 1000, y(f64::from(count * 1000)));
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(
            picture,
            "<path d=\"M60 {y:.1}H700\" stroke=\"#d0d7de\" style=\"stroke-width:1\"/><text x=\"52\" y=\"{:.1}\" \
             text-anchor=\"end\">{count}</text>",
            y + 4.0
        );
    }
    for second in (0..=10).step_by(2) {
        let x = x(f64::from(second));
        let _ = writeln!(picture, "<text x=\"{x:.1}\" y=\"300\" text-anchor=\"middle\">{second} s</text>");
    }
    for ((mode, admitted), (colour, dashes)) in
        lines.iter().zip([("#0969da", "none"), ("#1a7f37", "6 5"), ("#cf222e", "none")])
    {
        let mut path = format!("M{:.1} {:.1}", x(0.0), y(0.0));
        for part in 1..=190_u32 {
            let at = f64::from(part) / 20.0;
            let count = admitted.partition_point(|time| *time <= at);
            let _ = write!(path, "L{:.1} {:.1}", x(at), y(float(count as u64)));
        }
        let end = float(admitted.len() as u64);
        let _ = writeln!(
            picture,
            "<path d=\"{path}\" stroke=\"{colour}\" stroke-dasharray=\"{dashes}\"/><text x=\"708\" y=\"{:.1}\" \
             style=\"fill:{colour}\">{mode}</text>",
            y(end) + if *mode == "leased" { 18.0 } else { 4.0 }
        );
    }
    picture
        + "<text x=\"60\" y=\"322\">Four replicas, a limit of 2000 in 10 seconds, 1000 requests a second.</text>\n</svg>\n"
}
