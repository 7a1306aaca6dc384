//! Random rules, and random requests and overrides for them. Few keys, values and small numbers, so that requests meet.

use std::collections::BTreeSet;

use super::super::model::{
    Closing, Descriptor, Entries, Hold, Limit, Most, Override, Request, Rule, Target, Unit,
};
use support::noise::Noise;

const KEYS: [&str; 3] = ["user", "path", "plan"];
/// Of rules.
const VALUES: [Option<&str>; 6] = [None, None, Some("ann"), Some("bob"), Some("a*"), Some("b*")];
/// Of requests.
const SENT: [&str; 4] = ["ann", "bob", "amy", "ben"];
const NAMES: [&str; 3] = ["first", "second", "third"];
const CURRENCIES: [&str; 2] = ["tokens", "dollars"];

/// Limits, of which the largest have more than 32 bits.
const LIMITS: [u64; 10] = [0, 1, 2, 3, 5, 8, 13, 40, 1 << 33, 1 << 44];
const HITS: [u64; 12] = [0, 0, 1, 1, 1, 2, 3, 5, 8, 20, 1 << 32, 1 << 43];

/// The rules that a sequence meets: few, so that their counters fill.
const MOST_PATTERNS: usize = 5;

/// What a place can do.
#[derive(Clone, Copy)]
pub(super) struct Abilities {
    pub(super) holds: bool,
    pub(super) overrides: bool,
    /// A settle in a request with other descriptors is stored before the answer. In Redis it is not if those descriptors
    /// need no store.
    pub(super) settles_beside: bool,
}

/// A step of a test.
pub(super) enum Step {
    Ask(Request),
    /// Sets or removes the override of a target, which meets this descriptor if that has a rule.
    Set {
        like: Entries,
        target: Target,
        action: Option<Override>,
    },
}

pub(super) struct Generator {
    noise: Noise,
    abilities: Abilities,
    /// The descriptors of the rules with limits, each with the values that rules have.
    patterns: Vec<Vec<(String, Option<String>)>>,
    /// Requests that hold, also those that were settled.
    pub(super) holding: Vec<usize>,
    /// Descriptors whose counters are not known exactly any more.
    pub(super) unknown: BTreeSet<Entries>,
}

impl Generator {
    pub(super) fn new(seed: u64, abilities: Abilities) -> (Self, Vec<Rule>) {
        let mut noise = Noise::new(seed);
        let rules = level(&mut noise, abilities, 0);
        let mut patterns = Vec::new();
        paths(&rules, &mut Vec::new(), &mut patterns);
        while patterns.len() > MOST_PATTERNS {
            patterns.swap_remove(noise.below(patterns.len()));
        }
        let generator = Self { noise, abilities, patterns, holding: Vec::new(), unknown: BTreeSet::new() };
        (generator, rules)
    }

    pub(super) fn step(&mut self) -> Step {
        if self.abilities.overrides && self.noise.below(25) == 0 && !self.patterns.is_empty() {
            let (like, target) = self.target();
            // What is set for a whole rule may apply to what is not known exactly.
            if self.unknown.is_empty() {
                let action = self.action();
                return Step::Set { like, target, action };
            }
        }
        Step::Ask(self.request())
    }

    fn action(&mut self) -> Option<Override> {
        match self.noise.below(8) {
            0 => Some(Override::Block),
            1 => Some(Override::Allow),
            2 | 3 => Some(Override::Shadow),
            4 | 5 => Some(Override::Limit(pick(&mut self.noise, &LIMITS), pick(&mut self.noise, &Unit::ALL))),
            _ => None,
        }
    }

    fn request(&mut self) -> Request {
        let hits = if self.noise.below(4) == 0 { 1 + self.noise.below(4) } else { 0 };
        let mut request = Request { hits: hits.try_into().expect("it is small"), ..Request::default() };
        for _ in 0..1 + self.noise.below(2) + self.noise.below(2) {
            let descriptor = self.descriptor();
            // A counter is named once.
            let is_new = request.descriptors.iter().all(|other| other.entries != descriptor.entries);
            if is_new && !self.unknown.contains(&descriptor.entries) {
                request.descriptors.push(descriptor);
            }
        }
        if !self.holding.is_empty() && (request.descriptors.is_empty() || self.noise.below(4) == 0) {
            if !self.abilities.settles_beside || self.noise.below(2) == 0 {
                request.descriptors.clear();
            }
            request.closings = (0..=self.noise.below(2)).map(|_| self.closing()).collect();
        }
        if request.descriptors.is_empty() && request.closings.is_empty() {
            request
                .descriptors
                .push(Descriptor { entries: entries(&[("other", "x")]), ..Descriptor::default() });
        }
        request
    }

    fn descriptor(&mut self) -> Descriptor {
        let is_of_rule = self.noise.below(10) > 0 && !self.patterns.is_empty();
        let entries = if is_of_rule { self.entries_of_rule() } else { self.any_entries() };
        let hits = (self.noise.below(2) == 0).then(|| pick(&mut self.noise, &HITS));
        let is_refund = self.noise.below(6) == 0;
        let limit = (self.noise.below(16) == 0).then(|| self.own_limit());
        Descriptor { entries, hits, is_refund, limit }
    }

    /// Values of a descriptor and, for some levels, what its rule has in their place.
    fn target(&mut self) -> (Entries, Target) {
        let index = self.noise.below(self.patterns.len());
        let like = self.entries_of(index);
        let is_whole = self.noise.below(3) == 0;
        let levels = like.iter().zip(&self.patterns[index]);
        let target = levels.map(|((key, value), (_, of_rule))| {
            let is_value = !is_whole || self.noise.below(4) == 0;
            (key.clone(), if is_value { Some(value.clone()) } else { of_rule.clone() })
        });
        (like.clone(), target.collect())
    }

    fn own_limit(&mut self) -> Limit {
        let requests = pick(&mut self.noise, &LIMITS).min(u32::MAX.into());
        // No rule has three: in Redis the limits of a list have keys of their own, elsewhere they share them with other
        // windows of several units.
        let units = if self.noise.below(4) == 0 { 3 } else { 1 };
        Limit { requests, unit: pick(&mut self.noise, &Unit::ALL), units, name: None, hold: None }
    }

    fn entries_of_rule(&mut self) -> Entries {
        let index = self.noise.below(self.patterns.len());
        self.entries_of(index)
    }

    fn entries_of(&mut self, index: usize) -> Entries {
        let noise = &mut self.noise;
        let value = |value: &Option<String>| match value {
            Some(value) if !value.ends_with('*') && noise.below(4) > 0 => value.clone(),
            _ => pick(noise, &SENT).to_owned(),
        };
        let (keys, values): (Vec<_>, Vec<_>) = self.patterns[index].iter().cloned().unzip();
        keys.into_iter().zip(values.iter().map(value).collect::<Vec<_>>()).collect()
    }

    fn any_entries(&mut self) -> Entries {
        (0..=self.noise.below(3)).map(|_| (self.text(&KEYS), self.text(&SENT))).collect()
    }

    fn text(&mut self, all: &[&str]) -> String {
        all[self.noise.below(all.len())].to_owned()
    }

    fn closing(&mut self) -> Closing {
        let hold = pick(&mut self.noise, &self.holding);
        let cost = (self.noise.below(3) > 0).then(|| pick(&mut self.noise, &HITS));
        // An end is of all currencies.
        let is_of_currency = cost.is_some() && self.noise.below(3) == 0;
        let currency = is_of_currency.then(|| self.text(&CURRENCIES));
        Closing { hold, cost, currency }
    }
}

fn entries(entries: &[(&str, &str)]) -> Entries {
    entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn pick<T: Copy>(noise: &mut Noise, all: &[T]) -> T {
    all[noise.below(all.len())]
}

/// One level of the tree of rules.
fn level(noise: &mut Noise, abilities: Abilities, depth: usize) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    for _ in 0..=noise.below(4 - depth) {
        let key = pick(noise, &KEYS);
        let value = pick(noise, &VALUES);
        let is_known = |rule: &Rule| rule.key == key && rule.value.as_deref() == value;
        if !rules.iter().any(is_known) {
            rules.push(rule(noise, abilities, depth, (key, value)));
        }
    }
    rules
}

fn rule(noise: &mut Noise, abilities: Abilities, depth: usize, (key, value): (&str, Option<&str>)) -> Rule {
    let mut rule = Rule { key: key.to_owned(), value: value.map(str::to_owned), ..Rule::default() };
    match noise.below(12) {
        0 => {}
        1 => rule.is_unlimited = true,
        2..6 => rule.limits = list(noise, abilities),
        _ => {
            let hold = hold(noise, abilities);
            rule.limits = vec![limit(noise, hold)];
        }
    }
    let is_limited = !rule.limits.is_empty();
    rule.is_shadow = is_limited && noise.below(6) == 0;
    rule.is_quota = is_limited && noise.below(4) == 0;
    let others =
        NAMES.iter().filter(|name| rule.limits.iter().all(|limit| limit.name.as_deref() != Some(name)));
    if (is_limited || rule.is_unlimited) && noise.below(6) == 0 {
        rule.replaces = others.take(1).map(|name| (*name).to_owned()).collect();
    }
    if depth < 2 && noise.below(2) == 0 {
        rule.below = level(noise, abilities, depth + 1);
    }
    rule
}

fn limit(noise: &mut Noise, hold: Option<Hold>) -> Limit {
    if hold.is_some() && noise.below(5) == 0 {
        return Limit { requests: pick(noise, &LIMITS), unit: Unit::AtATime, units: 1, name: None, hold };
    }
    let units = if noise.below(4) == 0 { 2 } else { 1 };
    let name = (noise.below(3) == 0).then(|| pick(noise, &NAMES).to_owned());
    Limit { requests: pick(noise, &LIMITS), unit: pick(noise, &Unit::ALL), units, name, hold }
}

/// Limits of different windows. All of them hold, or none.
fn list(noise: &mut Noise, abilities: Abilities) -> Vec<Limit> {
    let mut limits: Vec<Limit> = Vec::new();
    let holds = hold(noise, abilities).is_some();
    while limits.len() < 2 {
        for _ in 0..2 + noise.below(2) {
            let hold = if holds { Some(some_hold(noise)) } else { None };
            let limit = limit(noise, hold);
            if limits.iter().all(|other| (other.unit, other.units) != (limit.unit, limit.units)) {
                limits.push(limit);
            }
        }
    }
    limits
}

fn hold(noise: &mut Noise, abilities: Abilities) -> Option<Hold> {
    (abilities.holds && noise.below(4) == 0).then(|| some_hold(noise))
}

fn some_hold(noise: &mut Noise) -> Hold {
    let unknown = pick(noise, &[None, None, Some(0), Some(4)]);
    let most = pick(noise, &[None, None, Some(Most::Hits(3)), Some(Most::Percent(40))]);
    Hold { amount: 1 + noise.below(6) as u64, most, unknown, currency: pick(noise, &CURRENCIES).to_owned() }
}

/// The descriptors of the rules with limits.
fn paths(
    rules: &[Rule],
    above: &mut Vec<(String, Option<String>)>,
    into: &mut Vec<Vec<(String, Option<String>)>>,
) {
    for rule in rules {
        above.push((rule.key.clone(), rule.value.clone()));
        if rule.is_unlimited || !rule.limits.is_empty() {
            into.push(above.clone());
        }
        paths(&rule.below, above, into);
        above.pop();
    }
}
