//! Overrides in Redis, shared by all replicas: one hash, a field for each override.
//!
//! A script writes a change to the hash and publishes it. Each replica subscribes to the channel, and compares the
//! version of the hash with its own every two seconds, so that it misses no change: versions are random, and a message
//! names the previous one. A replica that missed one reads the whole hash, unless the messages that are still queued
//! lead from its version to the next. While Redis is unreachable the known overrides stay in force. If Redis has lost its data
//! when it returns, one replica writes the overrides back.
//!
//! The channel also carries resets of counters, for the over-limit caches and the leases of all replicas.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use deadpool_redis::redis::{Cmd, Msg, Script, cmd, pipe};
use futures_util::StreamExt as _;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use tracing::{info, warn};

use super::{
    ChangeError,
    file::{read_change, removed},
    index::{Draft, Index},
    model::{Override, Target, timestamp},
    sweep,
    versions::State,
};
use crate::{
    clock::{Clock, Time},
    store::{Resets, redis::CommandPool},
};

/// The field of the hash with its version. Identifiers do not have this character.
const VERSION: &str = "@";

/// The interval at which versions are compared.
const POLL: Duration = Duration::from_secs(2);

/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// Maximum number of fields in a command: about a millisecond of the server's time.
const BATCH: usize = 1_000;

/// The largest import that is published as one change.
const SMALL: u64 = 500;

/// An unfinished import expires after this time.
const IMPORT_SECONDS: u64 = 900;

/// The time after which a commit without progress expires, because its replica was lost.
const COMMIT_SECONDS: u64 = 30;

/// The longest wait until a change is in force in this process. Without the message, the next comparison applies it.
const IN_FORCE: Duration = Duration::from_secs(3);

/// The longest wait until a large import is in force in this process.
const IMPORT_IN_FORCE: Duration = Duration::from_secs(120);

static CHANGE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/change.lua")));
static BEGIN: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/begin.lua")));
static SWITCH: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/switch.lua")));
static EXPIRE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/expire.lua")));

/// Changes overrides in Redis.
pub(super) struct Shared {
    pub(super) pool: CommandPool,
    pub(super) state: Arc<State>,
}

impl Shared {
    pub(super) async fn set(&self, all: &[Override]) -> Result<(), ChangeError> {
        let lines: Vec<(String, String)> =
            all.iter().map(|one| (one.target.id(), one.to_json().to_string())).collect();
        let body = lines.iter().map(|(_, line)| line.as_str()).collect::<Vec<_>>().join("\n");
        self.change(&lines, &body).await
    }

    pub(super) async fn remove(&self, target: &Target) -> Result<(), ChangeError> {
        self.change(&[(target.id(), String::new())], &removed(target).to_string()).await
    }

    /// Writes fields (an empty value removes one), publishes `body`, and waits until the change is in force in this process.
    async fn change(&self, fields: &[(String, String)], body: &str) -> Result<(), ChangeError> {
        let (key, after) = (self.pool.key("overrides"), token());
        let known = self.state.version().unwrap_or_default();
        let mut call = CHANGE.key(&key);
        call.key(self.pool.key("overrides:committing"));
        call.arg(&after).arg(channel(&self.pool)).arg(known).arg(body);
        for (id, value) in fields {
            call.arg(id).arg(value);
        }
        let done: bool = self.pool.script(&key, &call).await.map_err(ChangeError::unavailable)?;
        if !done {
            return Err(ChangeError::Conflict(
                "redis lost the overrides, and they are being written back; try again in a few seconds"
                    .to_owned(),
            ));
        }
        self.state.in_force(&after, IN_FORCE).await;
        Ok(())
    }

    /// Adds overrides to an import, and returns the number of its overrides.
    pub(super) async fn add_to_import(&self, import: &str, all: &[Override]) -> Result<u64, ChangeError> {
        let key = self.import_key(import);
        let mut commands = pipe();
        for some in all.chunks(BATCH) {
            let command = commands.cmd("HSET").arg(&key);
            for one in some {
                command.arg(one.target.id()).arg(one.to_json().to_string());
            }
            command.ignore();
        }
        commands.cmd("EXPIRE").arg(&key).arg(IMPORT_SECONDS).ignore().cmd("HLEN").arg(&key);
        let (length,): (u64,) =
            self.pool.pipeline(&key, &commands).await.map_err(ChangeError::unavailable)?;
        Ok(length)
    }

    pub(super) async fn abort(&self, import: &str) -> Result<(), ChangeError> {
        let key = self.import_key(import);
        self.unlink(&key).await
    }

    async fn unlink(&self, key: &str) -> Result<(), ChangeError> {
        self.pool.command(key, cmd("UNLINK").arg(key)).await.map_err(ChangeError::unavailable)
    }

    /// Puts a whole import in force: the existing overrides are added to it, and it replaces them in one step. Overrides
    /// that change meanwhile keep the change.
    pub(super) async fn commit(&self, import: &str, index: &Arc<Index>) -> Result<u64, ChangeError> {
        let key = self.import_key(import);
        let length: Result<u64, _> = self.pool.command(&key, cmd("HLEN").arg(&key)).await;
        let length = length.map_err(ChangeError::unavailable)?;
        if length == 0 {
            return Err(ChangeError::NotFound(format!(
                "no import {import:?}; it is empty, was aborted or committed, or is older than {} minutes",
                IMPORT_SECONDS / 60
            )));
        }
        if length <= SMALL {
            let values: Result<Vec<String>, _> = self.pool.command(&key, cmd("HVALS").arg(&key)).await;
            let values = values.map_err(ChangeError::unavailable)?;
            let all: Vec<_> = values.iter().filter_map(|value| read_change(value).ok()).collect();
            self.set(&all).await?;
            self.abort(import).await?;
            return Ok(length);
        }
        let (committing, commit) = (self.pool.key("overrides:committing"), token());
        let mut begin = BEGIN.key(&committing);
        begin.arg(&commit).arg(COMMIT_SECONDS);
        let begun = self.pool.script(&committing, &begin).await;
        let is_first: bool = begun.map_err(ChangeError::unavailable)?;
        if !is_first {
            return Err(ChangeError::Conflict(format!(
                "another import is being committed; commit again when it is done, or after {COMMIT_SECONDS} seconds if its replica was lost"
            )));
        }
        let switched = self.merge_and_switch(&key, &committing, &commit, index).await;
        if switched.is_err() {
            // Unless Redis is unreachable; then it expires.
            let _ = self.unlink(&committing).await;
        }
        switched.map(|()| length)
    }

    /// Adds the known overrides to an import, and replaces the hash by it. Changes meanwhile are noted under `committing`.
    async fn merge_and_switch(
        &self,
        import: &str,
        committing: &str,
        commit: &str,
        index: &Arc<Index>,
    ) -> Result<(), ChangeError> {
        let key = self.pool.key("overrides");
        // Earlier changes are not noted, and must be in the index.
        let before: Result<Option<String>, _> =
            self.pool.command(&key, cmd("HGET").arg(&key).arg(VERSION)).await;
        match before.map_err(ChangeError::unavailable)? {
            Some(before) if self.state.in_force(&before, IN_FORCE).await => {}
            None if self.state.version().is_none() => {}
            _ => {
                let message = "this replica has not read the latest overrides; commit again in a few seconds";
                return Err(ChangeError::Conflict(message.to_owned()));
            }
        }
        // Under another name, so that an import that other overrides were added to is not committed again.
        let merged = self.pool.key(&format!("overrides:merged:{commit}"));
        let renamed: Result<(), _> = self.pool.command(import, cmd("RENAME").arg(import).arg(&merged)).await;
        renamed.map_err(ChangeError::unavailable)?;
        let mut keep = cmd("EXPIRE");
        keep.arg(committing).arg(COMMIT_SECONDS);
        let written = write_missing(&self.pool, &merged, index, Some(keep)).await;
        written.map_err(ChangeError::unavailable)?;
        let (after, old) = (token(), self.pool.key(&format!("overrides:old:{commit}")));
        let mut call = SWITCH.key(&key);
        call.key(&merged).key(&old).key(committing).arg(&after).arg(channel(&self.pool)).arg(commit);
        let done: bool = self.pool.script(&key, &call).await.map_err(ChangeError::unavailable)?;
        if !done {
            self.unlink(&merged).await?;
            return Err(ChangeError::Conflict(format!(
                "redis lost the import, or the commit made no progress for {COMMIT_SECONDS} seconds; import again"
            )));
        }
        self.unlink(&old).await?;
        self.state.in_force(&after, IMPORT_IN_FORCE).await;
        Ok(())
    }

    /// Notifies all replicas that counters were reset.
    pub(super) async fn announce_reset(&self, full_keys: &[String]) -> Result<(), String> {
        let channel = channel(&self.pool);
        let message = format!("reset\n{}", serde_json::Value::from(full_keys));
        self.pool.command(&channel, cmd("PUBLISH").arg(&channel).arg(message)).await
    }

    fn import_key(&self, import: &str) -> String {
        self.pool.key(&format!("overrides:import:{import}"))
    }
}

/// A random identifier of a version or an import.
pub(super) fn token() -> String {
    format!("{:032x}", fastrand::u128(..))
}

fn channel(pool: &CommandPool) -> String {
    pool.key("changes")
}

/// Adds the overrides of an index to a hash, without replacing those that it has. Runs another command with each batch.
async fn write_missing(
    pool: &CommandPool,
    key: &str,
    index: &Arc<Index>,
    with_each: Option<Cmd>,
) -> Result<(), String> {
    let (chunks, mut written) = tokio::sync::mpsc::channel::<Vec<(String, String)>>(4);
    let index = index.clone();
    let reading = tokio::task::spawn_blocking(move || {
        let mut some = Vec::with_capacity(BATCH);
        index.for_each(|one| {
            some.push((one.target.id(), one.to_json().to_string()));
            some.len() < BATCH || chunks.blocking_send(std::mem::take(&mut some)).is_ok()
        });
        let _ = chunks.blocking_send(some);
    });
    while let Some(some) = written.recv().await {
        if some.is_empty() {
            continue;
        }
        let mut commands = pipe();
        if let Some(command) = &with_each {
            commands.add_command(command.clone()).ignore();
        }
        for (id, value) in &some {
            commands.cmd("HSETNX").arg(key).arg(id).arg(value).ignore();
        }
        pool.pipeline::<()>(key, &commands).await?;
    }
    reading.await.map_err(|error| error.to_string())
}

/// Follows Redis until the process ends.
pub struct Follower<C> {
    /// Connections that belong to this thread.
    pub pool: Arc<CommandPool>,
    /// The overrides in force.
    pub index: Arc<Index>,
    /// The state of the [`Keeper`](super::Keeper).
    pub state: Arc<State>,
    /// The clock of this process.
    pub clock: C,
    /// Called when counters were reset.
    pub on_reset: Box<dyn Fn(&Resets) + Send>,
}

impl<C: Clock> Follower<C> {
    /// Follows Redis; never returns.
    pub async fn follow(&self) {
        let mut failing = false;
        loop {
            let failure = match self.pool.subscribe(&channel(&self.pool)).await {
                Ok(messages) => {
                    if failing {
                        // Messages were missed. Overrides are compared; resets cannot be.
                        (self.on_reset)(&Resets::Unknown);
                    }
                    self.follow_messages(messages.into_on_message(), &mut failing).await
                }
                Err(failure) => failure,
            };
            self.state.settle();
            if !failing {
                warn!(overrides = self.index.len(), "overrides: {failure}; keeping previous overrides");
            }
            failing = true;
            sweep(&self.index, self.clock.now());
            sleep(PAUSE).await;
        }
    }

    /// Follows one connection until it fails, and returns the error.
    async fn follow_messages(
        &self,
        mut messages: impl futures_util::Stream<Item = Msg> + Unpin,
        failing: &mut bool,
    ) -> String {
        let (mut poll, mut sweep) = (interval(POLL), interval(Duration::from_secs(1)));
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let read_at = self.state.read_at();
            let done = tokio::select! {
                // Messages first: they may have the missed change.
                biased;
                message = messages.next() => match message {
                    Some(message) => self.handle(&message.get_payload::<String>().unwrap_or_default()).await,
                    None => Err("redis: connection closed".to_owned()),
                },
                () = sleep_until(read_at.unwrap_or_else(Instant::now)), if read_at.is_some() => self.read_all().await,
                _ = poll.tick() => self.compare().await,
                _ = sweep.tick() => self.sweep().await,
            };
            if let Err(failure) = done {
                return failure;
            }
            if std::mem::replace(failing, false) {
                info!(overrides = self.index.len(), "overrides: recovered");
            }
        }
    }

    /// Compares the version with that of the hash.
    async fn compare(&self) -> Result<(), String> {
        match (self.version_and_time().await?, self.state.version()) {
            (Some(_), None) => self.read_all().await?,
            // If they are equal, the messages that did not fit are older.
            (Some(version), Some(own)) if version == own => self.state.adopt(Some(&own)),
            // The messages of the changes in between may not have been received yet.
            (Some(_), Some(_)) => self.state.missed(),
            (None, _) if self.index.is_empty() => self.state.adopt(None),
            (None, _) => self.restore().await?,
        }
        self.state.settle();
        Ok(())
    }

    /// The version in Redis. Measures the clock of Redis too.
    async fn version_and_time(&self) -> Result<Option<String>, String> {
        let key = self.pool.key("overrides");
        let mut commands = pipe();
        commands.cmd("HGET").arg(&key).arg(VERSION).cmd("TIME");
        let sent = self.clock.now();
        let (version, (seconds, micros)): (_, (u64, u64)) = self.pool.pipeline(&key, &commands).await?;
        // The server has read it halfway between.
        let read = sent.micros().midpoint(self.clock.now().micros());
        let theirs = Time::from_seconds(seconds).micros().saturating_add(micros);
        self.index.set_time(Time::from_micros(theirs), Time::from_micros(read));
        Ok(version)
    }

    async fn version_in_redis(&self) -> Result<Option<String>, String> {
        let key = self.pool.key("overrides");
        self.pool.command(&key, cmd("HGET").arg(&key).arg(VERSION)).await
    }

    /// Applies a message of the channel.
    async fn handle(&self, message: &str) -> Result<(), String> {
        if let Some(keys) = message.strip_prefix("reset\n") {
            (self.on_reset)(&serde_json::from_str(keys).map_or(Resets::Unknown, Resets::Of));
            return Ok(());
        }
        let Some(change) = message.strip_prefix("overrides\n") else { return Ok(()) };
        let mut parts = change.splitn(3, '\n');
        let mut part = || parts.next().unwrap_or_default();
        let (before, after, body) = (part(), part(), part());
        let own = self.state.version();
        if own.as_deref() == Some(after) {
            self.state.adopt(Some(after));
            return Ok(());
        }
        let is_lost = before.is_empty() && own.is_some() && !self.index.is_empty();
        if is_lost && body != "*" {
            return self.restore().await;
        }
        if body == "*" || own.as_deref().unwrap_or_default() != before {
            self.state.skip(after);
            return Ok(());
        }
        let mut draft = self.index.draft();
        for line in body.lines() {
            if let Err(error) = read_change(line).and_then(|one| self.index.add_to(&mut draft, &one)) {
                warn!("overrides: ignoring an invalid override in redis: {error}");
            }
        }
        self.index.add(&draft)?;
        self.state.adopt(Some(after));
        self.sweep().await
    }

    /// Reads the whole hash. Changes during the read may be missing, and their messages follow.
    async fn read_all(&self) -> Result<(), String> {
        let version = self.version_in_redis().await?;
        let draft = self.scan().await?;
        // Redis may have lost the hash meanwhile; the next comparison detects it.
        if let (Some(version), Some(_)) = (version, self.version_in_redis().await?) {
            self.index.replace(&draft)?;
            info!(overrides = self.index.len(), "overrides: read from redis");
            self.state.adopt(Some(&version));
        } else {
            self.state.is_read();
        }
        self.sweep().await
    }

    async fn scan(&self) -> Result<Draft, String> {
        let key = self.pool.key("overrides");
        let (mut draft, mut cursor, mut is_logged) = (self.index.draft(), 0_u64, false);
        loop {
            let mut scan = cmd("HSCAN");
            scan.arg(&key).arg(cursor).arg("COUNT").arg(BATCH);
            let (next, fields): (u64, Vec<String>) = self.pool.command(&key, &scan).await?;
            for [id, value] in fields.as_chunks::<2>().0 {
                if id == VERSION {
                    continue;
                }
                let added = read_change(value).and_then(|one| self.index.add_to(&mut draft, &one));
                if let (Err(error), false) = (added, is_logged) {
                    warn!(field = id, "overrides: ignoring an invalid override in redis: {error}");
                    is_logged = true;
                }
            }
            if next == 0 {
                return Ok(draft);
            }
            cursor = next;
        }
    }

    /// Writes the known overrides back to a Redis that lost them. One replica writes, and the others read.
    async fn restore(&self) -> Result<(), String> {
        let (key, lock) = (self.pool.key("overrides"), self.pool.key("overrides:restoring"));
        let mut take = cmd("SET");
        take.arg(&lock).arg(1).arg("NX").arg("EX").arg(60);
        if self.pool.command::<Option<String>>(&lock, &take).await?.is_none() {
            return Ok(());
        }
        write_missing(&self.pool, &key, &self.index, None).await?;
        let after = token();
        let mut call = CHANGE.key(&key);
        call.key(self.pool.key("overrides:committing"));
        call.arg(&after).arg(channel(&self.pool)).arg("").arg("*");
        // The lock is not removed but expires: other replicas may have detected the loss at the same time.
        let _: bool = self.pool.script(&key, &call).await?;
        warn!(overrides = self.index.len(), "overrides: redis lost them; written back");
        Ok(())
    }

    /// Removes expired overrides from the index and from Redis. They are not in force for a second already, so that the
    /// end has passed by the clock of Redis too.
    async fn sweep(&self) -> Result<(), String> {
        let before = self.clock.now().micros().saturating_sub(1_000_000);
        let expired = sweep(&self.index, Time::from_micros(before));
        let key = self.pool.key("overrides");
        for some in expired.chunks(BATCH) {
            let mut call = EXPIRE.key(&key);
            for one in some {
                let end = one.expires.unwrap_or_default();
                call.arg(one.target.id()).arg(timestamp(end)).arg(end);
            }
            self.pool.script::<u64>(&key, &call).await?;
        }
        Ok(())
    }
}
