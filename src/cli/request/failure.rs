//! Why there is no response, and what to do about it.

use std::{borrow::Cow, error::Error, fmt, io, time::Duration};

use tonic::{Code, Status};

use super::server::Server;

/// A call without a response.
#[derive(PartialEq, Eq, Debug)]
pub(in crate::cli) struct Failure {
    what: String,
    advice: Cow<'static, str>,
}

impl Failure {
    /// No connection.
    pub(super) fn unreachable(server: &Server, error: &(dyn Error + 'static)) -> Self {
        Self {
            what: format!("cannot reach {server}: {}", root_cause(error)),
            advice: "is the service running? `tollgate serve` starts it; --addr sets another address".into(),
        }
    }

    /// The TLS handshake failed.
    pub(super) fn insecure(server: &Server, why: String) -> Self {
        Self { what: format!("cannot reach {server}: the TLS handshake failed"), advice: why.into() }
    }

    /// The TLS options are invalid.
    pub(super) fn files(faults: &[String]) -> Self {
        Self { what: "invalid TLS options".to_owned(), advice: faults.join("\n  ").into() }
    }

    /// Plain text and TLS are both set.
    pub(super) fn torn() -> Self {
        Self {
            what: "an address with http:// contradicts the TLS options".to_owned(),
            advice: "write https:// for TLS, or omit the TLS options".into(),
        }
    }

    /// The timeout is over.
    pub(super) fn late(server: &Server, timeout: Duration) -> Self {
        Self {
            what: format!("{server}: no response within {timeout:?}"),
            advice: "is that the gRPC port? --timeout waits longer".into(),
        }
    }

    /// The response is an error.
    pub(super) fn refused(server: &Server, status: &Status) -> Self {
        let advice = match status.code() {
            Code::Unknown if status.message() == "no rate limit configuration loaded" => {
                "the service's log says why it could not read its rules, and so does `tollgate check`"
            }
            Code::Unimplemented => "that server has no rate limit service; --addr sets another address",
            Code::ResourceExhausted => "`tollgate settings` lists the service's limits",
            Code::Unavailable | Code::Internal => server.advice(),
            // The connection broke.
            _ if status.source().is_some() => server.advice(),
            _ => "the service's log may say more",
        };
        let cause = status.source().map(root_cause).filter(|cause| !status.message().contains(&**cause));
        let cause = cause.map(|cause| format!(" ({cause})")).unwrap_or_default();
        let code = format!("{:?}", status.code());
        let what = format!("{server}: {code}: {}{cause}", status.message());
        Self { what, advice: advice.into() }
    }

    /// The response is neither yes nor no.
    pub(super) fn undecided(server: &Server) -> Self {
        Self {
            what: format!("{server}: the response has no overall code"),
            advice: "is that a rate limit service? --addr sets another address".into(),
        }
    }

    /// The response cannot be printed.
    pub(super) fn unprintable(error: &dyn fmt::Display) -> Self {
        Self {
            what: format!("the response cannot be printed: {error}"),
            advice: "the server may use another version of the API".into(),
        }
    }

    /// The environment sets no usable address.
    pub(super) fn address(variables: &str) -> Self {
        Self {
            what: format!("no gRPC address: {variables}"),
            advice: "set --addr, or GRPC_PORT as the service has it".into(),
        }
    }

    /// The runtime could not be started.
    pub(super) fn runtime(error: &io::Error) -> Self {
        Self {
            what: format!("cannot prepare the call: {error}"),
            advice: "are file descriptors left? `ulimit -n` prints the limit".into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  {}", self.what, self.advice)
    }
}

/// The last error of the chain, which is the most specific.
pub(in crate::cli) fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last.to_string()
}
