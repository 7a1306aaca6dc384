//! What follows once counters have hits given back, or holds are closed: metrics, and refusals that are cached here and in other
//! replicas.
//!
//! Stores tell of it when they have read it, which may be after the request has left.

use std::sync::{Arc, OnceLock};

use clock::Clock;
use counters::{Caches, Closed, CounterId, HoldObserver, Resets};
use limit::holds::How;
use metrics::{HoldEnd, Stats};

use super::{over_limit_cache::OverLimitCache, untold::Untold};

pub(super) struct Effects {
    pub(super) stats: Arc<Stats>,
    over_limit: Option<Arc<OverLimitCache>>,
    /// What other replicas must hear of, if they share the store.
    untold: OnceLock<Arc<Untold>>,
    clock: Arc<dyn Clock>,
}

impl Effects {
    pub(super) fn new(
        stats: Arc<Stats>,
        over_limit: Option<Arc<OverLimitCache>>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { stats, over_limit, untold: OnceLock::new(), clock }
    }

    /// Refunds are told to other replicas from now on.
    pub(super) fn tell(&self, untold: Arc<Untold>) {
        self.untold.get_or_init(|| untold);
    }

    /// True if a cache here or in another replica may have refusals.
    pub(super) fn are_cached(&self) -> bool {
        self.over_limit.is_some() || self.untold.get().is_some()
    }

    /// Drops cached refusals here and in other replicas, after a refund: of all counters if `counter` is unknown.
    fn forget_over(&self, counter: Option<CounterId>, full_key: Option<&str>) {
        if let Some(cache) = &self.over_limit {
            match counter {
                Some(counter) => cache.refunded(counter, self.clock.now()),
                None => cache.forget(&Resets::Unknown, self.clock.now()),
            }
        }
        if let Some(untold) = self.untold.get() {
            untold.add(full_key);
        }
    }
}

impl Caches for Effects {
    fn lowered(&self, counter: CounterId, full_key: &str) {
        self.forget_over(Some(counter), Some(full_key));
    }
}

impl HoldObserver for Effects {
    fn closed(&self, closed: &[Closed]) {
        let stats = self.stats.holds();
        for one in closed {
            let rule = stats.rule(one.rule_id);
            match one.how {
                How::Settled => rule.settled.increment(),
                How::SettledLate => stats.late.increment(),
                How::Ended => rule.ended(HoldEnd::Ended).increment(),
                How::Cancelled => rule.ended(HoldEnd::Unanswered).increment(),
                How::Expired => rule.ended(HoldEnd::Expired).increment(),
            }
            // What was held, or charged before, was not free for others.
            let covered = if one.how == How::SettledLate { one.before } else { one.held };
            stats.overspent_hits.add(one.after.saturating_sub(covered));
            if one.after < one.before {
                self.forget_over(one.counter, one.full_key.as_deref());
            }
        }
    }

    fn found_nothing(&self, is_unsure: bool) {
        self.stats.holds().unknown_ids.increment();
        if is_unsure {
            // The reply that was lost names the counter.
            self.forget_over(None, None);
        }
    }
}
