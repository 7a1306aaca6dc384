//! How connections log in to the servers of a Redis: with fixed credentials, with those of a file that is read for each new
//! connection and every two seconds, or with passwords that are signed with AWS credentials.
//!
//! `dialer` logs new connections in. Open connections are not replaced when the credentials change, so that no pipeline is
//! lost: `pool` sends them another `AUTH`.

#[cfg(test)]
mod tests;

use std::{
    fs::File,
    io::Read as _,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    str,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::task::spawn_blocking;
use tracing::{error, info, warn};

use super::resp;
use crate::settings::{CredentialFile, CredentialSource, Credentials};
use aws_iam::TokenSource;
use clock::Time;
use faults::{files, mutex::lock};
use net::{Secret, backoff::jittered_by, edges::Edges};

/// The interval at which a file is read and compared. Notifications of changes are unreliable behind swapped symlinks.
pub(super) const POLL: Duration = Duration::from_secs(2);

/// A refused login of an open connection is repeated after this many polls: an ACL may be changed after the file.
pub(super) const POLLS_PER_RETRY: u64 = 15;

/// AWS closes a connection 12 hours after its login, unless it has logged in again.
const SIGNED_LOGIN: Duration = Duration::from_secs(11 * 3600);

/// The maximum size of a file: more than any token.
const MAX_BYTES: u64 = 64 << 10;

const EXPECTED: &str = "a file with one line, password or user:password";

/// Any user of the machine may read the file.
const READABLE_BY_OTHERS: u32 = 0o004;

pub(super) struct Login {
    source: Source,
    state: Mutex<LoginState>,
}

enum Source {
    /// The variables of the credentials, for errors.
    Fixed(&'static str),
    File(CredentialFile),
    Iam(Box<TokenSource>, Edges),
}

#[derive(Default)]
struct LoginState {
    current: Option<Arc<CurrentLogin>>,
    /// Why the last poll failed, and whether that was logged.
    problem: Option<(String, bool)>,
    warned_of_mode: bool,
    /// The generation of passwords that are signed, and when the next one begins.
    iam: (u64, Time),
}

#[derive(PartialEq, Eq, Debug)]
pub(super) struct CurrentLogin {
    pub(super) credentials: Credentials,
    /// Grows with each change.
    pub(super) generation: u64,
}

impl CurrentLogin {
    pub(super) fn write(&self, into: &mut Vec<u8>) {
        let Credentials { user, password: Secret(password) } = &self.credentials;
        match user {
            None => resp::write_command(into, &[b"AUTH", password.as_bytes()]),
            Some(user) => resp::write_command(into, &[b"AUTH", user.as_bytes(), password.as_bytes()]),
        }
    }
}

impl Login {
    /// Returns every problem with the CAs, if AWS credentials are fetched by TLS.
    pub(super) fn new(
        source: Option<&CredentialSource>,
        variables: &'static str,
        edges: &Edges,
    ) -> Result<Self, Vec<String>> {
        let mut state = LoginState::default();
        let source = match source {
            None => Source::Fixed(variables),
            Some(CredentialSource::Fixed(credentials)) => {
                let credentials = credentials.clone();
                state.current = Some(Arc::new(CurrentLogin { credentials, generation: 0 }));
                Source::Fixed(variables)
            }
            Some(CredentialSource::File(file)) => Source::File(file.clone()),
            Some(CredentialSource::Iam(iam)) => {
                Source::Iam(Box::new(TokenSource::new(iam, edges)?), edges.clone())
            }
        };
        Ok(Self { source, state: Mutex::new(state) })
    }

    /// Where the credentials come from, for errors.
    pub(super) fn origin(&self) -> String {
        match &self.source {
            Source::Fixed(variables) => (*variables).to_owned(),
            Source::File(file) => file.to_string(),
            Source::Iam(..) => "REDIS_AWS_IAM_AUTH (REDIS_PERSECOND_AWS_IAM_AUTH)".to_owned(),
        }
    }

    /// What to check after a refusal.
    pub(super) fn advice(&self) -> String {
        let what = match &self.source {
            Source::Fixed(_) | Source::File(_) => "a password, or user:password",
            Source::Iam(..) => {
                "the user, the cache's name, the region, and the policy of the AWS identity: docs/reference/redis.md#elasticache-and-memorydb"
            }
        };
        format!("see {}: {what}", self.origin())
    }

    /// True if it must be polled.
    pub(super) fn changes(&self) -> bool {
        !matches!(self.source, Source::Fixed(_))
    }

    /// The credentials for a new connection; the last ones while a file is invalid.
    pub(super) async fn now(&self) -> Result<Option<Arc<CurrentLogin>>, String> {
        match &self.source {
            Source::Fixed(_) => Ok(lock(&self.state).current.clone()),
            Source::File(file) => self.read(file).await.map(Some).or_else(|why| self.last_or(why)),
            Source::Iam(tokens, edges) => self.sign(tokens, edges).await.map(Some),
        }
    }

    /// The last credentials, or an error if there were none.
    pub(super) fn last_or(&self, why: String) -> Result<Option<Arc<CurrentLogin>>, String> {
        lock(&self.state).current.clone().map(Some).ok_or(why)
    }

    /// The credentials in force, after those of a file were read and those of AWS were renewed.
    pub(super) async fn poll(&self) -> Option<Arc<CurrentLogin>> {
        match &self.source {
            Source::Fixed(_) => None,
            Source::File(file) => self.poll_file(file).await,
            Source::Iam(tokens, edges) => {
                tokens.renew().await;
                self.sign(tokens, edges).await.ok()
            }
        }
    }

    async fn sign(&self, tokens: &TokenSource, edges: &Edges) -> Result<Arc<CurrentLogin>, String> {
        let credentials =
            Credentials { user: Some(tokens.user().to_owned()), password: tokens.token().await? };
        let now = edges.clock.now();
        let state = &mut lock(&self.state).iam;
        if state.1 <= now {
            let life = jittered_by(SIGNED_LOGIN, 0.05, edges.random.fraction());
            *state = (state.0 + 1, Time::from_seconds(now.seconds() + life.as_secs()));
        }
        Ok(Arc::new(CurrentLogin { credentials, generation: state.0 }))
    }

    /// Logs once why the file is invalid, after two reads with the same result: a file that is being written differs at the
    /// next.
    async fn poll_file(&self, file: &CredentialFile) -> Option<Arc<CurrentLogin>> {
        let read = self.read(file).await;
        let mut state = lock(&self.state);
        state.problem = match (read, state.problem.take()) {
            (Ok(current), before) => {
                if let Some((_, true)) = before {
                    info!("{file}: valid again");
                }
                return Some(current);
            }
            (Err(why), Some((before, is_logged))) if before == why => {
                if !is_logged {
                    let stays =
                        state.current.as_ref().map_or("", |_| "; the previous credentials stay in use");
                    error!("{why}{stays}");
                }
                Some((why, true))
            }
            (Err(why), _) => Some((why, false)),
        };
        state.current.clone()
    }

    async fn read(&self, file: &CredentialFile) -> Result<Arc<CurrentLogin>, String> {
        let path = file.path.clone();
        // Panics are not expected, and must not end the task of a connection.
        let read =
            spawn_blocking(move || read(&path)).await.unwrap_or_else(|_| Err("cannot be read".to_owned()));
        let (mut credentials, mode) = read.map_err(|why| format!("{file}: expected {EXPECTED}; it {why}"))?;
        credentials.user = credentials.user.or_else(|| file.user.clone());
        let mut state = lock(&self.state);
        if mode & READABLE_BY_OTHERS != 0 && !std::mem::replace(&mut state.warned_of_mode, true) {
            warn!("{file}: every user can read it (mode {mode:o}); expected mode 600 or 440");
        }
        let generation = match &state.current {
            Some(current) if current.credentials == credentials => return Ok(current.clone()),
            Some(current) => {
                info!("{file}: changed, logging in with the new credentials");
                current.generation + 1
            }
            None => 1,
        };
        let current = Arc::new(CurrentLogin { credentials, generation });
        state.current = Some(current.clone());
        Ok(current)
    }
}

/// The credentials in a file, and the file's mode; else what is wrong with it, without its content.
fn read(path: &Path) -> Result<(Credentials, u32), String> {
    let read = |file: File| {
        let mut bytes = Vec::new();
        let mode = file.metadata()?.permissions().mode() & 0o777;
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
        Ok((bytes, mode))
    };
    let (bytes, mode) =
        files::open(path).and_then(read).map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("is larger than {MAX_BYTES} bytes"));
    }
    parse(&bytes).map(|credentials| (credentials, mode))
}

fn parse(bytes: &[u8]) -> Result<Credentials, String> {
    let text = str::from_utf8(bytes).map_err(|_| "is not UTF-8")?;
    let line = text.strip_suffix('\n').map_or(text, |line| line.strip_suffix('\r').unwrap_or(line));
    if line.contains(['\n', '\r']) {
        return Err("has several lines".to_owned());
    }
    if line.starts_with('\u{feff}') {
        return Err("begins with a byte order mark".to_owned());
    }
    match Credentials::parse(line) {
        Credentials { user: None, password } if password.0.is_empty() => Err("is empty".to_owned()),
        Credentials { password, .. } if password.0.is_empty() => {
            Err("has a user without a password".to_owned())
        }
        credentials => Ok(credentials),
    }
}

/// The login of a connection that counts.
#[derive(Default)]
pub(super) struct Session {
    logged_in: AtomicU64,
    /// The last generation for which `AUTH` was sent while the connection was open.
    tried: AtomicU64,
}

impl Session {
    pub(super) fn logged_in(&self, generation: u64) {
        self.logged_in.store(generation, Relaxed);
    }

    pub(super) fn is_behind(&self, login: &CurrentLogin) -> bool {
        self.logged_in.load(Relaxed) < login.generation
    }

    /// True once for each generation.
    pub(super) fn is_untried(&self, login: &CurrentLogin) -> bool {
        self.tried.load(Relaxed) < login.generation
    }

    pub(super) fn tried(&self, login: &CurrentLogin) {
        self.tried.store(login.generation, Relaxed);
    }
}
