//! Follows the overrides in Redis.
//!
//! Each replica subscribes to the changes that `shared` publishes, and compares the version of the hash with its own every
//! two seconds, so that it misses no change. When another server owns the channel, it subscribes there. A replica that
//! missed a change catches up by the log of the last changes, or reads the whole hash. If the version in Redis does not
//! follow from its own, Redis has lost changes, which it writes back (`history`). While Redis is unreachable the known
//! overrides stay in force. If Redis has lost its data when it returns, one replica writes the overrides back.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use deadpool_redis::redis::{Script, cmd, pipe};
use tracing::{info, warn};

use super::{
    file::read_change,
    history::{Change, EVERYTHING, Rest, Step, path_to, rest, restoring, step},
    index::{Draft, Index},
    model::timestamp,
    progress::Progress,
    shared::{
        BATCH, COMMIT_SECONDS, COMMITTING, LOG, Required, VERSION, begin_commit, change, channel,
        publish_keys, switch, unlink, write_missing,
    },
    sweep,
};
use clock::{Time, timer::Interval};
use counters::Resets;
use faults::mutex::lock;
use redis_store::{CommandPool, End, Messages};

const POLL: Duration = Duration::from_secs(2);

const SWEEP: Duration = Duration::from_secs(1);

const PAUSE: Duration = Duration::from_secs(1);

/// The lock of the replica that writes lost overrides back.
const RESTORING: &str = "overrides:restoring";

/// Its time to live, which each batch renews: if the replica fails or ends meanwhile, another one begins again.
const RESTORE_SECONDS: u64 = 5;

static EXPIRE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/expire.lua")));

pub struct Follower {
    /// Connections that belong to this thread.
    pub pool: Arc<CommandPool>,
    pub index: Arc<Index>,
    /// The [`Keeper`](super::Keeper) has it too.
    pub progress: Arc<Progress>,
    pub on_reset: Box<dyn Fn(&Resets) + Send + Sync>,
    pub on_refund: Box<dyn Fn(&Resets) + Send + Sync>,
}

impl Follower {
    pub async fn announce_refunds(&self, full_keys: &[String]) -> Result<(), String> {
        publish_keys(&self.pool, "refund", full_keys).await.map(drop)
    }

    /// Follows Redis; never returns.
    pub async fn follow(&self) {
        let (mut failing, mut is_first) = (false, true);
        loop {
            let end = match self.pool.subscribe(&channel(&self.pool)).await {
                Ok(messages) => {
                    if !std::mem::take(&mut is_first) {
                        // Messages were missed. Overrides are compared; resets cannot be.
                        (self.on_reset)(&Resets::Unknown);
                    }
                    self.follow_messages(messages, &mut failing).await
                }
                Err(failure) => End::Failed(failure),
            };
            let End::Failed(failure) = end else { continue };
            is_first = false;
            self.progress.settle();
            if !failing {
                warn!(overrides = self.index.len(), "overrides: {failure}; keeping previous overrides");
            }
            failing = true;
            self.note_expired();
            self.pool.edges().timer.sleep(PAUSE).await;
        }
    }

    /// Follows one subscription until it ends.
    async fn follow_messages(&self, mut messages: Messages<'_>, failing: &mut bool) -> End {
        let timer = &*self.pool.edges().timer;
        let (mut poll, mut sweep) = (Interval::new(timer, POLL), Interval::new(timer, SWEEP));
        loop {
            let done = tokio::select! {
                // Messages first: they may have the missed change.
                biased;
                message = messages.next() => match message {
                    Ok(message) => self.handle(&message).await,
                    Err(end) => return end,
                },
                () = poll.tick() => self.compare().await,
                () = sweep.tick() => self.sweep().await,
            };
            if let Err(failure) = done {
                return End::Failed(failure);
            }
            if std::mem::replace(failing, false) {
                info!(overrides = self.index.len(), "overrides: recovered");
            }
        }
    }

    async fn compare(&self) -> Result<(), String> {
        match self.version_and_time().await? {
            Some(version) if self.progress.history().version() == version => {}
            Some(_) => self.catch_up().await?,
            None if self.index.is_empty() => self.progress.adopt("", Vec::new()),
            None => self.restore().await?,
        }
        self.progress.settle();
        Ok(())
    }

    fn now(&self) -> Time {
        self.pool.edges().clock.now()
    }

    /// The version in Redis. Measures the clock of Redis too.
    async fn version_and_time(&self) -> Result<Option<String>, String> {
        let key = self.pool.key("overrides");
        let mut commands = pipe();
        commands.cmd("HGET").arg(&key).arg(VERSION).cmd("TIME");
        let sent = self.now();
        let (version, (seconds, micros)): (_, (u64, u64)) = self.pool.pipeline(&key, &commands).await?;
        // The server has read it halfway between.
        let read = sent.micros().midpoint(self.now().micros());
        let theirs = Time::from_seconds(seconds).micros().saturating_add(micros);
        self.index.set_time(Time::from_micros(theirs), Time::from_micros(read));
        Ok(version)
    }

    async fn version_in_redis(&self) -> Result<Option<String>, String> {
        let key = self.pool.key("overrides");
        self.pool.command(&key, cmd("HGET").arg(&key).arg(VERSION)).await
    }

    async fn handle(&self, message: &str) -> Result<(), String> {
        for (event, handler) in [("reset\n", &self.on_reset), ("refund\n", &self.on_refund)] {
            if let Some(keys) = message.strip_prefix(event) {
                handler(&serde_json::from_str(keys).map_or(Resets::Unknown, Resets::Of));
                return Ok(());
            }
        }
        let Some(change) = message.strip_prefix("overrides\n").and_then(Change::parse) else { return Ok(()) };
        let (is_in_force, is_next) = {
            let history = self.progress.history();
            (history.has(&change.after), history.continues_with(&change))
        };
        if is_in_force {
            return Ok(());
        }
        if !is_next {
            return self.catch_up().await;
        }
        self.apply(change)?;
        self.sweep().await
    }

    /// Applies a change that follows from the version in force.
    fn apply(&self, change: Change) -> Result<(), String> {
        self.set_all(change.lines())?;
        self.progress.advance(change);
        Ok(())
    }

    fn set_all<'a>(&self, lines: impl Iterator<Item = &'a str>) -> Result<(), String> {
        let mut draft = self.index.draft();
        for line in lines {
            if let Err(error) = read_change(line).and_then(|one| self.index.add_to(&mut draft, one)) {
                warn!("overrides: ignoring an invalid override in redis: {error}");
            }
        }
        self.index.add(&draft)
    }

    /// Goes from the version in force to that of Redis.
    async fn catch_up(&self) -> Result<(), String> {
        let key = self.pool.key("overrides");
        let mut commands = pipe();
        commands.cmd("HGET").arg(&key).arg(VERSION).cmd("LRANGE").arg(self.pool.key(LOG)).arg(0).arg(-1);
        let (version, log): (Option<String>, Vec<String>) = self.pool.pipeline(&key, &commands).await?;
        // If Redis has lost the hash meanwhile, the next comparison detects it.
        let Some(version) = version else { return Ok(()) };
        let path = path_to(&version, &log);
        let known = self.progress.history().clone();
        if known.version() == version {
            return Ok(());
        }
        match step(&known, &path) {
            Step::Apply(changes) if !changes.iter().any(Change::is_of_everything) => {
                for change in changes {
                    self.apply(change)?;
                }
            }
            Step::Apply(_) | Step::Read => self.read_all(&version, path).await?,
            Step::Restore => self.restore().await?,
            Step::Diverged { new, lost } => {
                let id = |line: &str| read_change(line).ok().map(|one| one.target.id());
                match rest(&known, &new, &lost, id) {
                    Rest::Superseded => {
                        let lost = lost.len();
                        warn!("redis lost {lost} changes of overrides before an import, which replaces them");
                        self.read_all(&version, path).await?;
                    }
                    Rest::Everything => {
                        self.set_all(new.iter().flat_map(Change::lines))?;
                        self.replace_all(known.version(), &version).await?;
                    }
                    Rest::Lines(lines) => {
                        self.write_back(known.version(), &version, path, &new, &lines).await?;
                    }
                }
            }
        }
        self.sweep().await
    }

    /// Writes changes back that Redis has lost, after applying the new ones. If Redis changes meanwhile, nothing is
    /// written, and the next comparison decides again.
    async fn write_back(
        &self,
        own: &str,
        version: &str,
        mut path: Vec<Change>,
        new: &[Change],
        lines: &[(String, &str)],
    ) -> Result<(), String> {
        if new.iter().any(Change::is_of_everything) {
            let draft = self.scan().await?;
            self.index.replace(&draft)?;
        }
        self.set_all(new.iter().flat_map(Change::lines).chain(lines.iter().map(|(_, line)| *line)))?;
        if lines.is_empty() {
            self.progress.adopt(version, path);
            return Ok(());
        }
        // A removal is an override that expired at second 0.
        let is_removed = |line: &str| read_change(line).is_ok_and(|one| one.expires == Some(0));
        let field = |(id, line): &(String, &str)| {
            (id.clone(), if is_removed(line) { String::new() } else { (*line).to_owned() })
        };
        let fields: Vec<_> = lines.iter().map(field).collect();
        let texts: Vec<_> = lines.iter().map(|(_, line)| *line).collect();
        let body = restoring(own, &texts.join("\n"));
        let written = change(&self.pool, own, Required::Exactly(version), body, &fields).await?;
        if let Some(change) = written {
            warn!(overrides = lines.len(), "redis lost changes of overrides; wrote them back");
            let after = change.after.clone();
            path.push(change);
            self.progress.adopt(&after, path);
        }
        Ok(())
    }

    /// Replaces all overrides in Redis, which has lost an import, by the known ones. Changes meanwhile win.
    async fn replace_all(&self, own: &str, version: &str) -> Result<(), String> {
        // If something fails, the next comparison decides again.
        let Some(commit) = begin_commit(&self.pool).await? else { return Ok(()) };
        let merged = self.pool.key(&format!("overrides:merged:{commit}"));
        let mut switched = None;
        // Changes before the commit began are not noted.
        if self.version_in_redis().await?.as_deref() == Some(version) {
            let length =
                write_missing(&self.pool, &merged, &self.index, (COMMITTING, COMMIT_SECONDS)).await?;
            switched = switch(&self.pool, own, &merged, &commit, length, &restoring(own, EVERYTHING)).await?;
        }
        if switched.is_none() {
            return unlink(&self.pool, &self.pool.key(COMMITTING)).await;
        }
        warn!(overrides = self.index.len(), "redis lost an import of overrides; wrote it back");
        Ok(())
    }

    /// Reads the whole hash, which has this version or a later one. Changes during the read may be missing, and their
    /// messages follow.
    async fn read_all(&self, version: &str, path: Vec<Change>) -> Result<(), String> {
        let draft = self.scan().await?;
        // Redis may have lost the hash meanwhile; the next comparison detects it.
        if self.version_in_redis().await?.is_none() {
            return Ok(());
        }
        self.index.replace(&draft)?;
        info!(overrides = self.index.len(), "overrides: read from redis");
        self.progress.adopt(version, path);
        Ok(())
    }

    async fn scan(&self) -> Result<Draft, String> {
        let key = self.pool.key("overrides");
        let (mut draft, mut cursor, mut is_logged) = (Draft::default(), 0_u64, false);
        loop {
            let mut scan = cmd("HSCAN");
            scan.arg(&key).arg(cursor).arg("COUNT").arg(BATCH);
            let (next, fields): (u64, Vec<String>) = self.pool.command(&key, &scan).await?;
            for [id, value] in fields.as_chunks::<2>().0 {
                if id == VERSION {
                    continue;
                }
                let added = read_change(value).and_then(|one| self.index.add_to(&mut draft, one));
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
        let (key, lock) = (self.pool.key("overrides"), self.pool.key(RESTORING));
        let mut take = cmd("SET");
        take.arg(&lock).arg(1).arg("NX").arg("EX").arg(RESTORE_SECONDS);
        if self.pool.command::<Option<String>>(&lock, &take).await?.is_none() {
            return Ok(());
        }
        write_missing(&self.pool, &key, &self.index, (RESTORING, RESTORE_SECONDS)).await?;
        let own = self.progress.history().version().to_owned();
        // The lock is not removed but expires: other replicas may have detected the loss at the same time.
        change(&self.pool, &own, Required::Any, restoring(&own, EVERYTHING), &[]).await?;
        warn!(overrides = self.index.len(), "redis lost the overrides; wrote them back");
        Ok(())
    }

    /// Removes expired overrides from the index and from Redis; those that cannot be removed from Redis now are noted.
    async fn sweep(&self) -> Result<(), String> {
        self.note_expired();
        let key = self.pool.key("overrides");
        loop {
            let some: Vec<_> = lock(&self.progress.expired).iter().take(BATCH).cloned().collect();
            if some.is_empty() {
                return Ok(());
            }
            let mut call = EXPIRE.key(&key);
            for (id, end) in &some {
                call.arg(id).arg(timestamp(*end)).arg(*end);
            }
            self.pool.script::<u64>(&key, &call).await?;
            lock(&self.progress.expired).drain(..some.len());
        }
    }

    /// Removes expired overrides from the index. They are not in force for a second already, so that the end has passed by
    /// the clock of Redis too.
    fn note_expired(&self) {
        let before = self.now().micros().saturating_sub(1_000_000);
        let expired = sweep(&self.index, Time::from_micros(before)).into_iter();
        let ends = expired.map(|one| (one.target.id(), one.expires.unwrap_or_default()));
        lock(&self.progress.expired).extend(ends);
    }
}
