//! Generates the script of a hostile peer from bytes: each byte is a choice in the grammar of HTTP/2 frames, header blocks
//! and gRPC messages. Most choices are valid, so that scripts reach deep states; each field may be anything.
//!
//! The bytes come from proptest or from libFuzzer, which learns which choices reach more code.

mod block;
mod choices;
mod message;

use self::choices::{CONTROL, CROWDS, Choices, DECIDED, FIELDS, FRAMES, MAX_FRAME, MAX_STEP};
use crate::{
    frame::{self, HEAD, flag, kind, setting},
    table::Table,
};

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Sends bytes, in writes of at most this size.
    Send(Vec<u8>, usize),
    /// This many of the calls that wait for their store are decided.
    Decide(usize),
    /// Time passes, in milliseconds.
    Wait(u64),
}

pub struct Script<'b> {
    choices: Choices<'b>,
    paths: &'static [&'static str],
    /// The path of the last request.
    path: &'static str,
    table: Table,
    next: u32,
    /// Streams that were opened and not ended, reset or forgotten.
    open: Vec<u32>,
    /// The control frames that the peer has left.
    control: usize,
    has_greeted: bool,
    has_crowd: bool,
}

impl<'b> Script<'b> {
    pub fn new(bytes: &'b [u8], paths: &'static [&'static str]) -> Self {
        Self {
            choices: Choices(bytes),
            paths,
            path: "/",
            table: Table::default(),
            next: 1,
            open: Vec::new(),
            control: CONTROL,
            has_greeted: false,
            has_crowd: false,
        }
    }

    /// The rest of the script on another connection, if there is a rest.
    pub fn reconnect(self) -> Option<Self> {
        (!self.choices.0.is_empty()).then(|| Self::new(self.choices.0, self.paths))
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
        let shape = match self.choices.below(16) {
            _ if self.choices.rarely() => 16,
            // There is no stream yet that another frame could concern.
            5..11 | 14.. if self.next == 1 => 0,
            shape => shape,
        };
        let mut repeats = self.choices.pick(&FRAMES).unwrap_or(1);
        if (7..16).contains(&shape) && !self.choices.rarely() {
            repeats = repeats.min(self.control);
            if repeats == 0 {
                return Vec::new();
            }
        }
        let mut bytes = Vec::new();
        let again = self.choices.0;
        for _ in 0..repeats {
            // The same choices on the next stream.
            self.choices.0 = again;
            if (7..16).contains(&shape) {
                self.control = self.control.saturating_sub(1);
            }
            match shape {
                0..5 => {
                    let is_plain = self.choices.once_in(2);
                    self.request(&mut bytes, is_plain);
                }
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
                    let is_ack = self.choices.once_in(8);
                    let settings = if is_ack { Vec::new() } else { self.settings() };
                    self.frame(&mut bytes, kind::SETTINGS, is_ack.into(), 0, &settings);
                }
                13 => {
                    let ack = u8::from(self.choices.once_in(4));
                    self.frame(&mut bytes, kind::PING, ack, 0, b"12345678");
                }
                14 | 15 => {
                    let stream = self.stream();
                    let weight = self.choices.byte();
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
        let flags = self.choices.byte();
        let length = self.choices.length();
        let stream = self.stream();
        let filler = self.choices.byte();
        self.frame(bytes, kind, flags, stream, &vec![filler; length]);
    }

    /// An open stream, or one of those before the next, or rarely any.
    fn stream(&mut self) -> u32 {
        match self.choices.below(16) {
            0..14 if !self.open.is_empty() => {
                let at = self.choices.below(self.open.len());
                self.open.get(at).copied().unwrap_or(1)
            }
            _ if self.choices.rarely() => self.choices.number(),
            _ => {
                let back = u32::try_from(self.choices.below(8)).unwrap_or(0);
                self.next.saturating_sub(2 + 2 * back).max(1)
            }
        }
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
        let repeats = self.choices.pick(&FIELDS).unwrap_or(1).min(200).min(self.control);
        self.control = self.control.saturating_sub(repeats);
        one.repeat(repeats)
    }

    /// Requests that are alike, most of which stay open: the state that further steps meet.
    fn crowd(&mut self) -> Vec<u8> {
        let size = self.choices.pick(&CROWDS).unwrap_or(1);
        let mut bytes = Vec::new();
        let again = self.choices.0;
        for _ in 0..size {
            self.choices.0 = again;
            self.request(&mut bytes, true);
            if bytes.len() > 2 * MAX_STEP {
                break;
            }
        }
        bytes
    }

    /// A request on a new stream: its head, which is `plain` or has further fields, and mostly all of its data.
    fn request(&mut self, bytes: &mut Vec<u8>, is_plain: bool) {
        let skipped = if self.choices.once_in(64) { 2 * u32::from(self.choices.byte()) } else { 0 };
        let stream = self.next.saturating_add(skipped);
        self.next = stream.saturating_add(2);
        self.path = self.choices.pick(self.paths).unwrap_or("/");
        let has_data = !self.choices.once_in(4);
        let mut block = Vec::new();
        self.head(&mut block, self.path);
        if !is_plain {
            self.fields(&mut block);
        }
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
        // A block has at most 16 frames.
        let frames = if self.choices.rarely() { 64 } else { 15 };
        let mut pieces = block.chunks(piece.max(block.len() / frames + 1)).peekable();
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
            _ if !self.has_crowd => {
                self.has_crowd = true;
                self.crowd()
            }
            13 | 14 => return Some(Step::Decide(self.choices.pick(&DECIDED).unwrap_or(1))),
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
