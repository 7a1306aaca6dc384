//! Gets a channel to a control plane: a socket, TLS on it if that is wanted, HTTP/2 on top.
//!
//! A channel is made of one connection and does not come back when it breaks: `client` connects anew, at its
//! own pace, and with the certificates that are in the files by then.

use std::{io, sync::Arc, time::Duration};

use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpStream, UnixStream},
    time::timeout,
};
use tokio_rustls::{TlsConnector, rustls::ClientConfig};
use tonic::transport::{Channel, Endpoint, Uri};

use crate::{
    net::{
        channel::{self, Duplex, Socket},
        tls::{self, Words, explain, server_name},
    },
    settings::{ClientTls, ServerAddress, xds::Xds},
};

/// The variables that errors of TLS refer to.
const WORDS: Words = Words {
    ca: "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
    certificate: "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
    key: "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
    other_host: "CONFIG_GRPC_XDS_SERVER_TLS_SAN sets the name that its certificate must hold",
    plain_text: "if its port speaks plain text, unset CONFIG_GRPC_XDS_SERVER_USE_TLS",
};

/// How long it may take to connect, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the answer to a ping may take.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// A dead peer is found in a minute: a probe after this silence, and some more in between.
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);
const TCP_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
#[cfg(not(any(target_os = "openbsd", target_os = "redox", target_os = "solaris", target_os = "windows")))]
const TCP_KEEPALIVE_RETRIES: u32 = 3;

/// Connects.
///
/// # Errors
/// The reason, and what to do.
pub(super) async fn connect(settings: &Xds) -> Result<Channel, String> {
    let tls = settings.tls.as_ref().map(|tls| load_tls(&tls.files)).transpose()?;
    let host = name(settings);
    let socket = timeout(CONNECT_TIMEOUT, open(&settings.server, tls, &host))
        .await
        .unwrap_or_else(|_| Err(format!("it cannot be reached: no connection within {CONNECT_TIMEOUT:?}")))?;
    let channel = channel::over(socket, origin(settings, &host)?, |endpoint| kept_alive(endpoint, settings));
    channel.await.map_err(|error| format!("not HTTP/2: {error}"))
}

/// The name that the certificate must have.
fn name(settings: &Xds) -> String {
    let expected = settings.tls.as_ref().and_then(|tls| tls.server_name.clone());
    expected.unwrap_or_else(|| match &settings.server {
        ServerAddress::Tcp(address) => address.host.clone(),
        ServerAddress::Unix(_) => "localhost".to_owned(),
    })
}

async fn open(server: &ServerAddress, tls: Option<Arc<ClientConfig>>, host: &str) -> Result<Socket, String> {
    let unreachable = |error: io::Error| format!("it cannot be reached: {error}");
    match server {
        ServerAddress::Tcp(address) => {
            let socket = TcpStream::connect((&*address.host, address.port)).await.map_err(unreachable)?;
            // Failing to set them costs latency, or time until a dead peer is noticed.
            let _ = socket.set_nodelay(true);
            let _ = SockRef::from(&socket).set_tcp_keepalive(&keepalive());
            shake_hands(socket, tls, host).await
        }
        ServerAddress::Unix(path) => {
            let socket = UnixStream::connect(path).await.map_err(unreachable)?;
            shake_hands(socket, tls, host).await
        }
    }
}

fn keepalive() -> TcpKeepalive {
    let keepalive = TcpKeepalive::new().with_time(TCP_KEEPALIVE).with_interval(TCP_KEEPALIVE_INTERVAL);
    #[cfg(not(any(
        target_os = "openbsd",
        target_os = "redox",
        target_os = "solaris",
        target_os = "windows"
    )))]
    let keepalive = keepalive.with_retries(TCP_KEEPALIVE_RETRIES);
    keepalive
}

async fn shake_hands(
    socket: impl Duplex + 'static,
    tls: Option<Arc<ClientConfig>>,
    host: &str,
) -> Result<Socket, String> {
    let Some(config) = tls else { return Ok(Box::new(socket)) };
    let name = server_name(host).map_err(|why| format!("{why}; {}", WORDS.other_host))?;
    let secured = TlsConnector::from(config).connect(name, socket).await.map_err(|error| {
        let why = explain(&error, &WORDS).unwrap_or_else(|| error.to_string());
        format!("the TLS handshake failed: {why}")
    });
    Ok(Box::new(secured?))
}

/// The `:authority` of requests.
fn origin(settings: &Xds, host: &str) -> Result<Uri, String> {
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    // As in gRPC for Go: the verified name, where one is set.
    let authority = match (&settings.server, &settings.tls) {
        (ServerAddress::Tcp(address), Some(tls)) if tls.server_name.is_none() => address.to_string(),
        (ServerAddress::Tcp(address), None) => address.to_string(),
        _ => host.to_owned(),
    };
    let origin = format!("{scheme}://{authority}").parse();
    origin.map_err(|error| format!("{authority:?} is not a valid authority: {error}"))
}

fn kept_alive(endpoint: Endpoint, settings: &Xds) -> Endpoint {
    if settings.keepalive_interval.is_zero() {
        return endpoint;
    }
    endpoint
        .http2_keep_alive_interval(settings.keepalive_interval)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
}

/// TLS with these files, read for each connection, so that certificates which were replaced meanwhile count.
///
/// # Errors
/// All that is wrong with them, each with its variable and its path.
fn load_tls(files: &ClientTls) -> Result<Arc<ClientConfig>, String> {
    let mut config = tls::load(files, &WORDS).map_err(|faults| faults.join("; "))?.config;
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
        for (variable, name) in [(WORDS.ca, "ca"), (WORDS.certificate, "cert"), (WORDS.key, "key")] {
            assert!(error.contains(&format!("{variable}=/nowhere/{name}.pem: accepted is ")), "{error}");
        }
    }
}
