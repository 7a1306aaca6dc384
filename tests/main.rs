//! The service from outside: the real binary, and in front of it the real Envoy.
//!
//! `tests/run` installs what they need and runs them all. Every test starts its own services, on ports and
//! in directories of their own, so all run side by side.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

// What the Go service answered, asked again.
mod golden;
// HTTP through Envoy: limits, modes, hits, and a service that is gone.
mod envoy;

// The admin API, its commands, and the log of decisions.
mod admin;
// Errors, `/json`, reflection, the debug pages.
mod api;
// What is too much, and the text that it is refused with.
mod bounds;
// Clients of every kind.
mod callers;
// The command line and its exit codes.
mod cli;
// Unix sockets, and connections that grow old.
mod connections;
// The image, Compose, Kubernetes, Istio, Prometheus and the dashboard, run or checked.
mod deploy;
// What the pages for people say.
mod docs;
// Limits, blocks and exemptions that are set while the service runs, on one replica and on several.
mod overrides;
// SIGTERM: nothing is lost.
mod drain;
// Which rule would match, by the command line.
mod explain;
// Random bytes, frames, messages and JSON on every port.
mod garbage;
// Tables that are full, have expired, and are full again.
mod full;
// Whether the service says that it is fit to be asked.
mod health;
// Unfinished messages and idle connections.
mod inflight;
// Hits near the largest number.
mod huge;
// Callers and limits that must not share a counter.
mod keys;
// Counters that are answered for late, or never.
mod late;
// Who may know whom below `src/`, as ARCHITECTURE.md has it.
mod layers;
// The HTTP ports: slow clients, browsers, and how `/json` fails.
mod http_ports;
// Hits that replicas take from Redis ahead of time.
mod lease;
// The rules that come with the project answer as their comments say.
mod lesson;
// Counters in memcached, on one server and on several.
mod memcached;
// A million counters.
mod memory;
// Counters in Redis, alone, watched by sentinels, and in a cluster.
mod redis;
// What a panic costs.
#[cfg(debug_assertions)]
mod panics;
// The page of the admin API in a real browser.
mod page;
// Midnight, the ends of months and years, leap days, clocks that step.
mod moments;
mod peaks;
// Both implementations of the gRPC port, held against each other.
mod reference;
// Rules that change under load, in each of the ways that files can.
mod reload;
// Everything at once for minutes; not a part of the suite.
mod soak;
// The first answer, and starts that fail.
mod start;
// What the project is built from, pinned.
mod supply_chain;
// Clients that are silent, slow or many lock nobody out.
mod slow_clients;
// Series that callers' values make.
mod series;
// Who is sent statistics, and by which names they are shown.
mod statsd;

// TLS on the gRPC port: certificates that change, clients that are refused.
mod tls;
// Rules from a control plane.
mod xds;
// Spans: their attributes, their parents, and collectors of all kinds.
mod tracing;

// What starts the services and talks to them.
mod support;
