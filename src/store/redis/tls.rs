//! TLS to a Redis: reads the certificates, decides whom to trust, and says in words why a handshake failed.
//!
//! `wire` shakes hands with it. `topology` takes the same files as they are, for the `redis` crate.

use std::{fs, path::Path, sync::Arc};

use tokio_rustls::rustls::{
    self, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};

use crate::settings::redis::RedisTls;

const CA: &str = "REDIS_TLS_CACERT";
const CERTIFICATE: &str = "REDIS_TLS_CLIENT_CERT";
const KEY: &str = "REDIS_TLS_CLIENT_KEY";

/// What to do about a server that speaks plain text.
pub(super) const WITHOUT: &str =
    "if its port speaks plain text, unset REDIS_TLS (REDIS_PERSECOND_TLS) and write redis:// for rediss://";

/// What to do about a server that speaks TLS.
pub(super) const WITH: &str = "if its port speaks TLS, set REDIS_TLS=true (REDIS_PERSECOND_TLS)";

/// What TLS is spoken with.
pub(super) struct Tls {
    /// For a handshake.
    pub(super) config: Arc<ClientConfig>,
    /// The text of the file of certificates to trust.
    pub(super) ca: Option<Vec<u8>>,
    /// The texts of the files of our own certificate and of its key.
    pub(super) identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// Reads the files.
///
/// # Errors
/// All that is wrong with them, each with its variable and its path.
pub(super) fn load(tls: &RedisTls) -> Result<Tls, Vec<String>> {
    let ca = tls.ca.as_deref().map_or_else(trusted_by_the_system, trusted);
    let identity = tls.identity.as_ref().map(|(certificate, key)| identity(certificate, key)).transpose();
    let ((ca, roots), identity) = match (ca, identity) {
        (Ok(ca), Ok(identity)) => (ca, identity),
        (ca, identity) => return Err([ca.err(), identity.err()].into_iter().flatten().flatten().collect()),
    };
    let (identity, chain) = identity.unzip();
    let config = config(roots, chain, tls).map_err(|error| vec![error])?;
    Ok(Tls { config: Arc::new(config), ca, identity })
}

/// Some certificates to trust, and the text they were read from.
type Trusted = (Option<Vec<u8>>, RootCertStore);

fn trusted(path: &Path) -> Result<Trusted, Vec<String>> {
    let refused = |why: String| vec![refusal(CA, path, "a PEM file with the certificates to trust", &why)];
    let text = fs::read(path).map_err(|error| refused(error.to_string()))?;
    // Beside those of the system, as in the Go service: a server with a public certificate stays trusted.
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let of_the_system = roots.len();
    for (index, certificate) in CertificateDer::pem_slice_iter(&text).enumerate() {
        let place = index + 1;
        let certificate =
            certificate.map_err(|error| refused(format!("its certificate {place} is broken: {error}")))?;
        roots
            .add(certificate)
            .map_err(|error| refused(format!("its certificate {place} cannot be used: {error}")))?;
    }
    if roots.len() == of_the_system {
        return Err(refused("it holds none".to_owned()));
    }
    Ok((Some(text), roots))
}

fn trusted_by_the_system() -> Result<Trusted, Vec<String>> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
        return Err(vec![format!(
            "{CA}: accepted is a PEM file with the certificates to trust; without it those of the system \
             count, and it has none{why}"
        )]);
    }
    Ok((None, roots))
}

/// The texts of a certificate and its key, and what they say.
type Identity = ((Vec<u8>, Vec<u8>), (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>));

fn identity(certificate: &Path, key: &Path) -> Result<Identity, Vec<String>> {
    let chain = fs::read(certificate).map_err(|error| error.to_string()).and_then(|text| {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        match chain {
            Ok(chain) if chain.is_empty() => Err("it holds none".to_owned()),
            Ok(chain) => Ok((text, chain)),
            Err(error) => Err(format!("it is broken: {error}")),
        }
    });
    let private = fs::read(key).map_err(|error| error.to_string()).and_then(|text| {
        // The error is not told: it might quote a part of the key.
        let key = PrivateKeyDer::from_pem_slice(&text).map_err(|_| "it holds none".to_owned())?;
        Ok((text, key))
    });
    let chain =
        chain.map_err(|why| refusal(CERTIFICATE, certificate, "a PEM file with our certificate", &why));
    let private =
        private.map_err(|why| refusal(KEY, key, "a PEM file with an unencrypted private key", &why));
    match (chain, private) {
        (Ok((chain_text, chain)), Ok((key_text, private))) => Ok(((chain_text, key_text), (chain, private))),
        (chain, private) => Err([chain.err(), private.err()].into_iter().flatten().collect()),
    }
}

fn refusal(variable: &str, path: &Path, accepted: &str, why: &str) -> String {
    format!("{variable}={}: accepted is {accepted}; {why}", path.display())
}

fn config(
    roots: RootCertStore,
    identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    tls: &RedisTls,
) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let verifier = verifier(roots, Arc::clone(&provider), tls.skip_hostname)?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS to Redis: {error}"))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let Some((chain, key)) = identity else { return Ok(builder.with_no_client_auth()) };
    builder.with_client_auth_cert(chain, key).map_err(|error| {
        let path = tls.identity.as_ref().map_or(Path::new(""), |(_, key)| key);
        refusal(KEY, path, &format!("the key of the certificate in {CERTIFICATE}"), &error.to_string())
    })
}

fn verifier(
    roots: RootCertStore,
    provider: Arc<CryptoProvider>,
    skip_hostname: bool,
) -> Result<Arc<dyn ServerCertVerifier>, String> {
    let strict = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| format!("{CA}: {error}"))?;
    Ok(if skip_hostname { Arc::new(AnyHost(strict)) } else { strict })
}

/// Takes a certificate that was made out to another host, if it is good otherwise: names are looked at
/// last, so that their being wrong means that all else is right.
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
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            Err(rustls::Error::InvalidCertificate(error)) if is_about_the_name(&error) => {
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
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

fn is_about_the_name(error: &CertificateError) -> bool {
    matches!(error, CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. })
}

/// Why TLS failed, and what to do about it.
pub(super) fn explain(error: &rustls::Error) -> String {
    use rustls::AlertDescription::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked,
        CertificateUnknown, UnknownCA, UnsupportedCertificate,
    };
    match error {
        // An authority that was made anew under its old name shows as a bad signature.
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => {
            format!("nobody whom we trust signed its certificate; {CA} names the certificates to trust")
        }
        rustls::Error::InvalidCertificate(why) if is_about_the_name(why) => {
            format!("{why}; REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true takes a certificate of another host")
        }
        rustls::Error::InvalidCertificate(why) => format!("its certificate is refused: {why}"),
        rustls::Error::AlertReceived(
            alert @ (AccessDenied
            | BadCertificate
            | CertificateExpired
            | CertificateRequired
            | CertificateRevoked
            | CertificateUnknown
            | UnknownCA
            | UnsupportedCertificate),
        ) => format!("it does not take our certificate ({alert:?}); see {CERTIFICATE} and {KEY}"),
        rustls::Error::InvalidMessage(_) => {
            format!("what it answers is not TLS; {WITHOUT}")
        }
        error => error.to_string(),
    }
}

#[cfg(test)]
pub(super) mod tests;
