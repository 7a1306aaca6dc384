//! Decisions with a store that answers later, or never.

mod asks;
mod at_once;
mod beside;
mod left;
mod overrides;
mod quota;
mod remembered;
mod response;
mod separation;
mod setup;
mod several_limits;
mod share;

use std::{
    pin::pin,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use proptest::prelude::*;

use super::*;
use metrics::FailureReason;
use rules::Value;
use setup::{RULES, Setup, finish, poll, request};

/// The code, the limit and the remaining hits of each descriptor.
fn statuses(answer: &Answer) -> Vec<(Code, Option<u64>, u64)> {
    let reported = |status: &Status| {
        let limit = status.current_limit.as_ref().map(|limit| limit.requests_per_unit);
        (status.code, limit, status.limit_remaining)
    };
    answer.statuses.iter().map(reported).collect()
}

#[test]
fn a_store_error_is_returned_and_counted() {
    let setup = Setup::lost(OnStoreFailure::Error);
    let refusal = setup.decide(&["k"]).unwrap_err();
    assert_eq!(refusal.to_string(), "counter store: timed out");
    assert_eq!(setup.stats.service().redis_error.get(), 1);
    assert_eq!(setup.decided(OnStoreFailure::Error, FailureReason::Timeout), 1);
    assert_eq!(setup.counts("k"), [1, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn the_allow_policy_reports_the_full_limit() {
    let setup = Setup::lost(OnStoreFailure::Allow);
    for _ in 0..5 {
        let answer = setup.decide(&["k", "free", "unknown"]).unwrap();
        let expected = [(Code::Ok, Some(3), 3), (Code::Ok, None, u32::MAX.into()), (Code::Ok, None, 0)];
        assert_eq!((answer.code, statuses(&answer)), (Code::Ok, expected.into()));
    }
    assert_eq!(setup.decided(OnStoreFailure::Allow, FailureReason::Timeout), 5);
    assert_eq!(setup.counts("k"), [5, 0, 0, 0, 0, 0, 0], "only hits: the outcome is unknown");
    assert_eq!(setup.stats.service().redis_error.get(), 0, "no error was returned");
}

#[test]
fn what_a_store_held_before_it_failed_gives_no_identity() {
    let setup = Setup::lost(OnStoreFailure::Allow);
    let hold = "rate_limit: {unit: hour, requests_per_unit: 9, hold: {amount: 1, ttl: 10m}}";
    setup.load(&format!("domain: d\ndescriptors: [{{key: one, {hold}}}, {{key: other, {hold}}}]\n"));
    setup.store.holds_first.store(true, Relaxed);
    let answer = setup.decide(&["one", "other"]).unwrap();
    assert!(answer.code == Code::Ok && answer.hold.is_none(), "{answer:?}");
    assert_eq!(statuses(&answer), [(Code::Ok, Some(9), 9); 2], "nothing is known of either");
}

#[test]
fn the_deny_policy_reports_over_limit() {
    let setup = Setup::lost(OnStoreFailure::Deny);
    let answer = setup.decide(&["k", "free"]).unwrap();
    let expected = [(Code::OverLimit, Some(3), 0), (Code::Ok, None, u32::MAX.into())];
    assert_eq!((answer.code, statuses(&answer)), (Code::OverLimit, expected.into()));
    assert_eq!(setup.decide(&["free", "unknown"]).unwrap().code, Code::Ok, "no counter is needed");
    assert_eq!(setup.decided(OnStoreFailure::Deny, FailureReason::Timeout), 1);
    assert_eq!(setup.counts("k"), [1, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn shadow_and_quota_mode_apply_under_the_deny_policy() {
    let setup = Setup::lost(OnStoreFailure::Deny);
    let shadow = setup.decide(&["shadow"]).unwrap();
    assert_eq!((shadow.code, statuses(&shadow)), (Code::Ok, vec![(Code::Ok, Some(3), 0)]));
    assert_eq!(setup.counts("shadow"), [1, 0, 0, 0, 0, 0, 0]);
    let quota = setup.decide(&["quota", "shadow"]).unwrap();
    assert_eq!(quota.code, Code::OverLimit, "every quota counts as exhausted");

    let setup = Setup::new(OnStoreFailure::Deny, |policy| policy.shadow_mode = true);
    setup.store.set_lost(Some(FailureReason::Unavailable));
    assert_eq!(setup.decide(&["k"]).unwrap().code, Code::Ok);
    assert_eq!(setup.stats.service().global_shadow_mode.get(), 1);
    assert_eq!(setup.decided(OnStoreFailure::Deny, FailureReason::Unavailable), 1);
}

#[test]
fn cached_rejections_hold_while_the_store_fails() {
    let setup = Setup::new(OnStoreFailure::Allow, |_| ());
    for _ in 0..4 {
        setup.decide(&["k"]).unwrap();
    }
    setup.store.set_lost(Some(FailureReason::ConnectionLost));
    let answer = setup.decide(&["k", "quota"]).unwrap();
    assert_eq!(statuses(&answer), [(Code::OverLimit, Some(3), 0), (Code::Ok, Some(3), 3)]);
}

#[test]
fn assumed_outcomes_are_not_cached() {
    for policy in [OnStoreFailure::Allow, OnStoreFailure::Deny, OnStoreFailure::Local] {
        let setup = Setup::lost(policy);
        for _ in 0..5 {
            setup.decide(&["k"]).unwrap();
        }
        setup.store.set_lost(None);
        let answer = setup.decide(&["k"]).unwrap();
        assert_eq!(statuses(&answer), [(Code::Ok, Some(3), 2)], "{policy:?}: the store has seen one hit");
    }
}

#[test]
fn local_counters_are_removed_when_their_window_ends() {
    let setup = Setup::lost(OnStoreFailure::Local);
    assert_eq!(setup.limiter.local_usage(), None, "created on first use");
    setup.decide(&["k", "quota"]).unwrap();
    assert_eq!(setup.limiter.local_usage().unwrap().held.entries, 2);
    for second in 0..100 {
        setup.limiter.maintain(Time::from_seconds(10_800 + second));
    }
    assert_eq!(setup.limiter.local_usage().unwrap().held.entries, 0);
}

#[test]
fn dynamic_metadata_names_the_failure_policy() {
    let setup = Setup::new(OnStoreFailure::Allow, |policy| policy.response.metadata = MetadataDetail::Plain);
    let metadata = || setup.decide(&["k"]).unwrap().dynamic_metadata.unwrap();
    assert_eq!(metadata().get("storeFailure"), None);
    setup.store.set_lost(Some(FailureReason::QueueFull));
    let metadata = metadata();
    let text = |text: &str| Value::Text(text.to_owned());
    let expected = [("policy".to_owned(), text("allow")), ("reason".to_owned(), text("queue_full"))];
    assert_eq!(metadata.get("storeFailure"), Some(&Value::Map(expected.into())));
    assert!(metadata.contains_key("metadata"), "the metadata of passed rules: {metadata:?}");
}

#[test]
fn the_store_receives_the_callers_deadline() {
    let setup = Setup::new(OnStoreFailure::Error, |_| ());
    let until = Instant::now() + Duration::from_millis(18);
    finish(pin!(setup.limiter.decide(&request(&["k"]), Some(until), None))).unwrap();
    assert_eq!(*setup.store.last_until.lock().unwrap(), Some(until));
    setup.decide(&["k"]).unwrap();
    assert_eq!(*setup.store.last_until.lock().unwrap(), None);
}

#[test]
fn a_request_uses_the_rules_that_it_started_with() {
    let setup = Setup::new(OnStoreFailure::Error, |_| ());
    let request = request(&["k"]);
    let mut waiting = pin!(setup.limiter.decide(&request, None, None));
    assert!(poll(waiting.as_mut()).is_none(), "the store has not answered yet");
    for limit in [7, 8] {
        setup.load(&RULES.replace("requests_per_unit: 3", &format!("requests_per_unit: {limit}")));
    }
    assert_eq!(statuses(&finish(waiting).unwrap()), [(Code::Ok, Some(3), 2)]);
    assert_eq!(statuses(&setup.decide(&["k"]).unwrap()), [(Code::Ok, Some(8), 6)]);
}

#[test]
fn a_waiting_decision_outlives_its_message() {
    let setup = Setup::new(OnStoreFailure::Error, |policy| {
        policy.response.metadata = MetadataDetail::Plain;
    });
    let expected = setup.decide(&["k", "unknown"]).unwrap().dynamic_metadata.unwrap();
    let message = "k unknown".to_owned();
    let keys: Vec<&str> = message.split(' ').collect();
    let Ok(Decided::Wait(pending)) =
        setup.limiter.try_decide(&request(&keys), setup.limiter.now(), None, None)
    else {
        panic!("only the store knows")
    };
    drop(message);
    let answer = finish(pin!(pending)).decided.unwrap();
    assert_eq!(statuses(&answer)[0], (Code::Ok, Some(3), 1));
    assert_eq!(answer.dynamic_metadata.unwrap(), expected);
    assert_eq!(setup.counts("k")[0], 2, "each hit once");
}

#[test]
fn a_trace_contains_the_rules_and_the_wait() {
    let setup = Setup::new(OnStoreFailure::Allow, |_| ());
    let traced = |keys: &[&str]| {
        let mut trace = DecisionTrace::default();
        let request = request(keys);
        finish(pin!(setup.limiter.decide(&request, None, Some(&mut trace)))).unwrap();
        trace
    };
    let met = traced(&["k", "nothing", "free", "shadow"]);
    let names: Vec<_> = met.rules.iter().map(Option::as_deref).collect();
    assert_eq!(names, [Some("d.k"), None, Some("d.free"), Some("d.shadow")]);
    let wait = met.wait.unwrap();
    assert!(wait.checks == 2 && wait.error.is_none() && wait.times[0] <= wait.times[1], "{wait:?}");
    assert_eq!((traced(&["free"]).wait, met.failure), (None, None), "no store was used");

    setup.store.set_lost(Some(FailureReason::Timeout));
    let lost = traced(&["k"]);
    assert_eq!(lost.failure, Some(("allow", "timeout")));
    assert!(lost.wait.unwrap().error.unwrap().contains("no answer"));
}

#[test]
fn a_trace_contains_the_rules_name_and_not_the_callers_values() {
    let setup = Setup::new(OnStoreFailure::Error, |_| ());
    setup.load("domain: d\ndescriptors: [{key: k, detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 3}}]\n");
    let mut request = request(&["k", "k"]);
    request.descriptors[1].limit =
        Some(LimitOverride { requests_per_unit: 1, unit: 1, unit_multiplier: None });
    let mut trace = DecisionTrace::default();
    finish(pin!(setup.limiter.decide(&request, None, Some(&mut trace)))).unwrap();
    assert_eq!(trace.rules, [Some("d.k".into()), None], "a limit of the request has no rule");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_local_fallback_counts_like_a_store(
        requests in prop::collection::vec(
            (prop::collection::vec(0..4_usize, 1..4), prop::option::of(0..4_u64), any::<bool>(), 0..3000_u64),
            1..30,
        ),
        stop_when_over: bool,
    ) {
        let setup = |lost| {
            let setup = Setup::new(OnStoreFailure::Local, |policy| policy.stop_when_over = stop_when_over);
            setup.store.set_lost(lost);
            // Without the over-limit cache, whose entries do not come from counters of this process.
            Setup { limiter: Arc::new(Limiter { over_limit: None, ..Arc::into_inner(setup.limiter).expect("it is the only one") }), ..setup }
        };
        let (sound, lost) = (setup(None), setup(Some(FailureReason::BadAnswer)));
        let mut now = 7200;
        for (keys, hits, back, seconds) in requests {
            let keys: Vec<_> = keys.into_iter().map(|at| ["k", "shadow", "quota", "free"][at]).collect();
            let mut request = request(&keys);
            request.descriptors[0].hits_addend = hits;
            request.descriptors[0].is_negative_hits = back;
            now += seconds;
            let answers = [&sound, &lost].map(|setup| {
                setup.clock.set(Time::from_seconds(now));
                finish(pin!(setup.limiter.decide(&request, None, None))).unwrap()
            });
            prop_assert_eq!(&answers[0], &answers[1]);
        }
        for key in ["k", "shadow", "quota"] {
            prop_assert_eq!(sound.counts(key), lost.counts(key));
        }
    }
}
