//! Stores: what is counted, where, and what happens when it fails.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

// Counters in Redis: single, Sentinel and Cluster.
pub(crate) mod redis;
// Counters in memcached, on one server and on several.
pub(crate) mod memcached;
// A million counters.
pub(crate) mod full;
pub(crate) mod memory;
// Leases.
pub(crate) mod lease;
// Budgets that are reserved while a request is under way.
pub(crate) mod holds;
// Stores that are killed, frozen, unreachable and slow, under load.
pub(crate) mod loss;
// Limits beyond 32 bits.
pub(crate) mod large;
// Callers and limits with separate counters.
pub(crate) mod keys;
