//! Requests by domain and overall code, `tollgate_requests_total`, descriptors without a rule,
//! `tollgate_unmatched_descriptors_total`, and requests whose limits were not enforced.
//!
//! The limiter holds a handle to each domain of the current rules; the page reads them all. Domains without rules
//! share one entry, so that callers add no series here.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use super::shard::Cells;
use faults::{OnStoreFailure, mutex::lock};

/// Stands for domains without rules, and for requests rejected before the domain was looked up.
pub const UNKNOWN_DOMAIN: &str = "__unknown__";

/// Domains that a reload removed are forgotten when there are more than this many of them. Until then a domain that
/// returns keeps its counts.
const MAX_GONE: usize = 1_000;

text::named! {
    pub enum ResponseCode {
        Ok = "ok",
        OverLimit = "over_limit",
        Error = "error",
    }
}

#[derive(Default, Debug)]
pub struct DomainStats(Cells<CELLS>);

// The cells after those of the codes.
pub(super) const UNMATCHED_DESCRIPTORS: usize = ResponseCode::ALL.len();
const UNMATCHED_REQUESTS: usize = UNMATCHED_DESCRIPTORS + 1;
const WITHOUT_STORE: usize = UNMATCHED_REQUESTS + 1;
/// One cache line.
const CELLS: usize = WITHOUT_STORE + LENIENT.len();

/// The failure policies that do not enforce limits. Of the others one refuses, and one divides the limits.
pub const LENIENT: [OnStoreFailure; 3] =
    [OnStoreFailure::Error, OnStoreFailure::Allow, OnStoreFailure::Local];

/// The requests of a domain, and those whose limits were not enforced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DomainRequests {
    pub all: u64,
    /// No descriptor meets a rule.
    pub unmatched: u64,
    /// Decided by a policy because the store failed, in the order of [`LENIENT`].
    pub without_store: [u64; LENIENT.len()],
}

impl DomainStats {
    /// Counts a request of this many descriptors, of which `unmatched` meet no rule.
    #[inline]
    pub fn count(&self, code: ResponseCode, descriptors: usize, unmatched: usize) {
        self.0.add(code as usize, 1);
        if unmatched > 0 {
            self.0.add(UNMATCHED_DESCRIPTORS, unmatched as u64);
            self.0.add(UNMATCHED_REQUESTS, u64::from(unmatched == descriptors));
        }
    }

    /// Counts requests of one descriptor that an Envoy has decided.
    pub fn count_reported(&self, code: ResponseCode, requests: u64, is_unmatched: bool) {
        self.0.add(code as usize, requests);
        if is_unmatched {
            self.0.add(UNMATCHED_DESCRIPTORS, requests);
            self.0.add(UNMATCHED_REQUESTS, requests);
        }
    }

    /// Counts a request that a policy decides because the store failed.
    pub fn count_without_store(&self, policy: OnStoreFailure) {
        if let Some(index) = LENIENT.iter().position(|lenient| *lenient == policy) {
            self.0.add(WITHOUT_STORE + index, 1);
        }
    }

    fn requests(&self) -> DomainRequests {
        let [ok, over_limit, error, _, unmatched, without_store @ ..] = self.0.all();
        DomainRequests { all: ok.saturating_add(over_limit).saturating_add(error), unmatched, without_store }
    }
}

pub(super) struct Domains {
    by_name: Mutex<BTreeMap<Box<str>, Arc<DomainStats>>>,
    /// Of all domains without rules.
    pub(super) unknown: Arc<DomainStats>,
}

impl Domains {
    pub(super) fn new() -> Self {
        let unknown = Arc::<DomainStats>::default();
        Self { by_name: Mutex::new([(UNKNOWN_DOMAIN.into(), unknown.clone())].into()), unknown }
    }

    pub(super) fn domain(&self, name: &str) -> Arc<DomainStats> {
        let mut by_name = lock(&self.by_name);
        if let Some(known) = by_name.get(name) {
            return known.clone();
        }
        let is_gone = |stats: &Arc<DomainStats>| Arc::strong_count(stats) == 1;
        if by_name.values().filter(|stats| is_gone(stats)).count() > MAX_GONE {
            by_name.retain(|_, stats| !is_gone(stats));
        }
        by_name.entry(name.into()).or_default().clone()
    }

    /// The counts of each domain, in the order of the domains.
    pub(super) fn counts(&self) -> Vec<(Box<str>, [u64; CELLS])> {
        lock(&self.by_name).iter().map(|(name, stats)| (name.clone(), stats.0.all())).collect()
    }

    pub(super) fn requests(&self) -> BTreeMap<Box<str>, DomainRequests> {
        lock(&self.by_name).iter().map(|(name, stats)| (name.clone(), stats.requests())).collect()
    }

    pub(super) fn by_code(&self) -> [u64; ResponseCode::ALL.len()] {
        let mut sums = [0_u64; ResponseCode::ALL.len()];
        for (_, counts) in self.counts() {
            sums.iter_mut().zip(counts).for_each(|(sum, n)| *sum = sum.saturating_add(n));
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(domains: &Domains, name: &str, code: ResponseCode) -> Option<u64> {
        domains
            .counts()
            .into_iter()
            .find(|(known, _)| **known == *name)
            .map(|(_, counts)| counts[code as usize])
    }

    #[test]
    fn counts_by_domain_and_code_from_zero() {
        let domains = Domains::new();
        let shop = domains.domain("shop");
        assert_eq!(total(&domains, "shop", ResponseCode::Error), Some(0));
        for (n, code) in ResponseCode::ALL.into_iter().enumerate() {
            (0..=n).for_each(|_| shop.count(code, 1, 0));
        }
        domains.unknown.count(ResponseCode::Ok, 3, 3);
        shop.count_without_store(OnStoreFailure::Deny);
        shop.count_without_store(OnStoreFailure::Local);
        let counts = domains.counts().into_iter();
        let unmatched: Vec<_> =
            counts.map(|(name, counts)| (name.into(), counts[UNMATCHED_DESCRIPTORS])).collect();
        assert_eq!(unmatched, [(UNKNOWN_DOMAIN.to_owned(), 3), ("shop".to_owned(), 0)]);
        assert_eq!(ResponseCode::ALL.map(|code| total(&domains, "shop", code)), [Some(1), Some(2), Some(3)]);
        assert_eq!(domains.by_code(), [2, 2, 3]);
        assert_eq!(total(&domains, UNKNOWN_DOMAIN, ResponseCode::Ok), Some(1));
        let requests = domains.requests();
        assert_eq!(requests["shop"], DomainRequests { all: 6, unmatched: 0, without_store: [0, 0, 1] });
        assert_eq!(requests[UNKNOWN_DOMAIN], DomainRequests { all: 1, unmatched: 1, without_store: [0; 3] });
    }

    #[test]
    fn keeps_the_counts_of_a_domain_over_reloads() {
        let domains = Domains::new();
        domains.domain("shop").count(ResponseCode::Ok, 1, 0);
        domains.domain("shop").count(ResponseCode::Ok, 1, 0);
        assert_eq!(total(&domains, "shop", ResponseCode::Ok), Some(2));
    }

    #[test]
    fn forgets_removed_domains_beyond_the_bound_but_none_in_service() {
        let domains = Domains::new();
        let in_service = domains.domain("shop");
        in_service.count(ResponseCode::Ok, 1, 0);
        for n in 0..10 * MAX_GONE {
            domains.domain(&n.to_string()).count(ResponseCode::Ok, 1, 0);
            assert!(lock(&domains.by_name).len() <= MAX_GONE + 4);
        }
        assert_eq!(total(&domains, "shop", ResponseCode::Ok), Some(1));
    }
}
