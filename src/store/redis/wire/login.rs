//! The first words with a Redis: who we are, which database, is it alive, is it a master.
//!
//! They go out in one piece, so that the log-in costs one round trip; the answers are judged one by one,
//! so that a failure names its question. No answer is shown that might repeat the password.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    super::{
        failure::{Failure, Kind},
        resp::{self, Reply},
        tls,
    },
    Connector, Step, Transport,
};
use crate::{settings::redis::Credentials, store::remote::framed::ProtocolError};

/// Under this name Redis lists our connections.
const NAME: &[u8] = b"tollgate";

/// No first answer is longer.
const MAX_ANSWER: usize = 64 * 1024;

/// As much of an error is shown: Redis says in the first words what it means.
const SHOWN: usize = 160;

/// What is said first.
#[derive(Clone)]
pub(super) struct Login {
    credentials: Option<Credentials>,
    database: u32,
}

impl Login {
    pub(super) fn new(credentials: Option<Credentials>, database: u32) -> Self {
        Self { credentials, database }
    }

    /// Says it, and hears the answers.
    pub(super) async fn perform(
        &self,
        wire: &mut Transport,
        connector: &Connector,
        must_be_master: bool,
        step: &mut Step,
    ) -> Result<(), Failure> {
        let (steps, words) = self.words(must_be_master);
        // A write's failure is not looked at: what there is to read may tell why, such as that there are
        // too many clients, and if there is nothing the reading fails too.
        if wire.write_all(&words).await.is_ok() {
            let _ = wire.flush().await;
        }
        let mut unread = Vec::new();
        for asked in steps {
            *step = asked;
            let reply = self.hear(wire, connector, &mut unread, asked).await?;
            self.judge(asked, &reply)?;
        }
        if unread.is_empty() { Ok(()) } else { Err(garbage("more than was asked for")) }
    }

    fn words(&self, must_be_master: bool) -> (Vec<Step>, Vec<u8>) {
        let (mut steps, mut into) = (Vec::new(), Vec::new());
        let mut say = |step, words: &[&[u8]]| {
            steps.push(step);
            resp::write_command(&mut into, words);
        };
        match &self.credentials {
            None => {}
            Some(Credentials { user: None, password }) => {
                say(Step::LogIn, &[b"AUTH", password.0.as_bytes()]);
            }
            Some(Credentials { user: Some(user), password }) => {
                say(Step::LogIn, &[b"AUTH", user.as_bytes(), password.0.as_bytes()]);
            }
        }
        if self.database != 0 {
            say(Step::Select, &[b"SELECT", self.database.to_string().as_bytes()]);
        }
        say(Step::SetName, &[b"CLIENT", b"SETNAME", NAME]);
        say(Step::Ping, &[b"PING"]);
        if must_be_master {
            say(Step::AskRole, &[b"ROLE"]);
        }
        (steps, into)
    }

    /// The next answer.
    async fn hear(
        &self,
        wire: &mut Transport,
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
                Ok(None) if unread.len() <= MAX_ANSWER => {}
                Ok(None) => return Err(garbage("an endless answer")),
                Err(ProtocolError(shown)) => return Err(self.stranger(unread, &shown)),
            }
            let advice =
                if matches!(wire, Transport::Tcp(_)) { tls::WITH } else { "its own log may tell why" };
            match wire.read_buf(unread).await {
                Ok(0) => return Err(connector.lost(&io::ErrorKind::UnexpectedEof.into(), &step, advice)),
                Ok(_) => {}
                Err(error) => return Err(connector.lost(&error, &step, advice)),
            }
        }
    }

    /// Who speaks there, if it is no Redis.
    fn stranger(&self, bytes: &[u8], shown: &str) -> Failure {
        match bytes {
            // The first bytes of TLS's records: an alert, a handshake.
            [0x15 | 0x16, 3, ..] => garbage(&format!("TLS; {}", tls::WITH)),
            // What echoes AUTH may echo what follows it.
            _ if self.credentials.is_some() && bytes.windows(4).any(|word| word == b"AUTH") => {
                garbage("what we said, or a part of it; see REDIS_URL")
            }
            _ if bytes.starts_with(b"HTTP/") => garbage(&format!("HTTP ({shown}); see REDIS_URL")),
            _ => garbage(&format!("\"{shown}\"; see REDIS_URL")),
        }
    }

    fn judge(&self, step: Step, reply: &Reply) -> Result<(), Failure> {
        match (step, reply) {
            // The name is a courtesy.
            (Step::SetName, _) | (Step::LogIn | Step::Select | Step::Ping, Reply::Text(_)) => Ok(()),
            (Step::AskRole, Reply::List(role)) => judge_role(role),
            // A user who may not ask learns from the first write what the server is.
            (Step::AskRole, Reply::Error(error)) if is_barred(error) => Ok(()),
            (_, Reply::Error(error)) => Err(self.refused(step, error)),
            _ => Err(garbage(&format!("something else than an answer to {step}"))),
        }
    }

    fn refused(&self, step: Step, error: &str) -> Failure {
        let too_many = error.starts_with("ERR max number of clients");
        let kind = match Kind::of_answer(error) {
            Kind::Other | Kind::Denied if step == Step::LogIn && !too_many => Kind::Auth,
            kind => kind,
        };
        let advice = match kind {
            Kind::Denied => "its user lacks a permission, or the server the command: see ACL SETUSER",
            Kind::Auth if self.credentials.is_none() => {
                "it wants a password: set REDIS_AUTH (REDIS_PERSECOND_AUTH)"
            }
            Kind::Auth => "see REDIS_AUTH (REDIS_PERSECOND_AUTH): a password, or user:password",
            Kind::Loading => "it is asked again until it is ready",
            _ if too_many => "raise its maxclients, or lower REDIS_POOL_SIZE (REDIS_PERSECOND_POOL_SIZE)",
            _ if step == Step::Select => "see the number at the end of REDIS_URL (REDIS_PERSECOND_URL)",
            _ => "its own log may tell more",
        };
        Failure::new(kind, format!("{step} was refused: {}; {advice}", self.shown(error)))
    }

    /// An error without what may be secret.
    fn shown(&self, error: &str) -> String {
        // Redis repeats the words of a command that it does not know, and AUTH may be such a one.
        let error = error.split(", with args").next().unwrap_or_default();
        let says_it = |credentials: &Credentials| {
            !credentials.password.0.is_empty() && error.contains(&credentials.password.0)
        };
        if self.credentials.as_ref().is_some_and(says_it) {
            return "(not shown: it holds the password)".to_owned();
        }
        error.chars().take(SHOWN).collect()
    }
}

/// A user may lack the permission, and a service may lack the command.
fn is_barred(error: &str) -> bool {
    error.starts_with("NOPERM") || error.starts_with("ERR unknown command")
}

fn judge_role(role: &[Reply]) -> Result<(), Failure> {
    let text = |place: usize| match role.get(place) {
        Some(Reply::Text(text)) => String::from_utf8_lossy(text).into_owned(),
        Some(Reply::Integer(number)) => number.to_string(),
        _ => "?".to_owned(),
    };
    match &*text(0) {
        "master" => Ok(()),
        "slave" => Err(Failure::new(
            Kind::ReadOnly,
            format!("it is a replica of {}:{}, where a master is needed", text(1), text(2)),
        )),
        "sentinel" => Err(garbage("that it is a sentinel; REDIS_TYPE=SENTINEL asks sentinels")),
        _ => Err(garbage("something else than an answer to ROLE")),
    }
}

fn garbage(what: &str) -> Failure {
    Failure::new(Kind::ProtocolError, format!("it answers {what}"))
}
