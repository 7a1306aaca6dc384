//! Why there is no answer, told with what to do about it.

use std::{error::Error, fmt, io, time::Duration};

use tonic::{Code, Status};

/// A call without an answer, in words for whoever typed it.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Failure {
    what: String,
    advice: &'static str,
}

impl Failure {
    /// Nobody speaks gRPC there.
    pub(super) fn unreachable(addr: &str, error: &(dyn Error + 'static)) -> Self {
        Self {
            what: format!("cannot reach {addr}: {}", root_cause(error)),
            advice: "is the server running? `tollgate serve` starts one, --addr names another",
        }
    }

    /// The time is over.
    pub(super) fn late(addr: &str, timeout: Duration) -> Self {
        Self {
            what: format!("{addr} did not answer within {timeout:?}"),
            advice: "is that the gRPC port? --timeout gives it more time",
        }
    }

    /// The server answered with an error.
    pub(super) fn refused(addr: &str, status: &Status) -> Self {
        let advice = match status.code() {
            Code::Unknown if status.message() == "no rate limit configuration loaded" => {
                "the server's log says why its rules could not be read, and so does `tollgate check`"
            }
            Code::Unimplemented => "that server has no rate limit service; --addr names another",
            Code::Unavailable | Code::Internal => {
                "is that the gRPC port? HTTP and the debug pages have ports of their own"
            }
            Code::ResourceExhausted => "the server's bounds are among what `tollgate settings` lists",
            _ => "the server's log may say more",
        };
        let cause = status.source().map(root_cause).filter(|cause| !status.message().contains(&**cause));
        let cause = cause.map(|cause| format!(" ({cause})")).unwrap_or_default();
        let code = format!("{:?}", status.code());
        Self { what: format!("{addr} answered with the error {code}: {}{cause}", status.message()), advice }
    }

    /// The server answered, but neither yes nor no.
    pub(super) fn undecided(addr: &str) -> Self {
        Self {
            what: format!("{addr} answered without an overall code"),
            advice: "is that a rate limit service? --addr names another",
        }
    }

    /// The answer cannot be shown.
    pub(super) fn unprintable(error: &dyn fmt::Display) -> Self {
        Self {
            what: format!("the answer cannot be shown: {error}"),
            advice: "the server seems to speak another version of the API",
        }
    }

    /// This machine gives no means to ask.
    pub(super) fn runtime(error: &io::Error) -> Self {
        Self {
            what: format!("cannot prepare the call: {error}"),
            advice: "are there file descriptors left? `ulimit -n` tells how many may be open",
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
