//! A fleet under full load: many replicas with leases on one Redis, and what it costs them and Redis.
//!
//! Requests are no futures of their own: each replica decides those of a millisecond in a loop, and only those that wait for
//! Redis become tasks. So all requests of a millisecond arrive at once, and decisions take no simulated time. Replicas have one
//! worker each. No gRPC, no TLS.

use std::{
    collections::BTreeMap,
    fmt, fs,
    sync::{Arc, Mutex},
    time::Instant,
};

use clock::{Clock as _, Time};
use counters::Report as _;
use faults::OnStoreFailure;
use limit::Unit;
use limiter::{Answer, Code, Decided, Descriptor, Entry, Request, RequestError};
use rules::SourceFile;
use rules_source::Reading;

use crate::{
    limits::LimitPlan,
    plan::{Plan, ReplicaPlan, SECOND, Scenario},
    random::Random,
    replica::Replica,
    servers::Traffic,
    simulation::Simulation,
    trace::Trace,
    world::{Event, Micros},
};

#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    pub replicas: usize,
    /// Decisions per second of all replicas.
    pub rate: u64,
    pub seconds: u64,
}

/// Distinct keys, by Zipf's law: the first is asked for twice as often as the second.
const KEYS: usize = 100_000;

/// The limit of each key, per second, as a part of the rate: about eighty keys demand more.
const LIMITED: u64 = 1_000;

/// Until then all replicas are connected, and have published themselves twice.
const WARM: Micros = 5 * SECOND;

const STEP: Micros = 1_000;

/// The bytes of a summary, at most.
const SUMMARY: usize = 16 << 10;

/// The hits of each key in each second: demanded and admitted.
type Ledger = Arc<Mutex<Vec<[Vec<u32>; 2]>>>;

/// What one run has measured.
pub struct Row {
    fleet: Fleet,
    /// Commands of clients to Redis per second, in and out of the load.
    commands: BTreeMap<&'static str, u64>,
    idle: BTreeMap<&'static str, u64>,
    traffic: Traffic,
    idle_traffic: Traffic,
    decided: u64,
    waited: u64,
    failed: u64,
    /// Hits of the limits that were demanded in full, and those of them that nobody admitted.
    demanded: u64,
    unused: u64,
    /// The limit of every key, and the most that one of them admitted in a second.
    limit: u64,
    most: u64,
    leases: usize,
    bytes_per_replica: u64,
    took: f64,
}

impl Row {
    /// Why the run shows a defect.
    pub fn violation(&self) -> Option<String> {
        let Self { most, limit, .. } = self;
        (most > limit).then(|| format!("a window of a key admitted {most} hits, with a limit of {limit}"))
    }
}

impl Fleet {
    pub fn run(self) -> Row {
        counters::CounterId::fix();
        let before = resident();
        let began = Instant::now();
        let mut simulation = Simulation::new(self.plan(), Trace::default());
        let limit = (self.rate / LIMITED).max(1);
        for replica in simulation.replicas.iter().flatten() {
            load(replica, limit);
        }
        let names: Vec<String> = (0..KEYS).map(|key| key.to_string()).collect();
        let ledger: Ledger = Arc::default();
        let mut run = Run { names, ledger, weights: zipf(), random: Random::new(7), rest: 0, waited: 0 };
        // The last second of the time before has no load.
        run_until(&mut simulation, WARM - SECOND, |_| ());
        let (start, traffic) = (simulation.redis.data[0].counts().clone(), simulation.redis.traffic);
        run_until(&mut simulation, WARM, |_| ());
        let idle = difference(simulation.redis.data[0].counts(), &start, 1);
        let idle_traffic = simulation.redis.traffic.since(traffic);
        let (start, traffic) = (simulation.redis.data[0].counts().clone(), simulation.redis.traffic);
        let end = WARM + self.seconds * SECOND;
        let mut at = WARM;
        while at < end {
            run.decide(&simulation, self);
            at += STEP;
            run_until(&mut simulation, at, |_| ());
        }
        let commands = difference(simulation.redis.data[0].counts(), &start, self.seconds);
        let traffic = simulation.redis.traffic.since(traffic);
        let leases = simulation.replicas.iter().flatten().filter_map(|replica| replica.store.leases());
        let leases = leases.map(|usage| usage.keys).sum::<usize>() / self.replicas;
        let bytes_per_replica = resident().saturating_sub(before) / self.replicas as u64;
        // The last requests are answered.
        run_until(&mut simulation, end + SECOND, |_| ());
        let [demanded, unused, most] = run.sums(limit);
        let codes = simulation.replicas.iter().flatten().map(|replica| replica.stats.requests_by_code());
        let [ok, over, failed] =
            codes.fold([0; 3], |sum, one| [sum[0] + one[0], sum[1] + one[1], sum[2] + one[2]]);
        Row {
            fleet: self,
            commands,
            idle,
            traffic,
            idle_traffic,
            decided: ok + over + failed,
            waited: run.waited,
            failed,
            demanded,
            unused,
            limit,
            most,
            leases,
            bytes_per_replica,
            took: began.elapsed().as_secs_f64(),
        }
    }

    fn plan(self) -> Plan {
        let mut plan = Plan::of(1, Some(Scenario::Steady));
        plan.replicas = vec![ReplicaPlan::default(); self.replicas];
        plan.topology = crate::topology::Topology::Single;
        plan.limits = vec![LimitPlan::fixed(Unit::Second, 1, true)];
        (plan.callers, plan.actions, plan.streams) = (Vec::new(), Vec::new(), None);
        (plan.timeout, plan.has_cache, plan.policy) = (100_000, true, OnStoreFailure::Share);
        (plan.traffic, plan.began) = (u64::MAX >> 1, 1_800_000_000 * SECOND);
        (plan.weather.delay, plan.weather.jitter, plan.weather.partial) = (100, 50, 0);
        plan.most_leases = Some(KEYS);
        plan.summary = SUMMARY;
        plan
    }
}

struct Run {
    names: Vec<String>,
    ledger: Ledger,
    /// Of each key and all before it.
    weights: Vec<f64>,
    random: Random,
    /// Requests of a step that do not divide among the replicas.
    rest: u64,
    waited: u64,
}

impl Run {
    /// The requests of a step.
    fn decide(&mut self, simulation: &Simulation, fleet: Fleet) {
        let all = fleet.rate * STEP + self.rest;
        let per_replica = all / SECOND / fleet.replicas as u64;
        self.rest = all - per_replica * SECOND * fleet.replicas as u64;
        for replica in simulation.replicas.iter().flatten() {
            let now = replica.clock.now();
            for _ in 0..per_replica {
                self.ask(replica, now);
            }
        }
    }

    fn ask(&mut self, replica: &Replica, now: Time) {
        let drawn = (self.random.number() >> 11) as f64 / (1_u64 << 53) as f64;
        let key = self.weights.partition_point(|sum| *sum <= drawn).min(KEYS - 1);
        let second = (now.seconds() % 1_000_000) as usize;
        match replica.limiter.try_decide(&request(&self.names[key]), now, None, None) {
            Ok(Decided::Wait(decision)) => {
                self.waited += 1;
                let ledger = self.ledger.clone();
                replica.edges.start(async move { note(&ledger, key, second, &decision.await.decided) });
            }
            Ok(Decided::Answer(answer)) => note(&self.ledger, key, second, &Ok(answer)),
            Err(error) => note(&self.ledger, key, second, &Err(error)),
        }
    }

    /// The hits of limits that were demanded in full, those that nobody admitted, and the most that one admitted.
    fn sums(&self, limit: u64) -> [u64; 3] {
        let ledger = self.ledger.lock().expect("nothing panics with it");
        let mut sums = [0; 3];
        for [demanded, admitted] in ledger.iter() {
            for (demanded, admitted) in demanded.iter().zip(admitted) {
                let (demanded, admitted) = (u64::from(*demanded), u64::from(*admitted));
                if demanded >= limit {
                    sums[0] += limit;
                    sums[1] += limit.saturating_sub(admitted);
                }
                sums[2] = sums[2].max(admitted);
            }
        }
        sums
    }
}

fn note(ledger: &Ledger, key: usize, second: usize, answer: &Result<Answer, RequestError>) {
    let mut ledger = ledger.lock().expect("nothing panics with it");
    let second = second % 60;
    if ledger.len() <= second {
        ledger.resize_with(second + 1, || [vec![0; KEYS], vec![0; KEYS]]);
    }
    let [demanded, admitted] = &mut ledger[second];
    demanded[key] += 1;
    admitted[key] += u32::from(answer.as_ref().is_ok_and(|answer| answer.code == Code::Ok));
}

fn request(key: &str) -> Request<'_> {
    let entries = std::iter::once(Entry { key: "tenant", value: key }).collect();
    let descriptor = Descriptor { entries, ..Descriptor::default() };
    Request { domain: "sim", descriptors: std::iter::once(descriptor).collect(), ..Request::default() }
}

fn load(replica: &Replica, limit: u64) {
    let limit = format!("{{unit: second, requests_per_unit: {limit}, counting: leased}}");
    // What Redis does not answer in time is an error, and no hit that a share of the limit admits.
    let rules = format!("[{{key: tenant, rate_limit: {limit}}}]");
    let text = format!("domain: sim\non_store_failure: error\ndescriptors: {rules}\n").into_bytes();
    let files = vec![SourceFile { name: "fleet.yaml".to_owned(), text }];
    let reading = || Reading { files, diagnostics: Vec::new() };
    replica.source.reload_by(&"the fleet", reading, replica.clock.now());
    assert!(replica.source.state().is_current, "{:?}", replica.source.state());
}

/// Runs all events until a time. The checks of each second are those of plans.
fn run_until(simulation: &mut Simulation, until: Micros, mut each: impl FnMut(&Simulation)) {
    // Time stops at events only.
    simulation.world.at(until, Event::Arrive(0));
    loop {
        simulation.world.run_ready();
        match simulation.world.next(until) {
            Some(Event::Arrive(_)) => return each(simulation),
            Some(Event::Second) => {}
            Some(event) => simulation.handle(event),
            None => return,
        }
    }
}

/// The sums of the keys' probabilities.
fn zipf() -> Vec<f64> {
    let all: f64 = (1..=KEYS).map(|rank| 1.0 / rank as f64).sum();
    let mut sum = 0.0;
    (1..=KEYS)
        .map(|rank| {
            sum += 1.0 / rank as f64 / all;
            sum
        })
        .collect()
}

fn difference(
    after: &BTreeMap<&'static str, u64>,
    before: &BTreeMap<&'static str, u64>,
    seconds: u64,
) -> BTreeMap<&'static str, u64> {
    let since = |(name, count): (&&'static str, &u64)| {
        (*name, (count - before.get(name).copied().unwrap_or(0)) / seconds)
    };
    after.iter().map(since).filter(|(_, count)| *count > 0).collect()
}

/// The resident memory of this process in bytes.
fn resident() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fleet: Fleet { replicas, rate, seconds }, commands, idle, traffic, .. } = self;
        let (all, own): (u64, u64) = (commands.values().sum(), idle.values().sum());
        let part = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
        writeln!(
            f,
            "| replicas | decisions/s | waited | failed | commands/s | of the fleet itself | MB/s to and from Redis | the \
             simulated Redis is busy | limit | most admitted | unused | leases a replica | MB a replica |"
        )?;
        writeln!(f, "|---|---|---|---|---|---|---|---|---|---|---|---|---|")?;
        writeln!(
            f,
            "| {replicas} | {} | {:.2} % | {} | {all} | {own} | {:.1}, {:.1} | {:.1} % | {} | {} | {:.2} % | {} | {:.1} |",
            self.decided / seconds,
            part(self.waited, self.decided),
            self.failed,
            (traffic.received / seconds) as f64 / 1e6,
            (traffic.sent / seconds) as f64 / 1e6,
            part(traffic.busy, seconds * SECOND),
            self.limit,
            self.most,
            part(self.unused, self.demanded),
            self.leases,
            self.bytes_per_replica as f64 / 1e6,
        )?;
        writeln!(f, "commands per second: {commands:?}")?;
        let Traffic { received, sent, pushes, pushed, .. } = self.idle_traffic;
        writeln!(
            f,
            "without load: {idle:?}, {received} bytes to Redis, {sent} from it, {pushes} messages of {pushed} bytes"
        )?;
        write!(f, "{rate} decisions per second for {seconds} s took {:.0} s", self.took)
    }
}
