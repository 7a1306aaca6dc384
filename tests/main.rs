//! The service from outside: the real binary, and in front of it the real Envoy.
//!
//! `tests/run` installs what they need and runs them all.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod envoy;
mod golden;
mod layers;
mod support;
