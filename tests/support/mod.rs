//! What the tests start, and how they talk to it.
//!
//! [`server`] starts the real binary and [`envoy`] the real Envoy, both on ports of their own; [`client`],
//! [`http`], [`load`] and [`steady`] ask them; [`upstream`] is what Envoy forwards to; [`noise`] makes
//! repeatable garbage. [`redis`] starts real Redis in each topology and [`memcached`] real memcached, with
//! [`certificates`] where TLS is asked for; [`fake`] is taken for one, and a [`proxy`] or a [`slow`] pace stands
//! before it. [`clock`] moves the time of what is started. [`grpc_tls`] has certificates for the gRPC port, and
//! clients that have them; a [`browser`] opens pages; [`control_plane`] publishes rules,
//! and a [`receiver`] takes spans.
//! Nothing here asserts anything about the service: that is the tests' part.

use std::{
    thread,
    time::{Duration, Instant},
};

pub(crate) mod bootstrap;
pub(crate) mod browser;
pub(crate) mod certificates;
pub(crate) mod client;
pub(crate) mod clock;
pub(crate) mod control_plane;
pub(crate) mod envoy;
pub(crate) mod fake;
pub(crate) mod grpc_tls;
pub(crate) mod http;
pub(crate) mod load;
pub(crate) mod memcached;
pub(crate) mod noise;
pub(crate) mod ports;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod raw;
pub(crate) mod receiver;
pub(crate) mod redis;
pub(crate) mod server;
pub(crate) mod slow;
pub(crate) mod steady;
pub(crate) mod upstream;

/// How long a test waits for what should happen at once: long enough for a slow machine that is busy with
/// other tests, since only a failing test waits it out.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Tries again until `attempt` succeeds; gives up after [`PATIENCE`] with the last reason.
pub(crate) fn eventually<T>(what: &str, attempt: impl FnMut() -> Result<T, String>) -> T {
    within(PATIENCE, attempt)
        .unwrap_or_else(|last| panic!("{what}: not within {PATIENCE:?}; last seen: {last}"))
}

/// Tries again until `attempt` succeeds, or for `limit`; then its last reason.
pub(crate) fn within<T>(
    limit: Duration,
    mut attempt: impl FnMut() -> Result<T, String>,
) -> Result<T, String> {
    let end = Instant::now() + limit;
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(last) if Instant::now() >= end => return Err(last),
            Err(_) => thread::sleep(Duration::from_millis(3)),
        }
    }
}

/// Measures again until a time is below `limit`, at most so many times: a busy machine only makes it longer, so
/// that the shortest time is the service's own.
pub(crate) fn at_best_within(
    what: &str,
    limit: Duration,
    attempts: usize,
    measure: impl FnMut() -> Duration,
) {
    let mut times = Vec::new();
    for time in std::iter::repeat_with(measure).take(attempts) {
        if time < limit {
            return;
        }
        times.push(time);
    }
    panic!("{what}: never within {limit:?}, but {times:?}");
}

/// How long it takes.
pub(crate) fn time_of<T>(action: impl FnOnce() -> T) -> Duration {
    let begun = Instant::now();
    action();
    begun.elapsed()
}

/// `Ok` when it holds, else what was seen instead: for [`eventually`].
pub(crate) fn holds(condition: bool, seen: impl FnOnce() -> String) -> Result<(), String> {
    if condition { Ok(()) } else { Err(seen()) }
}
