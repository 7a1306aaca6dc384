//! Messages that arrive in pieces: collected within the budget, and rejected if they take too long.
//!
//! A message larger than a stream's initial window is granted its whole length before the window is opened. `calls`
//! decides it when it is complete.

use std::time::{Duration, Instant};

use tonic::Status;

use super::{
    calls::{Call, Calls, ConnectionCalls, Http, Partial, Unary},
    framing::{self, Failure, PREFIX},
    http2::{INITIAL_WINDOW, Share},
};
use crate::telemetry::metrics::RejectReason;

/// The pause between attempts to grant the length of a large message.
const GRANT_PAUSE: Duration = Duration::from_millis(5);

impl ConnectionCalls {
    pub(super) fn collect(&mut self, http: &mut Http, id: u32, data: &[u8], end: bool) {
        let Some(Call::Unary(unary)) = http.call(id) else { return };
        let partial = unary.partial.get_or_insert_with(|| {
            Box::new(Partial { bytes: Vec::new(), share: Share::new(&self.calls.budget), granted: false })
        });
        let failure = match partial.add(data, &self.calls) {
            Ok(()) if !end => {
                let deadline = unary.deadline(self.calls.receive_timeout);
                self.set_timer(deadline);
                return self.open_window(http, id);
            }
            Ok(()) => None,
            Err(failure) => Some(failure),
        };
        let Some(mut unary) = self.take(http, id) else { return };
        let bytes = unary.partial.take().map(|partial| partial.bytes).unwrap_or_default();
        match failure {
            None => self.decide(http, id, unary, &bytes),
            Some(failure) => self.fail(http, id, unary, &failure),
        }
    }

    /// Opens the window for the rest of a message, if the budget allows it.
    fn open_window(&mut self, http: &mut Http, id: u32) {
        let window = http.window(id);
        let Some(Call::Unary(Unary { partial: Some(partial), .. })) = http.call(id) else { return };
        let Some(length) = length_of(&partial.bytes) else { return };
        let whole = length.saturating_add(PREFIX);
        if whole > INITIAL_WINDOW as usize && !partial.granted {
            partial.granted = partial.share.grant(whole);
            if !partial.granted {
                return self.set_timer(self.now.checked_add(GRANT_PAUSE).unwrap_or(self.now));
            }
            partial.bytes.reserve_exact(whole.saturating_sub(partial.bytes.len()));
        }
        let missing = u32::try_from(whole.saturating_sub(partial.bytes.len())).unwrap_or(0);
        http.open_window(id, missing.saturating_sub(window));
    }

    fn set_timer(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Rejects messages past their deadline, and retries grants.
    pub(super) fn check_unfinished(&mut self, http: &mut Http) {
        if self.due.is_none_or(|due| due > self.now) {
            return;
        }
        self.due = None;
        let timeout = self.calls.receive_timeout;
        let unfinished = http.calls().filter_map(|(id, call)| match call {
            Call::Unary(unary) => Some((id, unary.deadline(timeout), unary.head.timeout)),
            _ => None,
        });
        for (id, deadline, own) in unfinished.collect::<Vec<_>>() {
            if deadline > self.now {
                self.set_timer(deadline);
                self.open_window(http, id);
                continue;
            }
            let mut failure = framing::deadline_exceeded(&self.calls.stats);
            if own.is_none_or(|own| own > timeout) {
                let message =
                    format!("the message was not complete within {timeout:?} (GRPC_RECEIVE_TIMEOUT)");
                failure = Status::deadline_exceeded(message);
            }
            if let Some(unary) = self.take(http, id) {
                self.fail(http, id, unary, &failure.into());
            }
        }
    }
}

impl Partial {
    /// # Errors
    /// If the message is invalid, or the budget is exhausted.
    fn add(&mut self, data: &[u8], calls: &Calls) -> Result<(), Failure> {
        let length = self.bytes.len().saturating_add(data.len());
        if self.bytes.capacity() < length {
            // At most the length of the message, once that is known.
            let whole =
                length_of(&self.bytes).or_else(|| length_of(data)).map(|whole| whole.saturating_add(PREFIX));
            let capacity = length.next_power_of_two().max(64).min(whole.unwrap_or(64).max(length));
            if !self.share.resize(capacity) {
                calls.stats.service().refused(RejectReason::InflightBytes).increment();
                let message = "unfinished messages have reached the memory limit (GRPC_MAX_INFLIGHT_BYTES)";
                return Err(Status::resource_exhausted(message).into());
            }
            self.bytes.reserve_exact(capacity.saturating_sub(self.bytes.len()));
        }
        self.bytes.extend_from_slice(data);
        match calls.length(&self.bytes)? {
            Some(whole) if self.bytes.len().saturating_sub(PREFIX) > whole => {
                Err(framing::too_many_messages().into())
            }
            _ => Ok(()),
        }
    }
}

fn length_of(framed: &[u8]) -> Option<usize> {
    let [_, length @ ..] = framed.first_chunk::<PREFIX>()?;
    Some(u32::from_be_bytes(*length) as usize)
}
