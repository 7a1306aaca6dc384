//! The commands that use the admin API of a running service, and the HTTP client that they share.
//!
//! Each command has its file: it makes a [`Client`] from the [`AdminArgs`], calls it, and lets it print text or, with
//! `--json`, the reply.

pub(super) mod changes;
pub(super) mod counter;
pub(super) mod domain;
pub(super) mod forecast;
pub(super) mod hold;
pub(super) mod overrides;
pub(super) mod refusals;
pub(super) mod status;
pub(super) mod top;
pub(super) mod why;

use std::{
    fs,
    ops::Deref,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use clap::Args;
use form_urlencoded::Serializer;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::{
    Method, Request, StatusCode,
    client::conn::http1,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue},
};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::runtime::Runtime;

use super::{
    endpoint::{self, Address, Endpoint, Service, TlsArgs, root_cause},
    request::Descriptor,
    serve::Environment,
    terminal::{self, Failure, FailureKind, Verdict},
};
use api::{Answered, OrUnknown, RulesFile, RulesFiles, Whose};
use net::edges::Transport;
use rules::{CompileOptions, SourceFile};
use rules_source::Reading;
use settings::{address, parse::boolean, vars};
use text::{cut, printable};

const MAX_REPLY: usize = 256 << 20;

const NOT_ADMIN: &str = "is that the admin API? --admin sets another address";

const SERVICE: Service = Service {
    name: "the admin API at ",
    advice: "is the service running, with ADMIN_ADDR? --admin sets another address",
    protocol: "http/1.1",
};

#[derive(Args, Clone, PartialEq, Debug, Default)]
pub(super) struct AdminArgs {
    /// The address of the admin API: http://host:port, https://host:port, host:port or `unix:/path`. By
    /// default the address or socket that `ADMIN_ADDR` or `ADMIN_UDS` sets on this machine.
    #[arg(long, value_name = "URL")]
    pub(super) admin: Option<Address>,
    /// A file whose first token is sent; by default `ADMIN_TOKEN_FILE`, if set.
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
    /// Print the reply as JSON.
    #[arg(long)]
    pub(super) json: bool,
    /// How long to wait for a reply; by default 5s.
    #[arg(long, value_name = "DURATION", value_parser = endpoint::timeout)]
    pub(super) timeout: Option<Duration>,
    #[command(flatten)]
    pub(super) tls: TlsArgs,
}

impl AdminArgs {
    /// Prints a reply: with `--json` as it is, else as this text and its warning.
    fn print(&self, reply: &Value, text: impl FnOnce() -> String) {
        if self.json {
            terminal::print_json(&format!("{reply:#}\n"));
        } else {
            terminal::print(&text());
            reply["warning"].as_str().into_iter().for_each(terminal::print_warning);
        }
    }
}

/// The arguments of a command that changes something.
#[derive(Args, Clone, PartialEq, Debug)]
pub(super) struct ChangeArgs {
    /// The reason, for the log and for lists.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    admin: AdminArgs,
}

impl ChangeArgs {
    fn query(&self) -> Query {
        self.reason.iter().map(|reason| ("reason", reason.clone())).collect()
    }
}

/// Query parameters, each with its value.
type Query = Vec<(&'static str, String)>;

/// The rules in force of a service, and the options that compile them.
pub(super) fn rules_in_force(
    args: &AdminArgs,
    environment: &Environment,
) -> Result<(Reading, CompileOptions), Failure> {
    let reply: Reply<RulesFiles> =
        Client::new(args, environment)?.get("/api/v1/rules/files", Query::new())?;
    let RulesFiles { files, merge_domains } = reply.typed;
    let file = |RulesFile { name, text }| SourceFile { name, text: text.into_bytes() };
    let files = files.into_iter().map(file).collect();
    let settings = settings::compile_options(&environment.settings()?.0);
    // The service has accepted them within its bound.
    let options = CompileOptions { merge_domains, max_values: usize::MAX, ..settings };
    Ok((Reading { files, ..Reading::default() }, options))
}

/// A line that says which replicas a reply is about; empty if it does not say.
fn answered(whose: &Whose) -> String {
    let text = match (whose.scope.as_str(), &whose.replicas) {
        ("", _) => return String::new(),
        ("all", Some(OrUnknown::Known(Answered { known, answered }))) => {
            format!("{answered} of {} answered", terminal::count(*known, "replica"))
        }
        ("this", Some(OrUnknown::Unknown(_))) => {
            "this replica alone: the others are unknown while Redis is out of service".to_owned()
        }
        ("this", _) => "this replica".to_owned(),
        (name, _) => format!("replica {name}"),
    };
    terminal::paint(terminal::DIM, &text) + "\n"
}

/// The keys that a command shows.
#[derive(Args, Clone, PartialEq, Debug, Default)]
pub(super) struct KeyArgs {
    /// Keys of this domain only.
    #[arg(value_name = "DOMAIN", conflicts_with = "domain_option")]
    domain: Option<String>,
    /// The key with exactly these entries only; a comma within a value is written `\,`.
    #[arg(value_name = "KEY=VALUE[,...]", conflicts_with = "descriptor_option")]
    descriptor: Option<Descriptor>,
    /// The same as DOMAIN.
    #[arg(id = "domain_option", long = "domain", value_name = "DOMAIN")]
    domain_option: Option<String>,
    /// The same as the descriptor, in any domain.
    #[arg(id = "descriptor_option", long = "descriptor", value_name = "KEY=VALUE[,...]")]
    descriptor_option: Option<Descriptor>,
}

impl KeyArgs {
    fn query(&self) -> Query {
        let domain = self.domain.iter().chain(&self.domain_option);
        let descriptor = self.descriptor.iter().chain(&self.descriptor_option);
        let domain = domain.map(|domain| ("domain", domain.clone()));
        domain.chain(descriptor.map(|descriptor| ("descriptor", descriptor.to_string()))).collect()
    }
}

/// The replicas that a command shows.
#[derive(Args, Clone, PartialEq, Debug, Default)]
pub(super) struct ReplicaArgs {
    /// One replica: its name as `status` shows it, or the beginning of it; `this` for the one that answers. By default
    /// all that share a Redis.
    #[arg(long, value_name = "NAME|this")]
    replica: Option<String>,
}

impl ReplicaArgs {
    fn query(&self) -> Query {
        self.replica.iter().map(|name| ("replica", name.clone())).collect()
    }
}

/// A reply as it came, for `--json`, and its type.
struct Reply<T> {
    json: Value,
    typed: T,
}

type Answer<T> = Result<Reply<T>, Failure>;

impl<T> Deref for Reply<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.typed
    }
}

/// What a command prints if the service has nothing that it names.
struct Missing {
    json: Value,
    text: String,
}

/// A client of the admin API. Each call opens a connection.
struct Client {
    args: AdminArgs,
    server: Endpoint,
    token: Option<String>,
    timeout: Duration,
    runtime: Runtime,
    /// `USER@host`, for the log of changes; `None` without `USER`.
    user: Option<HeaderValue>,
}

impl Client {
    fn new(args: &AdminArgs, environment: &Environment) -> Result<Self, Failure> {
        let address = match &args.admin {
            Some(address) => address.clone(),
            None => local(environment)?,
        };
        let set = Some(environment.value(&vars::ADMIN_TOKEN_FILE)).filter(|path| !path.is_empty());
        let file = args.token_file.clone().or_else(|| set.map(PathBuf::from));
        Ok(Self {
            server: Endpoint::new(&address, &args.tls, &SERVICE)?,
            token: file.as_deref().map(first_token).transpose()?,
            timeout: args.timeout.unwrap_or(Duration::from_secs(5)),
            runtime: endpoint::runtime()?,
            args: args.clone(),
            user: user(environment).and_then(|user| {
                let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
                HeaderValue::from_str(&printable(&format!("{user}@{host}"))).ok()
            }),
        })
    }

    fn print<T>(&self, reply: &Reply<T>, text: impl FnOnce(&T) -> String) {
        self.args.print(&reply.json, || text(&reply.typed));
    }

    /// Prints the reply to a change. The verdict is no if it was refused because it would have no effect, or if what it names
    /// is missing.
    fn changed<T>(
        &self,
        answer: Answer<T>,
        missing: Option<Missing>,
        text: impl FnOnce(&T) -> String,
    ) -> Result<Verdict, Failure> {
        match (answer, missing) {
            (Ok(reply), _) => {
                self.print(&reply, text);
                Ok(Verdict::Yes)
            }
            (Err(failure), Some(missing)) if failure.kind == FailureKind::NotFound => {
                self.args.print(&missing.json, || missing.text);
                Ok(Verdict::No)
            }
            (Err(failure), _) => failure.verdict(),
        }
    }

    fn get<T: DeserializeOwned>(&self, path: &str, query: Query) -> Answer<T> {
        self.call(Method::GET, path, query, None)
    }

    fn delete<T: DeserializeOwned>(&self, path: &str, query: Query) -> Answer<T> {
        self.call(Method::DELETE, path, query, None)
    }

    fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Answer<T> {
        let body = serde_json::to_vec(body).map_err(|error| format!("the body is not JSON: {error}"))?;
        self.call(Method::POST, path, Query::new(), Some(("application/json", body.into())))
    }

    /// A call with a body of a content type or none.
    fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        query: Query,
        body: Option<(&'static str, Bytes)>,
    ) -> Answer<T> {
        let query = Serializer::new(String::new()).extend_pairs(query).finish();
        let path = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
        let reply = self.exchange(method, &path, body)?;
        let strange = |why: String| Failure::new(format!("{}: {why}", self.server), NOT_ADMIN);
        let json = serde_json::from_slice(&reply).ok().filter(Value::is_object);
        let json = json.ok_or_else(|| strange("the reply is not a JSON object".to_owned()))?;
        let typed = T::deserialize(&json).map_err(|error| strange(format!("unexpected reply: {error}")))?;
        Ok(Reply { json, typed })
    }

    /// Sends a call, and returns the bytes of its reply.
    fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, Bytes)>,
    ) -> Result<Bytes, Failure> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.server.host())
            .header(ACCEPT, "*/*");
        let is_change = request.method_ref().is_some_and(|method| *method != Method::GET);
        if let Some(user) = self.user.as_ref().filter(|_| is_change) {
            request = request.header("tollgate-user", user);
        }
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some((content_type, _)) = &body {
            request = request.header(CONTENT_TYPE, *content_type);
        }
        let request = request.body(Full::new(body.map(|(_, bytes)| bytes).unwrap_or_default()));
        let request = request.map_err(|error| format!("invalid call {path}: {error}"))?;
        let reply = async {
            let socket = self.server.connect().await?;
            let exchanged = exchange(socket, request, MAX_REPLY).await;
            exchanged.map_err(|why| self.server.unreachable(why))
        };
        let reply = self.runtime.block_on(async { tokio::time::timeout(self.timeout, reply).await });
        let (status, body) = reply.unwrap_or_else(|_| {
            let what = format!("{}: no reply within {:?}", self.server, self.timeout);
            Err(Failure::new(what, "--timeout sets the time to wait"))
        })?;
        if status.is_success() { Ok(body) } else { Err(self.rejected(status, &body)) }
    }

    fn rejected(&self, status: StatusCode, body: &[u8]) -> Failure {
        let reply = serde_json::from_slice::<api::Error>(body).unwrap_or_default();
        let message = Some(reply.error).filter(|message| !message.is_empty());
        if let (Some(message), true) = (&message, reply.needs_force) {
            return Failure { kind: FailureKind::NeedsForce, ..Failure::new(message, "") };
        }
        let is_known = message.is_some();
        let foreign = || printable(cut(String::from_utf8_lossy(body).trim())).into_owned();
        let text = message.unwrap_or_else(foreign);
        let advice = match status {
            StatusCode::UNAUTHORIZED => "--token-file names the file with the token",
            _ if !is_known => NOT_ADMIN,
            _ => "",
        };
        let is_not_found = status == StatusCode::NOT_FOUND && is_known;
        let kind = if is_not_found { FailureKind::NotFound } else { FailureKind::Other };
        Failure { kind, ..Failure::new(format!("{}: {status}: {text}", self.server), advice) }
    }
}

/// The user that the environment names.
fn user(environment: &Environment) -> Option<&String> {
    let names = ["USER", "LOGNAME"].iter();
    names.filter_map(|name| environment.variables.get(*name)).find(|user| !user.is_empty())
}

/// Sends a request over a connection: the status of the response, and its body of at most `max` bytes.
pub(super) async fn exchange(
    socket: Transport,
    request: Request<Full<Bytes>>,
    max: usize,
) -> Result<(StatusCode, Bytes), String> {
    let failed = |error: hyper::Error| root_cause(&error);
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await.map_err(failed)?;
    // It ends with its connection, whose errors the sender reports.
    tokio::spawn(async move { drop(connection.await) });
    let (head, body) = sender.send_request(request).await.map_err(failed)?.into_parts();
    let body = Limited::new(body, max).collect().await.map_err(|error| {
        if error.is::<LengthLimitError>() {
            format!("the response exceeds {max} bytes")
        } else {
            root_cause(&*error)
        }
    })?;
    Ok((head.status, body.to_bytes()))
}

/// The address of the service on this machine, from its environment variables.
fn local(environment: &Environment) -> Result<Address, Failure> {
    let set = environment.value(&vars::ADMIN_ADDR);
    let address = Address::local(environment, &vars::ADMIN_UDS, address::host_port(&set).ok());
    let address = address.ok_or_else(|| {
        let what = format!("no admin address: ADMIN_ADDR={set:?}");
        Failure::new(what, "set --admin, or ADMIN_ADDR as the service has it")
    })?;
    let tls = boolean(&environment.value(&vars::ADMIN_USE_TLS)).unwrap_or_default();
    Ok(address.with_tls(tls))
}

/// The first token of a file, in the format of `ADMIN_TOKEN_FILE`.
fn first_token(path: &Path) -> Result<String, Failure> {
    let failed = |why: &str| {
        let what = format!("token file {}: {why}", path.display());
        Failure::new(what, "expected a line TOKEN or NAME TOKEN, as in ADMIN_TOKEN_FILE")
    };
    let text = fs::read_to_string(path).map_err(|error| failed(&error.to_string()))?;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let token = lines.next().and_then(|line| line.split_whitespace().last());
    token.map(str::to_owned).ok_or_else(|| failed("no token"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Environment { variables: variables.collect(), ..Environment::default() }
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
            let address = client.map(|client| client.server.to_string()).map_err(|failure| failure.what);
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
