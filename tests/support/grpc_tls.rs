//! TLS to the gRPC port: authorities, what they sign, and clients that speak it, ours and `openssl s_client`.

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

/// Who signs certificates.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// The files that a service reads; they go when this is dropped.
pub(crate) struct Files {
    dir: TempDir,
}

/// A client that trusts an authority, with or without a certificate of its own.
#[derive(Clone)]
pub(crate) struct TlsClient {
    connector: TlsConnector,
}

impl Authority {
    /// A new one of this name.
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self { issuer: CertifiedIssuer::self_signed(params, key()).expect("an authority can be made") }
    }

    /// Its own certificate and key.
    pub(crate) fn own(&self) -> Pair {
        Pair { certificate: self.pem(), key: self.issuer.key().serialize_pem() }
    }

    /// Its certificate.
    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for these names and addresses.
    pub(crate) fn sign(&self, names: &[&str]) -> Pair {
        self.sign_with(names, |_| ())
    }

    /// The same, with something else about it.
    pub(crate) fn sign_with(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Pair {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("these are names or addresses");
        change(&mut params);
        let key = key();
        let certificate = params.signed_by(&key, &self.issuer).expect("the authority signs");
        Pair { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// A certificate for a service on this machine.
    pub(crate) fn server(&self) -> Pair {
        self.sign(&["localhost", "127.0.0.1"])
    }
}

impl Pair {
    /// What a client is shown of it.
    pub(crate) fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes()).expect("we wrote it")
    }
}

impl Files {
    /// A directory with this certificate and its key.
    pub(crate) fn new(pair: &Pair) -> Self {
        let files = Self::empty();
        files.put_pair("tls", pair);
        files
    }

    pub(crate) fn empty() -> Self {
        let dir = tempfile::Builder::new().prefix("tollgate-tls-").tempdir();
        Self { dir: dir.expect("a directory can be made") }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Puts a file in place, whole at once.
    pub(crate) fn put(&self, name: &str, text: &str) -> PathBuf {
        let whole = self.path("being-written");
        fs::write(&whole, text).expect("a file can be written");
        fs::rename(&whole, self.path(name)).expect("a file can be put in place");
        self.path(name)
    }

    /// Puts `name.crt` and `name.key` in place.
    pub(crate) fn put_pair(&self, name: &str, pair: &Pair) {
        self.put(&format!("{name}.crt"), &pair.certificate);
        self.put(&format!("{name}.key"), &pair.key);
    }

    /// A service that serves `tls.crt` with `tls.key`.
    pub(crate) fn setup(&self) -> Setup {
        let file = |name: &str| self.path(name).display().to_string();
        Setup::new()
            .env("GRPC_SERVER_USE_TLS", "true")
            .env("GRPC_SERVER_TLS_CERT", &file("tls.crt"))
            .env("GRPC_SERVER_TLS_KEY", &file("tls.key"))
    }

    /// The same, for clients that this authority has signed.
    pub(crate) fn mutual(&self, authority: &Authority) -> Setup {
        let path = self.put("ca.crt", &authority.pem());
        self.setup().env("GRPC_CLIENT_TLS_CACERT", &path.display().to_string())
    }
}

impl TlsClient {
    /// A client that trusts these authorities, and shows this certificate.
    pub(crate) fn new(trusted: &[&Authority], shown: Option<&Pair>) -> Self {
        let mut roots = RootCertStore::empty();
        for authority in trusted {
            roots.add(authority.issuer.der().clone()).expect("an authority is one");
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("these are versions that the provider knows")
            .with_root_certificates(roots);
        let mut config = match shown {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("we wrote it");
                builder.with_client_auth_cert(vec![pair.der()], key).expect("they belong together")
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Self { connector: TlsConnector::from(Arc::new(config)) }
    }

    /// The same, which does not say that it will speak HTTP/2.
    pub(crate) fn without_alpn(&self) -> Self {
        let mut config = ClientConfig::clone(self.connector.config());
        config.alpn_protocols.clear();
        Self { connector: TlsConnector::from(Arc::new(config)) }
    }

    /// TLS on a connection that is there already.
    pub(crate) async fn shake<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> io::Result<TlsStream<S>> {
        let name = ServerName::from(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST));
        self.connector.connect(name, stream).await
    }

    /// HTTP/2 over TLS to a port of 127.0.0.1.
    pub(crate) async fn connect(&self, port: u16) -> Result<RawClient, String> {
        let connect = async {
            let stream = TcpStream::connect(("127.0.0.1", port)).await?;
            stream.set_nodelay(true)?;
            self.shake(stream).await
        };
        RawClient::over(connect.await.map_err(|error| error.to_string())?).await
    }

    /// Asks for `a=v` of the domain `d` once, on a connection of its own.
    pub(crate) fn ask(&self, port: u16) -> Result<(), String> {
        alone(async { ask(&mut self.connect(port).await?).await })
    }

    /// The certificate that a port shows.
    pub(crate) fn shown(&self, port: u16) -> Result<CertificateDer<'static>, String> {
        alone(async {
            let stream = TcpStream::connect(("127.0.0.1", port)).await.map_err(|error| error.to_string())?;
            let stream = self.shake(stream).await.map_err(|error| error.to_string())?;
            let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
            shown.first().map(|shown| shown.clone().into_owned()).ok_or_else(|| "no certificate".to_owned())
        })
    }
}

/// Asks for `a=v` of the domain `d`.
pub(crate) async fn ask(client: &mut RawClient) -> Result<(), String> {
    match client.exchange(framed(&request("d", &[&[("a", "v")]])), &HeaderMap::new()).await {
        Exchange::Answered(status) if status.code == 0 => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

/// Runs something that is asynchronous from a plain test.
pub(crate) fn alone<F: Future>(future: F) -> F::Output {
    Builder::new_current_thread().enable_all().build().expect("a runtime can be made").block_on(future)
}

/// What `openssl s_client` says to a port, with these arguments; it waits for what the port has to say.
pub(crate) fn s_client(port: u16, args: &[&str]) -> String {
    let output = Command::new("openssl")
        .args(["s_client", "-connect", &format!("127.0.0.1:{port}"), "-alpn", "h2", "-ign_eof"])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("openssl is installed: tests/run sees to it");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

fn key() -> KeyPair {
    KeyPair::generate().expect("a key can be made")
}
