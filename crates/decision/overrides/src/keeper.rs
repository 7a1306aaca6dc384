//! Changes overrides and stores them: in memory, in a file, or in Redis.
//!
//! The admin API calls it. A change that could not be written does not take effect, except one while Redis is away, which
//! is owed ([`Durability::Owed`]).

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use serde_json::Value as Json;

use super::{
    ChangeError, Durability,
    file::{Journal, removed},
    index::{Draft, Index, MAX_OVERRIDES, MAX_SCOPED},
    model::Override,
    progress::Progress,
    shared::{Shared, publish_keys, token},
    sweep,
    target::{Scope, Target},
};
use clock::Time;
use counters::Resets;
use faults::mutex::lock;
use memcached::ResetLog;
use net::edges::Edges;
use redis_store::CommandPool;

/// An import that is idle for this long is replaced by the next one.
const IDLE_IMPORT_MICROS: u64 = 8_000_000;

/// Maximum number of switches that this replica alone has.
const MAX_HERE: usize = 1_000;

pub struct Keeper {
    index: Arc<Index>,
    storage: Storage,
    resets: Option<ResetLog>,
    import: Mutex<Option<Import>>,
    /// The maximum number of overrides that changes may make. Redis may have more, which stay in force.
    most: usize,
    edges: Edges,
}

#[expect(clippy::large_enum_variant, reason = "there is one")]
enum Storage {
    Memory,
    File(Mutex<Journal>),
    Redis(Shared),
}

/// An import that is not in force yet, in this process.
struct Import {
    id: String,
    draft: Draft,
    last_used: Time,
}

impl Keeper {
    /// Overrides in memory, or in a file, which is read now. `resets` notifies the replicas that share a memcached.
    pub fn local(
        index: Arc<Index>,
        file: Option<&Path>,
        resets: Option<ResetLog>,
        edges: &Edges,
    ) -> Result<Self, Vec<String>> {
        let journal = file.map(|path| Journal::open(path, &index, edges.clock.now())).transpose()?;
        let storage = journal.map_or(Storage::Memory, |journal| Storage::File(Mutex::new(journal)));
        Ok(Self::new(index, storage, resets, edges.clone()))
    }

    /// Overrides in Redis. A [`Follower`](super::follower::Follower) with the same progress reads them.
    pub fn in_redis(index: Arc<Index>, pool: CommandPool, progress: Arc<Progress>) -> Self {
        let edges = pool.edges().clone();
        Self::new(index, Storage::Redis(Shared { pool, progress }), None, edges)
    }

    fn new(index: Arc<Index>, storage: Storage, resets: Option<ResetLog>, edges: Edges) -> Self {
        Self { index, storage, resets, import: Mutex::default(), most: MAX_OVERRIDES, edges }
    }

    /// The same with another maximum of overrides.
    pub fn at_most(self, most: usize) -> Self {
        Self { most: most.min(MAX_OVERRIDES), ..self }
    }

    fn full(&self) -> ChangeError {
        ChangeError::Invalid(format!("more than {} overrides, the maximum (MEMORY_LIMIT)", self.most))
    }

    pub fn index(&self) -> &Arc<Index> {
        &self.index
    }

    pub fn storage(&self) -> &'static str {
        match self.storage {
            Storage::Memory => "memory",
            Storage::File(_) => "file",
            Storage::Redis(_) => "redis",
        }
    }

    /// Why changes cannot be stored, as far as the last one showed.
    pub fn failure(&self) -> Option<String> {
        match &self.storage {
            Storage::File(journal) => lock(journal).failure(),
            Storage::Memory | Storage::Redis(_) => None,
        }
    }

    /// The number of changes that Redis lacks because it was away.
    pub fn owed(&self) -> usize {
        match &self.storage {
            Storage::Redis(shared) => shared.progress.owed(),
            Storage::Memory | Storage::File(_) => 0,
        }
    }

    /// Sets an override, which replaces the one for the same target.
    pub async fn set(&self, one: &Override) -> Result<Durability, ChangeError> {
        if self.index.get(&one.target).is_none() {
            if self.index.len() >= self.most {
                return Err(self.full());
            }
            self.check_scoped(std::slice::from_ref(one))?;
        }
        // The index must accept it before it is written.
        self.index.add_to(&mut self.index.draft(), one.clone()).map_err(ChangeError::Invalid)?;
        if let Storage::Redis(shared) = &self.storage {
            return shared.set(one, &self.index).await;
        }
        self.append(&one.to_stored())?;
        self.index.set(one).map_err(ChangeError::Invalid)?;
        Ok(Durability::Stored)
    }

    /// Appends a change to the file, if there is one.
    fn append(&self, change: &Json) -> Result<(), ChangeError> {
        match &self.storage {
            Storage::File(journal) => lock(journal).append(change, &self.index).map_err(unwritable),
            Storage::Memory | Storage::Redis(_) => Ok(()),
        }
    }

    /// Checks that there is room for these overrides by entry and switches.
    fn check_scoped(&self, new: &[Override]) -> Result<(), ChangeError> {
        let new = new.iter().filter(|one| one.target.scope() != Scope::Descriptor).count();
        if new == 0 || self.index.scoped_len() + new <= MAX_SCOPED {
            return Ok(());
        }
        Err(ChangeError::Invalid(format!("more than {MAX_SCOPED} overrides by entry, the maximum")))
    }

    /// Switches a domain on this replica alone; nothing is stored.
    pub fn switch_here(&self, one: Override) -> Result<(), ChangeError> {
        if self.index.here().len() >= MAX_HERE {
            return Err(ChangeError::Invalid(format!(
                "this replica has {MAX_HERE} switches of its own, the maximum"
            )));
        }
        self.index.switch_here(one);
        Ok(())
    }

    /// Removes the switches of a domain, and then those of this replica alone, and returns them.
    pub async fn clear(&self, domain: &str) -> Result<(Vec<Arc<Override>>, Durability), ChangeError> {
        let mut removed = Vec::new();
        let mut kept = Durability::Stored;
        for scope in [Scope::Domain, Scope::StoreFailure] {
            let target = Target::of_domain(domain, scope).map_err(ChangeError::Invalid)?;
            if let Some(one) = self.index.get(&target) {
                if self.remove(&target).await? == Durability::Owed {
                    kept = Durability::Owed;
                }
                removed.push(one);
            }
        }
        removed.extend(self.index.clear_here(domain));
        Ok((removed, kept))
    }

    /// The override with this identifier: that of its target, which a caller that knows it can compute, or that in replies.
    /// A linear search.
    pub fn by_id(&self, id: &str) -> Option<Override> {
        let is_meant = |one: &Override| one.target.id() == id || self.index.shown_id(&one.target) == id;
        self.index.checkpoint().all().find(|one| is_meant(one)).map(|one| Override::clone(one))
    }

    pub async fn remove(&self, target: &Target) -> Result<Durability, ChangeError> {
        if self.index.get(target).is_none() {
            let shown = target.shown(self.index.values());
            return Err(ChangeError::NotFound(format!("no override for {shown}")));
        }
        if let Storage::Redis(shared) = &self.storage {
            return shared.remove(target, &self.index).await;
        }
        self.append(&removed(target))?;
        self.index.remove(target);
        Ok(Durability::Stored)
    }

    pub fn begin_import(&self) -> Result<String, ChangeError> {
        let id = token(&*self.edges.random);
        if let Storage::Redis(_) = self.storage {
            return Ok(id);
        }
        let mut import = lock(&self.import);
        let now = self.edges.clock.now();
        let is_idle =
            |import: &Import| now.micros().abs_diff(import.last_used.micros()) >= IDLE_IMPORT_MICROS;
        if import.as_ref().is_some_and(|import| !is_idle(import)) {
            return Err(ChangeError::Conflict(
                "another import is in progress; try again when it is done".to_owned(),
            ));
        }
        *import = Some(Import { id: id.clone(), draft: self.index.draft(), last_used: now });
        Ok(id)
    }

    /// Adds overrides to an import, and returns the number of its overrides. They take effect with the commit. Redis may have
    /// lost some of the `known` ones.
    ///
    /// # Errors
    /// When there is no such import, there are too many overrides, or they cannot be written.
    pub async fn add_to_import(
        &self,
        id: &str,
        all: &[Override],
        known: Option<u64>,
    ) -> Result<u64, ChangeError> {
        self.check_scoped(all)?;
        if let Storage::Redis(shared) = &self.storage {
            check_id(id)?;
            // The index must accept them before they are written.
            let mut draft = self.index.draft();
            for one in all {
                self.index.add_to(&mut draft, one.clone()).map_err(ChangeError::Invalid)?;
            }
            drop(draft);
            let length = shared.add_to_import(id, all, known).await?;
            if length > self.most as u64 {
                shared.abort(id).await?;
                return Err(self.full());
            }
            return Ok(length);
        }
        let mut import = lock(&self.import);
        let own = import.as_mut().filter(|import| import.id == id).ok_or_else(|| no_import(id))?;
        for one in all {
            if let Err(error) = self.index.add_to(&mut own.draft, one.clone()) {
                // The draft has only a part of them.
                *import = None;
                return Err(ChangeError::Invalid(format!("{error}; the import is aborted")));
            }
        }
        if own.draft.count > self.most {
            *import = None;
            return Err(self.full());
        }
        own.last_used = self.edges.clock.now();
        Ok(own.draft.count as u64)
    }

    /// Puts a whole import in force at once, and returns the number of its overrides.
    ///
    /// # Errors
    /// When there is no such import, there would be too many overrides, or they cannot be written. Then nothing changes.
    pub async fn commit_import(&self, id: &str, known: Option<u64>) -> Result<u64, ChangeError> {
        if let Storage::Redis(shared) = &self.storage {
            check_id(id)?;
            return shared.commit(id, known, &self.index).await;
        }
        let draft = {
            let mut import = lock(&self.import);
            import.take_if(|import| import.id == id).ok_or_else(|| no_import(id))?.draft
        };
        let before = self.index.checkpoint();
        self.index.add(&draft).map_err(ChangeError::Invalid)?;
        if self.index.len() > self.most {
            self.index.roll_back(&before);
            return Err(self.full());
        }
        if let Storage::File(journal) = &self.storage
            && let Err(error) = lock(journal).rewrite(&self.index)
        {
            self.index.roll_back(&before);
            return Err(unwritable(error));
        }
        Ok(draft.count as u64)
    }

    pub async fn abort_import(&self, id: &str) -> Result<(), ChangeError> {
        if let Storage::Redis(shared) = &self.storage {
            check_id(id)?;
            return shared.abort(id).await;
        }
        lock(&self.import).take_if(|import| import.id == id);
        Ok(())
    }

    /// Notifies the replicas, and returns how many heard of it if that is known.
    pub async fn announce_reset(&self, full_keys: &[String]) -> Result<Option<u64>, String> {
        match (&self.storage, &self.resets) {
            (Storage::Redis(shared), _) => publish_keys(&shared.pool, "reset", full_keys).await.map(Some),
            (_, Some(resets)) => resets.announce(&Resets::Of(full_keys.to_vec())).await.map(|()| None),
            (Storage::Memory | Storage::File(_), None) => Ok(None),
        }
    }

    /// Removes expired overrides; called about once a second. In Redis, the follower removes them.
    pub fn sweep(&self, now: Time) {
        if !matches!(self.storage, Storage::Redis(_)) {
            sweep(&self.index, now);
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the form that map_err calls")]
fn unwritable(error: String) -> ChangeError {
    ChangeError::unavailable(format!("OVERRIDES_FILE: cannot write: {error}"))
}

fn no_import(id: &str) -> ChangeError {
    ChangeError::NotFound(format!(
        "no import {:?}; it was aborted, committed or replaced by another one",
        text::cut(id)
    ))
}

/// The identifier becomes a part of a Redis key, so only generated ones are accepted.
fn check_id(id: &str) -> Result<(), ChangeError> {
    let is_valid = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_valid { Ok(()) } else { Err(no_import(id)) }
}
