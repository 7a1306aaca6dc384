//! The fast path of nearly every request: HEADERS that repeat the last header block, and all DATA in the same read.
//!
//! The service handles such a request before its stream is opened; if the response is ready at once and fits the
//! windows, the stream is never opened. All other requests take `headers` and `connection`, with the same result.

use super::{
    connection::{Connection, GoAway, Phase, Service},
    frame::{self, FrameHead, HEAD, MAX_PAYLOAD, flag, kind},
};

/// A response of which only the stream and the message differ: its head and its trailers.
pub struct Envelope {
    head: Frame,
    trailers: Frame,
}

/// A HEADERS frame without its stream.
#[derive(Clone, Copy, Debug)]
struct Frame {
    bytes: [u8; MAX_FRAME],
    length: usize,
}

/// The size of the longest frame of an envelope: room for `content-type: application/grpc`, and for more than its trailers.
const MAX_FRAME: usize = 64;

impl Envelope {
    /// An envelope of two header blocks, each below 56 bytes.
    pub const fn new(head: &[u8], trailers: &[u8]) -> Self {
        let end = flag::END_HEADERS | flag::END_STREAM;
        Self { head: Frame::new(head, flag::END_HEADERS), trailers: Frame::new(trailers, end) }
    }

    pub(super) fn head(&self) -> &[u8] {
        self.head.block()
    }

    pub(super) fn trailers(&self) -> &[u8] {
        self.trailers.block()
    }
}

impl Frame {
    #[allow(clippy::indexing_slicing, reason = "the compiler evaluates it")]
    #[expect(clippy::cast_possible_truncation, reason = "the block is shorter than a frame of an envelope")]
    const fn new(block: &[u8], flags: u8) -> Self {
        let mut bytes = [0; MAX_FRAME];
        let length = HEAD + block.len();
        assert!(length <= MAX_FRAME);
        (bytes[2], bytes[3], bytes[4]) = (block.len() as u8, kind::HEADERS, flags);
        let mut at = 0;
        while at < block.len() {
            bytes[HEAD + at] = block[at];
            at += 1;
        }
        Self { bytes, length }
    }

    fn block(&self) -> &[u8] {
        self.bytes.get(HEAD..self.length).unwrap_or_default()
    }

    #[inline]
    fn write(&self, out: &mut Vec<u8>, id: u32) {
        let mut frame = self.bytes;
        if let Some(stream) = frame.get_mut(5..HEAD) {
            stream.copy_from_slice(&id.to_be_bytes());
        }
        out.extend_from_slice(frame.get(..self.length).unwrap_or_default());
    }
}

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
        let is_next = id & 1 == 1 && id > self.last && id <= self.last + 2;
        let is_open = self.phase == Phase::Open
            && self.block.is_none()
            && !matches!(self.goaway, GoAway::Final(_))
            && self.streams.open.len() < self.config.max_streams as usize;
        if !(is_complete && is_next && is_open) {
            return None;
        }
        let request = self.cached_request(block).filter(|request| request.content_length.is_none())?;
        let head = request.head.clone();
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
    pub fn answer_complete(&mut self, id: u32, envelope: &Envelope, message: &[u8]) -> bool {
        let fits = self.fits(message, self.initial_send_window);
        if fits {
            self.write_answer(id, envelope, message);
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

    pub(super) fn write_answer(&mut self, id: u32, envelope: &Envelope, message: &[u8]) {
        let length = i64::try_from(message.len()).unwrap_or(i64::MAX);
        self.send_window -= length;
        let out = &mut self.out;
        out.reserve(message.len() + 2 * MAX_FRAME + HEAD);
        envelope.head.write(out, id);
        frame::write(out, kind::DATA, 0, id, message);
        envelope.trailers.write(out, id);
    }
}
