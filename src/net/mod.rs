//! Connections to other servers: TLS, backoff, name resolution, and gRPC channels.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub(crate) mod backoff;
pub mod channel;
pub mod resolve;
pub mod tls;
