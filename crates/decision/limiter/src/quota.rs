//! What divides a limit among Envoys asks of the limiter: the limit of a bucket, hits of its counter ahead of time, and
//! the statistics of what Envoys report.

use super::Limiter;
use clock::Time;

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
    /// An override blocks it.
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

/// Hits that were taken ahead of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reserved {
    /// As many as the limit had room for.
    Hits(u64),
    /// The store is lost, and the failure policy allows or denies all.
    Allow,
    Deny,
    /// The store is lost, and its loss is an error.
    Unknown,
}

impl Limiter {
    pub fn quota_rule(&self, _bucket: &QuotaBucket, _now: Time) -> QuotaRule {
        QuotaRule::Allowed
    }

    /// Takes hits of the bucket's counters, at most this many, in the windows of `at`. Nothing else is counted.
    pub async fn reserve(&self, _bucket: &QuotaBucket, hits: u64, _at: Time) -> Reserved {
        Reserved::Hits(hits)
    }

    /// Gives hits back that were reserved at `at` and not assigned.
    pub async fn give_back(&self, _bucket: &QuotaBucket, _hits: u64, _at: Time) {}

    /// Counts what an Envoy reports in the statistics, the top keys and the refusals.
    pub fn count_quota(&self, _bucket: &QuotaBucket, _allowed: u64, _denied: u64, _now: Time) {}
}
