//! TLS to the gRPC port: CAs, certificates, and clients, ours and `openssl s_client`.

use std::{
    fs, io,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use http::HeaderMap;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    runtime::Builder,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
    },
};

use super::{
    client::request,
    raw::{Exchange, RawClient, framed},
    server::Setup,
};

/// A CA.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

/// The TLS files of a service; removed when dropped.
pub struct Files {
    dir: TempDir,
}

/// A client that trusts CAs, with or without a certificate.
#[derive(Clone)]
pub struct TlsClient {
    connector: TlsConnector,
}

impl Authority {
    /// A new CA with this name.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self { issuer: CertifiedIssuer::self_signed(params, key()).expect("cannot create a CA") }
    }

    /// Its own certificate and key.
    pub fn own(&self) -> Pair {
        Pair { certificate: self.pem(), key: self.issuer.key().serialize_pem() }
    }

    /// Its certificate.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for these names and addresses.
    pub fn sign(&self, names: &[&str]) -> Pair {
        self.sign_with(names, |_| ())
    }

    /// As [`sign`](Self::sign), with other parameters.
    pub fn sign_with(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Pair {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("invalid names");
        change(&mut params);
        let key = key();
        let certificate = params.signed_by(&key, &self.issuer).expect("cannot sign");
        Pair { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// A certificate for a service on this machine.
    pub fn server(&self) -> Pair {
        self.sign(&["localhost", "127.0.0.1"])
    }
}

impl Pair {
    /// The certificate as DER.
    pub fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes()).expect("the PEM is valid")
    }
}

impl Files {
    /// A directory with this certificate and its key.
    pub fn new(pair: &Pair) -> Self {
        let files = Self::empty();
        files.put_pair("tls", pair);
        files
    }

    pub fn empty() -> Self {
        let dir = tempfile::Builder::new().prefix("tollgate-tls-").tempdir();
        Self { dir: dir.expect("cannot create a directory") }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file atomically.
    pub fn put(&self, name: &str, text: &str) -> PathBuf {
        let whole = self.path("being-written");
        fs::write(&whole, text).expect("cannot write a file");
        fs::rename(&whole, self.path(name)).expect("cannot rename a file");
        self.path(name)
    }

    /// Writes `name.crt` and `name.key` atomically.
    pub fn put_pair(&self, name: &str, pair: &Pair) {
        self.put(&format!("{name}.crt"), &pair.certificate);
        self.put(&format!("{name}.key"), &pair.key);
    }

    /// A service that serves `tls.crt` with `tls.key`.
    pub fn setup(&self) -> Setup {
        let file = |name: &str| self.path(name).display().to_string();
        Setup::new()
            .env("GRPC_SERVER_USE_TLS", "true")
            .env("GRPC_SERVER_TLS_CERT", &file("tls.crt"))
            .env("GRPC_SERVER_TLS_KEY", &file("tls.key"))
    }

    /// The same, which requires client certificates of this CA.
    pub fn mutual(&self, authority: &Authority) -> Setup {
        let path = self.put("ca.crt", &authority.pem());
        self.setup().env("GRPC_CLIENT_TLS_CACERT", &path.display().to_string())
    }
}

impl TlsClient {
    /// A client that trusts these CAs and presents this certificate.
    pub fn new(trusted: &[&Authority], shown: Option<&Pair>) -> Self {
        let mut roots = RootCertStore::empty();
        for authority in trusted {
            roots.add(authority.issuer.der().clone()).expect("invalid CA");
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("unsupported TLS versions")
            .with_root_certificates(roots);
        let mut config = match shown {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("the PEM is valid");
                builder
                    .with_client_auth_cert(vec![pair.der()], key)
                    .expect("certificate and key do not match")
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Self { connector: TlsConnector::from(Arc::new(config)) }
    }

    /// The same, without ALPN.
    pub fn without_alpn(&self) -> Self {
        let mut config = ClientConfig::clone(self.connector.config());
        config.alpn_protocols.clear();
        Self { connector: TlsConnector::from(Arc::new(config)) }
    }

    /// TLS on an open connection.
    pub async fn shake<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<TlsStream<S>> {
        let name = ServerName::from(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST));
        self.connector.connect(name, stream).await
    }

    /// HTTP/2 over TLS to a port of 127.0.0.1.
    pub async fn connect(&self, port: u16) -> Result<RawClient, String> {
        let connect = async {
            let stream = TcpStream::connect(("127.0.0.1", port)).await?;
            stream.set_nodelay(true)?;
            self.shake(stream).await
        };
        RawClient::over(connect.await.map_err(|error| error.to_string())?).await
    }

    /// Sends a request for `a=v` in the domain `d` on a new connection.
    pub fn ask(&self, port: u16) -> Result<(), String> {
        alone(async { ask(&mut self.connect(port).await?).await })
    }

    /// The certificate of a port.
    pub fn shown(&self, port: u16) -> Result<CertificateDer<'static>, String> {
        alone(async {
            let stream = TcpStream::connect(("127.0.0.1", port)).await.map_err(|error| error.to_string())?;
            let stream = self.shake(stream).await.map_err(|error| error.to_string())?;
            let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
            shown.first().map(|shown| shown.clone().into_owned()).ok_or_else(|| "no certificate".to_owned())
        })
    }
}

/// Sends a request for `a=v` in the domain `d`.
pub async fn ask(client: &mut RawClient) -> Result<(), String> {
    match client.exchange(framed(&request("d", &[&[("a", "v")]])), &HeaderMap::new()).await {
        Exchange::Answered(status) if status.code == 0 => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

/// Runs a future to its end.
pub fn alone<F: Future>(future: F) -> F::Output {
    Builder::new_current_thread().enable_all().build().expect("cannot create a runtime").block_on(future)
}

/// The output of `openssl s_client` for a port, with these arguments, after the server has replied.
pub fn s_client(port: u16, args: &[&str]) -> String {
    let output = Command::new("openssl")
        .args(["s_client", "-connect", &format!("127.0.0.1:{port}"), "-alpn", "h2", "-ign_eof"])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("openssl is missing: tests/run installs it");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

fn key() -> KeyPair {
    KeyPair::generate().expect("cannot create a key")
}
