//! `tollgate health`: whether the service on this machine is healthy, for exec probes.

use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::{Request, header};
use http_body_util::Full;
use tokio::net::TcpStream;

use super::{
    admin::exchange,
    endpoint::{self, timeout},
    serve::Environment,
    terminal::{self, ERROR, Failure, GOOD, Verdict, paint},
};
use net::HostPort;
use settings::vars;

/// The maximum size of a response.
const MAX_RESPONSE: usize = 4 << 20;

#[derive(Args, Clone, PartialEq, Debug)]
pub(super) struct HealthArgs {
    /// Succeed if the service answers, healthy or not: for liveness probes, since a restart brings neither rules nor a store.
    #[arg(long)]
    pub(super) live: bool,
    /// How long to wait for the response.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = timeout)]
    pub(super) timeout: Duration,
}

/// Requests `/healthcheck` on the HTTP port that the environment sets. No other setting is read: a file that is missing now,
/// such as one of a Secret, must not restart a service that needs it no more.
pub(super) fn run(args: &HealthArgs, environment: &Environment) -> Result<Verdict, Failure> {
    let mut at =
        HostPort { host: environment.setting(&vars::HOST)?, port: environment.setting(&vars::PORT)? };
    let response = get(&at, "/healthcheck", args.timeout);
    let (status, body) = response.map_err(|error| {
        if at.is_every_address() {
            "localhost".clone_into(&mut at.host);
        }
        let what = format!("cannot reach http://{at}/healthcheck: {error}");
        Failure::new(what, format!("is the service running? PORT={} is its HTTP port", at.port))
    })?;
    let is_healthy = status == 200;
    if is_healthy {
        terminal::print(&format!("{}\n", paint(GOOD, "healthy")));
    } else {
        terminal::print(&format!("{}: {}\n", paint(ERROR, "unhealthy"), body.trim()));
    }
    Ok((is_healthy || args.live).into())
}

/// The status and the body of a page of the service.
pub(super) fn get(at: &HostPort, path: &str, timeout: Duration) -> Result<(u16, String), String> {
    let request = Request::get(path).header(header::HOST, at.to_string()).body(Full::<Bytes>::default());
    let request = request.map_err(|error| error.to_string())?;
    let addresses = at.resolve().map_err(|error| error.to_string())?;
    let call = async {
        let socket = TcpStream::connect(&*addresses).await.map_err(|error| error.to_string())?;
        exchange(Box::new(socket), request, MAX_RESPONSE).await
    };
    let runtime = endpoint::runtime().map_err(|failure| failure.to_string())?;
    let response = runtime.block_on(async { tokio::time::timeout(timeout, call).await });
    let (status, body) = response.unwrap_or_else(|_| Err(format!("no response within {timeout:?}")))?;
    Ok((status.as_u16(), String::from_utf8_lossy(&body).into_owned()))
}
