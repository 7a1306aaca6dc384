//! An HTTP client for the few requests of credentials: a connection each, and everything bounded.

use std::{future::Future, io, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, Uri, header::HOST};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio_rustls::TlsConnector;

use net::{
    edges::{Edges, Transport},
    tls::{self, ClientTls, Hints},
};

/// The time limit of all requests for one set of credentials.
const LIMIT: Duration = Duration::from_secs(5);

/// The maximum size of a reply: that of STS with the longest session token has some 4 KB.
const MAX_REPLY: usize = 64 << 10;

const HINTS: Hints = Hints {
    ca: "the system's CAs",
    certificate: "none",
    key: "none",
    other_host: "see AWS_ENDPOINT_URL_STS and AWS_CONTAINER_CREDENTIALS_FULL_URI",
    plain_text: "use http://",
};

pub(crate) struct Client {
    tls: Option<TlsConnector>,
    edges: Edges,
}

/// The status and the text of a reply.
pub(crate) type Reply = (StatusCode, String);

impl Client {
    pub(crate) fn new(uses_tls: bool, edges: &Edges) -> Result<Self, Vec<String>> {
        let config = uses_tls.then(|| tls::load(&ClientTls::default(), &HINTS)).transpose()?;
        let tls = config.map(|config| TlsConnector::from(Arc::new(config)));
        Ok(Self { tls, edges: edges.clone() })
    }

    pub(crate) async fn within_limit<T>(
        &self,
        work: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        let done = self.edges.timer.timeout(LIMIT, work).await;
        done.unwrap_or_else(|| Err(format!("no answer within {LIMIT:?}; check the network")))
    }

    /// Sends a request to the server of its URI. The error names the server.
    pub(crate) async fn send(&self, mut request: Request<Full<Bytes>>) -> Result<Reply, String> {
        let uri = request.uri().clone();
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        let host = HeaderValue::from_str(&authority).map_err(|error| error.to_string())?;
        request.headers_mut().insert(HOST, host);
        // A server is asked for a path.
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() = Uri::try_from(path).map_err(|error| error.to_string())?;
        let sent = async { self.exchange(self.connect(&uri).await?, request).await };
        sent.await.map_err(|error| {
            let why = tls::explain(&error, &HINTS).unwrap_or_else(|| error.to_string());
            format!("{authority}: {why}")
        })
    }

    async fn connect(&self, uri: &Uri) -> io::Result<Transport> {
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let tls = self.tls.as_ref().filter(|_| uri.scheme_str() == Some("https"));
        let port = uri.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
        let mut last = io::Error::other("the name has no address");
        for address in self.edges.dial.resolve(host, port).await? {
            match (self.edges.dial.connect(address).await, tls) {
                (Ok(socket), None) => return Ok(socket),
                (Ok(socket), Some(tls)) => {
                    let name = tls::server_name(host).map_err(io::Error::other)?;
                    return Ok(Box::new(tls.connect(name, socket).await?));
                }
                (Err(error), _) => last = error,
            }
        }
        Err(last)
    }

    async fn exchange(&self, socket: Transport, request: Request<Full<Bytes>>) -> io::Result<Reply> {
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(socket)).await.map_err(io::Error::other)?;
        self.edges.start(async move {
            // The request has its error.
            let _ = connection.await;
        });
        let reply = sender.send_request(request).await.map_err(io::Error::other)?;
        let status = reply.status();
        let body = Limited::new(reply.into_body(), MAX_REPLY).collect().await.map_err(io::Error::other)?;
        Ok((status, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
    }
}
