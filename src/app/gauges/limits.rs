//! The limits of rules as they are in force now: by their schedules, and by overrides of whole rules.

use std::{collections::BTreeMap, sync::Arc};

use clock::Time;
use limit::{Limit, Limits, Unit};
use limiter::limits_under;
use metrics::labels::Labels;
use overrides::{Action, Found, Index, Override, Target, target::Entries};
use rules::{Level, Node, RuleSet};

/// A limit of a rule.
pub(super) struct RuleLimit {
    pub(super) full_key: String,
    /// The length of the domain, which begins the full key.
    pub(super) domain_bytes: usize,
    /// `minute`, or `15 minutes`.
    pub(super) unit: String,
    pub(super) requests: u64,
}

/// The limits of all rules by their full keys, at most `most` of them.
pub(super) fn in_force(rules: &RuleSet, index: &Index, now: Time, most: usize) -> Vec<RuleLimit> {
    let mut walk = Walk { index, now: index.time(now), found: Vec::new() };
    for domain in rules.domains() {
        walk.level(&domain.name, &domain.root, &mut Vec::new());
    }
    // The same ones in each scrape.
    walk.found.sort_by(|one, other| one.full_key.cmp(&other.full_key));
    walk.found.truncate(most);
    walk.found
}

impl RuleLimit {
    /// The domain, the path of the rule and the unit.
    pub(super) fn labels(&self) -> [&str; 3] {
        let (domain, path) =
            self.full_key.split_at_checked(self.domain_bytes).unwrap_or(("", &self.full_key));
        [domain, path.strip_prefix('.').unwrap_or(path), &self.unit]
    }
}

struct Walk<'a> {
    index: &'a Index,
    now: Time,
    found: Vec<RuleLimit>,
}

impl Walk<'_> {
    fn level(&mut self, domain: &str, level: &Level, above: &mut Entries) {
        for (_, node) in level.in_order() {
            let value = node.text.get(node.key().len() + 1..);
            above.push((node.key().into(), overrides::Value::new(value)));
            self.node(domain, node, above);
            self.level(domain, &node.children, above);
            above.pop();
        }
    }

    fn node(&mut self, domain: &str, node: &Node, entries: &Entries) {
        let Some(rule) = &node.rule else { return };
        let mut add = |unit: String, requests| {
            let full_key = rule.full_key.to_string();
            let domain_bytes = domain.len();
            self.found.push(RuleLimit { full_key, domain_bytes, unit, requests });
        };
        let own = || rule.limits().filter(|_| !rule.overrides_only).into_iter().flat_map(Limits::iter);
        let own = own().map(|limit| limit.at(self.now));
        let one = of_whole_rule(self.index, domain, entries, self.now);
        let found = one.map(|one| Found::new(one, self.now));
        // The calendar has no part in the number or in the unit.
        let replacing = found.as_ref().and_then(|found| limits_under(found, Some(rule), false, self.now));
        match (found.as_ref().map(|found| found.action), &replacing) {
            (Some(Action::Allow), _) => {}
            (Some(Action::Block), _) => own.for_each(|limit| add(unit(limit), 0)),
            (_, Some(limits)) => {
                limits
                    .iter()
                    .map(|limit| limit.at(self.now))
                    .for_each(|limit| add(unit(limit), limit.requests_per_unit));
            }
            (_, None) => own.for_each(|limit| add(unit(limit), limit.requests_per_unit)),
        }
    }
}

/// The override for all descriptors that a rule matches.
fn of_whole_rule(index: &Index, domain: &str, entries: &Entries, now: Time) -> Option<Arc<Override>> {
    if index.is_empty() {
        return None;
    }
    let target = Target::new(domain, entries.clone()).ok()?;
    index.get(&target).filter(|one| !one.is_over(now))
}

fn unit(limit: &Limit) -> String {
    match (limit.unit, limit.multiplier.get()) {
        // Requests at a time.
        (Unit::Unknown, _) => "concurrent".to_owned(),
        (unit, 1) => unit.lowercase(),
        (unit, units) => format!("{units} {}s", unit.lowercase()),
    }
}

/// The lowest limit of the rules with the labels of one series.
pub(super) fn lowest(limits: &[RuleLimit]) -> BTreeMap<Labels, u64> {
    let mut lowest = BTreeMap::new();
    for RuleLimit { full_key, requests, .. } in limits {
        let known = lowest.entry(Labels::of(full_key)).or_insert(*requests);
        *known = (*known).min(*requests);
    }
    lowest
}
