//! Replicas that share a counter, and Envoys as they are: what they admit, beside the limit.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "rates and parts of a simulation"
)]

use std::{collections::HashMap, time::Duration};

use clock::Time;
use limiter::QuotaLimit;

/// A minute begins.
const START: u64 = 1_800_000_000;

use crate::{
    division::{Change, Division, Now, Turn},
    grant::Grant,
};

/// An Envoy's bucket: denies without an assignment.
#[derive(Default)]
struct Envoy {
    is_known: bool,
    tokens: Option<(Grant, u64)>,
    expires: u64,
    allowed: u64,
    denied: u64,
    next_report: u64,
    carry: f64,
    replica: usize,
    stream: u64,
    is_stopped: bool,
    admitted: u64,
}

impl Envoy {
    fn receive(&mut self, change: Change, now: u64) {
        // An Envoy that continues runs the timers that are due before it reads.
        if now >= self.expires {
            self.tokens = None;
        }
        self.expires = now + 15_000;
        match change {
            Change::Grant(grant) => self.tokens = Some((grant, grant.requests)),
            // An Envoy whose assignment has expired takes it for a new one.
            Change::Renew(grant) => self.tokens = self.tokens.or(Some((grant, grant.requests))),
            Change::Deny => self.tokens = None,
            Change::Allow => unreachable!("it is divided"),
            Change::Abandon => {
                (self.is_known, self.tokens, self.allowed, self.denied) = (false, None, 0, 0);
            }
        }
    }
}

struct World {
    limit: u64,
    seconds: u64,
    divisions: Vec<Division>,
    envoys: Vec<Envoy>,
    counters: HashMap<u64, u64>,
    /// In milliseconds.
    now: u64,
    delay: u64,
    on_the_way: Vec<(u64, usize, Change)>,
    admitted: HashMap<u64, u64>,
    /// What Envoys had when a window began, or was on the way to them.
    held: HashMap<u64, u64>,
    messages: u64,
    random: u64,
    next_stream: u64,
}

impl World {
    fn new(limit: u64, seconds: u64, replicas: usize, envoys: usize) -> Self {
        let mut world = Self {
            limit,
            seconds,
            divisions: (0..replicas).map(|_| Division::default()).collect(),
            envoys: (0..envoys).map(|_| Envoy::default()).collect(),
            counters: HashMap::new(),
            now: 0,
            delay: 2,
            on_the_way: Vec::new(),
            admitted: HashMap::new(),
            held: HashMap::new(),
            messages: 0,
            random: 7,
            next_stream: 0,
        };
        for index in 0..envoys {
            world.connect(index, index % replicas);
            world.envoys[index].next_report = 1 + 1_700 * u64::try_from(index).unwrap() % 5_000;
        }
        world
    }

    fn number(&mut self, below: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn connect(&mut self, index: usize, replica: usize) {
        let (old, stream) = (self.envoys[index].replica, self.envoys[index].stream);
        self.divisions[old].remove(stream);
        self.next_stream += 1;
        (self.envoys[index].replica, self.envoys[index].stream) = (replica, self.next_stream);
    }

    fn window(&self) -> u64 {
        (START + self.now / 1000) / self.seconds
    }

    fn at(&self) -> Now {
        let time = Time::from_micros(START * 1_000_000 + self.now * 1000);
        Now { time, elapsed: Duration::from_millis(self.now + 1000) }
    }

    fn rule(&self) -> QuotaLimit {
        let window_end = Some(Time::from_seconds((self.window() + 1) * self.seconds));
        QuotaLimit { requests: self.limit, seconds: self.seconds, window_end }
    }

    fn turn(&mut self, replica: usize) {
        let (limit, now) = (self.rule(), self.at());
        match self.divisions[replica].turn(limit, now) {
            Turn::Take(hits, at) => {
                let counter = self.counters.entry(at.seconds() / self.seconds).or_default();
                let taken = hits.min(self.limit.saturating_sub(*counter));
                *counter += taken;
                self.divisions[replica].taken(hits, at, taken, now);
            }
            Turn::GiveBack(hits) => *self.counters.get_mut(&self.window()).unwrap() -= hits,
            Turn::Nothing => {}
        }
        for (stream, change) in self.divisions[replica].assign(limit, now) {
            let to = self.envoys.iter().position(|envoy| envoy.stream == stream);
            self.messages += 1;
            if let Some(to) = to {
                self.on_the_way.push((self.now + self.delay, to, change));
            }
        }
    }

    fn report(&mut self, index: usize) {
        let envoy = &mut self.envoys[index];
        let (replica, stream) = (envoy.replica, envoy.stream);
        let (allowed, denied) = (std::mem::take(&mut envoy.allowed), std::mem::take(&mut envoy.denied));
        self.messages += 1;
        let now = self.at();
        self.divisions[replica].report(stream, allowed, denied, now);
        self.turn(replica);
    }

    /// A millisecond, in which requests come at these rates.
    fn step(&mut self, rates: &[u64]) {
        let window = self.window();
        self.now += 1;
        if self.window() != window {
            let held = self.envoys.iter().filter_map(|envoy| envoy.tokens).map(|(_, left)| left);
            let coming = self.on_the_way.iter().map(|(_, _, change)| match change {
                Change::Grant(grant) => grant.requests,
                _ => 0,
            });
            let held = held.chain(coming).sum();
            self.held.insert(self.window(), held);
        }
        let (arrived, rest) = std::mem::take(&mut self.on_the_way)
            .into_iter()
            .partition(|(at, to, _)| *at <= self.now && !self.envoys[*to].is_stopped);
        self.on_the_way = rest;
        let arrived: Vec<(u64, usize, Change)> = arrived;
        for (_, to, change) in arrived {
            self.envoys[to].receive(change, self.now);
        }
        if self.now.is_multiple_of(100) {
            // Whichever is first.
            let (replicas, first) = (self.divisions.len(), self.random as usize >> 40);
            (0..replicas).for_each(|replica| self.turn((first + replica) % replicas));
        }
        for (index, rate) in rates.iter().enumerate() {
            if self.envoys[index].is_stopped {
                continue;
            }
            // Between half and one and a half of the mean.
            let noise = 500 + self.number(1000);
            self.envoys[index].carry += (rate * noise) as f64 / 1e6;
            while self.envoys[index].carry >= 1.0 {
                self.envoys[index].carry -= 1.0;
                self.request(index);
            }
            let envoy = &mut self.envoys[index];
            if self.now >= envoy.expires {
                envoy.tokens = None;
            }
            if self.now >= envoy.next_report {
                envoy.next_report = self.now + 5_000;
                if envoy.is_known {
                    self.report(index);
                }
            }
        }
    }

    fn request(&mut self, index: usize) {
        let (window, envoy) = (self.window(), &mut self.envoys[index]);
        match &mut envoy.tokens {
            Some((_, left)) if *left > 0 => {
                *left -= 1;
                envoy.allowed += 1;
                envoy.admitted += 1;
                *self.admitted.entry(window).or_default() += 1;
            }
            _ => envoy.denied += 1,
        }
        if !std::mem::replace(&mut self.envoys[index].is_known, true) {
            self.report(index);
        }
    }

    fn run(&mut self, seconds: u64, rates: &[u64]) -> u64 {
        let before: u64 = self.admitted.values().sum();
        (0..seconds * 1000).for_each(|_| self.step(rates));
        self.admitted.values().sum::<u64>() - before
    }

    /// Every hit that was admitted was taken from the counter, and a window admits no more than the limit and what Envoys
    /// had when it began.
    fn check(&self) {
        assert!(self.counters.values().all(|count| *count <= self.limit));
        let (admitted, taken) = (self.admitted.values().sum::<u64>(), self.counters.values().sum::<u64>());
        assert!(admitted <= taken, "{admitted} of {taken}");
        for (window, admitted) in &self.admitted {
            let held = self.held.get(window).copied().unwrap_or(0);
            assert!(*admitted <= self.limit + held, "{admitted} in {window}, and {held} were held");
        }
    }
}

/// The part of the limit that was not used in so many seconds.
fn unused(world: &World, seconds: u64, admitted: u64) -> f64 {
    1.0 - (admitted * world.seconds) as f64 / (world.limit * seconds) as f64
}

/// Limits, their seconds, replicas and Envoys.
const SETTINGS: [(u64, u64, usize, usize); 7] = [
    (10_000, 10, 2, 3),
    (1000, 1, 1, 3),
    (1000, 1, 2, 3),
    (6000, 60, 2, 3),
    (60_000, 60, 2, 3),
    (100, 1, 2, 8),
    (1000, 1, 4, 40),
];

#[test]
fn a_demanded_limit_is_used_and_shared() {
    for (limit, seconds, replicas, envoys) in SETTINGS {
        let mut world = World::new(limit, seconds, replicas, envoys);
        let rates = vec![(limit / seconds * 3 / 2).div_ceil(envoys as u64); envoys];
        world.run(20, &rates);
        let (messages, warm) = (world.messages, seconds.max(20));
        world.envoys.iter_mut().for_each(|envoy| envoy.admitted = 0);
        let admitted = world.run(warm, &rates);
        let unused = unused(&world, warm, admitted);
        assert!(unused < 0.06, "{limit} a {seconds} s: {unused} is unused");
        let each = world.envoys.iter().map(|envoy| envoy.admitted);
        let (least, most) = (each.clone().min().unwrap(), each.max().unwrap());
        assert!(most < if replicas > 2 { 5 } else { 2 } * least, "{limit} a {seconds} s: {least} to {most}");
        let messages = (world.messages - messages) as f64 / admitted as f64;
        assert!(limit / seconds < 1000 || envoys > 3 || messages < 0.01, "{messages} a hit");
        world.check();
    }
}

/// One and a half times the limit, in requests a second: all of it for one Envoy, or all but a fifth.
fn uneven(world: &World, one: usize, is_all: bool) -> Vec<u64> {
    let (all, others) = (world.limit / world.seconds * 3 / 2, world.envoys.len() as u64 - 1);
    let part = if is_all { 0 } else { all / 5 / others };
    let mut rates = vec![part; world.envoys.len()];
    rates[one] = all - part * others;
    rates
}

#[test]
fn a_limit_is_used_by_envoys_that_demand_more_and_less() {
    for (limit, seconds, replicas, envoys) in SETTINGS {
        let mut world = World::new(limit, seconds, replicas, envoys);
        let rates = uneven(&world, 1, false);
        world.run(20, &rates);
        let time = seconds.max(20);
        let admitted = world.run(time, &rates);
        let unused = unused(&world, time, admitted);
        assert!(unused < 0.1, "{limit} a {seconds} s: {unused} is unused");
        world.check();
    }
}

#[test]
fn a_limit_follows_traffic_that_moves() {
    for (limit, seconds, replicas, envoys) in SETTINGS {
        for is_all in [true, false] {
            let mut world = World::new(limit, seconds, replicas, envoys);
            let (mut admitted, turns) = (0, 30);
            for turn in 0..turns {
                let rates = uneven(&world, turn % envoys, is_all);
                // Not at the start of a window.
                (0..371).for_each(|_| world.step(&rates));
                admitted += world.run(10, &rates);
            }
            let unused = unused(&world, 10 * turns as u64, admitted);
            let most = if envoys > 3 { 0.42 } else { 0.33 };
            assert!(unused < most, "{limit} a {seconds} s, {envoys} Envoys, {is_all}: {unused} is unused");
            world.check();
        }
    }
}

/// Envoys and replicas come and go, messages are late, the limit changes.
#[test]
fn nothing_passes_that_is_not_paid_for() {
    for seed in 0..24 {
        let (limit, seconds, replicas, envoys) = SETTINGS[seed % 6];
        let mut world = World::new(limit, seconds, replicas, envoys);
        world.random = seed as u64 * 7919 + 1;
        for _ in 0..60 {
            let (index, rate) = (world.number(envoys as u64) as usize, limit / seconds);
            match world.number(8) {
                0 | 6 => world.envoys[index].is_stopped = true,
                1 => world.envoys.iter_mut().for_each(|envoy| envoy.is_stopped = false),
                3 => {
                    let replica = world.number(replicas as u64) as usize;
                    world.connect(index, replica);
                }
                4 => {
                    let replica = world.number(replicas as u64) as usize;
                    world.divisions[replica] = Division::default();
                    let lost: Vec<usize> =
                        (0..envoys).filter(|envoy| world.envoys[*envoy].replica == replica).collect();
                    for envoy in lost {
                        let other = world.number(replicas as u64) as usize;
                        world.connect(envoy, other);
                    }
                }
                5 => world.delay = 1 + world.number(400),
                _ => {}
            }
            let rates: Vec<u64> = (0..envoys).map(|_| world.number(2) * world.number(rate + 2)).collect();
            let time = 1 + world.number(4);
            world.run(time, &rates);
            world.check();
        }
    }
}

#[test]
fn what_an_envoy_has_used_and_forgotten_is_not_renewed() {
    let mut world = World::new(100, 60, 1, 1);
    let used = world.run(26, &[50]);
    assert!(used >= 90, "{used}");
    world.envoys[0].is_stopped = true;
    world.run(18, &[50]);
    world.envoys[0].is_stopped = false;
    let more = world.run(12, &[50]);
    assert!(used + more <= 100, "{used} and {more}: the assignment has expired");
    world.check();
}

/// Its first request after that is reported at once, and must not be taken for a sign of less demand again.
#[test]
fn an_envoy_that_forgets_a_bucket_has_tokens_soon_after() {
    for quiet in [0, 15] {
        let mut world = World::new(100, 1, 1, 2);
        world.run(12, &[200, 200]);
        world.run(8, &[quiet, 200]);
        world.envoys[0].admitted = 0;
        let denied = world.envoys[0].denied;
        world.run(4, &[15, 200]);
        let (admitted, denied) = (world.envoys[0].admitted, world.envoys[0].denied.saturating_sub(denied));
        assert!(admitted > 30, "{admitted} pass, and {denied} do not, after {quiet} a second");
    }
}

fn at(millis: u64) -> Now {
    Now {
        time: Time::from_micros(START * 1_000_000 + millis * 1_000),
        elapsed: Duration::from_millis(millis),
    }
}

fn hourly(requests: u64) -> QuotaLimit {
    QuotaLimit { requests, seconds: 3600, window_end: Some(Time::from_seconds(START + 3600)) }
}

#[test]
fn an_answer_for_all_is_replaced_at_once_and_given_up_when_idle() {
    let mut division = Division::default();
    division.report(1, 5, 0, at(0));
    assert_eq!(division.undivided(Change::Allow, at(0)), [(1, Change::Allow)]);
    assert_eq!(division.undivided(Change::Allow, at(300)), [], "it knows");
    // An exemption ends.
    division.owe_all();
    let Turn::Take(hits, time) = division.turn(hourly(100), at(600)) else { panic!("it needs some") };
    division.taken(hits, time, hits, at(600));
    let changes = division.assign(hourly(100), at(600));
    assert!(matches!(changes[..], [(1, Change::Grant(_))]), "{changes:?}");
    let mut dry = Division::default();
    dry.report(1, 5, 0, at(0));
    assert_eq!(dry.undivided(Change::Allow, at(0)), [(1, Change::Allow)]);
    dry.owe_all();
    let Turn::Take(hits, time) = dry.turn(hourly(100), at(600)) else { panic!("it needs some") };
    dry.taken(hits, time, 0, at(600));
    assert_eq!(dry.assign(hourly(100), at(600)), [(1, Change::Deny)], "there is nothing");
    // It reports no requests for a minute.
    for second in (5..60).step_by(5) {
        dry.report(1, 0, 0, at(second * 1000));
        assert_eq!(dry.undivided(Change::Deny, at(second * 1000)), [(1, Change::Deny)]);
    }
    dry.report(1, 0, 0, at(65_000));
    assert_eq!(dry.undivided(Change::Deny, at(65_000)), [(1, Change::Abandon)]);
    assert!(dry.is_over());
}

#[test]
fn what_was_taken_of_a_larger_limit_is_not_assigned() {
    let limit =
        |requests| QuotaLimit { requests, seconds: 5, window_end: Some(Time::from_seconds(START + 5)) };
    let next = |requests| QuotaLimit { window_end: Some(Time::from_seconds(START + 10)), ..limit(requests) };
    let mut division = Division::default();
    division.report(1, 0, 0, at(0));
    division.report(1, 5_000, 0, at(1_000));
    let mut ahead = 0;
    for millis in (1_000..5_000).step_by(100) {
        if let Turn::Take(hits, time) = division.turn(limit(1000), at(millis)) {
            ahead += if time >= Time::from_seconds(START + 5) { hits } else { 0 };
            division.taken(hits, time, hits, at(millis));
        }
        division.assign(limit(1000), at(millis));
    }
    assert!(ahead > 500, "{ahead}");
    let _ = division.turn(next(50), at(5_000));
    let granted = division.assign(next(50), at(5_000)).into_iter().map(|(_, change)| match change {
        Change::Grant(grant) => grant.requests,
        _ => 0,
    });
    assert!(granted.sum::<u64>() <= 50);
}

#[test]
fn an_envoy_that_has_not_said_what_it_uses_gets_its_part_of_some_seconds() {
    for (limit, seconds, first) in [(21_000, 3600, 657), (600, 60, 100), (200, 3600, 50)] {
        let limit =
            QuotaLimit { requests: limit, seconds, window_end: Some(Time::from_seconds(START + seconds)) };
        let mut division = Division::default();
        division.report(1, 1, 0, at(0));
        let mut all = 0;
        for millis in (0..5_000).step_by(100) {
            if let Turn::Take(hits, time) = division.turn(limit, at(millis)) {
                division.taken(hits, time, hits, at(millis));
                all += hits;
            }
            division.assign(limit, at(millis));
            assert!(millis > 0 || all == first, "{limit:?}: {all}");
        }
        assert!(all <= limit.requests / 8 + first, "{limit:?}: {all} until it reports");
    }
}
