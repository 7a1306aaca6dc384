//! A live run that is recorded and replayed: every answer is the same.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use proto::envoy::{
    extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride,
    service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response::Code},
};
use replay::{Decider, Log, Replay};

use limit::Unit;
use limiter::{Bounds, Policy};
use overrides::{Action, Index, Override, Target, Value};
use rules::{CompileOptions, SourceFile, compile};
use support::client::hold_id;
use support::{
    client::{Client, descriptor, request},
    clock::Clock,
    eventually, holds,
    ports::free_port,
    process::assert_exit,
    redis::Redis,
    server::{BINARY, Server, Setup},
};
use tempfile::TempDir;

const RULES: &str = "
domain: d
descriptors:
- key: fixed
  rate_limit: {unit: minute, requests_per_unit: 5}
- key: sliding
  rate_limit: {unit: minute, requests_per_unit: 5, algorithm: sliding_window}
- key: log
  rate_limit: {unit: minute, requests_per_unit: 5, algorithm: sliding_log}
- key: token
  rate_limit: {unit: minute, requests_per_unit: 30, algorithm: token_bucket, burst: 4}
- key: leaky
  rate_limit: {unit: minute, requests_per_unit: 30, algorithm: leaky_bucket}
- key: several
  rate_limit:
  - {unit: second, requests_per_unit: 3}
  - {unit: minute, requests_per_unit: 9, algorithm: sliding_window}
  - {unit: hour, requests_per_unit: 60, algorithm: token_bucket}
- key: berlin
  rate_limit: {unit: day, requests_per_unit: 40, calendar: {time_zone: Europe/Berlin}}
- key: shared
  value: x*
  share_threshold: true
  rate_limit: {unit: minute, requests_per_unit: 7}
- key: named
  rate_limit: {unit: minute, requests_per_unit: 3, name: named}
- key: instead
  rate_limit: {unit: minute, requests_per_unit: 6, replaces: [{name: named}]}
- key: quota
  quota_mode: true
  rate_limit: {unit: minute, requests_per_unit: 4}
- key: pool
  quota_mode: true
  rate_limit: {unit: minute, requests_per_unit: 9}
- key: shadow
  shadow_mode: true
  rate_limit: {unit: minute, requests_per_unit: 2}
- key: wide
  rate_limit: {unit: minute, requests_per_unit: 4000000000, algorithm: sliding_window}
- key: office
  rate_limit:
  - {unit: minute, requests_per_unit: 3, SCHEDULE 7}]}
  - {unit: hour, requests_per_unit: 50, algorithm: sliding_window, SCHEDULE 30}]}
- key: night
  quota_mode: true
  rate_limit: {unit: minute, requests_per_unit: 6, SCHEDULE 2}]}
- key: probe
  rate_limit: {unit: minute, requests_per_unit: 1000}
- key: free
  rate_limit: {unlimited: true}
- key: path
  descriptors:
  - key: fixed
    rate_limit: {unit: hour, requests_per_unit: 50}
- key: budget
  rate_limit: {unit: hour, requests_per_unit: 400, hold: {amount: 20, ttl: 20s, in: tokens}}
- key: gift
  rate_limit: {unit: minute, requests_per_unit: 60, hold: {amount: 8, ttl: 5s, unknown: zero, in: dollars}, SCHEDULE 30}]}
- key: streams
  rate_limit: {algorithm: concurrency, requests_per_unit: 3, hold: {ttl: 10s}}
- key: budgets
  rate_limit:
  - {unit: minute, requests_per_unit: 50, hold: {amount: 5, ttl: 30s, unknown: 2}}
  - {unit: day, requests_per_unit: 2000, calendar: {time_zone: Europe/Berlin}, hold: {amount: 5, ttl: 30s, in: tokens}}
";

/// The clock of Berlin goes from 2:00 to 3:00 then: schedules change, and an hour begins.
const BOUNDARY: &str = "2027-03-28T01:00:00Z";

fn rules() -> String {
    let schedule =
        "schedule: [{days: [sat, sun], from: '02:15', time_zone: Europe/Berlin, requests_per_unit:";
    RULES.replace("SCHEDULE", schedule)
}

const KEYS: [&str; 23] = [
    "fixed", "sliding", "log", "token", "leaky", "several", "berlin", "shared", "named", "instead", "quota",
    "pool", "office", "night", "shadow", "wide", "free", "path", "unknown", "budget", "gift", "streams",
    "budgets",
];

/// Those that hold.
const HOLDING: [&str; 4] = ["budget", "gift", "streams", "budgets"];

const VALUES: [&str; 4] = ["vip", "ann", "b\"o\\b", "漢"];

const REQUESTS: usize = 1_000;

const OVERRIDES: &str = "\
domain,descriptor,action,requests_per_unit,unit,expires_at,reason
d,fixed=vip,limit,9,minute,,
d,token=vip,block,,,,
d,sliding=vip,allow,,,,
d,several=vip,limit,2,minute,,
d,shared=xvip,limit,3,minute,,
d,budget=vip,limit,90,minute,,
d,probe=ready,block,,,,
";

/// The overrides of the CSV.
fn overrides() -> Index {
    let index = Index::default();
    let mut draft = index.draft();
    let limit = |requests_per_unit| Action::Limit { requests_per_unit, unit: Unit::Minute, calendar: None };
    for (key, value, action) in [
        ("fixed", "vip", limit(9)),
        ("token", "vip", Action::Block),
        ("sliding", "vip", Action::Allow),
        ("several", "vip", limit(2)),
        ("shared", "xvip", limit(3)),
        ("budget", "vip", limit(90)),
        ("probe", "ready", Action::Block),
    ] {
        let target = Target::new("d", vec![(key.into(), Value::Exact(value.into()))]).unwrap();
        let one =
            Override { target, action, limit_name: None, expires: None, reason: "".into(), by: "".into() };
        index.add_to(&mut draft, one).unwrap();
    }
    index.add(&draft).unwrap();
    index
}

/// Random requests, with hits of their own, refunds, reads, limits in the request, and settles and ends of holds, of which
/// some are settled twice, too late, or not at all.
fn random_request(random: &mut fastrand::Rng, holds: &[String]) -> RateLimitRequest {
    let mut one = request("d", &[]);
    let closes = !holds.is_empty() && random.u32(0..3) == 0;
    for _ in 0..if closes { random.usize(1..=2) } else { 0 } {
        // Mostly one of the last.
        let oldest = if random.u32(0..4) == 0 { 100 } else { 6 };
        let age = random.usize(..holds.len().min(oldest));
        let id = if random.u32(0..30) == 0 { "nonsense" } else { &holds[holds.len() - 1 - age] };
        let key = ["hold_settle", "hold_end"][usize::from(random.u32(0..3) == 0)];
        let entries = [(key, id), ("hold_in", ["tokens", "dollars"][random.usize(..2)])];
        let mut descriptor = descriptor(&entries[..random.usize(1..=2)]);
        if random.u32(0..6) > 0 {
            descriptor.hits_addend = Some(random.u64(0..30));
        }
        one.descriptors.push(descriptor);
    }
    for _ in 0..if closes { random.usize(0..=1) } else { random.usize(1..=3) } {
        let key = KEYS[random.usize(..KEYS.len())];
        let value = match (key, random.u32(0..4)) {
            ("shared", 0) => "xvip",
            ("shared", _) => ["x1", "x2"][random.usize(..2)],
            _ => VALUES[random.usize(..4)],
        };
        let entries = [(key, value), ("fixed", value)];
        let mut descriptor = descriptor(&entries[..if key == "path" { 2 } else { 1 }]);
        match random.u32(0..12) {
            0 => (descriptor.hits_addend, descriptor.is_negative_hits) = (Some(random.u64(1..4)), true),
            1 => descriptor.hits_addend = Some(random.u64(0..4)),
            2 if key == "unknown" => {
                descriptor.limit =
                    Some(RateLimitOverride { requests_per_unit: 3, unit: 2, unit_multiplier: None });
            }
            _ if key == "wide" => descriptor.hits_addend = Some(random.u64(0..2_000_000_000)),
            _ => {}
        }
        one.descriptors.push(descriptor);
    }
    if closes && one.descriptors.len() > 1 {
        // Without a limit to wait for, what is closed may be taken after the answer.
        one.descriptors.push(descriptor(&[("probe", "closed")]));
    }
    one.hits_addend = random.u32(0..3);
    one
}

/// The code of the answer, and the code and the remaining hits of each status.
type Seen = (bool, Vec<(bool, u64)>);

fn seen_live(response: &RateLimitResponse) -> Seen {
    let is_over = |code: Code| code == Code::OverLimit;
    let statuses =
        response.statuses.iter().map(|status| (is_over(status.code()), status.limit_remaining.into()));
    (is_over(response.overall_code()), statuses.collect())
}

fn seen_in_replay(answer: &limiter::Answer) -> Seen {
    let is_over = |code| code == limiter::Code::OverLimit;
    let remaining = |hits: u64| hits.min(u32::MAX.into());
    let statuses = answer.statuses.iter().map(|one| (is_over(one.code), remaining(one.limit_remaining)));
    (is_over(answer.code), statuses.collect())
}

/// Every answer of the log, in order.
fn replayed(log: &Path, cache_bytes: usize) -> Vec<(String, Seen)> {
    let side = || {
        let files = [SourceFile { name: "d.yaml".into(), text: rules().into() }];
        let rules = compile(&files, CompileOptions::default()).rules.unwrap();
        let policy = Policy { bounds: Bounds { descriptors: 100, entries: 100 }, ..Policy::default() };
        Decider::new(rules, policy, Arc::new(overrides()), cache_bytes)
    };
    let bytes = Box::new(fs::File::open(log).unwrap());
    let logs = vec![Log { name: log.display().to_string(), bytes }];
    let (rules, against, access_log) = (side(), Some(side()), None);
    let replay = Replay { logs, access_log, rules, against, from: None, to: None, suggest: None };
    let mut answers = Vec::new();
    let report = replay.run(&mut |decision| {
        answers.push((format!("{:?}", decision.request), seen_in_replay(&decision.answer)));
    });
    let report = report.unwrap_or_else(|error| panic!("{error:?}"));
    assert_eq!((report.newly_refused, report.newly_allowed, report.logs.late), (0, 0, 0));
    answers
}

/// A service of one worker that records its requests.
struct Live {
    server: Server,
    client: Client,
    answers: Vec<Seen>,
    /// The identities of holds, in order.
    holds: Vec<String>,
}

impl Live {
    fn start(setup: Setup, clock: &Clock, files: &Files) -> Self {
        let port = free_port();
        let setup = setup.rules("d.yaml", &rules()).env("ADMIN_ADDR", &format!("127.0.0.1:{port}"));
        let setup = setup.env("GRPC_WORKERS", "1").env("REQUEST_LOG_FILE", files.log.to_str().unwrap());
        let setup = setup.env("REQUEST_LOG", "all").env("REQUEST_LOG_MAX_LINES", "1000000");
        let server = setup.start_healthy();
        let mut import = Command::new(BINARY);
        import.args(["override", "import", "--admin", &format!("127.0.0.1:{port}")]).arg(&files.overrides);
        clock.apply(&mut import);
        assert_exit(&import.output().unwrap(), 0, &[]);
        let client = server.client();
        let ready = || client.ask(request("d", &[&[("probe", "ready")]])).unwrap();
        eventually("the overrides are in force", || {
            holds(ready().overall_code() == Code::OverLimit, String::new)
        });
        Self { server, client, answers: Vec::new(), holds: Vec::new() }
    }

    fn ask(&mut self, request: RateLimitRequest) {
        let holding =
            request.descriptors.iter().filter(|one| HOLDING.contains(&&*one.entries[0].key)).count();
        let is_mixed = (1..request.descriptors.len()).contains(&holding);
        let response = self.client.ask(request).unwrap();
        self.holds.extend(hold_id(&response));
        self.answers.push(seen_live(&response));
        if is_mixed && response.overall_code() == Code::OverLimit {
            eventually("what was held for a refused request is cancelled", || {
                holds(self.server.count("tollgate_holds_queued") == 0, || "queued".to_owned())
            });
        }
    }

    /// Sends random requests at random times. The clock stands between them: Redis counts all but fixed windows by its own,
    /// which else reads a few microseconds more than the log has.
    fn ask_at_random(&mut self, random: &mut fastrand::Rng, clock: &Clock) {
        // After all probes: a replay sorts requests by time.
        let mut stopped = clock.now().ceil() + 1.0;
        for number in 0..REQUESTS {
            if number == 0 || random.u32(0..10) == 0 {
                stopped += f64::from(random.u32(0..20)) / 4.0;
                clock.stop_at(stopped);
                self.charge_expired();
            }
            let request = random_request(random, &self.holds);
            self.ask(request);
        }
    }

    /// Charges what has expired. The service does so when a counter is read or has no room, or within a second of the
    /// machine's time, and a replay at once: the log does not have the moment.
    fn charge_expired(&mut self) {
        let read = |key: &str, value: &str| {
            let mut read = descriptor(&[(key, value)]);
            read.hits_addend = Some(0);
            read
        };
        // In memory each charges ten.
        for _ in 0..10 {
            let mut other = request("d", &[]);
            other.descriptors.push(read("budget", "nobody"));
            self.ask(other);
        }
        // In Redis each charges ten of its counter.
        let mut all = request("d", &[]);
        for key in HOLDING {
            all.descriptors.extend(VALUES.map(|value| read(key, value)));
        }
        self.ask(all);
    }
}

/// The files of a run.
struct Files {
    dir: TempDir,
    log: PathBuf,
    overrides: PathBuf,
}

/// Records a live run of one worker, and replays it.
fn a_replay_has_the_answers_of_the_live_run(setup: Setup, clock: &Clock, cache_bytes: usize) {
    let dir = tempfile::tempdir().unwrap();
    let (log, csv) = (dir.path().join("requests.jsonl"), dir.path().join("overrides.csv"));
    fs::write(&csv, OVERRIDES).unwrap();
    let files = Files { dir, log, overrides: csv };
    let seed = std::env::var("TOLLGATE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    let setup = setup.env("LOCAL_CACHE_SIZE_IN_BYTES", &cache_bytes.to_string());
    let mut live = Live::start(setup, clock, &files);
    live.ask_at_random(&mut fastrand::Rng::with_seed(seed), clock);
    let Live { mut server, client, answers: live, holds } = live;
    assert!(holds.len() > REQUESTS / 20, "{} requests hold, seed {seed}", holds.len());
    drop(client);
    assert!(server.process.stop().success());
    let recorded = fs::read_to_string(&files.log).unwrap();
    let last = recorded.lines().last().unwrap();
    assert!(last > &*format!("{{\"time\":\"{BOUNDARY}"), "before the boundary: {last}");
    let answers = replayed(&files.log, cache_bytes);
    let probes = answers.len() - live.len();
    for (number, (live, (request, replayed))) in live.iter().zip(&answers[probes..]).enumerate() {
        assert_eq!(live, replayed, "request {number} of seed {seed}: {request}");
    }
    let refused = live.iter().filter(|(refused, _)| *refused).count();
    assert!((REQUESTS / 20..REQUESTS * 19 / 20).contains(&refused), "{refused} refused, seed {seed}");
    let all = refusals_by_the_command(&files, cache_bytes);
    assert!(all >= refused as u64 && all <= (refused + probes) as u64, "{all}, {refused}, {probes}");
}

fn refusals_by_the_command(files: &Files, cache_bytes: usize) -> u64 {
    let rules = files.dir.path().join("d.yaml");
    fs::write(&rules, self::rules()).unwrap();
    let mut command = Command::new(BINARY);
    command.arg("replay").arg(&files.log).arg("--rules").arg(&rules).arg("--json");
    command.arg("--overrides").arg(&files.overrides);
    let output = command.env("LOCAL_CACHE_SIZE_IN_BYTES", cache_bytes.to_string()).output().unwrap();
    assert_exit(&output, 0, &[]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    report["refused"].as_u64().expect("a number")
}

/// A run takes about twelve minutes.
fn before_the_boundary() -> Clock {
    Clock::at(BOUNDARY).ahead_by(-115.0).steerable()
}

#[test]
fn a_replay_of_a_run_in_memory_has_its_answers() {
    let clock = before_the_boundary();
    let _clock = clock.enter();
    a_replay_has_the_answers_of_the_live_run(Setup::new().env("BACKEND_TYPE", "memory"), &clock, 0);
}

#[test]
fn a_replay_of_a_run_with_a_local_cache_has_its_answers() {
    let clock = before_the_boundary();
    let _clock = clock.enter();
    a_replay_has_the_answers_of_the_live_run(Setup::new().env("BACKEND_TYPE", "memory"), &clock, 1 << 20);
}

#[test]
fn a_replay_of_a_run_on_redis_has_its_answers() {
    let clock = before_the_boundary();
    let _clock = clock.enter();
    let redis = Redis::single();
    a_replay_has_the_answers_of_the_live_run(Setup::new().redis(&redis.env()), &clock, 0);
}
