//! The replicas that share a Redis: each announces itself with a key that expires, and reads the other keys.
//!
//! Called by the thread that follows Redis; status, page and metrics show the result, such as replicas with different
//! rules.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use arc_swap::ArcSwap;
use deadpool_redis::redis::{cmd, pipe};
use serde::{Deserialize, Serialize};

use store::redis::CommandPool;
use text;

/// The interval of announcements, in seconds.
pub const INTERVAL_SECONDS: u64 = 5;

/// The lifetime of an announcement, in seconds.
const EXPIRY_SECONDS: u64 = 3 * INTERVAL_SECONDS;

/// Maximum number of replicas that are read.
const MAX_REPLICAS: usize = 1_000;

/// A replica. Announcements of other versions may lack fields, or have others.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Replica {
    /// Its host name, and a random number.
    pub id: String,
    pub version: String,
    pub rules_hash: Option<String>,
    /// The release of its zone data, if an override depends on it. Rules that do have it in their hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone_data: Option<String>,
    /// Requests in the last second.
    pub requests_per_second: u64,
    /// The second of its start.
    pub started: u64,
}

/// The replicas that were read last, by their identifiers.
#[derive(Default)]
pub struct Replicas(ArcSwap<Vec<Replica>>);

static ID: LazyLock<String> = LazyLock::new(|| {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{}-{:08x}", text::cut(&host), fastrand::u32(..))
});

impl Replicas {
    pub fn own_id() -> String {
        ID.clone()
    }

    /// The replicas; empty if counters are not in Redis.
    pub fn list(&self) -> Arc<Vec<Replica>> {
        self.0.load_full()
    }

    /// The number of replicas for each rules hash, which is followed by the zone data that overrides depend on.
    pub fn by_rules_hash(&self) -> Vec<(String, u64)> {
        let mut counts = BTreeMap::<String, u64>::new();
        for replica in self.0.load().iter() {
            let mut hash = replica.rules_hash.clone().unwrap_or_default();
            hash.extend(replica.zone_data.iter().flat_map(|release| ["+", release]));
            let count = counts.entry(hash).or_default();
            *count = count.saturating_add(1);
        }
        counts.into_iter().collect()
    }

    /// Announces this replica, and reads all.
    ///
    /// # Errors
    /// When Redis is unreachable. The list does not change; the caller decides whether to [clear](Self::clear) it.
    pub async fn announce(&self, pool: &CommandPool, own: &Replica) -> Result<(), String> {
        let (members, key) = (pool.key("replicas"), |id: &str| pool.key(&format!("replica:{id}")));
        let json = serde_json::to_string(own).map_err(|error| error.to_string())?;
        let mut announcing = pipe();
        announcing.cmd("SET").arg(key(&own.id)).arg(json).arg("EX").arg(EXPIRY_SECONDS).ignore();
        announcing.cmd("SADD").arg(&members).arg(&own.id).ignore().cmd("SMEMBERS").arg(&members);
        let (mut ids,): (Vec<String>,) = pool.pipeline(&members, &announcing).await?;
        ids.sort_unstable();
        ids.truncate(MAX_REPLICAS);
        let keys: Vec<String> = ids.iter().map(|id| key(id)).collect();
        let values: Vec<Option<String>> = pool.command(&members, cmd("MGET").arg(&keys)).await?;
        let (mut replicas, mut gone) = (Vec::new(), Vec::new());
        for (id, value) in ids.into_iter().zip(values) {
            match value {
                Some(value) => replicas.extend(Replica::read(id, &value)),
                None => gone.push(id),
            }
        }
        self.0.store(Arc::new(replicas));
        if !gone.is_empty() {
            pool.command::<u64>(&members, cmd("SREM").arg(&members).arg(&gone)).await?;
        }
        Ok(())
    }

    /// Removes all other replicas from the list.
    pub fn clear(&self, own: &Replica) {
        self.0.store(Arc::new(vec![own.clone()]));
    }

    /// True if a list that was read this many seconds ago is outdated.
    pub const fn is_outdated(seconds: u64) -> bool {
        seconds >= EXPIRY_SECONDS
    }
}

impl Replica {
    fn read(id: String, announcement: &str) -> Option<Self> {
        Some(Self { id, ..serde_json::from_str(announcement).ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(id: &str, rules_hash: &str) -> Replica {
        Replica {
            id: id.to_owned(),
            version: "1.2.3".to_owned(),
            rules_hash: Some(rules_hash.to_owned()),
            zone_data: None,
            requests_per_second: 7,
            started: 1_800_000_000,
        }
    }

    #[test]
    fn a_written_replica_reads_back_and_other_versions_are_tolerated() {
        let one = replica("a", "ff");
        assert_eq!(Replica::read("a".to_owned(), &serde_json::to_string(&one).unwrap()), Some(one));
        let other = Replica::read("b".to_owned(), r#"{"version": "2", "more": []}"#).unwrap();
        assert_eq!((other.id.as_str(), other.version.as_str(), other.requests_per_second), ("b", "2", 0));
        assert_eq!(Replica::read("b".to_owned(), "x"), None);
    }

    #[test]
    fn counts_replicas_by_rules_hash() {
        let replicas = Replicas::default();
        assert!(replicas.by_rules_hash().is_empty());
        replicas.0.store(Arc::new(vec![replica("a", "1"), replica("b", "2"), replica("c", "1")]));
        assert_eq!(replicas.by_rules_hash(), [("1".to_owned(), 2), ("2".to_owned(), 1)]);
        let with_data = |release: &str| Replica { zone_data: Some(release.to_owned()), ..replica("a", "1") };
        replicas.0.store(Arc::new(vec![with_data("2026f"), with_data("2027a"), replica("c", "1")]));
        let hashes: Vec<_> = replicas.by_rules_hash().into_iter().map(|(hash, _)| hash).collect();
        assert_eq!(hashes, ["1", "1+2026f", "1+2027a"], "replicas that disagree on an override's windows");
        replicas.clear(&replica("a", "1"));
        assert_eq!(replicas.by_rules_hash(), [("1".to_owned(), 1)]);
    }
}
