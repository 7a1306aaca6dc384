//! TLS to a control plane: reads the certificates, and says in words why a handshake failed.
//!
//! Called by `connect` for each connection, so that certificates which were replaced meanwhile count.

use std::{fs, io, path::Path, sync::Arc};

use tokio_rustls::rustls::{
    CertificateError, ClientConfig, Error, InvalidMessage, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use crate::settings::groups::XdsTls;

const CA: &str = "CONFIG_GRPC_XDS_SERVER_TLS_CACERT";
const CERTIFICATE: &str = "CONFIG_GRPC_XDS_CLIENT_TLS_CERT";
const KEY: &str = "CONFIG_GRPC_XDS_CLIENT_TLS_KEY";

/// Reads the files.
///
/// # Errors
/// What is wrong with one of them, with its variable and its path.
pub(super) fn load(tls: &XdsTls) -> Result<Arc<ClientConfig>, String> {
    let roots = tls.ca.as_deref().map_or_else(trusted_by_the_system, trusted)?;
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS cannot be spoken: {error}"))?
        .with_root_certificates(roots);
    let mut config = match &tls.identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates(CERTIFICATE, certificate)?;
            builder.with_client_auth_cert(chain, private_key(key)?).map_err(|error| {
                refusal(KEY, key, &format!("the key of the certificate in {CERTIFICATE}"), &error.to_string())
            })?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

fn trusted(path: &Path) -> Result<RootCertStore, String> {
    // Beside those of the system, as in the Go service.
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    for (index, certificate) in certificates(CA, path)?.into_iter().enumerate() {
        roots.add(certificate).map_err(|error| {
            let why = format!("its certificate {} cannot be used: {error}", index + 1);
            refusal(CA, path, "a PEM file with the certificates to trust", &why)
        })?;
    }
    Ok(roots)
}

fn trusted_by_the_system() -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
        return Err(format!(
            "{CA}: accepted is a PEM file with the certificates to trust; without it those of the system \
             count, and it has none{why}"
        ));
    }
    Ok(roots)
}

/// The certificates of a file; one at least.
fn certificates(variable: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let refused = |why: &str| refusal(variable, path, "a PEM file with certificates", why);
    let text = fs::read(path).map_err(|error| refused(&error.to_string()))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if found.is_empty() => Err(refused("it holds none")),
        Ok(found) => Ok(found),
        Err(error) => Err(refused(&format!("it is broken: {error}"))),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let refused = |why: &str| refusal(KEY, path, "a PEM file with an unencrypted private key", why);
    let text = fs::read(path).map_err(|error| refused(&error.to_string()))?;
    // The error is not told: it might quote a part of the key.
    PrivateKeyDer::from_pem_slice(&text).map_err(|_| refused("it holds none"))
}

fn refusal(variable: &str, path: &Path, accepted: &str, why: &str) -> String {
    format!("{variable}={}: accepted is {accepted}; {why}", path.display())
}

/// Why a handshake failed, and what to do.
pub(super) fn in_words(error: &io::Error) -> String {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
    let help = match cause {
        // The signature is bad when the authority was made anew under its old name.
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
            "; who signed its certificate must be in the file of CONFIG_GRPC_XDS_SERVER_TLS_CACERT"
        }
        Some(Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => "; CONFIG_GRPC_XDS_SERVER_TLS_SAN sets the name that its certificate must hold",
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            "; if its port speaks plain text, unset CONFIG_GRPC_XDS_SERVER_USE_TLS"
        }
        Some(Error::AlertReceived(_)) => {
            "; if it wants a certificate, CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_GRPC_XDS_CLIENT_TLS_KEY \
             name it"
        }
        _ => "",
    };
    format!("the TLS handshake failed: {error}{help}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(tls: &XdsTls) -> String {
        load(tls).map(drop).unwrap_err()
    }

    #[test]
    fn files_that_hold_nothing_of_use_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let empty = dir.path().join("empty.pem");
        fs::write(&empty, "nothing\n").unwrap();
        let gone = dir.path().join("gone.pem");
        let told = refused(&XdsTls { ca: Some(empty.clone()), ..XdsTls::default() });
        assert_eq!(
            told,
            format!("{CA}={}: accepted is a PEM file with certificates; it holds none", empty.display())
        );
        let told = refused(&XdsTls { ca: Some(gone.clone()), ..XdsTls::default() });
        assert!(told.starts_with(&format!("{CA}={}: ", gone.display())), "{told}");
    }
}
