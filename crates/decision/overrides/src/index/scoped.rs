//! The overrides by entry, and the switches of domains, in tables that a request is looked up in.
//!
//! [`Scoped`] is made from the overrides of one shard when it changes, which an operator causes. The patterns of a key are
//! ranges that are nested or disjoint, so one binary search and a walk to the enclosing ranges find the longest match: ten
//! thousand networks cost fourteen comparisons.

use std::{
    collections::BTreeMap,
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
    switches: HashMap<Box<str>, Switches>,
    /// The bytes of the tables, without their spare room.
    pub(super) bytes: usize,
}

#[derive(Default)]
struct Switches {
    requests: Option<Arc<Override>>,
    store_failure: Option<Arc<Override>>,
}

/// The overrides of a key, by the form of their values.
#[derive(Default)]
struct Patterns {
    exact: HashMap<Box<str>, Owners>,
    v4: Nested<Span<u32>>,
    /// Most addresses without a network are not read.
    v4_filter: Filter,
    v6: Nested<Span<u128>>,
    prefixes: Nested<Box<str>>,
}

/// The overrides of a pattern in the order of their domains: at most one of each.
#[derive(Default)]
struct Owners(Vec<Arc<Override>>);

impl Scoped {
    /// Of two overrides for the same target, the later one applies.
    pub(super) fn new(all: impl Iterator<Item = Arc<Override>>) -> Self {
        let (mut keys, mut scoped) = (HashMap::<Box<str>, Building>::new(), Self::default());
        for one in all {
            match one.target.entry() {
                Some((key, value)) => {
                    scoped.bytes += size_of::<(Span<u128>, Owners, Arc<Override>)>() + value.len();
                    keys.entry(key.into()).or_default().add(value, one.clone());
                }
                None => scoped.add_switch(one),
            }
        }
        scoped.keys = keys.into_iter().map(|(key, building)| (key, building.done())).collect();
        scoped
    }

    fn add_switch(&mut self, one: Arc<Override>) {
        let switches = self.switches.entry(one.target.domain().into()).or_default();
        match one.target.scope() {
            Scope::StoreFailure => switches.store_failure = Some(one),
            _ => switches.requests = Some(one),
        }
    }

    pub(super) fn has_entries(&self) -> bool {
        !self.keys.is_empty()
    }

    pub(super) fn has_switches(&self) -> bool {
        !self.switches.is_empty()
    }

    /// The override for an entry: the one with the longest match, and of a domain rather than of all domains.
    pub(super) fn find(&self, domain: &str, entry: &impl Entry, second: u64) -> Option<&Arc<Override>> {
        // Often all overrides have the same key, and comparing it takes less than hashing.
        let patterns = match self.keys.len() {
            1 => self.keys.iter().next().filter(|(key, _)| ***key == *entry.key())?.1,
            _ => self.keys.get(entry.key())?,
        };
        patterns.find(entry.value(), |owners| owners.of(domain, second))
    }

    /// The switch of a domain, or else of all domains.
    pub(super) fn switch(&self, domain: &str, second: u64) -> Option<&Arc<Override>> {
        self.switch_of(domain, second, |switches| switches.requests.as_ref())
    }

    pub(super) fn on_store_failure(&self, domain: &str, second: u64) -> Option<OnStoreFailure> {
        self.switch_of(domain, second, |switches| switches.store_failure.as_ref())?.on_store_failure()
    }

    fn switch_of(
        &self,
        domain: &str,
        second: u64,
        which: impl Fn(&Switches) -> Option<&Arc<Override>>,
    ) -> Option<&Arc<Override>> {
        [domain, EVERY_DOMAIN]
            .into_iter()
            .find_map(|name| which(self.switches.get(name)?).filter(|one| !one.ended(second)))
    }
}

impl Patterns {
    /// The owner that `pick` selects at the longest match: an exact value, then the narrowest network, then the longest
    /// prefix.
    fn find<'p>(
        &'p self,
        value: &str,
        pick: impl Fn(&'p Owners) -> Option<&'p Arc<Override>>,
    ) -> Option<&'p Arc<Override>> {
        if !self.exact.is_empty()
            && let Some(found) = self.exact.get(value).and_then(&pick)
        {
            return Some(found);
        }
        let of_address = match self.may_have(value).then(|| entry::address(value)).flatten() {
            Some(IpAddr::V4(address)) => self.v4.find(&address.to_bits(), &pick),
            Some(IpAddr::V6(address)) => self.v6.find(&address.to_bits(), &pick),
            None => None,
        };
        of_address.or_else(|| if self.prefixes.is_empty() { None } else { self.prefixes.find(value, &pick) })
    }

    /// False if the value is an address of no network.
    fn may_have(&self, value: &str) -> bool {
        let is_empty = || self.v4.is_empty() && self.v6.is_empty();
        entry::prefix_hashes(value).map_or_else(|| !is_empty(), |hashes| self.v4_filter.may_have(hashes))
    }
}

/// The [hashes](entry::prefix_hashes) of the /16 of each network that is larger than a /24, and of the /24 of each other. It
/// has every address if a network is larger than a /8.
#[derive(Default)]
struct Filter {
    halves: Bits,
    thirds: Bits,
}

/// A power of two of bits, by the lower bits of a hash; none have no bit set.
#[derive(Default)]
struct Bits(Box<[u64]>);

/// Maximum number of words, of which each hash has one: one in sixty others has the bit of a hash.
const MOST_WORDS: usize = 1 << 15;

impl Filter {
    fn of<'s>(networks: impl Iterator<Item = &'s Span<u32>>) -> Self {
        let (mut halves, mut thirds) = (Vec::new(), Vec::new());
        let hashes = |address: u32| entry::prefix_hashes(&Ipv4Addr::from_bits(address).to_string());
        for Span { start, end } in networks {
            if end - start >= 1 << 24 {
                return Self { halves: Bits([u64::MAX].into()), thirds: Bits::default() };
            }
            if end - start < 1 << 8 {
                thirds.extend(hashes(*start).map(|[_, three]| three));
            } else {
                let all = (start >> 16..=end >> 16).filter_map(|half| hashes(half << 16));
                halves.extend(all.map(|[half, _]| half));
            }
        }
        Self { halves: Bits::of(&halves), thirds: Bits::of(&thirds) }
    }

    fn may_have(&self, [half, three]: [u32; 2]) -> bool {
        self.halves.get(half) || self.thirds.get(three)
    }
}

impl Bits {
    fn of(hashes: &[u32]) -> Self {
        if hashes.is_empty() {
            return Self::default();
        }
        let mut bits = Self(vec![0; hashes.len().next_power_of_two().min(MOST_WORDS)].into());
        for hash in hashes {
            let word = bits.word(*hash);
            bits.0[word] |= 1 << (hash % 64);
        }
        bits
    }

    fn word(&self, hash: u32) -> usize {
        (hash / 64) as usize & self.0.len().saturating_sub(1)
    }

    fn get(&self, hash: u32) -> bool {
        self.0.get(self.word(hash)).is_some_and(|bits| bits >> (hash % 64) & 1 == 1)
    }
}

impl Owners {
    fn of(&self, domain: &str, second: u64) -> Option<&Arc<Override>> {
        let in_force = |name: &str| {
            let at = self.0.binary_search_by(|one| one.target.domain().cmp(name)).ok()?;
            self.0.get(at).filter(|one| !one.ended(second))
        };
        in_force(domain).or_else(|| in_force(EVERY_DOMAIN))
    }

    fn add(&mut self, one: Arc<Override>) {
        match self.0.binary_search_by(|known| known.target.domain().cmp(one.target.domain())) {
            Ok(at) => self.0[at] = one,
            Err(at) => self.0.insert(at, one),
        }
    }
}

/// The patterns of a key, while they are collected.
#[derive(Default)]
struct Building {
    exact: HashMap<Box<str>, Owners>,
    v4: BTreeMap<Span<u32>, Owners>,
    v6: BTreeMap<Span<u128>, Owners>,
    prefixes: BTreeMap<Box<str>, Owners>,
}

impl Building {
    fn add(&mut self, value: &str, one: Arc<Override>) {
        let owners = match Pattern::of(value) {
            Pattern::Exact(value) => self.exact.entry(value.into()).or_default(),
            Pattern::Prefix(prefix) => self.prefixes.entry(prefix.into()).or_default(),
            Pattern::Network(IpNet::V4(net)) => {
                let span = Span { start: net.network().to_bits(), end: net.broadcast().to_bits() };
                self.v4.entry(span).or_default()
            }
            Pattern::Network(IpNet::V6(net)) => {
                let span = Span { start: net.network().to_bits(), end: net.broadcast().to_bits() };
                self.v6.entry(span).or_default()
            }
        };
        owners.add(one);
    }

    fn done(self) -> Patterns {
        Patterns {
            exact: self.exact,
            v4_filter: Filter::of(self.v4.keys()),
            v4: Nested::new(self.v4),
            v6: Nested::new(self.v6),
            prefixes: Nested::new(self.prefixes),
        }
    }
}

/// A set of points. The order of two is that of their first points; of those that begin with the same one, a set that
/// encloses the other is first.
trait Range: Ord {
    type Point: Ord + ?Sized;

    fn start(&self) -> &Self::Point;

    /// True if it has this point, which is not before its start.
    fn covers(&self, point: &Self::Point) -> bool;
}

/// Ranges that are nested or disjoint, in order.
struct Nested<R> {
    ranges: Vec<R>,
    /// For each range the number, from 1, of the range that encloses it; 0 for none.
    parents: Vec<usize>,
    owners: Vec<Owners>,
}

impl<R> Default for Nested<R> {
    fn default() -> Self {
        Self { ranges: Vec::new(), parents: Vec::new(), owners: Vec::new() }
    }
}

impl<R: Range> Nested<R> {
    fn new(all: BTreeMap<R, Owners>) -> Self {
        let (mut nested, mut enclosing) = (Self::default(), Vec::<usize>::new());
        for (range, owners) in all {
            while enclosing.last().is_some_and(|number| !nested.ranges[number - 1].covers(range.start())) {
                enclosing.pop();
            }
            nested.parents.push(enclosing.last().copied().unwrap_or_default());
            nested.ranges.push(range);
            nested.owners.push(owners);
            enclosing.push(nested.ranges.len());
        }
        nested
    }

    fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The owner that `pick` selects of the smallest range with this point.
    fn find<'n, T>(&'n self, point: &R::Point, pick: impl Fn(&'n Owners) -> Option<T>) -> Option<T> {
        let mut number = self.ranges.partition_point(|range| range.start() <= point);
        while let Some(index) = number.checked_sub(1) {
            if self.ranges[index].covers(point)
                && let Some(found) = pick(&self.owners[index])
            {
                return Some(found);
            }
            number = self.parents[index];
        }
        None
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Span<A> {
    start: A,
    end: A,
}

impl<A: Ord> Ord for Span<A> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.start.cmp(&other.start).then_with(|| other.end.cmp(&self.end))
    }
}

impl<A: Ord> PartialOrd for Span<A> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<A: Ord> Range for Span<A> {
    type Point = A;

    fn start(&self) -> &A {
        &self.start
    }

    fn covers(&self, point: &A) -> bool {
        *point <= self.end
    }
}

impl Range for Box<str> {
    type Point = str;

    fn start(&self) -> &str {
        self
    }

    fn covers(&self, point: &str) -> bool {
        point.starts_with(&**self)
    }
}
