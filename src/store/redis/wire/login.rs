//! The first commands on a connection to Redis: AUTH, SELECT, CLIENT SETNAME, PING and ROLE.
//!
//! They are sent together, in one round trip. Replies are checked one by one, so that a failure names its command. No
//! reply that may contain the password is shown.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    super::{
        failure::{Failure, Kind},
        resp::{self, Reply},
    },
    Connector, Step, TLS_ADVICE, Transport,
};
use crate::{settings::redis::Credentials, store::remote::framed::ProtocolError};

/// The name of our connections in CLIENT LIST.
const NAME: &[u8] = b"tollgate";

/// The longest reply.
const MAX_REPLY: usize = 64 * 1024;

/// The characters of an error that are shown.
const MAX_SHOWN: usize = 160;

/// The first commands.
#[derive(Clone)]
pub(super) struct Login {
    credentials: Option<Credentials>,
    database: u32,
}

impl Login {
    pub(super) fn new(credentials: Option<Credentials>, database: u32) -> Self {
        Self { credentials, database }
    }

    /// Sends the commands and checks the replies.
    pub(super) async fn perform(
        &self,
        transport: &mut Transport,
        connector: &Connector,
        must_be_master: bool,
        step: &mut Step,
    ) -> Result<(), Failure> {
        let (steps, commands) = self.commands(must_be_master);
        // A failed write is ignored: the server may have sent the reason, such as too many clients, and if not then
        // reading fails too.
        if transport.write_all(&commands).await.is_ok() {
            let _ = transport.flush().await;
        }
        let mut unread = Vec::new();
        for sent in steps {
            *step = sent;
            let reply = self.receive(transport, connector, &mut unread, sent).await?;
            self.check(sent, &reply)?;
        }
        if unread.is_empty() { Ok(()) } else { Err(protocol_error("more replies than commands")) }
    }

    fn commands(&self, must_be_master: bool) -> (Vec<Step>, Vec<u8>) {
        let (mut steps, mut into) = (Vec::new(), Vec::new());
        let mut add = |step, words: &[&[u8]]| {
            steps.push(step);
            resp::write_command(&mut into, words);
        };
        match &self.credentials {
            None => {}
            Some(Credentials { user: None, password }) => {
                add(Step::LogIn, &[b"AUTH", password.0.as_bytes()]);
            }
            Some(Credentials { user: Some(user), password }) => {
                add(Step::LogIn, &[b"AUTH", user.as_bytes(), password.0.as_bytes()]);
            }
        }
        if self.database != 0 {
            add(Step::Select, &[b"SELECT", self.database.to_string().as_bytes()]);
        }
        add(Step::SetName, &[b"CLIENT", b"SETNAME", NAME]);
        add(Step::Ping, &[b"PING"]);
        if must_be_master {
            add(Step::Role, &[b"ROLE"]);
        }
        (steps, into)
    }

    /// The next reply.
    async fn receive(
        &self,
        transport: &mut Transport,
        connector: &Connector,
        unread: &mut Vec<u8>,
        step: Step,
    ) -> Result<Reply, Failure> {
        loop {
            match resp::read(unread) {
                Ok(Some((reply, length))) => {
                    unread.drain(..length);
                    return Ok(reply);
                }
                Ok(None) if unread.len() <= MAX_REPLY => {}
                Ok(None) => return Err(protocol_error("a reply without end")),
                Err(ProtocolError(shown)) => return Err(self.unknown_protocol(unread, &shown)),
            }
            let advice =
                if matches!(transport, Transport::Tcp(_)) { TLS_ADVICE.use_tls } else { "see its log" };
            match transport.read_buf(unread).await {
                Ok(0) => return Err(connector.lost(&io::ErrorKind::UnexpectedEof.into(), &step, advice)),
                Ok(_) => {}
                Err(error) => return Err(connector.lost(&error, &step, advice)),
            }
        }
    }

    /// The failure for bytes that are not RESP.
    fn unknown_protocol(&self, bytes: &[u8], shown: &str) -> Failure {
        match bytes {
            // The first bytes of TLS records: an alert or a handshake.
            [0x15 | 0x16, 3, ..] => protocol_error(&format!("TLS; {}", TLS_ADVICE.use_tls)),
            // A server that echoes AUTH may echo the password.
            _ if self.credentials.is_some() && bytes.windows(4).any(|word| word == b"AUTH") => {
                protocol_error("an echo of our commands; see REDIS_URL")
            }
            _ if bytes.starts_with(b"HTTP/") => protocol_error(&format!("HTTP ({shown}); see REDIS_URL")),
            _ => protocol_error(&format!("\"{shown}\"; see REDIS_URL")),
        }
    }

    fn check(&self, step: Step, reply: &Reply) -> Result<(), Failure> {
        match (step, reply) {
            // The name is optional.
            (Step::SetName, _) | (Step::LogIn | Step::Select | Step::Ping, Reply::Text(_)) => Ok(()),
            (Step::Role, Reply::List(role)) => check_role(role),
            // A user without the permission learns the role from the first write.
            (Step::Role, Reply::Error(error)) if is_denied(error) => Ok(()),
            (_, Reply::Error(error)) => Err(self.refused(step, error)),
            _ => Err(protocol_error(&format!("an unexpected reply to {step}"))),
        }
    }

    fn refused(&self, step: Step, error: &str) -> Failure {
        let too_many = error.starts_with("ERR max number of clients");
        let kind = match Kind::of_reply(error) {
            Kind::Other | Kind::Denied if step == Step::LogIn && !too_many => Kind::Auth,
            kind => kind,
        };
        let advice = match kind {
            Kind::Denied => "the user lacks a permission, or the server the command: see ACL SETUSER",
            Kind::Auth if self.credentials.is_none() => {
                "it requires a password: set REDIS_AUTH (REDIS_PERSECOND_AUTH)"
            }
            Kind::Auth => "see REDIS_AUTH (REDIS_PERSECOND_AUTH): a password, or user:password",
            Kind::Loading => "will retry until it is ready",
            _ if too_many => "raise its maxclients, or lower REDIS_POOL_SIZE (REDIS_PERSECOND_POOL_SIZE)",
            _ if step == Step::Select => "see the number at the end of REDIS_URL (REDIS_PERSECOND_URL)",
            _ => "see its log",
        };
        Failure::new(kind, format!("{step} failed: {}; {advice}", self.shown(error)))
    }

    /// An error without secrets.
    fn shown(&self, error: &str) -> String {
        // Redis repeats the words of unknown commands, and AUTH may be one.
        let error = error.split(", with args").next().unwrap_or_default();
        let contains_password = |credentials: &Credentials| {
            !credentials.password.0.is_empty() && error.contains(&credentials.password.0)
        };
        if self.credentials.as_ref().is_some_and(contains_password) {
            return "(not shown: contains the password)".to_owned();
        }
        error.chars().take(MAX_SHOWN).collect()
    }
}

/// The user may lack the permission, and the server the command.
fn is_denied(error: &str) -> bool {
    error.starts_with("NOPERM") || error.starts_with("ERR unknown command")
}

fn check_role(role: &[Reply]) -> Result<(), Failure> {
    let text = |index: usize| match role.get(index) {
        Some(Reply::Text(text)) => String::from_utf8_lossy(text).into_owned(),
        Some(Reply::Integer(number)) => number.to_string(),
        _ => "?".to_owned(),
    };
    match &*text(0) {
        "master" => Ok(()),
        "slave" => Err(Failure::new(
            Kind::ReadOnly,
            format!("it is a replica of {}:{}, a master is required", text(1), text(2)),
        )),
        "sentinel" => Err(protocol_error("that it is a sentinel; set REDIS_TYPE=SENTINEL")),
        _ => Err(protocol_error("an unexpected reply to ROLE")),
    }
}

fn protocol_error(what: &str) -> Failure {
    Failure::new(Kind::ProtocolError, format!("received {what}"))
}
