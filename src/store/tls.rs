//! TLS to a server of counters: reads the certificates, decides whom to trust, and says in words why a handshake failed.
//!
//! `wire` shakes hands with it. The variables' names and what to do about servers that speak another language
//! are each store's own [`Words`].

use std::{fs, path::Path, sync::Arc};

use tokio_rustls::rustls::{
    self, CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore,
    SignatureScheme,
    client::{
        Resumption, WantsClientCert, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};

use crate::settings::StoreTls;

/// What the variables are called, and what to do about a server that speaks the other language.
pub(super) struct Words {
    /// Whose certificates are read.
    pub(super) store: &'static str,
    /// Names the certificates to trust.
    pub(super) ca: &'static str,
    /// Names our certificate.
    pub(super) certificate: &'static str,
    /// Names its key.
    pub(super) key: &'static str,
    /// Takes a certificate of another host.
    pub(super) skip_hostname: &'static str,
    /// What to do about a server that speaks plain text.
    pub(super) without: &'static str,
    /// What to do about a server that speaks TLS.
    pub(super) with: &'static str,
}

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
pub(super) fn load(tls: &StoreTls, words: &Words) -> Result<Tls, Vec<String>> {
    let ca = tls.ca.as_deref();
    let ca = ca.map_or_else(|| trusted_by_the_system(words), |path| trusted(path, words));
    let identity = tls.identity.as_ref();
    let identity = identity.map(|(certificate, key)| identity_of(certificate, key, words)).transpose();
    let ((ca, roots), identity) = match (ca, identity) {
        (Ok(ca), Ok(identity)) => (ca, identity),
        (ca, identity) => return Err([ca.err(), identity.err()].into_iter().flatten().flatten().collect()),
    };
    let (identity, chain) = identity.unzip();
    let config = config(roots, chain, tls, words).map_err(|error| vec![error])?;
    Ok(Tls { config: Arc::new(config), ca, identity })
}

/// Some certificates to trust, and the text they were read from.
type Trusted = (Option<Vec<u8>>, RootCertStore);

fn trusted(path: &Path, words: &Words) -> Result<Trusted, Vec<String>> {
    let refused =
        |why: String| vec![refusal(words.ca, path, "a PEM file with the certificates to trust", &why)];
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

fn trusted_by_the_system(words: &Words) -> Result<Trusted, Vec<String>> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
        return Err(vec![format!(
            "{}: accepted is a PEM file with the certificates to trust; without it those of the system \
             count, and it has none{why}",
            words.ca
        )]);
    }
    Ok((None, roots))
}

/// The texts of a certificate and its key, and what they say.
type Identity = ((Vec<u8>, Vec<u8>), (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>));

fn identity_of(certificate: &Path, key: &Path, words: &Words) -> Result<Identity, Vec<String>> {
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
        chain.map_err(|why| refusal(words.certificate, certificate, "a PEM file with our certificate", &why));
    let private =
        private.map_err(|why| refusal(words.key, key, "a PEM file with an unencrypted private key", &why));
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
    tls: &StoreTls,
    words: &Words,
) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let verifier = verifier(roots, Arc::clone(&provider), tls.skip_hostname, words)?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS to {}: {error}", words.store))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => with_identity(builder, chain, key, tls, words)?,
    };
    // Connections last, so that there is little to save; and a memcached that wants certificates breaks off
    // every session that is to go on, because it never says whose session it is.
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn with_identity(
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    tls: &StoreTls,
    words: &Words,
) -> Result<ClientConfig, String> {
    builder.with_client_auth_cert(chain, key).map_err(|error| {
        let path = tls.identity.as_ref().map_or(Path::new(""), |(_, key)| key);
        let accepted = format!("the key of the certificate in {}", words.certificate);
        refusal(words.key, path, &accepted, &error.to_string())
    })
}

fn verifier(
    roots: RootCertStore,
    provider: Arc<CryptoProvider>,
    skip_hostname: bool,
    words: &Words,
) -> Result<Arc<dyn ServerCertVerifier>, String> {
    let strict = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| format!("{}: {error}", words.ca))?;
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
pub(super) fn explain(error: &rustls::Error, words: &Words) -> String {
    use rustls::AlertDescription::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked,
        CertificateUnknown, UnknownCA, UnsupportedCertificate,
    };
    match error {
        // An authority that was made anew under its old name shows as a bad signature.
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => {
            let ca = words.ca;
            format!("nobody whom we trust signed its certificate; {ca} names the certificates to trust")
        }
        rustls::Error::InvalidCertificate(why) if is_about_the_name(why) => {
            format!("{why}; {}=true takes a certificate of another host", words.skip_hostname)
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
        ) => {
            let Words { certificate, key, .. } = words;
            format!("it does not take our certificate ({alert:?}); see {certificate} and {key}")
        }
        rustls::Error::InvalidMessage(_) => {
            format!("what it answers is not TLS; {}", words.without)
        }
        error => error.to_string(),
    }
}

#[cfg(test)]
pub(super) mod tests;
