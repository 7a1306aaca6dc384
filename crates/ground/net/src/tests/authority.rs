//! A certificate authority, for tests of TLS.
#![allow(clippy::unwrap_used, reason = "for tests only")]

use std::{fs, path::PathBuf, sync::Arc};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use tempfile::TempDir;
use tokio_rustls::rustls::{
    RootCertStore, ServerConfig, crypto::ring, pki_types::PrivatePkcs8KeyDer, server::WebPkiClientVerifier,
};

/// An authority with a directory for its certificates.
pub struct Authority {
    pub(crate) issuer: CertifiedIssuer<'static, KeyPair>,
    pub(crate) directory: TempDir,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Self { issuer, directory: tempfile::tempdir().unwrap() }
    }

    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// The file of the authority.
    pub fn ca(&self) -> PathBuf {
        self.file("ca.pem", &self.issuer.pem())
    }

    pub(crate) fn sign(&self, host: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// The files of a certificate and its key.
    pub fn identity(&self, name: &str) -> (PathBuf, PathBuf) {
        let (certificate, key) = self.sign(name);
        (
            self.file(&format!("{name}.crt"), &certificate.pem()),
            self.file(&format!("{name}.key"), &key.serialize_pem()),
        )
    }

    /// The configuration of a server of this name, which may require a client certificate.
    pub fn server(&self, host: &str, wants_client: bool) -> Arc<ServerConfig> {
        let (certificate, key) = self.sign(host);
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = if wants_client {
            let mut roots = RootCertStore::empty();
            roots.add(self.issuer.der().clone()).unwrap();
            let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(clients.build().unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        Arc::new(builder.with_single_cert(vec![certificate.der().clone()], key).unwrap())
    }
}
