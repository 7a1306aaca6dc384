//! What the limits of a request do to each other, against a model: a request is refused only by limits that refuse, and
//! then holds nothing.

use super::*;
use ::overrides::table::of_json_line;
use counters::{Close, HoldId};

const LIMIT: u64 = 5;

/// Each key is limited to [`LIMIT`] in its own way.
const RULES: &str = "\
domain: d
descriptors:
  - {key: plain, rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: leased, rate_limit: {unit: hour, requests_per_unit: 5, counting: leased}}
  - {key: named, rate_limit: {unit: hour, requests_per_unit: 5, name: it}}
  - {key: replacing, rate_limit: {unit: hour, requests_per_unit: 5, replaces: [{name: it}]}}
  - {key: list, rate_limit: [{unit: hour, requests_per_unit: 5}, {unit: day, requests_per_unit: 9}]}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: shadow_list, shadow_mode: true, rate_limit: [{unit: hour, requests_per_unit: 5}, {unit: day, requests_per_unit: 9}]}
  - {key: quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: other_quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: quota_list, quota_mode: true, rate_limit: [{unit: hour, requests_per_unit: 5}, {unit: day, requests_per_unit: 9}]}
  - {key: shadow_quota, quota_mode: true, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: hold, rate_limit: {unit: hour, requests_per_unit: 5, hold: {amount: 1, ttl: 10m}}}
  - {key: other_hold, rate_limit: {unit: hour, requests_per_unit: 5, hold: {amount: 1, most: 40%, ttl: 10m}}}
  - {key: streams, rate_limit: {algorithm: concurrency, requests_per_unit: 5, hold: {ttl: 10m}}}
  - {key: shadow_hold, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 5, hold: {amount: 1, ttl: 10m}}}
  - {key: quota_hold, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 5, hold: {amount: 1, ttl: 10m}}}
  - {key: over_limit, rate_limit: {unit: hour, requests_per_unit: 9}}
  - {key: over_shadow, rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: blocked, rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: exempt, rate_limit: {unit: hour, requests_per_unit: 5}}
";

const KEYS: [&str; 20] = [
    "plain",
    "leased",
    "named",
    "replacing",
    "list",
    "shadow",
    "shadow_list",
    "quota",
    "other_quota",
    "quota_list",
    "shadow_quota",
    "hold",
    "other_hold",
    "streams",
    "shadow_hold",
    "quota_hold",
    "over_limit",
    "over_shadow",
    "blocked",
    "exempt",
];

const OVERRIDES: [&str; 4] = [
    r#""descriptor":"over_limit=v","action":"limit","requests_per_unit":5,"unit":"hour""#,
    r#""descriptor":"over_shadow=v","action":"shadow""#,
    r#""descriptor":"blocked=v","action":"block""#,
    r#""descriptor":"exempt=v","action":"allow""#,
];

fn setup(stop_when_over: bool, has_cache: bool, is_near: bool) -> Setup {
    let setup = Setup::new(OnStoreFailure::Error, |policy| policy.stop_when_over = stop_when_over);
    setup.store.is_near.store(is_near, Relaxed);
    setup.load(RULES);
    for line in OVERRIDES {
        let line = format!("{{\"domain\":\"d\",{line}}}");
        setup.overrides.set(&of_json_line(&line, setup.limiter.now()).unwrap().one).unwrap();
    }
    let over_limit = setup.limiter.over_limit.clone().filter(|_| has_cache);
    Setup {
        limiter: Arc::new(Limiter {
            over_limit,
            ..Arc::into_inner(setup.limiter).expect("it is the only one")
        }),
        ..setup
    }
}

/// A limit of a descriptor: what is used, and held of a limit that holds.
type Used = (u64, Option<u64>);

/// What is used of each limit of a key.
fn used(setup: &Setup, key: &str) -> Vec<Used> {
    let counters = finish(pin!(setup.limiter.counters(&request(&[key])))).unwrap();
    counters[0].limits.iter().map(|limit| (limit.used, limit.held)).collect()
}

fn is_shadow(key: &str) -> bool {
    key.contains("shadow")
}

/// The limits of a key that have no room for these hits.
fn over(key: &str, hits: u64, used: &[Used]) -> Vec<bool> {
    let limits = [LIMIT, 9];
    let of = |((used, held), limit): (&Used, u64)| match held {
        Some(held) if hits > 0 => used + held + hold(key, hits) > limit,
        Some(held) => used + held > limit,
        None => used + hits > limit,
    };
    used.iter().zip(limits).map(of).collect()
}

/// What a request with these hits holds.
fn hold(key: &str, hits: u64) -> u64 {
    hits.min(match key {
        "streams" => 1,
        "other_hold" => 2,
        _ => LIMIT,
    })
}

/// True if the limits that are over refuse the request.
fn is_refused(asked: &[(&str, u64)], over: &[Vec<bool>]) -> bool {
    let keys = || asked.iter().zip(over).map(|((key, _), over)| (*key, over.contains(&true)));
    let quotas = || keys().filter(|(key, _)| key.contains("quota"));
    let is_free = |(key, is_over): (&str, bool)| is_shadow(key) || !is_over;
    keys().any(|(key, is_over)| is_over && !is_shadow(key) && !key.contains("quota"))
        || quotas().count() > 0 && !quotas().any(is_free)
}

/// What a request may have added to a limit.
fn added(
    (key, hits): (&str, u64),
    (before, after): (Used, Used),
    (is_over, any_over): (bool, bool),
    (is_refused, stops): (bool, bool),
) -> bool {
    let spent = after.0 - before.0;
    if let (Some(held_before), Some(held)) = (before.1, after.1) {
        let holds = !is_refused && hits > 0 && (!is_over || is_shadow(key));
        return spent == 0 && held - held_before == if holds { hold(key, hits) } else { 0 };
    }
    if key.contains("list") {
        return spent == if any_over || is_refused && stops { 0 } else { hits };
    }
    // The over-limit cache, and whatever else is known, spare a counter that is over its limit.
    let expected = if is_refused && stops { 0 } else { hits };
    spent == expected || is_over && (spent == hits || spent == 0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_request_is_refused_only_by_what_refuses_and_then_holds_nothing(
        steps in prop::collection::vec((prop::collection::vec(0..KEYS.len() * 6, 1..5), 0..4_u64, 0..8_u64), 60..90),
        stops: bool,
        has_cache: bool,
        is_near: bool,
    ) {
        let setup = setup(stops, has_cache, is_near);
        let mut holders: Vec<HoldId> = Vec::new();
        for (picked, hits, other) in steps {
            let keys = KEYS.iter().enumerate().filter(|(at, _)| picked.iter().any(|pick| pick % KEYS.len() == *at));
            // Most requests have none that is refused whatever it finds.
            let rare = |key: &str| key == "blocked" && !picked.contains(&18);
            let keys: Vec<&str> = keys.map(|(_, key)| *key).filter(|key| !rare(key)).collect();
            if keys.is_empty() {
                continue;
            }
            let mut request = request(&keys);
            request.descriptors.iter_mut().for_each(|descriptor| descriptor.hits_addend = Some(hits));
            let before: Vec<_> = keys.iter().map(|key| used(&setup, key)).collect();
            let mut answer = finish(pin!(setup.limiter.decide(&request, None, None))).unwrap();
            let after: Vec<_> = keys.iter().map(|key| used(&setup, key)).collect();
            let is_asked = |key: &str| !(key == "exempt" || key == "named" && keys.contains(&"replacing"));
            let asked: Vec<_> = keys.iter().map(|key| (*key, hits)).filter(|(key, _)| is_asked(key)).collect();
            let of = |key: &str| keys.iter().position(|one| *one == key).unwrap();
            let over: Vec<_> = asked.iter().map(|(key, hits)| over(key, *hits, &before[of(key)])).collect();
            let is_blocked = keys.contains(&"blocked");
            let is_refused = is_blocked || is_refused(&asked, &over);
            let shown = format!("{asked:?} {before:?} {after:?} stop {stops} cache {has_cache} near {is_near}");
            prop_assert_eq!(answer.code == Code::OverLimit, is_refused, "{}", shown);
            for (key, after) in keys.iter().zip(&after).filter(|(key, _)| is_blocked || !is_asked(key)) {
                prop_assert_eq!(&before[of(key)], after, "{} counts nothing: {}", key, shown);
            }
            for ((key, hits), over) in asked.iter().zip(&over).filter(|_| !is_blocked) {
                let any_over = over.contains(&true);
                for ((before, after), is_over) in before[of(key)].iter().zip(&after[of(key)]).zip(over) {
                    let is_added = added(
                        (*key, *hits),
                        (*before, *after),
                        (*is_over, any_over),
                        (is_refused, stops),
                    );
                    prop_assert!(is_added, "{}: {}", key, shown);
                }
            }
            let held = answer.hold.take();
            prop_assert!(held.is_none() || !is_refused, "{}", shown);
            if let Some(token) = held {
                holders.push(token.id().clone());
                token.delivered();
            }
            if other < 2 && !holders.is_empty() {
                let id = holders.swap_remove(picked[0] % holders.len());
                let close = if other == 0 { Close::End } else { Close::Settle(0) };
                let closing = setup.limiter.holds.queue.closing(id, close, None);
                let now = setup.limiter.now();
                let closed = counters::KeepHolds::try_close_holds(&setup.store.counters, &closing, now);
                prop_assert_eq!(closed, counters::Applied::Done);
            }
        }
    }
}
