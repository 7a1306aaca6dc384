//! The kinds of connections: the settings of the service, and those of its clients. TLS 1.2 is Envoy's default for a
//! cluster.

use std::{fs, path::PathBuf, process::Command, slice, sync::Arc};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore, SupportedProtocolVersion,
        crypto::{
            CryptoProvider,
            ring::{self, cipher_suite},
        },
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
        version::{TLS12, TLS13},
    },
};

use super::Result;

type Issuer = CertifiedIssuer<'static, KeyPair>;
type Env = Vec<(&'static str, String)>;

/// One kind of connection.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// The variables of the service.
    pub(crate) env: Env,
    /// `None` for plaintext connections.
    pub(crate) tls: Option<TlsConnector>,
    /// False if it equals another one after the handshake.
    pub(crate) differs_when_open: bool,
}

/// All kinds, plaintext first. Dropping it removes the files.
pub(crate) struct Kinds {
    each: Vec<Kind>,
    _dir: TempDir,
}

impl Kinds {
    /// Creates the certificates.
    pub(crate) fn new() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("tollgate-bench-").tempdir()?;
        let files = Files { dir: dir.path().to_owned(), issuer: authority()? };
        let mut each = vec![Kind { name: "plain", env: Vec::new(), tls: None, differs_when_open: true }];
        let ecdsa = files.serve("ecdsa", &KeyPair::generate()?)?;
        let tls = |name, env: &Env, version, key: Option<&KeyPair>, differs_when_open| -> Result<Kind> {
            Ok(Kind { name, env: env.clone(), tls: Some(files.client(version, key)?), differs_when_open })
        };
        each.push(tls("TLS 1.2", &ecdsa, &TLS12, None, true)?);
        each.push(tls("TLS 1.3", &ecdsa, &TLS13, None, true)?);
        if let Some(key) = rsa_key() {
            let rsa = files.serve("rsa", &KeyPair::from_pem(&key)?)?;
            each.push(tls("TLS 1.2, RSA 2048", &rsa, &TLS12, None, false)?);
        }
        let asks = ("GRPC_CLIENT_TLS_CACERT", files.put("ca.crt", &files.issuer.pem())?);
        let mutual = [ecdsa, vec![asks]].concat();
        each.push(tls("mutual TLS 1.2", &mutual, &TLS12, Some(&KeyPair::generate()?), true)?);
        Ok(Self { each, _dir: dir })
    }

    pub(crate) fn iter(&self) -> slice::Iter<'_, Kind> {
        self.each.iter()
    }
}

struct Files {
    dir: PathBuf,
    issuer: Issuer,
}

impl Files {
    /// The settings to serve with this key.
    fn serve(&self, name: &str, key: &KeyPair) -> Result<Env> {
        let certificate = self.sign("tollgate", "127.0.0.1", key)?;
        Ok(vec![
            ("GRPC_SERVER_USE_TLS", "true".to_owned()),
            ("GRPC_SERVER_TLS_CERT", self.put(&format!("{name}.crt"), &certificate)?),
            ("GRPC_SERVER_TLS_KEY", self.put(&format!("{name}.key"), &key.serialize_pem())?),
        ])
    }

    /// A client that trusts the authority, and sends a certificate if it has a key. It offers the ciphers that Envoy prefers
    /// on a processor with AES, and resumes sessions.
    fn client(
        &self,
        version: &'static SupportedProtocolVersion,
        key: Option<&KeyPair>,
    ) -> Result<TlsConnector> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone())?;
        let cipher_suites = vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        ];
        let provider = CryptoProvider { cipher_suites, ..ring::default_provider() };
        let builder = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[version])?
            .with_root_certificates(roots);
        let mut config = match key {
            None => builder.with_no_client_auth(),
            Some(key) => {
                let certificate = self.sign("envoy", "envoy.test", key)?;
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes())?];
                let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes())?;
                builder.with_client_auth_cert(chain, key)?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(TlsConnector::from(Arc::new(config)))
    }

    /// A certificate for this key, in PEM.
    fn sign(&self, name: &str, host: &str, key: &KeyPair) -> Result<String> {
        let mut params = CertificateParams::new([host.to_owned()])?;
        // A certificate with its issuer's name would count as self-signed.
        params.distinguished_name.push(DnType::CommonName, name);
        Ok(params.signed_by(key, &self.issuer)?.pem())
    }

    /// Writes a file, and returns its path.
    fn put(&self, name: &str, text: &str) -> Result<String> {
        let path = self.dir.join(name);
        fs::write(&path, text)?;
        Ok(path.display().to_string())
    }
}

fn authority() -> Result<Issuer> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "authority");
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}

/// rcgen creates no RSA keys, so `openssl` does, if it is installed.
fn rsa_key() -> Option<String> {
    let mut openssl = Command::new("openssl");
    let made = openssl.args(["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]).output();
    String::from_utf8(made.ok().filter(|made| made.status.success())?.stdout).ok()
}
