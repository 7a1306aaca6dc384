//! Envoys that are assigned quotas: as Envoy 1.40 does it, with messages that take time, streams that break, and Envoys
//! that stop. What they admit is compared with what Redis has counted.

use std::{
    collections::BTreeMap,
    fmt,
    task::{Context, Poll, Waker},
};

use limit::Unit;
use rlqs::{Action, BucketAction, Quotas, Strategy, Stream};
use serde::{Deserialize, Serialize};

use crate::{
    checks::Invariant,
    named,
    plan::{Plan, SECOND, Scenario},
    random::Random,
    simulation::Simulation,
    world::{Event, Micros, Process},
};

/// Envoys act at multiples of this.
const STEP: Micros = 5_000;

/// How often an Envoy reports.
const REPORT: Micros = 5 * SECOND;

/// The longest time between a replica's taking of hits and its assignment of them.
const LATE: Micros = 100_000;

const TTL_SECONDS: u32 = 15;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QuotasPlan {
    pub limits: Vec<QuotaLimitPlan>,
    pub envoys: usize,
    /// The time that a message takes, at most.
    pub delay: Micros,
    pub faults: Vec<FaultPlan>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct QuotaLimitPlan {
    #[serde(with = "named::unit")]
    pub unit: Unit,
    pub limit: u64,
    /// Requests a second, of all Envoys.
    pub rate: u64,
    /// All come to one Envoy, and every few seconds to another.
    pub moves: bool,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct FaultPlan {
    pub at: Micros,
    pub envoy: usize,
    pub fault: Fault,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Fault {
    /// The stream breaks.
    Break,
    /// The process stops for as long, and reads what has come when it continues.
    Stop(Micros),
    /// The process ends, and another one begins without any bucket.
    Restart,
}

/// Nothing fails in a third of the plans: then limits are used.
pub fn is_calm(seed: u64) -> bool {
    seed.is_multiple_of(3)
}

impl QuotasPlan {
    /// Draws the Envoys of the scenario `quota`.
    pub fn draw(seed: u64, scenario: Scenario, until: Micros) -> Option<Self> {
        if scenario != Scenario::Quota {
            return None;
        }
        let random = &mut Random::new(seed ^ 0x0e17_0151);
        let limit = |random: &mut Random| {
            let unit = random.choose(&[Unit::Second, Unit::Second, Unit::Minute]);
            let limit = match unit {
                Unit::Second => random.choose(&[5, 40, 200]),
                _ => random.choose(&[20, 300, 2000]),
            };
            let demand = random.choose(&[0.5, 1.2, 2.0, 3.0]);
            let window = if unit == Unit::Second { 1.0 } else { 10.0 };
            let rate = (limit as f64 * demand / window).clamp(2.0, 400.0) as u64;
            QuotaLimitPlan { unit, limit, rate, moves: random.one_in(3) }
        };
        let limits = (0..random.between(1, 3)).map(|_| limit(random)).collect();
        let envoys = random.between(1, 5) as usize;
        let fault = |random: &mut Random| FaultPlan {
            at: random.between(SECOND, until),
            envoy: random.below(envoys as u64) as usize,
            fault: match random.below(4) {
                0 => Fault::Stop(random.between(10, 9_000) * 1000),
                1 => Fault::Restart,
                _ => Fault::Break,
            },
        };
        let faults = (0..random.below(8)).map(|_| fault(random)).collect();
        let faults = if is_calm(seed) { Vec::new() } else { faults };
        Some(Self { limits, envoys, delay: random.choose(&[500, 5_000, 200_000]), faults })
    }

    /// The rules of the limits.
    pub fn rules_text(&self) -> String {
        let rule = |(at, one): (usize, &QuotaLimitPlan)| {
            let (unit, limit) = (one.unit.name(), one.limit);
            format!("  - key: q{at}\n    rate_limit: {{unit: {unit}, requests_per_unit: {limit}}}\n")
        };
        self.limits.iter().enumerate().map(rule).collect()
    }
}

pub fn settings() -> rlqs::Settings {
    rlqs::Settings {
        ttl_seconds: TTL_SECONDS,
        max_buckets: 1000,
        max_buckets_of_stream: 100,
        max_bytes: 16 << 20,
    }
}

/// What an Envoy knows of a bucket.
#[derive(Default)]
struct Bucket {
    strategy: Option<Strategy>,
    tokens: u64,
    expires: Micros,
    allowed: u64,
    denied: u64,
}

/// What comes to an Envoy, and when.
type Coming = Vec<(Micros, BucketAction)>;

struct Connection {
    number: usize,
    process: Process,
    stream: Stream,
    /// Reports on their way: the limit, and what was allowed and denied.
    going: Vec<(Micros, usize, u64, u64)>,
}

#[derive(Default)]
struct Envoy {
    buckets: BTreeMap<usize, Bucket>,
    connection: Option<Connection>,
    coming: Coming,
    /// The first report has been tried.
    has_begun: bool,
    next_report: Micros,
    stopped_until: Micros,
}

/// All Envoys, and what is known of the limits.
#[derive(Default)]
pub struct Envoys {
    each: Vec<Envoy>,
    /// Hits admitted, by limit and start of the window.
    admitted: BTreeMap<(usize, u64), u64>,
    /// What Envoys had when the window began, or was on the way.
    held: BTreeMap<(usize, u64), u64>,
    /// The last count of each counter.
    counted: BTreeMap<String, u64>,
    last_step: Micros,
}

impl fmt::Debug for Envoys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} Envoys", self.each.len())
    }
}

impl Envoys {
    /// Notes the last count of a counter.
    pub fn expired(&mut self, name: &str, hits: u64) {
        if name.starts_with("sim_q") {
            self.counted.insert(name.to_owned(), hits);
        }
    }
}

impl Envoy {
    /// Takes actions that have arrived.
    fn receive(&mut self, now: Micros) {
        let (arrived, coming): (Coming, Coming) =
            std::mem::take(&mut self.coming).into_iter().partition(|(at, _)| *at <= now);
        self.coming = coming;
        for (_, BucketAction { bucket, action }) in arrived {
            let limit = limit_of(&bucket.entries[0].0);
            let Some(known) = self.buckets.get_mut(&limit) else { continue };
            match action {
                Action::Abandon => drop(self.buckets.remove(&limit)),
                Action::Assign { strategy, ttl_seconds } => {
                    let has_tokens = matches!(known.strategy, Some(Strategy::Tokens { .. }));
                    if let Strategy::Tokens { max, is_new, .. } = strategy
                        && (is_new || !has_tokens)
                    {
                        known.tokens = u64::from(max);
                    }
                    known.strategy = Some(strategy);
                    known.expires = now + u64::from(ttl_seconds) * SECOND;
                }
            }
        }
        for bucket in self.buckets.values_mut() {
            if now >= bucket.expires {
                bucket.strategy = None;
            }
        }
    }

    /// Decides a request; returns whether it passes, and whether its bucket is new.
    fn decide(&mut self, limit: usize) -> (bool, bool) {
        let is_new = !self.buckets.contains_key(&limit);
        let bucket = self.buckets.entry(limit).or_default();
        let passes = match bucket.strategy {
            Some(Strategy::Tokens { .. }) if bucket.tokens > 0 => {
                bucket.tokens -= 1;
                true
            }
            Some(Strategy::AllowAll) => true,
            _ => false,
        };
        *(if passes { &mut bucket.allowed } else { &mut bucket.denied }) += 1;
        (passes, is_new)
    }

    /// Sends what these buckets have used, if there is a stream.
    fn send(&mut self, limits: &[usize], at: Micros) {
        for limit in limits {
            let Some(bucket) = self.buckets.get_mut(limit) else { continue };
            // Without a stream the report is lost, and with it what was used.
            let used = (std::mem::take(&mut bucket.allowed), std::mem::take(&mut bucket.denied));
            if let Some(connection) = &mut self.connection {
                connection.going.push((at, *limit, used.0, used.1));
            }
        }
    }
}

fn tokens_of(action: &BucketAction) -> Option<u64> {
    match action.action {
        Action::Assign { strategy: Strategy::Tokens { max, .. }, .. } => Some(u64::from(max)),
        _ => None,
    }
}

fn limit_of(key: &str) -> usize {
    key.trim_start_matches('q').parse().expect("the key of a limit of Envoys")
}

impl Simulation {
    pub fn begin_envoys(&mut self, at: Micros) {
        let Some(plan) = &self.plan.quotas else { return };
        let envoy = |number: usize| Envoy {
            next_report: at + REPORT * number as u64 / plan.envoys as u64,
            ..Envoy::default()
        };
        self.envoys.each = (0..plan.envoys).map(envoy).collect();
        self.envoys.last_step = at;
        self.world.at(at, Event::Envoys);
    }

    /// Lets all Envoys act.
    pub fn step_envoys(&mut self) {
        let Some(plan) = self.plan.quotas.clone() else { return };
        let (now, last) = (self.now(), self.envoys.last_step);
        self.world.at(now + STEP, Event::Envoys);
        self.begin_windows(&plan, last, now);
        for fault in plan.faults.iter().filter(|fault| (last..now).contains(&fault.at)) {
            self.world.tell(&format_args!("envoy{}", fault.envoy), format_args!("{:?}", fault.fault));
            let envoy = &mut self.envoys.each[fault.envoy];
            match fault.fault {
                Fault::Break => envoy.connection = None,
                Fault::Stop(lasts) => envoy.stopped_until = now + lasts,
                Fault::Restart => *envoy = Envoy { next_report: now + REPORT, ..Envoy::default() },
            }
        }
        for number in 0..plan.envoys {
            self.exchange(number, plan.delay);
            if self.envoys.each[number].stopped_until > now {
                continue;
            }
            self.envoys.each[number].receive(now);
            for limit in 0..plan.limits.len() {
                for _ in 0..self.arrivals(&plan, number, limit) {
                    self.request_of_envoy(number, limit, plan.delay);
                }
            }
            if now >= self.envoys.each[number].next_report {
                self.envoys.each[number].next_report = now + REPORT;
                self.report_all(number, plan.delay);
            }
        }
        self.envoys.last_step = now;
    }

    /// Notes what Envoys have when a window begins.
    fn begin_windows(&mut self, plan: &QuotasPlan, last: Micros, now: Micros) {
        for (limit, planned) in plan.limits.iter().enumerate() {
            let window = |at: Micros| (self.plan.began + at) / SECOND / planned.unit.seconds();
            if window(last) == window(now) && last != now {
                continue;
            }
            let of_limit = |action: &BucketAction| limit_of(&action.bucket.entries[0].0) == limit;
            let held = self.envoys.each.iter().map(|envoy| {
                let has = envoy.buckets.get(&limit).map_or(0, |bucket| bucket.tokens);
                let comes = envoy.coming.iter().filter(|(_, action)| of_limit(action));
                has + comes.filter_map(|(_, action)| tokens_of(action)).sum::<u64>()
            });
            let held = held.sum();
            self.envoys.held.insert((limit, window(now)), held);
        }
    }

    fn arrivals(&mut self, plan: &QuotasPlan, envoy: usize, limit: usize) -> u64 {
        let (now, planned) = (self.now(), plan.limits[limit]);
        if now >= self.plan.traffic {
            return 0;
        }
        let share = match planned.moves {
            true if (now / (7 * SECOND)) as usize % plan.envoys != envoy => return 0,
            true => planned.rate as f64,
            false => planned.rate as f64 / plan.envoys as f64,
        };
        let mean = share * STEP as f64 / SECOND as f64;
        let more = self.chance.below(1_000_000) as f64 / 1e6 < mean.fract();
        mean as u64 + u64::from(more)
    }

    fn request_of_envoy(&mut self, number: usize, limit: usize, delay: Micros) {
        let (now, seconds) = (self.now(), self.quotas_plan().limits[limit].unit.seconds());
        let (passes, is_new) = self.envoys.each[number].decide(limit);
        if passes {
            let window = (self.plan.began + now) / SECOND / seconds;
            *self.envoys.admitted.entry((limit, window)).or_default() += 1;
        }
        if is_new {
            // The first bucket opens the stream.
            if !std::mem::replace(&mut self.envoys.each[number].has_begun, true) {
                self.connect_envoy(number);
            }
            let at = now + self.chance.below(delay) + 1;
            self.envoys.each[number].send(&[limit], at);
        }
    }

    fn report_all(&mut self, number: usize, delay: Micros) {
        let at = self.now() + self.chance.below(delay) + 1;
        let limits: Vec<usize> = self.envoys.each[number].buckets.keys().copied().collect();
        if !limits.is_empty() && self.envoys.each[number].connection.is_none() {
            self.connect_envoy(number);
        }
        self.envoys.each[number].send(&limits, at);
    }

    /// Opens a stream to any replica that accepts it.
    fn connect_envoy(&mut self, number: usize) {
        let accepts =
            |replica: &Option<_>| replica.as_ref().is_some_and(crate::replica::Replica::accepts_streams);
        let able: Vec<usize> = (0..self.replicas.len()).filter(|at| accepts(&self.replicas[*at])).collect();
        let chosen = self.chance.below(able.len() as u64) as usize;
        let Some(replica) = able.get(chosen).and_then(|at| self.replicas[*at].as_ref()) else { return };
        let stream = Quotas::open(&replica.quotas, "sim");
        let connection =
            Connection { number: able[chosen], process: replica.process, stream, going: Vec::new() };
        self.envoys.each[number].connection = Some(connection);
    }

    /// Takes reports to the replica, and actions from it.
    fn exchange(&mut self, number: usize, delay: Micros) {
        let (now, mut late, mut assigned) = (self.now(), self.chance.below(delay) + 1, Vec::new());
        let Some(mut connection) = self.envoys.each[number].connection.take() else { return };
        let replica = self.replicas[connection.number].as_ref();
        if replica.is_none_or(|replica| replica.process != connection.process) {
            return;
        }
        if !self.world.is_stopped(connection.process) {
            let (arrived, going): (Vec<_>, Vec<_>) =
                std::mem::take(&mut connection.going).into_iter().partition(|(at, ..)| *at <= now);
            connection.going = going;
            for (_, limit, allowed, denied) in arrived {
                let key = format!("q{limit}");
                let reported = connection.stream.report(&[(&key, "v")], allowed, denied);
                assert_eq!(reported, Ok(()), "there are few buckets");
                let mut ledger = self.ledger();
                let codes = ledger.codes.entry(connection.process).or_default();
                *codes = [codes[0] + allowed, codes[1] + denied, codes[2]];
            }
            // The order of a stream.
            let envoy = &mut self.envoys.each[number];
            let last = envoy.coming.last().map_or(0, |(at, _)| *at);
            late = (now + late).max(last);
            let mut context = Context::from_waker(Waker::noop());
            while let Poll::Ready(actions) = connection.stream.poll_actions(10, &mut context) {
                for action in actions {
                    self.world.trace(|trace, _| {
                        trace.tell(
                            now,
                            &connection.process,
                            format_args!("to envoy{number}: {:?}", action.action),
                        );
                    });
                    assigned.push(action.clone());
                    envoy.coming.push((late, action));
                }
            }
        }
        self.envoys.each[number].connection = Some(connection);
        for action in assigned {
            self.note_late(&action);
        }
    }

    /// When a longer window has just begun, a replica may have taken hits in the one before: Envoys have them too.
    fn note_late(&mut self, action: &BucketAction) {
        let limit = limit_of(&action.bucket.entries[0].0);
        let (at, unit) = (self.plan.began + self.now(), self.quotas_plan().limits[limit].unit.seconds());
        if unit > 1 && at % (unit * SECOND) < LATE {
            let held = self.envoys.held.entry((limit, at / SECOND / unit)).or_default();
            *held += tokens_of(action).unwrap_or(0);
        }
    }

    fn quotas_plan(&self) -> &QuotasPlan {
        self.plan.quotas.as_ref().expect("there are Envoys")
    }

    /// What Envoys have admitted was counted before, each hit once.
    pub fn check_envoys(&mut self) {
        let Some(plan) = self.plan.quotas.clone() else { return };
        let now = self.now();
        if !self.redis.are_up(now) {
            return;
        }
        for stored in self.redis.counters(now) {
            if stored.name.starts_with("sim_q") {
                self.envoys.counted.insert(stored.name, u64::try_from(stored.value).unwrap_or(0));
            }
        }
        for (limit, planned) in plan.limits.iter().enumerate() {
            let prefix = format!("sim_q{limit}_v_");
            let counted = self.envoys.counted.iter().filter(|(name, _)| name.starts_with(&prefix));
            let counted: u64 = counted.map(|(_, count)| (*count).min(planned.limit)).sum();
            let of_limit = |(at, _): &(&(usize, u64), &u64)| at.0 == limit;
            let admitted: u64 = self.envoys.admitted.iter().filter(of_limit).map(|(_, hits)| hits).sum();
            self.hold(Invariant::Quota, admitted <= counted, || {
                format!("Envoys have admitted {admitted} of q{limit}, and {counted} were counted")
            });
            if self.plan.has_skew() {
                continue;
            }
            for ((_, window), hits) in self.envoys.admitted.iter().filter(of_limit) {
                let held = self.envoys.held.get(&(limit, *window)).copied().unwrap_or(0);
                self.hold(Invariant::Quota, *hits <= planned.limit + held, || {
                    format!("window {window} of q{limit} admitted {hits}; Envoys had {held} when it began")
                });
            }
        }
    }
}

impl Simulation {
    /// Without faults, Envoys use most of what they demand: less while traffic moves, since they report every five seconds.
    pub fn check_unused_by_envoys(&self) {
        let Some(plan) = self.plan.quotas.as_ref().filter(|plan| plan.faults.is_empty()) else { return };
        // The first reports take so long.
        let (first, last) = (self.plan.began / SECOND + 12, (self.plan.began + self.plan.traffic) / SECOND);
        if !self.plan.is_clean() {
            return;
        }
        for (limit, planned) in plan.limits.iter().enumerate() {
            if planned.unit != Unit::Second || planned.rate < planned.limit * 6 / 5 {
                continue;
            }
            let window = |second| self.envoys.admitted.get(&(limit, second)).copied().unwrap_or(0);
            let admitted: u64 = (first..last).map(window).sum();
            let least = planned.limit * (last - first) * if planned.moves { 45 } else { 80 } / 100;
            self.hold(Invariant::Unused, admitted >= least, || {
                let seconds = last - first;
                format!(
                    "Envoys admitted {admitted} of q{limit} in {seconds} s, at least {least} were demanded"
                )
            });
        }
    }
}

/// The rules of a plan's Envoys.
pub fn rules_text(plan: &Plan) -> String {
    plan.quotas.as_ref().map(QuotasPlan::rules_text).unwrap_or_default()
}
