//! Verifies client certificates: signed by a CA, and issued to a name.
//!
//! rustls verifies names of servers only, so [`Named`] adds that check to its verifier of signatures.

use std::sync::Arc;

use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::{danger::HandshakeSignatureValid, verify_server_name},
    pki_types::{CertificateDer, UnixTime},
    server::{
        ParsedCertificate,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use x509_cert::{
    Certificate,
    der::Decode as _,
    ext::pkix::{SubjectAltName, name::GeneralName},
};

use crate::tls::settings::ClientName;

/// Requires that `signed` accepts a certificate and that it is issued to `name`.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) signed: Arc<dyn ClientCertVerifier>,
    pub(super) name: ClientName,
}

fn names(certificate: &CertificateDer<'_>) -> Result<Vec<GeneralName>, Error> {
    let unreadable = |_| Error::InvalidCertificate(CertificateError::BadEncoding);
    let certificate = Certificate::from_der(certificate).map_err(unreadable)?.tbs_certificate;
    let names = certificate.get::<SubjectAltName>().map_err(unreadable)?;
    Ok(names.map(|(_, names)| names.0).unwrap_or_default())
}

fn has_uri(names: &[GeneralName], wanted: &str) -> bool {
    let uris: Vec<&str> = names
        .iter()
        .filter_map(|name| match name {
            GeneralName::UniformResourceIdentifier(uri) => Some(uri.as_str()),
            _ => None,
        })
        .collect();
    // A SPIFFE certificate names one workload; one with several URIs must be rejected.
    let is_ambiguous = wanted.starts_with("spiffe://") && uris.len() > 1;
    !is_ambiguous && uris.contains(&wanted)
}

/// The local part is case-sensitive, the host is not.
fn has_email(names: &[GeneralName], wanted: &str) -> bool {
    let is_wanted = |address: &str| match (address.split_once('@'), wanted.split_once('@')) {
        (Some((name, host)), Some((local, domain))) => name == local && host.eq_ignore_ascii_case(domain),
        _ => false,
    };
    names.iter().any(|name| matches!(name, GeneralName::Rfc822Name(address) if is_wanted(address.as_str())))
}

impl ClientCertVerifier for Named {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.signed.verify_client_cert(end_entity, intermediates, now)?;
        let is_valid = match &self.name {
            ClientName::Host(name) => {
                return verify_server_name(&ParsedCertificate::try_from(end_entity)?, name)
                    .map(|()| verified);
            }
            ClientName::Uri(uri) => has_uri(&names(end_entity)?, uri),
            ClientName::Email(address) => has_email(&names(end_entity)?, address),
        };
        is_valid.then_some(verified).ok_or(Error::InvalidCertificate(CertificateError::NotValidForName))
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.signed.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}
