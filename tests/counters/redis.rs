//! Counters in real Redis servers of each topology: keys and values, and failures. Timeouts are long enough for a busy
//! machine, except in tests about time. Those send a control request, which needs no counter, beside each request, and
//! subtract its delay.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response::Code};

use support::{
    client::{Client, request},
    clock::{YEAR, window},
    server::Server,
    steady::{Asked, Outcome, Verdict, quantile},
};

// Sliding windows, logs and buckets, which scripts count.
mod algorithms;
// Servers that are not Redis, and values that are not counters.
mod bad_input;
// Keys that are over their limit cost Redis nothing.
mod cache;
// Contention: exactly the limit is admitted.
pub(crate) mod exact;
// Credentials that change while the service runs.
mod credentials;
// Failovers and moving slots under load.
mod failover;
// Logins with an AWS identity.
mod iam;
// Connections that are killed again and again, and servers that are not found.
mod killed;
// Exact names, values and expiries.
mod keys;
// Room that comes back, of which every replica hears.
mod room;
// Servers that accept connections but no writes, and the health of the service.
mod refused_writes;
// Denied commands, errors of every kind, and unexpected replies.
mod replies;
// Replicas that are replaced one by one.
mod upgrade;
// Rules with several limits, which count all or nothing.
pub(crate) mod several;
// A Redis that is slower than its callers, or stalls.
mod overload;
// Replicas that divide the limits while Redis is lost.
mod share;
// The service that starts before its Redis.
mod start;
// Every way to reach a Redis.
mod topologies;

/// Envoy's default timeout for a response.
pub(crate) const ENVOYS_PATIENCE: Duration = Duration::from_millis(20);

/// Limits per year, so that no window ends during a test; and the control, which needs no counter.
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

/// A rule for each kind of counter; others can follow.
const OF_EACH_KIND: &str = "
domain: d
descriptors:
  - {key: fixed, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: leased, rate_limit: {unit: year, requests_per_unit: 1000, counting: leased}}
  - {key: sliding, rate_limit: {unit: year, requests_per_unit: 1000, algorithm: sliding_window}}
  - {key: log, rate_limit: {unit: year, requests_per_unit: 1000, algorithm: sliding_log}}
  - {key: token, rate_limit: {unit: year, requests_per_unit: 1000, algorithm: token_bucket}}
  - {key: leaky, rate_limit: {unit: year, requests_per_unit: 1000, algorithm: leaky_bucket, burst: 1000}}
";

/// A request of one descriptor.
pub(crate) fn one(key: &str, value: &str) -> RateLimitRequest {
    request("d", &[&[(key, value)]])
}

/// The code and the remaining hits of the response to a request of one descriptor.
pub(crate) fn code(client: &Client, key: &str, value: &str) -> (Code, u32) {
    decision(&client.ask(one(key, value)).expect("the request is answered"))
}

/// The overall code of a response, and the remaining hits of its first status.
pub(crate) fn decision(answer: &RateLimitResponse) -> (Code, u32) {
    (answer.overall_code(), answer.statuses[0].limit_remaining)
}

/// The current name of a counter in [`RULES`].
pub(crate) fn counter(key: &str, value: &str) -> String {
    format!("d_{key}_{value}_{}", window(YEAR))
}

/// The number of decisions made without counters.
pub(crate) fn by_policy(server: &Server) -> f64 {
    let of = |name: &str| name.starts_with("tollgate_store_failure_decisions_total{");
    server.metrics().iter().filter(|(name, _)| of(name)).map(|(_, value)| value).sum()
}

/// Serializes tests about time, which would disturb each other.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    // A test that failed has poisoned the lock.
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The requests with this index in the list.
pub(crate) fn of_kind(outcome: &Outcome, kind: usize) -> impl Iterator<Item = &Asked> {
    outcome.asked.iter().filter(move |one| one.kind == kind)
}

/// Fails if responses were lost or late. One in a thousand may be late; of less than a few thousand, one in a hundred.
/// The delay of the control is subtracted twice, since a response or a deadline depends on the machine twice, and the
/// control once.
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
    // A pause of the machine delays a few requests at once, and perhaps none of the control.
    let most = asked.len() / 100 + 3 + machine_late;
    assert!(late <= most, "{late} of {} deadlines were exceeded", asked.len());
}
