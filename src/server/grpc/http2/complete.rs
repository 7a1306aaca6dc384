//! The short way of nearly every request: HEADERS that repeat the last header block, and all of its DATA in the same
//! read.
//!
//! Such a request is handed to the service before its stream is opened; where the answer is known at once and fits
//! the windows, the stream is never opened. Whatever looks different takes the long way through `headers` and
//! `connection`, with the same result.

use super::{
    connection::{Connection, FIRST_WINDOW, Goodbye, Phase, Service},
    frame::{FrameHead, HEAD, MAX_PAYLOAD, flag, kind},
    head::{Head, Route},
    sending::{HEAD_BLOCK, TRAILERS},
    streams::Stream,
};

/// The frame of a response's head.
const HEAD_FRAME: usize = HEAD + HEAD_BLOCK.len();

/// What stands before a message: the frame of the response's head, and the head of a DATA frame. Streams, and the
/// length of the data, are written in.
const BEFORE: [u8; HEAD_FRAME + HEAD] = before();

/// What stands behind it: the frame of the trailers.
const BEHIND: [u8; HEAD + TRAILERS.len()] = behind();

impl<C> Connection<C> {
    /// Takes a complete request at the start of `bytes`, and returns what follows it; `None` for anything else.
    pub(super) fn take_complete<'b, S: Service<Call = C>>(
        &mut self,
        bytes: &'b [u8],
        service: &mut S,
    ) -> Option<&'b [u8]> {
        let head = FrameHead::read(bytes)?;
        let (block, rest) = bytes.get(HEAD..)?.split_at_checked(head.length)?;
        let data = FrameHead::read(rest)?;
        let (message, behind) = rest.get(HEAD..)?.split_at_checked(data.length)?;
        let id = head.stream;
        let is_complete = (head.kind, head.flags) == (kind::HEADERS, flag::END_HEADERS)
            && (data.kind, data.flags, data.stream) == (kind::DATA, flag::END_STREAM, id)
            && data.length <= MAX_PAYLOAD;
        let is_next = id & 1 == 1 && id > self.last && id <= self.last.saturating_add(2);
        let is_open = self.phase == Phase::Open
            && self.block.is_none()
            && !matches!(self.goodbye, Goodbye::Said(_))
            && self.streams.len() < self.config.max_streams as usize;
        if !(is_complete && is_next && is_open) || block != self.memo.block {
            return None;
        }
        let is_same = self.memo.version == self.decoder.version();
        let fits = |head: &&Head| is_same && head.route == Route::Unary && head.content_length.is_none();
        let head = self.memo.head.as_ref().filter(fits)?.clone();
        if !self.streams.reserve() || !self.take_window(data.length) {
            return None;
        }
        self.last = id;
        service.complete(self, id, &head, message);
        Some(behind)
    }

    /// Opens the stream of a request that has come completely.
    pub(in super::super) fn open_complete(&mut self, id: u32, call: C) {
        let stream = Stream {
            send_window: self.first_send_window,
            receive_window: FIRST_WINDOW.into(),
            missing: None,
            receiving: false,
            opened: self.now,
            outgoing: None,
            call,
        };
        self.streams.insert(id, stream);
    }

    /// Answers a request whose stream is not open with one message; false, and nothing is done, if that does not fit
    /// the windows.
    pub(in super::super) fn send_complete(&mut self, id: u32, message: &[u8]) -> bool {
        let fits = self.fits(message, self.first_send_window);
        if fits {
            self.write_answer(id, message);
            self.limits.answered();
        }
        fits
    }

    /// True for a message that can be sent in one frame now, on a stream with this window.
    pub(super) fn fits(&self, message: &[u8], window: i64) -> bool {
        let length = i64::try_from(message.len()).unwrap_or(i64::MAX);
        length <= window.min(self.send_window) && message.len() <= self.max_frame && !self.says_table_size
    }

    /// Writes an answer that fits, with its head and trailers.
    pub(super) fn write_answer(&mut self, id: u32, message: &[u8]) {
        let length = i64::try_from(message.len()).unwrap_or(i64::MAX);
        self.send_window = self.send_window.saturating_sub(length);
        let out = &mut self.out;
        out.reserve(message.len().saturating_add(BEFORE.len()).saturating_add(BEHIND.len()));
        let (id, length) = (id.to_be_bytes(), u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
        let (mut before, mut behind) = (BEFORE, BEHIND);
        let (head, data) = before.split_at_mut(HEAD_FRAME);
        write_at(head, 5, &id);
        write_at(data, 0, length.get(1..).unwrap_or_default());
        write_at(data, 5, &id);
        write_at(&mut behind, 5, &id);
        out.extend_from_slice(&before);
        out.extend_from_slice(message);
        out.extend_from_slice(&behind);
    }
}

fn write_at(frame: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = frame.get_mut(at..at.saturating_add(bytes.len())) {
        place.copy_from_slice(bytes);
    }
}

#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "the compiler evaluates it")]
#[expect(clippy::cast_possible_truncation, reason = "the block is short")]
const fn before() -> [u8; HEAD_FRAME + HEAD] {
    let mut bytes = [0; HEAD_FRAME + HEAD];
    (bytes[2], bytes[3], bytes[4]) = (HEAD_BLOCK.len() as u8, kind::HEADERS, flag::END_HEADERS);
    let mut at = 0;
    while at < HEAD_BLOCK.len() {
        bytes[HEAD + at] = HEAD_BLOCK[at];
        at += 1;
    }
    bytes
}

#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "the compiler evaluates it")]
#[expect(clippy::cast_possible_truncation, reason = "the block is short")]
const fn behind() -> [u8; HEAD + TRAILERS.len()] {
    let mut bytes = [0; HEAD + TRAILERS.len()];
    (bytes[2], bytes[3], bytes[4]) =
        (TRAILERS.len() as u8, kind::HEADERS, flag::END_HEADERS | flag::END_STREAM);
    let mut at = 0;
    while at < TRAILERS.len() {
        bytes[HEAD + at] = TRAILERS[at];
        at += 1;
    }
    bytes
}
