//! Invalidates cached refusals of counters whose hits come back.

use std::{
    mem,
    sync::{Arc, Mutex},
};

use faults::mutex::lock;
use smallvec::SmallVec;

use crate::id::CounterId;

pub trait Caches: Send + Sync {
    /// Drops cached refusals of a counter. `full_key` is empty if the store needs no names.
    fn lowered(&self, counter: CounterId, full_key: &str);
}

/// Invalidates its counters when its last clone is dropped. The request has a clone, and so does each connection that
/// carries its checks. A connection drops its clone once the replies have been read, even late ones, or are lost. Earlier, a
/// replica could cache a refusal again, by the count before the refund.
#[derive(Clone)]
pub struct Lowered(Arc<Counters>);

/// Counters with their full keys.
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
