//! Follows the overrides in Redis.
//!
//! Each replica subscribes to the changes that `shared` publishes, and compares the version of the hash with its own every
//! two seconds, so that it misses no change. When another server owns the channel, it subscribes there. If the versions
//! differ, the replica has missed changes, or Redis has lost some: it reads what is later there, or the whole hash, and
//! writes back what is later here (`versions`). While Redis is unreachable the known overrides stay in force.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use deadpool_redis::redis::{cmd, pipe};
use tracing::{info, warn};

use super::{
    file::read_change,
    index::{Draft, Index},
    model::{Override, timestamp},
    progress::Progress,
    shared::{
        BATCH, Field, ID_KEY, Replaced, UNKNOWN, VERSION, VERSIONS, change, channel, publish_any,
        publish_keys, replace,
    },
    sweep,
    versions::Versions,
};
use clock::{Time, timer::Interval};
use counters::Resets;
use faults::{
    log_throttle::{FailureLog, LogThrottle},
    mutex::lock,
};
use recent::Quoting;
use redis_store::{CommandPool, End, Messages, Script};

const POLL: Duration = Duration::from_secs(2);

const SWEEP: Duration = Duration::from_secs(1);

/// Lines about what was read: a Redis may lose its overrides as often as they are compared.
static READ: LogThrottle = LogThrottle::new(10);

const PAUSE: Duration = Duration::from_secs(1);

/// If a replica that writes all overrides back fails or ends meanwhile, another one begins again after this time.
const RESTORE_SECONDS: u64 = 5;

static EXPIRE: Script = Script::new(include_str!("scripts/expire.lua"));

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
    /// Returns how many replicas it reached.
    pub async fn announce_refunds(&self, refunds: &Resets) -> Result<u64, String> {
        match refunds {
            Resets::Of(full_keys) => publish_keys(&self.pool, "refund", full_keys).await,
            Resets::Unknown => publish_any(&self.pool, "refund").await,
        }
    }

    /// Follows Redis; never returns.
    pub async fn follow(&self) {
        let mut is_first = true;
        let log = FailureLog::default();
        loop {
            let end = match self.pool.subscribe(&channel(&self.pool)).await {
                Ok(messages) => {
                    if !std::mem::take(&mut is_first) {
                        // Messages were missed. Overrides are compared; resets cannot be.
                        (self.on_reset)(&Resets::Unknown);
                    }
                    self.follow_messages(messages, &log).await
                }
                Err(failure) => End::Failed(failure),
            };
            let End::Failed(failure) = end else { continue };
            is_first = false;
            self.progress.settle();
            let overrides = self.index.len();
            log.failed(|suppressed| {
                warn!(overrides, suppressed, "overrides: {failure}; keeping previous overrides");
            });
            self.note_expired();
            self.pool.edges().timer.sleep(PAUSE).await;
        }
    }

    /// Follows one subscription until it ends.
    async fn follow_messages(&self, mut messages: Messages<'_>, log: &FailureLog) -> End {
        let timer = &*self.pool.edges().timer;
        let mut poll = Interval::new(timer, POLL);
        let mut sweep = Interval::new(timer, SWEEP);
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
            log.succeeded(|suppressed| {
                info!(overrides = self.index.len(), suppressed, "overrides: recovered");
            });
        }
    }

    async fn compare(&self) -> Result<(), String> {
        self.share_id_key().await?;
        if !self.progress.is_at(self.version_and_time().await?) {
            self.catch_up().await?;
        }
        self.progress.settle();
        Ok(())
    }

    /// Takes the key of identifiers that the replicas share. The first one makes it.
    async fn share_id_key(&self) -> Result<(), String> {
        let Some(new) = self.index.new_id_key() else { return Ok(()) };
        let key = self.pool.key(ID_KEY);
        let mut shared: Option<String> = self.pool.command(&key, cmd("GET").arg(&key)).await?;
        if shared.is_none() {
            // A Redis without memory refuses it. Then identifiers are those of this replica until it takes one.
            let _ = self.pool.command::<Option<String>>(&key, cmd("SET").arg(&key).arg(new).arg("NX")).await;
            shared = self.pool.command(&key, cmd("GET").arg(&key)).await?;
        }
        if let Some(shared) = shared {
            self.index.set_id_key(&shared);
        }
        Ok(())
    }

    fn now(&self) -> Time {
        self.pool.edges().clock.now()
    }

    /// The version in Redis. Measures the clock of Redis too.
    async fn version_and_time(&self) -> Result<u64, String> {
        let key = self.pool.key("overrides");
        let mut commands = pipe();
        commands.cmd("HGET").arg(&key).arg(VERSION).cmd("TIME");
        let sent = self.now();
        let (version, (seconds, micros)): (Option<u64>, (u64, u64)) =
            self.pool.pipeline(&key, &commands).await?;
        // The server has read it halfway between.
        let read = sent.micros().midpoint(self.now().micros());
        let theirs = Time::from_seconds(seconds).micros().saturating_add(micros);
        self.index.set_time(Time::from_micros(theirs), Time::from_micros(read));
        Ok(version.unwrap_or(0))
    }

    async fn handle(&self, message: &str) -> Result<(), String> {
        for (event, handler) in [("reset\n", &self.on_reset), ("refund\n", &self.on_refund)] {
            if let Some(keys) = message.strip_prefix(event) {
                handler(&serde_json::from_str(keys).map_or(Resets::Unknown, Resets::Of));
                return Ok(());
            }
        }
        let Some(change) = message.strip_prefix("overrides\n") else { return Ok(()) };
        let mut parts = change.splitn(3, '\n');
        let mut version = || parts.next()?.parse::<u64>().ok();
        let (Some(before), Some(after)) = (version(), version()) else { return Ok(()) };
        let lines = parts.next().unwrap_or(UNKNOWN);
        if after <= self.progress.at() {
            return Ok(());
        }
        if !self.progress.is_at(before) || lines == UNKNOWN {
            return self.catch_up().await;
        }
        let mut draft = self.index.draft();
        let ids = self.add_to(&mut draft, lines.lines());
        if !self.progress.advance(before, after, ids, || self.index.add(&draft))? {
            return self.catch_up().await;
        }
        self.sweep().await
    }

    /// Adds lines to a draft, and returns the identifiers of their overrides.
    fn add_to<'l>(&self, draft: &mut Draft, lines: impl Iterator<Item = &'l str>) -> Vec<String> {
        let mut ids = Vec::new();
        let mut is_logged = false;
        for line in lines {
            let added = read_change(line).and_then(|one| {
                let id = one.target.id();
                self.index.add_to(draft, one).map(|()| id).map_err(Quoting::new)
            });
            match added {
                Ok(id) => ids.push(id),
                Err(_) if std::mem::replace(&mut is_logged, true) => {}
                Err(error) => {
                    let error = error.logged(self.index.values());
                    warn!("overrides: ignoring an invalid override in redis: {error}");
                }
            }
        }
        ids
    }

    /// Makes one of the overrides here and in Redis: what changed later there is read, and what did here is written back.
    async fn catch_up(&self) -> Result<(), String> {
        let own = self.progress.versions();
        let theirs = self.versions_in_redis().await?;
        if own.is_of(theirs.at) {
            return Ok(());
        }
        let difference = own.difference(&theirs);
        let lost = self.fields(&difference.here);
        let others = difference.others;
        let draft = if others.is_lt() {
            self.scan(&lost).await?
        } else {
            self.read(&difference.there.keys().collect::<Vec<_>>()).await?
        };
        // If Redis has lost changes meanwhile, the next comparison decides again.
        if self.version_and_time().await? < theirs.at {
            return Ok(());
        }
        let merged = own.merged(&theirs, difference);
        let change = || if others.is_lt() { self.index.replace(&draft) } else { self.index.add(&draft) };
        // If a change is owed since, the next comparison decides again.
        if !self.progress.adopt(own.at, merged.clone(), change)? {
            return Ok(());
        }
        if others.is_lt() && READ.admit_now().is_some() {
            info!(overrides = self.index.len(), "overrides: read from redis");
        }
        if others.is_gt() {
            // If something fails, the next comparison decides again.
            let replaced = replace(&self.pool, None, &merged, &self.index, RESTORE_SECONDS).await?;
            if matches!(replaced, Replaced::At(_)) {
                warn!(
                    overrides = self.index.len(),
                    "redis lost the overrides, or an import; wrote them back"
                );
            }
        } else {
            self.write_back(&lost, merged.at).await?;
        }
        self.sweep().await
    }

    async fn versions_in_redis(&self) -> Result<Versions, String> {
        let key = self.pool.key("overrides");
        let versions = self.pool.key(VERSIONS);
        let mut commands = pipe();
        commands.cmd("HGET").arg(&key).arg(VERSION);
        commands.cmd("ZRANGE").arg(versions).arg(0).arg(-1).arg("WITHSCORES");
        let (at, listed): (Option<u64>, Vec<(String, u64)>) = self.pool.pipeline(&key, &commands).await?;
        Ok(at.map_or_else(Versions::default, |at| Versions::of(at, listed)))
    }

    /// The overrides of the index with these identifiers.
    fn with_ids(&self, ids: impl Fn(&str) -> bool) -> BTreeMap<String, Arc<Override>> {
        let snapshot = self.index.checkpoint();
        let all = snapshot.all().map(|one| (one.target.id(), one));
        all.filter(|(id, _)| ids(id)).map(|(id, one)| (id, one.clone())).collect()
    }

    /// Overrides with their versions here, and those that were removed.
    fn fields(&self, versions: &BTreeMap<String, u64>) -> Vec<Field> {
        if versions.is_empty() {
            return Vec::new();
        }
        let known = self.with_ids(|id| versions.contains_key(id));
        let field = |(id, version): (&String, &u64)| {
            let value = known.get(id).map_or_else(String::new, |one| one.to_stored().to_string());
            Field { id: id.clone(), version: Some(*version), value }
        };
        versions.iter().map(field).collect()
    }

    /// Reads overrides.
    async fn read(&self, ids: &[&String]) -> Result<Draft, String> {
        let key = self.pool.key("overrides");
        let mut draft = self.index.draft();
        let mut removed = HashSet::new();
        for some in ids.chunks(BATCH) {
            let values: Vec<Option<String>> =
                self.pool.command(&key, cmd("HMGET").arg(&key).arg(some)).await?;
            self.add_to(&mut draft, values.iter().flatten().map(String::as_str));
            removed.extend(
                some.iter().zip(&values).filter(|(_, value)| value.is_none()).map(|(id, _)| id.as_str()),
            );
        }
        if !removed.is_empty() {
            for one in self.with_ids(|id| removed.contains(id)).into_values() {
                self.index.add_to(&mut draft, Override { expires: Some(0), ..Override::clone(&one) })?;
            }
        }
        Ok(draft)
    }

    /// Reads the whole hash, except for these overrides. Changes during the read may be missing, and their messages follow.
    async fn scan(&self, own: &[Field]) -> Result<Draft, String> {
        let key = self.pool.key("overrides");
        let mut draft = Draft::default();
        let mut cursor = 0_u64;
        let except: HashSet<_> = own.iter().map(|field| &*field.id).chain([VERSION]).collect();
        loop {
            let mut scan = cmd("HSCAN");
            scan.arg(&key).arg(cursor).arg("COUNT").arg(BATCH);
            let (next, fields): (u64, Vec<(String, String)>) = self.pool.command(&key, &scan).await?;
            let fields = fields.iter().filter(|(id, _)| !except.contains(&**id));
            self.add_to(&mut draft, fields.map(|(_, value)| &**value));
            if next == 0 {
                break;
            }
            cursor = next;
        }
        self.add_to(&mut draft, own.iter().map(|field| &*field.value).filter(|value| !value.is_empty()));
        Ok(draft)
    }

    /// Writes changes back that Redis has lost. Their message causes the next comparison.
    async fn write_back(&self, lost: &[Field], own: u64) -> Result<(), String> {
        let mut written = 0;
        for some in lost.chunks(BATCH) {
            let changed = change(&self.pool, own, None, UNKNOWN, some).await?;
            written += if changed.is_some() { some.len() } else { 0 };
        }
        if written > 0 {
            warn!(overrides = written, "redis lacked changes of overrides; wrote them back");
        }
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
            let expired = |(id, end): &(String, u32)| [id.clone(), timestamp(*end), end.to_string()];
            let arguments: Vec<String> = some.iter().flat_map(expired).collect();
            self.pool.script::<u64>(&key, &EXPIRE, &[&key], &arguments).await?;
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
