//! TLS to the collector: reads the certificates and shakes hands.

use std::{fs, io, path::Path, sync::Arc};

use http::Uri;
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};

use crate::settings::spans::{CollectorTls, NamedPath, Protocol};

/// What a handshake is made with.
pub(super) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// What is wrong with them, each with its variable and its path.
    pub(super) fn load(
        files: &CollectorTls,
        endpoint: &Uri,
        protocol: Protocol,
    ) -> Result<Self, Vec<String>> {
        let roots = files.authorities.as_ref().map_or_else(trusted_by_the_system, trusted);
        let identity =
            files.identity.as_ref().map(|[certificate, key]| identity(certificate, key)).transpose();
        let (roots, identity) = match (roots, identity) {
            (Ok(roots), Ok(identity)) => (roots, identity),
            (roots, identity) => return Err([roots.err(), identity.err()].into_iter().flatten().collect()),
        };
        let told = |error: &dyn ToString| vec![format!("TLS to the collector: {}", error.to_string())];
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| told(&error))?
            .with_root_certificates(roots);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(|error| told(&error))?,
        };
        config.alpn_protocols = vec![match protocol {
            Protocol::Http => b"http/1.1".to_vec(),
            Protocol::Grpc => b"h2".to_vec(),
        }];
        let host = endpoint.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host).map_err(|error| told(&error))?;
        Ok(Self { connector: Arc::new(config).into(), name })
    }

    pub(super) async fn shake(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.connector.connect(self.name.clone(), stream).await
    }
}

fn trusted_by_the_system() -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(
            "OTEL_EXPORTER_OTLP_CERTIFICATE: accepted is a PEM file with the certificates to trust; \
             without it those of the system count, and it has none"
                .to_owned(),
        );
    }
    Ok(roots)
}

/// These certificates in place of the system's, as in the Go service.
fn trusted(file: &NamedPath) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|error| refusal(file, "certificates to trust", &error.to_string()))?;
    }
    Ok(roots)
}

/// A certificate with its chain, and its key.
type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn identity(certificate: &NamedPath, key: &NamedPath) -> Result<Identity, String> {
    let chain = certificates(certificate)?;
    let text = read(key, "a private key")?;
    // The error is not told: it might quote a part of the key.
    let key = PrivateKeyDer::from_pem_slice(&text)
        .map_err(|_| refusal(key, "an unencrypted private key", "it holds none"))?;
    Ok((chain, key))
}

fn certificates(file: &NamedPath) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = read(file, "certificates")?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if found.is_empty() => Err(refusal(file, "certificates", "it holds none")),
        Ok(found) => Ok(found),
        Err(error) => Err(refusal(file, "certificates", &format!("it is broken: {error}"))),
    }
}

fn read(file: &NamedPath, wanted: &str) -> Result<Vec<u8>, String> {
    fs::read(Path::new(&file.path)).map_err(|error| refusal(file, wanted, &error.to_string()))
}

fn refusal(file: &NamedPath, wanted: &str, why: &str) -> String {
    format!("{}={}: accepted is a PEM file with {wanted}; {why}", file.variable, file.path.display())
}
