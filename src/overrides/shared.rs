//! Overrides in Redis, which all replicas share: one hash, a field for each override.
//!
//! A change writes the hash and publishes the change in one step on the server. Each replica follows the channel, and
//! compares the hash's version with its own every other second, so that it misses nothing: a version is drawn at
//! random, and a message names the one before it. While Redis is lost the overrides that are known stay in force. When
//! it comes back without its data, one replica writes them back.
//!
//! The channel also carries resets of counters, for the over-limit caches and the leases of all replicas.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use deadpool_redis::redis::{Msg, Script, cmd, pipe};
use futures_util::StreamExt as _;
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tracing::{info, warn};

use super::{
    file::{Change, removed},
    index::Index,
    keeper::{ChangeError, sweep},
    model::{Override, Target, timestamp},
};
use crate::{
    clock::Clock,
    store::{Resets, redis::Side},
};

/// The field of the hash that has its version. No identifier has this character.
const VERSION: &str = "@";

/// How often the version is compared.
const POLL: Duration = Duration::from_secs(2);

/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// Fields that are read or written in one command: about a millisecond of the server's time.
const AT_ONCE: usize = 1_000;

/// An import that is smaller is one change.
const SMALL: usize = 500;

/// An import that is not finished within this is forgotten.
const IMPORT_SECONDS: u64 = 900;

/// How long a change waits until it is in force here. It is in any case, by the next comparison.
const IN_FORCE: Duration = Duration::from_secs(3);

/// How long a large import waits for the same.
const IMPORT_IN_FORCE: Duration = Duration::from_secs(120);

static CHANGE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/change.lua")));
static SWITCH: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/switch.lua")));
static ENDED: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/ended.lua")));

/// What the thread that follows Redis and those who change overrides share.
pub struct State {
    /// The version of the overrides in force; `None` until they were read once, and while there are none.
    version: watch::Sender<Option<String>>,
    /// The overrides were read once, or Redis was not reached.
    settled: watch::Sender<bool>,
}

/// Overrides in Redis, for those who change them.
pub(super) struct Shared {
    side: Side,
    state: Arc<State>,
}

impl Default for State {
    fn default() -> Self {
        Self { version: watch::Sender::new(None), settled: watch::Sender::new(false) }
    }
}

impl State {
    /// Waits until the overrides were read once, or Redis turned out to be unreachable: until then a service that has
    /// just started lets clients pass that an override blocks.
    pub async fn settled(&self) {
        // The sender is `self`, so it is never gone.
        let _ = self.settled.subscribe().wait_for(|settled| *settled).await;
    }

    fn version(&self) -> Option<String> {
        self.version.borrow().clone()
    }
}

impl Shared {
    pub(super) fn new(side: Side, state: Arc<State>) -> Self {
        Self { side, state }
    }

    pub(super) async fn set(&self, all: &[Override]) -> Result<(), ChangeError> {
        let lines: Vec<(String, String)> =
            all.iter().map(|one| (one.target.id(), one.to_json().to_string())).collect();
        let body = lines.iter().map(|(_, line)| line.as_str()).collect::<Vec<_>>().join("\n");
        self.change(&lines, &body).await
    }

    pub(super) async fn remove(&self, target: &Target) -> Result<(), ChangeError> {
        self.change(&[(target.id(), String::new())], &removed(target).to_string()).await
    }

    /// Writes fields (an empty value removes one), publishes `body`, and waits until the change is in force here.
    async fn change(&self, fields: &[(String, String)], body: &str) -> Result<(), ChangeError> {
        let (key, after) = (self.side.key("overrides"), token());
        let mut versions = self.state.version.subscribe();
        let known = self.state.version().unwrap_or_default();
        let mut call = CHANGE.key(&key);
        call.arg(&after).arg(channel(&self.side)).arg(known).arg(body);
        for (id, value) in fields {
            call.arg(id).arg(value);
        }
        let done: bool = self.side.script(&key, &call).await.map_err(ChangeError::unavailable)?;
        if !done {
            return Err(ChangeError::Conflict(
                "redis has lost its overrides and they are being written back; try again in a few seconds"
                    .to_owned(),
            ));
        }
        let _ = timeout(IN_FORCE, versions.wait_for(|version| version.as_ref() == Some(&after))).await;
        Ok(())
    }

    /// Adds overrides to an import.
    pub(super) async fn import(&self, import: &str, all: &[Override]) -> Result<u64, ChangeError> {
        let key = self.import_key(import);
        let mut commands = pipe();
        for some in all.chunks(AT_ONCE) {
            let command = commands.cmd("HSET").arg(&key);
            for one in some {
                command.arg(one.target.id()).arg(one.to_json().to_string());
            }
            command.ignore();
        }
        commands.cmd("EXPIRE").arg(&key).arg(IMPORT_SECONDS).ignore().cmd("HLEN").arg(&key);
        let (length,): (u64,) =
            self.side.pipeline(&key, &commands).await.map_err(ChangeError::unavailable)?;
        Ok(length)
    }

    pub(super) async fn abort(&self, import: &str) -> Result<(), ChangeError> {
        let key = self.import_key(import);
        let done = self.side.command::<u64>(&key, cmd("UNLINK").arg(&key)).await;
        done.map(|_| ()).map_err(ChangeError::unavailable)
    }

    /// Puts an import in force as a whole: the overrides that are there are added to it, and it takes their place in
    /// one step.
    pub(super) async fn commit(&self, import: &str, index: &Arc<Index>) -> Result<u64, ChangeError> {
        let temporary = self.import_key(import);
        let length: u64 = self
            .side
            .command(&temporary, cmd("HLEN").arg(&temporary))
            .await
            .map_err(ChangeError::unavailable)?;
        if length == 0 {
            return Err(ChangeError::NotFound(format!(
                "no import {import:?}; it is empty, aborted, in force already, or older than {} minutes",
                IMPORT_SECONDS / 60
            )));
        }
        if length <= SMALL as u64 {
            let values: Vec<String> = self
                .side
                .command(&temporary, cmd("HVALS").arg(&temporary))
                .await
                .map_err(ChangeError::unavailable)?;
            let all = values.iter().filter_map(|line| match Change::read(line) {
                Ok(Change::Set(one)) => Some(one),
                _ => None,
            });
            self.set(&all.collect::<Vec<_>>()).await?;
            self.abort(import).await?;
            return Ok(length);
        }
        for _ in 0..3 {
            let before = self.state.version().unwrap_or_default();
            write_missing(&self.side, &temporary, index).await.map_err(ChangeError::unavailable)?;
            if self.switch(&temporary, &before).await? {
                return Ok(length);
            }
            // Somebody has set an override meanwhile, which is here in a moment.
            sleep(PAUSE).await;
        }
        Err(ChangeError::Conflict("other overrides change all the time; commit the import again".to_owned()))
    }

    async fn switch(&self, temporary: &str, before: &str) -> Result<bool, ChangeError> {
        let (key, after) = (self.side.key("overrides"), token());
        let old = self.side.key(&format!("overrides:old:{after}"));
        let mut versions = self.state.version.subscribe();
        let mut call = SWITCH.key(&key);
        call.key(temporary).key(&old).arg(&after).arg(channel(&self.side)).arg(before);
        let done: bool = self.side.script(&key, &call).await.map_err(ChangeError::unavailable)?;
        if done {
            let unlinked = self.side.command::<u64>(&old, cmd("UNLINK").arg(&old)).await;
            unlinked.map_err(ChangeError::unavailable)?;
            let _ =
                timeout(IMPORT_IN_FORCE, versions.wait_for(|version| version.as_ref() == Some(&after))).await;
        }
        Ok(done)
    }

    /// Notifies all replicas that counters were reset.
    pub(super) async fn announce_reset(&self, full_keys: &[String]) -> Result<(), String> {
        let channel = channel(&self.side);
        let message = format!("reset\n{}", serde_json::Value::from(full_keys));
        let published = self.side.command::<u64>(&channel, cmd("PUBLISH").arg(&channel).arg(message)).await;
        published.map(|_| ())
    }

    fn import_key(&self, import: &str) -> String {
        self.side.key(&format!("overrides:import:{import}"))
    }
}

/// A random text that no other change has.
pub(super) fn token() -> String {
    format!("{:032x}", fastrand::u128(..))
}

fn channel(side: &Side) -> String {
    side.key("changes")
}

/// Writes the overrides of an index into a hash, but those that it has.
async fn write_missing(side: &Side, key: &str, index: &Arc<Index>) -> Result<(), String> {
    let (chunks, mut written) = tokio::sync::mpsc::channel::<Vec<(String, String)>>(4);
    let index = index.clone();
    let reading = tokio::task::spawn_blocking(move || {
        let mut some = Vec::with_capacity(AT_ONCE);
        index.for_each(|one| {
            some.push((one.target.id(), one.to_json().to_string()));
            some.len() < AT_ONCE || chunks.blocking_send(std::mem::take(&mut some)).is_ok()
        });
        let _ = chunks.blocking_send(some);
    });
    while let Some(some) = written.recv().await {
        if some.is_empty() {
            continue;
        }
        let mut commands = pipe();
        for (id, value) in &some {
            commands.cmd("HSETNX").arg(key).arg(id).arg(value).ignore();
        }
        side.pipeline::<()>(key, &commands).await?;
    }
    reading.await.map_err(|error| error.to_string())
}

/// Follows Redis until the process ends.
pub struct Follower<C> {
    /// Connections of this thread.
    pub side: Arc<Side>,
    /// The overrides in force.
    pub index: Arc<Index>,
    /// Shared with those who change them.
    pub state: Arc<State>,
    /// The clock by which overrides end.
    pub clock: C,
    /// Called with counters that were reset.
    pub on_reset: Box<dyn Fn(&Resets) + Send>,
}

impl<C: Clock> Follower<C> {
    /// Follows Redis; never returns.
    pub async fn follow(&self) {
        let mut failing = false;
        loop {
            let failure = match self.side.subscribe(&channel(&self.side)).await {
                Ok(messages) => {
                    if failing {
                        // Whatever was published meanwhile is lost. Overrides are compared; resets cannot be.
                        (self.on_reset)(&Resets::Unknown);
                    }
                    self.follow_messages(messages.into_on_message(), &mut failing).await
                }
                Err(failure) => failure,
            };
            self.state.settled.send_replace(true);
            if !failing {
                warn!(overrides = self.index.len(), "overrides: {failure}; keeping the known overrides");
            }
            failing = true;
            sweep(&self.index, self.clock.now());
            sleep(PAUSE).await;
        }
    }

    /// Follows one connection until it fails, and returns why.
    async fn follow_messages(
        &self,
        mut messages: impl futures_util::Stream<Item = Msg> + Unpin,
        failing: &mut bool,
    ) -> String {
        let mut poll = interval(POLL);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sweep = interval(Duration::from_secs(1));
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let done = tokio::select! {
                message = messages.next() => match message {
                    Some(message) => self.handle(&message.get_payload::<String>().unwrap_or_default()).await,
                    None => Err("redis: the connection was closed".to_owned()),
                },
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

    /// Compares the version with that of the hash, and reads what is new.
    async fn compare(&self) -> Result<(), String> {
        let key = self.side.key("overrides");
        let version: Option<String> = self.side.command(&key, cmd("HGET").arg(&key).arg(VERSION)).await?;
        match version {
            Some(version) if self.state.version().as_ref() == Some(&version) => {}
            Some(_) => self.read_all().await?,
            None if self.index.is_empty() => self.adopt(None),
            None => self.restore().await?,
        }
        self.state.settled.send_replace(true);
        Ok(())
    }

    async fn handle(&self, message: &str) -> Result<(), String> {
        if let Some(keys) = message.strip_prefix("reset\n") {
            (self.on_reset)(&serde_json::from_str(keys).map_or(Resets::Unknown, Resets::Of));
            return Ok(());
        }
        let Some(change) = message.strip_prefix("overrides\n") else { return Ok(()) };
        let mut parts = change.splitn(3, '\n');
        let (before, after, body) = (
            parts.next().unwrap_or_default(),
            parts.next().unwrap_or_default(),
            parts.next().unwrap_or_default(),
        );
        let own = self.state.version();
        if own.as_deref() == Some(after) {
            return Ok(());
        }
        if body == "*" {
            return self.read_all().await;
        }
        if before.is_empty() && own.is_some() && !self.index.is_empty() {
            return self.restore().await;
        }
        if own.as_deref().unwrap_or_default() != before {
            return self.read_all().await;
        }
        let mut draft = self.index.draft();
        for line in body.lines() {
            let change = Change::read(line);
            if let Err(error) =
                change.and_then(|change| self.index.add_to(&mut draft, &change.into_override()))
            {
                warn!("overrides: ignoring one in redis: {error}");
            }
        }
        self.index.add(&draft)?;
        self.adopt(Some(after));
        self.sweep().await
    }

    /// Reads the whole hash.
    async fn read_all(&self) -> Result<(), String> {
        let key = self.side.key("overrides");
        let mut version: Option<String> = self.side.command(&key, cmd("HGET").arg(&key).arg(VERSION)).await?;
        // A hash that changes while it is read is read once more; after that the next comparison does so.
        for _ in 0..2 {
            let Some(before) = version else { return Ok(()) };
            let draft = self.scan(&key).await?;
            version = self.side.command(&key, cmd("HGET").arg(&key).arg(VERSION)).await?;
            if version.as_ref() == Some(&before) {
                self.index.replace(&draft)?;
                info!(overrides = self.index.len(), "overrides: read from redis");
                self.adopt(Some(&before));
                return self.sweep().await;
            }
        }
        Ok(())
    }

    async fn scan(&self, key: &str) -> Result<super::index::Draft, String> {
        let (mut draft, mut cursor, mut wrong) = (self.index.draft(), 0_u64, 0_usize);
        loop {
            let mut scan = cmd("HSCAN");
            scan.arg(key).arg(cursor).arg("COUNT").arg(AT_ONCE);
            let (next, fields): (u64, Vec<String>) = self.side.command(key, &scan).await?;
            for [id, value] in fields.as_chunks::<2>().0 {
                if id == VERSION {
                    continue;
                }
                let change = Change::read(value);
                let added = change.and_then(|change| self.index.add_to(&mut draft, &change.into_override()));
                if let Err(error) = added {
                    wrong = wrong.saturating_add(1);
                    if wrong == 1 {
                        warn!(field = id, "overrides: ignoring one in redis: {error}");
                    }
                }
            }
            if next == 0 {
                return Ok(draft);
            }
            cursor = next;
        }
    }

    /// Writes the known overrides back into a Redis that has lost them. One replica does, and the others read.
    async fn restore(&self) -> Result<(), String> {
        let (key, lock) = (self.side.key("overrides"), self.side.key("overrides:restoring"));
        let mut take = cmd("SET");
        take.arg(&lock).arg(1).arg("NX").arg("EX").arg(60);
        if self.side.command::<Option<String>>(&lock, &take).await?.is_none() {
            return Ok(());
        }
        write_missing(&self.side, &key, &self.index).await?;
        let after = token();
        let mut call = CHANGE.key(&key);
        call.arg(&after).arg(channel(&self.side)).arg("").arg("*");
        // The lock is left to expire: other replicas may have noticed the loss at the same time.
        let _: bool = self.side.script(&key, &call).await?;
        warn!(overrides = self.index.len(), "overrides: redis had lost them; wrote them back");
        Ok(())
    }

    /// Removes overrides that have ended, here and in Redis.
    async fn sweep(&self) -> Result<(), String> {
        let ended = sweep(&self.index, self.clock.now());
        if ended.is_empty() {
            return Ok(());
        }
        let key = self.side.key("overrides");
        let now = timestamp(u32::try_from(self.clock.now().seconds()).unwrap_or(u32::MAX));
        for some in ended.chunks(AT_ONCE) {
            let mut call = ENDED.key(&key);
            call.arg(&now);
            for one in some {
                call.arg(one.target.id());
            }
            self.side.script::<u64>(&key, &call).await?;
        }
        Ok(())
    }

    fn adopt(&self, version: Option<&str>) {
        self.state.version.send_if_modified(|known| {
            let is_new = known.as_deref() != version;
            *known = version.map(str::to_owned);
            is_new
        });
    }
}
