//! Overrides in Redis, shared by all replicas: one hash, a field for each override.
//!
//! A script writes a change to the hash, logs it and publishes it. All replicas follow the changes (`follower`): they are
//! numbered, and each names the version before, so that a replica notices a missing change (`history`).
//!
//! The channel also carries resets of counters, for the over-limit caches and the leases of all replicas, and refunds, for
//! the over-limit caches.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use deadpool_redis::redis::{Script, cmd, pipe};

use super::{
    ChangeError,
    file::{read_change, removed},
    history::{Change, EVERYTHING},
    index::Index,
    model::Override,
    progress::Progress,
    target::Target,
};
use clock::timer::Random;
use redis_store::{CommandPool, MAX_MESSAGE};

/// The field of the hash with its version. Identifiers do not have this character.
pub(super) const VERSION: &str = "@";

/// The last changes, newest first.
pub(super) const LOG: &str = "overrides:log";

/// The commit in progress, with the identifiers that change meanwhile.
pub(super) const COMMITTING: &str = "overrides:committing";

/// Maximum number of fields in a command: about a millisecond of the server's time.
pub(super) const BATCH: usize = 1_000;

/// The largest import that is published as one change.
const SMALL: u64 = 500;

/// An unfinished import expires after this time.
const IMPORT_SECONDS: u64 = 900;

/// The time after which a commit without progress expires, because its replica was lost.
pub(super) const COMMIT_SECONDS: u64 = 30;

/// The longest wait until a change is in force in this process. Without the message, the next comparison applies it.
const IN_FORCE: Duration = Duration::from_secs(3);

/// The longest wait until a large import is in force in this process.
const IMPORT_IN_FORCE: Duration = Duration::from_secs(120);

static CHANGE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(include_str!("scripts/log.lua"), include_str!("scripts/change.lua")))
});
static BEGIN: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/begin.lua")));
static SWITCH: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(include_str!("scripts/log.lua"), include_str!("scripts/switch.lua")))
});

pub(super) struct Shared {
    pub(super) pool: CommandPool,
    pub(super) progress: Arc<Progress>,
}

impl Shared {
    pub(super) async fn set(&self, all: &[Override]) -> Result<(), ChangeError> {
        let lines: Vec<(String, String)> =
            all.iter().map(|one| (one.target.id(), one.to_stored().to_string())).collect();
        let body = lines.iter().map(|(_, line)| line.as_str()).collect::<Vec<_>>().join("\n");
        self.change(&lines, body).await
    }

    pub(super) async fn remove(&self, target: &Target) -> Result<(), ChangeError> {
        self.change(&[(target.id(), String::new())], removed(target).to_string()).await
    }

    /// Writes fields (an empty value removes one), publishes `body`, and waits until the change is in force in this process.
    async fn change(&self, fields: &[(String, String)], body: String) -> Result<(), ChangeError> {
        let own = self.progress.history().version().to_owned();
        let change = change(&self.pool, &own, Required::Kept, body, fields).await;
        let Some(change) = change.map_err(ChangeError::unavailable)? else {
            return Err(ChangeError::Conflict(
                "redis lost the overrides, and they are being written back; try again in a few seconds"
                    .to_owned(),
            ));
        };
        self.reaches(&change.after, IN_FORCE).await;
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
            self.set(&all).await?;
            self.abort(import).await?;
            return Ok(length);
        }
        let Some(commit) = begin_commit(&self.pool).await.map_err(ChangeError::unavailable)? else {
            return Err(ChangeError::Conflict(format!(
                "another import is being committed; commit again when it is done, or after {COMMIT_SECONDS} seconds if its replica was lost"
            )));
        };
        let switched = self.merge_and_switch(&key, length, &commit, index).await;
        if switched.is_err() {
            // Unless Redis is unreachable; then it expires.
            let _ = unlink(&self.pool, &self.pool.key(COMMITTING)).await;
        }
        switched.map(|()| length)
    }

    /// Adds the known overrides to an import, and replaces the hash by it. Changes meanwhile are noted under `committing`.
    async fn merge_and_switch(
        &self,
        import: &str,
        length: u64,
        commit: &str,
        index: &Arc<Index>,
    ) -> Result<(), ChangeError> {
        let key = self.pool.key("overrides");
        // Earlier changes are not noted, and must be in the index.
        let before: Result<Option<String>, _> =
            self.pool.command(&key, cmd("HGET").arg(&key).arg(VERSION)).await;
        match before.map_err(ChangeError::unavailable)? {
            Some(before) if self.reaches(&before, IN_FORCE).await => {}
            None if self.progress.history().version().is_empty() => {}
            _ => {
                let message = "this replica has not read the latest overrides; commit again in a few seconds";
                return Err(ChangeError::Conflict(message.to_owned()));
            }
        }
        // Under another name, so that an import that other overrides were added to is not committed again.
        let merged = self.pool.key(&format!("overrides:merged:{commit}"));
        let renamed: Result<(), _> = self.pool.command(import, cmd("RENAME").arg(import).arg(&merged)).await;
        renamed.map_err(ChangeError::unavailable)?;
        let added = write_missing(&self.pool, &merged, index, (COMMITTING, COMMIT_SECONDS))
            .await
            .map_err(ChangeError::unavailable)?;
        let length = length + added;
        let own = self.progress.history().version().to_owned();
        let switched = switch(&self.pool, &own, &merged, commit, length, EVERYTHING).await;
        let Some(after) = switched.map_err(ChangeError::unavailable)? else {
            return Err(ChangeError::Conflict(format!(
                "redis lost the import, or the commit made no progress for {COMMIT_SECONDS} seconds; import again"
            )));
        };
        self.reaches(&after, IMPORT_IN_FORCE).await;
        Ok(())
    }

    pub(super) async fn announce_reset(&self, full_keys: &[String]) -> Result<u64, String> {
        publish_keys(&self.pool, "reset", full_keys).await
    }

    /// Waits until a version is in force in this process. Returns false if it is not.
    async fn reaches(&self, version: &str, patience: Duration) -> bool {
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
    let (channel, mut rest, mut least) = (channel(pool), full_keys, u64::MAX);
    while !rest.is_empty() {
        // A byte of a key, which callers choose, takes up to six in JSON.
        let mut bytes = 0;
        let fits = |key: &&String| {
            bytes += key.len();
            bytes <= MAX_MESSAGE / 8
        };
        let count = rest.iter().take_while(fits).count().max(1);
        let (some, others) = rest.split_at(count);
        let message = format!("{event}\n{}", serde_json::Value::from(some));
        let reached: u64 = pool.command(&channel, cmd("PUBLISH").arg(&channel).arg(message)).await?;
        (rest, least) = (others, least.min(reached));
    }
    if least == 0 {
        return Err(format!("redis: no replica follows the channel {channel:?} on the server that owns it"));
    }
    Ok(least)
}

pub(super) fn channel(pool: &CommandPool) -> String {
    pool.key("changes")
}

/// The version that a change requires in Redis.
#[derive(Clone, Copy)]
pub(super) enum Required<'v> {
    Any,
    /// Any, but not that of an empty Redis if this replica knows one.
    Kept,
    Exactly(&'v str),
}

/// Writes fields (an empty value removes one), logs and publishes `body`. `own` is this replica's version. `None` if Redis
/// has another version than is required.
pub(super) async fn change(
    pool: &CommandPool,
    own: &str,
    required: Required<'_>,
    body: String,
    fields: &[(String, String)],
) -> Result<Option<Change>, String> {
    let key = pool.key("overrides");
    let mut call = CHANGE.key(&key);
    call.key(pool.key(COMMITTING)).key(pool.key(LOG));
    call.arg(token(&*pool.edges().random)).arg(channel(pool)).arg(own);
    call.arg(match required {
        Required::Any => "any",
        Required::Kept => "kept",
        Required::Exactly(version) => version,
    });
    call.arg(&body);
    for (id, value) in fields {
        call.arg(id).arg(value);
    }
    let versions: Option<(String, String)> = pool.script(&key, &call).await?;
    Ok(versions.map(|(before, after)| Change {
        before: before.into(),
        after: after.into(),
        body: body.into(),
    }))
}

/// Begins to replace all overrides, and returns the identifier of the commit. `None` if another one is in progress.
/// Changes meanwhile are noted under `COMMITTING`.
pub(super) async fn begin_commit(pool: &CommandPool) -> Result<Option<String>, String> {
    let (committing, commit) = (pool.key(COMMITTING), token(&*pool.edges().random));
    let mut begin = BEGIN.key(&committing);
    begin.arg(&commit).arg(COMMIT_SECONDS);
    let is_first: bool = pool.script(&committing, &begin).await?;
    Ok(is_first.then_some(commit))
}

/// Replaces all overrides by those of another hash, and returns the new version. `None` if Redis has lost the commit or one
/// of this many overrides.
pub(super) async fn switch(
    pool: &CommandPool,
    own: &str,
    merged: &str,
    commit: &str,
    length: u64,
    body: &str,
) -> Result<Option<String>, String> {
    let (key, old) = (pool.key("overrides"), pool.key(&format!("overrides:old:{commit}")));
    let mut call = SWITCH.key(&key);
    call.key(merged).key(&old).key(pool.key(COMMITTING)).key(pool.key(LOG));
    call.arg(token(&*pool.edges().random)).arg(channel(pool)).arg(own).arg(commit).arg(length).arg(body);
    let after: Option<String> = pool.script(&key, &call).await?;
    unlink(pool, if after.is_some() { &old } else { merged }).await?;
    Ok(after)
}

pub(super) async fn unlink(pool: &CommandPool, key: &str) -> Result<(), String> {
    pool.command(key, cmd("UNLINK").arg(key)).await
}

/// Adds the overrides of an index to a hash, without replacing those that it has, and returns how many were added. A lock,
/// which is a key and its seconds to live, does not expire meanwhile.
pub(super) async fn write_missing(
    pool: &CommandPool,
    key: &str,
    index: &Arc<Index>,
    (lock, seconds): (&str, u64),
) -> Result<u64, String> {
    let (mut added, mut some) = (0_u64, Vec::with_capacity(BATCH));
    let snapshot = index.checkpoint();
    let mut all = snapshot.all().peekable();
    while let Some(one) = all.next() {
        some.push((one.target.id(), one.to_stored().to_string()));
        if some.len() < BATCH && all.peek().is_some() {
            continue;
        }
        let mut commands = pipe();
        commands.cmd("EXPIRE").arg(pool.key(lock)).arg(seconds).ignore();
        for (id, value) in some.drain(..) {
            commands.cmd("HSETNX").arg(key).arg(id).arg(value);
        }
        let new: Vec<u64> = pool.pipeline(key, &commands).await?;
        added += new.iter().sum::<u64>();
    }
    Ok(added)
}
