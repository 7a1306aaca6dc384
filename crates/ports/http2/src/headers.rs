//! Requests and trailers: HEADERS and CONTINUATION frames and their header blocks.

use super::{
    block::{Block, Request},
    connection::{Connection, GoAway, INITIAL_WINDOW, Service},
    control::depends_on,
    frame::{FrameHead, Handled, Reason, flag},
    head::{BadHead, Reader},
    limits::{self, Flood},
    streams::Stream,
};
use budget::Reservation;

const KEPT_CAPACITY: usize = 1024;

impl<S: Service> Connection<S> {
    pub(super) fn headers(&mut self, head: FrameHead, payload: &[u8], service: &mut S) -> Handled {
        if head.stream & 1 == 0 {
            return Err(Reason::ProtocolError);
        }
        let mut block = payload;
        if head.has(flag::PADDED) {
            let (padding, behind) = block.split_first().ok_or(Reason::FrameSizeError)?;
            let length = behind.len().checked_sub(usize::from(*padding));
            block = length.and_then(|length| behind.get(..length)).ok_or(Reason::ProtocolError)?;
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
            share: Reservation::new(&self.config.budget),
        };
        if !begun.add(block) {
            return self.limits.exceed(Flood::Headers);
        }
        self.block = Some(begun);
        Ok(())
    }

    pub(super) fn continuation(&mut self, head: FrameHead, payload: &[u8], service: &mut S) -> Handled {
        let mut block = self.block.take().ok_or(Reason::ProtocolError)?;
        if !block.add(payload) {
            return self.limits.exceed(Flood::Headers);
        }
        if head.has(flag::END_HEADERS) {
            let Block { stream, bytes, end, depends_on_itself, .. } = block;
            return self.header_block(stream, &bytes, end, depends_on_itself, service);
        }
        self.block = Some(block);
        Ok(())
    }

    /// Handles a complete header block: a request or trailers.
    fn header_block(
        &mut self,
        id: u32,
        block: &[u8],
        end: bool,
        depends_on_itself: bool,
        service: &mut S,
    ) -> Handled {
        if id <= self.last {
            return self.trailers(id, block, end, service);
        }
        if id > self.last + 2 {
            self.skipped = (self.last, id);
        }
        self.last = id;
        let request = self.request(block, service)?;
        if matches!(self.goaway, GoAway::Final(last) if id > last) {
            return Ok(());
        }
        let request = match request {
            Ok(Request { content_length: Some(1..), .. }) if end => Err(BadHead::Malformed),
            Ok(_) if depends_on_itself => Err(BadHead::Malformed),
            request => request,
        };
        match request {
            Err(BadHead::Malformed) => self.reject_unopened(id, Reason::ProtocolError),
            Err(BadHead::TooLarge) => {
                self.limits.spend(limits::MALFORMED, Flood::Malformed)?;
                self.respond_431(id, end);
                Ok(())
            }
            Ok(_)
                if self.streams.open.len() >= self.config.max_streams as usize || !self.streams.reserve() =>
            {
                self.reject_unopened(id, Reason::RefusedStream)
            }
            Ok(Request { head, content_length }) => {
                self.open_stream(id, S::Call::default(), content_length, !end);
                service.open(self, id, &head);
                if end {
                    service.data(self, id, &[], true);
                }
                Ok(())
            }
        }
    }

    pub(super) fn open_stream(&mut self, id: u32, call: S::Call, missing: Option<u64>, receiving: bool) {
        let stream = Stream {
            send_window: self.initial_send_window,
            receive_window: INITIAL_WINDOW.into(),
            missing,
            receiving,
            opened: self.now,
            outgoing: None,
            call,
        };
        self.streams.open.insert(id, stream);
    }

    /// The request of a block that repeats the cached one.
    pub(super) fn cached_request(&self, block: &[u8]) -> Option<&Request<S::Head>> {
        let is_same = self.memo.block == block && self.memo.version == self.decoder.table.version;
        self.memo.request.as_ref().filter(|_| is_same)
    }

    /// Decodes the block of a request, unless it repeats the cached one.
    fn request(&mut self, block: &[u8], service: &S) -> Result<Result<Request<S::Head>, BadHead>, Reason> {
        if let Some(request) = self.cached_request(block) {
            return Ok(Ok(request.clone()));
        }
        let version = self.decoder.table.version;
        let mut reader = Reader::new(service);
        let is_whole = self.decoder.decode(block, |field| reader.field(field))?;
        if !is_whole {
            return Ok(Err(BadHead::TooLarge));
        }
        let request = reader.finish();
        if let Ok(request) = &request
            && self.decoder.table.version == version
            && block.len() <= KEPT_CAPACITY
        {
            self.memo.block.clear();
            self.memo.block.extend_from_slice(block);
            self.memo.version = version;
            self.memo.request = Some(request.clone());
        }
        Ok(request)
    }

    /// Handles a header block on a stream that was opened before.
    fn trailers(&mut self, id: u32, block: &[u8], end: bool, service: &mut S) -> Handled {
        let mut is_valid = true;
        let is_whole =
            self.decoder.decode(block, |field| is_valid &= field.is_regular && field.has_valid_value)?;
        is_valid &= is_whole;
        let (first, next) = self.skipped;
        if id > first && id < next {
            return Err(Reason::ProtocolError);
        }
        let Some(stream) = self.streams.open.get_mut(&id).filter(|stream| stream.receiving) else {
            return self.reject(id, Reason::StreamClosed, service);
        };
        if !is_valid || !end || stream.missing.is_some_and(|missing| missing > 0) {
            return self.reject(id, Reason::ProtocolError, service);
        }
        stream.receiving = false;
        service.data(self, id, &[], true);
        Ok(())
    }
}
