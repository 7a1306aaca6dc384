//! Random requests under random rules: every answer of the service is that of the [`model`](super::model).
//!
//! Each seed makes a domain with rules of its own, and a sequence of requests and overrides for it. A failure prints
//! all of them. Not generated: two descriptors of one counter in a request, `share_threshold`, overrides by entry,
//! switches of a domain, and algorithms other than fixed windows and `concurrency`.

mod found;
mod generate;
mod written;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    thread,
    time::{Duration, Instant},
};

use prost_types::{Struct, Value, value::Kind};
use proto::envoy::service::ratelimit::v3::{RateLimitResponse, rate_limit_response::Code};

use super::model::{Answer, Entries, Model, Override, Request, Rule, Status, Target};
use generate::{Abilities, Generator, Step};
use support::{
    PATIENCE,
    client::Client,
    clock, eventually, holds, http,
    memcached::Memcached,
    or_deep,
    ports::free_port,
    redis::{Cluster, Redis},
    server::{Server, Setup},
};

const REQUESTS: usize = 60;

/// Where the service counts.
struct Place {
    replicas: Vec<Replica>,
    has_cache: bool,
}

struct Replica {
    server: Server,
    client: Client,
    admin: u16,
}

/// How often something happened, so that a generator that no longer reaches it is noticed.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    requests: usize,
    refused: usize,
    shadowed: usize,
    cached: usize,
    held: usize,
}

/// A domain with its rules, and what has happened there.
struct Run<'p> {
    place: &'p Place,
    domain: String,
    generator: Generator,
    model: Model,
    /// Requests that hold, by their numbers: the identity, and what they hold.
    held: BTreeMap<usize, (String, Vec<Entries>)>,
    /// Descriptors to which hits came back, of which the caches of all replicas hear a moment later.
    lowered: BTreeSet<Entries>,
    history: String,
    seen: Seen,
}

const EVERYTHING: Abilities = Abilities { holds: true, overrides: true, settles_beside: true };
const IN_REDIS: Abilities = Abilities { settles_beside: false, ..EVERYTHING };
// Rules with `hold` are refused there.
const IN_MEMCACHED: Abilities = Abilities { holds: false, ..EVERYTHING };

#[test]
fn in_memory() {
    compare("memory", 1, EVERYTHING, Setup::new);
}

#[test]
fn on_two_replicas_with_local_caches() {
    let redis = Redis::single();
    let setup = || {
        let shared = Setup::new().redis(&redis.env()).env("REPLICA_SYNC", "true");
        shared.env("LOCAL_CACHE_SIZE_IN_BYTES", "1000000")
    };
    compare("redis", 2, IN_REDIS, setup);
}

#[test]
fn on_a_cluster() {
    let cluster = Cluster::start(Duration::from_secs(5));
    compare("cluster", 1, IN_REDIS, || Setup::new().redis(&cluster.env()));
}

#[test]
fn on_memcached() {
    let memcached = Memcached::single();
    compare("memcached", 1, IN_MEMCACHED, || memcached.setup());
}

/// Compares a service that counts so with the model, with and without `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`.
fn compare(name: &str, replicas: usize, abilities: Abilities, setup: impl Fn() -> Setup) {
    let seeds = or_deep(10, 200);
    let first: u64 = std::env::var("TOLLGATE_TEST_SEED").map_or(0, |seed| seed.parse().expect("a number"));
    let mut seen = Vec::new();
    for stops in [false, true] {
        let worlds: Vec<(u64, Generator, Vec<Rule>)> = (first..first + seeds)
            .map(|seed| {
                let (generator, rules) = Generator::new(seed, abilities);
                (seed, generator, rules)
            })
            .collect();
        let files = worlds.iter().map(|(seed, _, rules)| written::file(&format!("d{seed}"), rules));
        let files: Vec<String> = files.collect();
        let place = Place::start(&setup, &files, replicas, stops);
        for ((seed, generator, rules), file) in worlds.into_iter().zip(&files) {
            let mut run = Run {
                place: &place,
                domain: format!("d{seed}"),
                generator,
                model: Model::new(rules, stops),
                held: BTreeMap::new(),
                lowered: BTreeSet::new(),
                history: format!("{name}, stops {stops}, seed {seed}, rules:\n{file}"),
                seen: Seen::default(),
            };
            for turn in 0..REQUESTS {
                run.step(turn);
            }
            seen.push(run.seen);
        }
    }
    let sum = |number: fn(&Seen) -> usize| seen.iter().map(number).sum::<usize>();
    let often = sum(|seen| seen.requests) / 50;
    assert!(sum(|seen| seen.refused) > 5 * often && sum(|seen| seen.shadowed) > 0, "{seen:?}");
    assert!(!abilities.holds || sum(|seen| seen.held) > often, "{seen:?}");
    assert!(replicas == 1 || sum(|seen| seen.cached) > often, "{seen:?}");
}

impl Seen {
    fn note(&mut self, answer: &Answer, is_cached: &[bool]) {
        self.requests += 1;
        self.refused += usize::from(answer.is_refused);
        self.shadowed += usize::from(answer.statuses.iter().any(|status| status.is_shadowed));
        self.cached += usize::from(is_cached.contains(&true));
        self.held += usize::from(answer.hold.is_some());
    }
}

impl Place {
    fn start(setup: &impl Fn() -> Setup, files: &[String], replicas: usize, stops: bool) -> Self {
        // Both services of a store have their own counters.
        let setup = setup()
            .env("CACHE_KEY_PREFIX", if stops { "stop:" } else { "" })
            .env("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", &stops.to_string())
            .env("RESPONSE_DYNAMIC_METADATA", "true")
            .env("RESPONSE_DYNAMIC_METADATA_LIMITS", "true")
            .env("LOG_LEVEL", "error");
        let setup = files
            .iter()
            .enumerate()
            .fold(setup, |setup, (number, file)| setup.rules(&format!("{number}.yaml"), file));
        let replicas: Vec<Replica> = (0..replicas)
            .map(|_| {
                let admin = free_port();
                let server = setup.clone().env("ADMIN_ADDR", &format!("127.0.0.1:{admin}")).start_healthy();
                let client = server.client();
                Replica { server, client, admin }
            })
            .collect();
        let has_cache = replicas.len() > 1;
        Self { replicas, has_cache }
    }
}

impl Run<'_> {
    /// Replicas take turns.
    fn step(&mut self, turn: usize) {
        match self.generator.step() {
            Step::Ask(request) => self.ask(turn, &request),
            // An override that no request can meet is refused.
            Step::Set { like, target, action } if self.model.meets(&target, &like) => {
                self.set(turn, &target, action);
            }
            Step::Set { .. } => {}
        }
    }

    fn replica(&self, turn: usize) -> &Replica {
        &self.place.replicas[turn % self.place.replicas.len()]
    }

    fn ask(&mut self, turn: usize, request: &Request) {
        let began = Instant::now();
        while !self.is_answered(turn, request) {
            assert!(began.elapsed() < PATIENCE, "a replica has not heard of a refund\n{}", self.history);
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends a request and compares its answer. False if a cache still refuses what was given back.
    fn is_answered(&mut self, turn: usize, request: &Request) -> bool {
        let _ = writeln!(self.history, "request {}: {request}", self.model.requests() + 1);
        let message = written::message(&self.domain, request, |hold| self.held[&hold].0.clone());
        let response = self.replica(turn).client.ask(message);
        let response = response.unwrap_or_else(|error| {
            panic!("{error}\n{}\n{}", self.history, self.replica(turn).server.process.log())
        });
        let _ = writeln!(self.history, "    {}", answer_text(&response));
        let whys: Vec<String> = (0..request.descriptors.len()).map(|index| why(&response, index)).collect();
        // Beside a block nothing is counted, so only a cache knows what shadow mode allows.
        let is_blocked = whys.iter().any(|why| why == "blocked");
        let is_cached: Vec<bool> =
            whys.iter().map(|why| why == "local_cache" || is_blocked && why == "shadow").collect();
        let expected = self.model.answer(request, &is_cached, clock::now());
        let log = || self.replica(turn).server.process.log();
        assert!(is_equal(&response, &expected), "{}    expected: {expected:?}\n{}", self.history, log());
        if let Some(number) = expected.hold {
            self.generator.holding.push(number);
            let entries = request.descriptors.iter().map(|descriptor| descriptor.entries.clone());
            let id = hold(&response).expect("it is as expected");
            self.held.insert(number, (id, entries.collect()));
        }
        self.note(request, &expected);
        self.seen.note(&expected, &is_cached);
        let stale = request.descriptors.iter().zip(&expected.statuses).filter(|(_, status)| status.is_stale);
        let stale: Vec<_> = stale.map(|(descriptor, _)| &descriptor.entries).collect();
        let came_back = stale.iter().all(|entries| self.lowered.contains(*entries));
        assert!(came_back, "a cache refuses what fits, and nothing came back\n{}", self.history);
        stale.is_empty()
    }

    /// Notes the descriptors whose caches may be late, and those whose counters are not known from now on.
    fn note(&mut self, request: &Request, expected: &Answer) {
        for closing in &request.closings {
            self.lowered.extend(self.held[&closing.hold].1.iter().cloned());
        }
        for (descriptor, status) in request.descriptors.iter().zip(&expected.statuses) {
            if descriptor.is_refund {
                self.lowered.insert(descriptor.entries.clone());
            }
            // The response does not say whether a cache has decided what shadow mode allows, and so whether it was counted.
            if status.is_shadowed && self.place.has_cache {
                self.generator.unknown.insert(descriptor.entries.clone());
            }
        }
    }

    /// Sets an override at one replica, and waits until all replicas have it.
    fn set(&mut self, turn: usize, target: &Target, action: Option<Override>) {
        let descriptor = written::target_text(target);
        let _ = writeln!(self.history, "override of {descriptor}: {action:?}");
        let path = format!(
            "/api/v1/overrides?domain={}&descriptor={}",
            self.domain,
            descriptor.replace('=', "%3D").replace(',', "%2C")
        );
        let admin = self.replica(turn).admin;
        let listed = |admin: u16| http::get(admin, &path).json()["overrides"].clone();
        let answer = if let Some(action) = action {
            http::post(admin, "/api/v1/overrides", &written::override_body(&self.domain, target, action))
        } else {
            let Some(id) = listed(admin)[0]["id"].as_str().map(str::to_owned) else { return };
            let answer = http::send(admin, "DELETE", &format!("/api/v1/overrides/{id}"), &[], b"");
            answer.expect("the admin API answers")
        };
        assert!(answer.status < 300, "{}\n{}", answer.text(), self.history);
        for replica in &self.place.replicas {
            eventually("the override is everywhere", || {
                let seen = listed(replica.admin);
                holds(seen == listed(admin), || seen)
            });
        }
        self.model.set(target, action);
    }
}

/// True if the answer is as expected. What remains has 32 bits there.
fn is_equal(response: &RateLimitResponse, expected: &Answer) -> bool {
    let code = |is_over| if is_over { Code::OverLimit } else { Code::Ok };
    let statuses = response.statuses.iter().zip(&expected.statuses);
    response.overall_code() == code(expected.is_refused)
        && response.statuses.len() == expected.statuses.len()
        && hold(response).is_some() == expected.hold.is_some()
        && statuses.into_iter().all(|(status, Status { is_over, remaining, .. })| {
            let is_remaining =
                |remaining: u64| u64::from(status.limit_remaining) == remaining.min(u32::MAX.into());
            status.code() == code(*is_over) && remaining.is_none_or(is_remaining)
        })
}

fn answer_text(response: &RateLimitResponse) -> String {
    let statuses = response.statuses.iter().enumerate().map(|(index, status)| {
        let number = |name| match decision(response, index)?.fields.get(name)?.kind {
            Some(Kind::NumberValue(number)) => Some(format!(", {name} {number}")),
            _ => None,
        };
        let numbers: Vec<_> = ["spent", "held"].into_iter().filter_map(number).collect();
        let why = why(response, index);
        format!("{:?}, {} remaining{}, {why}", status.code(), status.limit_remaining, numbers.concat())
    });
    let statuses: Vec<_> = statuses.collect();
    let holds = if hold(response).is_some() { ", holds" } else { "" };
    format!("{:?}: [{}]{holds}", response.overall_code(), statuses.join("] ["))
}

/// The identity of what the request holds.
fn hold(response: &RateLimitResponse) -> Option<String> {
    text(field(response.dynamic_metadata.as_ref()?, "hold")?)
}

/// Why the descriptor at this index was decided so.
fn why(response: &RateLimitResponse, index: usize) -> String {
    decision(response, index).and_then(|decision| text(field(decision, "why")?)).unwrap_or_default()
}

/// What the metadata says of a descriptor.
fn decision(response: &RateLimitResponse, index: usize) -> Option<&Struct> {
    let descriptors = field(response.dynamic_metadata.as_ref()?, "descriptors")?;
    let Some(Kind::ListValue(descriptors)) = &descriptors.kind else { return None };
    fields(field(fields(descriptors.values.get(index)?)?, "decision")?)
}

fn field<'s>(fields: &'s Struct, name: &str) -> Option<&'s Value> {
    fields.fields.get(name)
}

fn fields(value: &Value) -> Option<&Struct> {
    if let Some(Kind::StructValue(fields)) = &value.kind { Some(fields) } else { None }
}

fn text(value: &Value) -> Option<String> {
    if let Some(Kind::StringValue(text)) = &value.kind { Some(text.clone()) } else { None }
}
