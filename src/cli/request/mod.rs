//! `tollgate request`: asks a running server about descriptors and prints what it says.
//!
//! `descriptor` and `server` read what was typed, and `server` connects; `answer` makes the answer readable,
//! `failure` tells what to do when there is none. Here stand the arguments and the one call.

mod answer;
mod descriptor;
mod failure;
mod server;
#[cfg(test)]
mod tests;

use std::{
    io::{self, Write as _},
    process::ExitCode,
    time::Duration,
};

pub use self::{
    descriptor::Descriptor,
    server::{Address, TlsArgs},
};

use clap::Args;

use self::{failure::Failure, server::Server};
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
    #[arg(long, value_name = "URL", default_value = "127.0.0.1:8081")]
    pub addr: Address,
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
    /// TLS, if it is spoken.
    #[command(flatten)]
    pub tls: TlsArgs,
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
    let server = Server::new(&args.addr, &args.tls)?;
    let response = ask_and_wait(&server, args)?;
    let text = if args.json { answer::json(&response) } else { answer::text(&args.descriptors, &response) }?;
    super::print(&text);
    match response.overall_code() {
        Code::Ok => Ok(ExitCode::SUCCESS),
        Code::OverLimit => Ok(ExitCode::from(1)),
        Code::Unknown => Err(Failure::undecided(&server)),
    }
}

/// The answer, awaited on a runtime of its own.
fn ask_and_wait(server: &Server, args: &RequestArgs) -> Result<RateLimitResponse, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::runtime(&error))?.block_on(ask(server, args))
}

async fn ask(server: &Server, args: &RequestArgs) -> Result<RateLimitResponse, Failure> {
    let request = RateLimitRequest {
        domain: args.domain.clone(),
        descriptors: args.descriptors.iter().map(Descriptor::to_proto).collect(),
        hits_addend: args.hits,
    };
    let answer = async {
        let channel = server.connect().await?;
        let mut call = tonic::Request::new(request);
        call.set_timeout(args.timeout);
        let answer = RateLimitServiceClient::new(channel).should_rate_limit(call).await;
        answer.map_err(|status| match status.code() {
            // The time is sent along, so that either side may be the first to find it over.
            tonic::Code::Cancelled | tonic::Code::DeadlineExceeded => Failure::late(server, args.timeout),
            _ => Failure::refused(server, &status),
        })
    };
    let answer = tokio::time::timeout(args.timeout, answer).await;
    answer.map_err(|_| Failure::late(server, args.timeout))?.map(tonic::Response::into_inner)
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
