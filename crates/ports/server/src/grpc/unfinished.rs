//! Messages that arrive in pieces: collected within the budget, and rejected if they take too long.
//!
//! A message larger than a stream's initial window is granted its whole length before the window is opened. `calls`
//! decides it when it is complete. Streaming calls take what they have of a message, and `streaming` ends those that are late.

use std::time::{Duration, Instant};

use budget::Reservation;
use http2::{
    INITIAL_WINDOW,
    meter::{Work, count},
};
use tonic::Status;

use super::{
    calls::{Call, Calls, ConnectionCalls, Http, Unary},
    framing::{PREFIX, after},
    rpc::Rpc,
    status::{self, Failure},
};
use metrics::{RejectReason, Stats};

/// The pause between attempts to grant the length of a large message.
const GRANT_PAUSE: Duration = Duration::from_millis(5);

impl ConnectionCalls {
    pub(super) fn collect(&mut self, http: &mut Http, id: u32, data: &[u8], end: bool) {
        let Some(Call::Unary(unary)) = http.call(id) else { return };
        let rpc = unary.rpc;
        let partial = unary
            .partial
            .get_or_insert_with(|| Box::new(Partial::new(Reservation::new(&self.calls.parts.inflight))));
        let failure = match partial.add(data, rpc, &self.calls) {
            Ok(()) if !end => return self.open_window(http, id),
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
        let whole = length + PREFIX;
        if whole > INITIAL_WINDOW as usize && !partial.granted {
            partial.granted = partial.share.grant(whole);
            if !partial.granted {
                return self.set_timer(after(self.now, GRANT_PAUSE));
            }
            partial.bytes.reserve_exact(whole - partial.bytes.len());
        }
        let missing = u32::try_from(whole - partial.bytes.len()).unwrap_or(0);
        http.open_window(id, missing.saturating_sub(window));
    }

    pub(super) fn set_timer(&mut self, at: Instant) {
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
            Call::Unary(unary) => Some((id, unary.deadline(timeout))),
            Call::Streaming(call) => Some((id, call.deadline(timeout)?)),
            Call::Waiting(_) | Call::Answered => None,
        });
        for (id, deadline) in unfinished.collect::<Vec<_>>() {
            if deadline > self.now {
                self.set_timer(deadline);
                self.open_window(http, id);
            } else {
                self.expire(http, id);
            }
        }
    }

    fn expire(&mut self, http: &mut Http, id: u32) {
        let timeout = self.calls.receive_timeout;
        if matches!(http.call(id), Some(Call::Streaming(_))) {
            return self.expire_stream(http, id);
        }
        let Some(unary) = self.take(http, id) else { return };
        let failure = match unary.head.timeout {
            Some(own) if own <= timeout => status::deadline_exceeded(&self.calls.parts.stats),
            _ => late(timeout),
        };
        self.fail(http, id, unary, &failure.into());
    }
}

/// The failure of a call whose message is incomplete.
pub(super) fn late(timeout: Duration) -> Status {
    let message = format!("the message was not complete within {timeout:?} (GRPC_RECEIVE_TIMEOUT)");
    Status::deadline_exceeded(message)
}

/// The bytes of a message that have arrived, with their charge.
pub(super) struct Partial {
    pub(super) bytes: Vec<u8>,
    share: Reservation,
    /// The budget has granted the whole length.
    granted: bool,
}

impl Partial {
    pub(super) fn new(share: Reservation) -> Self {
        Self { bytes: Vec::new(), share, granted: false }
    }

    /// Replaces the bytes by the end of them.
    pub(super) fn replace(&mut self, bytes: Vec<u8>) {
        self.bytes = if bytes.is_empty() { Vec::new() } else { bytes };
        self.share.resize(self.bytes.capacity());
    }

    /// Adds data to the bytes, for which at most `whole` bytes of capacity are needed.
    pub(super) fn append(&mut self, data: &[u8], whole: Option<usize>, stats: &Stats) -> Result<(), Failure> {
        let length = self.bytes.len() + data.len();
        if self.bytes.capacity() < length {
            let capacity = length.next_power_of_two().max(64).min(whole.unwrap_or(usize::MAX).max(length));
            if !self.share.resize(capacity) {
                stats.service().refused(RejectReason::InflightBytes).increment();
                let message = "unfinished messages have reached the memory limit (GRPC_MAX_INFLIGHT_BYTES)";
                return Err(Status::resource_exhausted(message).into());
            }
            self.bytes.reserve_exact(capacity.saturating_sub(self.bytes.len()));
        }
        self.bytes.extend_from_slice(data);
        count(Work::Copied, data.len());
        Ok(())
    }

    fn add(&mut self, data: &[u8], rpc: Rpc, calls: &Calls) -> Result<(), Failure> {
        // The length is judged before anything is reserved for it.
        if self.bytes.is_empty() {
            calls.length(rpc, data)?;
        }
        let whole = length_of(&self.bytes).or_else(|| length_of(data)).map(|whole| whole + PREFIX);
        self.append(data, Some(whole.unwrap_or(64)), &calls.parts.stats)?;
        match calls.length(rpc, &self.bytes)? {
            Some(whole) if self.bytes.len().saturating_sub(PREFIX) > whole => {
                Err(status::too_many_messages().into())
            }
            _ => Ok(()),
        }
    }
}

fn length_of(framed: &[u8]) -> Option<usize> {
    let [_, length @ ..] = framed.first_chunk::<PREFIX>()?;
    Some(u32::from_be_bytes(*length) as usize)
}
