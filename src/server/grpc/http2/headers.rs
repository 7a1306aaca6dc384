//! Requests and trailers: HEADERS and CONTINUATION frames, and what their blocks mean.

use super::{
    budget::Share,
    connection::{Connection, FIRST_WINDOW, Goodbye, Service},
    control::depends_on,
    frame::{FrameHead, Reason, flag},
    head::{BadHead, Head, MAX_LIST, Reader, is_trailer},
    limits,
    streams::Stream,
};
use crate::telemetry::metrics::PeerError;

/// A header block that takes more is an attack (CVE-2024-27316): no list below [`MAX_LIST`] needs it.
const MAX_BLOCK: usize = 2 * MAX_LIST;

/// So is one of more frames.
const MAX_BLOCK_FRAMES: u32 = 16;

/// Buffers up to this size are kept between frames.
const KEPT_CAPACITY: usize = 1024;

/// The last header block that left the table as it was, and what it meant.
pub(super) struct Memo {
    pub(super) block: Vec<u8>,
    pub(super) version: u64,
    pub(super) head: Option<Head>,
}

/// A header block that continues in other frames.
pub(super) struct Block {
    pub(super) stream: u32,
    pub(super) end: bool,
    pub(super) depends_on_itself: bool,
    pub(super) bytes: Vec<u8>,
    pub(super) frames: u32,
    pub(super) share: Share,
}

impl<C> Connection<C> {
    pub(super) fn headers<S: Service<Call = C>>(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        service: &mut S,
    ) -> Result<(), Reason> {
        if head.stream & 1 == 0 {
            return Err(Reason::ProtocolError);
        }
        let mut block = payload;
        if head.has(flag::PADDED) {
            let (padding, behind) = block.split_first().ok_or(Reason::FrameSizeError)?;
            let length = behind.len().checked_sub(usize::from(*padding)).ok_or(Reason::ProtocolError)?;
            block = behind.get(..length).unwrap_or_default();
        }
        let mut depends_on_itself = false;
        if head.has(flag::PRIORITY) {
            let (priority, behind) = block.split_at_checked(5).ok_or(Reason::FrameSizeError)?;
            depends_on_itself = depends_on(priority, head.stream);
            block = behind;
        }
        let end = head.has(flag::END_STREAM);
        if head.has(flag::END_HEADERS) {
            return self.header_block(head.stream, block, end, depends_on_itself, service);
        }
        let mut begun = Block {
            stream: head.stream,
            end,
            depends_on_itself,
            bytes: Vec::new(),
            frames: 0,
            share: Share::new(&self.config.budget),
        };
        if !begun.add(block) {
            return self.limits.exceed(PeerError::HeaderFlood);
        }
        self.block = Some(begun);
        Ok(())
    }

    pub(super) fn continuation<S: Service<Call = C>>(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        service: &mut S,
    ) -> Result<(), Reason> {
        let mut block = self.block.take().ok_or(Reason::ProtocolError)?;
        if !block.add(payload) {
            return self.limits.exceed(PeerError::HeaderFlood);
        }
        if head.has(flag::END_HEADERS) {
            return self.header_block(
                block.stream,
                &block.bytes,
                block.end,
                block.depends_on_itself,
                service,
            );
        }
        self.block = Some(block);
        Ok(())
    }

    /// A complete header block: a request, or trailers.
    fn header_block<S: Service<Call = C>>(
        &mut self,
        id: u32,
        block: &[u8],
        end: bool,
        depends_on_itself: bool,
        service: &mut S,
    ) -> Result<(), Reason> {
        if id <= self.last {
            return self.trailers(id, block, end, service);
        }
        if id > self.last.saturating_add(2) {
            self.skipped = (self.last, id);
        }
        self.last = id;
        let head = self.head(block)?;
        if matches!(self.goodbye, Goodbye::Said(last) if id > last) {
            return Ok(());
        }
        let head = match head {
            Ok(head) if head.content_length.is_some_and(|length| length > 0) && end => {
                Err(BadHead::Malformed)
            }
            Ok(_) if depends_on_itself => Err(BadHead::Malformed),
            head => head,
        };
        let stream = |call, missing| Stream {
            send_window: self.first_send_window,
            receive_window: FIRST_WINDOW.into(),
            missing,
            receiving: !end,
            opened: self.now,
            outgoing: None,
            call,
        };
        match head {
            Err(BadHead::Malformed) => self.refuse_unopened(id, Reason::ProtocolError),
            Err(BadHead::TooLarge) => {
                self.limits.spend(limits::MALFORMED, PeerError::MalformedFlood)?;
                self.answer_431(id, end);
                Ok(())
            }
            Ok(_) if self.streams.len() >= self.config.max_streams as usize || !self.streams.reserve() => {
                self.refuse_unopened(id, Reason::RefusedStream)
            }
            Ok(head) => {
                let call = service.open(id, &head);
                self.streams.insert(id, stream(call, head.content_length));
                if end {
                    service.data(self, id, &[], true);
                }
                Ok(())
            }
        }
    }

    /// What a block means. Blocks that repeat the last one, and do not touch the table, are not decoded again.
    fn head(&mut self, block: &[u8]) -> Result<Result<Head, BadHead>, Reason> {
        let version = self.decoder.version();
        if self.memo.version == version
            && self.memo.block == block
            && let Some(head) = &self.memo.head
        {
            return Ok(Ok(head.clone()));
        }
        let mut reader = Reader::new(self.config.unary, self.config.keep_fields);
        let decoded = self.decoder.decode(block, |name, value| reader.field(name, value));
        decoded.map_err(|_| Reason::CompressionError)?;
        let head = reader.finish();
        if let Ok(head) = &head
            && self.decoder.version() == version
            && block.len() <= KEPT_CAPACITY
        {
            self.memo.block.clear();
            self.memo.block.extend_from_slice(block);
            self.memo.version = version;
            self.memo.head = Some(head.clone());
        }
        Ok(head)
    }

    /// A header block on a stream that was opened before: trailers, or nonsense.
    fn trailers<S: Service<Call = C>>(
        &mut self,
        id: u32,
        block: &[u8],
        end: bool,
        service: &mut S,
    ) -> Result<(), Reason> {
        let mut good = true;
        let decoded = self.decoder.decode(block, |name, value| good &= is_trailer(name, value));
        decoded.map_err(|_| Reason::CompressionError)?;
        let (first, next) = self.skipped;
        if id > first && id < next {
            return Err(Reason::ProtocolError);
        }
        let Some(stream) = self.streams.get_mut(id).filter(|stream| stream.receiving) else {
            return self.refuse(id, Reason::StreamClosed, service);
        };
        if !good || !end || stream.missing.is_some_and(|missing| missing > 0) {
            return self.refuse(id, Reason::ProtocolError, service);
        }
        stream.receiving = false;
        service.data(self, id, &[], true);
        Ok(())
    }
}

impl Block {
    /// False when it is too large.
    fn add(&mut self, bytes: &[u8]) -> bool {
        self.frames = self.frames.saturating_add(1);
        let length = self.bytes.len().saturating_add(bytes.len());
        if length > MAX_BLOCK || self.frames > MAX_BLOCK_FRAMES || !self.share.resize(length) {
            return false;
        }
        self.bytes.reserve_exact(bytes.len());
        self.bytes.extend_from_slice(bytes);
        true
    }
}
