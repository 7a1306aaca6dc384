//! Requests by domain and overall code: `tollgate_requests_total`.
//!
//! The limiter holds a handle to each domain of the rules in service; the page reads them all. Domains that no
//! rules have share one entry, so that callers make no series here.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use super::shard::{Cells, ShardCount};
use crate::mutex::lock;

/// Stands for every domain without rules, and for requests refused before their domain was looked up.
const UNKNOWN: &str = "__unknown__";

/// Domains that left with a reload are forgotten when more than this many domains have no rules any more. Their
/// counters stay until then, so that a domain that comes back goes on counting.
const MAX_GONE: usize = 1_000;

named! {
    /// The overall code of a response.
    pub enum ResponseCode {
        /// The request may pass.
        Ok = "ok",
        /// The request is over its limit.
        OverLimit = "over_limit",
        /// The request was answered with an error.
        Error = "error",
    }
}

/// The requests of one domain.
#[derive(Debug)]
pub struct DomainStats(Cells<{ ResponseCode::ALL.len() }>);

impl DomainStats {
    /// Counts a request that got this code.
    pub fn count(&self, code: ResponseCode) {
        self.0.add(code as usize, 1);
    }
}

/// The requests of all domains.
#[derive(Debug)]
pub(super) struct Domains {
    by_name: Mutex<BTreeMap<Box<str>, Arc<DomainStats>>>,
    unknown: Arc<DomainStats>,
    shards: ShardCount,
}

impl Domains {
    pub(super) fn new(shards: ShardCount) -> Self {
        let unknown = Arc::new(DomainStats(Cells::new(shards)));
        Self { by_name: Mutex::new([(UNKNOWN.into(), unknown.clone())].into()), unknown, shards }
    }

    /// The requests of a domain of the rules. For those who publish rules, not for requests.
    pub(super) fn domain(&self, name: &str) -> Arc<DomainStats> {
        let mut by_name = lock(&self.by_name);
        if let Some(known) = by_name.get(name) {
            return known.clone();
        }
        let is_gone = |stats: &Arc<DomainStats>| Arc::strong_count(stats) == 1;
        if by_name.values().filter(|stats| is_gone(stats)).count() > MAX_GONE {
            by_name.retain(|_, stats| !is_gone(stats));
        }
        by_name.entry(name.into()).or_insert_with(|| Arc::new(DomainStats(Cells::new(self.shards)))).clone()
    }

    /// The requests of domains that no rules have.
    pub(super) fn unknown(&self) -> &DomainStats {
        &self.unknown
    }

    /// The requests of every domain by code, in the order of their names.
    pub(super) fn totals(&self) -> Vec<(Box<str>, ResponseCode, u64)> {
        let mut totals = Vec::new();
        for (name, stats) in lock(&self.by_name).iter() {
            totals.extend(
                ResponseCode::ALL.into_iter().zip(stats.0.all()).map(|(code, n)| (name.clone(), code, n)),
            );
        }
        totals
    }

    /// The requests of all domains together by code.
    pub(super) fn by_code(&self) -> [u64; ResponseCode::ALL.len()] {
        let mut sums = [0_u64; ResponseCode::ALL.len()];
        for stats in lock(&self.by_name).values() {
            for (sum, n) in sums.iter_mut().zip(stats.0.all()) {
                *sum = sum.saturating_add(n);
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(domains: &Domains, name: &str, code: ResponseCode) -> Option<u64> {
        domains.totals().into_iter().find(|(known, of, _)| **known == *name && *of == code).map(|(_, _, n)| n)
    }

    #[test]
    fn counts_by_domain_and_code_from_zero() {
        let domains = Domains::new(ShardCount::for_workers(2));
        let shop = domains.domain("shop");
        assert_eq!(total(&domains, "shop", ResponseCode::Error), Some(0));
        for (n, code) in ResponseCode::ALL.into_iter().enumerate() {
            (0..=n).for_each(|_| shop.count(code));
        }
        domains.unknown().count(ResponseCode::Ok);
        assert_eq!(ResponseCode::ALL.map(|code| total(&domains, "shop", code)), [Some(1), Some(2), Some(3)]);
        assert_eq!(domains.by_code(), [2, 2, 3]);
        assert_eq!(total(&domains, UNKNOWN, ResponseCode::Ok), Some(1));
    }

    #[test]
    fn keeps_the_counts_of_a_domain_over_reloads() {
        let domains = Domains::new(ShardCount::for_workers(1));
        domains.domain("shop").count(ResponseCode::Ok);
        domains.domain("shop").count(ResponseCode::Ok);
        assert_eq!(total(&domains, "shop", ResponseCode::Ok), Some(2));
    }

    #[test]
    fn forgets_domains_that_are_gone_when_there_are_too_many_and_never_one_in_service() {
        let domains = Domains::new(ShardCount::for_workers(1));
        let in_service = domains.domain("shop");
        in_service.count(ResponseCode::Ok);
        for n in 0..10 * MAX_GONE {
            domains.domain(&n.to_string()).count(ResponseCode::Ok);
            assert!(lock(&domains.by_name).len() <= MAX_GONE + 4);
        }
        assert_eq!(total(&domains, "shop", ResponseCode::Ok), Some(1));
    }
}
