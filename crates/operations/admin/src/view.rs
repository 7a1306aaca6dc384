//! What a reply shows: the summaries of all replicas that share a Redis, of this one, or of another one.

use std::sync::Arc;

use http::StatusCode;

use super::{
    Api, Managed,
    overrides::effect_shown,
    reply::{Problem, Query},
};
use ::overrides::Index;
use api::{Answered, OrUnknown, Override, Whose};
use clock::{Clock, SystemClock, Time};
use fleet::{Member, Merged, Summary, merge::merge, own_id, summary::Collect};
use limiter::Served;
use recent::{Recent, TopKey};

/// Summaries combined, and the replicas that they are of.
pub(super) struct View {
    pub(super) merged: Merged,
    pub(super) whose: Whose,
}

/// The scope of this replica alone.
pub(super) const THIS: &str = "this";

fn whose(scope: &str, replicas: OrUnknown<Answered>) -> Whose {
    Whose { scope: scope.to_owned(), replicas: Some(replicas) }
}

/// A single replica that answers.
const ONE: OrUnknown<Answered> = OrUnknown::Known(Answered { known: 1, answered: 1 });

/// The parts of a summary that a call shows.
#[derive(Clone, Copy, Default)]
pub(super) struct Parts<'a> {
    pub(super) keys: bool,
    /// Keys of this domain and this rule only.
    pub(super) domain: Option<&'a str>,
    pub(super) rule: Option<&'a str>,
    /// The key with these entries only.
    pub(super) key: Option<&'a [(String, String)]>,
    pub(super) refusals: bool,
    /// What each rule has counted.
    pub(super) rules: bool,
}

/// The most keys that a call shows, and the most that may fit a published summary.
const MAX_KEYS: usize = 1000;
pub(super) const MAX_PUBLISHED: usize = 100;

impl Api {
    /// The view of the replica that a query names, or of all.
    pub(super) async fn view(&self, query: &Query<'_>, parts: Parts<'_>) -> Result<View, Problem> {
        self.view_of(query.text("replica"), parts).await
    }

    pub(super) async fn view_of(&self, name: Option<&str>, parts: Parts<'_>) -> Result<View, Problem> {
        let own = || self.own_summary(parts, MAX_KEYS);
        let alone = |replicas| View { merged: merge(&[&own()]), whose: whose(THIS, replicas) };
        if name.is_some_and(|name| name == THIS || name == own_id()) {
            return Ok(alone(ONE));
        }
        if !self.managed.fleet.is_shared() {
            return match name {
                None => Ok(alone(ONE)),
                Some(name) => {
                    Err(no_replica(name, "this service shares no Redis with others; expected this"))
                }
            };
        }
        let members = match (self.members().await, name) {
            (Ok(members), _) => members,
            (Err(_), None) => return Ok(alone(OrUnknown::UNKNOWN)),
            (Err(error), Some(_)) => {
                let message = format!("the replicas are unknown: {error}");
                return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, message));
            }
        };
        match name {
            Some(name) => other(&members, name),
            None => Ok(all(&members, &own())),
        }
    }

    /// The keys of the last minutes that meet no rule, on all replicas.
    pub(super) async fn keys_without_rule(&self) -> Result<Summary, Problem> {
        let parts = Parts { keys: true, rule: Some(""), ..Parts::default() };
        Ok(self.view_of(None, parts).await?.merged)
    }

    /// The replicas, or why they are unknown.
    pub(super) async fn members(&self) -> Result<Arc<Vec<Member>>, String> {
        match self.managed.outages.current() {
            Some(outage) => Err(outage.error.to_string()),
            None => self.managed.fleet.members(SystemClock.now()).await,
        }
    }

    /// What this replica knows of its last minutes, without its status.
    pub(super) fn own_summary(&self, parts: Parts<'_>, most: usize) -> Summary {
        let managed = &self.managed;
        let now = SystemClock.now();
        let rates = self.history.rates();
        let mut summary = Summary {
            window_seconds: Recent::window_seconds(managed.started, now),
            per_second: [rates.ok, rates.over_limit, rates.error],
            total: managed.stats.requests_by_code(),
            without_store: self.history.without_store(),
            latency: self.history.latency(),
            answers: self.history.answers(),
            steps: self.history.steps(),
            not_enforced: self.not_enforced.current(),
            ..Summary::default()
        };
        let served = managed.source.current();
        let overridden = |key: &TopKey| overridden(managed, served.as_deref()?, key, now);
        let values = managed.recent.values();
        let recent = &managed.recent;
        let collect = Collect { recent, now, values, most, key: parts.key, overridden: &overridden };
        if parts.keys {
            let rules = served.iter().flat_map(|served| served.attached.all_recent());
            let rules = rules.filter(|info| parts.domain.is_none_or(|only| only == &*info.domain));
            let all = rules.chain([managed.recent.without_rule()]);
            let wanted = all.filter(|info| parts.rule.is_none_or(|only| only == &*info.full_key));
            collect.keys(&mut summary, wanted);
        }
        if parts.refusals {
            collect.refusals(&mut summary);
        }
        if parts.rules {
            summary.rules = self.rule_rates.hits(managed.limiter.policy().shadow_mode);
        }
        collect.unmatched(&mut summary);
        summary
    }
}

/// The override that decides a key: its identifier, its action and its end.
fn overridden(managed: &Managed, served: &Served, key: &TopKey, now: Time) -> Option<Override> {
    let entries: Vec<_> = key.entries().collect();
    let one = deciding(managed.keeper.index(), served, key.domain(), &entries, now)
        .filter(|_| !key.key.is_cut())?;
    Some(Override {
        id: Some(managed.keeper.index().shown_id(&one.target)),
        ..effect_shown(one.action, one.limit_name.as_deref(), one.expires)
    })
}

/// The override that decides a descriptor.
pub(super) fn deciding(
    index: &Index,
    served: &Served,
    domain: &str,
    entries: &[(&str, &str)],
    now: Time,
) -> Option<Arc<::overrides::Override>> {
    let view = index.view(now)?;
    let matched = served.rules.domain(domain)?.find(entries, &mut String::new());
    Some(view.find(domain, entries, matched.as_ref())?.one)
}

/// The view of all replicas: the others as they were published, and this one as it is.
fn all(members: &[Member], own: &Summary) -> View {
    let others: Vec<&Member> = members.iter().filter(|member| member.replica.id != own_id()).collect();
    let published = others.iter().filter_map(|member| member.summary.as_ref());
    let summaries: Vec<&Summary> = published.chain([own]).collect();
    let answered = Answered { known: others.len() + 1, answered: summaries.len() };
    View { merged: merge(&summaries), whose: whose("all", OrUnknown::Known(answered)) }
}

/// The view of the replica with this name, or with the only name that begins so.
fn other(members: &[Member], name: &str) -> Result<View, Problem> {
    let mut found = members.iter().filter(|member| member.replica.id.starts_with(name));
    let (Some(member), None) = (found.next(), found.next()) else {
        let ids = members.iter().map(|member| member.replica.id.as_str());
        let known: Vec<&str> = [THIS, own_id()].into_iter().chain(ids.filter(|id| *id != own_id())).collect();
        return Err(no_replica(name, &format!("expected one of {}", known.join(", "))));
    };
    let id = member.replica.id.clone();
    let summary = member.summary.clone().ok_or_else(|| {
        let message = format!("replica {id} publishes no summary: {}", member.replica.summary);
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, message)
    })?;
    let merged = Summary { status: summary.status.clone(), ..merge(&[&summary]) };
    Ok(View { merged, whose: whose(&id, ONE) })
}

fn no_replica(name: &str, expected: &str) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, format!("replica={:?}: {expected}", text::cut(name)))
}
