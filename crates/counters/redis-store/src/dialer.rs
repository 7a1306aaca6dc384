//! Opens connections to Redis servers and sentinels: connect, TLS handshake, and the first commands AUTH, SELECT, CLIENT
//! SETNAME, PING and ROLE.
//!
//! The commands are sent together, in one round trip. Replies are checked one by one, so that a failure names its
//! command. No reply that may contain the password is shown.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::{
    failure::{self, Failure, FailureKind},
    login::{CurrentLogin, Login},
    permissions::is_denied,
    resp::{self, FramedStream, Reply, Resp},
};
use crate::settings::{CredentialSource, RedisPool, RedisServers};
use net::{HostPort, ServerAddress, edges::Edges, tls::Hints};
use wire::{
    handshake,
    transport::{Connector, TlsAdvice},
};

pub(super) static TLS_ADVICE: TlsAdvice = TlsAdvice {
    tls: Hints {
        ca: "REDIS_TLS_CACERT",
        certificate: "REDIS_TLS_CLIENT_CERT",
        key: "REDIS_TLS_CLIENT_KEY",
        other_host: "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true accepts a certificate for another host",
        plain_text: "if the server does not use TLS, unset REDIS_TLS (REDIS_PERSECOND_TLS) and use redis:// instead of \
                     rediss://",
    },
    use_tls: "if the server uses TLS, set REDIS_TLS=true (REDIS_PERSECOND_TLS)",
};

/// The variable of the servers' credentials, in errors.
pub(super) const REDIS_AUTH: &str = "REDIS_AUTH (REDIS_PERSECOND_AUTH)";

const REDIS_URL: &str = "see REDIS_URL (REDIS_PERSECOND_URL)";

/// The characters of an error that are shown.
const MAX_SHOWN: usize = 160;

type Handshake<'c> = handshake::Handshake<'c, Resp>;

#[derive(Clone)]
pub(super) struct Dialer {
    connector: Connector,
    pub(super) login: Arc<Login>,
    database: u32,
    is_sentinel: bool,
}

impl Dialer {
    /// A dialer for the servers that have the keys. Returns every problem with the TLS files.
    pub(super) fn new(pool: &RedisPool, edges: &Edges) -> Result<Self, Vec<String>> {
        if let (RedisServers::Single(ServerAddress::Unix(path)), Some(_)) = (&pool.servers, &pool.tls) {
            let path = path.display();
            return Err(vec![format!("redis {path}: unix sockets do not support TLS; unset REDIS_TLS")]);
        }
        let origin = match pool.servers {
            RedisServers::Single(_) => REDIS_URL,
            RedisServers::Sentinel { .. } => "the address comes from its sentinels",
            RedisServers::Cluster { .. } => "the address comes from the cluster",
        };
        Self::of("redis", pool, origin, pool.credentials.as_ref(), REDIS_AUTH, edges)
    }

    /// A dialer for sentinels, which have credentials of their own.
    pub(super) fn of_sentinels(
        pool: &RedisPool,
        credentials: Option<&CredentialSource>,
        edges: &Edges,
    ) -> Result<Self, Vec<String>> {
        let auth = "REDIS_SENTINEL_AUTH (REDIS_PERSECOND_SENTINEL_AUTH)";
        Ok(Self {
            database: 0,
            is_sentinel: true,
            ..Self::of("redis sentinel", pool, REDIS_URL, credentials, auth, edges)?
        })
    }

    fn of(
        store: &'static str,
        pool: &RedisPool,
        origin: &'static str,
        credentials: Option<&CredentialSource>,
        auth: &'static str,
        edges: &Edges,
    ) -> Result<Self, Vec<String>> {
        let connector =
            Connector::new(store, pool.tls.as_ref(), &TLS_ADVICE, pool.connect_timeout, origin, edges)?;
        let login = Arc::new(Login::new(credentials, auth, edges)?);
        Ok(Self { connector, login, database: pool.database, is_sentinel: false })
    }

    /// Opens a connection to a server that replies to `PING` and, if required, is a master.
    pub(super) async fn dial(
        &self,
        to: &ServerAddress,
        must_be_master: bool,
    ) -> Result<FramedStream, Failure> {
        self.dial_and_log_in(to, must_be_master).await.map(|(stream, _)| stream)
    }

    /// The same, with the generation of the login.
    pub(super) async fn dial_and_log_in(
        &self,
        to: &ServerAddress,
        must_be_master: bool,
    ) -> Result<(FramedStream, u64), Failure> {
        let mut handshake = Handshake::begin(&self.connector, to).await?;
        let login = self.connector.edges.timer.timeout_at(handshake.until, self.login.now()).await;
        let login = login.unwrap_or_else(|| {
            self.login.last_or(format!("{}: no credentials in time", self.login.origin()))
        });
        let login = login.map_err(|why| handshake.stream.failure(FailureKind::Auth, why))?;
        let login = login.as_deref();
        let (steps, commands) = self.commands(login, must_be_master);
        handshake.send(steps.len(), &commands).await;
        for step in steps {
            let reply = handshake.receive(step).await;
            let reply = reply.map_err(|failure| without_echo(&handshake, login, failure))?;
            self.check(step, login, &reply).map_err(|(kind, what)| {
                let denied = match (kind, step) {
                    (FailureKind::Denied, "PING") => Some("ping"),
                    (FailureKind::Denied, "SELECT") => Some("select"),
                    _ => None,
                };
                Failure { denied, ..handshake.stream.failure(kind, what) }
            })?;
        }
        if !handshake.stream.incoming.is_empty() {
            return Err(handshake
                .stream
                .failure(FailureKind::ProtocolError, "received more replies than commands"));
        }
        Ok((handshake.stream, login.map_or(0, |login| login.generation)))
    }

    fn commands(&self, login: Option<&CurrentLogin>, must_be_master: bool) -> (Vec<&'static str>, Vec<u8>) {
        let mut steps = Vec::new();
        let mut into = Vec::new();
        if let Some(login) = login {
            steps.push("AUTH");
            login.write(&mut into);
        }
        let mut add = |step, words: &[&[u8]]| {
            steps.push(step);
            resp::write_command(&mut into, words);
        };
        if self.database != 0 {
            add("SELECT", &[b"SELECT", self.database.to_string().as_bytes()]);
        }
        add("CLIENT SETNAME", &[b"CLIENT", b"SETNAME", b"tollgate"]);
        add("PING", &[b"PING"]);
        if must_be_master {
            add("ROLE", &[b"ROLE"]);
        }
        (steps, into)
    }

    fn check(
        &self,
        step: &str,
        login: Option<&CurrentLogin>,
        reply: &Reply,
    ) -> Result<(), (FailureKind, String)> {
        match (step, reply) {
            // The name is optional.
            ("CLIENT SETNAME", _) | ("AUTH" | "SELECT" | "PING", Reply::Text(_)) => Ok(()),
            ("ROLE", Reply::List(role)) => check_role(role),
            // Without the permission or the command, the first write shows the role.
            ("ROLE", Reply::Error(error)) if is_denied(error) => Ok(()),
            // A sentinel's user needs no other command than the query.
            ("PING", Reply::Error(error)) if self.is_sentinel && is_denied(error) => Ok(()),
            (_, Reply::Error(error)) => Err(self.rejected(step, login, error)),
            _ => Err((FailureKind::ProtocolError, format!("unexpected reply to {step}"))),
        }
    }

    /// The kind and the message of an error reply, without secrets.
    pub(super) fn rejected(
        &self,
        step: &str,
        login: Option<&CurrentLogin>,
        error: &str,
    ) -> (FailureKind, String) {
        let too_many = error.starts_with("ERR max number of clients");
        let kind = match failure::kind_of_reply(error) {
            FailureKind::Other | FailureKind::Denied if step == "AUTH" && !too_many => FailureKind::Auth,
            kind => kind,
        };
        let advice = match kind {
            FailureKind::Denied => "the user lacks a permission, or the server the command: see ACL SETUSER",
            FailureKind::Auth if login.is_none() => {
                &format!("it requires a password: set {}", self.login.origin())
            }
            FailureKind::Auth => &self.login.advice(),
            FailureKind::Loading => "will retry until it is ready",
            _ if too_many => "raise its maxclients, or lower REDIS_POOL_SIZE (REDIS_PERSECOND_POOL_SIZE)",
            _ if step == "SELECT" => "see the number at the end of REDIS_URL (REDIS_PERSECOND_URL)",
            _ => "see its log",
        };
        (kind, format!("{step} failed: {}; {advice}", shown(login, error)))
    }

    pub(super) fn describe(&self, address: &HostPort) -> String {
        format!("{} {address}", self.connector.store)
    }

    /// Sends a command and waits for its reply, of at most about `max_bytes`.
    pub(super) async fn query(
        &self,
        stream: &mut FramedStream,
        command: &[&[u8]],
        max_bytes: usize,
    ) -> Result<Reply, Failure> {
        let exchange = async {
            stream.send(1, |into| resp::write_command(into, command)).await?;
            stream.allow(max_bytes);
            stream.receive().await
        };
        match self.connector.edges.timer.timeout(self.connector.timeout, exchange).await {
            Some(reply) => reply,
            None => Err(stream.failure(
                FailureKind::Timeout,
                format_args!("no reply within {:?}; check the node and the network", self.connector.timeout),
            )),
        }
    }
}

/// The failure, without the received bytes if the server echoed AUTH: they may contain the password.
fn without_echo(handshake: &Handshake<'_>, login: Option<&CurrentLogin>, failure: Failure) -> Failure {
    let is_echo = handshake.stream.incoming.windows(4).any(|word| word == b"AUTH");
    if failure.kind == FailureKind::ProtocolError && login.is_some() && is_echo {
        return handshake.stream.failure(failure.kind, "received an echo of our commands; see REDIS_URL");
    }
    failure
}

/// An error without secrets.
fn shown(login: Option<&CurrentLogin>, error: &str) -> String {
    let password = login.map_or("", |login| &login.credentials.password.0);
    if !password.is_empty() && error.contains(password) {
        return "(not shown: contains the password)".to_owned();
    }
    error.chars().take(MAX_SHOWN).collect()
}

fn check_role(role: &[Reply]) -> Result<(), (FailureKind, String)> {
    let text = |index: usize| match role.get(index) {
        Some(Reply::Text(text)) => String::from_utf8_lossy(text).into_owned(),
        Some(Reply::Integer(number)) => number.to_string(),
        _ => "?".to_owned(),
    };
    match &*text(0) {
        "master" => Ok(()),
        "slave" => Err((
            FailureKind::ReadOnly,
            format!("it is a replica of {}:{}, a master is required", text(1), text(2)),
        )),
        "sentinel" => {
            Err((FailureKind::ProtocolError, "it is a sentinel; set REDIS_TYPE=SENTINEL".to_owned()))
        }
        _ => Err((FailureKind::ProtocolError, "unexpected reply to ROLE".to_owned())),
    }
}
