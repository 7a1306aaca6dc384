//! The fast path of nearly every request: HEADERS that repeat the last header block, and all DATA in the same read.
//!
//! The service handles such a request before its stream is opened; if the response is ready at once and fits the
//! windows, the stream is never opened. All other requests take `headers` and `connection`, with the same result.

use super::{
    connection::{Connection, GoAway, Phase, Service},
    frame::{FrameHead, HEAD, MAX_PAYLOAD, flag, kind},
    head::{Head, Route},
    sending::{HEAD_BLOCK, TRAILERS},
};

const HEAD_FRAME: usize = HEAD + HEAD_BLOCK.len();

/// The bytes before a message: the HEADERS frame and the head of the DATA frame, without stream and data length.
const BEFORE: [u8; HEAD_FRAME + HEAD] = headers_frame(HEAD_BLOCK, flag::END_HEADERS);

/// The bytes after a message: the HEADERS frame of the trailers, without stream.
const BEHIND: [u8; HEAD + TRAILERS.len()] = headers_frame(TRAILERS, flag::END_HEADERS | flag::END_STREAM);

impl<S: Service> Connection<S> {
    /// Handles a complete request at the start of `bytes` and returns the bytes after it; `None` for anything else.
    pub(super) fn take_complete<'b>(&mut self, bytes: &'b [u8], service: &mut S) -> Option<&'b [u8]> {
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
            && !matches!(self.goaway, GoAway::Final(_))
            && self.streams.open.len() < self.config.max_streams as usize;
        if !(is_complete && is_next && is_open) {
            return None;
        }
        let is_simple = |head: &&Head| head.route == Route::Unary && head.content_length.is_none();
        let head = self.cached_head(block).filter(is_simple)?.clone();
        if !self.streams.reserve() || !self.take_window(data.length) {
            return None;
        }
        self.last = id;
        service.complete(self, id, &head, message);
        Some(behind)
    }

    /// Opens the stream of a request that is complete.
    pub fn open_complete(&mut self, id: u32, call: S::Call) {
        self.open_stream(id, call, None, false);
    }

    /// Responds with one message to a request whose stream is not open; false without a change if the message does not
    /// fit the windows.
    pub fn send_complete(&mut self, id: u32, message: &[u8]) -> bool {
        let fits = self.fits(message, self.initial_send_window);
        if fits {
            self.write_answer(id, message);
            self.limits.answered();
        }
        fits
    }

    /// True for a message that can be sent now in one frame, on a stream with this window.
    pub(super) fn fits(&self, message: &[u8], window: i64) -> bool {
        let length = i64::try_from(message.len()).unwrap_or(i64::MAX);
        length <= window.min(self.send_window)
            && message.len() <= self.max_frame
            && !self.must_send_table_size
    }

    /// Writes a response that fits, with its head and trailers.
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

/// A HEADERS frame at the start of `N` bytes, the others zero.
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "the compiler evaluates it")]
#[expect(clippy::cast_possible_truncation, reason = "the block is short")]
const fn headers_frame<const N: usize>(block: &[u8], flags: u8) -> [u8; N] {
    let mut bytes = [0; N];
    (bytes[2], bytes[3], bytes[4]) = (block.len() as u8, kind::HEADERS, flags);
    let mut at = 0;
    while at < block.len() {
        bytes[HEAD + at] = block[at];
        at += 1;
    }
    bytes
}
