//! TLS to other servers: reads the files, selects the trusted CAs, and explains failed handshakes.
//!
//! Clients of control planes, stores and collectors, and `tollgate request`, call [`load`] and do the handshake
//! themselves; [`Hints`] has the names of their variables or options, and advice. TLS on the gRPC port is in `server`,
//! which reads its files with [`pem`] too.

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientTls {
    /// CAs; they replace those of the system.
    pub ca: Option<PathBuf>,
    /// `TLS_TRUST_SYSTEM_CAS`: the system's CAs are trusted too.
    pub trust_system: bool,
    /// The client certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    pub skip_hostname: bool,
}

pub mod pem;
#[cfg(test)]
mod tests;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, InconsistentKeys, RootCertStore,
    SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, ServerName, UnixTime},
    sign::{CertifiedKey, SingleCertAndKey},
};

/// The variables or options that set up TLS, and advice, for errors.
#[derive(Clone, Copy, Debug)]
pub struct Hints {
    pub ca: &'static str,
    pub certificate: &'static str,
    pub key: &'static str,
    /// The advice for a certificate of another host.
    pub other_host: &'static str,
    pub plain_text: &'static str,
}

/// The configuration of handshakes, without ALPN protocols.
pub fn load(files: &ClientTls, hints: &Hints) -> Result<ClientConfig, Vec<String>> {
    let provider = Arc::new(ring::default_provider());
    let trusted = trusted(files, hints).map_err(|error| vec![error]);
    let identity = files.identity.as_ref().map(|files| identity(files, &provider, hints)).transpose();
    let (roots, identity) = match (trusted, identity) {
        (Ok(trusted), Ok(identity)) => (trusted, identity),
        (trusted, identity) => {
            return Err([trusted.err(), identity.err()].into_iter().flatten().flatten().collect());
        }
    };
    let config = config(roots, identity, files.skip_hostname, provider);
    config.map_err(|error| vec![format!("cannot configure TLS: {error}")])
}

fn config(
    roots: RootCertStore,
    certified: Option<CertifiedKey>,
    any_host: bool,
    provider: Arc<CryptoProvider>,
) -> Result<ClientConfig, String> {
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let verifier = verifier.build().map_err(|error| error.to_string())?;
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    let builder = if any_host {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyHost(verifier)))
    } else {
        builder.with_webpki_verifier(verifier)
    };
    Ok(match certified {
        None => builder.with_no_client_auth(),
        Some(certified) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified))),
    })
}

/// The trusted roots.
fn trusted(files: &ClientTls, hints: &Hints) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let mut why = String::new();
    if files.ca.is_none() || files.trust_system {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
    }
    let expected = "a PEM file with the certificates to trust";
    match &files.ca {
        Some(path) => {
            read(hints.ca, path, expected, |text| add(&mut roots, text))?;
            Ok(roots)
        }
        None if roots.is_empty() => Err(format!(
            "{}: expected {expected}; without it the CAs of the system are trusted, and it has none{why}",
            hints.ca
        )),
        None => Ok(roots),
    }
}

fn add(roots: &mut RootCertStore, text: &[u8]) -> Result<(), String> {
    for (certificate, number) in pem::chain(text)?.into_iter().zip(1..) {
        let added = roots.add(certificate);
        added.map_err(|error| format!("has an invalid certificate {number}: {error}"))?;
    }
    Ok(())
}

fn identity(
    (certificate, key): &(PathBuf, PathBuf),
    provider: &CryptoProvider,
    hints: &Hints,
) -> Result<CertifiedKey, Vec<String>> {
    let chain = read(hints.certificate, certificate, "a PEM file with the client certificate", pem::chain);
    let expected = "a PEM file with an unencrypted private key";
    let private = read(hints.key, key, expected, |text| pem::key(text, provider));
    let (chain, private) = match (chain, private) {
        (Ok(chain), Ok(private)) => (chain, private),
        (chain, private) => return Err([chain.err(), private.err()].into_iter().flatten().collect()),
    };
    let certified = CertifiedKey::new(chain, private);
    match certified.keys_match() {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        Err(error) => {
            let expected = format!("the key of the certificate in {}", hints.certificate);
            Err(vec![invalid(hints.key, key, &expected, &error.to_string())])
        }
    }
}

fn read<T>(
    name: &str,
    path: &Path,
    expected: &str,
    parse: impl FnOnce(&[u8]) -> Result<T, String>,
) -> Result<T, String> {
    let read = pem::read(path).and_then(|text| parse(&text));
    read.map_err(|why| invalid(name, path, expected, &format!("it {why}")))
}

fn invalid(name: &str, path: &Path, expected: &str, why: &str) -> String {
    format!("{name}={}: expected {expected}; {why}", path.display())
}

/// The name that the certificate of a host must have.
pub fn server_name(host: &str) -> Result<ServerName<'static>, String> {
    // The brackets of an address belong to a URL. Certificates have neither zones nor trailing dots.
    let bare = host.trim_matches(['[', ']']);
    let bare = bare.split('%').next().unwrap_or(bare).trim_end_matches('.');
    ServerName::try_from(bare.to_owned()).map_err(|_| format!("{bare:?} is not a valid server name"))
}

/// Why TLS failed, and what to do about it; `None` for another error.
pub fn explain(error: &io::Error, hints: &Hints) -> Option<String> {
    use tokio_rustls::rustls::AlertDescription::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked,
        CertificateUnknown, UnknownCA, UnsupportedCertificate,
    };
    let Hints { ca, certificate, key, other_host, plain_text } = hints;
    Some(match error.get_ref()?.downcast_ref::<Error>()? {
        // An authority that was recreated under its old name appears as a bad signature.
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            format!("certificate signed by an unknown CA; the file of {ca} must contain the CA")
        }
        Error::InvalidCertificate(why) if is_about_the_name(why) => format!("{why}; {other_host}"),
        Error::InvalidCertificate(why) => format!("invalid certificate: {why}"),
        Error::AlertReceived(
            alert @ (AccessDenied
            | BadCertificate
            | CertificateExpired
            | CertificateRequired
            | CertificateRevoked
            | CertificateUnknown
            | UnknownCA
            | UnsupportedCertificate),
        ) => format!("the server rejected the client certificate ({alert:?}); check {certificate} and {key}"),
        // In TLS 1.2, OpenSSL sends no specific alert to a client without a certificate.
        Error::AlertReceived(alert) => {
            format!(
                "the server sent {alert:?}; if it requires a client certificate, set {certificate} and {key}"
            )
        }
        Error::InvalidMessage(_) => format!("the server does not use TLS; {plain_text}"),
        error => error.to_string(),
    })
}

/// Accepts a certificate of another host that is valid otherwise: rustls checks the name last, so that an invalid name
/// means that all else is valid.
#[derive(Debug)]
struct AnyHost(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyHost {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            Err(Error::InvalidCertificate(error)) if is_about_the_name(&error) => {
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

fn is_about_the_name(error: &CertificateError) -> bool {
    matches!(error, CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. })
}
