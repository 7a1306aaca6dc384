//! Requests whose decision changes: by rule, by key and over time.

use std::collections::{BTreeMap, HashMap};

use super::{
    report::{OverTime, SlotReport},
    tally::Refusing,
};
use clock::Time;

/// Requests that one set of rules refuses and the other does not, by what refuses them. It holds one entry for each
/// such key.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) requests: u64,
    by_rule: HashMap<u32, u64>,
    by_key: HashMap<(u32, u64), ChangedKey>,
}

pub(crate) struct ChangedKey {
    pub(crate) descriptor: Box<str>,
    pub(crate) requests: u64,
    pub(crate) first: Time,
    pub(crate) last: Time,
}

impl Changes {
    /// Counts a request for what refuses it. `descriptor` is the text of its key.
    pub(crate) fn note(&mut self, by: Refusing, now: Time, descriptor: impl FnOnce() -> String) {
        *self.by_rule.entry(by.rule).or_default() += u64::from(by.is_first);
        let key = self.by_key.entry((by.rule, by.hash)).or_insert_with(|| ChangedKey {
            descriptor: descriptor().into(),
            requests: 0,
            first: now,
            last: now,
        });
        key.requests += 1;
        key.last = now;
    }

    pub(crate) fn of_rule(&self, id: usize) -> u64 {
        u32::try_from(id).ok().and_then(|id| self.by_rule.get(&id)).copied().unwrap_or_default()
    }

    /// The keys with the most requests, and their rules.
    pub(crate) fn top(&self, most: usize) -> Vec<(u32, &ChangedKey)> {
        let mut keys: Vec<(u32, &ChangedKey)> =
            self.by_key.iter().map(|((rule, _), key)| (*rule, key)).collect();
        keys.sort_unstable_by(|(_, one), (_, other)| {
            (other.requests, &one.descriptor).cmp(&(one.requests, &other.descriptor))
        });
        keys.truncate(most);
        keys
    }
}

/// Requests over time, in slots that grow with the log.
pub(crate) struct Timeline {
    /// The index of [`LENGTHS`].
    length: usize,
    /// By the number of the slot since 1970.
    slots: BTreeMap<u64, Slot>,
    /// The number of the last request's slot, which is added when the next one begins.
    current: (u64, Slot),
    first: Option<Time>,
    last: Time,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Slot {
    pub(crate) requests: u64,
    pub(crate) refused: u64,
    pub(crate) newly_refused: u64,
    pub(crate) newly_allowed: u64,
}

/// The lengths of slots in seconds, each a multiple of the one before it.
const LENGTHS: [u64; 10] = [1, 5, 15, 60, 300, 900, 3600, 21_600, 86_400, 864_000];

/// A chart has about as many columns.
const MAX_SLOTS: usize = 200;

impl Timeline {
    pub(crate) fn new() -> Self {
        Self {
            length: 0,
            slots: BTreeMap::new(),
            current: Default::default(),
            first: None,
            last: Time::default(),
        }
    }

    pub(crate) fn note(&mut self, now: Time, one: Slot) {
        self.first.get_or_insert(now);
        self.last = now;
        let number = now.seconds() / self.seconds();
        if number != self.current.0 {
            self.end_slot();
            self.current = (now.seconds() / self.seconds(), Slot::default());
        }
        self.current.1.add(one);
    }

    fn seconds(&self) -> u64 {
        LENGTHS.get(self.length).copied().unwrap_or(864_000)
    }

    /// Adds the current slot, and makes slots longer if there are too many.
    fn end_slot(&mut self) {
        let (number, slot) = std::mem::take(&mut self.current);
        if slot.requests > 0 {
            self.slots.entry(number).or_default().add(slot);
        }
        while self.slots.len() > MAX_SLOTS && self.length + 1 < LENGTHS.len() {
            let before = self.seconds();
            self.length += 1;
            let factor = self.seconds() / before;
            let mut merged = BTreeMap::<u64, Slot>::new();
            for (number, slot) in std::mem::take(&mut self.slots) {
                merged.entry(number / factor).or_default().add(slot);
            }
            self.slots = merged;
        }
    }

    pub(crate) fn range(&self) -> Option<(Time, Time)> {
        Some((self.first?, self.last))
    }

    pub(crate) fn report(&self) -> OverTime {
        let (seconds, mut slots) = (self.seconds(), self.slots.clone());
        let (number, slot) = self.current;
        if slot.requests > 0 {
            slots.entry(number).or_default().add(slot);
        }
        let slots = slots.into_iter().map(|(number, slot)| SlotReport {
            time: Time::from_seconds(number * seconds),
            requests: slot.requests,
            admitted: slot.requests - slot.refused,
            refused: slot.refused,
            newly_refused: slot.newly_refused,
            newly_allowed: slot.newly_allowed,
        });
        OverTime { seconds, slots: slots.collect() }
    }
}

impl Slot {
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.refused += other.refused;
        self.newly_refused += other.newly_refused;
        self.newly_allowed += other.newly_allowed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_grow_with_the_log_and_lose_nothing() {
        let mut timeline = Timeline::new();
        for second in 0..5000 {
            let one = Slot { requests: 1, refused: u64::from(second % 2 == 0), ..Slot::default() };
            timeline.note(Time::from_seconds(1_000_000_007 + second), one);
        }
        let report = timeline.report();
        assert_eq!(report.seconds, 60);
        let sum = |of: fn(&SlotReport) -> u64| report.slots.iter().map(of).sum::<u64>();
        assert_eq!(
            (sum(|slot| slot.requests), sum(|slot| slot.refused), sum(|slot| slot.admitted)),
            (5000, 2500, 2500)
        );
        assert!(report.slots.iter().all(|slot| slot.time.seconds() % 60 == 0));
    }
}
