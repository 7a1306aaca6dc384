//! Requests for domains that have no rules. Callers may invent domains, so their number is bounded.

use std::collections::BTreeMap;

use super::{
    OVERFLOW, StatsOptions,
    bounded::{Bounded, totals},
    directory::Named,
    shard::{Counter, ShardCount},
};

/// The domains that requests name and no rules know.
#[derive(Debug)]
pub(super) struct UnknownDomains {
    domains: Bounded<UnknownDomain>,
    /// Stands in for those that find no room.
    rest: UnknownDomain,
    shards: ShardCount,
}

#[derive(Debug)]
struct UnknownDomain {
    name: Box<str>,
    requests: Counter,
}

impl UnknownDomains {
    pub(super) fn new(options: StatsOptions) -> Self {
        let StatsOptions { max_series, shards } = options;
        Self { domains: Bounded::new(max_series), rest: UnknownDomain::new(OVERFLOW, shards), shards }
    }

    /// Counts a request for this domain.
    pub(super) fn count(&self, domain: &str) {
        let own = self.domains.admit(domain, || UnknownDomain::new(domain, self.shards));
        own.as_deref().unwrap_or(&self.rest).requests.increment();
    }

    /// The requests for each.
    pub(super) fn totals(&self) -> BTreeMap<String, u64> {
        totals(&self.domains, &self.rest, |domain| domain.requests.get())
    }
}

impl UnknownDomain {
    fn new(name: &str, shards: ShardCount) -> Self {
        Self { name: name.into(), requests: Counter::new(shards) }
    }
}

impl Named for UnknownDomain {
    fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invented_domains_share_a_count_once_there_are_too_many() {
        let domains = UnknownDomains::new(StatsOptions { max_series: 2, shards: ShardCount::for_workers(1) });
        for domain in ["a", "b", "c", "d", "a"] {
            domains.count(domain);
        }
        let expected = [("__overflow__", 2), ("a", 2), ("b", 1)];
        assert_eq!(domains.totals(), expected.map(|(domain, n)| (domain.to_owned(), n)).into());
    }

    #[test]
    fn domains_that_statsd_writes_alike_add_up() {
        let domains = UnknownDomains::new(StatsOptions::default());
        for domain in ["a:b", "a|b", "a.b"] {
            domains.count(domain);
        }
        let expected = [("a.b", 1), ("a_b", 2)];
        assert_eq!(domains.totals(), expected.map(|(domain, n)| (domain.to_owned(), n)).into());
    }
}
