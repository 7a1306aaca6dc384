//! The servers: gRPC for Envoy, HTTP for probes, Prometheus and the admin API.
//!
//! [`grpc`] is the hot path and `wire` converts its messages, [`http::json`] is the same call over HTTP, `connections`
//! limits the connections of a port, [`http::admin`] has the debug pages, [`admin`] is the admin API and its page,
//! [`health`] is the result of health checks, [`tls`] holds the gRPC port's certificate, and `span_attributes` has the
//! attributes of a call's span.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub(crate) mod span_attributes;

pub mod admin;
mod connections;
pub mod grpc;
pub mod health;
pub mod http;
pub mod tls;
pub(crate) mod wire;
