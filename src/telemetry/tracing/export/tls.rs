//! TLS to the collector: what its variables are called, what its settings ask of `tls`, and the handshake.

use std::{io, sync::Arc};

use http::Uri;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream, rustls::pki_types::ServerName};

use crate::{
    net::tls::{self, Words},
    settings::spans::{CollectorTls, Protocol},
};

/// What is said of TLS to a collector, where the variables for traces alone are not set.
const WORDS: Words = Words {
    ca: "OTEL_EXPORTER_OTLP_CERTIFICATE",
    certificate: "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
    key: "OTEL_EXPORTER_OTLP_CLIENT_KEY",
    other_host: "its certificate must hold the host of OTEL_EXPORTER_OTLP_ENDPOINT",
    plain_text: "if its port speaks plain text, write http:// for https:// in OTEL_EXPORTER_OTLP_ENDPOINT",
};

/// What a handshake is made with.
pub(super) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
    words: Words,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// What is wrong with them, each with its variable and its path.
    pub(super) fn load(tls: &CollectorTls, endpoint: &Uri, protocol: Protocol) -> Result<Self, Vec<String>> {
        let [ca, certificate, key] = tls.variables;
        let words = Words { ca, certificate, key, ..WORDS };
        let mut config = tls::load(&tls.files, &words)?.config;
        config.alpn_protocols = vec![match protocol {
            Protocol::Http => b"http/1.1".to_vec(),
            Protocol::Grpc => b"h2".to_vec(),
        }];
        let name = tls::server_name(endpoint.host().unwrap_or_default());
        let name = name.map_err(|why| vec![format!("TLS to the collector: {why}")])?;
        Ok(Self { connector: Arc::new(config).into(), name, words })
    }

    pub(super) async fn shake(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let shaken = self.connector.connect(self.name.clone(), stream).await;
        shaken.map_err(|error| match tls::explain(&error, &self.words) {
            Some(why) => io::Error::other(format!("the TLS handshake failed: {why}")),
            None => error,
        })
    }
}
