//! Rules with several limits: if one rejects hits, none counts them, with concurrent processes and callers, on one server,
//! in a cluster, and while a slot moves.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use support::{
    noise::Noise,
    redis::{Cluster, Redis, slot},
    server::Setup,
};

use super::{
    Code, RateLimitRequest, YEAR, decision,
    exact::{Servers, patient, shuffle},
    one, request, window,
};

/// Years, so that nothing refills during a test.
pub(crate) const FIXED: &str = "
  - key: fixed
    rate_limit:
      - {unit: year, requests_per_unit: 40}
      - {unit: year, unit_multiplier: 2, requests_per_unit: 100}
";
const OTHERS: &str = "
  - key: mixed
    rate_limit:
      - {unit: year, requests_per_unit: 90, algorithm: sliding_log}
      - {unit: year, requests_per_unit: 40}
      - {unit: year, unit_multiplier: 2, requests_per_unit: 100, algorithm: sliding_window}
      - {unit: year, unit_multiplier: 3, requests_per_unit: 100, algorithm: token_bucket, burst: 60}
  - key: scripted
    rate_limit:
      - {unit: year, requests_per_unit: 90, algorithm: leaky_bucket, burst: 80}
      - {unit: year, requests_per_unit: 40, algorithm: sliding_log}
  - key: plain
    rate_limit: {unit: year, requests_per_unit: 9}
  - key: soon
    rate_limit: [{unit: second, requests_per_unit: 1000}, {unit: year, requests_per_unit: 5}]
  - key: second
    rate_limit: {unit: second, requests_per_unit: 1000}
";

pub(crate) fn rules(several: &[&str]) -> String {
    format!("domain: d\ndescriptors:{}", several.concat())
}

/// The hits that each of these rules admits: the smaller limit.
const LIMIT: u64 = 40;

const VALUES: [&str; 3] = ["a", "{b}", "c}{d}"];

/// The counter of a fixed window of this many years. One year is the longest window without a multiplier.
pub(crate) fn counter(key: &str, value: &str, years: u64) -> String {
    let tag = if years == 1 { String::new() } else { format!("/{}", years * YEAR) };
    format!("d_{key}_{value}_{}{tag}", window(years * YEAR))
}

/// In a cluster it has a hash tag.
fn in_cluster(key: &str, value: &str, years: u64) -> String {
    let escaped: String = value
        .chars()
        .map(|char| match char {
            '{' => "%7B".to_owned(),
            '}' => "%7D".to_owned(),
            other => other.to_string(),
        })
        .collect();
    let shared = format!("d_{key}_{escaped}_");
    counter(key, &escaped, years).replacen(&shared, &format!("{{{shared}}}"), 1)
}

pub(crate) fn hits(key: &str, value: &str, hits: u64) -> RateLimitRequest {
    let mut request = one(key, value);
    request.descriptors[0].hits_addend = Some(hits);
    request
}

/// Requests on each key with few hits, and with more than the smaller limit admits.
pub(crate) fn offered(keys: &[&str]) -> Vec<RateLimitRequest> {
    let mut noise = Noise::new(9);
    let mut all = Vec::new();
    for key in keys {
        for value in VALUES {
            all.extend((0..60).map(|_| hits(key, value, 1)));
            all.extend((0..20).map(|_| hits(key, value, 2 + noise.below(7) as u64)));
            all.extend((0..40).map(|_| hits(key, value, 50)));
        }
    }
    shuffle(&mut all, &mut noise);
    all
}

/// The admitted hits of each key and value.
pub(crate) fn admitted(servers: &Servers, requests: &[RateLimitRequest]) -> BTreeMap<(String, String), u64> {
    let mut sums = BTreeMap::new();
    for (request, answer) in requests.iter().zip(servers.ask_all(requests)) {
        let descriptor = &request.descriptors[0];
        let entry = &descriptor.entries[0];
        let sum: &mut u64 = sums.entry((entry.key.clone(), entry.value.clone())).or_default();
        if answer.overall_code() == Code::Ok {
            *sum += descriptor.hits_addend.unwrap();
        }
    }
    sums
}

fn exactly_the_limit(setup: &Setup, counter_of: &dyn Fn(&str, u64) -> i64) {
    let servers = Servers::with(setup, &rules(&[FIXED, OTHERS]), "2");
    let keys = ["fixed", "mixed", "scripted"];
    for (key, admitted) in admitted(&servers, &offered(&keys)) {
        assert_eq!(admitted, LIMIT, "{key:?}");
    }
    for value in VALUES {
        let counts = [1, 2].map(|years| counter_of(value, years));
        assert_eq!(counts, [40, 40], "{value}: each has counted what was admitted");
    }
    // The larger limits did not count hits that the smaller ones rejected.
    let client = servers.first().client();
    for key in keys {
        let mut back = hits(key, "a", 30);
        back.descriptors[0].is_negative_hits = true;
        client.ask(back).unwrap();
        assert_eq!(decision(&client.ask(hits(key, "a", 31)).unwrap()).0, Code::OverLimit, "{key}");
        assert_eq!(decision(&client.ask(hits(key, "a", 30)).unwrap()), (Code::Ok, 0), "{key}");
    }
}

#[test]
fn exactly_the_limit_is_admitted_by_one_server() {
    let redis = Redis::single();
    exactly_the_limit(&patient(&redis.env()), &|value, years| redis.counter(&counter("fixed", value, years)));
    for key in redis.keys() {
        assert!(redis.ask(&["TTL", &key]).number() > 0, "{key} has an expiry");
    }
}

#[test]
fn exactly_the_limit_is_admitted_by_a_cluster() {
    let cluster = Cluster::start(Duration::from_secs(15));
    exactly_the_limit(&patient(&cluster.env()), &|value, years| {
        cluster.counter(&in_cluster("fixed", value, years))
    });
    // Braces in values do not choose the slot.
    let server = patient(&cluster.env()).rules("d.yaml", &rules(&[FIXED])).start_healthy();
    let client = server.client();
    for user in 0..40 {
        client.ask(hits("fixed", &format!("{{x}}{user}"), 1)).unwrap();
    }
    let slots = |keys: Vec<String>| keys.iter().map(|key| slot(key)).collect::<BTreeSet<_>>();
    let of_users: Vec<_> = cluster.keys().into_iter().filter(|key| key.contains("%7Bx%7D")).collect();
    assert_eq!(of_users.len(), 80);
    assert!(slots(of_users).len() > 35);
}

#[test]
fn a_list_with_a_calendar_of_any_zone_is_in_one_slot_of_a_cluster() {
    const ZONES: &str = "
  - key: zones
    rate_limit:
      - {unit: day, requests_per_unit: 3, calendar: {time_zone: America/New_York}}
      - {unit: month, requests_per_unit: 9, calendar: {time_zone: America/Argentina/Buenos_Aires}}
      - {unit: hour, requests_per_unit: 9}
";
    let cluster = Cluster::start(Duration::from_secs(15));
    for format in ["compatible", "unambiguous"] {
        let setup = patient(&cluster.env()).rules("d.yaml", &rules(&[ZONES]));
        let server = setup.env("COUNTER_KEY_FORMAT", format).start_healthy();
        let client = server.client();
        for value in ["a", "{b}_"] {
            let asked = [3, 1].map(|count| decision(&client.ask(hits("zones", value, count)).unwrap()));
            assert_eq!(asked, [(Code::Ok, 0), (Code::OverLimit, 0)], "{format} {value}");
        }
    }
}

#[test]
fn counts_move_with_their_slot() {
    let cluster = Cluster::start(Duration::from_secs(15));
    let server = patient(&cluster.env()).rules("d.yaml", &rules(&[FIXED, OTHERS])).start_healthy();
    let stop = &AtomicBool::new(false);
    let keys = ["fixed", "mixed", "scripted"];
    thread::scope(|scope| {
        for key in keys {
            for _ in 0..2 {
                let client = server.client();
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        client.ask(hits(key, "v", 50)).expect("the request is answered");
                        thread::sleep(Duration::from_millis(2));
                    }
                });
            }
        }
        // While keys are on two servers they are changed one by one, and concurrent requests may be rejected. So each
        // caller retries until the limit is used up.
        let callers: Vec<_> = keys
            .iter()
            .flat_map(|key| [(key, server.client()), (key, server.client())])
            .map(|(key, client)| {
                scope.spawn(move || {
                    let mut admitted = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let answer = client.ask(hits(key, "v", 1)).expect("the request is answered");
                        admitted += i64::from(decision(&answer).0 == Code::Ok);
                        thread::sleep(Duration::from_millis(20));
                    }
                    (*key, admitted)
                })
            })
            .collect();
        for to in cluster.servers[..3].iter().chain(&cluster.servers[..3]) {
            for key in keys {
                thread::sleep(Duration::from_millis(50));
                let slot = slot(&in_cluster(key, "v", 1));
                if cluster.owner(slot).port != to.port {
                    cluster.move_slot(slot, to);
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        let mut sums = BTreeMap::<_, i64>::new();
        for caller in callers {
            let (key, admitted) = caller.join().expect("every request is answered");
            *sums.entry(key).or_default() += admitted;
        }
        let client = server.client();
        for (key, sum) in sums {
            let more =
                (0..50).filter(|_| decision(&client.ask(one(key, "v")).unwrap()).0 == Code::Ok).count();
            assert_eq!(sum + i64::try_from(more).unwrap(), 40, "{key}");
        }
        let counts = [1, 2].map(|years| cluster.counter(&in_cluster("fixed", "v", years)));
        assert_eq!(counts, [40, 40]);
    });
}

#[test]
fn the_limits_of_a_rule_stay_in_one_redis() {
    let (main, per_second) = (Redis::single(), Redis::single());
    let setup = patient(&main.env()).env("REDIS_PERSECOND", "true").env("REDIS_PERSECOND_SOCKET_TYPE", "tcp");
    let setup = setup.env("REDIS_PERSECOND_TYPE", "SINGLE").env("EXPIRATION_JITTER_MAX_SECONDS", "300");
    let setup = setup.env("REDIS_PERSECOND_TIMEOUT", "20s").env("REDIS_PERSECOND_URL", &per_second.address());
    let servers = Servers::with(&setup, &rules(&[OTHERS]), "2");
    let pairs: &[&[_]] = &[&[("soon", "v")], &[("second", "v")]];
    let requests: Vec<_> = (0..40).map(|_| request("d", pairs)).collect();
    let answers = servers.ask_all(&requests);
    let passed = answers.iter().filter(|answer| answer.overall_code() == Code::Ok).count();
    assert_eq!(passed, 5);
    let of = |redis: &Redis, key: &str| {
        let keys = redis.keys().into_iter().filter(|name| name.contains(key));
        keys.map(|name| redis.counter(&name)).sum::<i64>()
    };
    assert_eq!((of(&main, "d_soon_"), of(&per_second, "d_soon_")), (10, 0), "five in each of two windows");
    assert_eq!(
        (of(&main, "d_second_"), of(&per_second, "d_second_")),
        (0, 40),
        "alone, it counts what it is"
    );
}
