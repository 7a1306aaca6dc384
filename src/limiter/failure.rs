//! What becomes of a request whose counters are lost: an error, or a decision by policy.
//!
//! Called by [`Limiter`] when its store has failed. Whatever the policy decides is counted by policy and
//! reason, and told in the answer's dynamic metadata where there is any.

use tracing::warn;

use super::{
    Limiter, RequestError,
    plan::{CounterSource, Plan, Planned},
};
use crate::{
    clock::Time,
    rules::{Metadata, OnStoreFailure, Value, model::Domain},
    store::{Batch, FailureReason, Store, StoreError, StoreUsage, memory::MemoryStore},
    telemetry::metrics::StoreFailure,
};

/// By which policy a request was decided whose counters are lost, and why they are.
#[derive(Clone, Copy)]
pub(super) struct FailureDecision {
    policy: OnStoreFailure,
    reason: StoreFailure,
}

impl Limiter {
    /// Prepares plan and batch to be concluded without the store, as the domain's policy has it.
    ///
    /// # Errors
    /// When the policy is to answer with an error.
    pub(super) fn without_store(
        &self,
        error: StoreError,
        domain: &Domain,
        plan: &mut Plan<'_>,
        batch: &mut Batch<'_>,
        now: Time,
    ) -> Result<FailureDecision, RequestError> {
        let policy = domain.on_store_failure.unwrap_or(self.policy.on_store_failure);
        let reason = reason(error.reason);
        self.stats.service().store_failures(policy, reason).increment();
        self.log_store_failure(&error, policy, now);
        match policy {
            OnStoreFailure::Error => return Err(RequestError::Store(error)),
            OnStoreFailure::Allow => suppose(plan, false),
            OnStoreFailure::Deny => suppose(plan, true),
            OnStoreFailure::Local => {
                let local = self.local.get_or_init(|| MemoryStore::new(self.policy.max_local_keys));
                // It answers at once and never fails.
                drop(local.apply(batch, now));
            }
        }
        Ok(FailureDecision { policy, reason })
    }

    /// Logs why a store failed, which callers do not see; at most every ten seconds.
    fn log_store_failure(&self, error: &StoreError, policy: OnStoreFailure, now: Time) {
        if let Some(suppressed) = self.store_failures_log.admit(now) {
            let suppressed = (suppressed > 0).then_some(suppressed);
            warn!(
                policy = policy.name(),
                reason = reason(error.reason).name(),
                suppressed,
                "store failure: {error}"
            );
        }
    }

    /// Gives back what has ended of the counters of this process; called about once a second.
    pub fn maintain(&self, now: Time) {
        if let Some(local) = self.local.get() {
            local.maintain(now);
        }
    }

    /// How full the counters of this process are, once the store was lost and policy had them count.
    #[must_use]
    pub fn local_usage(&self) -> Option<StoreUsage> {
        self.local.get()?.usage()
    }
}

impl FailureDecision {
    /// The names of the policy and of the reason.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        (self.policy.name(), self.reason.name())
    }

    /// Adds to an answer's dynamic metadata that it was decided by policy.
    pub(super) fn tell(self, metadata: &mut Metadata) {
        let (policy, reason) = self.names();
        let told = [("policy", policy), ("reason", reason)];
        let told = told.map(|(key, value)| (key.to_owned(), Value::Text(value.to_owned())));
        metadata.insert("storeFailure".to_owned(), Value::Map(told.into()));
    }
}

/// Supposes every counter that was to be asked to be over its limit, or far from it. One that is known
/// to be over stays so: that was never the store's to say.
fn suppose(plan: &mut Plan<'_>, over: bool) {
    for planned in plan {
        let Planned::Limited(limited) = planned else { continue };
        for held in &mut limited.limits {
            if let CounterSource::Store(_) = held.asked {
                held.asked = CounterSource::Nobody { over };
            }
        }
    }
}

/// The statistics know nothing of stores.
fn reason(reason: FailureReason) -> StoreFailure {
    match reason {
        FailureReason::Timeout => StoreFailure::Timeout,
        FailureReason::QueueFull => StoreFailure::QueueFull,
        FailureReason::Overloaded => StoreFailure::Overloaded,
        FailureReason::Unavailable => StoreFailure::Unavailable,
        FailureReason::ConnectionLost => StoreFailure::ConnectionLost,
        FailureReason::BadAnswer => StoreFailure::BadAnswer,
    }
}
