//! Counters in Redis, shared by all replicas, and by replicas of the Go service.
//!
//! Reading order: `lane` is one connection and what waits for it; `bundle` makes one pipeline of what
//! waits; `resp` is the wire's language and `wire` its socket; `topology` knows which server to ask.

mod failure;
mod resp;
mod tls;
mod topology;
mod wire;
