//! Tollgate is a rate limit service for Envoy: a drop-in replacement for the Go service `envoyproxy/ratelimit`.
//!
//! The path of a request: bytes → [`server::grpc`] → `server::wire` → [`limiter`] (which finds the rule in
//! [`rules`] and counts in [`store`]) → `server::wire` → bytes. `ARCHITECTURE.md` describes it, and lists the
//! dependencies between modules.
//!
//! In reading order: [`rules`] are the limits, and [`rules_source`] loads them; [`store`] counts; [`limiter`] decides,
//! [`recent`] records its last decisions, [`overrides`] are limits that operators set at run time, and [`replicas`] are
//! the replicas that share a Redis; [`telemetry`] has metrics, traces and logs; [`server`] has the ports; [`settings`],
//! `app` and [`cli`] put it together. [`net`] connects to other servers. `protobuf` reads messages in bounded memory.
//! [`panics`] defines the cost of a panic.
#![cfg_attr(not(test), deny(clippy::string_slice))]

mod app;
pub mod cli;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod settings;

/// The commit that the program was built from, or `unknown`.
const COMMIT: &str = env!("TOLLGATE_COMMIT");

#[cfg(any(test, fuzzing))]
#[global_allocator]
static ALLOCATOR: http2::fuzz::Counting = http2::fuzz::Counting;
