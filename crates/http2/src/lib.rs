//! An HTTP/2 server connection without I/O: its input is received bytes, and its output is calls and a buffer of bytes to
//! send.
//!
//! Reading order: `connection` is the state machine of a connection (RFC 9113). `headers` handles frames that open
//! requests, `complete` is the fast path of most requests, `control` handles all other frames, and `sending` writes
//! responses. `frame` encodes frames, `hpack` with `table` and `huffman` encodes and decodes header blocks (RFC 7541),
//! `field` is a header field, `head` rejects malformed requests, and `streams` holds the open streams and the numbers of reset ones. `limits`
//! bounds the cost of one peer, `budget` the memory of all.
//!
//! No input from a peer causes a panic: there is no indexing and no unchecked arithmetic.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::string_slice))]

mod budget;
mod complete;
mod connection;
mod control;
mod field;
mod frame;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "it runs in tests only")]
pub mod fuzz;
mod head;
mod headers;
mod hpack;
mod huffman;
mod limits;
pub mod meter;
mod sending;
mod streams;
mod table;
#[cfg(test)]
mod tests;

pub use self::{
    budget::{Budget, Share},
    complete::Envelope,
    connection::{Config, Connection, INITIAL_WINDOW, Service},
    frame::Reason,
    hpack::{write_field, write_status},
    limits::Flood,
    streams::End,
};

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: fuzz::Counting = fuzz::Counting;
