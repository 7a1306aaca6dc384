//! The policy `share`: while the store is lost, replicas admit together what the limit admits.

use super::{
    setup::{Setup, finish, request},
    statuses,
};
use crate::{Code, Descriptor, QuotaBucket};
use clock::Time;
use faults::OnStoreFailure;
use limit::Share;
use metrics::{FailureReason, RuleCounter};
use std::pin::pin;

/// Replicas without a store, which know each other.
fn replicas(number: usize, rules: &str) -> Vec<Setup> {
    let replica = |rank| {
        let setup = Setup::lost(OnStoreFailure::Share);
        setup.load(rules);
        setup.limiter.set_share(Share::new(rank, number).unwrap());
        setup
    };
    (0..number).map(replica).collect()
}

/// The requests of this many hits that all replicas admit, which are asked until none does.
fn admitted(replicas: &[Setup], hits: u64) -> u64 {
    let mut all = 0;
    loop {
        let mut asked = request(&["k"]);
        asked.descriptors[0].hits_addend = Some(hits);
        let admits =
            |setup: &&Setup| finish(pin!(setup.limiter.decide(&asked, None, None))).unwrap().code == Code::Ok;
        match replicas.iter().filter(admits).count() as u64 {
            0 => return all,
            admitted => all += admitted,
        }
    }
}

fn rules(limit: &str) -> String {
    format!("domain: d\ndescriptors: [{{key: k, rate_limit: {limit}}}]\n")
}

#[test]
fn all_replicas_together_admit_the_limit() {
    let limits = [
        "{unit: hour, requests_per_unit: N}",
        "{unit: hour, requests_per_unit: N, algorithm: sliding_window}",
        "{unit: hour, requests_per_unit: N, algorithm: sliding_log}",
        "{unit: day, requests_per_unit: N, algorithm: token_bucket}",
        "{unit: day, requests_per_unit: N, algorithm: token_bucket, burst: N}",
        "{unit: hour, requests_per_unit: N, hold: {amount: 1, ttl: 1m}}",
        "{algorithm: concurrency, requests_per_unit: N, hold: {ttl: 1m}}",
        "[{unit: minute, requests_per_unit: N}, {unit: hour, requests_per_unit: 1000}]",
    ];
    for limit in limits {
        for (number, requests, expected) in
            [(1, 10, 10), (3, 10, 10), (4, 100, 100), (5, 3, 5), (3, 1, 3), (2, 0, 0)]
        {
            let text = rules(&limit.replace('N', &requests.to_string()));
            if requests == 0
                && (limit.contains("concurrency") || limit.contains("burst") || limit.contains("hold"))
            {
                continue;
            }
            let admitted = admitted(&replicas(number, &text), 1);
            assert_eq!(admitted, expected, "{number} replicas: {text}");
        }
    }
}

#[test]
fn several_hits_fit_into_a_share_or_never_do() {
    let text = rules("{unit: hour, requests_per_unit: 100}");
    assert_eq!(admitted(&replicas(4, &text), 5), 20);
    assert_eq!(admitted(&replicas(4, &text), 26), 0);
}

#[test]
fn a_counter_that_a_lease_knows_begins_with_what_was_left() {
    let text = rules("{unit: hour, requests_per_unit: 100}");
    for (known, expected) in [(0, 100), (60, 40), (99, 1), (100, 0), (250, 0)] {
        let replicas = replicas(3, &text);
        for one in &replicas {
            *one.store.known.lock().unwrap() = Some(known);
        }
        assert_eq!(admitted(&replicas, 1), expected, "{known} hits were counted");
    }
}

#[test]
fn the_status_has_the_limit_and_what_is_left_of_the_share() {
    let replicas = replicas(3, &rules("{unit: hour, requests_per_unit: 10}"));
    let answer = replicas[0].decide(&["k"]).unwrap();
    assert_eq!(statuses(&answer), [(Code::Ok, Some(10), 3)]);
    for _ in 0..5 {
        replicas[0].decide(&["k"]).unwrap();
    }
    let [total, over] = [RuleCounter::TotalHits, RuleCounter::OverLimit];
    let count = |which| replicas[0].stats.rule("d", "d.k").get(which);
    assert_eq!((count(total), count(over)), (6, 2));
    assert_eq!(replicas[0].decided(OnStoreFailure::Share, FailureReason::Timeout), 6);
}

#[test]
fn a_bucket_has_another_state_for_each_share() {
    let replicas = replicas(1, &rules("{unit: day, requests_per_unit: 1000, algorithm: token_bucket}"));
    let one = &replicas[0];
    assert_eq!(admitted(&replicas, 10), 100);
    for (rank, number, expected) in [(0, 2, 50), (1, 3, 33), (0, 1, 0)] {
        one.limiter.set_share(Share::new(rank, number).unwrap());
        assert_eq!(admitted(&replicas, 10), expected, "{number} replicas");
    }
}

#[test]
fn without_a_list_of_replicas_it_decides_as_local_and_says_so() {
    let setup = Setup::lost(OnStoreFailure::Share);
    for _ in 0..5 {
        setup.decide(&["k"]).unwrap();
    }
    let decided = |policy| setup.decided(policy, FailureReason::Timeout);
    assert_eq!([OnStoreFailure::Local, OnStoreFailure::Share].map(decided), [5, 0]);
    assert_eq!(admitted(std::slice::from_ref(&setup), 1), 0, "three of five were within the whole limit");
    // What was counted stays counted.
    setup.limiter.set_share(Share::new(0, 2).unwrap());
    assert_eq!(admitted(std::slice::from_ref(&setup), 1), 0);
    assert_eq!(decided(OnStoreFailure::Share), 1);
    setup.clock.set(Time::from_seconds(7200 + 3600));
    assert_eq!(admitted(std::slice::from_ref(&setup), 1), 2);
}

#[test]
fn the_number_of_replicas_matters_where_a_domain_has_the_policy() {
    let text = rules("{unit: hour, requests_per_unit: 10}");
    let setup = Setup::new(OnStoreFailure::Local, |_| ());
    setup.load(&text);
    assert!(!setup.limiter.uses_share());
    setup.load(&format!("on_store_failure: share\n{text}"));
    assert!(setup.limiter.uses_share());
    setup.load(&text);
    let switch = serde_json::json!({"domain": "d", "on_store_failure": "share"});
    setup.overrides.set(&overrides::Override::switch_from_json(&switch, Time::default()).unwrap()).unwrap();
    assert!(setup.limiter.uses_share());
    assert!(Setup::new(OnStoreFailure::Share, |_| ()).limiter.uses_share());
}

#[test]
fn refunds_return_to_the_share() {
    let replicas = replicas(2, &rules("{unit: hour, requests_per_unit: 10}"));
    assert_eq!(admitted(&replicas, 1), 10);
    let mut asked = request(&["k"]);
    asked.descriptors = std::iter::once(Descriptor {
        hits_addend: Some(4),
        is_negative_hits: true,
        ..asked.descriptors[0].clone()
    })
    .collect();
    finish(pin!(replicas[0].limiter.decide(&asked, None, None))).unwrap();
    // The rejected request of one hit was counted too.
    assert_eq!(admitted(&replicas, 1), 3);
}

/// What Envoys are assigned and callers are admitted, in turns, until neither gets more.
#[test]
fn envoys_and_callers_have_the_share_together() {
    for limit in [
        "{unit: hour, requests_per_unit: 1000}",
        "{unit: day, requests_per_unit: 1000, algorithm: token_bucket}",
        "{unit: hour, requests_per_unit: 1000, algorithm: sliding_window}",
    ] {
        let replicas = replicas(2, &rules(limit));
        let bucket =
            QuotaBucket { domain: "d".into(), entries: [("k".into(), "v".into())].into_iter().collect() };
        let mut assigned = 0;
        for setup in &replicas {
            // Some of it is more than the share has.
            for hits in [100, 300, 900] {
                let reserved = setup.limiter.reserve(&bucket, hits, setup.limiter.now());
                let hits = finish(pin!(reserved)).expect("the policy is share");
                assigned += hits;
            }
        }
        assert_eq!(assigned, 1000, "{limit}");
        assert_eq!(admitted(&replicas, 1), 0, "{limit}");
        for setup in &replicas {
            finish(pin!(setup.limiter.give_back(&bucket, 50, setup.limiter.now())));
        }
        // A fixed window has counted the request that each refused.
        assert!((98..=100).contains(&admitted(&replicas, 1)), "{limit}");
    }
}
