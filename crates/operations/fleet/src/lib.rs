//! What replicas tell each other.
//!
//! [`summary`] is what one replica knows of its last minutes, and its form in Redis; [`members`] publishes and reads it;
//! [`merge`] combines the summaries of several replicas. [`changes`] is the log of changes. The admin API collects,
//! records and shows; all I/O goes through a [`CommandPool`], except that of the log in a file.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod changes;
pub mod latency;
pub mod members;
pub mod merge;
pub mod steps;
pub mod summary;
#[cfg(test)]
mod tests;

use std::{path::Path, sync::Arc, time::Duration};

pub use self::{
    changes::{Changes, change},
    latency::Buckets,
    members::{Member, TURNED_OFF, own_id},
    merge::Merged,
    steps::Steps,
    summary::{KeyRefusals, RuleHits, Summary},
};
use api::Change;
use clock::Time;
use members::Members;
use redis_store::CommandPool;

/// The other replicas, and the log of changes.
pub struct Fleet {
    pub changes: Changes,
    members: Members,
    /// Connections of the thread that reads; `None` if nothing is shared.
    pool: Option<CommandPool>,
    publishes: bool,
}

/// How long a call waits for what the other replicas have said.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a call gets from Redis within [`PATIENCE`].
async fn soon<T>(pool: &CommandPool, asked: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let answered = pool.edges().timer.timeout(PATIENCE, asked).await;
    answered.unwrap_or_else(|| Err(format!("redis: no reply within {PATIENCE:?}")))
}

impl Fleet {
    /// Replicas that share a Redis. The thread that calls [`members`](Self::members) owns the pool.
    pub fn shared(pool: CommandPool, publishes: bool) -> Self {
        Self { changes: Changes::in_redis(), members: Members::default(), pool: Some(pool), publishes }
    }

    /// A replica by itself. Its log of changes is in the file next to the one of its overrides, or in memory.
    pub fn alone(overrides: Option<&Path>) -> Self {
        let beside = |path: &Path| {
            let mut name = path.as_os_str().to_owned();
            name.push(".changes");
            name.into()
        };
        let changes = Changes::local(overrides.map(beside));
        Self { changes, members: Members::default(), pool: None, publishes: false }
    }

    pub fn is_shared(&self) -> bool {
        self.pool.is_some()
    }

    pub fn publishes(&self) -> bool {
        self.publishes
    }

    /// The replicas that share the Redis; none if nothing is shared.
    pub async fn members(&self, now: Time) -> Result<Arc<Vec<Member>>, String> {
        match &self.pool {
            Some(pool) => self.members.read(pool, now).await,
            None => Ok(Arc::default()),
        }
    }

    /// The newest changes, and whether those of other replicas could not be read. The newest come first.
    pub async fn read_changes(&self, most: usize) -> (Vec<Change>, Option<String>) {
        let own = || self.changes.read(None, most);
        let Some(pool) = &self.pool else { return (own().await.unwrap_or_default(), None) };
        match soon(pool, self.changes.read(Some(pool), most)).await {
            Ok(changes) => (changes, None),
            Err(error) => (own().await.unwrap_or_default(), Some(error)),
        }
    }
}
