//! What divides a limit among Envoys asks of the limiter: the limit of a bucket, hits of its counter ahead of time, and
//! the statistics of what Envoys report.
//!
//! A bucket is planned as a request of one descriptor, so it has the rule, the overrides and the counters that
//! `ShouldRateLimit` has.

use std::sync::Arc;

use tracing::warn;

use super::{
    Limiter, Served, conclude,
    matches::Matches,
    observe,
    plan::{self, Limited, Plan, Planned, PlannedRequest},
    request::{Descriptor, Entry, Request},
};
use clock::Time;
use counters::{Applied, Batch, Check, Counting, Decider};
use faults::OnStoreFailure;
use limit::{Algorithm, Hits, Limit, Verdict};
use metrics::{QuotaRefused, ResponseCode, RuleCounter};
use rules::model::Domain;

/// A bucket's id in a domain, with its entries in any order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QuotaBucket {
    pub domain: Box<str>,
    pub entries: Box<[(Box<str>, Box<str>)]>,
}

/// What applies to the requests of a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuotaRule {
    /// Nothing limits it: no rule, an unlimited one, shadow mode, or an override that exempts it.
    Allowed,
    /// An override blocks it, the limit is 0, or the rule holds, which cannot be divided.
    Refused,
    Limited(QuotaLimit),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuotaLimit {
    pub requests: u64,
    /// The length of the window that it is for, in seconds; at least one.
    pub seconds: u64,
    /// The end of the window at the time of the question, if the windows are fixed: each has a counter of its own, so hits
    /// of the next one can be taken ahead of time.
    pub window_end: Option<Time>,
}

/// The store is lost, and the failure policy has no counters in its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreLost {
    Allow,
    Deny,
    /// The loss is an error.
    Unknown,
}

/// A request of a bucket's one descriptor, planned.
struct BucketPlan<'b> {
    request: Request<'b>,
    served: Arc<Served>,
    planned: PlannedRequest,
}

impl BucketPlan<'_> {
    fn limited(&self) -> Option<&Limited> {
        self.planned.plan.first().and_then(Planned::limited)
    }

    fn domain(&self) -> Option<&Domain> {
        self.served.rules.domain(self.request.domain)
    }
}

impl Limiter {
    /// True once rules are loaded.
    pub fn has_rules(&self) -> bool {
        self.source.load().is_some()
    }

    pub fn quota_rule(&self, bucket: &QuotaBucket, now: Time) -> QuotaRule {
        let Some(bucket) = self.plan_bucket(bucket, 0, now) else { return QuotaRule::Allowed };
        let scope = self.scope(&bucket.served, now);
        let Some(limited) = bucket.limited().filter(|limited| !self.never_refuses(limited)) else {
            return QuotaRule::Allowed;
        };
        let limits = || limited.limits.iter().map(|check| scope.limit(limited, check).at(now));
        if limited.is_blocked() || limits().any(|limit| limit.holds || limit.algorithm.capacity() == 0) {
            return QuotaRule::Refused;
        }
        let are_fixed = limits().all(|limit| matches!(limit.algorithm, Algorithm::FixedWindow(_)));
        let strictest = limits().min_by(|one, two| {
            let rate = |one: &Limit, two: &Limit| {
                u128::from(one.requests_per_unit) * u128::from(two.period().seconds(now))
            };
            rate(one, two).cmp(&rate(two, one))
        });
        strictest.map_or(QuotaRule::Allowed, |limit| {
            QuotaRule::Limited(QuotaLimit {
                requests: limit.requests_per_unit,
                seconds: limit.period().seconds(now).max(1),
                window_end: are_fixed.then(|| limit.period().end(now)),
            })
        })
    }

    fn never_refuses(&self, limited: &Limited) -> bool {
        self.policy.shadow_mode || limited.is_shadow
    }

    /// Takes hits of the bucket's counters, at most this many, in the windows of `at`, which is now or in a window that
    /// begins soon: as many as the limit has room for. Nothing else is counted.
    ///
    /// The counters are read first: a fixed window would count what it has no room for, and refuse other callers.
    pub async fn reserve(
        self: &Arc<Self>,
        bucket: &QuotaBucket,
        hits: u64,
        at: Time,
    ) -> Result<u64, StoreLost> {
        let Some(mut bucket) = self.plan_bucket(bucket, 0, at) else { return Ok(hits) };
        match bucket.limited() {
            None => return Ok(hits),
            Some(limited) if limited.is_blocked() || bucket.planned.batch.may_hold() => return Ok(0),
            Some(_) => {}
        }
        self.count_bucket(&mut bucket, |_| Hits::Take(0), Counting::ReadOnly, at).await?;
        let room = bucket.planned.batch.checks().iter().map(|check| check.verdict.remaining).min();
        let hits = hits.min(room.unwrap_or_default());
        if hits == 0 {
            return Ok(0);
        }
        self.count_bucket(&mut bucket, |_| Hits::Take(hits), Counting::Always, at).await?;
        let verdicts = || bucket.planned.batch.checks().iter().map(|check| (check.verdict, check.limit));
        if verdicts().all(|(verdict, _)| verdict.admitted) {
            return Ok(hits);
        }
        // Others have taken the room since the read.
        let over = |(verdict, limit): (Verdict, limit::Rate)| {
            let is_counted = verdict.consumed && !verdict.admitted;
            is_counted.then(|| verdict.count.saturating_sub(limit.algorithm.capacity()).min(hits))
        };
        let Some(excess) = verdicts().filter_map(over).max() else { return Ok(0) };
        self.count_bucket(&mut bucket, |_| Hits::Refund(excess), Counting::Always, at).await?;
        Ok(hits - excess)
    }

    /// Gives hits back that were reserved at `at` and not assigned, to the windows that have not ended since.
    pub async fn give_back(self: &Arc<Self>, bucket: &QuotaBucket, hits: u64, at: Time) {
        let now = self.now();
        let Some(mut bucket) = self.plan_bucket(bucket, 0, at) else { return };
        let lasts = |limit: &limit::Rate| match limit.algorithm {
            Algorithm::FixedWindow(window) => window.period.end(at) > now,
            _ => at.seconds().saturating_add(limit.period().seconds(at)) > now.seconds(),
        };
        if bucket.planned.batch.checks().is_empty() || bucket.planned.batch.may_hold() {
            return;
        }
        let refund = |check: &Check| Hits::Refund(if lasts(&check.limit) { hits } else { 0 });
        // What is not given back to a lost store is not admitted again: no limit is exceeded by it.
        let _ = self.count_bucket(&mut bucket, refund, Counting::Always, at.max(now)).await;
    }

    /// Counts what an Envoy reports in the statistics, the top keys and the refusals.
    pub fn count_quota(&self, bucket: &QuotaBucket, allowed: u64, denied: u64, now: Time) {
        self.stats.quotas().allowed_hits.add(allowed);
        self.stats.quotas().denied_hits.add(denied);
        for (hits, code) in [(allowed, ResponseCode::Ok), (denied, ResponseCode::OverLimit)] {
            if hits > 0 {
                self.count_reported(bucket, hits, code, now);
            }
        }
    }

    fn count_reported(&self, bucket: &QuotaBucket, hits: u64, code: ResponseCode, now: Time) {
        let Some(mut bucket) = self.plan_bucket(bucket, hits, now) else {
            self.stats.domain_not_found(&bucket.domain, now);
            return self.stats.unknown_domain().count_reported(code, hits, true);
        };
        if let Some(Planned::Limited(limited)) = bucket.planned.plan.first_mut() {
            // A request of a concurrency limit is one hit, whatever it says.
            limited.hits = Hits::Take(hits);
        }
        plan::count_hits(&bucket.planned.plan, self.scope(&bucket.served, now));
        let admitted = code == ResponseCode::Ok;
        let verdict = Verdict { admitted, ..Verdict::default() };
        bucket.planned.batch.ask_all(|_| Hits::Take(hits));
        bucket.planned.batch.decide_open(Decider::Store, |_| verdict);
        let scope = self.scope(&bucket.served, now);
        if let Some(domain) = bucket.domain()
            && let Some(stats) = bucket.served.attached.domains.get(domain.index)
        {
            let is_unmatched = matches!(bucket.planned.plan.first(), Some(Planned::NoLimit));
            stats.count_reported(code, hits, is_unmatched);
        }
        match bucket.limited() {
            // They were admitted before it was blocked.
            Some(limited) if admitted && limited.is_blocked() => {
                return scope.stats(limited).add(RuleCounter::WithinLimit, hits);
            }
            Some(limited) if bucket.planned.batch.may_hold() => {
                self.stats.quotas().refused(QuotaRefused::Holds).increment();
                if let Some(suppressed) = self.quota_log.admit(now) {
                    let rule = scope.rule_of_limits(limited).map(|rule| &*rule.full_key);
                    let suppressed = (suppressed > 0).then_some(suppressed);
                    warn!(
                        rule,
                        suppressed,
                        "the rule holds, which cannot be divided among Envoys: its quota bucket is refused; call \
                         ShouldRateLimit for its descriptors"
                    );
                }
            }
            _ => {}
        }
        let request = &bucket.request;
        let conclusion = conclude::conclude(&request, scope, &bucket.planned, &self.stats);
        if let Some(recent) = &self.recent {
            observe::observe(recent, &self.overrides, &conclusion);
        }
    }

    /// Plans a request of these hits in the windows of `at`; `None` if its domain has no rules. A bucket that matches no
    /// rule in any order of its entries has that of their keys.
    fn plan_bucket<'b>(&self, bucket: &'b QuotaBucket, hits: u64, at: Time) -> Option<BucketPlan<'b>> {
        let served = self.source.current()?;
        let domain = served.rules.domain(&bucket.domain)?;
        let mut entries: Vec<_> = bucket.entries.iter().map(|(key, value)| Entry { key, value }).collect();
        entries.sort_unstable_by_key(|entry| entry.key);
        let order = domain.order(&entries);
        let in_order = order.iter().flatten().filter_map(|index| entries.get(*index)).copied();
        let entries = if order.is_some() { in_order.collect() } else { entries.iter().copied().collect() };
        let descriptor = Descriptor { entries, hits_addend: Some(hits), ..Descriptor::default() };
        let descriptors = [descriptor].into_iter().collect();
        let request = Request { domain: &bucket.domain, descriptors, ..Request::default() };
        // Only a limit that comes with a request can be invalid.
        let mut planned = PlannedRequest { plan: Plan::new(), batch: Batch::default() };
        let scratch = planned.batch.keys();
        let matches = Matches::of(&request, Some(domain), &self.overrides, &self.policy, scratch, at).ok()?;
        let hold_account = Some(&self.holds.account);
        let context = plan::Context { stats: &self.stats, closes: false, names: self.names, hold_account };
        plan::plan(&request, &matches, self.scope(&served, at), &mut planned, &context);
        let ahead = at.micros().saturating_sub(self.now().micros()).div_ceil(1_000_000);
        planned.batch.set_ahead(u8::try_from(ahead).unwrap_or(u8::MAX));
        drop(matches);
        Some(BucketPlan { request, served, planned })
    }

    /// Counts in the store, or in the local fallback if the failure policy says so.
    async fn count_bucket(
        self: &Arc<Self>,
        bucket: &mut BucketPlan<'_>,
        hits: impl Fn(&Check) -> Hits,
        counting: Counting,
        now: Time,
    ) -> Result<(), StoreLost> {
        let batch = &mut bucket.planned.batch;
        batch.counting = counting;
        batch.ask_all(hits);
        batch.lowered = self.lowered_by(batch);
        let applied = match self.store.try_apply(batch, now) {
            Applied::Done => Ok(()),
            Applied::Wait => self.store.apply(batch, now).await,
        };
        batch.lowered = None;
        let Err(error) = applied else { return Ok(()) };
        let policy = self.failure_policy(bucket.request.domain, bucket.domain(), self.now());
        match (self.without_store(error, policy, &mut bucket.planned.batch, now), policy) {
            (Err(_), _) => Err(StoreLost::Unknown),
            (Ok(_), OnStoreFailure::Allow) => Err(StoreLost::Allow),
            (Ok(_), OnStoreFailure::Deny) => Err(StoreLost::Deny),
            (Ok(_), _) => Ok(()),
        }
    }
}
