//! Counters to which hits come back: whoever has cached that they are over their limits must hear of it.

use std::{
    fmt, mem,
    sync::{Arc, Mutex},
};

use faults::mutex::lock;
use smallvec::SmallVec;

use crate::id::CounterId;

pub trait Caches: Send + Sync {
    /// Hits came back to the counter, which has this full key if the store needs names.
    fn lowered(&self, counter: CounterId, full_key: &str);
}

/// Tells of its counters when the last of its owners is dropped. A request has one, and so has each connection on which
/// checks of it are on their way: it is dropped when their replies have been read, however late, or can no longer come.
#[derive(Clone)]
pub struct Lowered(Arc<Counters>);

/// Each with its full key.
type Named = SmallVec<[(CounterId, Box<str>); 1]>;

struct Counters {
    all: Mutex<Named>,
    caches: Arc<dyn Caches>,
}

impl Lowered {
    pub fn new(caches: Arc<dyn Caches>) -> Self {
        Self(Arc::new(Counters { all: Mutex::default(), caches }))
    }

    pub fn add(&self, counter: CounterId, full_key: &str) {
        lock(&self.0.all).push((counter, full_key.into()));
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        let all = mem::take(&mut *lock(&self.all));
        for (counter, full_key) in all {
            self.caches.lowered(counter, &full_key);
        }
    }
}

impl fmt::Debug for Lowered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lowered").field(&lock(&self.0.all)).finish()
    }
}
