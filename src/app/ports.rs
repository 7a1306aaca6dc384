//! The ports: all are bound before anything is served, and an error lists every port that cannot be bound. Their
//! connection limits are lowered to fit the limit of file descriptors.

use std::{fmt, io, net::TcpListener as StdTcpListener};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{info, warn};

use super::{StartError, pages::Threads};
use faults::files;
use net::{HostPort, ServerAddress};
use server::listen::{Listener, bind_tcp};
use settings::{
    self, Settings,
    vars::{self, Var},
};

/// Descriptors for rules files, sinks, and the connections of four HTTP ports that only probes have.
const OTHERS: usize = 128;

/// Descriptors of a worker: its runtime, and connections to two stores.
const OF_WORKER: usize = 8;

/// The least connections of the gRPC port with which the service starts.
const LEAST_GRPC: usize = 32;

pub(super) struct Ports {
    pub(super) grpc: Listener,
    pub(super) http: Listener,
    pub(super) debug: Listener,
    pub(super) metrics: Option<Listener>,
    pub(super) admin: Option<Listener>,
}

impl Ports {
    /// Binds every port, or returns an error for each that cannot be bound. The HTTP ports belong to these threads.
    pub(super) fn bind(settings: &Settings, threads: &Threads) -> Result<Self, StartError> {
        let mut failed = Vec::new();
        let grpc = match &settings.server.listen() {
            ServerAddress::Tcp(address) => {
                bound_tcp(&mut failed, "gRPC", [&vars::GRPC_HOST, &vars::GRPC_PORT], address)
            }
            ServerAddress::Unix(path) => {
                bound(&mut failed, "gRPC", [&vars::GRPC_UDS; 2], &path.display(), Listener::unix(path))
            }
        };
        let mut page = |name, variables, address: &HostPort| bound_tcp(&mut failed, name, variables, address);
        let entered = threads.http.enter();
        let http = page("HTTP", [&vars::HOST, &vars::PORT], &settings.http.listen());
        let debug = page("debug", [&vars::DEBUG_HOST, &vars::DEBUG_PORT], &settings.http.debug());
        let prometheus = &settings.metrics.prometheus_address;
        let variables: [&Var; 2] = [&vars::PROMETHEUS_ADDR; 2];
        let metrics = settings.metrics.use_prometheus.then(|| page("Prometheus", variables, prometheus));
        drop(entered);
        let admin = settings.admin.as_ref().and_then(|admin| {
            let _entered = threads.admin.enter();
            bind_admin(admin, &mut failed)
        });
        match (grpc, http, debug) {
            (Some(grpc), Some(http), Some(debug)) if failed.is_empty() => {
                Ok(Self { grpc, http, debug, metrics: metrics.flatten(), admin })
            }
            _ => Err(StartError(failed)),
        }
    }

    pub(super) fn announce(&self, settings: &Settings) {
        info!(
            grpc = port(&self.grpc),
            tls = settings.grpc_tls.is_some(),
            http = port(&self.http),
            debug = port(&self.debug),
            metrics =
                self.metrics.as_ref().map(|listener| port(listener) + &settings.metrics.prometheus_path),
            admin = self.admin.as_ref().map(port),
            "listening"
        );
    }
}

fn port(listener: &Listener) -> String {
    match listener {
        Listener::Tcp(listener) => {
            listener.local_addr().map(|address| address.to_string()).unwrap_or_default()
        }
        Listener::Unix(file, _) => file.path.display().to_string(),
    }
}

/// Binds the admin API. The service also runs without it if its address is the default.
fn bind_admin(admin: &settings::Admin, failed: &mut Vec<String>) -> Option<Listener> {
    match &admin.listen {
        ServerAddress::Unix(path) => {
            bound(failed, "the admin API", [&vars::ADMIN_UDS; 2], &path.display(), Listener::unix(path))
        }
        ServerAddress::Tcp(address) => {
            if admin.is_default {
                return bind_next(address);
            }
            let listener = bind(address).and_then(Listener::tcp);
            let is_local = |listener: &Listener| matches!(listener, Listener::Tcp(tcp) if tcp.local_addr().is_ok_and(|own| own.ip().is_loopback()));
            if admin.token_file.is_some() && !admin.tls && !listener.as_ref().is_ok_and(is_local) {
                warn!(
                    %address,
                    "the tokens of the admin API cross the network in plaintext: set ADMIN_USE_TLS, or serve it on \
                     127.0.0.1 or ADMIN_UDS"
                );
            }
            bound(failed, "the admin API", [&vars::ADMIN_ADDR; 2], address, listener)
        }
    }
}

/// The ports that are tried for the admin API if none is set.
const DEFAULT_PORTS: u16 = 10;

/// Binds the default address or the first free port after it: the service does not fail for a port that nobody asked for,
/// and the page of another process must not be taken for its own.
fn bind_next(default: &HostPort) -> Option<Listener> {
    let mut last = None;
    for port in (default.port..).take(DEFAULT_PORTS.into()) {
        let address = HostPort { port, ..default.clone() };
        match bind(&address).and_then(Listener::tcp) {
            Ok(listener) => {
                if port != default.port {
                    warn!(
                        "{default} is another process', so the admin API and its page are at {address}: pass \
                         --admin {address} to commands, or set ADMIN_ADDR"
                    );
                }
                return Some(listener);
            }
            Err(error) => last = Some(error),
        }
    }
    let error = last.map(|error| error.to_string());
    warn!(address = %default, error, "the admin API is not served: set ADMIN_ADDR to a free address, or to off");
    None
}

/// Binds the first address of a host name that can be bound.
fn bind(address: &HostPort) -> io::Result<StdTcpListener> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in address.resolve()? {
        match bind_tcp(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn bound_tcp(
    failed: &mut Vec<String>,
    name: &str,
    variables: [&Var; 2],
    address: &HostPort,
) -> Option<Listener> {
    bound(failed, name, variables, address, bind(address).and_then(Listener::tcp))
}

/// Reports an error with the variable that can mend it: that of the host or that of the port, which may be the same.
fn bound<T>(
    failed: &mut Vec<String>,
    name: &str,
    [host, port]: [&Var; 2],
    address: &dyn fmt::Display,
    result: io::Result<T>,
) -> Option<T> {
    let message = |error: io::Error| {
        let (why, variable) = match error.kind() {
            io::ErrorKind::AddrInUse => {
                (format!("{error}: stop the process that has it, or choose another"), port)
            }
            _ if port.name.ends_with("_UDS") => (files::advised(&error), port),
            io::ErrorKind::PermissionDenied => {
                (format!("{error}: ports below 1024 need CAP_NET_BIND_SERVICE, choose another"), port)
            }
            _ => {
                let expected =
                    "expected an address of this machine, a name of one, or nothing for all of them";
                (format!("{error}; {expected}"), host)
            }
        };
        format!("cannot listen for {name} on {address}: {why}; see {}", variable.name)
    };
    result.map_err(|error| failed.push(message(error))).ok()
}

/// Raises the soft limit of file descriptors to the hard one, as Go programs do, and lowers the connection limits if
/// that is not enough: a process without free descriptors accepts nothing, health checks included. With too few for
/// that the service does not start.
pub(super) fn fit_descriptors(settings: &mut Settings) -> Result<(), StartError> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // If this fails, the limit stays as it is.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    // None means unlimited.
    let Some(granted) = getrlimit(Resource::Nofile).current else { return Ok(()) };
    let granted = usize::try_from(granted).unwrap_or(usize::MAX);
    let grpc = settings.server.grpc.max_connections;
    let http = settings.http.max_connections;
    let others = OTHERS + settings.server.grpc.workers * OF_WORKER;
    let Some((most_grpc, most_http)) = connections(granted, others, grpc, http) else {
        let least = (1..=1 << 20).find(|granted| connections(*granted, others, grpc, http).is_some());
        return Err(StartError(vec![format!(
            "the limit of open files (RLIMIT_NOFILE) is {granted}, but {} workers and connections need at least {}: \
             raise it, as by `ulimit -n 65536`",
            settings.server.grpc.workers,
            least.unwrap_or(usize::MAX)
        )]));
    };
    settings.http.max_connections = most_http;
    settings.server.grpc.max_connections = most_grpc;
    settings.server.grpc.max_connections_per_address =
        settings.server.grpc.max_connections_per_address.min(most_grpc);
    if (most_grpc, most_http) != (grpc, http) {
        warn!(
            granted,
            GRPC_MAX_CONNECTIONS = most_grpc,
            HTTP_MAX_CONNECTIONS = most_http,
            "connection limits lowered: the limit of open files (RLIMIT_NOFILE) is too low for the configured limits"
        );
    }
    Ok(())
}

/// The connection limits of the gRPC port, and of each of four HTTP ports, that fit this many descriptors besides
/// others; `None` if there are too few. As many connections as an HTTP port has may wait for a place.
fn connections(granted: usize, others: usize, grpc: usize, http: usize) -> Option<(usize, usize)> {
    let http = http.min(granted / 32).max(1);
    let left = granted.checked_sub(others)?.checked_sub(http.checked_mul(8)?)?;
    (left >= grpc.min(LEAST_GRPC)).then(|| (grpc.min(left), http))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_limits_fit_the_usual_limits_of_containers() {
        for granted in [1_048_576, 65_536] {
            assert_eq!(connections(granted, OTHERS, 10_000, 512), Some((10_000, 512)));
        }
    }

    #[test]
    fn the_limit_of_descriptors_is_never_exceeded() {
        for others in [OTHERS, OTHERS + 64 * OF_WORKER] {
            for granted in 0..5000 {
                match connections(granted, others, 10_000, 512) {
                    Some((grpc, http)) => {
                        assert!(grpc >= LEAST_GRPC && http >= 1);
                        assert!(grpc + 8 * http + others <= granted, "{granted}: {grpc}, {http}");
                    }
                    None => assert!(granted < 256 || others > OTHERS && granted < 1024, "{granted}"),
                }
            }
        }
    }
}
