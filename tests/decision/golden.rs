//! Replays the recorded requests of the Go service against the real binary, which counts in memory or in a real Redis, and
//! compares the answers: see `tests/decision/golden/README.md`.
//!
//! Prints every difference, and fails if there is one. `GOLDEN_ONLY=part-of-a-name` replays a few cases.

use std::{
    collections::BTreeMap,
    env, fs,
    num::NonZero,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use support::{
    client::Client,
    clock::{self, Clock},
    redis::Redis,
    server::{Server, Setup},
    within,
};

mod compare;
mod counters;
mod wire;

use compare::{difference, same};
use counters::Database;

#[test]
fn requests_are_answered_as_recorded() {
    let _clock = Clock::ordinary().enter();
    replay("answers", |_, case| unintended(case, play_requests(case, Setup::new())));
}

#[test]
fn requests_are_answered_as_recorded_and_leave_the_same_counters_in_redis() {
    let _clock = Clock::ordinary().enter();
    let redis = Redis::single();
    replay("answers", |number, case| {
        let database = Database::emptied(&redis, number);
        let differences = play_requests(case, Setup::new().redis(&database.env()));
        if differences.is_empty() {
            database.differences(&case["counters"])
        } else {
            unintended(case, differences)
        }
    });
}

/// With `QUOTA_MODE` and `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`, an exhausted quota keeps the others from counting in the
/// Go service, so that none of them ever refuses: see docs/reference/differences.md.
const INTENDED_ANSWER: &str = "answers-101-11";

fn unintended(case: &Value, found: Vec<String>) -> Vec<String> {
    if name(case) != INTENDED_ANSWER {
        return found;
    }
    assert!(found.concat().starts_with("step 23: ") && found.concat().contains("QUOTA_MODE"), "{found:?}");
    Vec::new()
}

/// A limit beyond 32 bits, which the Go service rejects and Tollgate accepts: see docs/reference/differences.md.
const INTENDED: &str = "rule-rpu-over";

#[test]
fn rules_files_are_accepted_or_rejected_as_recorded() {
    let _clock = Clock::ordinary().enter();
    replay("configs", |_, case| match (name(case), play_rules(case)) {
        (INTENDED, found) => {
            assert!(found.concat().contains("4294967296` into uint32"), "{found:?}");
            Vec::new()
        }
        (_, found) => found,
    });
}

/// Replays every case of a file, several at a time, and fails with all differences. The recordings have several limits on
/// one descriptor, which share a counter if their windows begin in the same second; so the tests choose an ordinary time.
fn replay(kind: &str, play: impl Fn(usize, &Value) -> Vec<String> + Sync) {
    let only = env::var("GOLDEN_ONLY").unwrap_or_default();
    let path = format!("{}/tests/decision/golden/{kind}.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let cases: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let cases: Vec<_> = cases.into_iter().filter(|case| name(case).contains(&only)).collect();
    let clock = Clock::current();
    let (next, differences) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    // A case mostly waits for its server to start, so each core runs two.
    let workers = thread::available_parallelism().map_or(2, NonZero::get) * 2;
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let _clock = clock.enter();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(number) else { break };
                    let found = within_a_minute(|| play(number, case));
                    differences
                        .lock()
                        .unwrap()
                        .extend(found.iter().map(|found| format!("{}: {found}", name(case))));
                }
            });
        }
    });
    let differences = differences.into_inner().unwrap();
    println!("{kind}: {} differences in {} cases", differences.len(), cases.len());
    assert!(differences.is_empty(), "{}\n{} differences", differences.join("\n"), differences.len());
}

/// Replays a case again if a minute ended in between: its counters may have been reset.
fn within_a_minute(play: impl Fn() -> Vec<String>) -> Vec<String> {
    loop {
        let started = minute();
        let found = play();
        if minute() == started {
            return found;
        }
    }
}

fn minute() -> u64 {
    clock::now() / 60
}

/// Compares the answers of a case, then the metrics. Stops at the first difference, because later ones have the same
/// reason.
fn play_requests(case: &Value, setup: Setup) -> Vec<String> {
    let server = match started(case, setup) {
        Ok(server) => server,
        Err(log) => return vec![format!("the service did not start: {log}")],
    };
    server.wait_until_healthy();
    let client = server.client();
    for (number, step) in list(&case["steps"]).iter().enumerate() {
        let (asked, have) = match step.get("ask") {
            Some(ask) => (ask, wire::ask(&client, ask)),
            None => (&step["post"], wire::post(server.ports.http, step["post"].as_str().unwrap())),
        };
        if !same(&step["answer"], &have) {
            let env = &case["env"];
            return vec![format!(
                "step {number}: {asked}\n    env {env}\n{}",
                difference(&step["answer"], &have)
            )];
        }
    }
    let want = &case["metrics"];
    // Metrics may be published shortly after the answers.
    let settled = within(Duration::from_secs(3), || {
        let have = rule_metrics(&server);
        if same(want, &have) { Ok(()) } else { Err(difference(want, &have)) }
    });
    settled.err().map(|difference| format!("metrics\n{difference}")).into_iter().collect()
}

/// Compares whether rules files are accepted, how they are shown, and the answers.
fn play_rules(case: &Value) -> Vec<String> {
    let server = match started(case, Setup::new()) {
        Ok(server) => server,
        Err(log) => return vec![format!("the service did not start: {log}")],
    };
    let client = server.client();
    let texts: Vec<_> = files(case).map(|(_, text)| text).collect();
    let texts = texts.join("\n---\n");
    let taken = json!(is_taken(&client));
    if taken != case["taken"] {
        let said = case["error"].as_str().unwrap_or("nothing");
        return vec![format!("taken?\n{}\n    Go said: {said}\n{texts}", difference(&case["taken"], &taken))];
    }
    if taken == json!(false) {
        return Vec::new();
    }
    let mut differences = Vec::new();
    let shown = json!(server.rules_shown());
    if shown != case["shown"] {
        differences.push(format!("/rlconfig\n{}\n{texts}", difference(&case["shown"], &shown)));
    }
    for probe in list(&case["probes"]) {
        let have = wire::ask(&client, &probe[0]);
        if !same(&probe[1], &have) {
            differences.push(format!("{}\n{}\n{texts}", probe[0], difference(&probe[1], &have)));
        }
    }
    differences
}

/// Without rules the service answers every request with an error.
fn is_taken(client: &Client) -> bool {
    wire::ask(client, &json!(["probe-nothing", [{"entries": [["k", "v"]]}], 0])).get("error").is_none()
}

fn started(case: &Value, setup: Setup) -> Result<Server, String> {
    let env = case["env"].as_object().into_iter().flatten();
    let setup = env.fold(setup, |setup, (name, value)| setup.env(name, value.as_str().unwrap()));
    files(case).fold(setup, |setup, (name, text)| setup.rules(name, text)).try_start()
}

fn files(case: &Value) -> impl Iterator<Item = (&str, &str)> {
    case["configs"].as_object().unwrap().iter().map(|(name, text)| (name.as_str(), text.as_str().unwrap()))
}

/// The counters per rule with labels, without those at zero.
fn rule_metrics(server: &Server) -> Value {
    const COUNTERS: [&str; 5] = ["total_hits", "over_limit", "near_limit", "within_limit", "shadow_mode"];
    let counts = |sample: &str| {
        let (name, _) = sample.strip_prefix("ratelimit_service_rate_limit_")?.split_once("{domain=")?;
        COUNTERS.contains(&name).then_some(())
    };
    let all = server.metrics().into_iter();
    json!(all.filter(|(name, value)| *value != 0.0 && counts(name).is_some()).collect::<BTreeMap<_, _>>())
}

fn name(case: &Value) -> &str {
    case["name"].as_str().unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
