//! What one replica knows of its last minutes, and its form in Redis, of at most [`MAX_BYTES`].
//!
//! [`Summary::packed`] keeps the busiest keys that fit. What it leaves out only raises the error of the merged counts,
//! by [`Missing`]. Values were converted by `KEY_VALUES` before.

use std::{cmp::Reverse, collections::BTreeMap};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use crate::{latency::Buckets, steps::Steps};
use api::{Answers, Entry, KeyHits, NotEnforced, Override};
use clock::{Rfc3339, Time};
use faults::OnStoreFailure;
use recent::{KeyValues, Recent, RefusedKey, RuleInfo, TopKey, TopKeys, shown};
use text::cut;

pub const MAX_BYTES: usize = 16 << 10;

/// The parts of it: keys by hits over the limit, by allowed hits, refusals by key, descriptors without a rule, rules, and
/// what keeps limits from being enforced. The rest has a fixed size of about 3 kB.
const REFUSED_BYTES: usize = 3_000;
const ALLOWED_BYTES: usize = 2_000;
const REFUSALS_BYTES: usize = 4_000;
/// What is left of them, but at least these, is for refusals that shadow mode prevented.
const SHADOWED_BYTES: usize = 1_400;
const UNMATCHED_BYTES: usize = 1_000;
const RULES_BYTES: usize = 2_200;
const NOT_ENFORCED_BYTES: usize = 1_000;

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
    /// False for a key that is left out.
    pub is_wanted: &'a dyn Fn(&TopKey) -> bool,
    /// The override that decides a descriptor of a domain.
    pub overridden: &'a dyn Fn(&TopKey) -> Option<Override>,
}

/// What keys are sorted by, the largest first.
type Order = fn(&TopKey) -> (u64, u64);

impl Collect<'_> {
    pub fn keys<'r>(&self, summary: &mut Summary, rules: impl Iterator<Item = &'r std::sync::Arc<RuleInfo>>) {
        let mut all = Vec::new();
        for TopKeys { keys, missing } in self.recent.top(rules, self.now) {
            if let (Some(first), true) = (keys.first(), missing != [0, 0]) {
                summary.missing.by_rule.insert(first.rule.full_key.to_string(), missing);
            }
            all.extend(keys.into_iter().filter(self.is_wanted));
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
        let of = |is_shadowed| {
            let (keys, others) = self.recent.refused_keys(is_shadowed, self.now);
            (keys.iter().map(|key| self.refusal(key)).collect::<Vec<_>>(), others.count)
        };
        (summary.refusals, summary.other_refusals) = of(false);
        (summary.shadowed, summary.other_shadowed) = of(true);
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
    /// The form for Redis: the busiest keys, of at most [`MAX_BYTES`].
    pub fn packed(mut self) -> String {
        cut_all(self.keys.iter_mut().chain(&mut self.unmatched));
        let keys = std::mem::take(&mut self.keys);
        let (over, allowed): (Vec<_>, Vec<_>) = keys.into_iter().partition(|key| hits_over(key) > 0);
        let (mut kept, left) = fitting(over, REFUSED_BYTES, hits_over);
        let (more, left_too) =
            fitting(left.into_iter().chain(allowed).collect(), ALLOWED_BYTES, |key| key.allowed);
        kept.extend(more);
        self.keys = kept;
        self.missing.leave_out(&left_too);
        self.pack_rules();
        let (unmatched, left) =
            fitting(std::mem::take(&mut self.unmatched), UNMATCHED_BYTES, |key| key.allowed);
        self.unmatched = unmatched;
        let most = left.iter().map(|key| key.allowed).max().unwrap_or_default();
        self.unmatched_missing = self.unmatched_missing.max(most);
        self.pack_refusals();
        self.pack_not_enforced();
        let packed = serde_json::to_string(&self).unwrap_or_default();
        if packed.len() <= MAX_BYTES {
            return packed;
        }
        // Long names of rules and files, or errors: the numbers matter most.
        let rest = Self {
            keys: Vec::new(),
            refusals: Vec::new(),
            shadowed: Vec::new(),
            unmatched: Vec::new(),
            rules: Vec::new(),
            other_rules: self.other_rules.saturating_add(self.rules.len() as u64),
            status: Json::Null,
            ..self
        };
        serde_json::to_string(&rest).unwrap_or_default()
    }

    /// The rules with the highest rates, with one digit of each rate.
    fn pack_rules(&mut self) {
        let rate = |rule: &RuleHits| rule.per_second.iter().sum::<f64>();
        self.rules.sort_unstable_by(|one, other| {
            rate(other).total_cmp(&rate(one)).then_with(|| other.hits.cmp(&one.hits))
        });
        let all = self.rules.len();
        self.rules.truncate(RULES_BYTES);
        for rate in self.rules.iter_mut().flat_map(|rule| &mut rule.per_second) {
            *rate = (*rate * 10.0).round() / 10.0;
        }
        // They are in order.
        let (kept, _) = fitting(std::mem::take(&mut self.rules), RULES_BYTES, |_| ());
        self.rules = kept;
        self.other_rules = self.other_rules.saturating_add(all.saturating_sub(self.rules.len()) as u64);
    }

    /// First what nobody chose.
    fn pack_not_enforced(&mut self) {
        for one in &mut self.not_enforced {
            for text in [&mut one.by, &mut one.reason].into_iter().flatten() {
                text.truncate(cut(text).len());
            }
        }
        let all = std::mem::take(&mut self.not_enforced);
        (self.not_enforced, _) = fitting(all, NOT_ENFORCED_BYTES, |one| (!one.chosen, one.n));
    }

    /// Refusals do not make room for those that shadow mode prevented, nor take all of it.
    fn pack_refusals(&mut self) {
        let room = REFUSALS_BYTES - if self.shadowed.is_empty() { 0 } else { SHADOWED_BYTES };
        pack_half_by_count(&mut self.refusals, &mut self.other_refusals, room);
        let taken: usize = self.refusals.iter().map(json_bytes).sum();
        let room = REFUSALS_BYTES.saturating_sub(taken);
        pack_half_by_count(&mut self.shadowed, &mut self.other_shadowed, room);
    }

    /// Reads [`packed`](Self::packed), also of other versions, whose fields may differ.
    pub fn read(packed: &str) -> Option<Self> {
        // serde reads a struct from a list, too.
        let mut summary: Self = serde_json::from_str(packed).ok().filter(|_| packed.starts_with('{'))?;
        let refusals = summary.refusals.iter_mut().map(|one| (one, "over_limit"));
        for (refusal, code) in refusals.chain(summary.shadowed.iter_mut().map(|one| (one, "ok"))) {
            let (rule, file, line) = (refusal.rule.clone(), refusal.file.clone(), refusal.line);
            let values = [
                ("code", code.into()),
                ("descriptor", serde_json::to_value(&refusal.descriptor).unwrap_or_default()),
                ("domain", refusal.domain.clone().into()),
                ("file", file.into()),
                ("line", line.into()),
                ("rule", rule.into()),
            ];
            refusal.example.extend(values.map(|(name, value)| (name.to_owned(), value)));
        }
        Some(summary)
    }
}

/// The largest items whose JSON has at most this many bytes, and the others.
fn fitting<T: Serialize, K: Ord>(
    mut items: Vec<T>,
    bytes: usize,
    size: impl Fn(&T) -> K,
) -> (Vec<T>, Vec<T>) {
    items.sort_by_cached_key(|item| Reverse(size(item)));
    let mut room = bytes;
    items.into_iter().partition(|item| {
        let fits = room.checked_sub(json_bytes(item));
        // A long item does not keep shorter ones out.
        room = fits.unwrap_or(room);
        fits.is_some()
    })
}

fn json_bytes(item: &impl Serialize) -> usize {
    serde_json::to_string(item).map_or(usize::MAX, |json| json.len().saturating_add(1))
}

/// Half of the refusals that are kept are those with the highest counts, the others the last ones.
fn pack_half_by_count(refusals: &mut Vec<KeyRefusals>, others: &mut u64, bytes: usize) {
    for refusal in &mut *refusals {
        refusal.example.retain(|name, _| !REPEATED.contains(&name.as_str()));
        refusal.descriptor_cut |= cut_entries(&mut refusal.descriptor);
    }
    let (mut kept, left) = fitting(std::mem::take(refusals), bytes / 2, |refusal| refusal.count);
    let (last, left) = fitting(left, bytes / 2, |refusal| refusal.last.clone());
    kept.extend(last);
    *refusals = kept;
    *others = left.iter().map(|refusal| refusal.count).fold(*others, u64::saturating_add);
}

fn cut_all<'a>(keys: impl Iterator<Item = &'a mut KeyHits>) {
    for key in keys {
        key.descriptor_cut |= cut_entries(&mut key.descriptor);
    }
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

    /// Raises the bounds by keys that are left out, and keeps few rules.
    fn leave_out(&mut self, keys: &[KeyHits]) {
        self.other = keys
            .iter()
            .fold(self.other, |other, key| most(other, [key.allowed, key.refused.max(key.shadowed)]));
        let mut by_rule: Vec<_> = std::mem::take(&mut self.by_rule).into_iter().collect();
        by_rule.sort_by_key(|(_, missing)| Reverse(*missing));
        let rest = by_rule.split_off(by_rule.len().min(MAX_MISSING));
        self.other = rest.iter().fold(self.other, |other, (_, missing)| most(other, *missing));
        self.by_rule = by_rule.into_iter().collect();
    }
}

fn most(one: [u64; 2], other: [u64; 2]) -> [u64; 2] {
    let ([allowed, refused], [more_allowed, more_refused]) = (one, other);
    [allowed.max(more_allowed), refused.max(more_refused)]
}
