//! The edges: gRPC for Envoy, HTTP for probes, people and Prometheus.
//!
//! [`grpc`] is the hot path, [`wire`] turns its messages into the limiter's and back, [`http::json`] is the same
//! question over HTTP, [`connections`] decides who is admitted to a port, [`http::admin`] shows what is loaded and counted,
//! [`admin`] is the admin API and its page, [`health`] is asked by probes, [`tls`] holds the gRPC port's certificate,
//! `span_attributes` has the attributes of a call's span.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub(crate) mod span_attributes;

pub mod admin;
pub mod connections;
pub mod grpc;
pub mod health;
pub mod http;
pub mod tls;
pub mod wire;
