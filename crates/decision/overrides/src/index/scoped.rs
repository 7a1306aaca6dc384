//! The overrides by entry, and the switches of domains, in tables that a request is looked up in.
//!
//! [`Scoped`] is made from the overrides of one shard when it changes, which an operator causes. The patterns of a key are
//! ranges that are nested or disjoint, so one binary search and a walk to the enclosing ranges find the longest match: ten
//! thousand networks cost fourteen comparisons.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use hashbrown::HashMap;
use ipnet::IpNet;

use crate::{
    entry::{self, Pattern},
    model::Override,
    target::{EVERY_DOMAIN, Scope},
};
use faults::OnStoreFailure;
use rules::Entry;

#[derive(Default)]
pub(super) struct Scoped {
    keys: HashMap<Box<str>, Patterns>,
    /// What allows or shadows the requests of domains.
    switches: ByDomain,
    failure_policies: ByDomain,
    /// The bytes of the tables, without their spare room.
    pub(super) bytes: usize,
}

/// So many networks are searched without [`Patterns::v4_halves`], which take 8 KiB.
const FEW_NETWORKS: usize = 64;

/// The overrides of a key, by the form of their values.
#[derive(Default)]
struct Patterns {
    exact: HashMap<Box<str>, ByDomain>,
    networks: Nested<IpNet>,
    /// A bit for each /16 of IPv4 that a network meets; empty for few networks. Most addresses without a network are not
    /// searched for, which takes twice the instructions of reading one.
    v4_halves: Box<[u64]>,
    prefixes: Nested<Box<str>>,
}

/// Overrides of a pattern, or switches of a kind, in the order of their domains: at most one of each.
#[derive(Default)]
struct ByDomain(Vec<Arc<Override>>);

impl Scoped {
    /// Of two overrides for the same target, the later one applies.
    pub(super) fn new(all: impl Iterator<Item = Arc<Override>>) -> Self {
        let mut all: Vec<Arc<Override>> = all.collect();
        all.sort_by(|one, other| one.target.domain().cmp(other.target.domain()));
        let mut scoped = Self::default();
        let mut by_entry = Vec::new();
        for one in &all {
            match one.target.entry() {
                Some((key, value)) => {
                    scoped.bytes += size_of::<(IpNet, ByDomain, Arc<Override>)>() + value.len();
                    by_entry.push((key, Pattern::of(value), one));
                }
                None if one.target.scope() == Scope::StoreFailure => scoped.failure_policies.add(one.clone()),
                None => scoped.switches.add(one.clone()),
            }
        }
        by_entry.sort_by_key(|(_, pattern, _)| *pattern);
        for (key, pattern, one) in by_entry {
            scoped.keys.entry(key.into()).or_default().add(pattern, one.clone());
        }
        scoped.keys.values_mut().for_each(Patterns::set_v4_halves);
        scoped
    }

    /// The override for an entry: the one with the longest match, and of a domain rather than of all domains.
    pub(super) fn find(&self, domain: &str, entry: &impl Entry, second: u64) -> Option<&Arc<Override>> {
        // Often all overrides have the same key, and comparing it takes less than hashing.
        let patterns = match self.keys.len() {
            1 => self.keys.iter().next().filter(|(key, _)| ***key == *entry.key())?.1,
            _ => self.keys.get(entry.key())?,
        };
        patterns.find(entry.value(), |overrides| overrides.get(domain, second))
    }

    /// The switch of a domain, or else of all domains.
    pub(super) fn switch(&self, domain: &str, second: u64) -> Option<&Arc<Override>> {
        self.switches.get(domain, second)
    }

    pub(super) fn on_store_failure(&self, domain: &str, second: u64) -> Option<OnStoreFailure> {
        self.failure_policies.get(domain, second)?.on_store_failure()
    }
}

impl Patterns {
    /// The override that `pick` selects at the longest match: an exact value, then the narrowest network, then the longest
    /// prefix.
    fn find<'p>(
        &'p self,
        value: &str,
        pick: impl Fn(&'p ByDomain) -> Option<&'p Arc<Override>>,
    ) -> Option<&'p Arc<Override>> {
        if let Some(found) = self.exact.get(value).and_then(&pick) {
            return Some(found);
        }
        if !self.networks.is_empty()
            && let Some(address) = entry::address(value)
            && self.may_have(address)
            && let Some(found) = self.networks.find(&address, &pick)
        {
            return Some(found);
        }
        self.prefixes.find(value, &pick)
    }

    /// Adds an override. Patterns are added in their order.
    fn add(&mut self, pattern: Pattern<'_>, one: Arc<Override>) {
        let overrides = match pattern {
            Pattern::Exact(value) => self.exact.entry(value.into()).or_default(),
            Pattern::Network(network) => self.networks.add(network),
            Pattern::Prefix(prefix) => self.prefixes.add(prefix.into()),
        };
        overrides.add(one);
    }

    fn set_v4_halves(&mut self) {
        if self.networks.ranges.len() <= FEW_NETWORKS {
            return;
        }
        let mut halves = vec![0; (1 << 16) / 64];
        for network in &self.networks.ranges {
            if let IpNet::V4(network) = network {
                let [first, last] = [network.network(), network.broadcast()].map(half_of);
                (first..=last).for_each(|half| halves[half / 64] |= 1 << (half % 64));
            }
        }
        self.v4_halves = halves.into();
    }

    /// False for an address that no network has.
    fn may_have(&self, address: IpAddr) -> bool {
        let IpAddr::V4(address) = address else { return true };
        let half = half_of(address);
        self.v4_halves.get(half / 64).is_none_or(|bits| bits >> (half % 64) & 1 == 1)
    }
}

/// The upper half of an address.
fn half_of(address: Ipv4Addr) -> usize {
    let [first, second, ..] = address.octets();
    usize::from(first) << 8 | usize::from(second)
}

impl ByDomain {
    /// That of a domain, or else of all domains.
    fn get(&self, domain: &str, second: u64) -> Option<&Arc<Override>> {
        let in_force = |name: &str| {
            let at = self.0.binary_search_by(|one| one.target.domain().cmp(name)).ok()?;
            self.0.get(at).filter(|one| !one.ended(second))
        };
        in_force(domain).or_else(|| in_force(EVERY_DOMAIN))
    }

    /// Adds an override whose domain is the last one or comes after it.
    fn add(&mut self, one: Arc<Override>) {
        match self.0.last_mut() {
            Some(last) if last.target.domain() == one.target.domain() => *last = one,
            _ => self.0.push(one),
        }
    }
}

/// A set of points. The order of two is that of their first points; of those that begin with the same one, a set that
/// encloses the other is first.
trait Range: Ord {
    type Point: Ord + ?Sized;

    /// True if it begins at this point or before it.
    fn begins_by(&self, point: &Self::Point) -> bool;

    /// True if it has this point, which is not before its start.
    fn covers(&self, point: &Self::Point) -> bool;

    fn encloses(&self, other: &Self) -> bool;
}

/// Ranges that are nested or disjoint, in order.
struct Nested<R> {
    ranges: Vec<R>,
    /// For each range the number, from 1, of the range that encloses it; 0 for none.
    parents: Vec<usize>,
    overrides: Vec<ByDomain>,
}

impl<R> Default for Nested<R> {
    fn default() -> Self {
        Self { ranges: Vec::new(), parents: Vec::new(), overrides: Vec::new() }
    }
}

impl<R: Range> Nested<R> {
    /// The overrides of a range, which is the last one or comes after it.
    fn add(&mut self, range: R) -> &mut ByDomain {
        if self.ranges.last() != Some(&range) {
            let mut parent = self.ranges.len();
            while parent > 0 && !self.ranges[parent - 1].encloses(&range) {
                parent = self.parents[parent - 1];
            }
            self.ranges.push(range);
            self.parents.push(parent);
            self.overrides.push(ByDomain::default());
        }
        let last = self.overrides.len() - 1;
        &mut self.overrides[last]
    }

    fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The override that `pick` selects of the smallest range with this point.
    fn find<'n, T>(&'n self, point: &R::Point, pick: impl Fn(&'n ByDomain) -> Option<T>) -> Option<T> {
        let mut number = self.ranges.partition_point(|range| range.begins_by(point));
        while let Some(index) = number.checked_sub(1) {
            if self.ranges[index].covers(point)
                && let Some(found) = pick(&self.overrides[index])
            {
                return Some(found);
            }
            number = self.parents[index];
        }
        None
    }
}

impl Range for IpNet {
    type Point = IpAddr;

    fn begins_by(&self, point: &IpAddr) -> bool {
        // The address of a network has no bits beyond its prefix.
        self.addr() <= *point
    }

    fn covers(&self, point: &IpAddr) -> bool {
        self.contains(point)
    }

    fn encloses(&self, other: &Self) -> bool {
        self.contains(other)
    }
}

impl Range for Box<str> {
    type Point = str;

    fn begins_by(&self, point: &str) -> bool {
        **self <= *point
    }

    fn covers(&self, point: &str) -> bool {
        point.starts_with(&**self)
    }

    fn encloses(&self, other: &Self) -> bool {
        self.covers(other)
    }
}
