//! The methods of the port.

use super::{
    calls::Calls, health_checks::Watch, quota_stream::QuotaStream, reflection::Reflection,
    rlqs::StreamRateLimitQuotas, streaming::StreamMethod,
};
use crate::wire::DecisionRpc;

/// The maximum size of a request of health: it has the name of a service.
const MAX_HEALTH_CHECK: usize = 4096;

/// The maximum size of a message of reflection. One that fits the initial window of a stream needs no larger window.
const MAX_QUESTION: usize = 65_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rpc {
    Decision(DecisionRpc),
    Check,
    Watch,
    Reflection,
    Quota,
    /// A request of another protocol, which is answered at its end.
    NotGrpc,
}

impl Rpc {
    pub(super) fn at(path: &[u8]) -> Option<Self> {
        if let Some(rpc) = DecisionRpc::at(path) {
            return Some(Self::Decision(rpc));
        }
        match path {
            b"/grpc.health.v1.Health/Check" => Some(Self::Check),
            b"/grpc.health.v1.Health/Watch" => Some(Self::Watch),
            b"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            | b"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => Some(Self::Reflection),
            b"/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas" => {
                Some(Self::Quota)
            }
            _ => None,
        }
    }

    /// What the method does with a call, if its calls are streams.
    pub(super) fn stream_method(self, calls: &Calls) -> Option<Box<dyn StreamMethod>> {
        match self {
            Self::Watch => Some(Box::new(Watch::new(&calls.health))),
            Self::Reflection => Some(Box::new(Reflection)),
            Self::Quota => Some(Box::new(StreamRateLimitQuotas::new(QuotaStream::new(calls.parts.clone())))),
            Self::Decision(_) | Self::Check | Self::NotGrpc => None,
        }
    }

    /// The maximum size of a request, and the variable that sets it.
    pub(super) fn max_request(self, configured: usize) -> (usize, &'static str) {
        match self {
            Self::Decision(_) | Self::Quota | Self::NotGrpc => (configured, "GRPC_MAX_REQUEST_BYTES"),
            Self::Check | Self::Watch => (MAX_HEALTH_CHECK, "fixed"),
            Self::Reflection => (MAX_QUESTION, "fixed"),
        }
    }
}
