//! The methods of the port.

use http2::{Head, Route};
use tonic::Status;

use super::framing::Failure;

/// The maximum size of a request of health: it has the name of a service.
const MAX_HEALTH_CHECK: usize = 4096;

/// The maximum size of a message of reflection. One that fits the initial window of a stream needs no larger window.
const MAX_QUESTION: usize = 65_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rpc {
    ShouldRateLimit,
    Check,
    Watch,
    Reflection,
    /// A request of another protocol, which is answered at its end.
    NotGrpc,
}

impl Rpc {
    /// # Errors
    /// If there is no such method, or it cannot be called in this way.
    pub(super) fn of(head: &Head) -> Result<Self, Failure> {
        match head.route {
            Route::Unary => return Ok(Self::ShouldRateLimit),
            Route::NotPost => return Err(Status::internal("the method is not POST").into()),
            Route::NotGrpc => return Ok(Self::NotGrpc),
            Route::Other => {}
        }
        match head.request.as_ref().map_or("", |request| request.uri().path()) {
            "/grpc.health.v1.Health/Check" => Ok(Self::Check),
            "/grpc.health.v1.Health/Watch" => Ok(Self::Watch),
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => Ok(Self::Reflection),
            _ => Err(Status::unimplemented("the service has no such method").into()),
        }
    }

    /// The maximum size of a request, and the variable that sets it.
    pub(super) fn max_request(self, configured: usize) -> (usize, &'static str) {
        match self {
            Self::ShouldRateLimit | Self::NotGrpc => (configured, "GRPC_MAX_REQUEST_BYTES"),
            Self::Check | Self::Watch => (MAX_HEALTH_CHECK, "fixed"),
            Self::Reflection => (MAX_QUESTION, "fixed"),
        }
    }
}
