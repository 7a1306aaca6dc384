//! Responses: HEADERS, DATA as the peer's windows allow, trailers, resets and GOAWAY.
//!
//! Nearly every response fits the windows and is written at once. Data that does not fit is blocked at its stream,
//! charged to the budget, until the peer opens a window.

use std::time::Instant;

use super::{
    complete::Envelope,
    connection::{Connection, GoAway, INITIAL_WINDOW, Phase, Service},
    frame::{self, Reason, flag, kind},
    hpack,
    limits::Flood,
    meter::{Work, count},
    streams::{End, Outgoing},
};
use budget::Reservation;

/// Sent after the first GOAWAY: its acknowledgement shows that the peer has read the GOAWAY.
pub(super) const GOAWAY_PING: &[u8] = b"goodbye!";

impl<S: Service> Connection<S> {
    pub fn answer(&mut self, id: u32, envelope: &Envelope, message: &[u8]) {
        let Some(stream) = self.streams.open.get(&id) else { return };
        if !self.fits(message, stream.send_window) {
            self.send_head(id, envelope.head(), false);
            return self.send_data(id, message, End::Trailers(envelope.trailers().into()));
        }
        self.write_answer(id, envelope, message);
        self.finish(id);
    }

    /// Starts a response. With `end` it is complete.
    pub fn send_head(&mut self, id: u32, block: &[u8], end: bool) {
        if self.streams.open.contains_key(&id) {
            self.write_block(id, block, end);
            if end {
                self.finish(id);
            }
        }
    }

    pub fn send_data(&mut self, id: u32, data: &[u8], end: End) {
        let Some(stream) = self.streams.open.get_mut(&id) else { return };
        if let Some(outgoing) = &mut stream.outgoing {
            outgoing.data.extend_from_slice(data);
            outgoing.end = end;
        } else {
            let share = Reservation::new(&self.config.budget);
            self.streams.block(id, Outgoing { data: data.to_vec(), sent: 0, end, share, since: self.now });
        }
        self.send_outgoing(id);
        let Some(outgoing) = self.streams.open.get_mut(&id).and_then(|stream| stream.outgoing.as_mut())
        else {
            return;
        };
        // Blocked data is charged; a response that exceeds the budget is dropped.
        if !outgoing.share.resize(outgoing.data.capacity()) {
            self.reset(id, Reason::EnhanceYourCalm);
        }
    }

    pub fn is_blocked(&self, id: u32) -> bool {
        self.streams.open.get(&id).is_some_and(|stream| stream.outgoing.is_some())
    }

    pub fn has_blocked(&self) -> bool {
        self.streams.blocked > 0
    }

    /// The time since which the oldest blocked response is blocked.
    pub fn oldest_blocked(&self) -> Option<Instant> {
        let outgoing = self.streams.open.values().filter_map(|stream| stream.outgoing.as_ref());
        outgoing.map(|outgoing| outgoing.since).min()
    }

    /// True if blocked data was sent since the last call.
    pub fn take_unblocked(&mut self) -> bool {
        std::mem::take(&mut self.unblocked)
    }

    /// Sends as much blocked data of a stream as the windows allow.
    #[expect(clippy::expect_used, reason = "asserts what was sent, and what is blocked")]
    pub(super) fn send_outgoing(&mut self, id: u32) {
        let Some(stream) = self.streams.open.get_mut(&id) else { return };
        let Some(outgoing) = &mut stream.outgoing else { return };
        loop {
            let rest = outgoing.data.get(outgoing.sent..).expect("what was sent is part of the data");
            let window = usize::try_from(stream.send_window.min(self.send_window)).unwrap_or(0);
            let length = rest.len().min(window).min(self.max_frame);
            let last = length == rest.len();
            if length == 0 && !last {
                return;
            }
            let ends = last && outgoing.end == End::Data;
            if length > 0 || ends {
                let flags = if ends { flag::END_STREAM } else { 0 };
                let (data, _) = rest.split_at(length);
                frame::write(&mut self.out, kind::DATA, flags, id, data);
            }
            outgoing.sent += length;
            let sent = i64::try_from(length).unwrap_or(i64::MAX);
            stream.send_window -= sent;
            self.send_window -= sent;
            if last {
                break;
            }
        }
        let end = self.streams.unblock(id).expect("the stream is blocked").end;
        self.unblocked = true;
        match end {
            End::Open => {}
            End::Data => self.finish(id),
            End::Trailers(block) => {
                self.write_block(id, &block, true);
                self.finish(id);
            }
        }
    }

    /// Sends as much blocked data of all streams as the windows allow.
    pub(super) fn send_blocked(&mut self) {
        for id in self.streams.blocked() {
            if self.send_window <= 0 {
                return;
            }
            self.send_outgoing(id);
        }
    }

    pub fn open_window(&mut self, id: u32, more: u32) {
        let Some(stream) = self.streams.open.get_mut(&id) else { return };
        if more > 0 && stream.receiving {
            stream.receive_window += i64::from(more);
            frame::write(&mut self.out, kind::WINDOW_UPDATE, 0, id, &more.to_be_bytes());
        }
    }

    /// Opens the window of a stream for as much as was answered, while `held` received bytes are kept.
    pub fn restore_window(&mut self, id: u32, held: usize) {
        let held = u32::try_from(held).unwrap_or(u32::MAX);
        let window = self.window(id).saturating_add(held);
        self.open_window(id, INITIAL_WINDOW.saturating_sub(window));
    }

    /// The bytes that may still arrive on a stream: its window, and the rest of a frame that was already counted.
    pub fn window(&self, id: u32) -> u32 {
        let window = self.streams.open.get(&id).map_or(0, |stream| stream.receive_window);
        u32::try_from(window).unwrap_or(0) + self.rest_of_data(id)
    }

    pub fn call(&mut self, id: u32) -> Option<&mut S::Call> {
        self.streams.open.get_mut(&id).map(|stream| &mut stream.call)
    }

    pub fn calls(&mut self) -> impl Iterator<Item = (u32, &mut S::Call)> {
        count(Work::Visited, self.streams.open.len());
        self.streams.open.iter_mut().map(|(id, stream)| (*id, &mut stream.call))
    }

    /// Resets an open stream, and returns the state of its call.
    pub fn reset(&mut self, id: u32, reason: Reason) -> Option<S::Call> {
        let stream = self.streams.remove(id)?;
        self.write_reset(id, reason);
        Some(stream.call)
    }

    pub(super) fn write_reset(&mut self, id: u32, reason: Reason) {
        self.resets.add(id);
        frame::write(&mut self.out, kind::RST_STREAM, 0, id, &(reason as u32).to_be_bytes());
    }

    /// Closes a stream whose response is complete, even if the request is not.
    fn finish(&mut self, id: u32) {
        if self.streams.remove(id).is_some_and(|stream| stream.receiving) {
            self.write_reset(id, Reason::NoError);
        }
        self.limits.answered();
    }

    pub(super) fn respond_431(&mut self, id: u32, ended: bool) {
        let mut block = Vec::with_capacity(8);
        hpack::write_status(&mut block, "431");
        self.write_block(id, &block, true);
        if !ended {
            self.write_reset(id, Reason::NoError);
        }
    }

    fn write_block(&mut self, id: u32, block: &[u8], end: bool) {
        let sizes = usize::from(std::mem::take(&mut self.must_send_table_size));
        let length = block.len() + sizes;
        let (first, rest) = block.split_at_checked(self.max_frame - sizes).unwrap_or((block, &[]));
        let end_stream = if end { flag::END_STREAM } else { 0 };
        let end_headers = if rest.is_empty() { flag::END_HEADERS } else { 0 };
        let length = length.min(self.max_frame);
        frame::write_head(&mut self.out, length, kind::HEADERS, end_stream | end_headers, id);
        if sizes > 0 {
            self.out.push(hpack::TABLE_SIZE_0);
        }
        self.out.extend_from_slice(first);
        let mut pieces = rest.chunks(self.max_frame).peekable();
        while let Some(piece) = pieces.next() {
            let flags = if pieces.peek().is_none() { flag::END_HEADERS } else { 0 };
            frame::write(&mut self.out, kind::CONTINUATION, flags, id, piece);
        }
    }

    pub fn send_ping(&mut self) {
        frame::write(&mut self.out, kind::PING, 0, 0, b"alive???");
    }

    /// Sends the first GOAWAY. Streams that the peer opens before it reads the GOAWAY are still served; the final GOAWAY
    /// follows when the peer has read the first.
    pub fn announce_goaway(&mut self) {
        if self.goaway == GoAway::NotSent {
            self.goaway = GoAway::Announced;
            self.write_goaway(0x7fff_ffff, Reason::NoError);
            frame::write(&mut self.out, kind::PING, 0, 0, GOAWAY_PING);
        }
    }

    /// Sends the final GOAWAY, after which new streams are ignored.
    pub fn send_final_goaway(&mut self) {
        if !matches!(self.goaway, GoAway::Final(_)) {
            self.goaway = GoAway::Final(self.last);
            self.write_goaway(self.last, Reason::NoError);
        }
    }

    /// Sends a GOAWAY with an error code, and returns the flood that is the cause, if there is one.
    pub fn fail(&mut self, reason: Reason) -> Option<Flood> {
        self.goaway = GoAway::Final(self.last);
        self.write_goaway(self.last, reason);
        self.limits.exceeded_by()
    }

    fn write_goaway(&mut self, last: u32, reason: Reason) {
        let payload = [last.to_be_bytes(), (reason as u32).to_be_bytes()];
        frame::write(&mut self.out, kind::GOAWAY, 0, 0, payload.as_flattened());
    }

    /// True until the peer has sent its preface and its first SETTINGS.
    pub fn awaits_preface(&self) -> bool {
        self.phase != Phase::Open
    }

    /// True when no stream is open and none will be.
    pub fn is_done(&self) -> bool {
        self.streams.open.is_empty() && (self.peer_sent_goaway || matches!(self.goaway, GoAway::Final(_)))
    }

    pub fn open_streams(&self) -> usize {
        self.streams.open.len()
    }

    pub fn has_announced_goaway(&self) -> bool {
        self.goaway == GoAway::Announced
    }

    /// Drops all calls of a connection that has ended.
    pub fn abandon(&mut self, service: &mut S) {
        for stream in self.streams.drain() {
            service.closed(stream.call);
        }
    }
}
