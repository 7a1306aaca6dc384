//! The state machine of a connection: dispatches the frames of the peer.
//!
//! [`Connection::receive`] parses received bytes. Requests reach the [`Service`], which responds through the methods
//! of `sending`, at once or later. A stream error resets the stream; a connection error is returned, and
//! [`Connection::fail`] then sends the GOAWAY.

use std::{sync::Arc, time::Instant};

use super::{
    block::{Block, Memo},
    frame::{self, FrameHead, HEAD, Handled, MAX_PAYLOAD, Reason, flag, kind, setting},
    hpack::{Decoder, MAX_LIST},
    limits::{self, Flood, Limits},
    streams::{Resets, Streams},
};
use budget::Budget;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The initial window of a stream and of a connection (RFC 9113, section 6.9.2).
pub const INITIAL_WINDOW: u32 = 65_535;

/// The window of a connection. It is replenished as soon as data arrives, so that an unfinished message does not block
/// the others; the streams' windows and the budget bound the memory.
const WINDOW: u32 = 1 << 20;

/// A `WINDOW_UPDATE` is sent for at least this much data.
const CREDIT_STEP: u32 = WINDOW / 2;

/// [`Connection::receive`] stops when it has written this much: the peer reads its responses first (CVE-2019-9517).
const MAX_OUTPUT: usize = 64 * 1024;

/// The part that all connections of a worker share.
#[derive(Clone)]
pub struct Config {
    pub max_streams: u32,
    pub budget: Arc<Budget>,
}

/// Responds to the requests of a connection.
pub trait Service: Sized {
    /// The fields of a request that were read.
    type Fields: Default;

    /// What the service needs of a request's head. A header block that repeats is decoded once, and its head is cloned.
    type Head: Clone;

    /// The state of a call while its stream is open.
    type Call: Default;

    /// Reads a valid field of a request, which may prove to be malformed. Pseudo-fields come first.
    fn field(&self, fields: &mut Self::Fields, name: &[u8], value: &[u8]);

    /// The head of a well-formed request with these fields.
    fn head(&self, fields: Self::Fields) -> Self::Head;

    /// Begins a call, whose stream is open: the service sets its state, or responds.
    fn open(&mut self, http: &mut Connection<Self>, id: u32, head: &Self::Head);

    /// Handles request data; `end` marks the last of it.
    fn data(&mut self, http: &mut Connection<Self>, id: u32, data: &[u8], end: bool);

    /// Handles a request that arrived with all of its data and whose stream is not open. Responds with
    /// [`Connection::answer_complete`], or opens the stream with [`Connection::open_complete`].
    fn complete(&mut self, http: &mut Connection<Self>, id: u32, head: &Self::Head, data: &[u8]) {
        self.open_and_complete(http, id, head, data);
    }

    /// Opens the stream of a request that arrived with all of its data.
    fn open_and_complete(&mut self, http: &mut Connection<Self>, id: u32, head: &Self::Head, data: &[u8]) {
        http.open_complete(id, Self::Call::default());
        self.open(http, id, head);
        self.data(http, id, data, true);
    }

    /// Drops a call that the peer cancelled, or that a protocol error ended.
    fn closed(&mut self, call: Self::Call);

    /// The peer reset a stream whose response was written: it gave up before the response arrived.
    fn reset_after_response(&mut self) {}
}

pub struct Connection<S: Service> {
    pub out: Vec<u8>,
    pub(super) config: Config,
    pub(super) streams: Streams<S::Call>,
    pub(super) limits: Limits,
    pub(super) max_frame: usize,
    /// The peer's `SETTINGS_INITIAL_WINDOW_SIZE`.
    pub(super) initial_send_window: i64,
    pub(super) send_window: i64,
    /// Blocked data was sent since the last [`take_unblocked`](Self::take_unblocked).
    pub(super) unblocked: bool,
    /// The next header block starts with a table size update to 0.
    pub(super) must_send_table_size: bool,
    pub(super) has_sent_table_size: bool,
    receive_window: u32,
    /// Received bytes that no `WINDOW_UPDATE` has returned yet.
    credit: u32,
    pub(super) phase: Phase,
    pub(super) goaway: GoAway,
    pub(super) peer_sent_goaway: bool,
    /// The last stream that the peer opened.
    pub last: u32,
    /// The range of stream numbers that the peer skipped last, exclusive: those streams are closed and were never open.
    pub(super) skipped: (u32, u32),
    /// Streams that we reset: frames in flight for them are dropped without another reset.
    pub(super) resets: Resets,
    pub(super) peer_resets: Resets,
    pub(super) decoder: Decoder,
    pub(super) memo: Memo<S::Head>,
    pub(super) block: Option<Block>,
    data: Data,
    pub(super) now: Instant,
    turn: Turn,
}

/// The progress of the peer's connection preface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// The preface is not complete.
    Preface,
    /// The first SETTINGS are missing.
    Settings,
    /// The peer may send requests.
    Open,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GoAway {
    NotSent,
    /// The first GOAWAY is sent, which allows the streams that the peer opens before it reads it.
    Announced,
    /// The final GOAWAY is sent: streams above this one are ignored.
    Final(u32),
}

/// The time that a connection may work before others are served.
#[derive(Default)]
struct Turn {
    /// `None` for a connection that is not interrupted.
    end: Option<Instant>,
    /// The work since the clock was read last.
    unchecked: usize,
    over: bool,
    interrupted: bool,
}

impl Turn {
    /// The clock, which costs 25 ns, is read for this much work: 8 µs of ordinary requests.
    const CHECKED: usize = 1024;

    /// The work for a frame besides its bytes.
    const FRAME: usize = 64;

    /// The size of the output at which [`Connection::receive`] stops.
    #[inline]
    fn max_output(&self, now: usize) -> usize {
        self.end.map_or(usize::MAX, |_| now.saturating_add(MAX_OUTPUT))
    }

    /// Counts the work for some bytes; true if the turn is over.
    #[inline]
    fn spend(&mut self, bytes: usize) -> bool {
        self.unchecked += bytes + Self::FRAME;
        if self.unchecked > Self::CHECKED {
            self.unchecked = 0;
            self.over = self.end.is_some_and(|end| Instant::now() >= end);
        }
        self.over
    }
}

/// The DATA frame whose payload is being received.
#[derive(Default)]
struct Data {
    stream: u32,
    left: usize,
    padding: usize,
    end: bool,
    /// The stream is not open: the payload is dropped.
    dropped: bool,
    under_way: bool,
}

impl<S: Service> Connection<S> {
    /// A new connection, with our SETTINGS in `out`.
    pub fn new(config: Config, now: Instant) -> Self {
        let mut out = Vec::with_capacity(64);
        let mut settings = Vec::with_capacity(2 * frame::SETTING);
        frame::write_setting(&mut settings, setting::MAX_CONCURRENT_STREAMS, config.max_streams);
        let list = u32::try_from(MAX_LIST).unwrap_or(u32::MAX);
        frame::write_setting(&mut settings, setting::MAX_HEADER_LIST_SIZE, list);
        frame::write(&mut out, kind::SETTINGS, 0, 0, &settings);
        let more = (WINDOW - INITIAL_WINDOW).to_be_bytes();
        frame::write(&mut out, kind::WINDOW_UPDATE, 0, 0, &more);
        Self {
            out,
            streams: Streams::new(&config.budget),
            config,
            limits: Limits::new(now),
            max_frame: MAX_PAYLOAD,
            initial_send_window: INITIAL_WINDOW.into(),
            send_window: INITIAL_WINDOW.into(),
            unblocked: false,
            must_send_table_size: false,
            has_sent_table_size: false,
            receive_window: WINDOW,
            credit: 0,
            phase: Phase::Preface,
            goaway: GoAway::NotSent,
            peer_sent_goaway: false,
            last: 0,
            skipped: (0, 0),
            resets: Resets::default(),
            peer_resets: Resets::default(),
            decoder: Decoder::default(),
            memo: Memo::default(),
            block: None,
            data: Data::default(),
            now,
            turn: Turn::default(),
        }
    }

    /// Begins a turn of the connection, which ends at a moment.
    pub fn begin_turn(&mut self, end: Instant) {
        self.turn = Turn { end: Some(end), interrupted: self.turn.interrupted, ..Turn::default() };
    }

    /// Counts bytes that were received or answered; true if the turn is over, and the rest has to wait for the next one.
    pub fn spend(&mut self, bytes: usize) -> bool {
        self.turn.spend(bytes)
    }

    /// True if the turn is over, or the peer has to read its responses first.
    pub fn is_over(&self) -> bool {
        self.turn.over || self.out.len() > MAX_OUTPUT
    }

    /// True if [`receive`](Self::receive) left complete frames for the next turn.
    pub fn is_interrupted(&self) -> bool {
        self.turn.interrupted
    }

    /// The size of the frame that begins these bytes: all of it that [`receive`](Self::receive) needs at once.
    pub fn frame_size(&self, bytes: &[u8]) -> usize {
        match FrameHead::read(bytes) {
            Some(head) if self.phase == Phase::Open && head.kind != kind::DATA => HEAD + head.length,
            _ => 0,
        }
    }

    /// True within a header block, or within a DATA frame that no call is waiting for.
    pub fn is_mid_block(&self) -> bool {
        let is_dropped = self.data.dropped || !self.streams.open.contains_key(&self.data.stream);
        self.block.is_some() || (self.data.under_way && is_dropped)
    }

    /// Parses received bytes and returns the number consumed; the caller passes the rest again with what follows, or in
    /// the next turn if [`is_interrupted`](Self::is_interrupted).
    pub fn receive(&mut self, bytes: &[u8], now: Instant, service: &mut S) -> Result<usize, Reason> {
        self.now = now;
        self.limits.refill(now);
        let most = self.turn.max_output(self.out.len());
        let mut rest = bytes;
        if self.phase == Phase::Preface {
            let Some(begun) = rest.get(..PREFACE.len().min(rest.len())) else { return Ok(0) };
            if !PREFACE.starts_with(begun) {
                return Err(Reason::ProtocolError);
            }
            let Some(behind) = rest.strip_prefix(PREFACE) else { return Ok(0) };
            rest = behind;
            self.phase = Phase::Settings;
        }
        let mut before = rest.len();
        loop {
            let is_over = self.turn.spend(before - rest.len());
            before = rest.len();
            self.turn.interrupted = !rest.is_empty() && (is_over || self.out.len() > most);
            if self.turn.interrupted {
                break;
            }
            if self.data.under_way {
                rest = self.continue_data(rest, service);
                if self.data.under_way {
                    break;
                }
            }
            if let Some(behind) = self.take_complete(rest, service) {
                rest = behind;
                continue;
            }
            let Some(head) = FrameHead::read(rest) else { break };
            self.check_order(head)?;
            let Some(payload) = rest.get(HEAD..) else { break };
            if head.kind == kind::DATA {
                let Some(behind) = self.begin_data(head, payload, service)? else { break };
                rest = behind;
            } else {
                let Some((payload, behind)) = payload.split_at_checked(head.length) else { break };
                self.frame(head, payload, service)?;
                rest = behind;
            }
        }
        if self.credit >= CREDIT_STEP {
            frame::write(&mut self.out, kind::WINDOW_UPDATE, 0, 0, &self.credit.to_be_bytes());
            self.receive_window += self.credit;
            self.credit = 0;
        }
        Ok(bytes.len() - rest.len())
    }

    fn check_order(&mut self, head: FrameHead) -> Handled {
        if head.length > MAX_PAYLOAD {
            return Err(Reason::FrameSizeError);
        }
        if self.phase == Phase::Settings {
            if head.kind != kind::SETTINGS || head.has(flag::ACK) {
                return Err(Reason::ProtocolError);
            }
            self.phase = Phase::Open;
        }
        match &self.block {
            Some(block) if head.kind == kind::CONTINUATION && head.stream == block.stream => Ok(()),
            None if head.kind != kind::CONTINUATION => Ok(()),
            _ => Err(Reason::ProtocolError),
        }
    }

    fn frame(&mut self, head: FrameHead, payload: &[u8], service: &mut S) -> Handled {
        match head.kind {
            kind::HEADERS => self.headers(head, payload, service),
            kind::CONTINUATION => self.continuation(head, payload, service),
            kind::PRIORITY => self.priority(head, payload, service),
            kind::RST_STREAM => self.peer_reset(head, payload, service),
            kind::SETTINGS => self.settings(head, payload),
            kind::PING => self.ping(head, payload),
            kind::GOAWAY if head.stream != 0 => Err(Reason::ProtocolError),
            kind::GOAWAY if payload.len() < 8 => Err(Reason::FrameSizeError),
            kind::GOAWAY => {
                self.peer_sent_goaway = true;
                self.limits.spend(1, Flood::Others)
            }
            kind::WINDOW_UPDATE => self.window_update(head, payload, service),
            kind::PUSH_PROMISE => Err(Reason::ProtocolError),
            // RFC 9113, section 4.1: unknown types are ignored.
            _ => self.limits.spend(1, Flood::Others),
        }
    }

    /// Starts a DATA frame, whose payload may be incomplete. `None` if the padding length is missing.
    fn begin_data<'b>(
        &mut self,
        head: FrameHead,
        payload: &'b [u8],
        service: &mut S,
    ) -> Result<Option<&'b [u8]>, Reason> {
        if head.stream == 0 || self.never_opened(head.stream) {
            return Err(Reason::ProtocolError);
        }
        let mut left = head.length;
        let mut padding = 0;
        let mut payload = payload;
        if head.has(flag::PADDED) {
            left = left.checked_sub(1).ok_or(Reason::FrameSizeError)?;
            let Some((length, behind)) = payload.split_first() else { return Ok(None) };
            padding = usize::from(*length);
            left = left.checked_sub(padding).ok_or(Reason::ProtocolError)?;
            payload = behind;
        }
        if !self.take_window(head.length) {
            return Err(Reason::FlowControlError);
        }
        let end = head.has(flag::END_STREAM);
        if left < limits::SMALL_DATA && !end {
            self.limits.spend(1, Flood::Data)?;
        }
        let taken = self.take_data(head.stream, head.length, left, end);
        if let Err(reason) = taken {
            self.reject(head.stream, reason, service)?;
        }
        let dropped = taken.is_err();
        self.data = Data { stream: head.stream, left, padding, end, dropped, under_way: true };
        Ok(Some(payload))
    }

    /// Counts data against the window of the connection; false without a change if it does not fit.
    pub(super) fn take_window(&mut self, length: usize) -> bool {
        let Ok(length) = u32::try_from(length) else { return false };
        let Some(left) = self.receive_window.checked_sub(length) else { return false };
        self.receive_window = left;
        self.credit += length;
        true
    }

    /// Counts data of a stream against its window and its content-length.
    fn take_data(&mut self, id: u32, length: usize, data: usize, end: bool) -> Handled {
        let stream = self.streams.open.get_mut(&id).ok_or(Reason::StreamClosed)?;
        if !stream.receiving {
            return Err(Reason::StreamClosed);
        }
        let length = i64::try_from(length).unwrap_or(i64::MAX);
        stream.receive_window -= length;
        if stream.receive_window < 0 {
            return Err(Reason::FlowControlError);
        }
        if let Some(missing) = &mut stream.missing {
            let data = u64::try_from(data).unwrap_or(u64::MAX);
            *missing = missing.checked_sub(data).ok_or(Reason::ProtocolError)?;
            if end && *missing > 0 {
                return Err(Reason::ProtocolError);
            }
        }
        Ok(())
    }

    /// Passes the available part of a DATA payload to the service, and returns the bytes after it.
    fn continue_data<'b>(&mut self, bytes: &'b [u8], service: &mut S) -> &'b [u8] {
        let (data, behind) = bytes.split_at_checked(self.data.left).unwrap_or((bytes, &[]));
        self.data.left -= data.len();
        let padding = self.data.padding.min(behind.len());
        let whole = self.data.left == 0;
        if whole {
            self.data.padding -= padding;
            self.data.under_way = self.data.padding > 0;
        }
        let (_, behind) = behind.split_at_checked(padding).unwrap_or((&[], behind));
        let id = self.data.stream;
        let end = whole && self.data.end && !self.data.under_way;
        if !self.data.dropped && (end || !data.is_empty()) {
            let Some(stream) = self.streams.open.get_mut(&id) else { return behind };
            stream.receiving = !end;
            service.data(self, id, data, end);
        }
        behind
    }

    /// The service has done what a message of an open stream asks for.
    pub fn served(&mut self) {
        self.limits.served();
    }

    /// The missing bytes of the current DATA frame, if it is for this stream.
    pub(super) fn rest_of_data(&self, id: u32) -> u32 {
        let left = if self.data.under_way && self.data.stream == id { self.data.left } else { 0 };
        u32::try_from(left).unwrap_or(u32::MAX)
    }

    /// Resets a stream, open or closed, after an invalid frame of the peer.
    ///
    /// # Errors
    /// When both sides had ended the stream, or the limit of invalid frames is exceeded.
    pub(super) fn reject(&mut self, id: u32, reason: Reason, service: &mut S) -> Handled {
        if let Some(call) = self.reset(id, reason) {
            service.closed(call);
            return self.limits.spend(limits::MALFORMED, Flood::Malformed);
        }
        if self.resets.contains(id) || matches!(self.goaway, GoAway::Final(last) if id > last) {
            // The frame was in flight when we reset or ignored the stream.
            return self.limits.spend(1, Flood::ClosedStreams);
        }
        let was_reset = self.resets.may_contain(id) || self.peer_resets.may_contain(id);
        if reason == Reason::StreamClosed && !was_reset {
            return Err(reason);
        }
        self.write_reset(id, reason);
        self.limits.spend(limits::MALFORMED, Flood::ClosedStreams)
    }

    pub(super) fn reject_unopened(&mut self, id: u32, reason: Reason) -> Handled {
        self.write_reset(id, reason);
        match reason {
            Reason::RefusedStream => self.limits.spend(1, Flood::Refused),
            _ => self.limits.spend(limits::MALFORMED, Flood::Malformed),
        }
    }

    /// True for a stream that was never opened; even numbers would be streams of the server, which opens none.
    pub(super) fn never_opened(&self, id: u32) -> bool {
        id > self.last || id & 1 == 0
    }
}
