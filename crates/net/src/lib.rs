//! Connections to other servers: TLS, backoff, name resolution, and gRPC channels.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod address;
#[cfg(any(test, feature = "testing"))]
#[path = "tests/authority.rs"]
pub mod authority;
pub mod backoff;
pub mod channel;
pub mod resolve;
mod secret;
pub mod tls;

pub use address::{HostPort, ServerAddress};
pub use secret::Secret;
