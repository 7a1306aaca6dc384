//! `tollgate request`: sends a request to a running service and prints its response.
//!
//! `server` reads an address and connects; `answer` prints the response, `failure` says what to do when there is none.
//! This file has the arguments, the descriptors and the call.

mod answer;
mod failure;
mod server;
#[cfg(test)]
mod tests;

use std::{fmt, str::FromStr, time::Duration};

pub use self::server::{Address, TlsArgs};
pub(super) use self::{failure::root_cause, server::Tls};

use clap::Args;

use self::{failure::Failure, server::Server};
use super::{
    health,
    serve::Environment,
    terminal::{self, Verdict},
};
use crate::{
    entries,
    proto::envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor},
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
            rate_limit_service_client::RateLimitServiceClient,
        },
    },
    rules::nearest,
    settings::{self, HostPort, address},
};

/// How long to wait for the debug port, which only makes a message clearer.
const DEBUG_PORT_TIMEOUT: Duration = Duration::from_millis(300);

/// The arguments of `tollgate request`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct RequestArgs {
    /// The gRPC address of the service: host:port, a URL, or `unix:/path`. By default the port or socket
    /// that `GRPC_PORT` or `GRPC_UDS` sets on this machine.
    #[arg(long, value_name = "URL")]
    pub addr: Option<Address>,
    /// The hits of each descriptor; 0 looks without counting.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub hits: u32,
    /// Look without counting, like --hits 0.
    #[arg(long, conflicts_with = "hits")]
    pub peek: bool,
    /// How long to wait for the response.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = timeout)]
    pub timeout: Duration,
    /// Print the response as JSON.
    #[arg(long)]
    pub json: bool,
    /// The domain of the rules.
    pub domain: String,
    /// A descriptor, its entries in order; a comma within a value is written `\,`.
    #[arg(value_name = "KEY=VALUE[,...]", required = true)]
    pub descriptors: Vec<Descriptor>,
    /// TLS to the service.
    #[command(flatten)]
    pub tls: TlsArgs,
}

/// Sends the request and prints the response. The verdict is yes when the request is allowed.
#[must_use]
pub fn run(args: &RequestArgs, environment: &Environment) -> Verdict {
    request(args, environment).unwrap_or_else(|failure| {
        terminal::print_error(&failure.to_string());
        Verdict::Unknown
    })
}

fn request(args: &RequestArgs, environment: &Environment) -> Result<Verdict, Failure> {
    let addr = match &args.addr {
        Some(addr) => addr.clone(),
        None => Address::of_service(environment).map_err(|variables| Failure::address(&variables))?,
    };
    let server = Server::new(&addr, &args.tls)?;
    let response = call_and_wait(&server, args)?;
    if args.json {
        terminal::print_data(&answer::json(&response)?);
    } else {
        let no_limit = response.statuses.iter().all(|status| status.current_limit.is_none());
        let domains = if no_limit && args.addr.is_none() { domains_of(environment) } else { None };
        let unknown = domains.and_then(|dump| unknown_domain(&args.domain, &dump));
        terminal::print(&answer::text(&args.descriptors, &response, unknown.as_deref())?);
    }
    match response.overall_code() {
        Code::Ok => Ok(Verdict::Yes),
        Code::OverLimit => Ok(Verdict::No),
        Code::Unknown => Err(Failure::undecided(&server)),
    }
}

/// The rules of the service on this machine, as its debug port lists them. A response does not say whether
/// the service knows the domain.
fn domains_of(environment: &Environment) -> Option<String> {
    let host = address::host(&environment.value(&settings::vars::DEBUG_HOST)).ok()?;
    let port = environment.value(&settings::vars::DEBUG_PORT).parse().ok()?;
    let (status, body) = health::get(&HostPort { host, port }, "/rlconfig", DEBUG_PORT_TIMEOUT).ok()?;
    (status == 200).then_some(body)
}

/// What to say of a domain without a rule in this list, whose lines begin with the domain and a dot.
fn unknown_domain(domain: &str, dump: &str) -> Option<String> {
    if dump.lines().any(|line| line.strip_prefix(domain).is_some_and(|rest| rest.starts_with('.'))) {
        return None;
    }
    let known = dump.lines().filter_map(|line| line.split_once('.')).map(|(known, _)| known);
    let hint = nearest(domain, known).map(|similar| format!("; did you mean {similar:?}?"));
    Some(format!("unknown domain {domain:?}{}", hint.unwrap_or_default()))
}

/// The response, awaited on a runtime of its own.
fn call_and_wait(server: &Server, args: &RequestArgs) -> Result<RateLimitResponse, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::runtime(&error))?.block_on(call(server, args))
}

async fn call(server: &Server, args: &RequestArgs) -> Result<RateLimitResponse, Failure> {
    let hits = if args.peek { 0 } else { args.hits };
    let request = RateLimitRequest {
        domain: args.domain.clone(),
        descriptors: args.descriptors.iter().map(|descriptor| descriptor.to_proto(hits)).collect(),
        hits_addend: hits,
    };
    let response = async {
        let channel = server.connect().await?;
        let mut call = tonic::Request::new(request);
        call.set_timeout(args.timeout);
        let response = RateLimitServiceClient::new(channel).should_rate_limit(call).await;
        response.map_err(|status| match status.code() {
            // Either side may notice first that the time is over.
            tonic::Code::Cancelled | tonic::Code::DeadlineExceeded => Failure::late(server, args.timeout),
            _ => Failure::refused(server, &status),
        })
    };
    let response = tokio::time::timeout(args.timeout, response).await;
    response.map_err(|_| Failure::late(server, args.timeout))?.map(tonic::Response::into_inner)
}

/// A timeout, in the notation of the settings.
pub(super) fn timeout(text: &str) -> Result<Duration, String> {
    match settings::duration(text) {
        Ok(duration) if duration.is_zero() => Err("expected a duration above 0".to_owned()),
        Ok(duration) => Ok(duration),
        Err(invalid) => Err(invalid.to_string()),
    }
}

/// The entries of one descriptor, in their order; one at least.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Descriptor {
    entries: Vec<(String, String)>,
}

impl Descriptor {
    /// The entries, each a key and a value.
    pub(in crate::cli) fn entries(&self) -> &[(String, String)] {
        &self.entries
    }

    /// The descriptor as Envoy's API has it. 0 hits must stand in the descriptor itself: those of the request
    /// count as 1.
    fn to_proto(&self, hits: u32) -> RateLimitDescriptor {
        let entry = |(key, value): &(String, String)| rate_limit_descriptor::Entry {
            key: key.clone(),
            value: value.clone(),
        };
        let hits_addend = (hits == 0).then_some(0);
        RateLimitDescriptor {
            entries: self.entries.iter().map(entry).collect(),
            hits_addend,
            ..Default::default()
        }
    }
}

impl FromStr for Descriptor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self { entries: entries::parse_with_values(text)? })
    }
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries.iter().map(|(key, value)| (&**key, Some(value)));
        f.write_str(&entries::write(entries))
    }
}
