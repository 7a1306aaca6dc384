//! All overrides. `view` looks up the one that applies to a request's descriptor.
//!
//! A snapshot is immutable: a reader takes it by one atomic load, and a change publishes a new one, so that an import
//! takes effect as a whole. Its overrides are in shards, which are hash tables; a change copies the table of one shard,
//! which has a thousand overrides of a million. Without overrides a lookup is one branch. Nothing here does I/O.
//!
//! The lookup of a descriptor whose keys no override has usually ends after a bit. An override may leave the values of levels to the
//! rule: a descriptor is looked up once for each set of such levels that any override has, of which there are few. Overrides by
//! entry and switches of domains have tables of their own (`scoped`).

mod scoped;
mod shard;
#[cfg(test)]
mod tests;
mod view;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use foldhash::{SharedSeed, fast::SeedableRandomState};
use ring::{hmac, rand};

pub use self::view::{Found, View};
use self::{
    scoped::Scoped,
    shard::{LevelsOfRule, Shard, hash_target, levels_of_rule},
};
use super::{
    model::{Action, Override},
    target::{Scope, Target},
};
use clock::Time;
use faults::mutex::{lock, try_lock};
use limit::calendar::zone;
use recent::KeyValues;
use text::hex;

pub(crate) const MAX_OVERRIDES: usize = 2_000_000;

/// Maximum number of overrides by entry and switches: their tables are made anew for each change.
pub(crate) const MAX_SCOPED: usize = 100_000;

/// Maximum number of sets of levels whose values overrides leave to the rule: all sets of six levels. A lookup tries each
/// of them that is in use.
const MAX_LEVELS_OF_RULE: usize = 64;

/// Enough shards that the one that a change copies is small.
const SHARDS: usize = 1024;

/// The shard of the overrides by entry and the switches.
const SCOPED: usize = SHARDS;

/// Maximum number of overrides that one sweep removes, so that it does not delay the thread's other work.
const MAX_SWEPT: usize = 10_000;

/// How often a change yields to requests that still read the snapshot that it replaces.
const MAX_YIELDS: usize = 100;

#[derive(Default)]
pub struct Index {
    snapshot: ArcSwap<Snapshot>,
    /// The number of overrides, and of switches of this process, so that a lookup without any is one branch.
    count: AtomicUsize,
    /// The lead of the clock of the storage, by which overrides expire, over that of this process in microseconds.
    clock_lead: AtomicI64,
    /// Held while a snapshot is replaced.
    changing: Mutex<()>,
    /// Random by default.
    hasher: SeedableRandomState,
    /// How logs show the values of overrides.
    values: KeyValues,
    /// The key of the identifiers in replies; `None` if values are not hidden.
    id_key: ArcSwapOption<hmac::Key>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// The number for each action, in the order of `Action::NAMES`.
    pub by_action: [u64; Action::NAMES.len()],
    /// One of them has a calendar in another zone than UTC.
    pub has_local_calendar: bool,
    pub bytes: usize,
}

impl Usage {
    /// The hash of rules, with the release of the zone data if an override depends on it: `90be12c2cd8f9d3a+2026f`.
    pub fn with_zone_data(&self, hash: u64) -> String {
        let release = if self.has_local_calendar { ["+", zone::data_version()] } else { [""; 2] };
        format!("{hash:016x}{}", release.concat())
    }
}

#[derive(Clone, Default)]
pub struct Snapshot {
    /// Empty, or [`SHARDS`] and that of [`SCOPED`].
    shards: Box<[Arc<Shard>]>,
    /// The tables of the last shard, and of the switches of this replica.
    scoped: Arc<Scoped>,
    /// Switches that other replicas do not know, and that are not stored.
    here: Arc<Vec<Arc<Override>>>,
    /// The number of overrides that are not in `scoped`.
    descriptors: usize,
    /// Those of all these overrides, in the order in which a descriptor is looked up: the fewest levels first, and of several
    /// with as many the later levels.
    levels_of_rule: Vec<LevelsOfRule>,
    /// The [bits](shard::bit_of_keys) of the keys of all of them.
    bits_of_keys: u64,
}

/// Overrides that will be added together, or replace all others. It belongs to one index. That of [`Index::draft`] begins
/// with the levels in force; an empty one is for [`Index::replace`].
#[derive(Default)]
pub struct Draft {
    /// For each shard its overrides, with the hashes of their targets.
    shards: Vec<Vec<(u64, Arc<Override>)>>,
    /// Those in force when the draft began, and its own.
    levels_of_rule: Vec<LevelsOfRule>,
    pub(super) count: usize,
}

impl Index {
    /// An index whose order depends on this number alone.
    pub fn seeded(seed: u64) -> Self {
        let hasher = SeedableRandomState::with_seed(seed, SharedSeed::global_fixed());
        Self { hasher, ..Self::default() }
    }

    /// An index whose overrides are shown like this.
    pub fn showing(self, values: KeyValues) -> Self {
        let index = Self { values, ..self };
        index.set_id_key(&index.new_id_key().unwrap_or_default());
        index
    }

    pub fn values(&self) -> KeyValues {
        self.values
    }

    /// The identifier of a target in replies. One that anybody can compute would show which of some guessed values is the
    /// hidden one, so it depends on a secret.
    pub fn shown_id(&self, target: &Target) -> String {
        match &*self.id_key.load() {
            None => target.id(),
            Some(key) => hex(hmac::sign(key, target.id().as_bytes()).as_ref().iter().take(10)),
        }
    }

    /// A random key for [`set_id_key`](Self::set_id_key), if values are hidden.
    #[expect(clippy::expect_used, reason = "no system that this runs on lacks random numbers")]
    pub(super) fn new_id_key(&self) -> Option<String> {
        let random = || {
            rand::generate::<[u8; 16]>(&rand::SystemRandom::new())
                .expect("the system has random numbers")
                .expose()
        };
        (self.values == KeyValues::Hidden).then(|| hex(random().iter()))
    }

    /// Replicas that share overrides share the key, so that each finds the override that another one has listed.
    pub(super) fn set_id_key(&self, key: &str) {
        let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes());
        self.id_key.store((self.values == KeyValues::Hidden).then(|| Arc::new(key)));
    }

    /// Whether neither an override nor a switch of this process can change a decision.
    fn changes_nothing(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Whether no override is stored; there may be switches of this process.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of overrides that are stored, including expired ones that were not swept yet.
    pub fn len(&self) -> usize {
        self.snapshot.load().len()
    }

    /// The time by the clock of the storage: that of Redis, or this process's own.
    pub fn time(&self, now: Time) -> Time {
        Time::from_micros(now.micros().saturating_add_signed(self.clock_lead.load(Relaxed)))
    }

    /// The clock of the storage shows `theirs` when that of this process shows `now`.
    pub(super) fn set_time(&self, theirs: Time, now: Time) {
        self.clock_lead
            .store(theirs.micros().cast_signed().wrapping_sub(now.micros().cast_signed()), Relaxed);
    }

    /// The overrides at this time; `None` if there are none.
    #[inline]
    pub fn view(&self, now: Time) -> Option<View<'_>> {
        if self.changes_nothing() {
            return None;
        }
        Some(View { snapshot: self.snapshot.load(), hasher: &self.hasher, now: self.time(now) })
    }

    pub(super) fn scoped_len(&self) -> usize {
        let snapshot = self.snapshot.load();
        snapshot.len() - snapshot.descriptors
    }

    /// Switches a domain in this process alone, in place of its other switch of the same kind.
    pub fn switch_here(&self, one: Override) {
        self.change_here(|all| {
            all.retain(|known| known.target != one.target);
            all.push(Arc::new(one));
        });
    }

    /// Removes the switches of a domain that are in force in this process alone, and returns them.
    pub fn clear_here(&self, domain: &str) -> Vec<Arc<Override>> {
        let mut removed = Vec::new();
        self.change_here(|all| {
            removed = all.extract_if(.., |known| known.target.domain() == domain).collect();
        });
        removed
    }

    /// The switches that are in force in this process alone.
    pub fn here(&self) -> Arc<Vec<Arc<Override>>> {
        self.snapshot.load().here.clone()
    }

    pub fn switches(&self) -> Vec<Arc<Override>> {
        let snapshot = self.snapshot.load_full();
        let scoped = snapshot.scoped_shard().into_iter().flat_map(Shard::iter);
        scoped.filter(|one| one.target.scope().is_switch()).cloned().collect()
    }

    fn change_here(&self, change: impl FnOnce(&mut Vec<Arc<Override>>)) {
        let _changing = lock(&self.changing);
        let mut next = Snapshot::clone(&self.snapshot.load());
        change(Arc::make_mut(&mut next.here));
        next.scoped = next.make_scoped();
        self.publish(next);
    }

    pub fn get(&self, target: &Target) -> Option<Arc<Override>> {
        let hash = hash_target(target, &self.hasher);
        let snapshot = self.snapshot.load();
        let shard = snapshot.shards.get(shard_of(target.scope(), hash))?;
        shard.find(hash, |one| one.target == *target).cloned()
    }

    /// These overrides, with another one in place of that for the same target: to ask what it would change.
    pub fn with(&self, one: Override) -> Result<Self, String> {
        let other = Self {
            snapshot: ArcSwap::new(self.snapshot.load_full()),
            count: AtomicUsize::new(self.count.load(Relaxed)),
            clock_lead: AtomicI64::new(self.clock_lead.load(Relaxed)),
            changing: Mutex::default(),
            hasher: self.hasher.clone(),
            values: self.values,
            id_key: ArcSwapOption::new(self.id_key.load_full()),
        };
        let mut draft = other.draft();
        other.add_to(&mut draft, one)?;
        other.add(&draft)?;
        Ok(other)
    }

    pub fn draft(&self) -> Draft {
        let levels_of_rule = self.snapshot.load().levels_of_rule.clone();
        Draft { shards: Vec::new(), levels_of_rule, count: 0 }
    }

    /// Adds an override to a draft. A later one for the same target replaces an earlier one.
    pub fn add_to(&self, draft: &mut Draft, one: impl Into<Arc<Override>>) -> Result<(), String> {
        let one = one.into();
        if draft.count >= MAX_OVERRIDES {
            return Err(format!("more than {MAX_OVERRIDES} overrides"));
        }
        let scope = one.target.scope();
        let levels_of_rule = levels_of_rule(&one.target);
        if scope == Scope::Descriptor && !draft.levels_of_rule.contains(&levels_of_rule) {
            if draft.levels_of_rule.len() >= MAX_LEVELS_OF_RULE {
                return Err(format!(
                    "{}: more than {MAX_LEVELS_OF_RULE} different combinations of keys with and without a value; use the \
                     keys of the rules, in their order",
                    one.target.plain()
                ));
            }
            draft.levels_of_rule.push(levels_of_rule);
        }
        draft.shards.resize_with(SHARDS + 1, Vec::new);
        let hash = hash_target(&one.target, &self.hasher);
        draft.shards[shard_of(scope, hash)].push((hash, one));
        draft.count += 1;
        Ok(())
    }

    /// Adds the overrides of a draft, which replace those for the same targets.
    pub fn add(&self, draft: &Draft) -> Result<(), String> {
        self.add_after(draft, Snapshot::clone)
    }

    /// Replaces all overrides by those of a draft.
    pub fn replace(&self, draft: &Draft) -> Result<(), String> {
        self.add_after(draft, |last| {
            let mut next = Snapshot { here: last.here.clone(), ..Snapshot::default() };
            next.scoped = next.make_scoped();
            next
        })
    }

    /// Publishes the snapshot that `begin` makes of the last one, with the overrides of a draft.
    fn add_after(&self, draft: &Draft, begin: impl FnOnce(&Snapshot) -> Snapshot) -> Result<(), String> {
        let _changing = lock(&self.changing);
        let mut next = begin(&self.snapshot.load());
        for (at, new) in draft.shards.iter().enumerate().filter(|(_, new)| !new.is_empty()) {
            next.change(at, |shard| shard.set(new, &self.hasher));
        }
        let count = next.all_shards().map(Shard::len).sum::<usize>();
        if count > MAX_OVERRIDES {
            return Err(format!("there would be {count} overrides; the maximum is {MAX_OVERRIDES}"));
        }
        self.publish(next);
        Ok(())
    }

    /// The current overrides, to read or for [`roll_back`](Self::roll_back).
    pub fn checkpoint(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    pub(super) fn roll_back(&self, to: &Snapshot) {
        let _changing = lock(&self.changing);
        self.publish(to.clone());
    }

    fn publish(&self, mut next: Snapshot) {
        next.summarize();
        // First: who finds an override finds it counted.
        self.count.store(next.len() + next.here.len(), Relaxed);
        let last = self.snapshot.swap(Arc::new(next));
        // A request that is the last to read a snapshot frees it, which takes as long as it has overrides.
        for _ in 0..MAX_YIELDS {
            if Arc::strong_count(&last) == 1 {
                break;
            }
            thread::yield_now();
        }
    }

    pub fn set(&self, one: &Override) -> Result<(), String> {
        let mut draft = self.draft();
        self.add_to(&mut draft, one.clone())?;
        self.add(&draft)
    }

    /// Removes the override for a target. True if there was one.
    pub fn remove(&self, target: &Target) -> bool {
        let _changing = lock(&self.changing);
        if self.get(target).is_none() {
            return false;
        }
        let mut next = Snapshot::clone(&self.snapshot.load());
        let at = shard_of(target.scope(), hash_target(target, &self.hasher));
        next.change(at, |shard| shard.remove(1, |one| one.target == *target));
        self.publish(next);
        true
    }

    /// Removes overrides that have expired by the clock of the storage, up to the limit of one sweep, and returns them.
    pub fn sweep(&self, now: Time) -> Vec<Arc<Override>> {
        let second = self.time(now).seconds();
        let is_due = |shard: &Arc<Shard>| shard.next_end.is_some_and(|end| second >= u64::from(end));
        if self.changes_nothing() || !self.snapshot.load().shards.iter().any(is_due) {
            return Vec::new();
        }
        // An import holds the lock for seconds. The next sweep removes them.
        let Some(_changing) = try_lock(&self.changing) else { return Vec::new() };
        let mut next = Snapshot::clone(&self.snapshot.load());
        let mut expired = Vec::new();
        for at in 0..next.shards.len() {
            if is_due(&next.shards[at]) && expired.len() < MAX_SWEPT {
                let most = MAX_SWEPT - expired.len();
                expired.extend(next.change(at, |shard| shard.remove(most, |one| one.ended(second))));
            }
        }
        self.publish(next);
        expired
    }

    pub fn usage(&self) -> Usage {
        let snapshot = self.snapshot.load();
        let mut usage = Usage { bytes: snapshot.scoped.bytes, ..Usage::default() };
        for shard in &snapshot.shards {
            usage.bytes += shard.memory();
            usage.has_local_calendar |= shard.has_local_calendar;
            for (sum, count) in usage.by_action.iter_mut().zip(shard.by_action) {
                *sum += u64::from(count);
            }
        }
        usage
    }
}

impl Snapshot {
    fn all_shards(&self) -> impl Iterator<Item = &Shard> {
        self.shards.iter().map(|shard| &**shard)
    }

    /// In no particular order.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Override>> {
        self.all_shards().flat_map(Shard::iter)
    }

    fn scoped_shard(&self) -> Option<&Shard> {
        self.shards.get(SCOPED).map(|shard| &**shard)
    }

    pub(super) fn len(&self) -> usize {
        self.descriptors + self.scoped_shard().map_or(0, Shard::len)
    }

    fn change<T>(&mut self, at: usize, change: impl FnOnce(&mut Shard) -> T) -> T {
        if self.shards.is_empty() {
            self.shards = vec![Arc::default(); SHARDS + 1].into();
        }
        let changed = change(Arc::make_mut(&mut self.shards[at]));
        if at == SCOPED {
            self.scoped = self.make_scoped();
        }
        changed
    }

    fn make_scoped(&self) -> Arc<Scoped> {
        let stored = self.scoped_shard().into_iter().flat_map(Shard::iter);
        Arc::new(Scoped::new(stored.chain(&*self.here).cloned()))
    }

    /// Sets what is known of the shards together.
    fn summarize(&mut self) {
        self.descriptors = self.shards.iter().take(SHARDS).map(|shard| shard.len()).sum();
        let all = self.all_shards().flat_map(|shard| &shard.levels_of_rule).copied();
        let mut levels_of_rule: Vec<LevelsOfRule> = all.collect();
        levels_of_rule.sort_unstable_by_key(|levels| (levels.count_ones(), levels.reverse_bits()));
        levels_of_rule.dedup();
        self.levels_of_rule = levels_of_rule;
        self.bits_of_keys = self.shards.iter().take(SHARDS).fold(0, |bits, shard| bits | shard.bits_of_keys);
    }
}

fn shard_of(scope: Scope, hash: u64) -> usize {
    // The table of a shard uses the lowest and the highest bits.
    if scope == Scope::Descriptor { (hash >> 40) as usize % SHARDS } else { SCOPED }
}
