//! Tollgate answers Envoy's question whether a request may pass: a drop-in for the Go
//! `envoyproxy/ratelimit` service.
//!
//! The path of a request: bytes → [`server::grpc`] → `server::wire` → [`limiter`] (which finds the rule in
//! [`rules`] and counts in [`store`]) → `server::wire` → bytes. `ARCHITECTURE.md` draws it, and lists which module
//! may use which.
//!
//! In reading order: [`rules`] are the limits and [`rules_source`] is where they come from; [`store`] counts;
//! [`limiter`] decides, [`recent`] remembers what it decided, [`overrides`] are limits that operators set while it
//! runs, and [`replicas`] are the replicas that share a Redis; [`telemetry`] has metrics, traces and logs; [`server`]
//! is the edge; [`settings`], [`app`] and [`cli`] put it together. [`net`] connects to other servers. `protobuf`
//! parses messages without building them, so that a peer cannot choose their size. [`panics`] defines the cost of a
//! panic.
#![cfg_attr(not(test), deny(clippy::string_slice))]

// First, because the macro is in scope from here on.
#[macro_use]
mod named;

pub mod app;
pub mod cli;
pub mod clock;
pub mod entries;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod limiter;
pub mod log_throttle;
pub mod memory;
pub mod mutex;
pub mod net;
pub mod overrides;
pub mod panics;
pub mod proto;
mod protobuf;
pub mod recent;
pub mod replicas;
pub mod rules;
pub mod rules_source;
pub mod server;
pub mod settings;
pub mod store;
pub mod telemetry;
pub mod text;
