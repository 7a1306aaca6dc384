//! The replicas that share a Redis: each publishes an announcement and a summary, under keys that expire.
//!
//! A publication costs its replica and Redis the same for any number of replicas. The others are read only when someone
//! asks, and kept for two seconds; their names are read each time, so that one that stopped is gone at once. So is a
//! failure: of all who ask, one waits for a Redis that does not answer.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use deadpool_redis::redis::{cmd, pipe};
use tokio::sync::Mutex;

use crate::{Summary, soon};
use api::Replica;
use clock::Time;
use redis_store::CommandPool;

pub const INTERVAL_SECONDS: u64 = 2;

const EXPIRY_SECONDS: u64 = 10;

/// After as many publications in a row every other replica that lives has published, also after an outage of Redis or
/// the loss of its keys. Before, an expired announcement says nothing.
const SURE_AFTER: u64 = EXPIRY_SECONDS / INTERVAL_SECONDS;

/// The time for which a reading is kept, in microseconds.
const KEPT_MICROS: u64 = 2_000_000;

/// Maximum number of replicas that are read, and of replicas in one command: 16 kB each.
const MAX_REPLICAS: usize = 1_000;
const BATCH: usize = 50;

/// What a replica that publishes no summaries announces of them.
pub const TURNED_OFF: &str = "turned off";

/// A replica as it announced itself, and what it has counted. Those of other versions may lack fields, or have others.
#[derive(Clone, Debug)]
pub struct Member {
    pub replica: Replica,
    pub summary: Option<Summary>,
}

/// A name that is no longer listed counts for as many readings: Redis may have lost the list, which fills again within
/// [`INTERVAL_SECONDS`], and may be lost again at once.
const MISSED_READINGS: u32 = 5;

/// The names of the replicas that share the Redis as they were seen last, and the readings since they were listed. While
/// Redis is lost each replica has its share of the limits.
#[derive(Default)]
pub struct Sharers(BTreeMap<String, u32>);

#[derive(Default)]
pub struct Members(Mutex<Reading>);

/// What was read last, when, and the names that were listed then.
struct Reading {
    at: Time,
    ids: Vec<String>,
    members: Result<Arc<Vec<Member>>, String>,
}

impl Default for Reading {
    fn default() -> Self {
        Self { at: Time::default(), ids: Vec::new(), members: Ok(Arc::default()) }
    }
}

static ID: LazyLock<String> = LazyLock::new(|| {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{}-{:08x}", text::cut(&host), fastrand::u32(..))
});

pub fn own_id() -> &'static str {
    &ID
}

fn announcement_key(pool: &CommandPool, id: &str) -> String {
    pool.key(&format!("replica:{id}"))
}

fn summary_key(pool: &CommandPool, id: &str) -> String {
    pool.key(&format!("summary:{id}"))
}

/// Publishes one replica.
#[derive(Default)]
pub struct Publisher {
    /// Publications since the last failure.
    in_a_row: u64,
}

impl Publisher {
    /// Publishes this replica, and removes the names of two others if they have expired. Returns those that it removed,
    /// which no other replica gets: they ended without [`leave`].
    pub async fn publish(
        &mut self,
        pool: &CommandPool,
        own: &Replica,
        summary: Option<&str>,
    ) -> Result<Vec<String>, String> {
        let before = std::mem::take(&mut self.in_a_row);
        let others = announce(pool, own, summary).await?;
        self.in_a_row = before + 1;
        let mut gone = Vec::new();
        if self.in_a_row <= SURE_AFTER {
            return Ok(gone);
        }
        let members = pool.key("replicas");
        for id in others {
            let is_there = cmd("EXISTS").arg(announcement_key(pool, &id)).to_owned();
            if !pool.command::<bool>(&members, &is_there).await?
                && pool.command::<u64>(&members, cmd("SREM").arg(&members).arg(&id)).await? == 1
            {
                gone.push(id);
            }
        }
        Ok(gone)
    }
}

/// Publishes this replica, and returns the names of two.
async fn announce(pool: &CommandPool, own: &Replica, summary: Option<&str>) -> Result<Vec<String>, String> {
    let members = pool.key("replicas");
    let json = serde_json::to_string(own).map_err(|error| error.to_string())?;
    let mut commands = pipe();
    let mut set = |key: String, value: &str| {
        commands.cmd("SET").arg(key).arg(value).arg("EX").arg(EXPIRY_SECONDS).ignore();
    };
    set(announcement_key(pool, &own.id), &json);
    if let Some(summary) = summary {
        set(summary_key(pool, &own.id), summary);
    }
    commands.cmd("SADD").arg(&members).arg(&own.id).ignore().cmd("SRANDMEMBER").arg(&members).arg(2);
    let (two_names,): (Vec<String>,) = pool.pipeline(&members, &commands).await?;
    Ok(two_names)
}

/// Removes this replica, which stops.
pub async fn leave(pool: &CommandPool) -> Result<(), String> {
    let members = pool.key("replicas");
    let id = own_id();
    let mut commands = pipe();
    commands.cmd("DEL").arg(announcement_key(pool, id)).arg(summary_key(pool, id)).ignore();
    commands.cmd("SREM").arg(&members).arg(id).ignore();
    pool.pipeline::<()>(&members, &commands).await
}

impl Members {
    /// The replicas by their names: those that are listed now, with what they published at most two seconds ago.
    pub async fn read(&self, pool: &CommandPool, now: Time) -> Result<Arc<Vec<Member>>, String> {
        // Calls at the same time wait for one reading.
        let mut last = self.0.lock().await;
        let is_kept = now >= last.at && now.micros().saturating_sub(last.at.micros()) < KEPT_MICROS;
        if !is_kept || last.members.is_ok() {
            let read = soon(pool, last.next(pool, is_kept)).await;
            match read {
                Ok(Some((ids, members))) => *last = Reading { at: now, ids, members: Ok(Arc::new(members)) },
                Ok(None) => {}
                Err(error) => *last = Reading { at: now, ids: Vec::new(), members: Err(error) },
            }
        }
        last.members.clone()
    }
}

impl Reading {
    /// What is newer than this: the names, and what the replicas published; `None` if this is kept.
    async fn next(
        &self,
        pool: &CommandPool,
        is_kept: bool,
    ) -> Result<Option<(Vec<String>, Vec<Member>)>, String> {
        let mut ids = listed(pool).await?;
        ids.sort_unstable();
        ids.truncate(MAX_REPLICAS);
        if is_kept && ids == self.ids {
            return Ok(None);
        }
        let members = read(pool, &ids).await?;
        Ok(Some((ids, members)))
    }
}

impl Sharers {
    /// The place of this replica among all of them, and their number. If they cannot be read, those stay that were seen
    /// last; `None` if there are none.
    pub async fn read(&mut self, pool: &CommandPool, own: &str) -> Option<(usize, usize)> {
        if let Ok(listed) = listed(pool).await {
            self.note(listed, own);
        }
        Some((self.0.keys().position(|name| name == own)?, self.0.len()))
    }

    fn note(&mut self, listed: Vec<String>, own: &str) {
        self.0.values_mut().for_each(|missed| *missed += 1);
        self.0.extend(listed.into_iter().chain([own.to_owned()]).map(|name| (name, 0)));
        self.0.retain(|_, missed| *missed < MISSED_READINGS);
    }
}

async fn listed(pool: &CommandPool) -> Result<Vec<String>, String> {
    let members = pool.key("replicas");
    pool.command(&members, cmd("SMEMBERS").arg(&members)).await
}

async fn read(pool: &CommandPool, ids: &[String]) -> Result<Vec<Member>, String> {
    let members = pool.key("replicas");
    let mut found = Vec::new();
    for batch in ids.chunks(BATCH) {
        let announcement_keys: Vec<_> = batch.iter().map(|id| announcement_key(pool, id)).collect();
        let summary_keys: Vec<_> = batch.iter().map(|id| summary_key(pool, id)).collect();
        let mut texts = pipe();
        texts.cmd("MGET").arg(&announcement_keys).cmd("MGET").arg(&summary_keys);
        let (announcements, summaries): (Vec<Option<String>>, Vec<Option<String>>) =
            pool.pipeline(&members, &texts).await?;
        let mut expiries = pipe();
        for key in &announcement_keys {
            expiries.cmd("TTL").arg(key);
        }
        // Negative if the key has expired meanwhile.
        let seconds_left: Vec<i64> = pool.pipeline(&members, &expiries).await?;
        for (((id, announcement), summary), left) in
            batch.iter().zip(announcements).zip(summaries).zip(seconds_left)
        {
            let left = u64::try_from(left).unwrap_or(0);
            let age_seconds = EXPIRY_SECONDS.saturating_sub(left);
            let summary = summary.as_deref().and_then(Summary::read);
            found.extend(announcement.and_then(|text| Member::read(id, &text, age_seconds, summary)));
        }
    }
    Ok(found)
}

impl Member {
    fn read(id: &str, announcement: &str, age_seconds: u64, summary: Option<Summary>) -> Option<Self> {
        let announced: Replica = serde_json::from_str(announcement).ok()?;
        let is_published = match &summary {
            Some(_) => "published",
            None if announced.summary == TURNED_OFF => TURNED_OFF,
            None => "unreadable",
        };
        let replica =
            Replica { id: id.to_owned(), age_seconds, summary: is_published.to_owned(), ..announced };
        Some(Self { replica, summary })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_counts_until_it_was_missed_several_times() {
        let mut sharers = Sharers::default();
        let mut note = |listed: &[&str]| {
            sharers.note(listed.iter().map(|name| (*name).to_owned()).collect(), "b");
            sharers.0.keys().cloned().collect::<String>()
        };
        assert_eq!(note(&[]), "b", "it counts itself before it is listed");
        assert_eq!(note(&["c", "a", "b"]), "abc");
        for _ in 1..MISSED_READINGS {
            assert_eq!(note(&["b", "c"]), "abc", "Redis may have lost the list");
        }
        assert_eq!(note(&["b", "c"]), "bc");
        assert_eq!(note(&["a", "b"]), "abc");
    }

    #[test]
    fn an_announcement_reads_back_and_other_versions_are_tolerated() {
        let one =
            Replica { id: "a".to_owned(), summary: TURNED_OFF.to_owned(), started: 7, ..Replica::default() };
        let read = |id, text: &str| Member::read(id, text, 0, None).map(|member| member.replica);
        assert_eq!(read("a", &serde_json::to_string(&one).unwrap()), Some(one));
        let other = read("b", r#"{"version": "2", "more": []}"#).unwrap();
        assert_eq!((&*other.id, &*other.version, &*other.summary), ("b", "2", "unreadable"));
        assert_eq!(read("b", "x"), None);
    }
}
