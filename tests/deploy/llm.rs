//! The gateway of `examples/llm`: Envoy, two replicas, Redis, and a model that streams. Callers leave, a replica is killed,
//! Redis stops for a second, and every budget is charged what its streams cost.

use std::{
    collections::BTreeMap, env, fs, net::TcpListener, path::Path, process::Command, thread, time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

use support::{
    clock::Clock,
    envoy, eventually, holds, http,
    noise::Noise,
    ports::free_port,
    process::{Process, assert_exit},
    redis::{Redis, Reply},
    server::{Server, Setup},
};

#[path = "../../examples/llm/callers.rs"]
mod callers;
#[path = "../../examples/llm/model.rs"]
mod model;
#[path = "../../examples/llm/spending.rs"]
mod spending;

use callers::{Call, Leaves, Seen};

const RULES: &str = include_str!("../../examples/llm/rules.yaml");
const CONFIG: &str = include_str!("../../examples/llm/envoy.yaml");
const USAGE: &str = include_str!("../../examples/llm/usage.lua");

/// Longer than any stream of these tests.
const TTL: Duration = Duration::from_secs(25);

/// The random characters of an id; slots follow.
const ID: usize = 22;

struct Gateway {
    port: u16,
    admin: u16,
    redis: Redis,
    replicas: [Server; 2],
    envoy: Process,
    dir: TempDir,
    /// That of the replicas and of Redis.
    clock: Clock,
}

impl Gateway {
    /// Starts it with budgets of a team and of a key in microdollars, and with the times that replicas wait for Redis, and
    /// Envoy for replicas.
    fn start([of_team, of_key]: [u64; 2], [of_redis, of_replicas]: [&str; 2]) -> Self {
        let clock = Clock::current().steerable();
        let _clock = clock.enter();
        let mut redis = Redis::prepared(&[]);
        redis.start();
        let rules = RULES
            .replace("ttl: 6m", &format!("ttl: {}s", TTL.as_secs()))
            .replace("30000000\n", &format!("{of_team}\n"))
            .replace("5000000\n", &format!("{of_key}\n"));
        let admins = [free_port(), free_port()];
        let replicas = admins.map(|admin| {
            let setup = Setup::new().rules("llm.yaml", &rules).redis(&vec![
                ("REDIS_SOCKET_TYPE", "tcp".to_owned()),
                ("REDIS_URL", format!("127.0.0.1:{}", redis.port)),
                ("REDIS_TIMEOUT", of_redis.to_owned()),
                ("ADMIN_ADDR", format!("127.0.0.1:{admin}")),
            ]);
            setup.start_healthy()
        });
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("cannot bind a port");
        let of_model = listener.local_addr().expect("the listener has an address").port();
        thread::spawn(move || model::serve(&listener));
        let (port, of_envoy) = (free_port(), free_port());
        let ports = [port, of_envoy, of_model, replicas[0].ports.grpc, replicas[1].ports.grpc];
        let config = CONFIG.replace("timeout: 1s", &format!("timeout: {of_replicas}"));
        let config = ports.iter().enumerate().fold(config, |config, (at, port)| {
            config.replace(&format!("port_value: {}", 10_000 + at), &format!("port_value: {port}"))
        });
        let dir =
            tempfile::Builder::new().prefix("tollgate-llm-").tempdir().expect("cannot create a directory");
        fs::write(dir.path().join("envoy.yaml"), config).expect("cannot write the configuration");
        fs::write(dir.path().join("usage.lua"), USAGE).expect("cannot write the script");
        let mut command = Command::new(envoy::binary());
        command.args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "error"]);
        command.args(["--file-flush-interval-msec", "50", "-c", "envoy.yaml"]).current_dir(dir.path());
        let envoy = Process::start(command, &dir.path().join("log"));
        eventually("Envoy is ready", || {
            let ready = http::send(of_envoy, "GET", "/ready", &[], b"").map_err(|error| error.to_string())?;
            holds(ready.status == 200, || envoy.log())
        });
        Self { port, admin: admins[0], redis, replicas, envoy, dir, clock }
    }

    /// The lines of the access log, when it has this many.
    fn logged(&self, lines: usize) -> Vec<Value> {
        eventually("the access log has every request", || {
            let log = fs::read_to_string(self.dir.path().join("gateway.log")).unwrap_or_default();
            holds(log.lines().count() >= lines, || {
                format!("{} of {lines} lines\n{}", log.lines().count(), self.envoy.log())
            })?;
            Ok(log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect())
        })
    }

    /// What is spent of a budget. A busy Redis may not answer at once.
    fn budget(&self, key: &str, value: &str) -> spending::Budget {
        eventually("the admin API answers", || {
            spending::budget(self.admin, key, value).map_err(|error| error.to_string())
        })
    }

    /// The holds of Redis on counters with this in their names: what each holds, by its id.
    fn open(&self, name: &str) -> BTreeMap<String, u64> {
        let texts = |reply: Reply| match reply {
            Reply::List(all) => all.into_iter().map(|one| one.to_string()).collect::<Vec<_>>(),
            other => panic!("expected a list, got {other}"),
        };
        let sets = texts(self.redis.ask(&["KEYS", &format!("*holds:*{name}*")]));
        let members = sets.iter().flat_map(|set| texts(self.redis.ask(&["ZRANGE", set, "0", "-1"])));
        // A member is `id:part:held`.
        let holds = members.filter_map(|member| {
            let held = member.split(':').nth(2)?.parse().expect("a number");
            Some((member[..ID].to_owned(), held))
        });
        holds.collect()
    }
}

const TEAMS: u64 = 3;
const KEYS: u64 = 18;
/// Two or three callers of each key are refused, because ten streams are under way.
const CALLERS: u64 = 200;
const CALLS: u64 = 3;

fn team(key: u64) -> String {
    format!("team-{}", key % TEAMS)
}

/// A call of a caller, with an answer of random length.
fn planned(caller: u64, random: &mut Noise) -> Call {
    let key = caller % KEYS;
    let leaves = match random.below(8) {
        0 => Leaves::Before,
        1 => Leaves::During,
        2 => Leaves::AfterTheUsage,
        _ => Leaves::AtTheEnd,
    };
    let model = if random.below(10) == 0 { "broken" } else { "small" };
    let (max_tokens, seed) = (50 + random.next() % 350, random.next() >> 12);
    Call { team: team(key), key: format!("key-{key}"), model, max_tokens, seed, leaves }
}

/// All callers at once, while something happens. What they saw, and how many of their requests reached Envoy.
fn drive(gateway: &mut Gateway, happens: impl FnOnce(&mut Gateway)) -> Vec<Seen> {
    let port = gateway.port;
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            thread::spawn(move || {
                let mut random = Noise::new(caller);
                let mut seen = Vec::new();
                for _ in 0..CALLS {
                    // Envoy ends streams of a replica or a Redis that fails.
                    seen.extend(callers::call(port, &planned(caller, &mut random)));
                }
                seen
            })
        })
        .collect();
    happens(gateway);
    callers.into_iter().flat_map(|caller| caller.join().expect("a caller does not panic")).collect()
}

/// What a request held and was charged: its cost, or what it held if its cost is unknown.
struct Line {
    id: String,
    team: String,
    key: String,
    charged: u64,
}

fn lines(log: &[Value]) -> Vec<Line> {
    let text = |line: &Value, name: &str| line[name].as_str().unwrap_or_default().to_owned();
    let held = log.iter().filter(|line| line["hold"].is_string());
    held.map(|line| Line {
        id: text(line, "hold")[..ID].to_owned(),
        team: text(line, "team"),
        key: text(line, "key"),
        charged: line["microdollars"].as_u64().or(line["most_microdollars"].as_u64()).expect("a number"),
    })
    .collect()
}

/// What callers of whole streams were told about their costs is what Envoy sent.
fn assert_costs_are_those_of_the_streams(seen: &[Seen], log: &[Value]) {
    let mut sent: Vec<u64> = log.iter().filter_map(|line| line["microdollars"].as_u64()).collect();
    sent.sort_unstable();
    for seen in seen {
        if let Seen::Stream { prompt, completion } = *seen {
            let cost = (prompt * 25 + completion * 100).div_ceil(10);
            let at = sent.binary_search(&cost);
            sent.remove(at.unwrap_or_else(|_| panic!("no stream has cost {cost} of {seen:?}")));
        }
    }
}

/// Once nothing is under way, every budget has spent what its lines were charged. What a killed replica had to end still holds,
/// and is charged what it held when it expires.
fn assert_spent(gateway: &Gateway, log: &[Value], limits: [u64; 2]) {
    eventually("what waited for a stopped Redis is settled", || {
        let queued = gateway.replicas[0].count("tollgate_holds_queued");
        holds(queued == 0, || queued)
    });
    let lines = lines(log);
    let teams = (0..TEAMS).map(|number| ("team_dollars", format!("team-{number}"), limits[0]));
    let keys = (0..KEYS).map(|number| ("key_dollars", format!("key-{number}"), limits[1]));
    let mut ends = Vec::new();
    for (key, value, limit) in teams.chain(keys) {
        let (expected, seen) = eventually("spent and held is what the lines were charged", || {
            // A value may be the beginning of another one.
            let open = gateway.open(&format!("{key}_{value}_"));
            let own = lines.iter().filter(|line| [&line.team, &line.key].contains(&&value));
            let settled: u64 = own.filter(|line| !open.contains_key(&line.id)).map(|line| line.charged).sum();
            let expected = settled + open.values().sum::<u64>();
            let budget = gateway.budget(key, &value);
            let seen = format!("{key}={value}: {budget:?}, {settled} settled, {open:?}");
            let is_charged = (budget.spent + budget.held, budget.limit) == (expected, limit);
            holds(is_charged, || &seen).map(|()| (expected, seen.clone()))
        });
        assert!(expected <= limit, "{seen}");
        ends.push((key, value, expected, seen));
    }
    gateway.clock.step(TTL.as_secs_f64());
    for (key, value, expected, seen) in ends {
        eventually("nothing is held after the time to live", || {
            let budget = gateway.budget(key, &value);
            holds((budget.spent, budget.held) == (expected, 0), || {
                format!("{key}={value}: {budget:?}, {seen}")
            })
        });
    }
    for number in 0..KEYS {
        for key in ["key_tokens", "key_streams"] {
            let budget = gateway.budget(key, &format!("key-{number}"));
            assert_eq!(budget.held, 0, "{key}=key-{number}");
        }
    }
}

#[test]
fn every_budget_is_charged_what_its_streams_cost() {
    let limits = [400_000, 5_000_000];
    // Nothing fails, so whoever is busy beside it must not make it fail.
    let mut gateway = Gateway::start(limits, ["5s", "10s"]);
    let seen = drive(&mut gateway, |_| {});
    let log = gateway.logged(seen.len());
    let count = |status| seen.iter().filter(|seen| **seen == Seen::Status(status)).count();
    assert!(count(429) > 0 && count(503) > 0 && count(500) == 0, "{seen:?}");
    assert!(seen.iter().filter(|seen| matches!(seen, Seen::Stream { .. })).count() > 100, "{seen:?}");
    assert_costs_are_those_of_the_streams(&seen, &log);
    assert_spent(&gateway, &log, limits);
}

#[test]
fn a_killed_replica_and_a_stopped_redis_lose_no_more_than_the_page_says() {
    let limits = [400_000, 5_000_000];
    let mut gateway = Gateway::start(limits, ["200ms", "1s"]);
    let seen = drive(&mut gateway, |gateway| {
        thread::sleep(Duration::from_millis(700));
        gateway.redis.freeze();
        thread::sleep(Duration::from_secs(1));
        gateway.redis.thaw();
        thread::sleep(Duration::from_secs(1));
        gateway.replicas[1].process.kill();
    });
    let log = gateway.logged(seen.len());
    assert_costs_are_those_of_the_streams(&seen, &log);
    assert_spent(&gateway, &log, limits);
}

/// As a reader of the page runs it.
#[test]
fn the_example_prints_a_table_of_spending() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Ports that no other test is given. The one that the example leaves out is held, so that test runs beside each other
    // share none: two Envoys may listen on one port.
    let (port, _claim) = (640..654)
        .map(|fifties| fifties * 50)
        .find_map(|port| {
            let claim = TcpListener::bind(("127.0.0.1", port + 9)).ok()?;
            let is_free = |offset| offset == 9 || TcpListener::bind(("127.0.0.1", port + offset)).is_ok();
            (0..45).all(is_free).then_some((port, claim))
        })
        .expect("free ports");
    let mut command = Command::new(root.join("examples/llm/run"));
    command.env("ENVOY_BIN", envoy::binary()).env("LLM_PORT", port.to_string());
    let output = command.output().expect("the script runs");
    assert_exit(
        &output,
        0,
        &["dollars a month", "dollars a day", "tokens a minute", "streams at a time", "red-1"],
    );
}
