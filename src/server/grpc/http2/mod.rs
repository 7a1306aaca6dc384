//! HTTP/2 for the gRPC port, without I/O: its input is received bytes, and its output is calls and a buffer of bytes to
//! send.
//!
//! Reading order: `connection` is the state machine of a connection (RFC 9113). `headers` handles frames that open
//! requests, `complete` is the fast path of most requests, `control` handles all other frames, and `sending` writes
//! responses. `frame` encodes frames, `hpack` with `table` and `huffman` encodes and decodes header blocks (RFC 7541),
//! `field` is a header field, `head` rejects malformed requests, and `streams` holds the open streams and the numbers of reset ones. `limits`
//! bounds the cost of one peer, `budget` the memory of all. `super::driver` does the I/O, `super::calls` responds.
//!
//! No input from a peer causes a panic: there is no indexing and no unchecked arithmetic.

pub(super) mod budget;
mod complete;
pub(super) mod connection;
mod control;
#[cfg(any(test, fuzzing))]
pub(super) mod cost;
mod field;
pub(super) mod frame;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
pub(super) mod head;
mod headers;
pub(super) mod hpack;
mod huffman;
mod limits;
pub(super) mod meter;
mod sending;
mod streams;
mod table;
#[cfg(test)]
mod tests;

pub(super) use self::{
    budget::{Budget, Share},
    connection::{Config, Connection, INITIAL_WINDOW, Service},
    frame::Reason,
    head::{Head, Route, grpc_timeout},
    sending::{HEAD_BLOCK, TRAILERS},
    streams::End,
};
