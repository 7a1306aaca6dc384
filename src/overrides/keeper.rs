//! Changes of overrides, and where they are remembered: in this process, in a file, or in Redis.
//!
//! The admin API calls it. A change that could not be written does not take effect.

use std::{
    fmt,
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tracing::info;

use super::{
    file::Journal,
    index::{Draft, Index, MAX_OVERRIDES},
    model::{Override, Target},
    shared::{Shared, State, token},
};
use crate::{
    clock::Time,
    mutex::lock,
    store::{memcached::ResetLog, redis::Side},
};

/// An import that nothing is added to for so long makes way for another.
const IDLE_IMPORT: Duration = Duration::from_secs(60);

/// Overrides that ended and are logged one by one.
const LOGGED: usize = 20;

/// Changes overrides.
pub struct Keeper {
    index: Arc<Index>,
    place: Place,
    resets: Option<ResetLog>,
    import: Mutex<Option<Import>>,
}

/// Where overrides are remembered.
enum Place {
    /// In this process until it ends.
    Memory,
    /// In a file.
    File(Mutex<Journal>),
    /// In Redis.
    Shared(Shared),
}

/// An import that is not in force yet, where it is gathered in this process.
struct Import {
    id: String,
    draft: Draft,
    last_used: Instant,
}

/// Why a change was not made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChangeError {
    /// It is invalid.
    Invalid(String),
    /// There is no such override or import.
    NotFound(String),
    /// Another change is in the way.
    Conflict(String),
    /// It could not be written.
    Unavailable(String),
}

impl Keeper {
    /// Overrides that end with the process.
    #[must_use]
    pub fn in_memory(index: Arc<Index>) -> Self {
        Self::of(index, Place::Memory)
    }

    /// Overrides in a file, which are read.
    ///
    /// # Errors
    /// When the file cannot be read or written, and every mistake in it.
    pub fn in_file(index: Arc<Index>, path: &Path, now: Time) -> Result<Self, Vec<String>> {
        let journal = Journal::open(path, &index, now)?;
        Ok(Self::of(index, Place::File(Mutex::new(journal))))
    }

    /// Overrides in Redis, which a [`Follower`](super::shared::Follower) with the same state reads.
    #[must_use]
    pub fn in_redis(index: Arc<Index>, side: Side, state: Arc<State>) -> Self {
        Self::of(index, Place::Shared(Shared::new(side, state)))
    }

    fn of(index: Arc<Index>, place: Place) -> Self {
        Self { index, place, resets: None, import: Mutex::default() }
    }

    /// The same, notifying the replicas that share a memcached of resets.
    #[must_use]
    pub fn with_resets(self, resets: ResetLog) -> Self {
        Self { resets: Some(resets), ..self }
    }

    /// The overrides in force.
    #[must_use]
    pub fn index(&self) -> &Arc<Index> {
        &self.index
    }

    /// Where they are remembered: `memory`, `file` or `redis`.
    #[must_use]
    pub fn place(&self) -> &'static str {
        match self.place {
            Place::Memory => "memory",
            Place::File(_) => "file",
            Place::Shared(_) => "redis",
        }
    }

    /// Sets an override, in place of the one for the same target.
    ///
    /// # Errors
    /// When there are too many, or it cannot be written.
    pub async fn set(&self, one: &Override) -> Result<(), ChangeError> {
        if self.index.len() >= MAX_OVERRIDES && self.index.get(&one.target).is_none() {
            return Err(ChangeError::Invalid(format!("there are {MAX_OVERRIDES} overrides, the maximum")));
        }
        // What the index refuses is refused before it is written.
        self.index.add_to(&mut self.index.draft(), one).map_err(ChangeError::Invalid)?;
        match &self.place {
            Place::Memory => {}
            Place::File(journal) => lock(journal).append_set(one, &self.index).map_err(ChangeError::file)?,
            Place::Shared(shared) => return shared.set(std::slice::from_ref(one)).await,
        }
        self.index.set(one).map_err(ChangeError::Invalid)
    }

    /// The override with this identifier. It is searched among all.
    #[must_use]
    pub fn by_id(&self, id: &str) -> Option<Override> {
        let mut found = None;
        self.index.for_each(|one| {
            let is_it = one.target.id() == id;
            found = is_it.then_some(one);
            !is_it
        });
        found
    }

    /// Removes the override for a target.
    ///
    /// # Errors
    /// When there is none, or the removal cannot be written.
    pub async fn remove(&self, target: &Target) -> Result<(), ChangeError> {
        if self.index.get(target).is_none() {
            return Err(ChangeError::NotFound(format!("no override for {target}")));
        }
        match &self.place {
            Place::Memory => {}
            Place::File(journal) => {
                lock(journal).append_removed(target, &self.index).map_err(ChangeError::file)?;
            }
            Place::Shared(shared) => return shared.remove(target).await,
        }
        self.index.remove(target);
        Ok(())
    }

    /// Begins an import, and returns its identifier.
    ///
    /// # Errors
    /// When another one is under way.
    pub fn begin_import(&self) -> Result<String, ChangeError> {
        let id = token();
        if let Place::Shared(_) = self.place {
            return Ok(id);
        }
        let mut import = lock(&self.import);
        if import.as_ref().is_some_and(|import| import.last_used.elapsed() < IDLE_IMPORT) {
            return Err(ChangeError::Conflict(
                "another import is under way; try again when it is done".to_owned(),
            ));
        }
        *import = Some(Import { id: id.clone(), draft: self.index.draft(), last_used: Instant::now() });
        Ok(id)
    }

    /// Adds overrides to an import, and returns how many it has. Nothing is in force yet.
    ///
    /// # Errors
    /// When there is no such import, there are too many overrides, or they cannot be written.
    pub async fn add_to_import(&self, id: &str, all: &[Override]) -> Result<u64, ChangeError> {
        if let Place::Shared(shared) = &self.place {
            check_id(id)?;
            // What the index refuses is refused before it is written.
            let mut draft = self.index.draft();
            for one in all {
                self.index.add_to(&mut draft, one).map_err(ChangeError::Invalid)?;
            }
            drop(draft);
            let length = shared.import(id, all).await?;
            if length > MAX_OVERRIDES as u64 {
                shared.abort(id).await?;
                return Err(ChangeError::Invalid(format!(
                    "more than {MAX_OVERRIDES} overrides, the maximum"
                )));
            }
            return Ok(length);
        }
        let mut import = lock(&self.import);
        let own = import.as_mut().filter(|import| import.id == id).ok_or_else(|| no_import(id))?;
        for one in all {
            if let Err(error) = self.index.add_to(&mut own.draft, one) {
                // A part of what was sent is in it.
                *import = None;
                return Err(ChangeError::Invalid(format!("{error}; the import is aborted")));
            }
        }
        own.last_used = Instant::now();
        Ok(own.draft.len() as u64)
    }

    /// Puts an import in force, all of it at one time, and returns how many overrides it had.
    ///
    /// # Errors
    /// When there is no such import, there would be too many overrides, or they cannot be written; then nothing has
    /// changed.
    pub async fn commit_import(&self, id: &str) -> Result<u64, ChangeError> {
        if let Place::Shared(shared) = &self.place {
            check_id(id)?;
            return shared.commit(id, &self.index).await;
        }
        let draft = {
            let mut import = lock(&self.import);
            import.take_if(|import| import.id == id).ok_or_else(|| no_import(id))?.draft
        };
        let before = self.index.checkpoint();
        self.index.add(&draft).map_err(ChangeError::Invalid)?;
        if let Place::File(journal) = &self.place
            && let Err(error) = lock(journal).rewrite(&self.index)
        {
            self.index.roll_back(before);
            return Err(ChangeError::file(error));
        }
        Ok(draft.len() as u64)
    }

    /// Forgets an import.
    ///
    /// # Errors
    /// When Redis is not reached; then the import ends by itself.
    pub async fn abort_import(&self, id: &str) -> Result<(), ChangeError> {
        if let Place::Shared(shared) = &self.place {
            check_id(id)?;
            return shared.abort(id).await;
        }
        lock(&self.import).take_if(|import| import.id == id);
        Ok(())
    }

    /// Notifies other replicas that counters were reset.
    ///
    /// # Errors
    /// When Redis or memcached is not reached.
    pub async fn announce_reset(&self, full_keys: &[String]) -> Result<(), String> {
        match (&self.place, &self.resets) {
            (Place::Shared(shared), _) => shared.announce_reset(full_keys).await,
            (_, Some(resets)) => resets.announce(full_keys).await,
            (Place::Memory | Place::File(_), None) => Ok(()),
        }
    }

    /// Removes overrides that have ended; called about once a second. In Redis the follower does.
    pub fn sweep(&self, now: Time) {
        if !matches!(self.place, Place::Shared(_)) {
            sweep(&self.index, now);
        }
    }
}

impl ChangeError {
    #[expect(clippy::needless_pass_by_value, reason = "the form that map_err calls")]
    pub(super) fn unavailable(message: String) -> Self {
        Self::Unavailable(format!("{message}; the overrides are as they were"))
    }

    #[expect(clippy::needless_pass_by_value, reason = "the form that map_err calls")]
    fn file(error: std::io::Error) -> Self {
        Self::Unavailable(format!("OVERRIDES_FILE: cannot write: {error}; the overrides are as they were"))
    }
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(text) | Self::NotFound(text) | Self::Conflict(text) | Self::Unavailable(text) => {
                f.write_str(text)
            }
        }
    }
}

impl std::error::Error for ChangeError {}

/// Removes overrides that have ended from an index, logs them, and returns them; those that were removed have been
/// logged already.
pub(super) fn sweep(index: &Index, now: Time) -> Vec<Override> {
    let mut ended = index.sweep(now);
    ended.retain(|one| one.expires != Some(0));
    for one in ended.iter().take(LOGGED) {
        info!(target_descriptor = %one.target, action = %one.action, "override ended");
    }
    if ended.len() > LOGGED {
        info!(suppressed = ended.len().saturating_sub(LOGGED), "overrides ended");
    }
    ended
}

fn no_import(id: &str) -> ChangeError {
    ChangeError::NotFound(format!(
        "no import {:?}; it is aborted, in force already, or another one took its place",
        crate::text::cut(id)
    ))
}

/// Only identifiers of imports may name a key of Redis.
fn check_id(id: &str) -> Result<(), ChangeError> {
    let is_one = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_one { Ok(()) } else { Err(no_import(id)) }
}
