//! What is counted of the service as a whole: requests, errors, refusals, connections, reloads.

use super::{
    histogram::Histogram,
    one_of,
    shard::{Counter, ShardCount},
};
use crate::{rules::OnStoreFailure, store::FailureReason};

named! {
    /// The calls that are counted, by the names that gRPC gives them.
    pub enum Method {
        /// Envoy's question.
        ShouldRateLimit = "ShouldRateLimit",
        /// A load balancer's question whether the service is well.
        Check = "Check",
    }
}

named! {
    /// Why a request was rejected before it was decided.
    pub enum RejectReason {
        /// Its message is larger than the bound.
        MessageTooLarge = "message_too_large",
        /// It holds more descriptors than the bound.
        TooManyDescriptors = "too_many_descriptors",
        /// One of its descriptors holds more entries than the bound.
        TooManyEntries = "too_many_entries",
        /// Its caller's time was up.
        DeadlineExceeded = "deadline_exceeded",
        /// Its message came in pieces, and incomplete messages took all the memory they may.
        InflightBytes = "inflight_bytes",
    }
}

named! {
    /// The ports of the service.
    pub enum Port {
        /// Requests from Envoy.
        Grpc = "grpc",
        /// Health checks and `/json`.
        Http = "http",
        /// Pages for people.
        Debug = "debug",
        /// The page for Prometheus.
        Metrics = "metrics",
        /// The admin API.
        Admin = "admin",
    }
}

named! {
    /// Which limit refused a connection.
    pub enum ConnectionRefused {
        /// That of the port.
        Total = "max_connections",
        /// That of one peer address.
        PerAddress = "max_connections_per_address",
    }
}

named! {
    /// Why the service closed a connection.
    pub enum ConnectionClosed {
        /// To make room: it never sent anything, or no preface.
        Silent = "silent",
        /// To make room: it was idle longest.
        Idle = "idle",
        /// Its preface or its first request did not arrive in time.
        PrefaceTimeout = "preface_timeout",
        /// A request did not arrive in time.
        ReadTimeout = "read_timeout",
        /// The peer did not read a response in time.
        WriteTimeout = "write_timeout",
    }
}

named! {
    /// Why the service ended a gRPC connection: what its peer sent.
    pub enum PeerError {
        /// The peer broke the rules of HTTP/2.
        Protocol = "protocol_error",
        /// Header blocks that are too large, or in too many frames.
        HeaderFlood = "header_flood",
        /// Empty or tiny DATA frames.
        DataFlood = "data_flood",
        /// Requests that are malformed.
        MalformedFlood = "malformed_request_flood",
        /// Requests beyond the stream limit.
        RefusedFlood = "refused_stream_flood",
        /// Requests that are canceled at once.
        ResetFlood = "reset_flood",
        /// Frames on closed streams.
        ClosedStreamFlood = "closed_stream_flood",
        /// PING frames.
        PingFlood = "ping_flood",
        /// SETTINGS frames.
        SettingsFlood = "settings_flood",
        /// PRIORITY frames.
        PriorityFlood = "priority_flood",
        /// `WINDOW_UPDATE` frames.
        WindowUpdateFlood = "window_update_flood",
        /// GOAWAY frames, and frames of unknown types.
        OtherFlood = "other_flood",
    }
}

/// The counters of the service, there from the start.
#[derive(Debug)]
pub struct ServiceStats {
    /// Requests answered with an error because they, or the rules, are not fit to be decided.
    pub service_error: Counter,
    /// Requests answered with an error because the counters' store failed. The name is the Go service's.
    pub redis_error: Counter,
    /// Requests over their limit that passed because the whole service is in shadow mode.
    pub global_shadow_mode: Counter,
    /// Connections taken.
    pub connections_accepted: Counter,
    /// Connections of those taken that have ended. Counted in place of those open, because a number that
    /// only grows can be spread over shards.
    pub connections_closed: Counter,
    connections_refused: [[Counter; ConnectionRefused::ALL.len()]; Port::ALL.len()],
    connections_closed_by_us: [[Counter; ConnectionClosed::ALL.len()]; Port::ALL.len()],
    peer_errors: [Counter; PeerError::ALL.len()],
    requests: [Counter; Method::ALL.len()],
    response_time: [Histogram; Method::ALL.len()],
    refused: [Counter; RejectReason::ALL.len()],
    store_failures: [[Counter; FailureReason::ALL.len()]; OnStoreFailure::ALL.len()],
}

impl ServiceStats {
    pub(super) fn new(shards: ShardCount) -> Self {
        let counter = || Counter::new(shards);
        Self {
            service_error: counter(),
            redis_error: counter(),
            global_shadow_mode: counter(),
            connections_accepted: counter(),
            connections_closed: counter(),
            connections_refused: Port::ALL.map(|_| ConnectionRefused::ALL.map(|_| counter())),
            connections_closed_by_us: Port::ALL.map(|_| ConnectionClosed::ALL.map(|_| counter())),
            peer_errors: PeerError::ALL.map(|_| counter()),
            requests: Method::ALL.map(|_| counter()),
            response_time: Method::ALL.map(|_| Histogram::new(shards)),
            refused: RejectReason::ALL.map(|_| counter()),
            store_failures: OnStoreFailure::ALL.map(|_| FailureReason::ALL.map(|_| counter())),
        }
    }

    /// Connections that a port refused for this reason.
    #[must_use]
    pub fn connections_refused(&self, port: Port, reason: ConnectionRefused) -> &Counter {
        one_of(one_of(&self.connections_refused, port as usize), reason as usize)
    }

    /// Connections that the service itself closed for this reason.
    #[must_use]
    pub fn connections_closed_by_us(&self, port: Port, reason: ConnectionClosed) -> &Counter {
        one_of(one_of(&self.connections_closed_by_us, port as usize), reason as usize)
    }

    /// gRPC connections that the service ended because of what their peers sent.
    #[must_use]
    pub fn peer_errors(&self, reason: PeerError) -> &Counter {
        one_of(&self.peer_errors, reason as usize)
    }

    /// Calls of this method, whatever the answer.
    #[must_use]
    pub fn requests(&self, method: Method) -> &Counter {
        one_of(&self.requests, method as usize)
    }

    /// How long the answers of this method took.
    #[must_use]
    pub fn response_time(&self, method: Method) -> &Histogram {
        one_of(&self.response_time, method as usize)
    }

    /// Requests rejected for this reason.
    #[must_use]
    pub fn refused(&self, reason: RejectReason) -> &Counter {
        one_of(&self.refused, reason as usize)
    }

    /// Requests decided by this policy because their counters could not be asked for this reason.
    #[must_use]
    pub fn store_failures(&self, policy: OnStoreFailure, reason: FailureReason) -> &Counter {
        one_of(one_of(&self.store_failures, policy as usize), reason as usize)
    }

    /// Connections open now. The ended ones are read first: one that ends meanwhile still counts as
    /// open, and there are never fewer than none.
    #[must_use]
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
    fn every_method_and_reason_counts_for_itself() {
        let service = ServiceStats::new(ShardCount::for_workers(1));
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
        assert_eq!(by_policy, (1..=24).collect::<Vec<_>>());
        assert_eq!(Method::ALL.map(|method| service.requests(method).get()), [1, 2]);
        assert_eq!(RejectReason::ALL.map(|reason| service.refused(reason).get()), [1, 2, 3, 4, 5]);
        let sum = |method| service.response_time(method).snapshot().sum;
        assert_eq!(Method::ALL.map(sum), [1, 2].map(Duration::from_secs));
    }

    #[test]
    fn every_port_and_reason_of_connections_counts_for_itself() {
        let service = ServiceStats::new(ShardCount::for_workers(1));
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
    fn open_connections_are_those_taken_and_not_ended() {
        let service = ServiceStats::new(ShardCount::for_workers(2));
        service.connections_accepted.add(5);
        service.connections_closed.add(2);
        assert_eq!(service.connections_open(), 3);
    }
}
