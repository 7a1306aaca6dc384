//! Requests for domains without rules. Callers may invent domains, so their number is bounded.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::{
    OVERFLOW,
    directory::{Directory, Named},
    room::{Place, Room, cut},
    shard::Counter,
};
use clock::Time;

/// Unknown domains get one part in this many of the room for callers' series, so that the rest is available for the
/// metrics that an operator wants.
const SHARE: usize = 10;

/// The requested domains that no rules have.
pub(super) struct UnknownDomains {
    domains: Directory<UnknownDomain>,
    rest: UnknownDomain,
}

struct UnknownDomain {
    name: Box<str>,
    /// Distinguishes this counter from earlier ones of the name.
    number: u64,
    requests: Counter,
    place: Option<Place>,
}

impl UnknownDomains {
    pub(super) fn new(room: &Arc<Room>) -> Self {
        let room = Room::part(room, room.max.div_ceil(SHARE));
        Self { domains: Directory::new(room), rest: UnknownDomain::new(OVERFLOW, None) }
    }

    pub(super) fn count(&self, domain: &str, now: Time) {
        let name = cut(domain);
        let make = |place| UnknownDomain::new(&name, Some(place));
        let own = self.domains.admit(&name, &self.domains.room, now, make);
        own.as_deref().unwrap_or(&self.rest).requests.increment();
    }

    /// Forgets domains that were idle for an hour, if a search is due or `is_due`.
    pub(super) fn make_room(&self, now: Time, is_due: bool) {
        if self.domains.room.is_search_due(now) || is_due {
            self.domains.make_room(now, |domain| domain.number);
        }
    }

    pub(super) fn totals(&self) -> BTreeMap<String, u64> {
        self.domains.totals(&self.rest, |domain| domain.requests.get())
    }

    /// Visits each domain with the number of its counter and its requests.
    pub(super) fn for_each(&self, mut visit: impl FnMut(&str, u64, u64)) {
        let mut visit = |domain: &UnknownDomain| visit(&domain.name, domain.number, domain.requests.get());
        self.domains.for_each(&mut visit);
        visit(&self.rest);
    }
}

impl UnknownDomain {
    fn new(name: &str, place: Option<Place>) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let number = NUMBERS.fetch_add(1, Relaxed);
        Self { name: name.into(), number, requests: Counter::default(), place }
    }
}

impl Named for UnknownDomain {
    fn name(&self) -> &str {
        &self.name
    }

    fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_seconds(1_000_000);

    fn domains(max_series: usize) -> UnknownDomains {
        UnknownDomains::new(&Room::new(max_series))
    }

    fn named(expected: &[(&str, u64)]) -> BTreeMap<String, u64> {
        expected.iter().map(|(domain, n)| ((*domain).to_owned(), *n)).collect()
    }

    #[test]
    fn invented_domains_beyond_the_bound_share_a_count() {
        let domains = domains(20);
        for domain in ["a", "b", "c", "d", "a"] {
            domains.count(domain, NOW);
        }
        assert_eq!(domains.totals(), named(&[("__overflow__", 2), ("a", 2), ("b", 1)]));
        let later = Time::from_seconds(NOW.seconds() + 3600);
        domains.count("a", later);
        domains.make_room(later, true);
        domains.count("e", later);
        assert_eq!(domains.totals(), named(&[("__overflow__", 2), ("a", 3), ("e", 1)]), "b was idle");
    }

    #[test]
    fn domains_that_statsd_writes_alike_add_up() {
        let domains = domains(1000);
        for domain in ["a:b", "a|b", "a.b"] {
            domains.count(domain, NOW);
        }
        assert_eq!(domains.totals(), named(&[("a.b", 1), ("a_b", 2)]));
    }

    #[test]
    fn long_domains_are_cut_and_remain_distinct() {
        let domains = domains(1000);
        for end in ["a", "b", "b"] {
            domains.count(&format!("{}{end}", "é".repeat(1000)), NOW);
        }
        let totals = domains.totals();
        assert!(totals.keys().all(|name| (199..=200).contains(&name.len())), "{totals:?}");
        let mut counts: Vec<_> = totals.into_values().collect();
        counts.sort_unstable();
        assert_eq!(counts, [1, 2]);
    }
}
