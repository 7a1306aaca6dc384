//! `envoy.service.rate_limit_quota.v3.RateLimitQuotaService`, on the service's own connection.
//!
//! A report is taken field by field as it arrives, for at most a turn, so its size costs neither memory nor the other
//! connections' time. Actions are taken from `quota` only while the peer's window has room: there only the newest of each
//! bucket is kept.

use std::{
    mem,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use budget::Share;
use http2::{
    End,
    meter::{Work, count},
};
use tonic::Status;

use super::{
    calls::{Call, Calls, ConnectionCalls, Http},
    framing::{self, PREFIX, TRAILERS, after},
    pending::Partial,
    quota_stream::{QuotaStream, malformed},
    rpc::Rpc,
    status::{self, Failure, end_with_failure},
};
use crate::wire::quota::{ReportField, report_field};
use faults::panics::{self, Boundary, Panicked};

/// The maximum size of a field of a report. It fits a stream's window, which is not opened further for it.
const MAX_FIELD: usize = 60_000;

/// The work for a bucket, in the bytes of requests that cost as much.
const COST: usize = 1024;

/// The time for the end of a stream to reach its Envoy.
const ON_THE_WAY: Duration = Duration::from_millis(200);

pub(super) struct Dividing {
    unread: Partial,
    /// The time of the last progress.
    since: Instant,
    ended: bool,
    /// The bytes of the report that are not taken; `None` between reports.
    left: Option<usize>,
    /// A usage was taken since the connection was told.
    is_served: bool,
    quota: QuotaStream,
}

impl Dividing {
    pub(super) fn new(quota: QuotaStream, share: Share, now: Instant) -> Self {
        Self { unread: Partial::new(share), since: now, ended: false, left: None, is_served: false, quota }
    }

    /// True while no report is incomplete.
    pub(super) fn is_quiet(&self) -> bool {
        self.since().is_none() && !self.ended
    }

    /// The last progress of a report that is incomplete.
    pub(super) fn since(&self) -> Option<Instant> {
        (!self.unread.bytes.is_empty() || self.left.is_some()).then_some(self.since)
    }

    /// When to end it on a connection that is closing, if not at once: Envoy opens its next stream when it reports next.
    pub(super) fn end_at(&self) -> Option<Instant> {
        self.quota.next_report().and_then(|next| next.checked_sub(ON_THE_WAY))
    }

    /// Takes the next field of the bytes, or what is around it, and returns its length. `None` if it is incomplete.
    fn step(&mut self, bytes: &[u8], calls: &Calls) -> Result<Option<usize>, Failure> {
        let Some(left) = self.left else {
            self.left = calls.length(Rpc::Quota, bytes)?;
            return Ok(self.left.map(|_| PREFIX));
        };
        if left == 0 {
            self.left = None;
            return self.quota.end_report().map(|()| Some(0));
        }
        let report = bytes.get(..left).unwrap_or(bytes);
        match report_field(report) {
            Ok((field, length)) if length > 0 => {
                self.left = Some(left - length);
                self.is_served |= matches!(field, ReportField::Usage(_));
                self.quota.take(field).map(|()| Some(length))
            }
            _ if report.len() < left.min(MAX_FIELD) => Ok(None),
            Err(error) if report.len() == left => Err(malformed(error).into()),
            _ => {
                let message = format!("a field of the report has more than {MAX_FIELD} bytes");
                Err(status::rejected(Status::resource_exhausted(message)).into())
            }
        }
    }
}

impl ConnectionCalls {
    pub(super) fn divide_data(&mut self, http: &mut Http, id: u32, data: &[u8], end: bool) {
        let Some(Call::Dividing(dividing)) = http.call(id) else { return };
        if dividing.since().is_none() {
            dividing.since = self.now;
        }
        self.reports = self.reports.wrapping_add(1);
        dividing.ended |= end;
        match dividing.unread.append(data, None, &self.calls.stats) {
            Ok(()) => self.divide(http, id),
            Err(failure) => end_stream(http, id, end_with_failure(&failure)),
        }
    }

    /// Takes what a stream has reported, and sends the actions that it is owed, until the turn is over.
    pub(super) fn divide(&mut self, http: &mut Http, id: u32) {
        let Some(call @ Call::Dividing(_)) = http.call(id) else { return };
        let Call::Dividing(mut dividing) = mem::replace(call, Call::Answered) else { return };
        let end = panics::catch(Boundary::GrpcRequest, || {
            panics::point("grpc_request_other");
            self.read_reports(http, id, &mut dividing).and_then(|is_done| {
                self.send_actions(http, id, &mut dividing);
                let is_cut = !dividing.unread.bytes.is_empty() || dividing.left.is_some();
                match is_done && dividing.ended {
                    true if is_cut => Err(status::truncated().into()),
                    true => Ok(Some(End::Trailers(TRAILERS.into()))),
                    false => Ok(None),
                }
            })
        });
        let end = end.unwrap_or_else(|Panicked| Err(status::internal_error().into()));
        if let Some(end) = end.unwrap_or_else(|failure| Some(end_with_failure(&failure))) {
            return http.send_data(id, &[], end);
        }
        if let Some(since) = dividing.since() {
            self.set_timer(after(since, self.calls.receive_timeout));
        }
        // The stream is reset if its response exceeds the budget.
        if let Some(call) = http.call(id) {
            *call = Call::Dividing(dividing);
        }
    }

    /// False if the turn is over before all is taken.
    fn read_reports(&mut self, http: &mut Http, id: u32, dividing: &mut Dividing) -> Result<bool, Failure> {
        let mut bytes = mem::take(&mut dividing.unread.bytes);
        let mut rest = &*bytes;
        let taken = loop {
            if http.is_over() && !rest.is_empty() {
                self.resume = true;
                break Ok(false);
            }
            match dividing.step(rest, &self.calls) {
                Ok(Some(length)) => {
                    rest = rest.get(length..).unwrap_or_default();
                    dividing.since = self.now;
                    http.spend(length.max(COST));
                    if mem::take(&mut dividing.is_served) {
                        http.served();
                    }
                }
                Ok(None) => break Ok(true),
                Err(failure) => break Err(failure),
            }
        };
        let read = bytes.len() - rest.len();
        count(Work::Copied, rest.len());
        bytes.drain(..read);
        let held = bytes.len();
        dividing.unread.replace(bytes);
        if read > 0 {
            http.restore_window(id, held);
        }
        taken
    }

    fn send_actions(&mut self, http: &mut Http, id: u32, dividing: &mut Dividing) {
        let waker = self.waker();
        while !http.is_blocked(id) {
            if http.is_over() {
                self.resume = true;
                return;
            }
            let Poll::Ready(response) = dividing.quota.poll_response(&mut Context::from_waker(&waker)) else {
                return;
            };
            let message = framing::framed(&response);
            http.send_data(id, &message, End::Open);
            http.spend(message.len());
        }
    }
}

/// Ends a stream, whose assignments then last for their time to live.
pub(super) fn end_stream(http: &mut Http, id: u32, end: End) {
    if let Some(call) = http.call(id) {
        *call = Call::Answered;
    }
    http.send_data(id, &[], end);
}
