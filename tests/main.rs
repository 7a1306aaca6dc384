//! Tests of the real binary, also behind the real Envoy.
//!
//! `tests/run` installs their dependencies and runs all. Every test starts its own services, with their own ports and
//! directories, so tests run in parallel.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

// As the folders of `crates/`.
mod limits;

mod counters;

mod decision;

mod ports;

mod operations;

// The image, Compose, Kubernetes, Istio, Prometheus and the dashboard, run or checked; dependencies and examples.
mod deploy;
// The documentation.
mod docs;

// Servers and clients of the tests.
mod support;
