//! Fuzzes a connection: the result must not depend on how the bytes are split into reads.

use std::time::Instant;

use super::ENVELOPE;
use crate::{
    connection::{Config, Connection, Service},
    frame::Reason,
};
use budget::Budget;

/// Stores each request, and sends it back as the response.
#[derive(Default)]
struct Echo {
    received: Vec<(u32, Vec<u8>)>,
    open: usize,
}

impl Service for Echo {
    type Fields = ();
    type Head = ();
    type Call = Vec<u8>;

    fn field(&self, (): &mut (), _: &[u8], _: &[u8]) {}

    fn head(&self, (): ()) {}

    fn open(&mut self, _: &mut Connection<Self>, _: u32, (): &()) {
        self.open = self.open.saturating_add(1);
    }

    fn data(&mut self, http: &mut Connection<Self>, id: u32, data: &[u8], end: bool) {
        let Some(call) = http.call(id) else { return };
        call.extend_from_slice(data);
        if end {
            let message = std::mem::take(call);
            self.open = self.open.saturating_sub(1);
            http.answer(id, &ENVELOPE, &message);
            self.received.push((id, message));
        }
    }

    fn closed(&mut self, _: Vec<u8>) {
        self.open = self.open.saturating_sub(1);
    }
}

/// The first byte selects whether the preface is prepended, and the size of the reads.
pub fn fuzz(bytes: &[u8]) {
    let Some((shape, bytes)) = bytes.split_first() else { return };
    let greeting: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let bytes = if shape & 1 == 0 { [greeting, bytes].concat() } else { bytes.to_vec() };
    let now = Instant::now();
    let whole = received(&bytes, bytes.len(), now);
    assert_eq!(whole, received(&bytes, usize::from(shape >> 1).max(1), now));
}

fn received(bytes: &[u8], piece: usize, now: Instant) -> (Option<Reason>, Vec<(u32, Vec<u8>)>) {
    let config = Config { max_streams: 8, budget: Budget::new(1 << 20) };
    let mut http = Connection::new(config, now);
    let mut echo = Echo::default();
    let mut rest = Vec::new();
    for piece in bytes.chunks(piece.max(1)) {
        rest.extend_from_slice(piece);
        match http.receive(&rest, now, &mut echo) {
            Ok(taken) => drop(rest.drain(..taken)),
            Err(reason) => return (Some(reason), echo.received),
        }
        assert!(echo.open <= 8, "{} calls are open", echo.open);
    }
    (None, echo.received)
}
