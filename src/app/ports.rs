//! The ports: all are bound before anything is served, and an error lists all that cannot be bound.

use std::{fmt, io, net::TcpListener as StdTcpListener};

use tokio::net::TcpListener;
use tracing::info;

use super::StartError;
use crate::{
    server::grpc::{Listener, bind_tcp},
    settings::{GrpcListen, HostPort, Settings},
};

/// Every port, bound.
pub(super) struct Ports {
    pub(super) grpc: Listener,
    pub(super) http: TcpListener,
    pub(super) debug: TcpListener,
    pub(super) metrics: Option<TcpListener>,
}

impl Ports {
    /// Binds every port, or returns an error for each that cannot be bound.
    pub(super) fn bind(settings: &Settings) -> Result<Self, StartError> {
        let mut failed = Vec::new();
        let grpc = match &settings.server.listen() {
            GrpcListen::Tcp(address) => {
                bound(&mut failed, "gRPC", address, bind(address).and_then(Listener::tcp))
            }
            GrpcListen::Unix(path) => bound(&mut failed, "gRPC", &path.display(), Listener::unix(path)),
        };
        let mut page = |name, address: &HostPort| {
            bound(&mut failed, name, address, bind(address).and_then(TcpListener::from_std))
        };
        let http = page("HTTP", &settings.http.listen());
        let debug = page("debug", &settings.http.debug());
        let metrics =
            settings.stats.prometheus.as_ref().map(|prometheus| page("Prometheus", &prometheus.listen));
        match (grpc, http, debug) {
            (Some(grpc), Some(http), Some(debug)) if failed.is_empty() => {
                Ok(Self { grpc, http, debug, metrics: metrics.flatten() })
            }
            _ => Err(StartError(failed)),
        }
    }

    /// Logs the addresses of the listeners.
    pub(super) fn announce(&self, settings: &Settings) {
        let port = |listener: &TcpListener| {
            listener.local_addr().map(|address| address.to_string()).unwrap_or_default()
        };
        let grpc = match &self.grpc {
            Listener::Tcp(listener) => port(listener),
            Listener::Unix(_, path) => path.display().to_string(),
        };
        let metrics = self.metrics.as_ref().zip(settings.stats.prometheus.as_ref());
        info!(
            grpc,
            tls = settings.grpc_tls.is_some(),
            http = port(&self.http),
            debug = port(&self.debug),
            metrics = metrics.map(|(listener, prometheus)| port(listener) + &prometheus.path),
            "listening"
        );
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
