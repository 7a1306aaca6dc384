//! What one replica knows of its last minutes, and its form in Redis, of at most [`MAX_BYTES`].
//!
//! [`Summary::packed`] keeps what matters most and fits. What it leaves out only raises the error of the merged counts,
//! by [`Missing`]. Values were converted by `KEY_VALUES` before.

use std::{cmp::Reverse, collections::BTreeMap, mem};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use crate::{latency::Buckets, steps::Steps};
use api::{Answers, Entry, KeyHits, NotEnforced, Override};
use clock::{Rfc3339, Time};
use faults::OnStoreFailure;
use recent::{KeyValues, Recent, RefusedKey, RuleInfo, TopKey, TopKeys, shown};
use text::cut;

/// The maximum size of a published summary. A replica writes and another reads this much every two seconds.
pub const MAX_BYTES: usize = 16 << 10;

/// Room for the digits of what is left out.
const DIGITS: usize = 256;

/// No more rules fit, of 60 bytes at least: of 100,000 the others are not tried.
const MAX_RULES: usize = MAX_BYTES / 60;

/// The most rules with their own bound on missing keys.
const MAX_MISSING: usize = 16;

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(default)]
pub struct Summary {
    pub status: Json,
    pub keys: Vec<KeyHits>,
    pub missing: Missing,
    pub refusals: Vec<KeyRefusals>,
    /// Refusals of keys that are not among them, in the last ten minutes.
    pub other_refusals: u64,
    /// What shadow mode allowed although it was over the limit, as `refusals` and `other_refusals`.
    pub shadowed: Vec<KeyRefusals>,
    pub other_shadowed: u64,
    /// The reason is in the place of the rule, and the hits are `allowed`.
    pub unmatched: Vec<KeyHits>,
    /// The most hits of a shape that is not among them.
    pub unmatched_missing: u64,
    /// Descriptors without a rule, by reason.
    pub unmatched_total: BTreeMap<String, u64>,
    pub rules: Vec<RuleHits>,
    /// The number of rules with hits that are not among them.
    pub other_rules: u64,
    /// Records that were missed because a reader held the lock.
    pub missed: u64,
    pub window_seconds: u64,
    /// Requests of the last second, and since the start: ok, over the limit, failed.
    pub per_second: [f64; 3],
    pub total: [u64; 3],
    /// Requests per second that each failure policy decided.
    pub without_store: [f64; OnStoreFailure::ALL.len()],
    pub latency: Buckets,
    pub answers: Answers,
    pub steps: Steps,
    pub not_enforced: Vec<NotEnforced>,
}

/// What a rule has counted, by its full key: allowed, refused, near and shadowed hits.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(default)]
pub struct RuleHits {
    pub rule: String,
    pub hits: [u64; 4],
    pub per_second: [f64; 4],
    /// Some replica did not publish its own.
    #[serde(skip)]
    pub is_partial: bool,
}

/// A refused key with its last refusal, of which [`Summary::packed`] leaves parts out.
pub type KeyRefusals = api::KeyRefusals<Map<String, Json>>;

/// The hits of a key over the limit.
fn hits_over(key: &KeyHits) -> u64 {
    key.refused.saturating_add(key.shadowed)
}

/// The most allowed hits of a key of a rule that a summary does not have, and the most refused or shadowed ones.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
#[serde(default)]
pub struct Missing {
    /// The empty name is that of keys without a rule.
    pub by_rule: BTreeMap<String, [u64; 2]>,
    /// Of all other rules.
    pub other: [u64; 2],
}

/// What a summary is collected from, and how values are shown.
pub struct Collect<'a> {
    pub recent: &'a Recent,
    pub now: Time,
    pub values: KeyValues,
    /// Maximum number of keys by refused hits, by shadowed hits, and by allowed hits.
    pub most: usize,
    /// Only the key with these entries.
    pub key: Option<&'a [(String, String)]>,
    /// The override that decides a descriptor of a domain.
    pub overridden: &'a dyn Fn(&TopKey) -> Option<Override>,
}

/// What keys are sorted by, the largest first.
type Order = fn(&TopKey) -> (u64, u64);

impl Collect<'_> {
    pub fn keys<'r>(&self, summary: &mut Summary, rules: impl Iterator<Item = &'r std::sync::Arc<RuleInfo>>) {
        let has = |key: &TopKey, wanted: &[(String, String)]| {
            key.entries().eq(wanted.iter().map(|(key, value)| (key.as_str(), value.as_str())))
        };
        let mut all = Vec::new();
        for TopKeys { keys, missing } in self.recent.top(rules, self.now) {
            if let (Some(first), true) = (keys.first(), missing != [0, 0]) {
                summary.missing.by_rule.insert(first.rule.full_key.to_string(), missing);
            }
            all.extend(keys.into_iter().filter(|key| self.key.is_none_or(|wanted| has(key, wanted))));
        }
        // Thousands of keys are counted, and few are shown.
        let orders: [Order; 3] =
            [|key| (key.refused, key.allowed), |key| (key.shadowed, key.allowed), |key| (key.allowed, 0)];
        let with_override = |key: &TopKey| KeyHits { by_override: (self.overridden)(key), ..self.key(key) };
        for order in orders {
            all.sort_unstable_by_key(|key| Reverse(order(key)));
            let rest = all.split_off(all.len().min(self.most));
            summary.keys.extend(all.iter().map(with_override));
            all = rest;
        }
        for TopKey { allowed, refused, shadowed, .. } in all {
            summary.missing.other = most(summary.missing.other, [allowed, refused.max(shadowed)]);
        }
        summary.missed = self.recent.missed();
    }

    fn key(&self, top: &TopKey) -> KeyHits {
        let rule = &*top.rule.full_key;
        KeyHits {
            domain: top.domain().to_owned(),
            rule: (!rule.is_empty()).then(|| rule.to_owned()),
            descriptor: self.entries(top.entries()),
            descriptor_cut: top.key.is_cut(),
            by_override: None,
            allowed: top.allowed,
            refused: top.refused,
            shadowed: top.shadowed,
            error: top.error,
        }
    }

    pub fn refusals(&self, summary: &mut Summary) {
        let keys_of = |is_shadowed| {
            let (keys, others) = self.recent.refused_keys(is_shadowed, self.now);
            (keys.iter().map(|key| self.refusal(key)).collect::<Vec<_>>(), others.count)
        };
        (summary.refusals, summary.other_refusals) = keys_of(false);
        (summary.shadowed, summary.other_shadowed) = keys_of(true);
    }

    fn refusal(&self, RefusedKey { count, first, last, example, .. }: &RefusedKey) -> KeyRefusals {
        let rule = example.rule.as_deref();
        let place = rule.and_then(|rule| rule.place.as_ref());
        let Ok(Json::Object(json)) = serde_json::to_value(example.json(self.values)) else {
            return KeyRefusals::default();
        };
        KeyRefusals {
            domain: example.domain().to_owned(),
            descriptor: self.entries(example.descriptor.entries()),
            descriptor_cut: example.descriptor.is_cut(),
            rule: rule.map(|rule| rule.full_key.to_string()),
            file: place.map(|(file, _)| file.to_string()),
            line: place.map(|(_, line)| *line),
            count: *count,
            first: Rfc3339(*first).to_string(),
            last: Rfc3339(*last).to_string(),
            reason: example.reason(),
            example: json,
        }
    }

    pub fn unmatched(&self, summary: &mut Summary) {
        for (reason, TopKeys { keys, missing }) in self.recent.unmatched(self.now) {
            let total = keys.iter().map(|key| key.allowed).fold(0, u64::saturating_add);
            summary.unmatched_total.insert(reason.name().to_owned(), total);
            summary.unmatched_missing = summary.unmatched_missing.max(missing[0]);
            summary.unmatched.extend(keys.iter().map(|key| self.key(key)));
        }
    }

    fn entries<'e>(&self, entries: impl Iterator<Item = (&'e str, &'e str)>) -> Vec<Entry> {
        let entry = |(key, value): (&str, _)| Entry {
            key: key.to_owned(),
            value: shown(value, self.values).into_owned(),
        };
        entries.map(entry).collect()
    }
}

/// The members of an example that its refusal has too.
const REPEATED: [&str; 6] = ["code", "descriptor", "domain", "file", "line", "rule"];

impl Summary {
    /// The form for Redis, of at most [`MAX_BYTES`]. Of each list the first items are kept, and [`Room`] says how many.
    pub fn packed(mut self) -> String {
        self.shorten();
        let is_over = |key: &KeyHits| hits_over(key) > 0;
        let (mut over, mut allowed): (Vec<_>, Vec<_>) =
            mem::take(&mut self.keys).into_iter().partition(is_over);
        over.sort_by_key(|key| Reverse(hits_over(key)));
        allowed.sort_by_key(|key| Reverse(key.allowed));
        self.unmatched.sort_by_key(|key| Reverse(key.allowed));
        // First what nobody chose.
        self.not_enforced.sort_by_key(|one| Reverse((!one.chosen, one.n)));

        let mut room = Room { bytes: self.bytes_left(), lists: 9 };
        if room.bytes == 0 {
            // Long names of rules, or errors: the numbers matter most.
            self.status = Json::Null;
            self.missing.keep_rules(0);
            room.bytes = self.bytes_left();
        }
        room.fill(&mut self.not_enforced);
        let rules = room.fill(&mut self.rules);
        let unmatched = room.fill(&mut self.unmatched);
        let shadowed = room.fill_refusals(&mut self.shadowed);
        let refused = room.fill_refusals(&mut self.refusals);
        let mut keys = room.fill(&mut allowed);
        keys.extend(room.fill(&mut over));

        self.other_rules = self.other_rules.saturating_add(rules.len() as u64);
        self.unmatched_missing =
            unmatched.iter().map(|key| key.allowed).fold(self.unmatched_missing, u64::max);
        self.other_shadowed = self.other_shadowed.saturating_add(shadowed);
        self.other_refusals = self.other_refusals.saturating_add(refused);
        self.missing.raise(&keys);
        self.keys = over;
        self.keys.extend(allowed);
        serde_json::to_string(&self).unwrap_or_default()
    }

    /// Cuts texts, leaves out what the reader can tell from the rest, and keeps the rules with the highest rates.
    fn shorten(&mut self) {
        for key in self.keys.iter_mut().chain(&mut self.unmatched) {
            key.descriptor_cut |= cut_entries(&mut key.descriptor);
        }
        for refusal in self.refusals.iter_mut().chain(&mut self.shadowed) {
            refusal.example.retain(|name, _| !REPEATED.contains(&name.as_str()));
            refusal.descriptor_cut |= cut_entries(&mut refusal.descriptor);
        }
        for reason in &mut self.not_enforced {
            for text in [&mut reason.by, &mut reason.reason].into_iter().flatten() {
                text.truncate(cut(text).len());
            }
        }
        let rate = |rule: &RuleHits| rule.per_second.iter().sum::<f64>();
        self.rules.sort_unstable_by(|one, other| {
            rate(other).total_cmp(&rate(one)).then_with(|| other.hits.cmp(&one.hits))
        });
        let slow = self.rules.split_off(self.rules.len().min(MAX_RULES));
        self.other_rules = self.other_rules.saturating_add(slow.len() as u64);
        // One digit of each rate.
        for rate in self.rules.iter_mut().flat_map(|rule| &mut rule.per_second) {
            *rate = (*rate * 10.0).round() / 10.0;
        }
        self.missing.keep_rules(MAX_MISSING);
    }

    /// The bytes that everything but the lists leaves.
    fn bytes_left(&self) -> usize {
        let lists = [
            json_bytes(&self.not_enforced),
            json_bytes(&self.rules),
            json_bytes(&self.unmatched),
            json_bytes(&self.shadowed),
            json_bytes(&self.refusals),
        ];
        let others = json_bytes(self).saturating_sub(lists.into_iter().sum());
        MAX_BYTES.saturating_sub(others).saturating_sub(DIGITS)
    }

    /// Reads [`packed`](Self::packed), also of other versions, whose fields may differ.
    pub fn read(packed: &str) -> Option<Self> {
        // serde reads a struct from a list, too.
        let mut summary: Self = serde_json::from_str(packed).ok().filter(|_| packed.starts_with('{'))?;
        let refusals = summary.refusals.iter_mut().map(|refusal| (refusal, "over_limit"));
        let shadowed = summary.shadowed.iter_mut().map(|refusal| (refusal, "ok"));
        for (refusal, code) in refusals.chain(shadowed) {
            let Ok(Json::Object(own)) = serde_json::to_value(&*refusal) else { continue };
            let repeated = own.into_iter().filter(|(name, _)| REPEATED.contains(&name.as_str()));
            refusal.example.extend(repeated);
            refusal.example.insert("code".to_owned(), code.into());
        }
        Some(summary)
    }
}

/// The room for this many lists. Each may take an equal part of what is left, so that the last ones have what the others do
/// not need.
struct Room {
    bytes: usize,
    lists: usize,
}

impl Room {
    /// Keeps the items of a list that fit, the first ones first, and returns the others.
    fn fill<T: Serialize>(&mut self, list: &mut Vec<T>) -> Vec<T> {
        let mut part = self.bytes / self.lists.max(1);
        self.bytes -= part;
        self.lists = self.lists.saturating_sub(1);
        let (kept, left_out) = mem::take(list).into_iter().partition(|item| {
            let rest = part.checked_sub(json_bytes(item));
            // A long item does not keep shorter ones out.
            part = rest.unwrap_or(part);
            rest.is_some()
        });
        self.bytes += part;
        *list = kept;
        left_out
    }

    /// Keeps those with the highest counts, and then the last ones, as if they were two lists. Returns the count of the others.
    fn fill_refusals(&mut self, list: &mut Vec<KeyRefusals>) -> u64 {
        list.sort_by_key(|refusal| Reverse(refusal.count));
        let mut last = self.fill(list);
        last.sort_by(|one, other| other.last.cmp(&one.last));
        let left_out = self.fill(&mut last);
        list.extend(last);
        left_out.iter().map(|refusal| refusal.count).fold(0, u64::saturating_add)
    }
}

/// The bytes of an item with its comma.
fn json_bytes(item: &impl Serialize) -> usize {
    serde_json::to_string(item).map_or(usize::MAX, |json| json.len().saturating_add(1))
}

/// Cuts long keys and values. True if something was cut.
fn cut_entries(entries: &mut [Entry]) -> bool {
    let mut is_cut = false;
    for text in entries.iter_mut().flat_map(|entry| [&mut entry.key, &mut entry.value]) {
        let kept = cut(text).len();
        is_cut |= kept < text.len();
        text.truncate(kept);
    }
    is_cut
}

impl Missing {
    pub fn of(&self, rule: Option<&str>) -> [u64; 2] {
        let of_rule = self.by_rule.get(rule.unwrap_or_default()).copied().unwrap_or_default();
        most(of_rule, self.other)
    }

    /// Raises the bounds by keys that are left out.
    fn raise(&mut self, keys: &[KeyHits]) {
        let hits = |key: &KeyHits| [key.allowed, key.refused.max(key.shadowed)];
        self.other = keys.iter().map(hits).fold(self.other, most);
    }

    /// Keeps the rules with the highest bounds, and counts the others as other rules.
    fn keep_rules(&mut self, rules: usize) {
        let mut by_rule: Vec<_> = mem::take(&mut self.by_rule).into_iter().collect();
        by_rule.sort_by_key(|(_, missing)| Reverse(*missing));
        let rest = by_rule.split_off(by_rule.len().min(rules));
        self.other = rest.iter().fold(self.other, |other, (_, missing)| most(other, *missing));
        self.by_rule = by_rule.into_iter().collect();
    }
}

fn most(one: [u64; 2], other: [u64; 2]) -> [u64; 2] {
    let ([allowed, refused], [more_allowed, more_refused]) = (one, other);
    [allowed.max(more_allowed), refused.max(more_refused)]
}
