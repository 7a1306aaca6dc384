//! HTTP/2 for the gRPC port, without I/O: bytes that were read go in, calls come out, and what is to be written
//! gathers in a buffer.
//!
//! Reading order: [`connection`] is the state machine of a connection (RFC 9113), `headers` its frames that begin
//! requests, `complete` the short way of most of them, `control` the frames that carry none, `sending` the side that
//! answers; `frame` knows how frames are written, `hpack` with `table` and `huffman` how header blocks are
//! (RFC 7541), `head` which requests are malformed, `streams` what is kept of an open one, and which were reset.
//! `limits` bounds what a peer can cost, [`budget`] what all of them together can make us hold. `super::driver` does
//! the I/O, `super::calls` answers.
//!
//! Nothing here panics on what a peer sends: there is no indexing and no unchecked arithmetic.

pub(super) mod budget;
mod complete;
pub(super) mod connection;
mod control;
pub(super) mod frame;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
pub(super) mod head;
mod headers;
pub(super) mod hpack;
mod huffman;
mod limits;
mod sending;
mod streams;
mod table;
#[cfg(test)]
mod tests;

pub(super) use self::{
    budget::{Budget, Share},
    connection::{Config, Connection, Service},
    frame::Reason,
    head::{Fields, Head, Route, grpc_timeout},
    streams::End,
};
