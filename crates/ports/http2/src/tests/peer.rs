//! A client that sends frames, and a service that echoes each complete request.

use std::time::{Duration, Instant};

use super::super::{
    connection::{Config, Connection, Service},
    frame::{self, FrameHead, HEAD, Reason, flag, kind},
    fuzz::ENVELOPE,
    hpack,
};
use budget::Budget;

pub(super) const PATH: &str = "/s/m";

/// Responds with the request, at once or on demand.
#[derive(Default)]
pub(super) struct Echo {
    /// Responses wait for the test.
    pub(super) waits: bool,
    pub(super) opened: Vec<u32>,
    pub(super) closed: usize,
    /// Streams that were reset after their response.
    pub(super) missed: usize,
}

impl Service for Echo {
    type Fields = ();
    type Head = ();
    type Call = Vec<u8>;

    fn field(&self, (): &mut (), _: &[u8], _: &[u8]) {}

    fn head(&self, (): ()) {}

    fn open(&mut self, _: &mut Connection<Self>, id: u32, (): &()) {
        self.opened.push(id);
    }

    fn data(&mut self, http: &mut Connection<Self>, id: u32, data: &[u8], end: bool) {
        let Some(call) = http.call(id) else { return };
        call.extend_from_slice(data);
        if end && !self.waits {
            let message = call.clone();
            http.answer(id, &ENVELOPE, &message);
        }
    }

    fn closed(&mut self, _: Vec<u8>) {
        self.closed += 1;
    }

    fn reset_after_response(&mut self) {
        self.missed += 1;
    }
}

/// A frame that the other side sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Sent {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

pub(super) struct Peer {
    pub(super) http: Connection<Echo>,
    pub(super) echo: Echo,
    pub(super) now: Instant,
    /// Bytes that are not consumed yet.
    rest: Vec<u8>,
}

impl Peer {
    /// A connection after the exchange of SETTINGS.
    pub(super) fn new() -> Self {
        let mut peer = Self::with(100, 1 << 20);
        peer.greet();
        peer.frames();
        peer
    }

    pub(super) fn with(max_streams: u32, budget: usize) -> Self {
        let now = Instant::now();
        let config = Config { max_streams, budget: Budget::new(budget) };
        Self { http: Connection::new(config, now), echo: Echo::default(), now, rest: Vec::new() }
    }

    pub(super) fn greet(&mut self) {
        self.bytes(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        self.send(kind::SETTINGS, 0, 0, &[]).unwrap();
        self.send(kind::SETTINGS, flag::ACK, 0, &[]).unwrap();
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Reason> {
        self.rest.extend_from_slice(bytes);
        let taken = self.http.receive(&self.rest, self.now, &mut self.echo)?;
        self.rest.drain(..taken);
        Ok(())
    }

    pub(super) fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<(), Reason> {
        let mut bytes = Vec::new();
        frame::write(&mut bytes, kind, flags, stream, payload);
        self.bytes(&bytes)
    }

    pub(super) fn open(&mut self, stream: u32) -> Result<(), Reason> {
        self.send(kind::HEADERS, flag::END_HEADERS, stream, &head())
    }

    pub(super) fn data(&mut self, stream: u32, data: &[u8], end: bool) -> Result<(), Reason> {
        self.send(kind::DATA, if end { flag::END_STREAM } else { 0 }, stream, data)
    }

    pub(super) fn request(&mut self, stream: u32, data: &[u8]) -> Result<(), Reason> {
        self.open(stream)?;
        self.data(stream, data, true)
    }

    pub(super) fn wait(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
    }

    /// The frames since the last call.
    pub(super) fn frames(&mut self) -> Vec<Sent> {
        frames(&std::mem::take(&mut self.http.out))
    }

    /// The data of complete responses, by stream.
    pub(super) fn answers(&mut self) -> Vec<(u32, Vec<u8>)> {
        let frames = self.frames();
        let ended = frames.iter().filter(|sent| sent.flags & flag::END_STREAM != 0 && sent.kind <= 1);
        ended
            .map(|end| {
                let data = frames.iter().filter(|sent| sent.kind == kind::DATA && sent.stream == end.stream);
                (end.stream, data.flat_map(|sent| sent.payload.clone()).collect())
            })
            .collect()
    }

    /// The reset streams with their error codes.
    pub(super) fn resets(&mut self) -> Vec<(u32, u32)> {
        let resets = self.frames().into_iter().filter(|sent| sent.kind == kind::RST_STREAM);
        resets.map(|sent| (sent.stream, frame::u32_at(&sent.payload).unwrap())).collect()
    }
}

pub(super) fn frames(mut bytes: &[u8]) -> Vec<Sent> {
    let mut frames = Vec::new();
    while let Some(head) = FrameHead::read(bytes) {
        let end = HEAD + head.length;
        let payload = bytes[HEAD..end].to_vec();
        frames.push(Sent { kind: head.kind, flags: head.flags, stream: head.stream, payload });
        bytes = &bytes[end..];
    }
    assert!(bytes.is_empty(), "half a frame: {bytes:?}");
    frames
}

/// The header block of a valid request.
pub(super) fn head() -> Vec<u8> {
    head_with(&[])
}

pub(super) fn head_with(more: &[(&str, &str)]) -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    for (name, value) in [(":path", PATH), ("content-type", "application/grpc")].iter().chain(more) {
        hpack::write_field(&mut block, name.as_bytes(), value.as_bytes());
    }
    block
}
