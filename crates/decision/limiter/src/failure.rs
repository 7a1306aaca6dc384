//! Decisions while the store fails: an error, or the result of the domain's failure policy.
//!
//! Called by [`Limiter`]. Each decision is counted by policy and reason, and shown in the answer's dynamic metadata
//! if there is any.

use std::sync::atomic::Ordering::Relaxed;

use futures_util::FutureExt as _;
use tracing::warn;

use super::{Limiter, request::RequestError};
use clock::Time;
use counters::{Batch, Decider, KeepHolds as _, Operate as _, Report as _, StoreError};
use faults::OnStoreFailure;
use limit::Share;
use memory::MemoryStore;
use metrics::{FailureReason, StoreUsage};
use rules::{Domain, Metadata, Value};

/// The policy that decided a request, and the reason of the store's failure.
#[derive(Clone, Copy)]
pub(super) struct FailureDecision {
    policy: OnStoreFailure,
    reason: FailureReason,
}

impl Limiter {
    /// The policy that decides requests of a domain: that of its switch, of its rules, or `STORE_FAILURE_POLICY`.
    pub(super) fn failure_policy(&self, name: &str, known: Option<&Domain>, now: Time) -> OnStoreFailure {
        let switched = self.overrides.view(now).and_then(|view| view.on_store_failure(name));
        let policy = switched.or_else(|| known.and_then(|domain| domain.on_store_failure));
        policy.unwrap_or(self.policy.on_store_failure)
    }

    /// True if `share` may decide requests, so that the number of replicas has to be known.
    pub fn uses_share(&self) -> bool {
        let served = self.source.current();
        let now = self.now();
        let mut domains = served.iter().flat_map(|served| served.rules.domains());
        self.policy.on_store_failure == OnStoreFailure::Share
            || domains.any(|one| self.failure_policy(&one.name, Some(one), now) == OnStoreFailure::Share)
    }

    /// Sets the share that this replica has of each limit while the store fails.
    pub fn set_share(&self, share: Share) {
        self.share.store(share.to_bits(), Relaxed);
    }

    pub fn share(&self) -> Option<Share> {
        Share::from_bits(self.share.load(Relaxed))
    }

    /// The policy, or `local` in place of `share` if no other replica was ever heard of.
    pub(super) fn unless_unknown(&self, policy: OnStoreFailure, now: Time) -> OnStoreFailure {
        if policy != OnStoreFailure::Share || self.share().is_some() {
            return policy;
        }
        if self.no_share_log.admit(now).is_some() {
            warn!(
                "store failure: the policy share decides as local, by whole limits: this replica has never read the list \
                 of replicas in Redis (REPLICA_SYNC)"
            );
        }
        OnStoreFailure::Local
    }

    /// Each policy with the domains that it decides, in the order of their names. Without rules it is `STORE_FAILURE_POLICY`.
    pub fn failure_policies(&self) -> Vec<(OnStoreFailure, Vec<String>)> {
        let served = self.source.current();
        let mut all: Vec<_> = OnStoreFailure::ALL.map(|policy| (policy, Vec::new())).into();
        for domain in served.iter().flat_map(|served| served.rules.domains()) {
            let policy = self.failure_policy(&domain.name, Some(domain), self.now());
            let decided = all.iter_mut().filter(|(known, _)| *known == policy);
            decided.for_each(|(_, domains)| domains.push(domain.name.to_string()));
        }
        all.retain(|(_, domains)| !domains.is_empty());
        if all.is_empty() {
            all.push((self.policy.on_store_failure, Vec::new()));
        }
        for (_, domains) in &mut all {
            domains.sort_unstable();
        }
        all
    }

    /// Decides what the store has left open.
    pub(super) fn without_store(
        &self,
        error: StoreError,
        policy: OnStoreFailure,
        batch: &mut Batch,
        now: Time,
    ) -> Result<FailureDecision, RequestError> {
        let reason = error.reason;
        self.stats.service().store_failures(policy, reason).increment();
        self.log_store_failure(&error, policy, now);
        match policy {
            OnStoreFailure::Error => return Err(RequestError::Store(error)),
            OnStoreFailure::Allow => assume(batch, false, now),
            OnStoreFailure::Deny => assume(batch, true, now),
            OnStoreFailure::Local => self.count_here(None, batch, now),
            OnStoreFailure::Share => self.count_here(self.share(), batch, now),
        }
        Ok(FailureDecision { policy, reason })
    }

    /// Counts in memory, against the share of each limit if there is one. If a lease knows how many hits of the window are
    /// counted, the counter begins so that the share of what was left is left.
    fn count_here(&self, share: Option<Share>, batch: &mut Batch, now: Time) {
        let local = self
            .local
            .get_or_init(|| MemoryStore::new(self.policy.max_local_keys).holding(self.policy.max_holds));
        if let Some(share) = share {
            batch.divide(share, |whole, part| {
                if let Some(known) = self.store.known(whole, now) {
                    let left = share.of(whole.limit.requests_per_unit.saturating_sub(known));
                    local.begin(part, part.limit.requests_per_unit.saturating_sub(left), now);
                }
            });
        }
        batch.decider = Decider::Fallback;
        local.count(batch, now);
    }

    /// Logs the store's error, which callers do not see, at most every ten seconds.
    fn log_store_failure(&self, error: &StoreError, policy: OnStoreFailure, now: Time) {
        if let Some(suppressed) = self.store_failures_log.admit(now) {
            let suppressed = (suppressed > 0).then_some(suppressed);
            warn!(policy = policy.name(), reason = error.reason.name(), suppressed, "store failure: {error}");
        }
    }

    /// Removes expired counters of the local fallback; called about once a second.
    pub fn maintain(&self, now: Time) {
        if let Some(local) = self.local.get() {
            local.maintain(now);
            let _ = local.sweep_holds(&self.holds.account, now).now_or_never();
        }
    }

    /// The usage of the local fallback; `None` before its first use.
    pub fn local_usage(&self) -> Option<StoreUsage> {
        self.local.get()?.usage()
    }
}

impl FailureDecision {
    pub(super) fn names(self) -> (&'static str, &'static str) {
        (self.policy.name(), self.reason.name())
    }

    /// Adds the decision to an answer's dynamic metadata.
    pub(super) fn add_to(self, metadata: &mut Metadata) {
        let (policy, reason) = self.names();
        let fields = [("policy", policy), ("reason", reason)];
        let fields = fields.map(|(key, value)| (key.to_owned(), Value::Text(value.to_owned())));
        metadata.insert("storeFailure".to_owned(), Value::Map(fields.into()));
    }
}

/// Assumes that every open counter is over its limit, or unused.
fn assume(batch: &mut Batch, over: bool, now: Time) {
    batch.decide_open(Decider::Policy { over }, |check| check.limit.algorithm.assumed(over, check.hits, now));
}
