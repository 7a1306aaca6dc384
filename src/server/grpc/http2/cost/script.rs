//! Generates the script of a hostile peer from bytes: each byte is a choice in the grammar of HTTP/2 frames, header blocks
//! and gRPC messages. Most choices are valid, so that scripts reach deep states; each field may be anything.
//!
//! The bytes come from proptest or from libFuzzer, which learns which choices reach more code.

use super::super::{
    field::Field,
    frame::{self, HEAD, flag, kind, setting},
    table::Table,
};

/// What the peer does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in super::super::super) enum Step {
    /// Sends bytes, in writes of at most this size.
    Send(Vec<u8>, usize),
    /// This many of the calls that wait for their store are decided.
    Decide(usize),
    /// Time passes, in milliseconds.
    Wait(u64),
}

pub(in super::super::super) struct Script<'b> {
    choices: Choices<'b>,
    /// The paths of the services.
    paths: &'static [&'static str],
    /// The table of the peer's encoder.
    table: Table,
    /// The next new stream.
    next: u32,
    /// Streams that were opened and not ended, reset or forgotten.
    open: Vec<u32>,
    has_greeted: bool,
}

/// How often a frame or a request is repeated: a few more than a connection may have streams.
const FRAMES: [usize; 12] = [1, 1, 1, 1, 1, 1, 1, 2, 5, 20, 200, 1100];

/// How often a field is repeated: as many references as a frame holds.
const FIELDS: [usize; 12] = [1, 1, 1, 1, 1, 2, 3, 4, 10, 100, 1000, 16_384];

const LENGTHS: [usize; 12] = [0, 0, 1, 1, 2, 8, 30, 127, 500, 2000, 4000, 16_000];

/// Sizes of windows and settings.
const NUMBERS: [u32; 8] = [0, 1, 2, 100, 4096, 65_535, 1 << 17, 1 << 20];

/// The sizes of frames and blocks that the peer is not allowed to exceed; a few do.
const MAX_FRAME: usize = 16_384;

/// The bytes of one step: enough for a connection's worth of streams.
const MAX_STEP: usize = 64 * 1024;

struct Choices<'b>(&'b [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *byte
    }

    fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()).checked_rem(end).unwrap_or(0)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let at = self.below(from.len());
        from.get(at).copied()
    }

    /// True for what ends a connection in most cases.
    fn rarely(&mut self) -> bool {
        self.byte() == 255
    }

    /// Never true after the last choice.
    fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == times.saturating_sub(1)
    }

    fn length(&mut self) -> usize {
        self.pick(&LENGTHS).unwrap_or(0)
    }

    fn number(&mut self) -> u32 {
        if self.rarely() {
            return u32::from_be_bytes([self.byte(), self.byte(), self.byte(), self.byte()]);
        }
        self.pick(&NUMBERS).unwrap_or(0)
    }
}

impl<'b> Script<'b> {
    pub(in super::super::super) fn new(bytes: &'b [u8], paths: &'static [&'static str]) -> Self {
        Self {
            choices: Choices(bytes),
            paths,
            table: Table::default(),
            next: 1,
            open: Vec::new(),
            has_greeted: false,
        }
    }

    fn greeting(&mut self) -> Vec<u8> {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        if !self.choices.rarely() {
            let settings = if self.choices.once_in(2) { self.settings() } else { Vec::new() };
            frame::write(&mut bytes, kind::SETTINGS, 0, 0, &settings);
        }
        bytes
    }

    /// A frame or a request, again and again.
    fn send(&mut self) -> Vec<u8> {
        let shape = if self.choices.rarely() { 16 } else { self.choices.below(16) };
        let repeats = self.choices.pick(&FRAMES).unwrap_or(1);
        let mut bytes = Vec::new();
        let again = self.choices.0;
        for _ in 0..repeats {
            // The same choices on the next stream.
            self.choices.0 = again;
            match shape {
                0..5 => self.request(&mut bytes),
                5 | 6 => self.trailers(&mut bytes),
                7 | 8 => self.data(&mut bytes),
                9 => {
                    let stream = self.stream();
                    self.open.retain(|open| *open != stream);
                    self.frame(&mut bytes, kind::RST_STREAM, 0, stream, &[0, 0, 0, 8]);
                }
                10 => {
                    let stream = if self.choices.once_in(2) { self.stream() } else { 0 };
                    let more = self.choices.number().to_be_bytes();
                    self.frame(&mut bytes, kind::WINDOW_UPDATE, 0, stream, &more);
                }
                11 | 12 => {
                    let settings = self.settings();
                    let ack = u8::from(self.choices.once_in(8));
                    self.frame(&mut bytes, kind::SETTINGS, ack, 0, &settings);
                }
                13 => {
                    let ack = u8::from(self.choices.once_in(4));
                    self.frame(&mut bytes, kind::PING, ack, 0, b"12345678");
                }
                14 | 15 => {
                    let (stream, weight) = (self.stream(), self.choices.byte());
                    self.frame(&mut bytes, kind::PRIORITY, 0, stream, &[0, 0, 0, weight, weight]);
                }
                _ => self.any_frame(&mut bytes),
            }
            if bytes.len() > MAX_STEP {
                break;
            }
        }
        bytes
    }

    /// Writes a frame; rarely one whose flags or length are not those of its content.
    fn frame(&mut self, bytes: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let flags = if self.choices.rarely() { self.choices.byte() } else { flags };
        let mut length = payload.len();
        if self.choices.rarely() && self.choices.once_in(2) {
            length = length.wrapping_add(self.choices.below(32)).wrapping_sub(16);
        }
        frame::write_head(bytes, length, kind, flags, stream);
        bytes.extend_from_slice(payload);
    }

    fn any_frame(&mut self, bytes: &mut Vec<u8>) {
        let kind = self.choices.byte() & 15;
        let (flags, length) = (self.choices.byte(), self.choices.length());
        let stream = self.stream();
        let filler = self.choices.byte();
        self.frame(bytes, kind, flags, stream, &vec![filler; length]);
    }

    /// A stream number: mostly an open one.
    fn stream(&mut self) -> u32 {
        let back = match self.choices.below(16) {
            0..14 if !self.open.is_empty() => {
                let at = self.choices.below(self.open.len());
                return self.open.get(at).copied().unwrap_or(1);
            }
            _ if self.choices.rarely() => return self.choices.number(),
            _ => u32::try_from(self.choices.below(8)).unwrap_or(0),
        };
        self.next.saturating_sub(back)
    }

    fn settings(&mut self) -> Vec<u8> {
        let id = match self.choices.below(8) {
            0 => setting::HEADER_TABLE_SIZE,
            1 => setting::ENABLE_PUSH,
            2 => setting::MAX_FRAME_SIZE,
            3 => setting::MAX_HEADER_LIST_SIZE,
            4 => u16::from(self.choices.byte()),
            _ => setting::INITIAL_WINDOW_SIZE,
        };
        let value = match id {
            setting::ENABLE_PUSH => u32::from(self.choices.once_in(2)),
            setting::MAX_FRAME_SIZE => 16_384,
            _ => self.choices.number(),
        };
        let mut one = Vec::new();
        frame::write_setting(&mut one, id, value);
        one.repeat(self.choices.pick(&FIELDS).unwrap_or(1).min(200))
    }

    /// A request on a new stream: its head, and mostly all of its data.
    fn request(&mut self, bytes: &mut Vec<u8>) {
        let skipped = if self.choices.once_in(64) { 2 * u32::from(self.choices.byte()) } else { 0 };
        let stream = self.next.saturating_add(skipped);
        self.next = stream.saturating_add(2);
        let path = self.choices.pick(self.paths).unwrap_or("/");
        let has_data = !self.choices.once_in(4);
        let mut block = Vec::new();
        self.head(&mut block, path);
        self.fields(&mut block);
        self.headers(bytes, stream, &block, !has_data);
        if has_data {
            self.open.push(stream);
            self.message(bytes, stream);
        }
    }

    fn trailers(&mut self, bytes: &mut Vec<u8>) {
        let stream = self.stream();
        let mut block = Vec::new();
        self.fields(&mut block);
        let end = !self.choices.once_in(8);
        self.headers(bytes, stream, &block, end);
    }

    /// HEADERS with padding and a priority, and CONTINUATION frames.
    fn headers(&mut self, bytes: &mut Vec<u8>, stream: u32, block: &[u8], end: bool) {
        let piece = match self.choices.below(8) {
            0 => 1,
            1 => 100,
            2 => 4096,
            _ => MAX_FRAME - 300,
        };
        let mut pieces = block.chunks(piece.max(block.len() / 64)).peekable();
        let mut payload = Vec::new();
        let mut flags = u8::from(end);
        let padding = if self.choices.once_in(8) { self.choices.byte() } else { 0 };
        if padding > 0 {
            flags |= flag::PADDED;
            payload.push(padding);
        }
        if self.choices.once_in(8) {
            flags |= flag::PRIORITY;
            payload.extend_from_slice(&[0, 0, 0, self.choices.byte(), 7]);
        }
        payload.extend_from_slice(pieces.next().unwrap_or_default());
        payload.resize(payload.len().saturating_add(padding.into()), 0);
        if pieces.peek().is_none() {
            flags |= flag::END_HEADERS;
        }
        self.frame(bytes, kind::HEADERS, flags, stream, &payload);
        while let Some(piece) = pieces.next() {
            let end = if pieces.peek().is_none() { flag::END_HEADERS } else { 0 };
            self.frame(bytes, kind::CONTINUATION, end, stream, piece);
        }
    }

    /// The pseudo-fields and the content type, each in any representation.
    fn head(&mut self, block: &mut Vec<u8>, path: &str) {
        for (name, value) in
            [(":method", "POST"), (":scheme", "http"), (":path", path), ("content-type", "application/grpc")]
        {
            if !self.choices.rarely() {
                self.known(block, name.as_bytes(), value.as_bytes());
            }
        }
    }

    /// A field by the index of an equal one, or as a literal.
    fn known(&mut self, block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        let entries = (1..1000).map_while(|index| Some((index, self.table.get(index)?)));
        let equal = entries.filter(|(_, field)| field.name == name && field.value == value);
        let found = equal.map(|(index, _)| index).next();
        match found {
            Some(index) if !self.choices.once_in(8) => write_integer(block, index, 7, 0x80),
            _ => self.literal(block, name, value),
        }
    }

    fn literal(&mut self, block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        let kind = self.choices.pick(&[0x40, 0x40, 0x00, 0x10]).unwrap_or(0);
        block.push(kind);
        write_text(block, name);
        write_text(block, value);
        if kind == 0x40 {
            self.table.add(Field::new(name, value));
        }
    }

    /// Further fields: size updates, literals, and references to the tables.
    fn fields(&mut self, block: &mut Vec<u8>) {
        if self.choices.once_in(16) && block.is_empty() || self.choices.rarely() {
            let size = self.choices.pick(&[0, 100, 4096, 4096]).unwrap_or(0);
            write_integer(block, size, 5, 0x20);
            self.table.resize(size);
        }
        for _ in 0..self.choices.below(4) {
            let shape = self.choices.below(16);
            let repeats = self.choices.pick(&FIELDS).unwrap_or(1);
            let again = self.choices.0;
            for _ in 0..repeats {
                self.choices.0 = again;
                match shape {
                    0..5 => {
                        let index = self.index();
                        write_integer(block, index, 7, 0x80);
                    }
                    5..9 => {
                        let (name, value) = self.name_and_value();
                        self.literal(block, &name, &value);
                    }
                    9..15 => self.named(block),
                    _ => self.huffman(block),
                }
                if block.len() > 2 * MAX_FRAME - 1000 {
                    return;
                }
            }
        }
    }

    /// The index of an entry: mostly one of the dynamic table.
    fn index(&mut self) -> usize {
        let entries = (62..1000).take_while(|index| self.table.get(*index).is_some()).count();
        match self.choices.below(16) {
            0..3 => self.choices.below(61).saturating_add(1),
            3 if self.choices.rarely() => self.choices.number() as usize,
            _ if entries == 0 => 38,
            _ => 62_usize.saturating_add(self.choices.below(entries)),
        }
    }

    /// A literal in Huffman's code: symbols of five bits, or of 28, or rarely any.
    fn huffman(&mut self, block: &mut Vec<u8>) {
        let code: &[u8] = match self.choices.byte() {
            255 => &[0xfe],
            0..128 => &[0; 5],
            _ => &[0xff, 0xff, 0xfe, 0x2f, 0xff, 0xfe, 0x2f],
        };
        let text = code.repeat(self.choices.length() / 5);
        block.extend_from_slice(&[0x00, 1, b'h']);
        write_integer(block, text.len(), 7, 0x80);
        block.extend_from_slice(&text);
    }

    fn name_and_value(&mut self) -> (Vec<u8>, Vec<u8>) {
        let name = self.choices.pick(&[
            &b"x"[..],
            b"te",
            b"traceparent",
            b"tracestate",
            b"content-length",
            b"Upper",
        ]);
        let length = self.choices.length().max(1);
        let name =
            if self.choices.once_in(2) { vec![b'n'; length] } else { name.unwrap_or_default().to_vec() };
        let letter = self.choices.pick(b"vvvvv0\n").unwrap_or(b'v');
        (name, vec![letter; self.choices.length()])
    }

    /// A literal with the name of an entry.
    fn named(&mut self, block: &mut Vec<u8>) {
        let index = self.index().max(1);
        let value = vec![b'w'; self.choices.length()];
        if self.choices.once_in(2) {
            write_integer(block, index, 4, 0);
        } else {
            write_integer(block, index, 6, 0x40);
            self.table.add_with_name_of(index, &value);
        }
        write_text(block, &value);
    }

    /// Data of an open stream, which need not be a message.
    fn data(&mut self, bytes: &mut Vec<u8>) {
        let stream = self.stream();
        let (length, filler) = (self.choices.length(), self.choices.byte());
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
    fn message(&mut self, bytes: &mut Vec<u8>, stream: u32) {
        let content = self.content();
        let declared = match self.choices.below(8) {
            0 => self.choices.pick(&[0, 64, 4096, 65_536, 4 << 20, u32::MAX]).unwrap_or(0),
            _ => u32::try_from(content.len()).unwrap_or(u32::MAX),
        };
        let compressed = u8::from(self.choices.once_in(64));
        let mut framed = vec![compressed];
        framed.extend_from_slice(&declared.to_be_bytes());
        framed.extend_from_slice(&content);
        let framed = framed.repeat(if self.choices.once_in(16) {
            self.choices.pick(&FIELDS).unwrap_or(1).min(100)
        } else {
            1
        });
        let end = !self.choices.once_in(4);
        let piece = match self.choices.below(8) {
            0 => 1,
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

    /// A message of one of the services, or any bytes.
    fn content(&mut self) -> Vec<u8> {
        let length = self.choices.length();
        match self.choices.below(8) {
            // `ShouldRateLimit`: a domain and descriptors.
            0..3 => {
                let descriptor = b"\x12\x08\x0a\x06\x0a\x01k\x12\x01v";
                [&b"\x0a\x01d"[..], &descriptor.repeat(self.choices.pick(&FIELDS).unwrap_or(1).min(200))]
                    .concat()
            }
            // Health: a service. Reflection: a file by name or symbol, or all services.
            3 => Vec::new(),
            4 => field(1, &vec![b's'; length]),
            5 => field(7, b""),
            6 => field(4, b"envoy.service.ratelimit.v3.RateLimitService"),
            _ => vec![self.choices.byte(); length],
        }
    }
}

impl Iterator for Script<'_> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        if self.choices.0.is_empty() {
            return None;
        }
        let bytes = match self.choices.below(16) {
            _ if !self.has_greeted => {
                self.has_greeted = true;
                self.greeting()
            }
            14 => return Some(Step::Decide(self.choices.pick(&FRAMES).unwrap_or(1))),
            15 => return Some(Step::Wait(self.choices.pick(&[1, 10, 100, 1000]).unwrap_or(1))),
            _ => self.send(),
        };
        let write = match self.choices.below(16) {
            0 => 1,
            1 => HEAD,
            2 => 100,
            3 => 5000,
            _ => MAX_STEP,
        };
        // At most 1,000 writes.
        let write = write.max(bytes.len() / 1000);
        Some(Step::Send(bytes, write))
    }
}

/// A length-delimited field.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    prost::encoding::encode_varint(value.len() as u64, &mut field);
    field.extend_from_slice(value);
    field
}

fn write_integer(block: &mut Vec<u8>, value: usize, prefix: u32, kind: u8) {
    let most = (1_usize << prefix) - 1;
    let Some(mut rest) = value.checked_sub(most) else {
        return block.push(kind | u8::try_from(value).unwrap_or(0));
    };
    block.push(kind | u8::try_from(most).unwrap_or(0));
    while rest >= 128 {
        block.push(u8::try_from(rest & 127).unwrap_or(0) | 128);
        rest >>= 7;
    }
    block.push(u8::try_from(rest).unwrap_or(0));
}

fn write_text(block: &mut Vec<u8>, text: &[u8]) {
    write_integer(block, text.len(), 7, 0);
    block.extend_from_slice(text);
}
