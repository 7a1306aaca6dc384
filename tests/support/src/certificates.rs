//! Certificates for a test, as files: a CA, a server certificate and a client certificate.

use std::{fs, path::PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

use super::{ports::free_port, redis::Env};

/// A CA and the certificates that it signed. The files are removed when this is dropped.
pub struct Certificates {
    dir: TempDir,
}

impl Certificates {
    /// With a server certificate for this host name or IP address.
    pub fn for_host(host: &str) -> Self {
        let dir =
            tempfile::Builder::new().prefix("tollgate-tls-").tempdir().expect("cannot create a directory");
        let made = Self { dir };
        let mut authority = CertificateParams::default();
        authority.distinguished_name.push(DnType::CommonName, "authority");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, key()).expect("cannot create a CA");
        fs::write(made.path("ca.pem"), authority.pem()).expect("cannot write a certificate");
        for (name, host) in [("server", host), ("client", "tollgate.test")] {
            let key = key();
            let mut params = CertificateParams::new([host.to_owned()]).expect("invalid host");
            // A certificate with its issuer's name would look self-signed.
            params.distinguished_name.push(DnType::CommonName, name);
            let signed = params.signed_by(&key, &authority).expect("cannot sign");
            fs::write(made.path(&format!("{name}.pem")), signed.pem()).expect("cannot write a certificate");
            fs::write(made.path(&format!("{name}.key")), key.serialize_pem()).expect("cannot write a key");
        }
        made
    }

    /// The path of `ca.pem`, `server.pem`, `server.key`, `client.pem` or `client.key`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The arguments that make redis-server listen with TLS too, and the port.
    pub fn redis_args(&self, asks_for_a_certificate: bool) -> (u16, Vec<String>) {
        let port = free_port();
        let file = |name: &str| self.path(name).display().to_string();
        let args = [
            ("--tls-port", port.to_string()),
            ("--tls-cert-file", file("server.pem")),
            ("--tls-key-file", file("server.key")),
            ("--tls-ca-cert-file", file("ca.pem")),
            ("--tls-auth-clients", if asks_for_a_certificate { "yes" } else { "no" }.to_owned()),
        ];
        (port, args.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect())
    }

    /// The settings to trust the CA.
    pub fn trusted(&self) -> Env {
        vec![("REDIS_TLS_CACERT", self.path("ca.pem").display().to_string())]
    }

    /// The settings to present the client certificate.
    pub fn shown(&self) -> Env {
        vec![
            ("REDIS_TLS_CLIENT_CERT", self.path("client.pem").display().to_string()),
            ("REDIS_TLS_CLIENT_KEY", self.path("client.key").display().to_string()),
        ]
    }
}

fn key() -> KeyPair {
    KeyPair::generate().expect("cannot create a key")
}
