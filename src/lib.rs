//! Tollgate answers Envoy's question whether a request may pass: a drop-in for the Go
//! `envoyproxy/ratelimit` service.
//!
//! The way of a request: bytes → [`server::grpc`] → [`server::wire`] → [`limiter`] (which rule is met, see
//! [`rules`]; which counters are asked, see [`store`]; what that means) → [`server::wire`] → bytes.
//! `ARCHITECTURE.md` draws it, and says which module may know which.
//!
//! In reading order: [`rules`] are what is asked for and [`source`] is where they come from;
//! [`algorithm`], [`table`] and [`store`] count; [`limiter`] decides, and refuses in the words of a
//! [`template`]; [`stats`] and [`spans`] tell; [`server`] is the edge; [`settings`], [`app`] and [`cli`] put it together.
//! To the servers that are asked [`tls`] is spoken, and gRPC over a [`channel`]. [`protobuf`] is
//! read without building messages where the size of what is built would be up to a peer. What a panic costs is
//! in [`panics`].

pub mod algorithm;
pub mod app;
pub mod channel;
pub mod cli;
pub mod clock;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod limiter;
pub mod memory;
pub mod panics;
pub mod proto;
pub mod protobuf;
pub mod rules;
pub mod server;
pub mod settings;
pub mod shutdown;
pub mod source;
pub mod spans;
pub mod stats;
pub mod store;
pub mod table;
pub mod telemetry;
pub mod template;
pub mod text;
pub mod tls;
