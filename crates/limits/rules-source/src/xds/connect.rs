//! Opens a channel to a control plane: a socket, TLS if enabled, and HTTP/2.
//!
//! A channel uses one connection and does not reconnect: `client` opens a new one, with its own backoff and with the
//! certificates that the files contain by then.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;
use tokio_rustls::{TlsConnector, rustls::ClientConfig};
use tonic::transport::{Channel, Uri};

use crate::xds::settings::{Xds, XdsTls};
use net::{
    ServerAddress, channel,
    edges::Transport,
    tls::{self, ClientTls, Hints, explain, server_name},
};

const HINTS: Hints = Hints {
    ca: "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
    certificate: "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
    key: "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
    other_host: "set CONFIG_GRPC_XDS_SERVER_TLS_SAN to a name in its certificate",
    plain_text: "if the port expects plaintext, unset CONFIG_GRPC_XDS_SERVER_USE_TLS",
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) async fn connect(settings: &Xds) -> Result<Channel, String> {
    let tls = settings.tls.as_ref().map(|tls| load_tls(&tls.files)).transpose()?;
    let host = host(settings);
    let socket = timeout(CONNECT_TIMEOUT, open(&settings.server, tls, &host))
        .await
        .unwrap_or_else(|_| Err(format!("cannot connect: no connection within {CONNECT_TIMEOUT:?}")))?;
    let channel = channel::over(socket, origin(settings, &host)?, |endpoint| {
        if settings.keepalive_interval.is_zero() {
            return endpoint;
        }
        endpoint
            .http2_keep_alive_interval(settings.keepalive_interval)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
    });
    channel.await.map_err(|error| format!("HTTP/2 handshake failed: {error}"))
}

/// The name that the certificate must have.
fn host(settings: &Xds) -> String {
    match (&settings.tls, &settings.server) {
        (Some(XdsTls { server_name: Some(name), .. }), _) => name.clone(),
        (_, ServerAddress::Tcp(address)) => address.host.clone(),
        (_, ServerAddress::Unix(_)) => "localhost".to_owned(),
    }
}

async fn open(
    server: &ServerAddress,
    tls: Option<Arc<ClientConfig>>,
    host: &str,
) -> Result<Transport, String> {
    let socket = channel::connect(server).await.map_err(|error| format!("cannot connect: {error}"))?;
    let Some(config) = tls else { return Ok(socket) };
    let name = server_name(host).map_err(|why| format!("{why}; {}", HINTS.other_host))?;
    let secured = TlsConnector::from(config).connect(name, socket).await.map_err(|error| {
        format!("TLS handshake failed: {}", explain(&error, &HINTS).unwrap_or_else(|| error.to_string()))
    });
    Ok(Box::new(secured?))
}

/// The `:authority` of requests.
fn origin(settings: &Xds, host: &str) -> Result<Uri, String> {
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    // As in gRPC for Go: the verified name, if one is set.
    let authority = match (&settings.server, &settings.tls) {
        (ServerAddress::Tcp(address), Some(tls)) if tls.server_name.is_none() => address.to_string(),
        (ServerAddress::Tcp(address), None) => address.to_string(),
        _ => host.to_owned(),
    };
    let origin = format!("{scheme}://{authority}").parse();
    origin.map_err(|error| format!("{authority:?} is not a valid authority: {error}"))
}

/// Loads the TLS files. They are loaded for each connection, so that replaced certificates take effect.
fn load_tls(files: &ClientTls) -> Result<Arc<ClientConfig>, String> {
    let mut config = tls::load(files, &HINTS).map_err(|errors| errors.join("; "))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_every_missing_file_by_its_variable() {
        let gone = |name: &str| format!("/nowhere/{name}.pem").into();
        let settings = ClientTls {
            ca: Some(gone("ca")),
            identity: Some((gone("cert"), gone("key"))),
            ..ClientTls::default()
        };
        let error = load_tls(&settings).map(drop).unwrap_err();
        for (variable, name) in [(HINTS.ca, "ca"), (HINTS.certificate, "cert"), (HINTS.key, "key")] {
            assert!(error.contains(&format!("{variable}=/nowhere/{name}.pem: expected ")), "{error}");
        }
    }
}
