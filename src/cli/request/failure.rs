//! Why there is no answer, told with what to do about it.

use std::{borrow::Cow, error::Error, fmt, io, time::Duration};

use tonic::{Code, Status};

use super::server::Server;

/// A call without an answer, in words for whoever typed it.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Failure {
    what: String,
    advice: Cow<'static, str>,
}

impl Failure {
    /// Nobody speaks gRPC there.
    pub(super) fn unreachable(server: &Server, error: &(dyn Error + 'static)) -> Self {
        Self {
            what: format!("cannot reach {server}: {}", root_cause(error)),
            advice: "is the server running? `tollgate serve` starts one, --addr names another".into(),
        }
    }

    /// TLS fails.
    pub(super) fn insecure(server: &Server, why: String) -> Self {
        Self { what: format!("cannot reach {server}: the TLS handshake failed"), advice: why.into() }
    }

    /// TLS cannot be spoken with what was typed.
    pub(super) fn files(faults: &[String]) -> Self {
        Self { what: "TLS cannot be spoken".to_owned(), advice: faults.join("\n  ").into() }
    }

    /// Plain text and TLS are asked for at once.
    pub(super) fn torn() -> Self {
        Self {
            what: "http:// in --addr asks for plain text, another option for TLS".to_owned(),
            advice: "write https:// for TLS, or leave the options of TLS out".into(),
        }
    }

    /// The time is over.
    pub(super) fn late(server: &Server, timeout: Duration) -> Self {
        Self {
            what: format!("{server} did not answer within {timeout:?}"),
            advice: "is that the gRPC port? --timeout gives it more time".into(),
        }
    }

    /// The server answered with an error.
    pub(super) fn refused(server: &Server, status: &Status) -> Self {
        let advice = match status.code() {
            Code::Unknown if status.message() == "no rate limit configuration loaded" => {
                "the server's log says why its rules could not be read, and so does `tollgate check`"
            }
            Code::Unimplemented => "that server has no rate limit service; --addr names another",
            Code::ResourceExhausted => "the server's bounds are among what `tollgate settings` lists",
            Code::Unavailable | Code::Internal => server.advice(),
            // What broke is the connection.
            _ if status.source().is_some() => server.advice(),
            _ => "the server's log may say more",
        };
        let cause = status.source().map(root_cause).filter(|cause| !status.message().contains(&**cause));
        let cause = cause.map(|cause| format!(" ({cause})")).unwrap_or_default();
        let code = format!("{:?}", status.code());
        let what = format!("{server} answered with the error {code}: {}{cause}", status.message());
        Self { what, advice: advice.into() }
    }

    /// The server answered, but neither yes nor no.
    pub(super) fn undecided(server: &Server) -> Self {
        Self {
            what: format!("{server} answered without an overall code"),
            advice: "is that a rate limit service? --addr names another".into(),
        }
    }

    /// The answer cannot be shown.
    pub(super) fn unprintable(error: &dyn fmt::Display) -> Self {
        Self {
            what: format!("the answer cannot be shown: {error}"),
            advice: "the server seems to speak another version of the API".into(),
        }
    }

    /// This machine gives no means to ask.
    pub(super) fn runtime(error: &io::Error) -> Self {
        Self {
            what: format!("cannot prepare the call: {error}"),
            advice: "are there file descriptors left? `ulimit -n` tells how many may be open".into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  {}", self.what, self.advice)
    }
}

/// The last error of the chain, which is the one that says what happened.
fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last.to_string()
}
