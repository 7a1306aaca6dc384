//! TLS to other servers: reads the files, decides which CAs to trust, and explains why a handshake failed.
//!
//! Clients of control planes, stores and collectors, and `tollgate request`, call [`load`] and do the handshake
//! themselves; [`Words`] has the names of their variables or options. TLS on the gRPC port is in `server`, which reads
//! its files with [`pem`] too.

mod any_host;
pub mod pem;
#[cfg(test)]
pub(crate) mod tests;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio_rustls::rustls::{
    CertificateError, ClientConfig, Error, InconsistentKeys, RootCertStore,
    client::WebPkiServerVerifier,
    crypto::{CryptoProvider, ring},
    pki_types::ServerName,
    sign::{CertifiedKey, SingleCertAndKey},
};

use self::any_host::{AnyHost, is_about_the_name};
use crate::settings::ClientTls;

/// What things are called where TLS is set up: variables, or options of a command.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// Names the authorities to trust.
    pub ca: &'static str,
    /// Names our certificate.
    pub certificate: &'static str,
    /// Names its key.
    pub key: &'static str,
    /// What to do about a certificate that was made out to another host.
    pub other_host: &'static str,
    /// What to do about a server that speaks plain text.
    pub plain_text: &'static str,
}

/// What TLS is spoken with.
pub struct Client {
    /// For a handshake; it names no protocol yet.
    pub config: ClientConfig,
    /// The authorities as PEM, where a file names some.
    pub ca: Option<Vec<u8>>,
    /// The texts of the files of our own certificate and of its key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// Reads the files.
///
/// # Errors
/// All that is wrong with them, each with what names it and its path.
pub fn load(files: &ClientTls, words: &Words) -> Result<Client, Vec<String>> {
    let provider = Arc::new(ring::default_provider());
    let trusted = trusted(files, words).map_err(|fault| vec![fault]);
    let identity = files.identity.as_ref().map(|files| identity(files, &provider, words)).transpose();
    let ((ca, roots), identity) = match (trusted, identity) {
        (Ok(trusted), Ok(identity)) => (trusted, identity),
        (trusted, identity) => {
            return Err([trusted.err(), identity.err()].into_iter().flatten().flatten().collect());
        }
    };
    let (identity, shown) = identity.unzip();
    let config = config(roots, shown, files.skip_hostname, provider);
    let config = config.map_err(|error| vec![format!("TLS cannot be spoken: {error}")])?;
    Ok(Client { config, ca, identity })
}

fn config(
    roots: RootCertStore,
    shown: Option<CertifiedKey>,
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
    Ok(match shown {
        None => builder.with_no_client_auth(),
        Some(shown) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(shown))),
    })
}

/// The authorities, and the text of the file that names some of them.
fn trusted(files: &ClientTls, words: &Words) -> Result<(Option<Vec<u8>>, RootCertStore), String> {
    let mut roots = RootCertStore::empty();
    let mut why = String::new();
    let mut of_system = Vec::new();
    if files.ca.is_none() || files.trust_system {
        let found = rustls_native_certs::load_native_certs();
        if files.ca.is_some() {
            of_system = pem::encode(&found.certs);
        }
        roots.add_parsable_certificates(found.certs);
        why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
    }
    let accepted = "a PEM file with the certificates to trust";
    match &files.ca {
        Some(path) => {
            let (mut text, ()) = read(words.ca, path, accepted, |text| add(&mut roots, text))?;
            text.push(b'\n');
            text.extend(of_system);
            Ok((Some(text), roots))
        }
        None if roots.is_empty() => Err(format!(
            "{}: accepted is {accepted}; without it those of the system count, and it has none{why}",
            words.ca
        )),
        None => Ok((None, roots)),
    }
}

fn add(roots: &mut RootCertStore, text: &[u8]) -> Result<(), String> {
    for (certificate, number) in pem::chain(text)?.into_iter().zip(1..) {
        let added = roots.add(certificate);
        added.map_err(|error| format!("cannot be used for its certificate {number}: {error}"))?;
    }
    Ok(())
}

/// The texts of a certificate and its key, and what they say.
type Identity = ((Vec<u8>, Vec<u8>), CertifiedKey);

fn identity(
    (certificate, key): &(PathBuf, PathBuf),
    provider: &CryptoProvider,
    words: &Words,
) -> Result<Identity, Vec<String>> {
    let chain = read(words.certificate, certificate, "a PEM file with our certificate", pem::chain);
    let accepted = "a PEM file with an unencrypted private key";
    let private = read(words.key, key, accepted, |text| pem::key(text, provider));
    let ((chain_text, chain), (key_text, private)) = match (chain, private) {
        (Ok(chain), Ok(private)) => (chain, private),
        (chain, private) => return Err([chain.err(), private.err()].into_iter().flatten().collect()),
    };
    let shown = CertifiedKey::new(chain, private);
    match shown.keys_match() {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {
            Ok(((chain_text, key_text), shown))
        }
        Err(error) => {
            let accepted = format!("the key of the certificate in {}", words.certificate);
            Err(vec![refusal(words.key, key, &accepted, &error.to_string())])
        }
    }
}

/// The text of a file, and what it says.
fn read<T>(
    name: &str,
    path: &Path,
    accepted: &str,
    parse: impl FnOnce(&[u8]) -> Result<T, String>,
) -> Result<(Vec<u8>, T), String> {
    let read = pem::read(path).and_then(|text| parse(&text).map(|parsed| (text, parsed)));
    read.map_err(|why| refusal(name, path, accepted, &format!("it {why}")))
}

fn refusal(name: &str, path: &Path, accepted: &str, why: &str) -> String {
    format!("{name}={}: accepted is {accepted}; {why}", path.display())
}

/// The name that a host's certificate must hold.
///
/// # Errors
/// When none can.
pub fn server_name(host: &str) -> Result<ServerName<'static>, String> {
    // Brackets are an address's in a URL. Its zone is this machine's own affair, and stands in no certificate; nor
    // does the dot that ends a name in full.
    let bare = host.trim_matches(['[', ']']);
    let bare = bare.split('%').next().unwrap_or(bare).trim_end_matches('.');
    ServerName::try_from(bare.to_owned())
        .map_err(|_| format!("{bare:?} is no name that a certificate can hold"))
}

/// Why TLS failed, and what to do about it; nothing when something else did.
#[must_use]
pub fn explain(error: &io::Error, words: &Words) -> Option<String> {
    use tokio_rustls::rustls::AlertDescription::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked,
        CertificateUnknown, UnknownCA, UnsupportedCertificate,
    };
    let Words { ca, certificate, key, other_host, plain_text } = words;
    Some(match error.get_ref()?.downcast_ref::<Error>()? {
        // An authority that was made anew under its old name shows as a bad signature.
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            format!("nobody whom we trust signed its certificate; who did must be in the file of {ca}")
        }
        Error::InvalidCertificate(why) if is_about_the_name(why) => format!("{why}; {other_host}"),
        Error::InvalidCertificate(why) => format!("its certificate is refused: {why}"),
        Error::AlertReceived(
            alert @ (AccessDenied
            | BadCertificate
            | CertificateExpired
            | CertificateRequired
            | CertificateRevoked
            | CertificateUnknown
            | UnknownCA
            | UnsupportedCertificate),
        ) => format!("it does not take our certificate ({alert:?}); see {certificate} and {key}"),
        // In TLS 1.2, OpenSSL says no more to a client without a certificate.
        Error::AlertReceived(alert) => {
            format!("it broke off ({alert:?}); if it wants a certificate, {certificate} and {key} name it")
        }
        Error::InvalidMessage(_) => format!("what it answers is not TLS; {plain_text}"),
        error => error.to_string(),
    })
}
