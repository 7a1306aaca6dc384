//! What connections to other servers share: TLS, backoff, name resolution, and gRPC channels.

pub(crate) mod backoff;
pub mod channel;
pub mod resolve;
pub mod tls;
