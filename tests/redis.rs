//! Counters in Redis: real servers in each topology, what is kept in them, and what happens without them.
//!
//! The tests wait for Redis as long as a busy machine takes, but for those about time: these ask a control
//! beside each request, one that needs no counter, and take off what the control suffered.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tollgate::proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
};

use crate::support::{
    client::{Client, request},
    clock::{YEAR, window},
    server::Server,
    steady::{Asked, Outcome, Verdict, quantile},
};

// Sliding windows, logs and buckets, which scripts count.
mod algorithms;
// Servers that are not what they should be, and values that are no counters.
mod bad_input;
// Keys that are over their limit cost Redis nothing.
mod cache;
// Contention: exactly the limit is admitted.
pub(crate) mod exact;
// Masters that are replaced, and slots that move, while requests come.
mod failover;
// Names, values and expiries, to the letter.
mod keys;
// Redis killed, frozen, cut off and slow, under load.
mod loss;
// Commands that are denied, errors of every kind, and answers that are none.
mod replies;
// Rules with several limits, which count all or nothing.
pub(crate) mod several;
// A Redis that is slower than its callers, or stalls.
mod overload;
// The service that starts before its Redis.
mod start;
// Every way to reach a Redis.
mod topologies;

/// What Envoy waits for an answer when nothing is said about it.
pub(crate) const ENVOYS_PATIENCE: Duration = Duration::from_millis(20);

/// Limits a year, so that no window ends during a test; and the control, which needs no counter.
pub(crate) const RULES: &str = "
domain: d
descriptors:
  - key: two
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: five
    rate_limit: {unit: year, requests_per_unit: 5}
  - key: many
    rate_limit: {unit: year, requests_per_unit: 4000000000}
  - key: control
    rate_limit: {unlimited: true}
";

/// A request of one descriptor.
pub(crate) fn one(key: &str, value: &str) -> RateLimitRequest {
    request("d", &[&[(key, value)]])
}

/// The code of the answer to a request of one descriptor, and what is left.
pub(crate) fn code(client: &Client, key: &str, value: &str) -> (Code, u32) {
    decision(&client.ask(one(key, value)).expect("the request is answered"))
}

/// The overall code of an answer, and what is left by its first status.
pub(crate) fn decision(answer: &RateLimitResponse) -> (Code, u32) {
    (answer.overall_code(), answer.statuses[0].limit_remaining)
}

/// The name of a counter in [`RULES`], now.
pub(crate) fn counter(key: &str, value: &str) -> String {
    format!("d_{key}_{value}_{}", window(YEAR))
}

/// How many decisions were made without counters.
pub(crate) fn by_policy(server: &Server) -> f64 {
    let of = |name: &str| name.starts_with("tollgate_store_failure_decisions_total{");
    server.metrics().iter().filter(|(name, _)| of(name)).map(|(_, value)| value).sum()
}

/// Waits for its turn: tests about time would be each other's noise.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    // One that failed has had its turn as well.
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The requests of this place in the list of those that were asked.
pub(crate) fn of_kind(outcome: &Outcome, kind: usize) -> impl Iterator<Item = &Asked> {
    outcome.asked.iter().filter(move |one| one.kind == kind)
}

/// Fails when answers were lost, or came when nobody waited for them any more. One in a thousand may be
/// late; of less than a few thousand, one in a hundred. What the control suffered is taken off: twice, since
/// who waits for an answer or a deadline depends on the machine twice, where the control does once.
pub(crate) fn assert_in_time(outcome: &Outcome, patience: Duration) {
    let Outcome { asked, control } = outcome;
    let lost: Vec<_> = asked.iter().filter(|one| matches!(one.verdict, Verdict::Lost(_))).collect();
    assert!(lost.is_empty(), "{} answers were lost, the first: {:?}", lost.len(), lost[0]);
    let machine = control.iter().map(|one| one.took).max().unwrap_or_default();
    let share = if asked.len() < 5000 { 0.99 } else { 0.999 };
    let nearly_all = quantile(asked, share);
    assert!(
        nearly_all <= patience + 2 * machine,
        "{share} of the answers took up to {nearly_all:?}, none of the control longer than {machine:?}"
    );
    let late =
        |asked: &[Asked]| asked.iter().filter(|one| matches!(one.verdict, Verdict::Error(4, _))).count();
    let (late, machine_late) = (late(asked), late(control));
    assert!(late <= asked.len() / 100 + machine_late, "{late} of {} deadlines were exceeded", asked.len());
}
