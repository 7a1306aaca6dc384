//! Overrides in Redis, shared by all replicas: one hash, a field for each override.
//!
//! A script writes a change to the hash, lists its version and publishes it. All replicas follow the changes (`follower`):
//! each names the version before, so that a replica notices a missing change (`versions`).
//!
//! The channel also carries resets of counters, for the over-limit caches and the leases of all replicas, and refunds, for
//! the over-limit caches.

use std::{sync::Arc, time::Duration};

use deadpool_redis::redis::{cmd, pipe};

use super::{
    ChangeError, Durability,
    file::{read_change, removed},
    index::Index,
    model::Override,
    progress::Progress,
    target::Target,
    versions::Versions,
};
use clock::timer::Random;
use redis_store::{CommandFailure, CommandPool, MAX_MESSAGE, Script};
use tracing::warn;

/// The field of the hash with its version. Identifiers do not have this character.
pub(super) const VERSION: &str = "@";

/// The identifiers of the overrides that changed last, with their versions as scores. [`VERSION`] has the one up to which
/// changes are not listed.
pub(super) const VERSIONS: &str = "overrides:versions";

/// The key of the identifiers in replies, if values are hidden.
pub(super) const ID_KEY: &str = "overrides:id_key";

/// The text of a change that requires to compare versions, as after an import.
pub(super) const UNKNOWN: &str = "*";

/// The commit that replaces the hash.
const COMMITTING: &str = "overrides:committing";

/// Maximum number of fields in a command: about a millisecond of the server's time.
pub(super) const BATCH: usize = 1_000;

/// The largest import that is published as one change.
const SMALL: u64 = 500;

/// An unfinished import expires after this time.
const IMPORT_SECONDS: u64 = 900;

/// The time after which a commit without progress expires, because its replica was lost.
const COMMIT_SECONDS: u64 = 30;

/// How long a change of one override waits for Redis: less than the command line does for its reply.
const ATTEMPT: Duration = Duration::from_secs(ATTEMPT_SECONDS);
const ATTEMPT_SECONDS: u64 = 2;

/// The longest wait until a change is in force in this process. Without the message, the next comparison applies it.
const IN_FORCE: Duration = Duration::from_secs(3);

/// The longest wait until a large import is in force in this process.
const IMPORT_IN_FORCE: Duration = Duration::from_secs(120);

static CHANGE: Script =
    Script::new(concat!(include_str!("scripts/version.lua"), include_str!("scripts/change.lua")));
static SWITCH: Script =
    Script::new(concat!(include_str!("scripts/version.lua"), include_str!("scripts/switch.lua")));

pub(super) struct Shared {
    pub(super) pool: CommandPool,
    pub(super) progress: Arc<Progress>,
}

/// An override that a change sets, or removes if its value is empty. Without a version it has that of the change.
pub(super) struct Field {
    pub(super) id: String,
    pub(super) version: Option<u64>,
    pub(super) value: String,
}

impl Shared {
    pub(super) async fn set(&self, one: &Override, index: &Index) -> Result<Durability, ChangeError> {
        let stored = one.to_stored().to_string();
        let fields = [field(&one.target, stored.clone())];
        self.change(&fields, &stored, index, || index.set(one)).await
    }

    pub(super) async fn remove(&self, target: &Target, index: &Index) -> Result<Durability, ChangeError> {
        let fields = [field(target, String::new())];
        let in_force_here = || {
            index.remove(target);
            Ok(())
        };
        self.change(&fields, &removed(target).to_string(), index, in_force_here).await
    }

    /// Changes one override, and waits until the change is in force in this process. While Redis is away, the change is in
    /// force here alone and owed: the follower writes it to Redis when it is back, like one that Redis has lost.
    async fn change(
        &self,
        fields: &[Field; 1],
        body: &str,
        index: &Index,
        in_force_here: impl FnOnce() -> Result<(), String>,
    ) -> Result<Durability, ChangeError> {
        let edges = self.pool.edges();
        let sent = index.time(edges.clock.now()).micros();
        let until = (self.progress.at() > 0).then(|| sent.saturating_add(ATTEMPT_SECONDS * 1_000_000));
        let attempt = change(&self.pool, self.progress.at(), until, body, fields);
        let failure = match edges.timer.timeout(ATTEMPT, attempt).await {
            Some(Ok(version)) => {
                if let Some(version) = version {
                    self.reaches(version, IN_FORCE).await;
                }
                return Ok(Durability::Stored);
            }
            Some(Err(failure)) => failure,
            None => CommandFailure::away(format!("redis: no reply within {ATTEMPT:?}")),
        };
        if !failure.is_away {
            return Err(ChangeError::unavailable(failure.message));
        }
        let [Field { id, .. }] = fields;
        let now = index.time(edges.clock.now());
        if !self.progress.owe(now, id, in_force_here).map_err(ChangeError::Invalid)? {
            return Err(ChangeError::unavailable(failure.message));
        }
        warn!(
            error = failure.message,
            owed = self.progress.owed(),
            "redis is away: a change of overrides is owed"
        );
        Ok(Durability::Owed)
    }

    /// Stores overrides as one change, or none of them.
    async fn store(&self, all: &[Override]) -> Result<(), ChangeError> {
        let fields: Vec<_> = all.iter().map(|one| field(&one.target, one.to_stored().to_string())).collect();
        let body = fields.iter().map(|field| field.value.as_str()).collect::<Vec<_>>().join("\n");
        let changed = change(&self.pool, self.progress.at(), None, &body, &fields).await;
        if let Some(version) = changed.map_err(|failure| ChangeError::unavailable(failure.message))? {
            self.reaches(version, IN_FORCE).await;
        }
        Ok(())
    }

    /// Adds overrides to an import, and returns the number of its overrides.
    pub(super) async fn add_to_import(
        &self,
        import: &str,
        all: &[Override],
        known: Option<u64>,
    ) -> Result<u64, ChangeError> {
        let key = self.import_key(import);
        let mut commands = pipe();
        commands.cmd("HLEN").arg(&key);
        for some in all.chunks(BATCH) {
            let command = commands.cmd("HSET").arg(&key);
            for one in some {
                command.arg(one.target.id()).arg(one.to_stored().to_string());
            }
            command.ignore();
        }
        commands.cmd("EXPIRE").arg(&key).arg(IMPORT_SECONDS).ignore().cmd("HLEN").arg(&key);
        let (before, length): (u64, u64) =
            self.pool.pipeline(&key, &commands).await.map_err(ChangeError::unavailable)?;
        self.check_length(import, before, known).await?;
        Ok(length)
    }

    /// Aborts an import of which Redis has lost a part, after a failover or a restart.
    async fn check_length(&self, import: &str, length: u64, known: Option<u64>) -> Result<(), ChangeError> {
        let Some(known) = known.filter(|known| *known != length) else { return Ok(()) };
        self.abort(import).await?;
        Err(ChangeError::Conflict(format!(
            "redis has {length} of the import's {known} overrides; import again"
        )))
    }

    pub(super) async fn abort(&self, import: &str) -> Result<(), ChangeError> {
        let key = self.import_key(import);
        unlink(&self.pool, &key).await.map_err(ChangeError::unavailable)
    }

    /// Puts a whole import in force: the existing overrides are added to it, and it replaces them in one step. Overrides
    /// that change meanwhile keep the change.
    pub(super) async fn commit(
        &self,
        import: &str,
        known: Option<u64>,
        index: &Arc<Index>,
    ) -> Result<u64, ChangeError> {
        let key = self.import_key(import);
        let length: Result<u64, _> = self.pool.command(&key, cmd("HLEN").arg(&key)).await;
        let length = length.map_err(ChangeError::unavailable)?;
        if length == 0 {
            return Err(ChangeError::NotFound(format!(
                "no import {import:?}; it is empty, was aborted or committed, or is older than {} minutes",
                IMPORT_SECONDS / 60
            )));
        }
        self.check_length(import, length, known).await?;
        if length <= SMALL {
            let values: Result<Vec<String>, _> = self.pool.command(&key, cmd("HVALS").arg(&key)).await;
            let values = values.map_err(ChangeError::unavailable)?;
            let all: Vec<_> = values.iter().filter_map(|value| read_change(value).ok()).collect();
            self.store(&all).await?;
            self.abort(import).await?;
            return Ok(length);
        }
        // Later changes are kept.
        let since = Versions::up_to(self.progress.at());
        let replaced = replace(&self.pool, Some((&key, length)), &since, index, COMMIT_SECONDS).await;
        match replaced.map_err(ChangeError::unavailable)? {
            Replaced::Busy => Err(ChangeError::Conflict(format!(
                "another import is being committed; commit again when it is done, or after {COMMIT_SECONDS} seconds if its replica was lost"
            ))),
            Replaced::Lost => Err(ChangeError::Conflict(format!(
                "redis lost the import, or the commit made no progress for {COMMIT_SECONDS} seconds; import again"
            ))),
            Replaced::At(version) => {
                self.reaches(version, IMPORT_IN_FORCE).await;
                Ok(length)
            }
        }
    }

    /// Waits until a version is in force in this process. Returns false if it is not.
    async fn reaches(&self, version: u64, patience: Duration) -> bool {
        self.progress.reaches(version, patience, &*self.pool.edges().timer).await
    }

    fn import_key(&self, import: &str) -> String {
        self.pool.key(&format!("overrides:import:{import}"))
    }
}

pub(super) fn token(random: &dyn Random) -> String {
    format!("{:016x}{:016x}", random.number(), random.number())
}

/// Sends the full keys of counters to all replicas, with what happened to the counters. Returns how many replicas it
/// reached; it is an error if it reached none, since this one follows the channel too.
pub(super) async fn publish_keys(
    pool: &CommandPool,
    event: &str,
    full_keys: &[String],
) -> Result<u64, String> {
    let channel = channel(pool);
    let mut rest = full_keys;
    let mut least = u64::MAX;
    while !rest.is_empty() {
        // A byte of a key, which callers choose, takes up to six in JSON.
        let mut bytes = 0;
        let fits = |key: &&String| {
            bytes += key.len();
            bytes <= MAX_MESSAGE / 8
        };
        let count = rest.iter().take_while(fits).count().max(1);
        let (some, others) = rest.split_at(count);
        let reached = publish(pool, &channel, format!("{event}\n{}", serde_json::Value::from(some))).await?;
        (rest, least) = (others, least.min(reached));
    }
    Ok(least)
}

/// The same of any counters: replicas that do not find keys forget all that they know.
pub(super) async fn publish_any(pool: &CommandPool, event: &str) -> Result<u64, String> {
    publish(pool, &channel(pool), format!("{event}\n{UNKNOWN}")).await
}

async fn publish(pool: &CommandPool, channel: &str, message: String) -> Result<u64, String> {
    let reached = pool.command(channel, cmd("PUBLISH").arg(channel).arg(message)).await?;
    if reached == 0 {
        return Err(format!("redis: no replica follows the channel {channel:?} on the server that owns it"));
    }
    Ok(reached)
}

pub(super) fn channel(pool: &CommandPool) -> String {
    pool.key("changes")
}

fn field(target: &Target, value: String) -> Field {
    Field { id: target.id(), version: None, value }
}

/// Writes fields and publishes `body`. `own` is this replica's version. After `until`, by its clock in microseconds, Redis
/// refuses it. Returns the version of the change; `None` if Redis has later ones of all fields.
pub(super) async fn change(
    pool: &CommandPool,
    own: u64,
    until: Option<u64>,
    body: &str,
    fields: &[Field],
) -> Result<Option<u64>, CommandFailure> {
    let key = pool.key("overrides");
    let or_empty = |number: Option<u64>| number.map_or_else(String::new, |number| number.to_string());
    let mut arguments = vec![channel(pool), own.to_string(), body.to_owned(), or_empty(until)];
    for Field { id, version, value } in fields {
        arguments.extend([id.clone(), or_empty(*version), value.clone()]);
    }
    match pool.script(&key, &CHANGE, &[&key, &pool.key(VERSIONS)], &arguments).await? {
        Some(0) => Err(CommandFailure::away("redis: it read the change too late".to_owned())),
        version => Ok(version),
    }
}

pub(super) enum Replaced {
    /// Another replica is replacing them.
    Busy,
    /// Redis has lost the import or the commit, or another import was committed.
    Lost,
    At(u64),
}

/// Replaces all overrides in Redis by those of an index and of an import, which is a hash with this many. Overrides that
/// changed after `since` stay. Without progress it ends after some seconds, and another replica may begin.
pub(super) async fn replace(
    pool: &CommandPool,
    import: Option<(&str, u64)>,
    since: &Versions,
    index: &Index,
    seconds: u64,
) -> Result<Replaced, String> {
    let committing = pool.key(COMMITTING);
    let commit = token(&*pool.edges().random);
    let mut begin = cmd("SET");
    begin.arg(&committing).arg(&commit).arg("NX").arg("EX").arg(seconds);
    if pool.command::<Option<String>>(&committing, &begin).await?.is_none() {
        return Ok(Replaced::Busy);
    }
    let switched = switch(pool, import, since, index, (&commit, seconds)).await;
    if !matches!(switched, Ok(Some(_))) {
        // Unless Redis is unreachable; then it expires.
        let _ = unlink(pool, &committing).await;
    }
    Ok(switched?.map_or(Replaced::Lost, Replaced::At))
}

async fn switch(
    pool: &CommandPool,
    import: Option<(&str, u64)>,
    since: &Versions,
    index: &Index,
    (commit, seconds): (&str, u64),
) -> Result<Option<u64>, String> {
    let key = pool.key("overrides");
    let committing = pool.key(COMMITTING);
    let [merged, old] = ["merged", "old"].map(|name| pool.key(&format!("overrides:{name}:{commit}")));
    let mut length = 0;
    if let Some((import, overrides)) = import {
        // Under another name, so that an import that other overrides were added to is not committed again.
        pool.command::<()>(import, cmd("RENAME").arg(import).arg(&merged)).await?;
        length = overrides;
    }
    let snapshot = index.checkpoint();
    let mut some = Vec::with_capacity(BATCH);
    let mut all = snapshot.all().peekable();
    while let Some(one) = all.next() {
        some.push(one);
        if some.len() < BATCH && all.peek().is_some() {
            continue;
        }
        let mut commands = pipe();
        for one in some.drain(..) {
            commands.cmd("HSETNX").arg(&merged).arg(one.target.id()).arg(one.to_stored().to_string());
        }
        commands.cmd("EXPIRE").arg(&committing).arg(seconds).ignore();
        commands.cmd("EXPIRE").arg(&merged).arg(IMPORT_SECONDS).ignore();
        length += pool.pipeline::<Vec<u64>>(&merged, &commands).await?.iter().sum::<u64>();
    }
    let versions = pool.key(VERSIONS);
    let keys = [&key, &versions, &committing, &merged, &old].map(String::as_str);
    let kind = if import.is_some() { "import" } else { "" };
    let mut arguments = vec![channel(pool), since.at.to_string(), commit.to_owned(), length.to_string()];
    arguments.extend([kind.to_owned(), since.floor.to_string()]);
    for (id, version) in &since.listed {
        arguments.extend([id.clone(), version.to_string()]);
    }
    let after: Option<u64> = pool.script(&key, &SWITCH, &keys, &arguments).await?;
    unlink(pool, if after.is_some() { &old } else { &merged }).await?;
    Ok(after)
}

async fn unlink(pool: &CommandPool, key: &str) -> Result<(), String> {
    pool.command(key, cmd("UNLINK").arg(key)).await
}
