//! The commands that use the admin API of a running service, and the HTTP client that they share.
//!
//! Each command has a file of its own: it makes a `Client` of the [`AdminArgs`], calls it, and prints a table, or
//! with `--json` the reply as it came.

pub mod counter;
mod format;
pub mod overrides;
pub mod refusals;
pub mod status;
pub mod top;

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use clap::Args;
use form_urlencoded::Serializer;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    client::conn::http1,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST},
};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{
    net::{TcpStream, UnixStream},
    runtime::{Builder, Runtime},
};

pub use self::{
    counter::CounterArgs, overrides::OverrideArgs, refusals::RefusalsArgs, status::StatusArgs, top::TopArgs,
};
use super::{
    request::{Address, Tls, TlsArgs, root_cause, timeout},
    serve::Environment,
    terminal::{self, Verdict},
};
use crate::{
    net::channel::Socket,
    settings::{ServerAddress, address, vars},
};

/// The longest reply that is read.
const MAX_REPLY: usize = 256 << 20;

/// Where the admin API is, and who asks.
#[derive(Args, Clone, PartialEq, Debug, Default)]
pub struct AdminArgs {
    /// The address of the admin API: http://host:port, https://host:port, host:port or `unix:/path`. By
    /// default the address or socket that `ADMIN_ADDR` or `ADMIN_UDS` sets on this machine.
    #[arg(long, value_name = "URL")]
    pub admin: Option<Address>,
    /// A file whose first token is sent; by default `ADMIN_TOKEN_FILE`, if set.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Print the reply as JSON.
    #[arg(long)]
    pub json: bool,
    /// How long to wait for a reply; by default 5s.
    #[arg(long, value_name = "DURATION", value_parser = timeout)]
    pub timeout: Option<Duration>,
    /// TLS to the service.
    #[command(flatten)]
    pub tls: TlsArgs,
}

/// Runs a command, and prints why it has no verdict.
pub(super) fn run(
    args: &AdminArgs,
    environment: &Environment,
    command: impl FnOnce(&Client) -> Result<Verdict, Failure>,
) -> Verdict {
    Client::new(args, environment).and_then(|client| command(&client)).unwrap_or_else(|failure| {
        terminal::print_error(&failure.to_string());
        Verdict::Unknown
    })
}

/// A client of the admin API. Each call is a connection of its own.
pub(super) struct Client {
    address: Address,
    tls: Option<Tls>,
    token: Option<String>,
    timeout: Duration,
    runtime: Runtime,
}

/// Why a call has no reply, and what to do about it.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Failure {
    what: String,
    advice: Option<String>,
    status: Option<StatusCode>,
}

impl Client {
    /// Reads the token and the TLS files.
    fn new(args: &AdminArgs, environment: &Environment) -> Result<Self, Failure> {
        let address = match &args.admin {
            Some(address) => address.clone(),
            None => of_service(environment)?,
        };
        let tls =
            args.tls.read(&address, b"http/1.1").map_err(|failure| Failure::plain(failure.to_string()))?;
        let set = Some(environment.value(&vars::ADMIN_TOKEN_FILE)).filter(|path| !path.is_empty());
        let file = args.token_file.clone().or_else(|| set.map(PathBuf::from));
        let token = file.as_deref().map(first_token).transpose()?;
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::plain(format!("cannot prepare the call: {error}")))?;
        let timeout = args.timeout.unwrap_or(Duration::from_secs(5));
        Ok(Self { address, tls, token, timeout, runtime })
    }

    /// `GET path` with these parameters, as JSON.
    pub(super) fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, Failure> {
        self.call(Method::GET, &with_query(path, query.iter().copied()), None)
    }

    /// A call with a body of JSON or none, whose reply is JSON.
    pub(super) fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        let body = body.map(|body| ("application/json", Bytes::from(body.to_string())));
        let reply = self.send(method, path, body)?;
        serde_json::from_slice(&reply)
            .map_err(|error| Failure::plain(format!("{}: the reply is not JSON: {error}", self.address())))
    }

    /// A call with a body of a content type or none, and the bytes of its reply.
    pub(super) fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, Bytes)>,
    ) -> Result<Vec<u8>, Failure> {
        let reply = async {
            let response = self.respond(method, path, body).await?;
            self.read(response).await
        };
        let reply = async { tokio::time::timeout(self.timeout, reply).await };
        self.runtime.block_on(reply).unwrap_or_else(|_| {
            Err(Failure {
                what: format!("{}: no reply within {:?}", self.address(), self.timeout),
                advice: Some("--timeout waits longer".to_owned()),
                status: None,
            })
        })
    }

    async fn respond(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, Bytes)>,
    ) -> Result<Response<Incoming>, Failure> {
        let failed = |error: hyper::Error| self.unreachable(&root_cause(&error));
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(self.connect().await?)).await.map_err(failed)?;
        // It ends with its connection, whose errors the sender reports.
        tokio::spawn(async move { drop(connection.await) });
        let host = match &self.address.at {
            ServerAddress::Tcp(at) => at.to_string(),
            ServerAddress::Unix(_) => "localhost".to_owned(),
        };
        let mut request =
            Request::builder().method(method).uri(path).header(HOST, host).header(ACCEPT, "*/*");
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some((content_type, _)) = &body {
            request = request.header(CONTENT_TYPE, *content_type);
        }
        let body = Full::new(body.map(|(_, bytes)| bytes).unwrap_or_default());
        let request =
            request.body(body).map_err(|error| Failure::plain(format!("invalid call {path}: {error}")))?;
        sender.send_request(request).await.map_err(failed)
    }

    async fn connect(&self) -> Result<Socket, Failure> {
        let unreachable = |error: std::io::Error| self.unreachable(&error.to_string());
        match &self.address.at {
            ServerAddress::Tcp(at) => {
                let socket = TcpStream::connect((&*at.host, at.port)).await.map_err(unreachable)?;
                match &self.tls {
                    Some(tls) => tls.secure(socket).await.map_err(|why| self.unreachable(&why)),
                    None => Ok(Box::new(socket)),
                }
            }
            ServerAddress::Unix(path) => Ok(Box::new(UnixStream::connect(path).await.map_err(unreachable)?)),
        }
    }

    /// The body of a reply, or the error that it is.
    async fn read(&self, mut response: Response<Incoming>) -> Result<Vec<u8>, Failure> {
        let status = response.status();
        let mut body = Vec::new();
        while let Some(frame) = response.frame().await {
            let frame = frame.map_err(|error| self.unreachable(&root_cause(&error)))?;
            body.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            if body.len() > MAX_REPLY {
                return Err(Failure::plain(format!(
                    "{}: the reply exceeds {MAX_REPLY} bytes",
                    self.address()
                )));
            }
        }
        if status.is_success() { Ok(body) } else { Err(self.refused(status, &body)) }
    }

    fn refused(&self, status: StatusCode, body: &[u8]) -> Failure {
        let message = serde_json::from_slice::<Value>(body).ok();
        let message = message.as_ref().and_then(|value| value.get("error")?.as_str());
        let text = message.map_or_else(|| String::from_utf8_lossy(body).trim().to_owned(), str::to_owned);
        let advice = match status {
            StatusCode::UNAUTHORIZED => Some("--token-file names the file with the token".to_owned()),
            _ if message.is_none() => Some("is that the admin API? --admin sets another address".to_owned()),
            _ => None,
        };
        Failure { what: format!("{}: {status}: {text}", self.address()), advice, status: Some(status) }
    }

    fn unreachable(&self, why: &str) -> Failure {
        Failure {
            what: format!("cannot reach the admin API at {}: {why}", self.address()),
            advice: Some("is the service running, with ADMIN_ADDR? --admin sets another address".to_owned()),
            status: None,
        }
    }

    fn address(&self) -> String {
        match (&self.address.at, &self.tls) {
            (ServerAddress::Unix(path), _) => format!("unix:{}", path.display()),
            (ServerAddress::Tcp(at), Some(_)) => format!("https://{at}"),
            (ServerAddress::Tcp(at), None) => format!("http://{at}"),
        }
    }
}

/// A path with these parameters.
pub(super) fn with_query<'a>(path: &str, query: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let query = Serializer::new(String::new()).extend_pairs(query).finish();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

/// Prints a reply as it came, for programs.
pub(super) fn print_json(reply: &Value) {
    terminal::print_data(&format!("{reply:#}\n"));
}

/// The address that the environment gives the service on this machine.
fn of_service(environment: &Environment) -> Result<Address, Failure> {
    let socket = environment.value(&vars::ADMIN_UDS);
    if !socket.is_empty() {
        return Ok(Address { at: ServerAddress::Unix(socket.into()), tls: None });
    }
    let set = environment.value(&vars::ADMIN_ADDR);
    let mut at = address::host_port(&set).ok().filter(|at| at.port != 0).ok_or_else(|| Failure {
        what: format!("no admin address: ADMIN_ADDR={set:?}"),
        advice: Some("set --admin, or ADMIN_ADDR as the service has it".to_owned()),
        status: None,
    })?;
    if at.is_every_address() {
        "127.0.0.1".clone_into(&mut at.host);
    }
    let is_tls =
        crate::settings::parse::boolean(&environment.value(&vars::ADMIN_USE_TLS)).unwrap_or_default();
    Ok(Address { at: ServerAddress::Tcp(at), tls: is_tls.then_some(true) })
}

/// The first token of a file, in the format of `ADMIN_TOKEN_FILE`.
fn first_token(path: &Path) -> Result<String, Failure> {
    let failed = |why: String| Failure {
        what: format!("token file {}: {why}", path.display()),
        advice: Some("expected a line TOKEN or NAME TOKEN, as in ADMIN_TOKEN_FILE".to_owned()),
        status: None,
    };
    let text = fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let token = lines.next().and_then(|line| line.split_whitespace().last());
    token.map(str::to_owned).ok_or_else(|| failed("no token".to_owned()))
}

impl Failure {
    /// A failure without advice.
    pub(super) fn plain(what: impl Into<String>) -> Self {
        Self { what: what.into(), advice: None, status: None }
    }

    /// True if the service replied that it has no such thing.
    pub(super) fn is_not_found(&self) -> bool {
        self.status == Some(StatusCode::NOT_FOUND)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        self.advice.iter().try_for_each(|advice| write!(f, "\n  {advice}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Environment { variables: variables.collect(), cores: 1 }
    }

    #[test]
    fn the_environment_gives_the_default_address() {
        for (variables, expected) in [
            (&[][..], Ok("http://127.0.0.1:6071")),
            (&[("ADMIN_ADDR", ":7000")], Ok("http://127.0.0.1:7000")),
            (&[("ADMIN_UDS", "/run/admin"), ("ADMIN_ADDR", "off")], Ok("unix:/run/admin")),
            (&[("ADMIN_ADDR", "off")], Err("no admin address: ADMIN_ADDR=\"off\"")),
            (&[("ADMIN_ADDR", "127.0.0.1:0")], Err("no admin address: ADMIN_ADDR=\"127.0.0.1:0\"")),
        ] {
            let client = Client::new(&AdminArgs::default(), &environment(variables));
            let address = client.map(|client| client.address()).map_err(|failure| failure.what);
            assert_eq!(address.as_deref().map_err(|what| &**what), expected, "{variables:?}");
        }
    }

    #[test]
    fn the_first_token_of_a_file_is_sent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        for (text, expected) in
            [("# c\n\nann abc\ntoken2\n", Ok("abc")), ("abc\n", Ok("abc")), ("# c\n", Err("no token"))]
        {
            fs::write(&path, text).unwrap();
            let token = first_token(&path).map_err(|failure| failure.what);
            match expected {
                Ok(expected) => assert_eq!(token.as_deref(), Ok(expected)),
                Err(why) => assert!(token.unwrap_err().ends_with(why)),
            }
        }
        assert!(first_token(Path::new("/nowhere")).is_err());
    }
}
