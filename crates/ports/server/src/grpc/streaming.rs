//! The streaming calls of a connection: those that watch the health, reflection, and RLQS. They last as long as the caller
//! likes, so their number is bounded, and a connection without other calls counts as idle.

use std::task::Context;

use http2::meter::{Work, count};
use tonic::Status;

use super::{
    calls::{Call, ConnectionCalls, Http},
    dividing,
    pending::{MAX_STREAMING, Streaming},
    status::{Failure, end_with_failure},
};
use metrics::RejectReason;

impl ConnectionCalls {
    pub(super) fn admit_stream(&mut self, http: &mut Http, id: u32) -> Result<(), Failure> {
        if self.streaming.ids.len() >= MAX_STREAMING {
            self.quiet_streams(http);
        }
        let Streaming { ids, share } = &mut self.streaming;
        if ids.len() < MAX_STREAMING && share.resize(ids.len() + 1) {
            ids.push(id);
            return Ok(());
        }
        self.calls.stats.service().refused(RejectReason::StreamingCalls).increment();
        let message = format!(
            "too many streaming calls: the maximum is {MAX_STREAMING} on a connection, and GRPC_MAX_CONNECTIONS on all"
        );
        Err(Status::resource_exhausted(message).into())
    }

    /// The number of open streaming calls in which nothing is pending. Forgets those that have ended.
    pub(super) fn quiet_streams(&mut self, http: &mut Http) -> usize {
        let Streaming { ids, share } = &mut self.streaming;
        if ids.is_empty() {
            return 0;
        }
        count(Work::Visited, ids.len());
        let mut quiet = 0_usize;
        ids.retain(|id| {
            let is_quiet = match http.call(*id) {
                Some(Call::Watching(_)) => true,
                Some(Call::Reflecting(reflection)) => reflection.is_quiet(),
                Some(Call::Dividing(dividing)) => dividing.is_quiet(),
                _ => return false,
            };
            quiet += usize::from(is_quiet);
            true
        });
        share.resize(ids.len());
        quiet
    }

    pub(super) fn advance_streams(&mut self, http: &mut Http) {
        self.resume = false;
        let waker = self.waker();
        self.report_health(http, &mut Context::from_waker(&waker));
        for id in self.streaming.ids.clone() {
            count(Work::Polled, 1);
            self.reflect(http, id);
            self.divide(http, id);
        }
    }

    /// Ends the streaming calls of a connection that is closing, after the last actions. Those of quotas end just before
    /// their Envoys would report, so that these are never without one.
    pub(super) fn end_streams(&mut self, http: &mut Http) {
        let failure = Status::unavailable("the connection is closing").into();
        for id in std::mem::take(&mut self.streaming.ids) {
            self.divide(http, id);
            let end_at = match http.call(id) {
                Some(Call::Dividing(dividing)) => dividing.end_at().filter(|at| *at > self.now),
                _ => None,
            };
            if let Some(at) = end_at {
                self.set_timer(at);
                self.streaming.ids.push(id);
            } else {
                dividing::end_stream(http, id, end_with_failure(&failure));
            }
        }
    }
}
