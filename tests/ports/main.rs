//! Callers of every kind, and what they cannot do.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

// HTTP through Envoy: limits, modes, hits, and a lost service.
pub(crate) mod envoy;
// Comparison of both implementations of the gRPC port.
pub(crate) mod reference;
// Errors, `/json`, reflection, the debug pages.
pub(crate) mod api;
// Bodies of HTTP requests that are never finished, or that nobody wants.
pub(crate) mod bodies;
// Limits on input, and their errors.
pub(crate) mod bounds;
// All bounds on memory full at the same time.
pub(crate) mod budget;
// Clients of every kind.
pub(crate) mod callers;
// Unix sockets, and the age of connections.
pub(crate) mod connections;
// Full tables, and their expiry.
pub(crate) mod floods;
// Random bytes, frames, messages and JSON on every port.
pub(crate) mod garbage;
// Servers that send without end.
pub(crate) mod hostile_peers;
// The HTTP ports: slow clients, browsers, and how `/json` fails.
pub(crate) mod http_ports;
// Incomplete messages and idle connections.
pub(crate) mod inflight;
// Limits that requests bring.
pub(crate) mod own_limits;
// Panics.
#[cfg(debug_assertions)]
pub(crate) mod panics;
pub(crate) mod peaks;
// Health checks, reflection and unknown methods: their bounds.
pub(crate) mod services;
// Silent, slow or many clients.
pub(crate) mod slow_clients;
// Peers that send or read slowly.
pub(crate) mod slow_peers;
// Limits that are divided among Envoys.
pub(crate) mod quota;
// TLS on the gRPC port: rotated certificates, rejected clients.
pub(crate) mod tls;
