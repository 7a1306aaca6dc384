//! Four processes on one Redis under contention: although hits share commands, each caller receives its own outcome, and
//! exactly the limit is admitted.

use std::{
    collections::{BTreeMap, HashMap},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use bytes::Bytes;
use http::HeaderMap;
use tokio::{runtime::Builder, task::JoinSet};

use support::{
    client::descriptor,
    clock::window,
    noise::Noise,
    raw::{RawClient, framed},
    redis::{Env, Redis},
    server::{Server, Setup},
};

use super::{Code, RateLimitRequest, RateLimitResponse, YEAR, request};

const PROCESSES: usize = 4;
/// Concurrent requests per process.
const IN_FLIGHT: usize = 12;
/// Descriptors per request; a key may occur more than once.
const DESCRIPTORS: usize = 20;

/// Limits and their numbers of keys: a hundred keys.
const LIMITS: [(u32, usize); 9] =
    [(1, 20), (2, 20), (5, 20), (10, 15), (50, 10), (200, 8), (1000, 4), (3000, 2), (10_000, 1)];

#[test]
fn exactly_the_limit_is_admitted_by_one_server() {
    let redis = Redis::single();
    exactly_the_limit(&patient(&redis.env()), &|key| redis.counter(key));
}

/// All ways of counting with one topology.
fn exactly_the_limit(setup: &Setup, counter: &dyn Fn(&str) -> i64) {
    let servers = Servers::start(setup);
    servers.each_hit_is_one(counter);
    servers.hits_are_many(counter);
    servers.hits_are_refunded(counter);
    let servers = Servers::start(&setup.clone().env("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true"));
    servers.refused_requests_count_where_they_are_over(counter);
}

/// Services with long timeouts for this Redis.
pub(crate) fn patient(env: &Env) -> Setup {
    Setup::new().redis(env).env("REDIS_TIMEOUT", "20s")
}

/// Processes that share counters.
pub(crate) struct Servers(Vec<Server>);

impl Servers {
    /// Processes with these rules and this many threads.
    pub(crate) fn with(setup: &Setup, rules: &str, workers: &str) -> Self {
        let start = || setup.clone().rules("d.yaml", rules).env("GRPC_WORKERS", workers).start_healthy();
        Self((0..PROCESSES).map(|_| start()).collect())
    }

    pub(crate) fn first(&self) -> &Server {
        &self.0[0]
    }

    /// Processes with this setup.
    pub(crate) fn start(setup: &Setup) -> Self {
        let rule = |(limit, _)| {
            format!("  - key: l{limit}\n    rate_limit: {{unit: year, requests_per_unit: {limit}}}\n")
        };
        let rules = format!("domain: d\ndescriptors:\n{}", LIMITS.map(rule).concat());
        // One thread each, because they share the machine.
        Self::with(setup, &rules, "1")
    }

    pub(crate) fn each_hit_is_one(&self, counter: &dyn Fn(&str) -> i64) {
        let hits = offered(1, |_| 1, "one");
        let seen = self.seen(&hits);
        for ((limit, value), asked) in totals(&hits) {
            let mut left = seen.get(&(limit, value.clone())).cloned().unwrap_or_default();
            left.sort_unstable();
            let left: Vec<_> = left.into_iter().map(|(left, _)| left).collect();
            assert_eq!(
                left,
                (0..limit).collect::<Vec<_>>(),
                "what admitted hits left of {limit} for {value}"
            );
            assert_eq!(counter(&name(limit, &value)), i64::from(asked), "every hit counts");
        }
    }

    pub(crate) fn hits_are_many(&self, counter: &dyn Fn(&str) -> i64) {
        let hits = offered(2, |noise| u32::try_from(1 + noise.below(7)).expect("it is small"), "many");
        let seen = self.seen(&hits);
        for ((limit, value), asked) in totals(&hits) {
            let mut admitted = seen.get(&(limit, value.clone())).cloned().unwrap_or_default();
            admitted.sort_unstable_by(|one, other| other.cmp(one));
            // Each takes from the rest of the previous one, until one does not fit; after that none fits.
            let left = admitted.iter().fold(limit, |before, (left, hits)| {
                assert_eq!(before, left + hits, "of {limit} for {value}: {admitted:?}");
                *left
            });
            assert!(left < 7, "{left} of {limit} were left for {value}, though {asked} hits came");
            assert_eq!(counter(&name(limit, &value)), i64::from(asked), "every hit counts");
        }
    }

    /// Hits and refunds in any order: none is lost, and no counter is negative.
    pub(crate) fn hits_are_refunded(&self, counter: &dyn Fn(&str) -> i64) {
        let (plenty, little) = ("plenty", "little");
        self.ask_all(&[single(10_000, plenty, 3000)]);
        let back = |value: &str, hits: u32| {
            let mut back = single(10_000, value, hits);
            back.descriptors[0].is_negative_hits = true;
            back
        };
        let mut requests = Vec::new();
        for _ in 0..400 {
            requests.extend([single(10_000, plenty, 2), back(plenty, 1), back(plenty, 3)]);
            requests.extend([single(10_000, little, 1), back(little, 2), back(little, 5)]);
        }
        shuffle(&mut requests, &mut Noise::new(3));
        let seen = self.ask_all(&requests);
        for answer in &seen {
            assert!(answer.statuses[0].limit_remaining <= 10_000, "{answer:?}");
        }
        assert_eq!(counter(&name(10_000, plenty)), 3000 + 400 * (2 - 1 - 3));
        assert!((0..=400).contains(&counter(&name(10_000, little))));
    }

    /// Pairs of a small and a large limit. Their names share a hash tag, so that a cluster has both on one server and can
    /// count them in one step.
    fn refused_requests_count_where_they_are_over(&self, counter: &dyn Fn(&str) -> i64) {
        let pairs = [(1, "{a}"), (10, "{b}"), (200, "{c}")];
        let asked = 350;
        let pair = |(limit, value): (u32, &str)| {
            let small = format!("l{limit}");
            request("d", &[&[(small.as_str(), value)], &[("l10000", value)]])
        };
        let mut requests: Vec<_> = pairs.iter().flat_map(|one| vec![pair(*one); asked]).collect();
        shuffle(&mut requests, &mut Noise::new(4));
        let answers = self.ask_all(&requests);
        for (limit, value) in pairs {
            let of = |(request, _): &(&RateLimitRequest, &RateLimitResponse)| {
                request.descriptors[0].entries[0].value == value
            };
            let all = requests.iter().zip(&answers).filter(of);
            let admitted = all.filter(|(_, answer)| answer.overall_code() == Code::Ok).count();
            assert_eq!(admitted, usize::try_from(limit).unwrap(), "{value}");
            assert_eq!(counter(&name(10_000, value)), i64::from(limit), "refused ones count not");
            let small = usize::try_from(counter(&name(limit, value))).unwrap();
            assert_eq!(small, asked, "where they are over, they count");
        }
    }

    /// The remaining hits and the hits of each admitted request, by limit and value.
    fn seen(&self, hits: &[Hits]) -> HashMap<(u32, String), Vec<(u32, u32)>> {
        let requests: Vec<_> = hits.chunks(DESCRIPTORS).map(together).collect();
        let answers = self.ask_all(&requests);
        let statuses = answers.iter().flat_map(|answer| &answer.statuses);
        let mut seen: HashMap<_, Vec<_>> = HashMap::new();
        for (hits, status) in hits.iter().zip(statuses) {
            if status.code() == Code::Ok {
                let key = (hits.limit, hits.value.clone());
                seen.entry(key).or_default().push((status.limit_remaining, hits.count));
            }
        }
        seen
    }

    /// Sends all requests through the processes; returns the responses in the same order.
    pub(crate) fn ask_all(&self, requests: &[RateLimitRequest]) -> Vec<RateLimitResponse> {
        let bodies: Vec<Bytes> = requests.iter().map(framed).collect();
        let (bodies, next) = (&bodies, &AtomicUsize::new(0));
        let mut answers = BTreeMap::new();
        thread::scope(|scope| {
            let workers: Vec<_> = self
                .0
                .iter()
                .map(|server| scope.spawn(|| ask_one(server.ports.grpc, bodies, next)))
                .collect();
            for worker in workers {
                answers.extend(worker.join().expect("every request is answered"));
            }
        });
        assert_eq!(answers.len(), requests.len());
        answers.into_values().collect()
    }
}

/// Sends requests from the list to one process until the list is empty.
fn ask_one(port: u16, bodies: &[Bytes], next: &AtomicUsize) -> Vec<(usize, RateLimitResponse)> {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    runtime.block_on(async {
        let client = RawClient::connect(port).await.expect("the service takes connections");
        let (mut open, mut answers) = (JoinSet::new(), Vec::new());
        loop {
            while open.len() < IN_FLIGHT {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(body) = bodies.get(index).cloned() else { break };
                let mut client = client.clone();
                open.spawn(async move { (index, client.ask(body, &HeaderMap::new()).await) });
            }
            let Some(done) = open.join_next().await else { return answers };
            match done.expect("asking does not panic") {
                (index, Ok(answer)) => answers.push((index, answer)),
                (_, Err(other)) => panic!("{other:?}"),
            }
        }
    })
}

/// Hits on one key.
struct Hits {
    limit: u32,
    value: String,
    count: u32,
}

/// Hits on every key, a third more than its limit, in random order.
fn offered(seed: u64, count: impl Fn(&mut Noise) -> u32, prefix: &str) -> Vec<Hits> {
    let mut noise = Noise::new(seed);
    let mut all = Vec::new();
    for (limit, keys) in LIMITS {
        for key in 0..keys {
            let mut sum = 0;
            while sum < limit + limit / 3 + 10 {
                let count = count(&mut noise);
                sum += count;
                all.push(Hits { limit, value: format!("{prefix}-{key}"), count });
            }
        }
    }
    shuffle(&mut all, &mut noise);
    all
}

fn totals(hits: &[Hits]) -> BTreeMap<(u32, String), u32> {
    let mut totals = BTreeMap::new();
    for hits in hits {
        *totals.entry((hits.limit, hits.value.clone())).or_default() += hits.count;
    }
    totals
}

pub(crate) fn shuffle<T>(list: &mut [T], noise: &mut Noise) {
    for last in (1..list.len()).rev() {
        list.swap(last, noise.below(last + 1));
    }
}

/// One request with these hits.
fn together(hits: &[Hits]) -> RateLimitRequest {
    let each = |hits: &Hits| {
        let mut descriptor = descriptor(&[(&format!("l{}", hits.limit), &hits.value)]);
        descriptor.hits_addend = Some(u64::from(hits.count));
        descriptor
    };
    RateLimitRequest { descriptors: hits.iter().map(each).collect(), ..request("d", &[]) }
}

fn single(limit: u32, value: &str, count: u32) -> RateLimitRequest {
    together(&[Hits { limit, value: value.to_owned(), count }])
}

fn name(limit: u32, value: &str) -> String {
    format!("d_l{limit}_{value}_{}", window(YEAR))
}
