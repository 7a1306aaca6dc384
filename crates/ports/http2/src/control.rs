//! Frames without request data: `PRIORITY`, `RST_STREAM`, `SETTINGS`, `PING` and `WINDOW_UPDATE`.

use super::{
    connection::{Connection, GoAway, Service},
    frame::{self, FrameHead, Handled, Reason, flag, kind, setting},
    limits::{self, Flood},
    meter::{Work, count},
    sending::GOAWAY_PING,
};

impl<S: Service> Connection<S> {
    pub(super) fn priority(&mut self, head: FrameHead, payload: &[u8], service: &mut S) -> Handled {
        // Priorities are ignored, so there is no dependency tree to attack (CVE-2019-9513).
        self.limits.spend(1, Flood::Priorities)?;
        if head.stream == 0 {
            return Err(Reason::ProtocolError);
        }
        let reason = if payload.len() != 5 {
            Reason::FrameSizeError
        } else if depends_on(payload, head.stream) {
            Reason::ProtocolError
        } else {
            return Ok(());
        };
        if self.never_opened(head.stream) { Err(reason) } else { self.reject(head.stream, reason, service) }
    }

    pub(super) fn peer_reset(&mut self, head: FrameHead, payload: &[u8], service: &mut S) -> Handled {
        if head.stream == 0 || self.never_opened(head.stream) {
            return Err(Reason::ProtocolError);
        }
        if payload.len() != 4 {
            return Err(Reason::FrameSizeError);
        }
        let Some(stream) = self.streams.remove(head.stream) else {
            if self.has_responded(head.stream) {
                service.reset_after_response();
            }
            return self.limits.spend(1, Flood::ClosedStreams);
        };
        let open_for = self.now.saturating_duration_since(stream.opened);
        service.closed(stream.call);
        self.peer_resets.add(head.stream);
        if open_for < limits::RAPID_RESET { self.limits.spend(1, Flood::Resets) } else { Ok(()) }
    }

    /// True for a closed stream that ended with a response and not with a reset, as far as resets are remembered.
    fn has_responded(&self, id: u32) -> bool {
        let is_ignored = matches!(self.goaway, GoAway::Final(last) if id > last);
        !is_ignored && !self.resets.contains(id) && !self.peer_resets.contains(id)
    }

    pub(super) fn settings(&mut self, head: FrameHead, payload: &[u8]) -> Handled {
        if head.stream != 0 {
            return Err(Reason::ProtocolError);
        }
        if head.has(flag::ACK) {
            self.limits.spend(1, Flood::Settings)?;
            return if payload.is_empty() { Ok(()) } else { Err(Reason::FrameSizeError) };
        }
        let (entries, rest) = payload.as_chunks::<{ frame::SETTING }>();
        if !rest.is_empty() {
            return Err(Reason::FrameSizeError);
        }
        let cost = u32::try_from(entries.len()).unwrap_or(u32::MAX) + 1;
        self.limits.spend(cost, Flood::Settings)?;
        let window = self.initial_send_window;
        for [a, b, value @ ..] in entries {
            self.setting(u16::from_be_bytes([*a, *b]), u32::from_be_bytes(*value))?;
        }
        frame::write_head(&mut self.out, 0, kind::SETTINGS, flag::ACK, 0);
        if self.initial_send_window > window {
            self.send_blocked();
        }
        Ok(())
    }

    fn setting(&mut self, id: u16, value: u32) -> Handled {
        match id {
            // Responses use no table; a smaller one must be acknowledged once.
            setting::HEADER_TABLE_SIZE if value < 4096 && !self.has_sent_table_size => {
                self.has_sent_table_size = true;
                self.must_send_table_size = true;
            }
            setting::ENABLE_PUSH if value > 1 => return Err(Reason::ProtocolError),
            setting::INITIAL_WINDOW_SIZE => {
                let value = i32::try_from(value).map_err(|_| Reason::FlowControlError)?;
                let change = i64::from(value) - self.initial_send_window;
                self.initial_send_window = value.into();
                let streams = self.streams.open.len();
                self.limits.spend_visits(streams, Flood::Settings)?;
                count(Work::Visited, streams);
                for stream in self.streams.open.values_mut() {
                    stream.send_window += change;
                    if stream.send_window > i32::MAX.into() {
                        return Err(Reason::FlowControlError);
                    }
                }
            }
            setting::MAX_FRAME_SIZE => {
                if !(16_384..1 << 24).contains(&value) {
                    return Err(Reason::ProtocolError);
                }
                self.max_frame = value as usize;
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn ping(&mut self, head: FrameHead, payload: &[u8]) -> Handled {
        if head.stream != 0 {
            return Err(Reason::ProtocolError);
        }
        if payload.len() != 8 {
            return Err(Reason::FrameSizeError);
        }
        self.limits.spend(1, Flood::Pings)?;
        if !head.has(flag::ACK) {
            frame::write(&mut self.out, kind::PING, flag::ACK, 0, payload);
        } else if payload == GOAWAY_PING && self.goaway == GoAway::Announced {
            self.send_final_goaway();
        }
        Ok(())
    }

    pub(super) fn window_update(&mut self, head: FrameHead, payload: &[u8], service: &mut S) -> Handled {
        if head.stream != 0 && self.never_opened(head.stream) {
            return Err(Reason::ProtocolError);
        }
        if payload.len() != 4 {
            return Err(Reason::FrameSizeError);
        }
        self.limits.spend(1, Flood::WindowUpdates)?;
        let more = i64::from(frame::u32_at(payload).unwrap_or(0) & 0x7fff_ffff);
        if head.stream == 0 {
            if more == 0 {
                return Err(Reason::ProtocolError);
            }
            let window = self.send_window;
            self.send_window = window + more;
            if self.send_window > i32::MAX.into() {
                return Err(Reason::FlowControlError);
            }
            // With an open window, blocked responses wait for the windows of their streams.
            if window <= 0 && self.has_blocked() {
                self.limits.spend_visits(self.streams.open.len(), Flood::WindowUpdates)?;
                self.send_blocked();
            }
            return Ok(());
        }
        // A frame for a closed stream was in flight.
        let Some(stream) = self.streams.open.get_mut(&head.stream) else { return Ok(()) };
        if more == 0 {
            return self.reject(head.stream, Reason::ProtocolError, service);
        }
        stream.send_window += more;
        if stream.send_window > i32::MAX.into() {
            return self.reject(head.stream, Reason::FlowControlError, service);
        }
        self.send_outgoing(head.stream);
        Ok(())
    }
}

/// True if a priority makes a stream depend on itself.
pub(super) fn depends_on(priority: &[u8], id: u32) -> bool {
    frame::u32_at(priority).is_some_and(|other| other & 0x7fff_ffff == id)
}
