//! What a reply shows: the summaries of all replicas that share a Redis, of this one, or of another one.

use http::StatusCode;
use serde_json::{Value as Json, json};

use super::{
    Api,
    reply::{Problem, Query},
    status,
};
use clock::{Clock, SystemClock};
use fleet::{Member, Merged, Summary, merge::merge, own_id, summary::Collect};
use recent::Recent;

/// The parameter that selects a replica.
pub(super) const REPLICA: &str = "replica";

/// Summaries combined, and the replicas that they are of.
pub(super) struct View {
    pub(super) merged: Merged,
    pub(super) scope: Scope,
    /// How many replicas are known and answered; `unknown` while Redis is out of service.
    pub(super) replicas: Json,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Scope {
    All,
    This,
    /// Another replica.
    Other(String),
}

impl Scope {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::All => "all",
            Self::This => "this",
            Self::Other(name) => name,
        }
    }
}

impl Api {
    /// The view that a call asks for.
    pub(super) async fn view(&self, query: &Query<'_>) -> Result<View, Problem> {
        let alone = |replicas| View { merged: merge(&[self.own_summary()]), scope: Scope::This, replicas };
        let one = json!({"known": 1, "answered": 1});
        let name = query.text(REPLICA);
        if name.is_some_and(|name| name == "this" || name == own_id()) {
            return Ok(alone(one));
        }
        if !self.managed.fleet.is_shared() {
            return match name {
                None => Ok(alone(one)),
                Some(name) => {
                    Err(no_replica(name, "this service shares no Redis with others; expected this"))
                }
            };
        }
        let members = match (self.members().await, name) {
            (Ok(members), _) => members,
            (Err(_), None) => return Ok(alone("unknown".into())),
            (Err(error), Some(_)) => {
                let message = format!("the replicas are unknown: {error}");
                return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, message));
            }
        };
        match name {
            Some(name) => other(&members, name),
            None => Ok(self.all(&members)),
        }
    }

    /// The other replicas, or why they are unknown.
    pub(super) async fn members(&self) -> Result<Vec<Member>, String> {
        if let Some(outage) = self.managed.outages.current() {
            return Err(outage.error.to_string());
        }
        let members = self.managed.fleet.members(SystemClock.now()).await?;
        Ok(members.iter().filter(|member| member.announcement.id != own_id()).cloned().collect())
    }

    fn all(&self, others: &[Member]) -> View {
        let others_known = others.len();
        let mut summaries: Vec<Summary> = others.iter().filter_map(|member| member.summary.clone()).collect();
        summaries.push(self.own_summary());
        let replicas = json!({"known": others_known.saturating_add(1), "answered": summaries.len()});
        View { merged: merge(&summaries), scope: Scope::All, replicas }
    }

    /// What this replica knows of its last minutes, without its status.
    pub(super) fn own_summary(&self) -> Summary {
        let (managed, now) = (&self.managed, SystemClock.now());
        let rates = self.history.rates();
        let mut summary = Summary {
            window_seconds: Recent::window_seconds(managed.started, now),
            per_second: [rates.ok, rates.over_limit, rates.error],
            total: managed.stats.requests_by_code(),
            without_store: self.history.without_store(),
            latency: self.history.latency(),
            ..Summary::default()
        };
        let served = managed.source.current();
        let collect = Collect { recent: &managed.recent, now, values: managed.recent.values() };
        collect.keys(&mut summary, served.iter().flat_map(|served| served.attached.all_recent()));
        collect.refusals(&mut summary);
        collect.unmatched(&mut summary);
        summary
    }

    /// The summary that other replicas read, with the status of this one.
    pub(super) fn published_summary(&self) -> Summary {
        let summary = self.own_summary();
        let status = status::json(self, &summary, &Scope::This, Json::Null);
        Summary { status, ..summary }
    }
}

/// The view of the replica with this name, or with the only name that begins so.
fn other(members: &[Member], name: &str) -> Result<View, Problem> {
    let mut found = members.iter().filter(|member| member.announcement.id.starts_with(name));
    let (Some(member), None) = (found.next(), found.next()) else {
        let known: Vec<&str> = members.iter().map(|member| member.announcement.id.as_str()).collect();
        return Err(no_replica(name, &format!("expected this, {} or {}", own_id(), known.join(", "))));
    };
    let id = member.announcement.id.clone();
    let summary = member.summary.clone().ok_or_else(|| {
        let message = format!("replica {id} publishes no summary: {}", silence(member));
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, message)
    })?;
    let status = summary.status.clone();
    let merged = Summary { status, ..merge(&[summary]) };
    Ok(View { merged, scope: Scope::Other(id), replicas: json!({"known": 1, "answered": 1}) })
}

fn no_replica(name: &str, expected: &str) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, format!("{REPLICA}={:?}: {expected}", text::cut(name)))
}

/// Why a replica has no summary.
pub(super) fn silence(member: &Member) -> &'static str {
    match (&member.summary, member.announcement.summaries) {
        (Some(_), _) => "published",
        (None, None) => "older version",
        (None, Some(false)) => "turned off",
        (None, Some(true)) => "unreadable",
    }
}
