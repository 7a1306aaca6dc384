//! The service from outside: the real binary, and in front of it the real Envoy.
//!
//! `tests/run` installs what they need and runs them all.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod api;
mod bounds;
mod cli;
mod connections;
mod drain;
mod envoy;
mod garbage;
mod golden;
mod health;
mod layers;
mod lesson;
mod reload;
mod start;
mod support;
