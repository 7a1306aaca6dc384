//! Tollgate is a rate limit service for Envoy: a drop-in replacement for the Go service `envoyproxy/ratelimit`.
//!
//! This crate is the wiring: [`app`] creates the parts from the settings, binds the ports and drains them. What it puts
//! together are the crates below `crates/`; `ARCHITECTURE.md` lists them and follows a request through them.
#![cfg_attr(not(test), deny(clippy::string_slice))]

pub mod app;
#[cfg(any(test, fuzzing))]
#[path = "../fuzz/targets.rs"]
pub mod fuzz;

/// The commit that the program was built from, or `unknown`.
const COMMIT: &str = env!("TOLLGATE_COMMIT");

#[cfg(any(test, fuzzing))]
#[global_allocator]
static ALLOCATOR: http2::fuzz::Counting = http2::fuzz::Counting;
