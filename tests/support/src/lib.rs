//! The servers and clients of the tests.
//!
//! [`server`] starts the real binary and [`envoy`] the real Envoy; [`client`], [`http`], [`load`] and [`steady`] send
//! requests, and [`frames`] any HTTP/2 frames; [`upstream`] is the server behind Envoy; [`noise`] generates repeatable random input. [`redis`] starts
//! real Redis in each topology and [`memcached`] real memcached ([`stores`] has one of each), with [`certificates`] for TLS; [`fake`] is a fake
//! Redis, and [`proxy`] and [`slow`] delay or break its connections. [`clock`] moves the time of the started programs.
//! [`grpc_tls`] has certificates and clients for the gRPC port; a [`browser`] opens pages; [`control_plane`] publishes
//! rules, and a [`receiver`] collects spans. Assertions about the service are in the tests.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(
    clippy::new_without_default,
    clippy::result_unit_err,
    clippy::should_implement_trait,
    reason = "these are for callers of published crates"
)]

use std::{
    thread,
    time::{Duration, Instant},
};

pub mod bootstrap;
pub mod browser;
pub mod certificates;
pub mod client;
pub mod clock;
pub mod control_plane;
pub mod envoy;
pub mod fake;
pub mod frames;
pub mod grpc_tls;
pub mod http;
pub mod load;
pub mod markdown;
pub mod memcached;
pub mod noise;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod quotas;
pub mod raw;
pub mod receiver;
pub mod redis;
pub mod server;
pub mod slow;
pub mod steady;
pub mod stores;
pub mod upstream;

/// The directory of the repository.
pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// How long a test waits for a condition: long enough for a slow and busy machine, since only a failing test waits that
/// long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A size that shows the property, or in `tests/run deep` the full one.
pub fn or_deep<T>(usual: T, deep: T) -> T {
    if std::env::var_os("TOLLGATE_TEST_DEEP").is_some() { deep } else { usual }
}

/// Retries until `attempt` succeeds. Panics with the last error after [`PATIENCE`].
pub fn eventually<T>(what: &str, attempt: impl FnMut() -> Result<T, String>) -> T {
    within(PATIENCE, attempt)
        .unwrap_or_else(|last| panic!("{what}: not within {PATIENCE:?}; last seen: {last}"))
}

/// Retries until `attempt` succeeds. Returns the last error after `limit`.
pub fn within<T>(limit: Duration, mut attempt: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let end = Instant::now() + limit;
    // Longer and longer, so that tests which wait leave the cores to those which work.
    let mut pause = Duration::from_millis(3);
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(last) if Instant::now() >= end => return Err(last),
            Err(_) => thread::sleep(pause),
        }
        pause = (pause * 5 / 4).min(Duration::from_millis(50));
    }
}

/// Repeats a measurement until the time is below `limit`: a busy machine only makes it longer, so the shortest time is
/// that of the service.
pub fn at_best_within(what: &str, limit: Duration, attempts: usize, measure: impl FnMut() -> Duration) {
    let mut times = Vec::new();
    for time in std::iter::repeat_with(measure).take(attempts) {
        if time < limit {
            return;
        }
        times.push(time);
    }
    panic!("{what}: never within {limit:?}, but {times:?}");
}

/// The duration of an action.
pub fn time_of<T>(action: impl FnOnce() -> T) -> Duration {
    let begun = Instant::now();
    action();
    begun.elapsed()
}

/// `Ok` if the condition is true, else the value seen: for [`eventually`].
pub fn holds<S: ToString>(condition: bool, seen: impl FnOnce() -> S) -> Result<(), String> {
    if condition { Ok(()) } else { Err(seen().to_string()) }
}
