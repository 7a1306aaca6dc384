//! All overrides. `view` looks up the one that applies to a request's descriptor.
//!
//! A snapshot is immutable: a reader takes it by one atomic load, and a change publishes a new one, so that an import
//! takes effect as a whole. Its records are in shards; a change copies one shard, which has a thousand records of a
//! million. Without overrides a lookup is one branch. Nothing here does I/O.
//!
//! The shape of an override is its domain, its keys, and which of its levels have a value. The lookup of a descriptor
//! with other keys ends after one access to a small table. Overrides by entry and switches of domains have tables of their
//! own (`scoped`).

mod places;
mod scoped;
mod shapes;
mod shard;
#[cfg(test)]
mod tests;
mod view;

use std::{
    hash::{BuildHasher, Hasher},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwap;
use foldhash::{SharedSeed, fast::SeedableRandomState};

pub use self::view::{Found, View};
use self::{
    scoped::Scoped,
    shapes::{Shape, Shapes},
    shard::Shard,
};
use super::{
    model::Override,
    record::{self, INLINE_NOTE, NO_NOTE, Record},
    target::{Scope, Target},
};
use clock::Time;
use faults::mutex::{lock, try_lock};
use limit::calendar::zone;

pub(crate) const MAX_OVERRIDES: usize = 2_000_000;

/// Maximum number of overrides by entry and switches: their tables are made anew for each change.
pub(crate) const MAX_SCOPED: usize = 100_000;

/// Enough shards that the one that a change copies is small.
const SHARDS: usize = 1024;

/// The shard of the overrides by entry and the switches.
const SCOPED: usize = SHARDS;

/// Maximum number of overrides that one sweep removes, so that it does not delay the thread's other work.
const MAX_SWEPT: usize = 10_000;

pub struct Index {
    snapshot: ArcSwap<Snapshot>,
    /// The number of overrides, and of switches of this process, so that a lookup without any is one branch.
    count: AtomicUsize,
    /// The lead of the clock of the storage, by which overrides expire, over that of this process in microseconds.
    clock_lead: AtomicI64,
    /// Held while a snapshot is replaced.
    changing: Mutex<()>,
    drafts: Arc<()>,
    hasher: SeedableRandomState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// The number for each action, in the order of `Action::NAMES`.
    pub by_action: [u64; 4],
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
pub(super) struct Snapshot {
    shapes: Arc<Shapes>,
    /// Empty, or [`SHARDS`] and that of [`SCOPED`].
    shards: Box<[Arc<Shard>]>,
    /// The tables of the last shard, and of the switches of this replica.
    scoped: Arc<Scoped>,
    /// Switches that other replicas do not know, and that are not stored.
    here: Arc<Vec<Override>>,
    /// The number of overrides that are not in `scoped`.
    descriptors: usize,
    /// Pairs of reason and author that records refer to, from number 1 on.
    notes: Arc<Vec<(Box<str>, Box<str>)>>,
}

/// Overrides that will be added together, or replace all others. It belongs to one index.
pub struct Draft {
    shards: Vec<Vec<u8>>,
    pub(super) count: usize,
    /// Keeps the numbers of its shapes from being reused.
    _alive: Arc<()>,
}

impl Default for Index {
    fn default() -> Self {
        Self::hashed_by(SeedableRandomState::random())
    }
}

impl Index {
    /// An index whose order depends on this number alone.
    pub fn seeded(seed: u64) -> Self {
        Self::hashed_by(SeedableRandomState::with_seed(seed, SharedSeed::global_fixed()))
    }

    fn hashed_by(hasher: SeedableRandomState) -> Self {
        Self {
            snapshot: ArcSwap::default(),
            count: AtomicUsize::new(0),
            clock_lead: AtomicI64::new(0),
            changing: Mutex::default(),
            drafts: Arc::default(),
            hasher,
        }
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
            all.push(one);
        });
    }

    /// Removes the switches of a domain that are in force in this process alone, and returns them.
    pub fn clear_here(&self, domain: &str) -> Vec<Override> {
        let mut removed = Vec::new();
        self.change_here(|all| {
            removed = all.extract_if(.., |known| known.target.domain() == domain).collect();
        });
        removed
    }

    /// The switches that are in force in this process alone.
    pub fn here(&self) -> Arc<Vec<Override>> {
        self.snapshot.load().here.clone()
    }

    pub fn switches(&self) -> Vec<Override> {
        let snapshot = self.snapshot.load_full();
        let records =
            snapshot.shards.get(SCOPED).into_iter().flat_map(|shard| shard.records(&snapshot.shapes));
        let switches = records.filter(|record| snapshot.shapes.get(record.shape).scope.is_switch());
        switches.map(|record| snapshot.decode(&record)).collect()
    }

    fn change_here(&self, change: impl FnOnce(&mut Vec<Override>)) {
        let _changing = lock(&self.changing);
        let mut next = Snapshot::clone(&self.snapshot.load());
        change(Arc::make_mut(&mut next.here));
        next.scoped = next.make_scoped();
        self.publish(Arc::new(next));
    }

    pub fn get(&self, target: &Target) -> Option<Override> {
        let snapshot = self.snapshot.load();
        let number = snapshot.shapes.known(target, &self.hasher)?;
        let shape = snapshot.shapes.get(number);
        let record = snapshot.record(number, shape, record::values(target.entries()), &self.hasher)?;
        Some(snapshot.decode(&record))
    }

    /// Calls `each` for every override, in no particular order, until it returns false.
    pub fn for_each(&self, mut each: impl FnMut(Override) -> bool) {
        let _ = self.checkpoint().all().all(&mut each);
    }

    pub fn draft(&self) -> Draft {
        // The lock keeps the shapes of a new draft from being removed.
        let _changing = lock(&self.changing);
        Draft { shards: Vec::new(), count: 0, _alive: self.drafts.clone() }
    }

    /// Adds an override to a draft. A later one for the same target replaces an earlier one.
    pub fn add_to(&self, draft: &mut Draft, one: &Override) -> Result<(), String> {
        if draft.count >= MAX_OVERRIDES {
            return Err(format!("more than {MAX_OVERRIDES} overrides"));
        }
        let (shape, note) = self.numbers(one, draft)?;
        let hash = hash_values(shape, record::values(one.target.entries()), &self.hasher);
        draft.shards.resize_with(SHARDS + 1, Vec::new);
        record::write(one, shape, note, &mut draft.shards[shard_of(one.target.scope(), hash)]);
        draft.count += 1;
        Ok(())
    }

    /// Adds the overrides of a draft, which replace those for the same targets.
    pub fn add(&self, draft: &Draft) -> Result<(), String> {
        self.rebuild(&lock(&self.changing), |at, shard, shapes| {
            let new = draft.shards.get(at).map(Vec::as_slice).unwrap_or_default();
            (!new.is_empty()).then(|| Shard::new(&[&shard.bytes, new], shapes, &self.hasher, |_| true))
        })
    }

    /// Replaces all overrides by those of a draft.
    pub fn replace(&self, draft: &Draft) -> Result<(), String> {
        self.rebuild(&lock(&self.changing), |at, _, shapes| {
            let new = draft.shards.get(at).map(Vec::as_slice).unwrap_or_default();
            Some(Shard::new(&[new], shapes, &self.hasher, |_| true))
        })
    }

    /// The current overrides, to read or for [`roll_back`](Self::roll_back).
    pub(super) fn checkpoint(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    pub(super) fn roll_back(&self, to: Arc<Snapshot>) {
        let _changing = lock(&self.changing);
        self.publish(to);
    }

    fn publish(&self, next: Arc<Snapshot>) {
        // First: who finds an override finds it counted.
        self.count.store(next.len() + next.here.len(), Relaxed);
        self.snapshot.store(next);
    }

    pub fn set(&self, one: &Override) -> Result<(), String> {
        let mut draft = self.draft();
        self.add_to(&mut draft, one)?;
        self.add(&draft)
    }

    /// Removes the override for a target. True if there was one.
    pub fn remove(&self, target: &Target) -> bool {
        let values = record::values(target.entries());
        let (count, before) = (values.clone().count(), self.len());
        let mut place = None;
        let rebuilt = self.rebuild(&lock(&self.changing), |at, shard, shapes| {
            let (shape, own) = *place
                .get_or_insert_with(|| {
                    let shape = shapes.known(target, &self.hasher)?;
                    let hash = hash_values(shape, values.clone(), &self.hasher);
                    Some((shape, shard_of(target.scope(), hash)))
                })
                .as_ref()?;
            let is_target = |record: &Record<'_>| record.shape == shape && record.has(values.clone(), count);
            (at == own)
                .then(|| Shard::new(&[&shard.bytes], shapes, &self.hasher, |record| !is_target(record)))
        });
        rebuilt.is_ok() && self.len() < before
    }

    /// Removes overrides that have expired by the clock of the storage, up to the limit of one sweep, and returns them.
    pub fn sweep(&self, now: Time) -> Vec<Override> {
        let second = self.time(now).seconds();
        let is_due = |shard: &Shard| shard.next_end.is_some_and(|end| second >= u64::from(end));
        let snapshot = self.snapshot.load_full();
        if self.changes_nothing() || !snapshot.shards.iter().any(|shard| is_due(shard)) {
            return Vec::new();
        }
        // An import holds the lock for seconds. The next sweep removes them.
        let Some(changing) = try_lock(&self.changing) else { return Vec::new() };
        let mut expired = Vec::new();
        // The only error is that there are too many overrides.
        let _ = self.rebuild(&changing, |_, shard, shapes| {
            if !is_due(shard) || expired.len() >= MAX_SWEPT {
                return None;
            }
            let over = shard.records(shapes).filter(|record| record.is_over(second));
            expired.extend(over.map(|record| snapshot.decode(&record)));
            Some(Shard::new(&[&shard.bytes], shapes, &self.hasher, |record| !record.is_over(second)))
        });
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

    /// Publishes a snapshot in which `change` has replaced shards.
    fn rebuild(
        &self,
        _changing: &MutexGuard<'_, ()>,
        mut change: impl FnMut(usize, &Shard, &Shapes) -> Option<Shard>,
    ) -> Result<(), String> {
        let mut next = Snapshot::clone(&self.snapshot.load());
        if next.shards.is_empty() {
            let empty = Arc::<Shard>::default();
            next.shards = (0..=SCOPED).map(|_| empty.clone()).collect();
        }
        let before = next.shards[SCOPED].clone();
        for (at, shard) in next.shards.iter_mut().enumerate() {
            if let Some(changed) = change(at, shard, &next.shapes) {
                *shard = Arc::new(changed);
            }
        }
        next.descriptors = next.shards.iter().take(SHARDS).map(|shard| shard.len()).sum();
        let count = next.len();
        if count > MAX_OVERRIDES {
            return Err(format!("there would be {count} overrides; the maximum is {MAX_OVERRIDES}"));
        }
        if !Arc::ptr_eq(&before, &next.shards[SCOPED]) {
            next.scoped = next.make_scoped();
        }
        self.publish(Arc::new(next));
        Ok(())
    }

    /// The numbers of an override's shape and note. New numbers are published immediately, so that every later snapshot
    /// has them.
    fn numbers(&self, one: &Override, draft: &Draft) -> Result<(u16, u8), String> {
        let known = |snapshot: &Snapshot| {
            let shape = snapshot.shapes.known(&one.target, &self.hasher)?;
            Some((shape, snapshot.note(one)?))
        };
        if let Some(known) = known(&self.snapshot.load()) {
            return Ok(known);
        }
        let _changing = lock(&self.changing);
        let mut next = Snapshot::clone(&self.snapshot.load());
        let mut shape = Arc::make_mut(&mut next.shapes).add(&one.target, &self.hasher);
        // Another draft may have records of any shape.
        let is_only_draft = Arc::strong_count(&self.drafts) == 2;
        if shape.is_err() && is_only_draft {
            next.remove_unused_shapes(draft);
            shape = Arc::make_mut(&mut next.shapes).add(&one.target, &self.hasher);
        }
        let shape = shape?;
        let note = next.note(one).unwrap_or_else(|| {
            let notes = Arc::make_mut(&mut next.notes);
            notes.push((one.reason.clone(), one.by.clone()));
            u8::try_from(notes.len()).unwrap_or(INLINE_NOTE)
        });
        self.snapshot.store(Arc::new(next));
        Ok((shape, note))
    }
}

impl Snapshot {
    pub(super) fn all(&self) -> impl Iterator<Item = Override> {
        let records = self.shards.iter().flat_map(|shard| shard.records(&self.shapes));
        records.map(|record| self.decode(&record))
    }

    fn len(&self) -> usize {
        self.descriptors + self.shards.get(SCOPED).map_or(0, |shard| shard.len())
    }

    /// Removes shapes that neither an override nor this draft has.
    fn remove_unused_shapes(&mut self, draft: &Draft) {
        let shapes = Arc::make_mut(&mut self.shapes);
        let pieces =
            self.shards.iter().map(|shard| &*shard.bytes).chain(draft.shards.iter().map(Vec::as_slice));
        let used =
            pieces.flat_map(|bytes| shard::records(bytes, shapes)).map(|(_, record)| record.shape).collect();
        shapes.retain(&used);
    }

    fn record<'v>(
        &self,
        number: u16,
        shape: &Shape,
        values: impl Iterator<Item = &'v str> + Clone,
        hasher: &SeedableRandomState,
    ) -> Option<Record<'_>> {
        let hash = hash_values(number, values.clone(), hasher);
        self.shards.get(shard_of(shape.scope, hash))?.find(hash, number, values, shape.values())
    }

    fn make_scoped(&self) -> Arc<Scoped> {
        let records = self.shards.get(SCOPED).into_iter().flat_map(|shard| shard.records(&self.shapes));
        Arc::new(Scoped::new(records.map(|record| self.decode(&record)).chain(self.here.iter().cloned())))
    }

    /// The number of an override's reason and author; `None` if they are new.
    fn note(&self, one: &Override) -> Option<u8> {
        if one.reason.is_empty() && one.by.is_empty() {
            return Some(NO_NOTE);
        }
        let is_same = |(reason, by): &(Box<str>, Box<str>)| *reason == one.reason && *by == one.by;
        match self.notes.iter().rposition(is_same) {
            Some(at) => u8::try_from(at + 1).ok(),
            None => (self.notes.len() + 1 >= usize::from(INLINE_NOTE)).then_some(INLINE_NOTE),
        }
    }

    fn decode(&self, record: &Record<'_>) -> Override {
        let shape = self.shapes.get(record.shape);
        let target = shape.target(record.texts(shape.values()).0);
        let (reason, by) = match record.note_and_rest(shape.values()).0 {
            Some((reason, by)) => (reason.into(), by.into()),
            None if record.note == NO_NOTE => (Box::default(), Box::default()),
            None => self.notes[usize::from(record.note) - 1].clone(),
        };
        let Record { action, expires, .. } = *record;
        Override { target, action, expires, reason, by }
    }
}

fn hash_values<'v>(shape: u16, values: impl Iterator<Item = &'v str>, hasher: &SeedableRandomState) -> u64 {
    let mut state = hasher.build_hasher();
    state.write_u16(shape);
    hash_texts(values, state)
}

fn hash_texts<'t>(texts: impl Iterator<Item = &'t str>, mut state: impl Hasher) -> u64 {
    for text in texts {
        state.write(text.as_bytes());
        // No text has this byte, so that the end of a text is unambiguous.
        state.write_u8(0xff);
    }
    state.finish()
}

/// The lower bits select a line in the shard.
fn shard_of(scope: Scope, hash: u64) -> usize {
    if scope == Scope::Descriptor { (hash >> 40) as usize % SHARDS } else { SCOPED }
}
