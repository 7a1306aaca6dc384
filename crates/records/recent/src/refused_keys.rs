//! Refusals by key: how often each key was refused, first and last, with an example.
//!
//! A worker has room for [`KEYS`] keys. When it is full, a key without a refusal in the last ten minutes makes room for
//! a new one. If there is none, the rule with the most keys loses the key with the fewest refusals, and among those the
//! one refused longest ago. So a loud client takes one place, and a flood of invented keys replaces keys of its own
//! rule; what it replaces is counted in [`OtherRefusals`], without its name.

use std::cmp::Reverse;

use hashbrown::HashMap;

use super::Decision;
use clock::Time;

pub const KEYS: usize = 512;

/// A key is kept at least this long after its last refusal, while its rule does not have most of the keys.
const KEPT_SECONDS: u64 = 600;

/// Up to this many refusals of a key are all copied as its example; beyond it one a second.
const ALWAYS_COPIED: u64 = 16;

#[derive(Clone, Debug)]
pub struct RefusedKey {
    /// Distinguishes it from other keys of this process.
    pub hash: u64,
    pub count: u64,
    pub first: Time,
    pub last: Time,
    /// A refusal of the second of the last one.
    pub example: Decision,
}

/// Refusals of keys that made room for others in the last ten minutes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OtherRefusals {
    pub count: u64,
    pub last: Time,
}

#[derive(Debug, Default)]
pub(super) struct RefusedKeys {
    index: HashMap<u64, usize>,
    /// With the hashes of their rules, in the same order.
    keys: Vec<RefusedKey>,
    rules: Vec<u64>,
    keys_of_rule: HashMap<u64, usize>,
    others: OtherRefusals,
}

impl RefusedKeys {
    /// Counts a refusal, which stands for `weight` of them.
    pub(super) fn note(
        &mut self,
        hash: u64,
        rule: u64,
        weight: u32,
        now: Time,
        fill: impl FnOnce(&mut Decision),
    ) {
        let weight = u64::from(weight);
        if let Some(key) = self.index.get(&hash).and_then(|at| self.keys.get_mut(*at)) {
            key.count = key.count.saturating_add(weight);
            // A copy for each refusal of a loud client would cost more than its count.
            let is_due = key.count <= ALWAYS_COPIED || key.last.seconds() != now.seconds();
            key.last = key.last.max(now);
            if is_due {
                fill(&mut key.example);
            }
            return;
        }
        let at = if self.keys.len() < KEYS { self.add() } else { self.make_room(now) };
        let key = &mut self.keys[at];
        (key.hash, key.count, key.first, key.last) = (hash, weight, now, now);
        fill(&mut key.example);
        self.rules[at] = rule;
        *self.keys_of_rule.entry(rule).or_default() += 1;
        self.index.insert(hash, at);
    }

    fn add(&mut self) -> usize {
        let never = Time::default();
        self.keys.push(RefusedKey {
            hash: 0,
            count: 0,
            first: never,
            last: never,
            example: Decision::default(),
        });
        self.rules.push(0);
        self.keys.len() - 1
    }

    /// Removes a key, and returns its place.
    fn make_room(&mut self, now: Time) -> usize {
        let is_old = |key: &RefusedKey| now.seconds().saturating_sub(key.last.seconds()) > KEPT_SECONDS;
        let most =
            self.keys_of_rule.iter().max_by_key(|(rule, keys)| (**keys, **rule)).map(|(rule, _)| *rule);
        let worth = |at: &usize| {
            let key = &self.keys[*at];
            (is_old(key), Some(self.rules[*at]) == most, Reverse(key.count), Reverse(key.last))
        };
        let at = (0..self.keys.len()).max_by_key(worth).unwrap_or_default();
        let gone = &self.keys[at];
        if !is_old(gone) {
            self.others.add(OtherRefusals { count: gone.count, last: gone.last }, now);
        }
        self.index.remove(&gone.hash);
        if let Some(left) = self.keys_of_rule.get_mut(&self.rules[at]) {
            *left -= 1;
            if *left == 0 {
                self.keys_of_rule.remove(&self.rules[at]);
            }
        }
        at
    }

    pub(super) fn all(&self) -> &[RefusedKey] {
        &self.keys
    }

    pub(super) fn others(&self) -> OtherRefusals {
        self.others
    }
}

impl RefusedKey {
    /// Adds the refusals of the same key elsewhere.
    pub(super) fn add(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.first = self.first.min(other.first);
        if other.last > self.last {
            self.last = other.last;
            self.example.clone_from(&other.example);
        }
    }
}

impl OtherRefusals {
    /// Adds others; refusals before the last ten minutes are forgotten.
    pub fn add(&mut self, other: Self, now: Time) {
        if now.seconds().saturating_sub(self.last.seconds()) > KEPT_SECONDS {
            *self = Self::default();
        }
        self.count = self.count.saturating_add(other.count);
        self.last = self.last.max(other.last);
    }
}
