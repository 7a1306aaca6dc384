//! The replicas that share a Redis: each announces itself by a key that expires, and reads who else is there.
//!
//! Called by the thread that follows Redis; status, page and metrics show the result. Replicas that serve different
//! rules are found by it.

use std::sync::{Arc, LazyLock};

use arc_swap::ArcSwap;
use deadpool_redis::redis::{cmd, pipe};
use serde_json::{Value as Json, json};

use crate::store::redis::Side;

/// How often a replica announces itself, in seconds.
pub const INTERVAL_SECONDS: u64 = 5;

/// A replica whose key was not renewed for so long is gone.
const EXPIRY_SECONDS: u64 = 3 * INTERVAL_SECONDS;

/// The most replicas that are read.
const MAX_REPLICAS: usize = 1_000;

/// A replica.
#[derive(Clone, PartialEq, Debug)]
pub struct Replica {
    /// The name of its host, and a number drawn at its start.
    pub id: String,
    /// Its version.
    pub version: String,
    /// The hash of the rules that it serves, if it has any.
    pub rules_hash: Option<String>,
    /// Requests in the last second.
    pub requests_per_second: u64,
    /// The second in which it started.
    pub started: u64,
}

/// The replicas, as they were read last.
pub struct Replicas {
    id: String,
    replicas: ArcSwap<Vec<Replica>>,
}

static ID: LazyLock<String> = LazyLock::new(|| {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{}-{:08x}", crate::text::cut(&host), fastrand::u32(..))
});

impl Default for Replicas {
    fn default() -> Self {
        Self { id: ID.clone(), replicas: ArcSwap::default() }
    }
}

impl Replicas {
    /// The identifier of this replica.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The replicas, by their identifiers; empty where counters are not in Redis.
    #[must_use]
    pub fn list(&self) -> Arc<Vec<Replica>> {
        self.replicas.load_full()
    }

    /// How many replicas serve each rules hash.
    #[must_use]
    pub fn by_rules_hash(&self) -> Vec<(String, u64)> {
        let mut counts: std::collections::BTreeMap<String, u64> = std::collections::BTreeMap::new();
        for replica in self.replicas.load().iter() {
            let count = counts.entry(replica.rules_hash.clone().unwrap_or_default()).or_default();
            *count = count.saturating_add(1);
        }
        counts.into_iter().collect()
    }

    /// Announces this replica, and reads all.
    ///
    /// # Errors
    /// When Redis is not reached. Then the replicas are those that were read last, and the caller decides whether to
    /// [forget](Self::forget) them.
    pub async fn announce(&self, side: &Side, own: &Replica) -> Result<(), String> {
        let (members, key) = (side.key("replicas"), |id: &str| side.key(&format!("replica:{id}")));
        let mut announcing = pipe();
        announcing
            .cmd("SET")
            .arg(key(&own.id))
            .arg(own.to_json().to_string())
            .arg("EX")
            .arg(EXPIRY_SECONDS)
            .ignore();
        announcing.cmd("SADD").arg(&members).arg(&own.id).ignore().cmd("SMEMBERS").arg(&members);
        let (mut ids,): (Vec<String>,) = side.pipeline(&members, &announcing).await?;
        ids.sort_unstable();
        ids.truncate(MAX_REPLICAS);
        let keys: Vec<String> = ids.iter().map(|id| key(id)).collect();
        let values: Vec<Option<String>> = side.command(&members, cmd("MGET").arg(&keys)).await?;
        let (mut replicas, mut gone) = (Vec::new(), Vec::new());
        for (id, value) in ids.into_iter().zip(values) {
            match value {
                Some(value) => replicas.extend(Replica::read(id, &value)),
                None => gone.push(id),
            }
        }
        self.replicas.store(Arc::new(replicas));
        if !gone.is_empty() {
            side.command::<u64>(&members, cmd("SREM").arg(&members).arg(&gone)).await?;
        }
        Ok(())
    }

    /// Forgets all others, after Redis was unreachable for long.
    pub fn forget(&self, own: &Replica) {
        self.replicas.store(Arc::new(vec![own.clone()]));
    }

    /// True if a list that was read so many seconds ago says nothing any more.
    #[must_use]
    pub const fn is_outdated(seconds: u64) -> bool {
        seconds >= EXPIRY_SECONDS
    }
}

impl Replica {
    /// The replica as JSON, with its identifier.
    #[must_use]
    pub fn to_json(&self) -> Json {
        json!({
            "id": self.id,
            "version": self.version,
            "rules_hash": self.rules_hash,
            "requests_per_second": self.requests_per_second,
            "started": self.started,
        })
    }

    /// The replica that announced itself so. Fields of other versions are left out.
    fn read(id: String, value: &str) -> Option<Self> {
        let json: Json = serde_json::from_str(value).ok()?;
        let text = |name: &str| json.get(name).and_then(Json::as_str).map(str::to_owned);
        let number = |name: &str| json.get(name).and_then(Json::as_u64).unwrap_or_default();
        Some(Self {
            id,
            version: text("version").unwrap_or_default(),
            rules_hash: text("rules_hash"),
            requests_per_second: number("requests_per_second"),
            started: number("started"),
        })
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
            requests_per_second: 7,
            started: 1_800_000_000,
        }
    }

    #[test]
    fn a_replica_reads_as_it_is_written_and_tolerates_other_versions() {
        let one = replica("a", "ff");
        assert_eq!(Replica::read("a".to_owned(), &one.to_json().to_string()), Some(one));
        let odd = Replica::read("b".to_owned(), r#"{"version": 2, "more": []}"#).unwrap();
        assert_eq!((odd.id.as_str(), odd.version.as_str(), odd.requests_per_second), ("b", "", 0));
        assert_eq!(Replica::read("b".to_owned(), "x"), None);
    }

    #[test]
    fn replicas_are_counted_by_their_rules() {
        let replicas = Replicas::default();
        assert!(replicas.by_rules_hash().is_empty());
        replicas.replicas.store(Arc::new(vec![replica("a", "1"), replica("b", "2"), replica("c", "1")]));
        assert_eq!(replicas.by_rules_hash(), [("1".to_owned(), 2), ("2".to_owned(), 1)]);
        replicas.forget(&replica("a", "1"));
        assert_eq!(replicas.by_rules_hash(), [("1".to_owned(), 1)]);
    }
}
