//! The memory for what callers send and read, and the use of every bound of the budget.

use std::sync::Arc;

use budget::Budget;

use super::parts::App;
use admin::MemoryUse;
use settings::{Bound, Memory};

/// The budgets whose parts are charged byte by byte.
pub(super) struct Budgets {
    pub(super) inflight: Arc<Budget>,
    pub(super) json_bodies: Arc<Budget>,
    pub(super) admin_bodies: Arc<Budget>,
    pub(super) admin_replies: Arc<Budget>,
    pub(super) handshakes: Arc<Budget>,
}

impl Budgets {
    pub(super) fn new(memory: &Memory) -> Self {
        let budget = |bound| Budget::new(memory.bytes(bound));
        Self {
            inflight: budget(Bound::InflightRequests),
            json_bodies: budget(Bound::JsonBodies),
            admin_bodies: budget(Bound::AdminBodies),
            admin_replies: budget(Bound::AdminReplies),
            handshakes: budget(Bound::TlsHandshakes),
        }
    }
}

impl App {
    /// Every bound and its use, where that is measured.
    pub(super) fn memory_use(&self) -> Vec<MemoryUse> {
        let used = |bound| MemoryUse {
            name: Bound::name(bound),
            bytes: self.memory.bytes(bound),
            used: self.used(bound),
        };
        Bound::ALL.into_iter().map(used).collect()
    }

    fn used(&self, bound: Bound) -> Option<usize> {
        let of_many = |count: u64| usize::try_from(count).ok()?.checked_mul(self.memory.unit(bound));
        let service = self.stats.service();
        match bound {
            Bound::Counters => {
                self.store.usage().or_else(|| self.limiter.local_usage()).map(|usage| usage.held.bytes)
            }
            Bound::InflightRequests => Some(self.budgets.inflight.used()),
            Bound::JsonBodies => Some(self.budgets.json_bodies.used()),
            Bound::AdminBodies => Some(self.budgets.admin_bodies.used()),
            Bound::AdminReplies => Some(self.budgets.admin_replies.used()),
            Bound::TlsHandshakes => Some(self.budgets.handshakes.used()),
            Bound::GrpcConnections => of_many(service.connections_open()),
            Bound::Holds => of_many(self.limiter.open_holds().saturating_mul(HOLD)),
            Bound::QueuedSettles => of_many(self.limiter.queued_closings() as u64),
            Bound::Overrides => Some(self.keeper.index().usage().bytes),
            Bound::RecentRequests => self.recent_requests.as_ref().map(|requests| requests.bytes()),
            Bound::Leases => self.store.leases().and_then(|leases| of_many(leases.keys as u64)),
            Bound::LocalCache => self.over_limit.as_ref().map(|cache| cache.usage().keys.bytes),
            Bound::Quotas => Some(self.quotas.bytes()),
            Bound::Series => of_many(self.stats.series() as u64),
            Bound::Rules | Bound::HttpConnections => None,
        }
    }
}

/// The memory of an open hold.
const HOLD: u64 = 1024;
