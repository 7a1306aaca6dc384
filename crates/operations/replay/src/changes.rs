//! Requests whose decision changes: by rule, by key and over time.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::{
    report::{KeyReport, OverTime, rfc3339_of},
    tally::Refusing,
};
use clock::Time;

/// Requests that one set of rules refuses and the other does not, by what refuses them. It holds one entry for each
/// such key.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) requests: u64,
    by_rule: HashMap<u32, u64>,
    /// By the rule and the hash of the values. The rule's name is in the report alone.
    by_key: HashMap<(u32, u64), KeyReport>,
}

impl Changes {
    /// Counts a request for what refuses it. `descriptor` is the text of its key.
    pub(crate) fn note(&mut self, by: Refusing, now: Time, descriptor: impl FnOnce() -> String) {
        *self.by_rule.entry(by.rule).or_default() += u64::from(by.is_first);
        let key = self.by_key.entry((by.rule, by.hash)).or_insert_with(|| KeyReport {
            rule: String::new(),
            descriptor: descriptor(),
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

    /// The keys with the most requests; `rule_name` names the rule with an id.
    pub(crate) fn top(&self, most: usize, rule_name: impl Fn(u32) -> String) -> Vec<KeyReport> {
        let mut keys: Vec<_> = self.by_key.iter().collect();
        keys.sort_unstable_by(|(_, key), (_, other)| {
            (other.requests, &key.descriptor).cmp(&(key.requests, &other.descriptor))
        });
        keys.truncate(most);
        let named =
            |((rule, _), key): (&(u32, u64), &KeyReport)| KeyReport { rule: rule_name(*rule), ..key.clone() };
        keys.into_iter().map(named).collect()
    }
}

/// Requests over time, in slots that grow with the log.
#[derive(Default)]
pub(crate) struct Timeline {
    /// The index of [`LENGTHS`].
    length: usize,
    /// By the number of the slot since 1970.
    slots: BTreeMap<u64, Slot>,
    first: Option<Time>,
    last: Time,
}

#[derive(Serialize, Clone, Copy, Default, Debug)]
pub struct Slot {
    /// Its start.
    #[serde(serialize_with = "rfc3339_of")]
    pub time: Time,
    pub requests: u64,
    pub admitted: u64,
    pub refused: u64,
    pub newly_refused: u64,
    pub newly_allowed: u64,
}

/// The lengths of slots in seconds, each a multiple of the one before it.
const LENGTHS: [u64; 10] = [1, 5, 15, 60, 300, 900, 3600, 21_600, 86_400, 864_000];

/// A chart has about as many columns.
const MAX_SLOTS: usize = 200;

impl Timeline {
    /// Adds requests at a time, and makes slots longer if there are too many.
    pub(crate) fn add(&mut self, now: Time, requests: Slot) {
        self.first.get_or_insert(now);
        self.last = now;
        self.slots.entry(now.seconds() / self.seconds()).or_default().add(requests);
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

    fn seconds(&self) -> u64 {
        LENGTHS.get(self.length).copied().unwrap_or(864_000)
    }

    pub(crate) fn range(&self) -> Option<(Time, Time)> {
        Some((self.first?, self.last))
    }

    pub(crate) fn report(&self) -> OverTime {
        let seconds = self.seconds();
        let slots = self.slots.iter();
        let slots = slots.map(|(number, slot)| Slot { time: Time::from_seconds(number * seconds), ..*slot });
        OverTime { seconds, slots: slots.collect() }
    }
}

impl Slot {
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.admitted += other.admitted;
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
        let mut timeline = Timeline::default();
        for second in 0..5000 {
            let is_refused = second % 2 == 0;
            let one = Slot {
                requests: 1,
                admitted: u64::from(!is_refused),
                refused: u64::from(is_refused),
                ..Slot::default()
            };
            timeline.add(Time::from_seconds(1_000_000_007 + second), one);
        }
        let report = timeline.report();
        assert_eq!(report.seconds, 60);
        let sum = |of: fn(&Slot) -> u64| report.slots.iter().map(of).sum::<u64>();
        assert_eq!(
            (sum(|slot| slot.requests), sum(|slot| slot.refused), sum(|slot| slot.admitted)),
            (5000, 2500, 2500)
        );
        assert!(report.slots.iter().all(|slot| slot.time.seconds() % 60 == 0));
    }
}
