//! The server side of an HTTP/2 connection, sans I/O: received bytes go in, calls of a [`Service`] and bytes to send come
//! out (RFC 9113, and HPACK of RFC 7541).
//!
//! The caller owns the socket and the clock. It passes what it read to [`Connection::receive`], which returns the number
//! of bytes consumed, and writes what it finds in [`Connection::out`]. The service is told of each request, and responds
//! then or later. It reads the header fields itself: this crate knows no method, no path and no gRPC. It checks what RFC
//! 9113 demands: malformed requests, and frames that are not allowed, reset their stream or end the connection.
//!
//! ```
//! use std::time::Instant;
//!
//! use budget::Budget;
//! use http2::{Config, Connection, Envelope, Service, write_field};
//!
//! /// Responds to each request with its path.
//! struct Echo;
//!
//! /// `:status: 200`, and a trailer.
//! static OK: Envelope = Envelope::new(b"\x88", b"\x00\x04done\x03yes");
//!
//! impl Service for Echo {
//!     type Fields = Vec<u8>;
//!     type Head = Vec<u8>;
//!     type Call = Vec<u8>;
//!
//!     fn field(&self, path: &mut Vec<u8>, name: &[u8], value: &[u8]) {
//!         if name == b":path" {
//!             path.extend_from_slice(value);
//!         }
//!     }
//!
//!     fn head(&self, path: Vec<u8>) -> Vec<u8> {
//!         path
//!     }
//!
//!     fn open(&mut self, http: &mut Connection<Self>, stream: u32, path: &Vec<u8>) {
//!         http.call(stream).map(|call| call.clone_from(path));
//!     }
//!
//!     fn data(&mut self, http: &mut Connection<Self>, stream: u32, _data: &[u8], end: bool) {
//!         if end && let Some(path) = http.call(stream).map(std::mem::take) {
//!             http.answer(stream, &OK, &path);
//!         }
//!     }
//!
//!     fn closed(&mut self, _call: Vec<u8>) {}
//! }
//!
//! let now = Instant::now();
//! let mut http = Connection::new(Config { max_streams: 100, budget: Budget::new(1 << 20) }, now);
//! http.out.clear(); // our SETTINGS, written to the socket
//!
//! let mut block = vec![0x82, 0x86]; // `:method: GET`, `:scheme: http`
//! write_field(&mut block, b":path", b"/hello");
//! let mut received = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
//! received.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]); // SETTINGS
//! received.extend([0, 0, block.len() as u8, 1, 5, 0, 0, 0, 1]); // HEADERS of stream 1, which end it
//! received.extend(block);
//!
//! assert_eq!(http.receive(&received, now, &mut Echo), Ok(received.len()));
//! let acknowledgement = [0, 0, 0, 4, 1, 0, 0, 0, 0];
//! let head = [0, 0, 1, 1, 4, 0, 0, 0, 1, 0x88];
//! let data = *b"\0\0\x06\0\0\0\0\0\x01/hello";
//! let trailers = *b"\0\0\x0a\x01\x05\0\0\0\x01\x00\x04done\x03yes";
//! assert_eq!(http.out, [&acknowledgement[..], &head, &data, &trailers].concat());
//! ```
//!
//! # Bounds
//! A peer causes no panic and no unbounded cost. Frames that advance no request cost tokens ([`Flood`]); header lists,
//! blocks and tables have limits; unfinished input and blocked output of all connections share a [`Budget`](budget::Budget); and a turn
//! ends by the clock ([`Connection::begin_turn`]). Left to the caller: time limits for a preface, a request or a peer that
//! does not read, and the number of connections.
//!
//! # Reading order
//! `connection` is the state machine. `headers` handles frames that open requests, `complete` is the fast path of most
//! requests, `control` handles all other frames, and `sending` writes responses. `frame` encodes frames, `hpack` with
//! `table` and `huffman` encodes and decodes header blocks, `field` is a header field, `head` rejects malformed requests,
//! and `streams` holds the open streams and the numbers of reset ones. `limits` bounds the cost of one peer, the
//! crate `budget` the memory of all.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice))]

mod block;
mod complete;
mod connection;
mod control;
mod field;
mod frame;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::indexing_slicing, reason = "it runs in tests only")]
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
