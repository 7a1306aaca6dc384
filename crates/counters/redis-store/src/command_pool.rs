//! Commands to Redis other than counting: overrides, resets of counters, and the list of replicas.
//!
//! They have connections separate from those that count (`links`), so that a large or slow command delays no request. The
//! connections belong to the runtime that opens them: each thread has its own [`CommandPool`].

use std::{io, sync::Mutex, time::Duration};

use deadpool_redis::redis::{
    Cmd, FromRedisValue, Pipeline, RedisError, ScriptInvocation, Value, aio::ConnectionLike as _,
};

use super::{
    dialer::{Dialer, REDIS_AUTH},
    failure::{self, FailureKind},
    links::{Link, Links, Received, Taken, links, take},
    messages::{Demotions, Messages},
    topology::{Topology, slots},
};
use clock::timer::after;
use faults::mutex::lock;
use net::{ServerAddress, edges::Edges};

/// The timeout of connecting and of a command. Some commands handle thousands of keys. A command that servers refuse while
/// slots move is sent again for as long.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How long a process that starts waits for its sentinels or its cluster to name the masters.
const DISCOVERY: Duration = Duration::from_secs(1);

/// The pause before a command is sent again that needs keys of which a part has moved.
const PAUSE: Duration = Duration::from_millis(50);

/// Redirections in a row before the servers are assumed to redirect to each other.
const MAX_REDIRECTS: usize = 5;

/// Connections to one Redis for everything but counting.
pub struct CommandPool {
    dialer: Dialer,
    servers: Mutex<Vec<(ServerAddress, Links)>>,
    pub(super) topology: Topology,
    pub(super) demotions: Demotions,
    edges: Edges,
    prefix: Box<str>,
}

/// Why a command failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommandFailure {
    /// The address, the cause and advice.
    pub message: String,
    /// The server was not reached, did not answer, or does not serve now. Otherwise it has refused the command.
    pub is_away: bool,
}

impl CommandFailure {
    pub fn away(message: String) -> Self {
        Self { message, is_away: true }
    }
}

impl From<CommandFailure> for String {
    fn from(failure: CommandFailure) -> Self {
        failure.message
    }
}

/// What is sent.
#[derive(Clone, Copy)]
enum Sent<'c> {
    Command(&'c Cmd),
    Pipeline(&'c Pipeline),
    Script(&'c ScriptInvocation<'c>),
}

impl Sent<'_> {
    async fn over<T: FromRedisValue>(self, link: &mut Link) -> Result<T, RedisError> {
        match self {
            Self::Command(command) => command.query_async(link).await,
            Self::Pipeline(commands) => {
                let replies = link.req_packed_commands(commands, 0, commands.len()).await?;
                let is_moved = |reply: &Value| code(reply) == Some("MOVED");
                let is_demoted =
                    |reply: &Value| code(reply).is_some_and(|code| demotes(failure::kind_of_reply(code)));
                // None of the commands was executed.
                let of_all = replies.iter().find(|reply| is_demoted(reply));
                match of_all.or_else(|| replies.first().filter(|_| replies.iter().all(is_moved))) {
                    Some(Value::ServerError(error)) => Err(error.clone().into()),
                    _ => Ok(T::from_redis_value(Value::Array(replies))?),
                }
            }
            Self::Script(script) => script.invoke_async(link).await,
        }
    }
}

impl CommandPool {
    pub(super) fn new(dialer: Dialer, topology: &Topology, prefix: &str, edges: &Edges) -> Self {
        Self {
            dialer,
            servers: Mutex::default(),
            topology: topology.clone(),
            demotions: Demotions::default(),
            edges: edges.clone(),
            prefix: prefix.into(),
        }
    }

    /// The same with connections of its own, for another thread.
    pub(super) fn separate(&self) -> Self {
        Self::new(self.dialer.clone(), &self.topology, &self.prefix, &self.edges)
    }

    pub fn edges(&self) -> &Edges {
        &self.edges
    }

    /// The name of a key that is not a counter. All of them are on one server of a cluster.
    pub fn key(&self, name: &str) -> String {
        format!("{}{{tollgate}}:{name}", self.prefix)
    }

    /// Runs a command on the server that owns `key`.
    ///
    /// # Errors
    /// When the server cannot be reached or rejects the command: the address, the cause and advice.
    pub async fn command<T: FromRedisValue>(&self, key: &str, command: &Cmd) -> Result<T, String> {
        Ok(self.run(key, Sent::Command(command)).await?)
    }

    /// Runs commands in one pipeline on the server that owns `key`.
    pub async fn pipeline<T: FromRedisValue>(&self, key: &str, commands: &Pipeline) -> Result<T, String> {
        let mut replies: Vec<Value> = self.run(key, Sent::Pipeline(commands)).await?;
        for (command, reply) in commands.cmd_iter().zip(&mut replies) {
            // While the slot moves, some keys are on another server.
            if code(reply).is_some_and(|code| ["ASK", "MOVED", "TRYAGAIN"].contains(&code)) {
                *reply = self.run(key, Sent::Command(command)).await?;
            }
        }
        let read = commands.query_async(&mut Received(replies)).await;
        let to = self.owner(key)?;
        read.map_err(|error| self.explain(&to, &text(&error)))
    }

    /// Runs a script on the server that owns `key`.
    pub async fn script<T: FromRedisValue>(
        &self,
        key: &str,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, CommandFailure> {
        self.run(key, Sent::Script(script)).await
    }

    /// Subscribes to a channel, on the server that owns a key of this name.
    pub async fn subscribe(&self, channel: &str) -> Result<Messages<'_>, String> {
        self.edges.timer.timeout(DISCOVERY, self.wait_for_owner(channel)).await;
        let owner = self.owner(channel)?;
        let subscribed = Messages::subscribe(self, &self.dialer, owner, channel);
        let subscribed = self.edges.timer.timeout(TIMEOUT, subscribed).await;
        subscribed.unwrap_or_else(|| Err(format!("redis: {}", late())))
    }

    /// Waits until a master owns the key.
    async fn wait_for_owner(&self, key: &str) {
        let changed = self.topology.changed();
        loop {
            // No change is missed from here on.
            let next = changed.notified();
            if self.owner(key).is_ok() {
                return;
            }
            next.await;
        }
    }

    /// Follows redirections. A server executes nothing that it refuses in these ways.
    async fn run<T: FromRedisValue>(&self, key: &str, sent: Sent<'_>) -> Result<T, CommandFailure> {
        let timer = &*self.edges.timer;
        let until = after(timer.now(), TIMEOUT);
        let owner = || self.owner(key).map_err(CommandFailure::away);
        let mut to = owner()?;
        let mut is_asking = false;
        let mut redirects = 0;
        let mut is_renewed = false;
        loop {
            let mut link = self.link(&to).await.map_err(CommandFailure::away)?;
            link.is_asking = is_asking;
            let error = match timer.timeout(TIMEOUT, sent.over(&mut link)).await {
                Some(Ok(value)) => return Ok(value),
                Some(Err(error)) => error,
                None => io::Error::from(io::ErrorKind::TimedOut).into(),
            };
            let text = text(&error);
            let kind = failure::kind_of_reply(&text);
            let is_demoted = demotes(kind);
            let is_lost = error.is_io_error() || error.is_connection_dropped() || error.is_timeout();
            if is_demoted {
                // Another server may be behind the address now.
                self.renew(&to, link);
            } else if is_lost {
                drop(Taken::take(link));
            }
            // A master may have become a replica, and slots may have moved.
            self.topology.request_refresh();
            match slots::redirection(&text, &to) {
                Some((next, ask)) if redirects < MAX_REDIRECTS => {
                    (to, is_asking, redirects) = (next, ask, redirects + 1);
                    continue;
                }
                None if text.starts_with("TRYAGAIN") && timer.now() < until => {
                    redirects = 0;
                    timer.sleep(PAUSE).await;
                }
                None if is_demoted && !is_renewed => is_renewed = true,
                _ => {
                    let is_away = is_lost || is_demoted || kind == FailureKind::ClusterDown;
                    return Err(CommandFailure { message: self.explain(&to, &text), is_away });
                }
            }
            (to, is_asking) = (owner()?, false);
        }
    }

    /// A connection to a server.
    async fn link(&self, to: &ServerAddress) -> Result<Taken, String> {
        let links = self.links(to)?;
        let taken = self.edges.timer.timeout(TIMEOUT, Box::pin(take(&links))).await;
        let taken = taken.unwrap_or_else(|| Err(format!("redis {to}: {}", late())));
        taken.inspect_err(|_| self.topology.request_refresh())
    }

    fn links(&self, to: &ServerAddress) -> Result<Links, String> {
        let mut servers = lock(&self.servers);
        if let Some((_, links)) = servers.iter().find(|(known, _)| known == to) {
            return Ok(links.clone());
        }
        // Forget former masters, and those that were redirected to, so that they do not accumulate.
        let current = self.topology.servers();
        servers.retain(|(known, _)| current.masters.contains(known));
        let links = links(self.dialer.clone(), to.clone(), &self.edges)?;
        servers.push((to.clone(), links.clone()));
        Ok(links)
    }

    /// Closes all connections to a server that refuses to work as a master, so that the next ones reach what is behind its
    /// address now.
    fn renew(&self, server: &ServerAddress, link: Taken) {
        drop(Taken::take(link));
        lock(&self.servers).retain(|(known, _)| known != server);
        self.demotions.note();
    }

    /// The error with advice.
    fn explain(&self, address: &ServerAddress, text: &str) -> String {
        let (kind, own) = (failure::kind_of_reply(text), self.key(""));
        let hint = match kind {
            FailureKind::Denied => &format!(
                "{}; the user of {REDIS_AUTH} needs the key pattern ~{own}* and the channel &{own}changes",
                failure::hint(kind)
            ),
            FailureKind::ClusterDown if text.starts_with("TRYAGAIN") => {
                "; some of the keys have moved to another server and others have not"
            }
            kind => failure::hint(kind),
        };
        format!("redis {address}: {text}{hint}")
    }

    /// The server that owns a key.
    pub(super) fn owner(&self, key: &str) -> Result<ServerAddress, String> {
        let servers = self.topology.servers();
        let owner = servers.owner(key.as_bytes()).and_then(|owner| servers.masters.get(owner));
        owner.cloned().ok_or_else(|| {
            self.topology.request_refresh();
            "redis: no known master owns the key".to_owned()
        })
    }
}

/// The first word of an error reply.
fn code(reply: &Value) -> Option<&str> {
    match reply {
        Value::ServerError(error) => Some(error.code()),
        _ => None,
    }
}

/// True for the errors of a server that does not work as a master.
fn demotes(kind: FailureKind) -> bool {
    matches!(kind, FailureKind::ReadOnly | FailureKind::Loading)
}

fn late() -> String {
    format!("no reply within {TIMEOUT:?}; check the server and the network")
}

/// An error reply as the server sent it, or what else has failed.
fn text(error: &RedisError) -> String {
    if error.is_timeout() {
        return late();
    }
    let replies = error.clone().into_server_errors();
    match replies.as_deref().and_then(<[_]>::first) {
        Some((_, reply)) => {
            let words: Vec<_> = [Some(reply.code()), reply.details()].into_iter().flatten().collect();
            failure::without_words(&words.join(" ")).to_owned()
        }
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use deadpool_redis::redis::make_extension_error;

    use super::*;

    #[test]
    fn an_error_reply_is_shown_as_it_was_sent() {
        let reply = make_extension_error("NOAUTH".to_owned(), Some("Log in.".to_owned()));
        assert_eq!(text(&reply), "NOAUTH Log in.");
        assert_eq!(failure::kind_of_reply(&text(&reply)), FailureKind::Auth);
        let unknown = "unknown command 'HGET', with args beginning with: 'user=ann' ".to_owned();
        let unknown = make_extension_error("ERR".to_owned(), Some(unknown));
        assert_eq!(text(&unknown), "ERR unknown command 'HGET'");
        let late = RedisError::from(io::Error::from(io::ErrorKind::TimedOut));
        assert!(text(&late).contains("no reply within 5s"));
    }
}
