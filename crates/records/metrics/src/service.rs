//! Metrics of the service: requests, errors, connections, changes through the admin API.

use std::{collections::BTreeMap, sync::Mutex};

use super::{histogram::Histogram, shard::Counter};
use crate::FailureReason;
use faults::{OnStoreFailure, mutex::lock};

text::named! {
    /// The counted methods, by their gRPC names.
    pub enum Method {
        ShouldRateLimit = "ShouldRateLimit",
        Check = "Check",
        CheckRateLimit = "CheckRateLimit",
        Report = "Report",
        Reserve = "Reserve",
        Commit = "Commit",
    }
}

text::named! {
    /// Why a request was rejected before it was decided.
    pub enum RejectReason {
        MessageTooLarge = "message_too_large",
        TooManyDescriptors = "too_many_descriptors",
        TooManyEntries = "too_many_entries",
        DeadlineExceeded = "deadline_exceeded",
        /// The message arrived in pieces, and incomplete messages had reached their memory limit.
        InflightBytes = "inflight_bytes",
        /// The connection, or all of them, had too many streaming calls: health watches, reflection and RLQS.
        StreamingCalls = "streaming_calls",
    }
}

text::named! {
    /// What became of a decision whose caller gave up before the response arrived.
    pub enum CallerLeft {
        /// The response was written before the service read that the caller had reset the stream.
        Sent = "sent",
        /// It waited for the store, and went on without its caller.
        Finished = "finished",
        /// It waited for the store, and too many went on without their callers.
        Dropped = "dropped",
    }
}

text::named! {
    pub enum Port {
        /// Rate limit requests over gRPC.
        Grpc = "grpc",
        /// Health checks and `/json`.
        Http = "http",
        Debug = "debug",
        Metrics = "metrics",
        Admin = "admin",
    }
}

text::named! {
    pub enum ConnectionRefused {
        Total = "max_connections",
        PerAddress = "max_connections_per_address",
    }
}

text::named! {
    pub enum ConnectionClosed {
        /// To make room: the peer sent nothing, or no preface.
        Silent = "silent",
        Idle = "idle",
        /// The preface or the first request did not arrive in time.
        PrefaceTimeout = "preface_timeout",
        /// A request, or an HTTP/2 frame or header block, did not arrive in time.
        ReadTimeout = "read_timeout",
        /// The peer did not read a response in time.
        WriteTimeout = "write_timeout",
    }
}

text::named! {
    /// Why the service closed a gRPC connection: what the peer sent.
    pub enum PeerError {
        Protocol = "protocol_error",
        /// Header blocks that are too large or have too many frames.
        HeaderFlood = "header_flood",
        /// Empty or tiny DATA frames.
        DataFlood = "data_flood",
        MalformedFlood = "malformed_request_flood",
        RefusedFlood = "refused_stream_flood",
        /// Requests that are cancelled at once.
        ResetFlood = "reset_flood",
        ClosedStreamFlood = "closed_stream_flood",
        PingFlood = "ping_flood",
        SettingsFlood = "settings_flood",
        PriorityFlood = "priority_flood",
        WindowUpdateFlood = "window_update_flood",
        /// GOAWAY frames, and frames of unknown types.
        OtherFlood = "other_flood",
    }
}

text::named! {
    /// Why a call of the admin API was not authenticated.
    pub enum Unauthorized {
        Missing = "missing",
        Unknown = "unknown",
    }
}

text::named! {
    #[derive(PartialOrd, Ord)]
    pub enum ChangeResult {
        Ok = "ok",
        Rejected = "rejected",
        Error = "error",
    }
}

text::named! {
    /// What became of a data point that was sent over OTLP.
    pub enum PointResult {
        Accepted = "accepted",
        /// The collector was unreachable, or returned a retryable error.
        Unreachable = "unreachable",
        Refused = "refused",
    }
}

/// The counters of the service, present from the start.
#[derive(Default)]
pub struct ServiceStats {
    /// Requests that failed because they, or the rules, were invalid.
    pub service_error: Counter,
    /// Requests that failed because the store failed. The name is the Go service's.
    pub redis_error: Counter,
    /// Requests over their limit that passed because of `SHADOW_MODE`.
    pub global_shadow_mode: Counter,
    /// Responses written after the deadline of their callers (`grpc-timeout`).
    pub late_responses: Counter,
    pub connections_accepted: Counter,
    /// Accepted connections that are closed. Counted in place of the open ones because a number that only grows can be
    /// sharded.
    pub connections_closed: Counter,
    pub admin_changes: AdminChanges,
    admin_unauthorized: [Counter; Unauthorized::ALL.len()],
    connections_refused: [[Counter; ConnectionRefused::ALL.len()]; Port::ALL.len()],
    connections_closed_by_us: [[Counter; ConnectionClosed::ALL.len()]; Port::ALL.len()],
    peer_errors: [Counter; PeerError::ALL.len()],
    callers_left: [Counter; CallerLeft::ALL.len()],
    requests: [Counter; Method::ALL.len()],
    response_time: [Histogram; Method::ALL.len()],
    refused: [Counter; RejectReason::ALL.len()],
    otlp_points: [Counter; PointResult::ALL.len()],
    store_failures: [[Counter; FailureReason::ALL.len()]; OnStoreFailure::ALL.len()],
}

/// Changes through the admin API by action and result. The admin API names the actions, so they are few.
#[derive(Debug, Default)]
pub struct AdminChanges(Mutex<BTreeMap<(&'static str, ChangeResult), u64>>);

impl AdminChanges {
    /// Shows an action before it happens, so that `increase()` includes the first change.
    pub fn show(&self, action: &'static str) {
        let mut counts = lock(&self.0);
        for result in ChangeResult::ALL {
            counts.entry((action, result)).or_default();
        }
    }

    pub fn count(&self, action: &'static str, result: ChangeResult) {
        let mut counts = lock(&self.0);
        *counts.entry((action, result)).or_default() += 1;
    }

    pub(super) fn totals(&self) -> Vec<([&'static str; 2], u64)> {
        lock(&self.0).iter().map(|((action, result), n)| ([*action, result.name()], *n)).collect()
    }
}

/// Accessors of the counters that enums index.
macro_rules! indexed {
    ($($(#[$doc:meta])* $name:ident($($index:ident: $enum:ty),+) -> $value:ty;)*) => {
        $($(#[$doc])* #[must_use]
        pub fn $name(&self, $($index: $enum),+) -> &$value {
            &self.$name$([$index as usize])+
        })*
    };
}

impl ServiceStats {
    indexed! {
        admin_unauthorized(reason: Unauthorized) -> Counter;
        connections_refused(port: Port, reason: ConnectionRefused) -> Counter;
        connections_closed_by_us(port: Port, reason: ConnectionClosed) -> Counter;
        /// gRPC connections closed because of what their peers sent.
        peer_errors(reason: PeerError) -> Counter;
        callers_left(decision: CallerLeft) -> Counter;
        requests(method: Method) -> Counter;
        response_time(method: Method) -> Histogram;
        refused(reason: RejectReason) -> Counter;
        otlp_points(result: PointResult) -> Counter;
        /// Requests decided by a policy because the store failed.
        store_failures(policy: OnStoreFailure, reason: FailureReason) -> Counter;
    }

    /// Requests that a policy decided because the store failed.
    pub fn decided_by(&self, policy: OnStoreFailure) -> u64 {
        FailureReason::ALL.iter().map(|reason| self.store_failures(policy, *reason).get()).sum()
    }

    /// Requests whose callers gave up before the response arrived.
    pub fn abandoned(&self) -> u64 {
        CallerLeft::ALL.iter().map(|left| self.callers_left(*left).get()).sum()
    }

    /// Open connections. The closed ones are read first, so that there are never fewer than none.
    pub fn connections_open(&self) -> u64 {
        let closed = self.connections_closed.get();
        self.connections_accepted.get().saturating_sub(closed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn methods_and_reasons_have_their_own_counters() {
        let service = ServiceStats::default();
        for (n, method) in (1..).zip(Method::ALL) {
            service.requests(method).add(n);
            service.response_time(method).observe(Duration::from_secs(n));
        }
        for (n, reason) in (1..).zip(RejectReason::ALL) {
            service.refused(reason).add(n);
        }
        for (n, reason) in (1..).zip(PeerError::ALL) {
            service.peer_errors(reason).add(n);
        }
        let counts = PeerError::ALL.map(|reason| service.peer_errors(reason).get());
        assert_eq!(counts.to_vec(), (1..=12).collect::<Vec<_>>());
        let pairs =
            || OnStoreFailure::ALL.into_iter().flat_map(|policy| FailureReason::ALL.map(|why| (policy, why)));
        for (n, (policy, reason)) in (1..).zip(pairs()) {
            service.store_failures(policy, reason).add(n);
        }
        let by_policy: Vec<_> =
            pairs().map(|(policy, why)| service.store_failures(policy, why).get()).collect();
        assert_eq!(by_policy, (1..=35).collect::<Vec<_>>());
        assert_eq!(Method::ALL.map(|method| service.requests(method).get()), [1, 2, 3, 4, 5, 6]);
        assert_eq!(RejectReason::ALL.map(|reason| service.refused(reason).get()), [1, 2, 3, 4, 5, 6]);
        let sum = |method| service.response_time(method).snapshot().sum;
        assert_eq!(Method::ALL.map(sum), [1, 2, 3, 4, 5, 6].map(Duration::from_secs));
    }

    #[test]
    fn ports_and_reasons_have_their_own_counters() {
        let service = ServiceStats::default();
        let refused =
            || Port::ALL.into_iter().flat_map(|port| ConnectionRefused::ALL.map(|reason| (port, reason)));
        let closed =
            || Port::ALL.into_iter().flat_map(|port| ConnectionClosed::ALL.map(|reason| (port, reason)));
        for (n, (port, reason)) in (1..).zip(refused()) {
            service.connections_refused(port, reason).add(n);
        }
        for (n, (port, reason)) in (1..).zip(closed()) {
            service.connections_closed_by_us(port, reason).add(n);
        }
        let refused: Vec<_> =
            refused().map(|(port, reason)| service.connections_refused(port, reason).get()).collect();
        let closed: Vec<_> =
            closed().map(|(port, reason)| service.connections_closed_by_us(port, reason).get()).collect();
        assert_eq!(refused, (1..=10).collect::<Vec<_>>());
        assert_eq!(closed, (1..=25).collect::<Vec<_>>());
    }

    #[test]
    fn open_connections_are_those_accepted_and_not_closed() {
        let service = ServiceStats::default();
        service.connections_accepted.add(5);
        service.connections_closed.add(2);
        assert_eq!(service.connections_open(), 3);
    }
}
