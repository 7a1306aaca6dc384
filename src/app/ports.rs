//! The ports: all are bound before anything is served, and an error lists all that cannot be bound.

use std::{fmt, io, net::TcpListener as StdTcpListener};

use tracing::{info, warn};

use super::StartError;
use crate::{
    server::grpc::{Listener, bind_tcp},
    settings::{self, HostPort, ServerAddress, Settings},
};

/// Every port, bound.
pub(super) struct Ports {
    pub(super) grpc: Listener,
    pub(super) http: Listener,
    pub(super) debug: Listener,
    pub(super) metrics: Option<Listener>,
    pub(super) admin: Option<Listener>,
}

impl Ports {
    /// Binds every port, or returns an error for each that cannot be bound.
    pub(super) fn bind(settings: &Settings) -> Result<Self, StartError> {
        let mut failed = Vec::new();
        let grpc = match &settings.server.listen() {
            ServerAddress::Tcp(address) => {
                bound(&mut failed, "gRPC", address, bind(address).and_then(Listener::tcp))
            }
            ServerAddress::Unix(path) => bound(&mut failed, "gRPC", &path.display(), Listener::unix(path)),
        };
        let mut page = |name, address: &HostPort| {
            bound(&mut failed, name, address, bind(address).and_then(Listener::tcp))
        };
        let http = page("HTTP", &settings.http.listen());
        let debug = page("debug", &settings.http.debug());
        let metrics =
            settings.metrics.use_prometheus.then(|| page("Prometheus", &settings.metrics.prometheus_address));
        let admin = settings.admin.as_ref().and_then(|admin| bind_admin(admin, &mut failed));
        match (grpc, http, debug) {
            (Some(grpc), Some(http), Some(debug)) if failed.is_empty() => {
                Ok(Self { grpc, http, debug, metrics: metrics.flatten(), admin })
            }
            _ => Err(StartError(failed)),
        }
    }

    /// Logs the addresses of the listeners.
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

/// The address of a listener.
fn port(listener: &Listener) -> String {
    match listener {
        Listener::Tcp(listener) => {
            listener.local_addr().map(|address| address.to_string()).unwrap_or_default()
        }
        Listener::Unix(_, path) => path.display().to_string(),
    }
}

/// Binds the admin API. Nobody asked for the default address, so without it the service runs all the same.
fn bind_admin(admin: &settings::Admin, failed: &mut Vec<String>) -> Option<Listener> {
    match &admin.listen {
        ServerAddress::Unix(path) => bound(failed, "the admin API", &path.display(), Listener::unix(path)),
        ServerAddress::Tcp(address) => {
            let listener = bind(address).and_then(Listener::tcp);
            if let (true, Err(error)) = (admin.is_default, &listener) {
                warn!(
                    %address,
                    %error,
                    "the admin API is not served: set ADMIN_ADDR to a free address, or to off"
                );
                return None;
            }
            bound(failed, "the admin API", address, listener)
        }
    }
}

/// Binds the first of the addresses that a host name stands for and that can be bound.
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

fn bound<T>(
    failed: &mut Vec<String>,
    name: &str,
    address: &dyn fmt::Display,
    result: io::Result<T>,
) -> Option<T> {
    result.map_err(|error| failed.push(format!("cannot listen for {name} on {address}: {error}"))).ok()
}
