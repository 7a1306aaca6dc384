//! `tollgate request`: sends a request to a running service and prints its response.
//!
//! `answer` formats the response. This file has the arguments, the descriptors and the call.

mod answer;
#[cfg(test)]
mod tests;

use std::{error::Error as _, fmt, str::FromStr, time::Duration};

use clap::Args;
use tonic::Status;

use super::{
    endpoint::{self, Address, Endpoint, Service, TlsArgs, root_cause, timeout},
    health,
    serve::Environment,
    terminal::{self, Failure, Verdict},
};
use net::{HostPort, channel};
use proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor},
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
        rate_limit_service_client::RateLimitServiceClient,
    },
};
use settings::{address, vars};
use text::{entries, spelling::nearest};

const SERVICE: Service = Service {
    name: "",
    advice: "is the service running? `tollgate serve` starts it; --addr sets another address",
    protocol: "h2",
};

/// How long to wait for the debug port, which only makes a message clearer.
const DEBUG_PORT_TIMEOUT: Duration = Duration::from_millis(300);

#[derive(Args, Clone, PartialEq, Debug)]
pub(crate) struct RequestArgs {
    /// The gRPC address of the service: host:port, a URL, or `unix:/path`. By default the port or socket
    /// that `GRPC_PORT` or `GRPC_UDS` sets on this machine.
    #[arg(long, value_name = "URL")]
    pub(crate) addr: Option<Address>,
    /// The hits of each descriptor; 0 reads the counters without counting.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = endpoint::hits)]
    pub(crate) hits: u64,
    /// Read the counters without counting, like --hits 0.
    #[arg(long, conflicts_with = "hits")]
    pub(crate) peek: bool,
    /// How long to wait for the response.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = timeout)]
    pub(crate) timeout: Duration,
    /// Print the response as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// The domain of the rules.
    pub(crate) domain: String,
    /// A descriptor, its entries in order; a comma within a value is written `\,`.
    #[arg(value_name = "KEY=VALUE[,...]", required = true)]
    pub(crate) descriptors: Vec<Descriptor>,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

/// Sends the request and prints the response. The verdict is yes if the request is allowed.
pub(super) fn run(args: &RequestArgs, environment: &Environment) -> Result<Verdict, Failure> {
    let addr = match &args.addr {
        Some(addr) => addr.clone(),
        None => local(environment)?,
    };
    let server = Endpoint::new(&addr, &args.tls, &SERVICE)?;
    let response = endpoint::runtime()?.block_on(call(&server, args))?;
    if args.json {
        terminal::print_json(&answer::json(&response)?);
    } else {
        let no_limit = response.statuses.iter().all(|status| status.current_limit.is_none());
        let rules = if no_limit && args.addr.is_none() { local_rules(environment) } else { None };
        let unknown = rules.and_then(|rules| unknown_domain(&args.domain, &rules));
        terminal::print(&answer::text(&args.descriptors, &response, unknown.as_deref())?);
    }
    match response.overall_code() {
        Code::Ok => Ok(Verdict::Yes),
        Code::OverLimit => Ok(Verdict::No),
        Code::Unknown => Err(Failure::new(
            format!("{server}: the response has no overall code"),
            "is that a rate limit service? --addr sets another address",
        )),
    }
}

/// The gRPC address of the service on this machine, from its environment variables.
fn local(environment: &Environment) -> Result<Address, Failure> {
    let host = environment.value(&vars::GRPC_HOST);
    let port = environment.value(&vars::GRPC_PORT);
    let tcp = address::host(&host).ok().zip(port.parse().ok());
    let tcp = tcp.map(|(host, port)| HostPort { host, port });
    Address::local(environment, &vars::GRPC_UDS, tcp).ok_or_else(|| {
        let what = format!("no gRPC address: GRPC_HOST={host:?} and GRPC_PORT={port:?}");
        Failure::new(what, "set --addr, or GRPC_PORT as the service has it")
    })
}

/// The rules of the service on this machine, as its debug port lists them. A response does not show whether the
/// service has the domain.
fn local_rules(environment: &Environment) -> Option<String> {
    let host = address::host(&environment.value(&vars::DEBUG_HOST)).ok()?;
    let port = environment.value(&vars::DEBUG_PORT).parse().ok()?;
    let (status, body) = health::get(&HostPort { host, port }, "/rlconfig", DEBUG_PORT_TIMEOUT).ok()?;
    (status == 200).then_some(body)
}

/// The message about a domain without a rule in this list, whose lines begin with the domain and a dot.
fn unknown_domain(domain: &str, rules: &str) -> Option<String> {
    if rules.lines().any(|line| line.strip_prefix(domain).is_some_and(|rest| rest.starts_with('.'))) {
        return None;
    }
    let known = rules.lines().filter_map(|line| line.split_once('.')).map(|(known, _)| known);
    let hint = nearest(domain, known).map(|similar| format!("; did you mean {similar:?}?"));
    Some(format!("unknown domain {domain:?}{}", hint.unwrap_or_default()))
}

async fn call(server: &Endpoint, args: &RequestArgs) -> Result<RateLimitResponse, Failure> {
    let hits = if args.peek { 0 } else { args.hits };
    let request = RateLimitRequest {
        domain: args.domain.clone(),
        descriptors: args.descriptors.iter().map(|descriptor| descriptor.to_proto(hits)).collect(),
        hits_addend: u32::try_from(hits).unwrap_or_default(),
    };
    let late = || {
        let what = format!("{server}: no response within {:?}", args.timeout);
        Failure::new(what, "is that the gRPC port? --timeout sets the time to wait")
    };
    let response = async {
        let origin = server.origin().parse().map_err(|error| server.unreachable(error))?;
        let channel = channel::over(server.connect().await?, origin, |endpoint| endpoint).await;
        let channel = channel.map_err(|error| server.unreachable(root_cause(&error)))?;
        let mut call = tonic::Request::new(request);
        call.set_timeout(args.timeout);
        let response = RateLimitServiceClient::new(channel).should_rate_limit(call).await;
        response.map_err(|status| match status.code() {
            // Either side may notice first that the time is over.
            tonic::Code::Cancelled | tonic::Code::DeadlineExceeded => late(),
            _ => rejected(server, &status),
        })
    };
    let response = tokio::time::timeout(args.timeout, response).await;
    response.map_err(|_| late())?.map(tonic::Response::into_inner)
}

fn rejected(server: &Endpoint, status: &Status) -> Failure {
    let advice = match status.code() {
        tonic::Code::Unknown if status.message() == "no rate limit configuration loaded" => {
            "`tollgate check` and the service's log show why its rules could not be loaded"
        }
        tonic::Code::Unimplemented => "that server has no rate limit service; --addr sets another address",
        tonic::Code::ResourceExhausted => "`tollgate settings` lists the service's limits",
        tonic::Code::Unavailable | tonic::Code::Internal => server.broken(),
        // The connection broke.
        _ if status.source().is_some() => server.broken(),
        _ => "the service's log may have details",
    };
    let cause = status.source().map(root_cause).filter(|cause| !status.message().contains(&**cause));
    let cause = cause.map(|cause| format!(" ({cause})")).unwrap_or_default();
    Failure::new(format!("{server}: {:?}: {}{cause}", status.code(), status.message()), advice)
}

/// The entries of one descriptor in order, each a key and a value; at least one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Descriptor(pub(super) Vec<(String, String)>);

impl Descriptor {
    /// The message of Envoy's API. 0 hits are set in the descriptor, because in the request they count as 1; and so are
    /// those beyond 32 bits, for which the request has no room.
    fn to_proto(&self, hits: u64) -> RateLimitDescriptor {
        let entry = |(key, value): &(String, String)| rate_limit_descriptor::Entry {
            key: key.clone(),
            value: value.clone(),
        };
        let hits_addend = Some(hits).filter(|hits| *hits == 0 || *hits > u32::MAX.into());
        RateLimitDescriptor { entries: self.0.iter().map(entry).collect(), hits_addend, ..Default::default() }
    }
}

impl FromStr for Descriptor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        entries::parse_with_values(text).map(Self)
    }
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.0.iter().map(|(key, value)| (&**key, Some(value)));
        f.write_str(&entries::write(entries))
    }
}
