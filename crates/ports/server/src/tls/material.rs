//! Converts the contents of the files to a configuration of rustls, or lists all of their problems.
//!
//! A pure function. It accepts what the Go service accepts: several certificates in a file, other blocks between them, a
//! key in any of three formats.

use std::{path::Path, sync::Arc};

use tokio_rustls::rustls::{
    RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::CertificateDer,
    server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::{CertifiedKey, SigningKey, SingleCertAndKey},
};
use x509_cert::{
    Certificate,
    der::{Decode as _, Encode as _},
    time::Validity,
};

use super::{Contents, Files, clients::Named, handshake::HTTP_2};
use crate::{tls::settings::ClientName, tls::settings::GrpcTls};
use net::tls::pem;

pub(super) struct Material {
    pub(super) config: Arc<ServerConfig>,
    pub(super) validity: Validity,
}

/// The certificate chain to send, and properties of its first certificate.
struct Chain {
    sent: Vec<CertificateDer<'static>>,
    public_key: Vec<u8>,
    validity: Validity,
}

impl Material {
    pub(super) fn new(options: &GrpcTls, files: &Files) -> Result<Self, Vec<String>> {
        let provider = Arc::new(ring::default_provider());
        let mut problems = Vec::new();
        let mut report = |variable: &str, path: &Path, problem: String| {
            problems.push(format!("{variable}={}: {problem}", path.display()));
        };
        let chain = chain(&files.certificate)
            .map_err(|problem| report("GRPC_SERVER_TLS_CERT", &options.certificate, problem));
        let key = bytes(&files.key)
            .and_then(|bytes| pem::key(bytes, &provider))
            .and_then(|key| match &chain {
                Ok(chain) if !belong_together(chain, &*key) => Err(format!(
                    "is not the key of the certificate in GRPC_SERVER_TLS_CERT={}",
                    options.certificate.display()
                )),
                _ => Ok(key),
            })
            .map_err(|problem| report("GRPC_SERVER_TLS_KEY", &options.key, problem));
        let clients = match (&options.clients, &files.authorities) {
            (Some(clients), Some(authorities)) => verifier(authorities, clients.name.as_ref(), &provider)
                .map(Some)
                .map_err(|problem| report("GRPC_CLIENT_TLS_CACERT", &clients.authorities, problem)),
            _ => Ok(None),
        };
        let (Ok(chain), Ok(key), Ok(clients)) = (chain, key, clients) else { return Err(problems) };
        let config = config(chain.sent, key, clients, provider).map_err(|problem| vec![problem])?;
        Ok(Self { config: Arc::new(config), validity: chain.validity })
    }
}

fn config(
    chain: Vec<CertificateDer<'static>>,
    key: Arc<dyn SigningKey>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
    provider: Arc<CryptoProvider>,
) -> Result<ServerConfig, String> {
    let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = versions.map_err(|error| format!("unusable TLS configuration: {error}"))?;
    let builder = match clients {
        Some(clients) => builder.with_client_cert_verifier(clients),
        None => builder.with_no_client_auth(),
    };
    let mut config =
        builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(CertifiedKey::new(chain, key))));
    config.alpn_protocols = vec![HTTP_2.to_vec()];
    // Envoy's connections are long-lived, so resumption saves nothing, and a resumed session skips the verification of the
    // certificate.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn chain(contents: &Contents) -> Result<Chain, String> {
    let sent = pem::chain(bytes(contents)?)?;
    let unreadable = |error| format!("contains a certificate that cannot be read: {error}");
    let first = sent.first().ok_or("contains no certificate")?;
    let certificate = Certificate::from_der(first).map_err(unreadable)?.tbs_certificate;
    let public_key = certificate.subject_public_key_info.to_der().map_err(unreadable)?;
    Ok(Chain { sent, public_key, validity: certificate.validity })
}

/// Not by rustls, which cannot parse X.509 version 1.
fn belong_together(chain: &Chain, key: &dyn SigningKey) -> bool {
    key.public_key().is_none_or(|public_key| public_key.as_ref() == chain.public_key)
}

fn verifier(
    contents: &Contents,
    name: Option<&ClientName>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    // As in the Go service, one valid certificate is enough.
    let (added, _) = roots.add_parsable_certificates(pem::certificates(bytes(contents)?)?);
    if added == 0 {
        return Err("contains no CA certificate: expected a BEGIN CERTIFICATE block".to_owned());
    }
    let signed = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    let signed = signed.map_err(|error| format!("cannot be used: {error}"))?;
    Ok(match name {
        Some(name) => Arc::new(Named { signed, name: name.clone() }),
        None => signed,
    })
}

fn bytes(contents: &Contents) -> Result<&[u8], String> {
    contents.as_deref().map_err(Clone::clone)
}
