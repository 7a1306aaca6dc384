//! The token of a request's holds: it accompanies their identity from its choice to the written response, and cancels the
//! holds if it is dropped before.

use std::{fmt, sync::Arc};

use super::queue::Queue;
use counters::{Close, HoldId};

/// The identity of a request's holds until its response is written.
pub struct HoldToken {
    id: HoldId,
    queue: Option<Arc<Queue>>,
}

impl HoldToken {
    pub(super) fn new(id: HoldId, queue: &Arc<Queue>) -> Self {
        Self { id, queue: Some(queue.clone()) }
    }

    pub fn id(&self) -> &HoldId {
        &self.id
    }

    /// The response with the identity was written: now its holds are settled, ended, or expire.
    pub fn delivered(mut self) {
        self.queue = None;
    }
}

impl Drop for HoldToken {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            queue.push(queue.closing(self.id.clone(), Close::Cancel, None));
        }
    }
}

impl fmt::Debug for HoldToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HoldToken({})", self.id)
    }
}

impl PartialEq for HoldToken {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}
