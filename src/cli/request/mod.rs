//! `tollgate request`: asks a running server about descriptors and prints what it says.
//!
//! `descriptor` reads what was typed, `answer` makes the answer readable, `failure` tells what to
//! do when there is none. Here stand the arguments and the one call.

mod answer;
mod descriptor;
mod failure;
#[cfg(test)]
mod tests;

use std::{
    io::{self, Write as _},
    process::ExitCode,
    time::Duration,
};

pub use self::descriptor::Descriptor;

use clap::Args;
use tonic::transport::{Channel, Endpoint};

use self::failure::Failure;
use crate::{
    proto::envoy::service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
        rate_limit_service_client::RateLimitServiceClient,
    },
    settings,
};

/// What `tollgate request` is told.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct RequestArgs {
    /// The server's gRPC port, or `unix:/path` for its socket.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8081", value_parser = address)]
    pub addr: String,
    /// How many hits the request counts for each descriptor; 0 counts as 1.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub hits: u32,
    /// How long to wait for the answer.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = timeout)]
    pub timeout: Duration,
    /// Print the answer as JSON.
    #[arg(long)]
    pub json: bool,
    /// The domain of the rules.
    pub domain: String,
    /// A descriptor: its entries in their order; a comma within a value is written `\,`.
    #[arg(value_name = "KEY=VALUE,...", required = true)]
    pub descriptors: Vec<Descriptor>,
}

/// Asks and prints. The exit code is 0 when the request is allowed, 1 when it is over a limit, and 2
/// when there is no answer.
#[must_use]
pub fn run(args: &RequestArgs) -> ExitCode {
    ask_and_print(args).unwrap_or_else(|failure| {
        let _ = writeln!(io::stderr().lock(), "error: {failure}");
        ExitCode::from(2)
    })
}

fn ask_and_print(args: &RequestArgs) -> Result<ExitCode, Failure> {
    let response = ask_and_wait(args)?;
    let text = if args.json { answer::json(&response) } else { answer::text(&args.descriptors, &response) }?;
    super::print(&text);
    match response.overall_code() {
        Code::Ok => Ok(ExitCode::SUCCESS),
        Code::OverLimit => Ok(ExitCode::from(1)),
        Code::Unknown => Err(Failure::undecided(&args.addr)),
    }
}

/// The answer, awaited on a runtime of its own.
fn ask_and_wait(args: &RequestArgs) -> Result<RateLimitResponse, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::runtime(&error))?.block_on(ask(args))
}

async fn ask(args: &RequestArgs) -> Result<RateLimitResponse, Failure> {
    let request = RateLimitRequest {
        domain: args.domain.clone(),
        descriptors: args.descriptors.iter().map(Descriptor::to_proto).collect(),
        hits_addend: args.hits,
    };
    let answer = async {
        let channel = connect(&args.addr).await.map_err(|error| Failure::unreachable(&args.addr, &error))?;
        let mut call = tonic::Request::new(request);
        call.set_timeout(args.timeout);
        let answer = RateLimitServiceClient::new(channel).should_rate_limit(call).await;
        answer.map_err(|status| match status.code() {
            // The time is sent along, so that either side may be the first to find it over.
            tonic::Code::Cancelled | tonic::Code::DeadlineExceeded => Failure::late(&args.addr, args.timeout),
            _ => Failure::refused(&args.addr, &status),
        })
    };
    let answer = tokio::time::timeout(args.timeout, answer).await;
    answer.map_err(|_| Failure::late(&args.addr, args.timeout))?.map(tonic::Response::into_inner)
}

async fn connect(addr: &str) -> Result<Channel, tonic::transport::Error> {
    Endpoint::from_shared(addr.to_owned())?.connect().await
}

/// A server's address in a form that can be connected to; a bare `host:port` is taken for a URL.
fn address(text: &str) -> Result<String, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        let accepted =
            if path.is_empty() { Err("a path follows unix:".to_owned()) } else { Ok(format!("unix:{path}")) };
        return accepted;
    }
    let authority = match text.split_once("://") {
        None => text,
        Some(("http", rest)) => rest.strip_suffix('/').unwrap_or(rest),
        Some(("https", _)) => {
            return Err("this version has no TLS; the plain port is asked by http://".to_owned());
        }
        Some(_) => return Err("accepted are http://host:port, host:port and unix:/path".to_owned()),
    };
    match settings::address::host_port(authority) {
        Ok(listen) if listen.host.is_empty() => Ok(format!("http://127.0.0.1:{}", listen.port)),
        Ok(listen) => Ok(format!("http://{listen}")),
        Err(_) => Err("accepted are http://host:port, host:port and unix:/path".to_owned()),
    }
}

/// A time to wait, in the notation of the settings.
fn timeout(text: &str) -> Result<Duration, String> {
    match settings::duration(text) {
        Ok(duration) if duration.is_zero() => Err("no answer comes in no time".to_owned()),
        Ok(duration) => Ok(duration),
        Err(refusal) => {
            let hint = refusal.hint.map(|hint| format!("; {hint}")).unwrap_or_default();
            Err(format!("accepted is {}{hint}", refusal.accepted))
        }
    }
}
