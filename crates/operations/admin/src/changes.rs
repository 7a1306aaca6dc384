//! `GET /api/v1/changes`, and the changes that the service makes by itself: reloads with the difference of the rules, and
//! outages of the store.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use super::{
    Api,
    reply::{Call, Problem, Reply},
};
use api::{Change, Changes, RuleChange};
use clock::{Clock, Rfc3339, SystemClock, Time};
use counters::Outage;
use faults::{OnStoreFailure, mutex::lock};
use fleet::{
    change,
    changes::{MAX_RULES, by_someone},
};
use limit::Limits;
use limiter::Served;
use recent::LimitShown;
use rules::Rule;

/// An outage is a change if it lasts this long: a connection that is opened takes milliseconds.
const MIN_OUTAGE_SECONDS: u64 = 1;

/// The newest `n` changes, the newest first.
pub(super) async fn get(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    list(api, call.query.number("n")).await
}

pub(super) async fn list(api: &Api, most: usize) -> Result<Reply, Problem> {
    let is_out = api.managed.outages.current().is_some();
    let (changes, warning) = if is_out && api.managed.fleet.is_shared() {
        let own = api.managed.fleet.changes.read(None, most).await.unwrap_or_default();
        (own, Some("redis is out of service".to_owned()))
    } else {
        api.managed.fleet.read_changes(most).await
    };
    let warning =
        warning.map(|why| format!("only changes of this replica that are not in Redis yet are shown: {why}"));
    Reply::json(api, &Changes { changes, warning })
}

/// What was seen last, to notice a change.
#[derive(Default)]
pub(super) struct Watch(Mutex<LastSeen>);

#[derive(Default)]
struct LastSeen {
    served: Option<Arc<Served>>,
    rejections: u64,
    outage: Option<Outage>,
}

impl Watch {
    /// Notes the state at the start, which is no change.
    pub(super) fn begin(&self, api: &Api) {
        let state = api.managed.source.state();
        let seen = LastSeen { served: api.managed.source.current(), rejections: state.errors, outage: None };
        *lock(&self.0) = seen;
    }

    /// Records what has changed; called once a second.
    pub(super) fn tick(&self, api: &Api, now: Time) {
        let mut seen = lock(&self.0);
        let record = |change| api.managed.fleet.changes.record(change);
        let served = api.managed.source.current();
        let is_same = match (&served, &seen.served) {
            (Some(served), Some(seen)) => Arc::ptr_eq(served, seen),
            (None, None) => true,
            _ => false,
        };
        if let (Some(served), false) = (served, is_same) {
            record(reloaded(seen.served.as_deref(), &served, api.managed.in_cluster, now));
            seen.served = Some(served);
        }
        let state = api.managed.source.state();
        if state.errors > seen.rejections {
            seen.rejections = state.errors;
            let error = state.last_error.and_then(|(_, errors)| errors.first().map(ToString::to_string));
            record(change("rules_rejected", error.unwrap_or_default(), now));
        }
        let is_long =
            |outage: &Outage| now.seconds().saturating_sub(outage.since.seconds()) >= MIN_OUTAGE_SECONDS;
        match (api.managed.outages.current(), seen.outage.take()) {
            (Some(outage), None) if is_long(&outage) => {
                let what = format!(
                    "{}, decided by policy {}",
                    outage.error,
                    deciding(&api.managed.limiter.failure_policies())
                );
                record(change("store_lost", what, outage.since));
                seen.outage = Some(outage);
            }
            (None, Some(outage)) => {
                let what = format!("{}, out since {}", api.managed.store_kind, Rfc3339(outage.since));
                record(change("store_back", what, now));
            }
            (_, known) => seen.outage = known,
        }
    }
}

/// The most domains of a policy that a text names.
const MAX_DOMAINS: usize = 3;

/// The policies that decide while the store fails: `local (shop), error (api, cart, edge and 4 others)`.
fn deciding(policies: &[(OnStoreFailure, Vec<String>)]) -> String {
    let named = |(policy, domains): &(OnStoreFailure, Vec<String>)| match policies.len() {
        1 => policy.name().to_owned(),
        _ => format!("{} ({})", policy.name(), few(domains)),
    };
    policies.iter().map(named).collect::<Vec<_>>().join(", ")
}

/// The names of some domains.
pub(super) fn few(domains: &[String]) -> String {
    let named = domains.iter().take(MAX_DOMAINS).map(|name| text::cut(name)).collect::<Vec<_>>().join(", ");
    match domains.len().saturating_sub(MAX_DOMAINS) {
        0 => named,
        1 => format!("{named} and 1 other"),
        others => format!("{named} and {others} others"),
    }
}

fn reloaded(before: Option<&Served>, after: &Served, in_cluster: bool, now: Time) -> Change {
    let hash = |served: &Served| format!("{:016x}", served.rules.fingerprint());
    let old = before.map(described).unwrap_or_default();
    let mut new = described(after);
    let anew = before.map(|before| after.rules.begin_anew(&before.rules, in_cluster)).unwrap_or_default();
    for (rule, limit) in anew {
        if let Some(described) = new.get_mut(&*rule.full_key) {
            let limit = LimitShown::from(limit);
            described.limits = text::cut_owned(format!("{}; {limit} begins at 0", described.limits));
        }
    }
    let is_other =
        |(name, rule): &(&&str, &Described<'_>)| old.get(**name).map(|old| &old.limits) != Some(&rule.limits);
    let set = new.iter().filter(is_other);
    let set = set.map(|(name, rule)| rule.change(name, old.get(name).map(|old| old.limits.clone()), true));
    let gone = old.iter().filter(|(name, _)| !new.contains_key(*name));
    let gone = gone.map(|(name, rule)| rule.change(name, Some(rule.limits.clone()), false));
    let mut changed = set.chain(gone);
    // The log of changes keeps what is collected here.
    let rules: Vec<RuleChange> = changed.by_ref().take(MAX_RULES).collect();
    let more_rules = changed.count();
    let what = match (before, rules.len() + more_rules) {
        (None, _) => format!("the first rules, hash {}", hash(after)),
        (Some(before), 1) => format!("1 rule changed, hash {} to {}", hash(before), hash(after)),
        (Some(before), n) => format!("{n} rules changed, hash {} to {}", hash(before), hash(after)),
    };
    Change { rules, more_rules, ..change("rules_reloaded", what, now) }
}

struct Described<'a> {
    limits: String,
    place: Option<(&'a str, u32)>,
}

impl Described<'_> {
    fn change(&self, name: &str, old: Option<String>, is_there: bool) -> RuleChange {
        RuleChange {
            rule: text::cut(name).to_owned(),
            old,
            new: is_there.then(|| self.limits.clone()),
            file: self.place.map(|(file, _)| text::cut(file).to_owned()),
            line: self.place.map(|(_, line)| line),
        }
    }
}

/// The rules of a set by their full keys.
fn described(served: &Served) -> BTreeMap<&str, Described<'_>> {
    let domains = served.rules.domains().flat_map(|domain| domain.rules());
    let described = domains.map(|(rule, _)| {
        let info = served.attached.recent(rule.id);
        let place = info.and_then(|info| info.place.as_ref()).map(|(file, line)| (&**file, *line));
        (&*rule.full_key, Described { limits: limits(rule), place })
    });
    described.collect()
}

/// `5 per minute, shadow`.
fn limits(rule: &Rule) -> String {
    let all = rule.limits().into_iter().flat_map(Limits::iter);
    let limits = all.map(|limit| LimitShown::from(limit).to_string());
    let unlimited = rule.limits().is_none().then(|| "unlimited".to_owned());
    let modes =
        [(rule.shadow_mode, "shadow"), (rule.quota_mode, "quota"), (rule.overrides_only, "overrides only")];
    let modes = modes.into_iter().filter(|(is_set, _)| *is_set).map(|(_, mode)| mode.to_owned());
    let text = limits.chain(unlimited).chain(modes).collect::<Vec<_>>().join(", ");
    text::cut_owned(text)
}

impl Api {
    /// Records a change that a caller made: the one function for every call that changes something.
    pub(super) fn record(&self, action: &str, what: &str, by: String, reason: Option<String>) {
        let change = by_someone(change(action, what, SystemClock.now()), by, reason);
        self.managed.fleet.changes.record(change);
    }
}
