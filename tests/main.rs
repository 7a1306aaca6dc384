//! Tests of the real binary, also behind the real Envoy.
//!
//! `tests/run` installs their dependencies and runs all. Every test starts its own services, with their own ports and
//! directories, so tests run in parallel.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

// Recorded answers of the Go service.
mod golden;
// The pull requests of the Go service after the recordings.
mod pulls;
// HTTP through Envoy: limits, modes, hits, and a lost service.
mod envoy;

// From Envoy's configuration to the rules.
mod connect;

// The admin API, its commands, and the decision log.
mod admin;
// Errors, `/json`, reflection, the debug pages.
mod api;
// Limits on input, and their errors.
mod bounds;
// Bodies of HTTP requests that are never finished, or that nobody wants.
mod bodies;
// All bounds on memory full at the same time.
mod budget;
// Limits that follow a calendar.
mod calendars;
mod schedules;
// Clients of every kind.
mod callers;
// The command line and its exit codes.
mod cli;
// The cost of hostile connections.
mod cost;
// Unix sockets, and the age of connections.
mod connections;
// The image, Compose, Kubernetes, Istio, Prometheus and the dashboard, run or checked.
mod deploy;
// The documentation.
mod docs;
// Pipes for logs that are not read.
mod unread_output;
// Overrides, on one replica and on several.
mod overrides;
// Graceful shutdown.
mod drain;
// `tollgate explain`.
mod explain;
// Random bytes, frames, messages and JSON on every port.
mod garbage;
// Servers that send without end.
mod hostile_peers;
// Several replicas, and one without its store, as operators see them.
mod fleet;
// Full tables, and their expiry.
mod floods;
mod full;
// Health checks.
mod health;
// The end while peers hang.
mod hangs;
// Incomplete messages and idle connections.
mod inflight;
// Budgets that are reserved while a request is under way.
mod holds;
// Hits near the largest number.
mod huge;
// Callers and limits with separate counters.
mod keys;
// Limits beyond 32 bits.
mod large;
// Late and missing replies of a store.
mod late;
// The dependencies between modules in ARCHITECTURE.md.
// The HTTP ports: slow clients, browsers, and how `/json` fails.
mod http_ports;
// Leases.
mod lease;
// The example rules, compared with their comments.
mod lesson;
mod llm;
// Counters in memcached, on one server and on several.
mod memcached;
// A million counters.
mod memory;
// Counters in Redis: single, Sentinel and Cluster.
mod redis;
// Panics.
#[cfg(debug_assertions)]
mod panics;
// The page of the admin API in a real browser.
mod page;
// Midnight, ends of months and years, leap days, clock steps.
mod moments;
mod peaks;
// Logs that are decided again.
mod replay;
// Comparison of both implementations of the gRPC port.
mod reference;
// Health checks, reflection and unknown methods: their bounds.
mod services;
// Rules that change at run time.
mod reload;
// Peers that send or read slowly.
mod slow_peers;
// A soak test of minutes; not a part of the suite.
mod soak;
// The first answer, and failing starts.
mod start;
// Pinned dependencies.
mod supply_chain;
// Silent, slow or many clients.
mod slow_clients;
// Metric series of callers' values.
mod series;
// statsd and DogStatsD.
mod statsd;

// TLS on the gRPC port: rotated certificates, rejected clients.
mod tls;
// Rules from a control plane.
mod xds;
// Spans: their attributes, their parents, and collectors of all kinds.
mod tracing;

// Servers and clients of the tests.
mod support;
