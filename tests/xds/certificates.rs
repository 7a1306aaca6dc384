//! Certificates in files: an authority, and what it signs.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// Who signs.
pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "the authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Writes its own certificate.
    pub(super) fn write(&self, path: &Path) {
        fs::write(path, self.0.pem()).unwrap();
    }

    /// Writes a certificate for a name, and its key.
    pub(super) fn sign(&self, name: &str, [certificate, key]: &[PathBuf; 2]) {
        let own_key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        fs::write(certificate, params.signed_by(&own_key, &self.0).unwrap().pem()).unwrap();
        fs::write(key, own_key.serialize_pem()).unwrap();
    }
}
