//! DATA frames, and the messages of the services in them, complete or not.

use super::{
    Script,
    choices::{DECLARED, FIELDS, MAX_FRAME, MAX_STEP},
};
use crate::frame::{flag, kind};

impl Script<'_> {
    /// Data of an open stream, which need not be a message.
    pub(super) fn data(&mut self, bytes: &mut Vec<u8>) {
        let stream = self.stream();
        if self.choices.once_in(2) {
            return self.message(bytes, stream);
        }
        let length = self.choices.length();
        let filler = self.choices.byte();
        let end = self.choices.once_in(4);
        if end {
            self.open.retain(|open| *open != stream);
        }
        self.data_frame(bytes, stream, &vec![filler; length], end);
    }

    fn data_frame(&mut self, bytes: &mut Vec<u8>, stream: u32, data: &[u8], end: bool) {
        if !self.choices.once_in(8) {
            return self.frame(bytes, kind::DATA, u8::from(end), stream, data);
        }
        let padding = self.choices.byte();
        let mut payload = vec![padding];
        payload.extend_from_slice(data);
        payload.resize(payload.len().saturating_add(padding.into()), 0);
        self.frame(bytes, kind::DATA, u8::from(end) | flag::PADDED, stream, &payload);
    }

    /// A message with its declared length, in one piece or several, or not all of it.
    pub(super) fn message(&mut self, bytes: &mut Vec<u8>, stream: u32) {
        let content = self.content();
        let own = u32::try_from(content.len()).unwrap_or(u32::MAX);
        let declared = if self.choices.once_in(4) { self.choices.pick(&DECLARED).unwrap_or(0) } else { own };
        let compressed = u8::from(self.choices.once_in(64));
        let mut framed = vec![compressed];
        framed.extend_from_slice(&declared.to_be_bytes());
        framed.extend_from_slice(&content);
        let framed = framed.repeat(if self.choices.once_in(16) {
            self.choices.pick(&FIELDS).unwrap_or(1).min(100)
        } else {
            1
        });
        // What declares more than it has is mostly not ended.
        let end = self.choices.once_in(4) != (declared <= own);
        let piece = match self.choices.below(8) {
            0 if framed.len() <= self.control => {
                self.control -= framed.len();
                1
            }
            1 => 64,
            2 => 1000,
            _ => MAX_FRAME,
        };
        let mut pieces = framed.chunks(piece).peekable();
        while let Some(data) = pieces.next() {
            let is_last = pieces.peek().is_none();
            self.data_frame(bytes, stream, data, end && is_last);
            if bytes.len() > MAX_STEP {
                return;
            }
        }
        if end {
            self.open.retain(|open| *open != stream);
        }
    }

    /// A message of the service that was called last, or of another, or any bytes.
    fn content(&mut self) -> Vec<u8> {
        let length = self.choices.length();
        let service = match self.path.rsplit('/').next() {
            _ if self.choices.once_in(4) => self.choices.below(4),
            Some("Check" | "Watch") => 1,
            Some("ServerReflectionInfo") => 2,
            _ => 0,
        };
        match service {
            // `ShouldRateLimit`: a domain and descriptors.
            0 => {
                let descriptor = b"\x12\x08\x0a\x06\x0a\x01k\x12\x01v";
                [&b"\x0a\x01d"[..], &descriptor.repeat(self.choices.pick(&FIELDS).unwrap_or(1).min(200))]
                    .concat()
            }
            // A service, or all of them.
            1 if self.choices.once_in(2) => Vec::new(),
            1 => field(1, &vec![b's'; length]),
            // All services, a file of a symbol, or one of a name.
            2 => match self.choices.below(4) {
                0 => Vec::new(),
                1 => field(7, b""),
                2 => field(4, b"envoy.service.ratelimit.v3.RateLimitService"),
                _ => field(3, &vec![b's'; length]),
            },
            _ => vec![self.choices.byte(); length],
        }
    }
}

fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    // A varint.
    let mut length = value.len();
    while length >= 0x80 {
        field.push(u8::try_from(length & 0x7f).unwrap_or(0) | 0x80);
        length >>= 7;
    }
    field.push(u8::try_from(length).unwrap_or(0));
    field.extend_from_slice(value);
    field
}
