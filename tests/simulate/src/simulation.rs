//! One run of a plan.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, atomic::Ordering::Relaxed},
};

use clock::Clock as _;
use counters::{CounterId, StoreError};
use faults::OnStoreFailure;
use limiter::{Decided, Descriptor, Entry, Request};
use metrics::FailureReason;
use simulated_redis::Snapshot;

use crate::{
    checks::{Checks, Invariant, Violation},
    inspect::Endless,
    ledger::{Asked, Ledger, Sent},
    limits::{Counter, LimitPlan},
    network::Network,
    operations::Operations,
    plan::{Action, Arrivals, CallerPlan, HitsPlan, Plan, SECOND, Spread},
    quotas::Envoys,
    random::Random,
    replica::Replica,
    servers::Servers,
    streams::{StreamEvent, ledger::Streams},
    trace::Trace,
    world::{Event, Micros, Process, World},
};

/// Traffic begins when the replicas are connected.
const BEGIN: Micros = SECOND / 2;

pub struct Simulation {
    pub plan: Plan,
    pub world: Arc<World>,
    pub network: Arc<Network>,
    pub redis: Servers,
    pub replicas: Vec<Option<Replica>>,
    pub processes: u32,
    /// The limits of the rules in force.
    pub limits: Vec<LimitPlan>,
    pub ledger: Arc<Mutex<Ledger>>,
    pub operations: Arc<Mutex<Operations>>,
    pub snapshots: Vec<Option<Vec<Snapshot>>>,
    /// The processes that actions terminate, by action.
    pub terminated: BTreeMap<usize, Process>,
    /// How often each action happened.
    pub happened: [u64; Action::NAMES.len()],
    random: Random,
    pub streams: Arc<Mutex<Streams>>,
    pub envoys: Envoys,
    /// The chance of streams.
    pub chance: Random,
    pub is_clean: bool,
    /// The counters that had no expiry a second ago.
    pub without_expiry: BTreeMap<String, Endless>,
}

/// What a run has shown.
pub struct Outcome {
    pub hash: u64,
    pub violation: Option<Violation>,
    pub checks: Checks,
    pub happened: [u64; Action::NAMES.len()],
    pub answers: u64,
    pub failures: u64,
    pub by_kind: [u64; LimitPlan::KINDS.len()],
    pub simulated: Micros,
    /// The hits of limits whose demand was at least as large, and those of them that were not admitted.
    pub demanded: u64,
    pub unused: u64,
    /// The end of the story.
    pub lines: Vec<String>,
}

impl Simulation {
    pub fn run(plan: &Plan, is_told: bool) -> Outcome {
        // A seed is the same story in every run.
        CounterId::fix();
        let mut simulation = Self::new(plan.clone(), if is_told { Trace::told() } else { Trace::default() });
        let end = plan.end();
        loop {
            simulation.world.run_ready();
            if simulation.ledger().checks.violation.is_some() {
                break;
            }
            let Some(event) = simulation.world.next(end) else {
                simulation.check_end();
                break;
            };
            simulation.handle(event);
        }
        simulation.outcome()
    }

    pub fn new(plan: Plan, trace: Trace) -> Self {
        let world = World::new(plan.seed ^ 0x77, trace);
        let network = Network::new(&world, plan.weather.clone());
        let ledger = Ledger::new(&plan);
        let mut simulation = Self {
            redis: Servers::new(plan.topology, plan.began, plan.seed),
            replicas: Vec::new(),
            processes: 0,
            limits: plan.limits.clone(),
            ledger: Arc::new(Mutex::new(ledger)),
            operations: Arc::default(),
            snapshots: vec![None; plan.actions.len()],
            terminated: BTreeMap::new(),
            happened: Default::default(),
            random: Random::new(plan.seed ^ 0xca11),
            streams: Arc::default(),
            envoys: Envoys::default(),
            chance: Random::new(plan.seed ^ 0x0057_4ea5),
            network,
            world,
            is_clean: plan.is_clean(),
            without_expiry: BTreeMap::new(),
            plan,
        };
        simulation.schedule();
        for number in 0..simulation.plan.replicas.len() {
            simulation.replicas.push(None);
            simulation.start_replica(number);
        }
        simulation.begin_envoys(BEGIN);
        simulation
    }

    fn schedule(&self) {
        for (caller, _) in self.plan.callers.iter().enumerate() {
            self.world.at(BEGIN, Event::Arrive(caller));
        }
        for (at, planned) in self.plan.actions.iter().enumerate() {
            if let Action::RestartFromSnapshot(age) | Action::Failover(_, age) = planned.action {
                self.world.at(planned.at.saturating_sub(age), Event::Snapshot(at));
            }
            self.world.at(planned.at, Event::Act(at));
        }
        let streaming = self.plan.streams.iter().flat_map(|plan| 0..plan.callers.len());
        streaming.for_each(|caller| self.world.at(BEGIN, Event::Stream(StreamEvent::Arrive(caller))));
        self.world.at(SECOND, Event::Second);
    }

    pub fn start_replica(&mut self, number: usize) {
        let process = Process(self.processes);
        self.processes += 1;
        self.world.tell(&process, format_args!("starts as replica {number}"));
        self.ledger().is_shared = false;
        let distance = self.plan.replicas[number].distance;
        if distance > 0 {
            self.network.weather().distances.push((process, distance));
        }
        let replica = Replica::start(&self.network, &self.plan, number, process, &self.limits);
        self.replicas[number] = Some(replica);
    }

    /// True if every replica has heard of all others, and of no more.
    fn is_shared(&self) -> bool {
        let all = self.replicas.len();
        self.replicas.iter().all(|one| {
            let share = one.as_ref().and_then(|replica| replica.limiter.share());
            share.is_some_and(|share| share.replicas() as usize == all)
        })
    }

    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("nothing panics with it")
    }

    pub fn now(&self) -> Micros {
        self.world.now()
    }

    pub fn handle(&mut self, event: Event) {
        match event {
            Event::Alarm(alarm) => alarm.ring(&self.world),
            Event::Open(link) => self.redis.open(&self.network, &self.network.link(link)),
            Event::Opened(link, is_open) => {
                let link = self.network.link(link);
                let mut state = link.lock();
                state.is_open = Some(is_open);
                state.wake();
            }
            Event::ToServer(number) => {
                let link = self.network.link(number);
                if let Some(until) = self.network.stalled_until(link.process) {
                    self.world.at(until, Event::ToServer(number));
                    return;
                }
                let negative = self.redis.receive(&self.network, &link);
                self.hold(Invariant::Negative, negative.is_none(), || {
                    let (name, value) = negative.unwrap_or_default();
                    format!("{name} is {value}")
                });
                self.note_lost();
            }
            Event::ToClient(number) => {
                let link = self.network.link(number);
                match self.network.stalled_until(link.process) {
                    Some(until) => self.world.at(until, Event::ToClient(number)),
                    None => self.network.arrive_at_client(&link),
                }
            }
            Event::ClientClosed(link) => self.redis.closed(&self.network.link(link)),
            Event::Arrive(caller) => self.arrive(caller),
            Event::Act(action) => self.act(action),
            Event::End(action) => self.end_action(action),
            Event::Snapshot(action) => self.snapshots[action] = Some(self.redis.snapshot()),
            Event::Announce => self.redis.announce(),
            Event::Stream(event) => self.stream_event(event),
            Event::Envoys => self.step_envoys(),
            Event::Second => self.second(),
        }
    }

    fn arrive(&mut self, caller: usize) {
        let now = self.now();
        if now >= self.plan.traffic {
            return;
        }
        let planned = self.plan.callers[caller];
        let next = self.next_arrival(&planned, now);
        self.world.at(next, Event::Arrive(caller));
        let is_burst = planned.arrivals == Arrivals::Bursts && now % SECOND >= SECOND / 5;
        if let Some(number) = self.choose_replica(&planned, now).filter(|_| !is_burst) {
            let asked = self.asked(planned.hits);
            if self.plan.policy == OnStoreFailure::Share && self.is_shared() {
                self.ledger().is_shared = true;
            }
            self.ask(number, &planned, asked);
        }
    }

    fn next_arrival(&mut self, caller: &CallerPlan, now: Micros) -> Micros {
        let second = SECOND as f64;
        match caller.arrivals {
            Arrivals::Poisson => now + 1 + self.random.exponential(second / caller.rate as f64) as u64,
            Arrivals::Bursts if now % SECOND >= SECOND / 5 => (now / SECOND + 1) * SECOND,
            Arrivals::Bursts => now + 1 + self.random.exponential(second / (caller.rate * 5) as f64) as u64,
        }
    }

    fn asked(&mut self, hits: HitsPlan) -> Asked {
        match hits {
            HitsPlan::Single => Asked::Take(1),
            HitsPlan::Several => Asked::Take(self.random.between(1, 10)),
            HitsPlan::Mixed => match self.random.below(20) {
                0 => Asked::Refund(self.random.between(1, 3)),
                1 => Asked::Take(0),
                2 => Asked::Take(self.random.between(2, 30)),
                _ => Asked::Take(1),
            },
        }
    }

    /// A replica that accepts requests.
    fn choose_replica(&mut self, caller: &CallerPlan, now: Micros) -> Option<usize> {
        let accepts = |replica: &Option<Replica>| {
            replica.as_ref().is_some_and(|replica| !replica.is_draining && replica.is_ready())
        };
        let able: Vec<usize> =
            (0..self.replicas.len()).filter(|number| accepts(&self.replicas[*number])).collect();
        let any = self.random.below(able.len() as u64) as usize;
        let wanted = match caller.spread {
            Spread::Any => None,
            Spread::One(number) => Some(number),
            Spread::Moving => Some((now / (SECOND / 2)) as usize % self.replicas.len()),
            Spread::Leaves(first) => {
                let leaves_at = BEGIN + self.plan.limits[caller.limit].limit * SECOND / (2 * caller.rate);
                let others = able.iter().filter(|number| **number != first).copied();
                let other = others.clone().nth(any % others.count().max(1));
                if now < leaves_at { Some(first) } else { other }
            }
        };
        wanted.filter(|wanted| able.contains(wanted)).or(able.get(any).copied())
    }

    fn ask(&self, number: usize, caller: &CallerPlan, asked: Asked) {
        let replica = self.replicas[number].as_ref().expect("it accepts requests");
        let (now, time) = (self.now(), replica.clock.now());
        let deadline = now + caller.patience;
        let sent = Sent {
            process: replica.process,
            limit: caller.limit,
            asked,
            at: now,
            time: time.micros(),
            deadline: deadline + LATENESS,
        };
        self.ledger().sent(&sent);
        let key = format!("k{}", caller.limit);
        if self.world.is_stopped(replica.process) {
            self.ask_later(replica, key, sent);
            return;
        }
        self.ledger().asks(caller.limit, time.seconds(), asked);
        let until = replica.edges.timer.now() + std::time::Duration::from_micros(caller.patience);
        match replica.limiter.try_decide(&request(&key, asked), time, Some(until), None) {
            Ok(Decided::Wait(decision)) => {
                let store = replica.store.clone();
                let (ledger, world) = (self.ledger.clone(), self.world.clone());
                replica.edges.start(async move {
                    let stops = world.stops(sent.process);
                    let answer = decision.await.decided;
                    let is_late = world.stops(sent.process) != stops;
                    answered(&ledger, &world, &sent, &answer, store.take_failed().as_ref(), is_late);
                });
            }
            Ok(Decided::Answer(answer)) => {
                answered(&self.ledger, &self.world, &sent, &Ok(answer), None, false);
            }
            Err(error) => answered(&self.ledger, &self.world, &sent, &Err(error), None, false),
        }
    }

    /// A request to a stopped process, which reads it when it continues.
    fn ask_later(&self, replica: &Replica, key: String, sent: Sent) {
        let (limiter, store, clock) = (replica.limiter.clone(), replica.store.clone(), replica.clock.clone());
        let (ledger, world) = (self.ledger.clone(), self.world.clone());
        replica.edges.start(async move {
            let now = clock.now();
            let sent = Sent { time: now.micros(), ..sent };
            ledger.lock().expect("nothing panics with it").asks(sent.limit, now.seconds(), sent.asked);
            // What failed before was for quotas.
            store.take_failed();
            let answer = match limiter.try_decide(&request(&key, sent.asked), now, None, None) {
                Ok(Decided::Answer(answer)) => Ok(answer),
                Ok(Decided::Wait(waiting)) => waiting.await.decided,
                Err(error) => Err(error),
            };
            answered(&ledger, &world, &sent, &answer, store.take_failed().as_ref(), true);
        });
    }

    fn second(&mut self) {
        self.world.at(self.now() + SECOND, Event::Second);
        for number in 0..self.replicas.len() {
            let Some(replica) = &self.replicas[number] else { continue };
            if replica.is_closed.load(Relaxed) {
                let (process, has_dropped) = (replica.process, replica.has_dropped_queue.load(Relaxed));
                self.hold(Invariant::Released, !has_dropped, || {
                    format!("{process} ended before its settles and ends were taken")
                });
                self.kill(number);
            }
        }
        self.redis.catch_up(self.now());
        let shortened = self.redis.take_shortened();
        // By a clock that was set back, the same expiry is earlier.
        let is_lengthened = shortened.is_empty() || self.redis.behind > 0;
        self.hold(Invariant::Expiry, is_lengthened, || {
            format!("expiries were brought forward: {shortened:?}")
        });
        self.check_second();
    }

    /// Notes the counters that have expired, and those that were evicted.
    fn note_lost(&mut self) {
        let now = self.now();
        let (second, is_clean) = ((self.plan.began + now) / SECOND, self.is_clean);
        let [expired, evicted] = self.redis.take_lost();
        if expired.is_empty() && evicted.is_empty() {
            return;
        }
        let mut ledger = self.ledger.lock().expect("nothing panics with it");
        for (name, hits) in expired {
            self.envoys.expired(&name, hits);
            if let Some(counter) = Counter::named(&name, &self.limits) {
                ledger.expired(counter, hits, second, is_clean, now);
            }
        }
        for (name, hits) in evicted {
            self.world.tell(&"redis", format_args!("evicts {name} with {hits}"));
            match Counter::named(&name, &self.limits) {
                Some(counter) => ledger.lost(counter, hits),
                None => ledger.lost_state(None),
            }
            self.streams().evicted(&name, hits);
        }
    }

    pub fn kill(&mut self, number: usize) {
        let Some(replica) = self.replicas[number].take() else { return };
        let process = replica.process;
        self.world.tell(&process, format_args!("ends"));
        self.ledger().is_shared = false;
        if !replica.is_closed.load(Relaxed) || replica.limiter.queued_closings() > 0 {
            let (now, conditions) = (self.now(), self.conditions());
            self.streams().killed(process, now, conditions);
        }
        drop(replica);
        self.world.kill(process);
        self.ledger().ended(process);
    }

    fn outcome(self) -> Outcome {
        let now = self.now();
        let ledger = self.ledger();
        let violation = ledger.checks.violation.as_ref();
        let subject = violation.and_then(|violation| match (violation.limit, violation.invariant) {
            (Some(limit), _) => Some(format!("k{limit}")),
            (None, Invariant::Recovery) => Some("failure policy".to_owned()),
            // The name of a budget.
            (None, _) if violation.what.starts_with("sim_h") => Some(violation.what[4..6].to_owned()),
            (None, _) => None,
        });
        let (demanded, unused) = ledger.unused(self.plan.began + self.plan.traffic);
        let end = violation.map_or(now, |violation| violation.at);
        let (hash, lines) =
            self.world.trace(|trace, _| (trace.hash(), trace.about(subject.as_deref(), end, STORY)));
        Outcome {
            hash,
            violation: ledger.checks.violation.clone(),
            checks: ledger.checks.clone(),
            happened: self.happened,
            answers: ledger.answers,
            failures: ledger.failures,
            by_kind: ledger.by_kind,
            simulated: now,
            demanded,
            unused,
            lines,
        }
    }
}

/// The lines of a story.
const STORY: usize = 150;

/// Timers fire up to a millisecond late, and a late reply is read in the next tick.
const LATENESS: Micros = 3_000;

fn answered(
    ledger: &Mutex<Ledger>,
    world: &World,
    sent: &Sent,
    answer: &Result<limiter::Answer, limiter::RequestError>,
    failed: Option<&StoreError>,
    is_late: bool,
) {
    world.trace(|trace, now| {
        trace.add(now);
        trace.add(sent.at);
        trace.add(u64::from(sent.process.0) << 32 | sent.limit as u64);
        let code = match answer {
            Ok(answer) => answer.code as u64 + 1,
            Err(_) => 0,
        };
        trace.add(code << 1 | u64::from(failed.is_some()));
        let remaining = answer.as_ref().ok().and_then(|answer| answer.statuses.first());
        trace.add(remaining.map_or(0, |status| status.limit_remaining));
        if trace.is_told() {
            let asked = sent.asked;
            let text = match answer {
                Ok(answer) => format!("{:?}, {} left", answer.code, answer.statuses[0].limit_remaining),
                Err(error) => error.to_string(),
            };
            let failed =
                failed.as_ref().map(|error| format!(" (failure policy: {error})")).unwrap_or_default();
            trace.tell(now, &sent.process, format_args!("k{} {asked:?}: {text}{failed}", sent.limit));
        }
    });
    let mut ledger = ledger.lock().expect("nothing panics with it");
    if ledger.is_redis_calm {
        let is_own = |error: &StoreError| is_late && error.reason == FailureReason::WorkerLate;
        ledger.checks.hold(Invariant::Calm, failed.is_none_or(is_own), world.now(), || {
            format!("the failure policy decided, though Redis was never late: {failed:?}")
        });
    }
    ledger.answered(sent, answer, failed.is_some(), is_late, world.now());
}

pub fn request(key: &str, asked: Asked) -> Request<'_> {
    let (hits, is_refund) = match asked {
        Asked::Take(hits) => (hits, false),
        Asked::Refund(hits) => (hits, true),
    };
    let descriptor = Descriptor {
        entries: std::iter::once(Entry { key, value: "v" }).collect(),
        hits_addend: Some(hits),
        is_negative_hits: is_refund,
        ..Descriptor::default()
    };
    Request { domain: "sim", descriptors: std::iter::once(descriptor).collect(), ..Request::default() }
}

impl Simulation {
    /// As [`hold`](Self::hold), of a window that may have ended: then a violation is told up to its end.
    pub fn hold_of(
        &self,
        counter: Counter,
        invariant: Invariant,
        holds: bool,
        what: impl FnOnce() -> String,
    ) {
        let end = (counter.end() * SECOND).saturating_sub(self.plan.began);
        self.ledger().checks.hold(invariant, holds, self.now().min(end), what);
    }

    pub fn hold(&self, invariant: Invariant, holds: bool, what: impl FnOnce() -> String) {
        let now = self.now();
        self.ledger().checks.hold(invariant, holds, now, what);
    }
}
