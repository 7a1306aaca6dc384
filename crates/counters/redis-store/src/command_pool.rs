//! Commands to Redis other than counting: overrides, resets of counters, and the list of replicas.
//!
//! They have connections separate from those that count (`links`), so that a large or slow command delays no request. The
//! connections belong to the runtime that opens them: each thread has its own [`CommandPool`].

use std::{sync::Mutex, time::Duration};

use deadpool_redis::redis::{Cmd, FromRedisValue, Pipeline, cmd};

use super::{
    dialer::{Dialer, REDIS_AUTH},
    failure::{self, FailureKind},
    links::{Link, Links, Received, exchange, links, take, value},
    messages::{Demotions, Messages},
    resp::Reply,
    script::Script,
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

/// The first word of the error of a server that does not know a script's hash.
const UNKNOWN_SCRIPT: &str = "NOSCRIPT";

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
        read(self.run_one(key, command).await?)
    }

    /// Runs commands in one pipeline on the server that owns `key`.
    pub async fn pipeline<T: FromRedisValue>(&self, key: &str, commands: &Pipeline) -> Result<T, String> {
        let mut replies = self.run(key, &commands.get_packed_pipeline(), commands.len()).await?;
        for (command, reply) in commands.cmd_iter().zip(&mut replies) {
            // While the slot moves, some keys are on another server.
            if code(reply).is_some_and(|code| ["ASK", "MOVED", "TRYAGAIN"].contains(&code)) {
                *reply = self.run_one(key, command).await?;
            }
        }
        if let Some(error) = replies.iter().find_map(error) {
            return Err(self.explain(&self.owner(key)?, error));
        }
        let received = &mut Received(replies.into_iter().map(value).collect());
        commands.query_async(received).await.map_err(|error| format!("redis: {error}"))
    }

    /// Runs a script on the server that owns `key`.
    pub async fn script<T: FromRedisValue>(
        &self,
        key: &str,
        script: &Script,
        keys: &[&str],
        arguments: &[String],
    ) -> Result<T, CommandFailure> {
        let call = |name: &str, text: &str| {
            let mut call = cmd(name);
            call.arg(text).arg(keys.len()).arg(keys).arg(arguments);
            call
        };
        let mut reply = self.run_one(key, &call("EVALSHA", script.hash())).await?;
        if code(&reply) == Some(UNKNOWN_SCRIPT) {
            reply = self.run_one(key, &call("EVAL", script.source())).await?;
        }
        read(reply).map_err(|message| CommandFailure { message, is_away: false })
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

    async fn run_one(&self, key: &str, command: &Cmd) -> Result<Reply, CommandFailure> {
        let replies = self.run(key, &command.get_packed_command(), 1).await?;
        Ok(replies.into_iter().next().unwrap_or(Reply::Nil))
    }

    /// Sends commands, and follows redirections. A server executes nothing that it refuses in these ways.
    async fn run(&self, key: &str, commands: &[u8], count: usize) -> Result<Vec<Reply>, CommandFailure> {
        let timer = &*self.edges.timer;
        let until = after(timer.now(), TIMEOUT);
        let owner = || self.owner(key).map_err(CommandFailure::away);
        let mut to = owner()?;
        let mut is_asking = false;
        let mut redirects = 0;
        let mut is_renewed = false;
        loop {
            let mut link = self.link(&to).await.map_err(CommandFailure::away)?;
            let exchanged = timer.timeout(TIMEOUT, exchange(&mut link, commands, count, is_asking)).await;
            let replies = match exchanged {
                Some(Ok(replies)) => replies,
                lost => {
                    drop(Link::take(link));
                    self.topology.request_refresh();
                    let late = || format!("redis {to}: {}", late());
                    let message = lost.and_then(Result::err).map_or_else(late, |failure| failure.message);
                    return Err(CommandFailure::away(message));
                }
            };
            let Some(error) = refusal(&replies) else { return Ok(replies) };
            let kind = failure::kind_of_reply(error);
            let is_demoted = demotes(kind);
            if is_demoted {
                // Another server may be behind the address now.
                self.renew(&to, link);
            }
            // A master may have become a replica, and slots may have moved.
            self.topology.request_refresh();
            match slots::redirection(error, &to) {
                Some((next, ask)) if redirects < MAX_REDIRECTS => {
                    (to, is_asking, redirects) = (next, ask, redirects + 1);
                    continue;
                }
                None if error.starts_with("TRYAGAIN") && timer.now() < until => {
                    redirects = 0;
                    timer.sleep(PAUSE).await;
                }
                None if is_demoted && !is_renewed => is_renewed = true,
                _ => {
                    let is_away = is_demoted || kind == FailureKind::ClusterDown;
                    return Err(CommandFailure { message: self.explain(&to, error), is_away });
                }
            }
            (to, is_asking) = (owner()?, false);
        }
    }

    /// A connection to a server.
    async fn link(&self, to: &ServerAddress) -> Result<Link, String> {
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
        let links = links(self.dialer.clone(), to.clone())?;
        servers.push((to.clone(), links.clone()));
        Ok(links)
    }

    /// Closes all connections to a server that refuses to work as a master, so that the next ones reach what is behind its
    /// address now.
    fn renew(&self, server: &ServerAddress, link: Link) {
        drop(Link::take(link));
        lock(&self.servers).retain(|(known, _)| known != server);
        self.demotions.note();
    }

    /// The error with advice.
    fn explain(&self, address: &ServerAddress, text: &str) -> String {
        let kind = failure::kind_of_reply(text);
        let own = self.key("");
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

fn read<T: FromRedisValue>(reply: Reply) -> Result<T, String> {
    T::from_redis_value(value(reply)).map_err(|error| format!("redis: {error}"))
}

/// The error of commands of which none was executed.
fn refusal(replies: &[Reply]) -> Option<&str> {
    let is_demoted = |error: &&str| demotes(failure::kind_of_reply(error));
    let is_moved = |reply: &Reply| code(reply) == Some("MOVED");
    match replies {
        [only] => error(only).filter(|_| code(only) != Some(UNKNOWN_SCRIPT)),
        [first, ..] if replies.iter().all(is_moved) => error(first),
        several => several.iter().filter_map(error).find(is_demoted),
    }
}

fn error(reply: &Reply) -> Option<&str> {
    match reply {
        Reply::Error(error) => Some(error),
        _ => None,
    }
}

/// The first word of an error reply.
fn code(reply: &Reply) -> Option<&str> {
    error(reply)?.split(' ').next()
}

/// True for the errors of a server that does not work as a master.
fn demotes(kind: FailureKind) -> bool {
    matches!(kind, FailureKind::ReadOnly | FailureKind::Loading)
}

fn late() -> String {
    format!("no reply within {TIMEOUT:?}; check the server and the network")
}
