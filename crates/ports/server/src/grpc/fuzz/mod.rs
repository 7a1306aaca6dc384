//! The cost of a connection with the services of the port, for any script of its peer: calls for a decision, health checks,
//! reflection, quotas, and methods that do not exist. The scripts, the meter and the prices are those of `http2::fuzz`.
//!
//! A script runs as `driver` runs a connection, without its socket and timers. All work is bounded by what was received.
//! Half of the scripts have turns that are over as soon as the clock is read, and the work of each turn is bounded; in the
//! others a turn has no end.

use std::{
    cell::Cell,
    env, fs, process,
    rc::Rc,
    sync::Arc,
    task::{Context, Waker},
    time::{Duration, Instant},
};

use budget::Budget;
use http2::{
    Config, Connection, Reason,
    fuzz::{Bounds, Cost, Script, Step, allocations},
    meter,
};
use tokio::sync::Semaphore;

use super::{
    calls::{Calls, ConnectionCalls, Http},
    framing::after,
    reflection,
};
use crate::wire::DecisionRpc;
use clock::{ManualClock, Time};
use counters::{Applied, Batch, Count, KeepHolds, Operate, Report, Store, StoreFuture};
use limiter::{Limiter, Policy, handles};
use memory::MemoryStore;
use metrics::{Stats, StatsOptions};
use net::edges::Edges;
use rlqs::Quotas;
use rules::CompileOptions;
use rules_source::{RulesDir, Source};

const PATH: &str = DecisionRpc::ShouldRateLimit.name();

/// The methods of the port, and one that does not exist.
const PATHS: &[&str] = &[
    PATH,
    PATH,
    DecisionRpc::CheckRateLimit.name(),
    DecisionRpc::Report.name(),
    DecisionRpc::Reserve.name(),
    DecisionRpc::Commit.name(),
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas",
    "/other",
];

/// A call that waits for its store holds its decision, and an answer of reflection is a whole file. Tests compare both with
/// the smallest request that waits, and with the shortest question for a file. What a byte of an answer is worth is an
/// estimate: it is copied into the file, the answer and the output.
const BOUNDS: Bounds = Bounds { held: 96, sent: 160, answer: 2 };

/// The most that one turn may take from the input when its time is over: the work before the clock is read, once before
/// and once after the largest request that is handled at once, of two frames.
const MAX_TAKEN: usize = 2 * 1024 + 2 * (9 + 16_384);

/// The price of the work of a turn without input, in nanoseconds.
const MAX_TURN: usize = 60_000;

const RULES: &str = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 100}}]\n";

/// Counts in memory: at once while the gate is open, else one request per permit.
struct Gated {
    counters: MemoryStore,
    gate: Arc<Semaphore>,
}

const OPEN: usize = 1 << 20;

impl Count for Gated {
    fn try_apply(&self, batch: &mut Batch, now: Time) -> Applied {
        if self.gate.available_permits() < OPEN {
            return Applied::Wait;
        }
        self.counters.try_apply(batch, now)
    }

    fn apply<'a>(&'a self, batch: &'a mut Batch, now: Time) -> StoreFuture<'a> {
        let gate = self.gate.clone();
        Box::pin(async move {
            if let Ok(permit) = gate.acquire().await {
                permit.forget();
            }
            self.counters.count(batch, now);
            Ok(())
        })
    }
}

impl KeepHolds for Gated {}

impl Operate for Gated {
    fn reset<'a>(&'a self, batch: &'a mut Batch, now: Time) -> StoreFuture<'a> {
        self.counters.reset(batch, now)
    }
}

impl Report for Gated {}

struct Parts {
    calls: Rc<Calls>,
    gate: Arc<Semaphore>,
}

impl Parts {
    fn new() -> Self {
        let stats = Arc::new(Stats::new(StatsOptions { max_series: 10, ..StatsOptions::default() }));
        let gate = Arc::new(Semaphore::new(0));
        let store = Arc::new(Gated { counters: MemoryStore::new(100), gate: gate.clone() });
        reflection::load();
        let limiter = Arc::new(limiter(store, &stats));
        let settings = rlqs::Settings {
            ttl_seconds: 2,
            max_buckets: 100,
            max_buckets_of_stream: 10,
            max_bytes: 1 << 20,
        };
        let parts = super::Parts {
            quotas: Quotas::new(limiter.clone(), Edges::system(), settings),
            limiter,
            stats,
            health: Arc::default(),
            tls: None,
            tracer: None,
            inflight: Budget::new(64 << 20),
        };
        let calls = Rc::new(Calls {
            health: parts.health.changes(),
            parts,
            // A message that fits a stream's window: the length of a larger one is granted by the budget, and reserved.
            max_request_bytes: 65_000,
            receive_timeout: Duration::from_secs(5),
            streaming: Budget::new(100),
            buffers: Cell::default(),
        });
        Self { calls, gate }
    }
}

fn limiter(store: Arc<dyn Store>, stats: &Arc<Stats>) -> Limiter {
    let policy = Policy::default();
    let counters = stats.clone();
    let source =
        Arc::new(Source::new(CompileOptions::default(), move |rules| handles(rules, &counters, Vec::new())));
    let thread = format!("{:?}", std::thread::current().id());
    let root = env::temp_dir().join(format!("tollgate-cost-{}-{thread}", process::id()));
    let written = fs::create_dir_all(root.join("config"))
        .and_then(|()| fs::write(root.join("config/rules.yaml"), RULES));
    assert!(written.is_ok(), "the rules cannot be written: {written:?}");
    let now = Time::from_seconds(7200);
    source.reload(&RulesDir::new(&root, "", "config", false), now);
    let _ = fs::remove_dir_all(&root);
    assert!(source.current().is_some(), "the rules are loaded");
    Limiter::new(policy, source, store, None, stats.clone(), Arc::new(ManualClock::at(now)))
}

/// A connection, its peer's script and their cost.
struct Served {
    http: Http,
    calls: ConnectionCalls,
    cost: Cost,
    now: Instant,
    end: Instant,
    has_short_turns: bool,
    /// Bytes that were received and not handled.
    rest: Vec<u8>,
}

impl Served {
    fn new(calls: Rc<Calls>, now: Instant, has_short_turns: bool) -> Self {
        let before = allocations();
        meter::take();
        let config = Config { max_streams: 1024, budget: calls.parts.inflight.clone() };
        let mut served = Self {
            http: Connection::new(config, now),
            calls: ConnectionCalls::new(calls, now),
            cost: Cost::new(BOUNDS),
            now,
            end: if has_short_turns { now } else { after(now, Duration::from_secs(3600)) },
            has_short_turns,
            rest: Vec::new(),
        };
        served.cost.add(before, 0, 0);
        served
    }

    /// Turns until nothing is left to do, with these further bytes. `None` if the connection has failed.
    fn turns(&mut self, bytes: &[u8]) -> Result<Option<()>, String> {
        let mut received = bytes.len();
        let mut has_input = !bytes.is_empty();
        self.rest.extend_from_slice(bytes);
        loop {
            let before = allocations();
            meter::take();
            let taken = self.turn(has_input);
            let sent = std::mem::take(&mut self.http.out).len();
            let work = self.cost.add(before, received, sent);
            let Ok(taken) = taken else { return Ok(None) };
            self.rest.drain(..taken);
            if self.has_short_turns {
                check("bytes taken in a turn", taken, MAX_TAKEN)?;
                if !has_input {
                    check("ns of work in a turn without input", work, MAX_TURN)?;
                }
            }
            if let Some(excess) = self.cost.excess() {
                return Err(excess);
            }
            (received, has_input) = (0, self.http.is_interrupted());
            if !has_input && !self.calls.is_due() {
                return Ok(Some(()));
            }
        }
    }

    /// One turn, as in `driver`.
    fn turn(&mut self, has_input: bool) -> Result<usize, Reason> {
        self.calls.now = self.now;
        self.http.begin_turn(self.end);
        let mut taken = 0;
        if has_input {
            taken = self.http.receive(&self.rest, self.now, &mut self.calls)?;
            self.calls.after_read();
        }
        if self.http.is_over() {
            self.http.begin_turn(self.end);
        }
        self.calls.poll(&mut self.http, &Context::from_waker(Waker::noop()));
        self.calls.check_unfinished(&mut self.http);
        self.calls.streaming.quiet(&mut self.http);
        Ok(taken)
    }
}

fn check(what: &str, spent: usize, most: usize) -> Result<(), String> {
    if spent > most { Err(format!("{spent} {what}, at most {most}")) } else { Ok(()) }
}

thread_local! {
    static PARTS: Parts = Parts::new();
}

/// Runs a script against the services.
pub fn fuzz(bytes: &[u8]) {
    if let Err(excess) = run(bytes) {
        panic!("{excess}");
    }
}

/// Runs a script against the services, and its rest on further connections if it ended the first. Returns the costliest,
/// or what exceeds a bound. The first byte selects the length of turns, and whether calls wait for their store.
fn run(bytes: &[u8]) -> Result<Cost, String> {
    let (mode, script) = bytes.split_first().unwrap_or((&0, &[]));
    let mut costliest = Cost::new(BOUNDS);
    let mut left = Some(Script::new(script, PATHS));
    while let Some(mut script) = left {
        costliest = costliest.max(connection(*mode, &mut script)?);
        left = script.reconnect();
    }
    Ok(costliest)
}

/// Runs a script on a connection, until one of them ends.
fn connection(mode: u8, script: &mut Script<'_>) -> Result<Cost, String> {
    PARTS.with(|Parts { calls, gate }| {
        gate.forget_permits(usize::MAX >> 4);
        // The calls of three scripts in four wait.
        if mode & 6 == 6 {
            gate.add_permits(2 * OPEN);
        }
        let mut served = Served::new(calls.clone(), Instant::now(), mode & 1 != 0);
        for step in script {
            let (bytes, write) = match step {
                Step::Send(bytes, write) => (bytes, write),
                Step::Decide(calls) => {
                    gate.add_permits(calls);
                    (Vec::new(), 1)
                }
                Step::Wait(millis) => {
                    served.now = after(served.now, Duration::from_millis(millis));
                    (Vec::new(), 1)
                }
            };
            for bytes in bytes.chunks(write.max(1)).chain(bytes.is_empty().then_some(&[][..])) {
                if served.turns(bytes)?.is_none() {
                    served.http.abandon(&mut served.calls);
                    return Ok(served.cost);
                }
            }
        }
        served.http.abandon(&mut served.calls);
        Ok(served.cost)
    })
}

#[cfg(test)]
mod tests {
    use http2::fuzz::hold;

    use super::*;

    #[test]
    fn no_script_of_calls_costs_more_than_its_bytes_are_worth() {
        hold(50, PATHS, run);
    }

    fn request(stream: u32, block: &[u8]) -> Vec<u8> {
        // A domain, and a descriptor with a key and no value.
        let message = b"\0\0\0\0\x0a\x0a\x01d\x12\x05\x0a\x03\x0a\x01k";
        let mut bytes = Vec::new();
        for (kind, flags, payload) in [(1, 4, block), (0, 1, &message[..])] {
            bytes.extend_from_slice(&[0, 0, u8::try_from(payload.len()).unwrap(), kind, flags]);
            bytes.extend_from_slice(&stream.to_be_bytes());
            bytes.extend_from_slice(payload);
        }
        bytes
    }

    #[test]
    fn the_smallest_requests_that_wait_hold_most_of_the_bound() {
        PARTS.with(|Parts { calls, gate }| {
            gate.forget_permits(usize::MAX >> 4);
            let mut served = Served::new(calls.clone(), Instant::now(), false);
            let mut block = b"\x83\x86\x44".to_vec();
            block.push(u8::try_from(PATH.len()).unwrap());
            block.extend_from_slice(PATH.as_bytes());
            block.extend_from_slice(b"\x5f\x10application/grpc");
            let greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
            served.turns(&[&greeting[..], &request(1, &block)].concat()).unwrap().unwrap();
            let before = served.cost;
            let requests: Vec<u8> =
                (1..1000).flat_map(|number| request(2 * number + 1, b"\x83\x86\xbf\xbe")).collect();
            served.turns(&requests).unwrap().unwrap();
            assert_eq!(served.http.open_streams(), 1000);
            let held = (served.cost.held - before.held) / requests.len();
            served.http.abandon(&mut served.calls);
            assert!((BOUNDS.held / 2..BOUNDS.held).contains(&held), "{held} bytes held for one");
        });
    }

    #[test]
    fn the_largest_answer_is_most_of_the_bound() {
        let most = reflection::amplification();
        assert!((BOUNDS.sent / 2..BOUNDS.sent).contains(&most), "{most} bytes sent for one");
    }
}
