//! `envoy.service.rate_limit_quota.v3.RateLimitQuotaService`, on the service's own connection.
//!
//! A report is taken field by field as it arrives, so its size costs neither memory nor the other connections' time.
//! Actions are taken from `quota` only while the peer's window has room: there only the newest of each bucket is kept.

use std::{
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tonic::Status;

use super::{
    calls::Calls,
    framing::{self, PREFIX},
    quota_stream::{QuotaStream, malformed},
    rpc::Rpc,
    status::{self, Failure},
    streaming::{Part, StreamMethod},
};
use crate::wire::rlqs::{ReportField, report_field};

/// The maximum size of a field of a report. It fits a stream's window, which is not opened further for it.
const MAX_FIELD: usize = 60_000;

/// The time for the end of a stream to reach its Envoy.
const ON_THE_WAY: Duration = Duration::from_millis(200);

pub(super) struct StreamRateLimitQuotas {
    /// The bytes of the report that are not taken; `None` between reports.
    left: Option<usize>,
    quota: QuotaStream,
}

impl StreamRateLimitQuotas {
    pub(super) fn new(quota: QuotaStream) -> Self {
        Self { left: None, quota }
    }
}

impl StreamMethod for StreamRateLimitQuotas {
    /// Takes the next field of a report, or what is around it.
    fn take(&mut self, unread: &[u8], calls: &Calls) -> Result<Option<Part>, Failure> {
        let part = |length| Some(Part { length, answer: None, pays_for_frame: false });
        let Some(left) = self.left else {
            self.left = calls.length(Rpc::Quota, unread)?;
            return Ok(self.left.and_then(|_| part(PREFIX)));
        };
        if left == 0 {
            self.left = None;
            return self.quota.end_report().map(|()| part(0));
        }
        let report = unread.get(..left).unwrap_or(unread);
        match report_field(report) {
            Ok((field, length)) if length > 0 => {
                self.left = Some(left - length);
                let pays_for_frame = matches!(field, ReportField::Usage(_));
                self.quota.take(field)?;
                Ok(Some(Part { length, answer: None, pays_for_frame }))
            }
            _ if report.len() < left.min(MAX_FIELD) => Ok(None),
            Err(error) if report.len() == left => Err(malformed(error).into()),
            _ => {
                let message = format!("a field of the report has more than {MAX_FIELD} bytes");
                Err(status::rejected(Status::resource_exhausted(message)).into())
            }
        }
    }

    fn is_within_message(&self) -> bool {
        self.left.is_some()
    }

    fn takes_while_blocked(&self) -> bool {
        true
    }

    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Vec<u8>> {
        self.quota.poll_response(context).map(|response| framing::framed(&response))
    }

    /// Just before its Envoy would report, which then opens its next stream: so it is never without one.
    fn end_at(&self) -> Option<Instant> {
        self.quota.next_report().and_then(|next| next.checked_sub(ON_THE_WAY))
    }
}
