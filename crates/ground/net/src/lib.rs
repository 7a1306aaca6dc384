//! Connections to other servers.
//!
//! [`HostPort`] and [`ServerAddress`] name a server, [`resolve`] looks up SRV records, [`tls`] loads CAs and client
//! certificates, [`backoff`] spaces attempts, and [`channel`] opens gRPC channels. A [`Secret`] is never printed. Nothing
//! here reads a setting: the caller passes paths and names.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod address;
#[cfg(any(test, feature = "testing"))]
#[path = "tests/authority.rs"]
pub mod authority;
pub mod backoff;
pub mod channel;
pub mod edges;
pub mod resolve;
pub mod restart;
mod secret;
pub mod tls;

pub use address::{HostPort, ServerAddress};
pub use secret::Secret;
