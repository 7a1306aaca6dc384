//! The versions of overrides, by which replicas and a Redis that lost changes agree again.
//!
//! A version is the time of a change in microseconds, by the clock of Redis, and at least one more than that of every change
//! that Redis or the replica that made it knew. Redis and each replica list the versions of the overrides that changed
//! last, also of those that were removed or have expired. All others have the version at which the list began, its floor:
//! present or absent, that is their state. A list that is full begins anew, and an import of many begins one. So there is one
//! rule for messages that a replica missed and for changes that Redis lost, whoever applies it, in any order and how
//! often: of each override, the state with the later version wins.
//!
//! Plain functions; `follower` and the scripts do the I/O.

use std::{cmp::Ordering, collections::BTreeMap};

use super::shared::VERSION;

/// Maximum number of overrides in a list; `scripts/change.lua` has it too.
const MAX_LISTED: usize = if cfg!(test) { 5 } else { 4_000 };

/// The overrides that changed last, and when.
#[derive(Clone, Default, Debug)]
pub(super) struct Versions {
    /// That of the last change; 0 without any.
    pub(super) at: u64,
    pub(super) floor: u64,
    pub(super) listed: BTreeMap<String, u64>,
    /// Redis was found to lack some of them.
    is_ahead: bool,
}

/// How two states become one.
pub(super) struct Difference {
    /// The overrides with a later version here, and that version.
    pub(super) here: BTreeMap<String, u64>,
    /// Those with a later version there.
    pub(super) there: BTreeMap<String, u64>,
    /// Whether the overrides that neither state lists are later here, which is `Greater`, or there.
    pub(super) others: Ordering,
}

impl Versions {
    /// The versions of Redis: that of the hash, and the list, which begins with the floor.
    pub(super) fn of(at: u64, listed: Vec<(String, u64)>) -> Self {
        let mut listed: BTreeMap<_, _> = listed.into_iter().collect();
        let floor = listed.remove(VERSION).unwrap_or(at);
        Self { at, floor, listed, is_ahead: false }
    }

    /// Those of overrides of which none changed after this version.
    pub(super) fn up_to(at: u64) -> Self {
        Self { at, floor: at, ..Self::default() }
    }

    /// These overrides changed last.
    pub(super) fn advance(&mut self, to: u64, ids: impl IntoIterator<Item = String>) {
        self.at = to;
        self.listed.extend(ids.into_iter().map(|id| (id, to)));
        if self.listed.len() > MAX_LISTED {
            *self = Self::up_to(to);
        }
    }

    /// An override changed here alone at this time by the clock of Redis. False if the list has no room: an override that is
    /// not listed would have the version of all others.
    pub(super) fn advance_alone(&mut self, now: u64, id: &str) -> bool {
        if self.listed.len() >= MAX_LISTED && !self.listed.contains_key(id) {
            return false;
        }
        self.at = now.max(self.at + 1);
        self.listed.insert(id.to_owned(), self.at);
        self.is_ahead = true;
        true
    }

    /// Whether Redis lacks a change.
    pub(super) fn is_ahead(&self) -> bool {
        self.is_ahead
    }

    /// Whether this is the state of Redis at a version.
    pub(super) fn is_of(&self, version: u64) -> bool {
        self.at == version && !self.is_ahead
    }

    fn get(&self, id: &str) -> u64 {
        self.listed.get(id).copied().unwrap_or(self.floor)
    }

    fn later_than(&self, other: &Self) -> BTreeMap<String, u64> {
        let later = self.listed.iter().filter(|(id, version)| **version > other.get(id));
        later.map(|(id, version)| (id.clone(), *version)).collect()
    }

    pub(super) fn difference(&self, there: &Self) -> Difference {
        let others = self.floor.cmp(&there.floor);
        Difference { here: self.later_than(there), there: there.later_than(self), others }
    }

    /// The versions after both states have become one here.
    pub(super) fn merged(&self, there: &Self, difference: Difference) -> Self {
        let Difference { here, there: later_there, others } = difference;
        let is_ahead = others.is_gt() || !here.is_empty();
        let (mut merged, later) =
            if others.is_gt() { (self.clone(), later_there) } else { (there.clone(), here) };
        merged.listed.extend(later);
        Self { at: if is_ahead { self.at } else { there.at }, is_ahead, ..merged }
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    #[test]
    fn a_list_that_is_full_begins_anew() {
        let mut own = Versions::default();
        for version in 1..=MAX_LISTED as u64 {
            own.advance(version, [version.to_string()]);
        }
        own.advance(7, ["1".to_owned()]);
        assert_eq!((own.at, own.floor, own.listed.len()), (7, 0, MAX_LISTED));
        own.advance(8, ["new".to_owned()]);
        assert_eq!((own.at, own.floor, own.listed.len()), (8, 8, 0));
    }

    /// Redis or a replica: values are numbers, and one that was removed is absent.
    #[derive(Clone, Default, Debug)]
    struct State {
        values: BTreeMap<String, u64>,
        versions: Versions,
    }

    impl State {
        fn put(&mut self, id: &str, value: Option<u64>) {
            match value {
                Some(value) => self.values.insert(id.to_owned(), value),
                None => self.values.remove(id),
            };
        }

        fn set(&mut self, id: &str, version: u64, value: Option<u64>) {
            self.versions.listed.insert(id.to_owned(), version);
            self.put(id, value);
        }

        fn value(&self, id: &str) -> Option<u64> {
            self.values.get(id).copied()
        }

        /// As `scripts/change.lua`.
        fn change(&mut self, after: u64, all: &[(String, u64, Option<u64>)]) {
            let later = all.iter().filter(|(id, version, _)| *version > self.versions.get(id));
            for (id, version, value) in later.cloned().collect::<Vec<_>>() {
                self.set(&id, version, value);
                self.versions.at = after;
            }
            if all.first().is_some_and(|first| first.1 == after) && self.versions.listed.len() > MAX_LISTED {
                self.versions = Versions::up_to(after);
            }
        }

        /// As `scripts/switch.lua` for a replica that writes everything back.
        fn switch(&mut self, own: &Self, after: u64) {
            assert!(self.versions.floor <= own.versions.floor);
            let last = std::mem::replace(self, own.clone());
            for (id, version) in &last.versions.listed {
                if *version > own.versions.get(id) {
                    self.set(id, *version, last.value(id));
                }
            }
            (self.versions.at, self.versions.is_ahead) = (after, false);
        }

        /// As the follower.
        fn catch_up(&mut self, redis: &mut Self, after: u64) {
            if self.versions.is_of(redis.versions.at) {
                return;
            }
            let difference = self.versions.difference(&redis.versions);
            let lost = difference.here.iter().map(|(id, version)| (id.clone(), *version, self.value(id)));
            let lost: Vec<_> = lost.collect();
            let others = difference.others;
            if others.is_lt() {
                self.values = redis.values.clone();
                for (id, _, value) in &lost {
                    self.put(id, *value);
                }
            } else {
                difference.there.keys().for_each(|id| self.put(id, redis.value(id)));
            }
            self.versions = self.versions.merged(&redis.versions, difference);
            if others.is_gt() { redis.switch(self, after) } else { redis.change(after, &lost) }
        }
    }

    /// Redis and replicas, of which some miss messages, while Redis loses changes or everything again and again.
    struct World {
        rng: Rng,
        clock: u64,
        redis: State,
        replicas: Vec<State>,
        /// The latest state of each override that Redis or a replica has.
        expected: BTreeMap<String, (u64, Option<u64>)>,
    }

    impl World {
        /// As `scripts/version.lua`.
        fn version(&mut self, own: u64) -> u64 {
            self.clock += self.rng.u64(1..20);
            self.clock.max(self.redis.versions.at + 1).max(own + 1)
        }

        fn change(&mut self, ids: &[&str]) {
            let by = self.rng.usize(..self.replicas.len());
            let after = self.version(self.replicas[by].versions.at);
            let id = ids[self.rng.usize(..ids.len())];
            let value = (self.rng.u32(..4) > 0).then_some(after);
            let before = self.redis.versions.at;
            self.redis.change(after, &[(id.to_owned(), after, value)]);
            self.expect(id, after, value);
            for replica in &mut self.replicas {
                if self.rng.u32(..4) > 0 && replica.versions.is_of(before) {
                    replica.put(id, value);
                    replica.versions.advance(after, [id.to_owned()]);
                }
            }
        }

        fn expect(&mut self, id: &str, version: u64, value: Option<u64>) {
            let latest = self.expected.entry(id.to_owned()).or_default();
            *latest = (*latest).max((version, value));
        }

        /// A change of a replica that cannot reach Redis.
        fn change_alone(&mut self, ids: &[&str]) {
            self.clock += self.rng.u64(1..20);
            let by = self.rng.usize(..self.replicas.len());
            let id = ids[self.rng.usize(..ids.len())];
            let replica = &mut self.replicas[by];
            if replica.versions.advance_alone(self.clock, id) {
                let version = replica.versions.at;
                let value = (self.rng.u32(..4) > 0).then_some(version);
                self.replicas[by].put(id, value);
                self.expect(id, version, value);
            }
        }

        fn import(&mut self, ids: &[&str]) {
            let after = self.version(0);
            for id in ids {
                self.redis.put(id, Some(after));
            }
            self.redis.versions = Versions::up_to(after);
        }

        fn lose(&mut self, to: State) {
            self.redis = to;
            self.expected.clear();
            for state in self.replicas.iter().chain([&self.redis]) {
                for (id, version) in &state.versions.listed {
                    let latest = self.expected.entry(id.clone()).or_default();
                    *latest = (*latest).max((*version, state.value(id)));
                }
            }
        }

        fn catch_up(&mut self, at: usize) {
            let after = self.version(self.replicas[at].versions.at);
            self.replicas[at].catch_up(&mut self.redis, after);
        }
    }

    #[test]
    fn changes_that_any_replica_knows_survive_every_loss_and_later_ones_win() {
        for seed in 0..20_000 {
            let mut rng = Rng::with_seed(seed);
            let replicas = vec![State::default(); rng.usize(1..4)];
            let (redis, expected) = (State::default(), BTreeMap::new());
            let mut world = World { rng, clock: 1_000, redis, replicas, expected };
            // More than the list has, and imports: then the version of many is that of the list's beginning.
            let is_listed = seed % 2 == 0;
            let ids = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
            let ids = if is_listed { &ids[..4] } else { &ids[..] };
            let mut saved = State::default();
            for _ in 0..world.rng.usize(1..60) {
                match world.rng.u32(..22) {
                    0..10 => world.change(ids),
                    10..14 => world.catch_up(world.rng.clone().usize(..world.replicas.len())),
                    14..16 => saved = world.redis.clone(),
                    16 => world.lose(saved.clone()),
                    17 => world.lose(State::default()),
                    18 if !is_listed => world.import(&ids[..3]),
                    20..22 => world.change_alone(ids),
                    _ => {}
                }
            }
            let mut rounds = 0;
            while world.replicas.iter().any(|one| !one.versions.is_of(world.redis.versions.at)) {
                (0..world.replicas.len()).for_each(|at| world.catch_up(at));
                rounds += 1;
                let World { redis, replicas, .. } = &world;
                assert!(rounds < 6, "seed {seed}: the replicas do not agree: {redis:?}\n{replicas:#?}");
            }
            let World { redis, replicas, expected, .. } = &world;
            assert!(
                replicas.iter().all(|one| one.values == redis.values),
                "seed {seed}: {redis:?} {replicas:#?}"
            );
            let latest = expected.iter().filter_map(|(id, (_, value))| Some((id.clone(), (*value)?)));
            if is_listed {
                assert_eq!(redis.values, latest.collect(), "seed {seed}: {redis:#?}");
            }
        }
    }
}
