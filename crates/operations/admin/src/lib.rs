//! The admin API: the state of the service, and changes to it.
//!
//! `app` makes an [`Api`] and serves it on a separate port or socket with the server of
//! `server::http`, which bounds connections, sizes and times. The head of a request passes `guard` (host, origin, token),
//! and the table of `routes` leads it to a handler; only then its body is read. Every change is counted, and logged as one line with its author and
//! reason.

mod changes;
mod counters;
mod domains;
mod events;
mod forecast;
mod guard;
mod history;
mod holds;
mod not_enforced;
mod overrides;
mod page;
mod recent;
mod reply;
mod routes;
mod rules;
mod status;
#[cfg(test)]
mod tests;
mod tokens;
mod trial;
mod view;
mod why;

use std::{fmt, sync::Arc, time::Duration};

use budget::Budget;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header, request::Parts};
use tracing::info;

use self::{
    events::Events,
    history::History,
    reply::{Call, Problem, Query, Reply},
    routes::Found,
    rules::RuleRates,
};
pub use self::{
    guard::Hosts,
    routes::{Parameter, ROUTES, Route, SchemaOf, Takes},
    tokens::Tokens,
    trial::Trials,
};
use ::counters::{Outages, Store};
use ::overrides::{Keeper, model::MAX_JSON};
use ::recent::Recent;
use clock::Time;
use fleet::Fleet;
use limiter::{Handles, Limiter};
use metrics::{ChangeResult, Stats};
use rules_source::Source;
use server::{
    http::{Answer, BodyLimit, Handler},
    listen::Peer,
};

pub struct Managed {
    pub source: Arc<Source<Handles>>,
    pub stats: Arc<Stats>,
    pub limiter: Arc<Limiter>,
    pub recent: Arc<Recent>,
    pub keeper: Arc<Keeper>,
    pub fleet: Arc<Fleet>,
    pub store: Arc<dyn Store>,
    pub store_kind: &'static str,
    /// The store is a Redis Cluster.
    pub in_cluster: bool,
    /// The servers of the store, without credentials.
    pub store_address: Option<String>,
    pub outages: Arc<Outages>,
    /// `None` if requests are not recorded.
    pub trials: Option<Trials>,
    pub memory: MemoryOf,
    /// The memory for replies that are being sent.
    pub replies: Arc<Budget>,
    pub started: Time,
}

/// The limit of the memory, what sets it, and its parts; `None` while the service ends.
pub type MemoryOf = Box<dyn Fn() -> Option<(usize, &'static str, Vec<MemoryUse>)> + Send + Sync>;

/// A part of the memory, its bound, and its use if that is measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryUse {
    pub name: &'static str,
    pub bytes: usize,
    pub used: Option<usize>,
}

/// Who may call, and what.
pub struct Access {
    pub hosts: Hosts,
    pub tokens: Option<Arc<Tokens>>,
    pub read_only: bool,
    /// `HTTP_TIMEOUT`.
    pub timeout: Duration,
}

pub struct Api {
    managed: Managed,
    access: Access,
    history: History,
    rule_rates: RuleRates,
    events: Events,
    watch: changes::Watch,
    not_enforced: not_enforced::Watch,
    /// Held while rules are tried.
    trial: Arc<tokio::sync::Mutex<()>>,
}

/// The caller: the name of a token, or the peer.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Who {
    token: Option<String>,
    peer: Peer,
    /// What the command says of its user, `user@host`. Nothing proves it.
    said: Option<String>,
}

impl Who {
    /// The name of the token, or the address or user of the peer, which is the same for all its calls.
    fn name(&self) -> String {
        match (&self.token, self.peer) {
            (Some(name), _) => name.clone(),
            (None, Peer::Address(address)) => address.ip().to_string(),
            (None, peer @ Peer::Unix(_)) => peer.to_string(),
        }
    }

    /// The author in the log of changes: the name of the token, else the user of the command, else the peer.
    fn author(&self) -> String {
        self.token.clone().or_else(|| self.said.clone()).unwrap_or_else(|| self.name())
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.token.as_ref().or(self.said.as_ref()) {
            Some(name) => write!(f, "{name} ({})", self.peer),
            None => self.peer.fmt(f),
        }
    }
}

impl Api {
    /// Takes the first sample of the counters: call it before the first request.
    pub fn new(managed: Managed, access: Access) -> Self {
        let (history, rule_rates, events, watch, not_enforced, trial) = Default::default();
        let started = managed.started;
        let api = Self { managed, access, history, rule_rates, events, watch, not_enforced, trial };
        let actions = ROUTES.iter().filter_map(|route| route.action);
        actions.for_each(|action| api.managed.stats.service().admin_changes.show(action));
        api.sample(started);
        api.watch.begin(&api);
        api
    }

    fn sample(&self, now: Time) {
        self.history.sample(&self.managed.stats, &*self.managed.store, now);
        self.rule_rates.sample(self.managed.source.current(), self.managed.limiter.policy().shadow_mode, now);
    }

    /// Samples the counters and sends an event to the followers; called once a second.
    pub async fn tick(&self, now: Time) {
        self.sample(now);
        if let Some(trials) = &self.managed.trials {
            trials.requests.collect();
        }
        self.watch.tick(self, now);
        self.watch_enforcement(now).await;
        if self.events.has_followers() {
            self.events.send(&events::tick(self).await);
        }
    }

    pub fn close(&self) {
        self.events.close();
    }

    /// The caller and the route, if the caller may use it.
    fn route(&self, head: &Parts) -> Result<Asked, Problem> {
        let peer = head.extensions.get().copied().unwrap_or(Peer::Unix(None));
        let path = head.uri.path();
        let service = self.managed.stats.service();
        guard::check_origin(&head.headers)?;
        let who = guard::authenticate(self.access.tokens.as_deref(), &head.headers, peer, service)?;
        let route = match routes::find(&head.method, path) {
            Found::Route(route) => route,
            Found::OtherMethods(allowed) => {
                return Err(Problem::method_not_allowed(&head.method, path, &allowed));
            }
            Found::Nothing if page::has(path) => {
                return Err(Problem::method_not_allowed(&head.method, path, "GET, HEAD"));
            }
            Found::Nothing => {
                let message = format!("no such path: {path}; docs/reference/admin.md lists the calls");
                return Err(Problem::new(StatusCode::NOT_FOUND, message));
            }
        };
        if self.access.read_only && !route.reads {
            if let Some(action) = route.action {
                self.managed.stats.service().admin_changes.count(action, ChangeResult::Rejected);
            }
            let message = "changes are disabled: ADMIN_READ_ONLY is true";
            return Err(Problem::new(StatusCode::FORBIDDEN, message));
        }
        Ok(Asked { who, route })
    }

    async fn reply(&self, route: &Route, who: &Who, request: &Request<Bytes>) -> Result<Reply, Problem> {
        let parameter = route.matches(request.uri().path()).unwrap_or_default();
        let query = Query::read(route.parameters, request.uri().query())?;
        (route.handler)(self, &Call { who, parameter, query, request }).await
    }

    async fn call(&self, route: &Route, who: &Who, request: &Request<Bytes>) -> Result<Answer, Problem> {
        let changes = &self.managed.stats.service().admin_changes;
        let Some(action) = route.action else {
            return Ok(self.reply(route, who, request).await?.into_answer());
        };
        match self.reply(route, who, request).await {
            Ok(reply) => {
                changes.count(action, ChangeResult::Ok);
                let (what, reason) = reply.change.clone().unwrap_or_default();
                info!(action, by = %who, what, reason, "admin change");
                self.record(action, &what, who.author(), reason);
                Ok(reply.into_answer())
            }
            Err(problem) => {
                let is_error = problem.status.is_server_error();
                let result = if is_error { ChangeResult::Error } else { ChangeResult::Rejected };
                changes.count(action, result);
                let status = problem.status.as_u16();
                let error = problem.logged(self.managed.recent.values());
                info!(action, by = %who, result = result.name(), status, error, "admin change rejected");
                Err(problem)
            }
        }
    }
}

/// A call of an authenticated caller.
pub struct Asked {
    who: Who,
    route: &'static Route,
}

/// The largest body of a call: a piece of an import that begins with the longest line. Trials have half of it.
const BODY: BodyLimit = BodyLimit { bytes: 2 * MAX_JSON, name: "fixed" };

impl Handler for Api {
    type Asked = Asked;

    #[expect(clippy::result_large_err, reason = "an answer is moved once, and ends the request")]
    fn admit(&self, head: &Parts) -> Result<(Asked, BodyLimit), Answer> {
        let admitted = guard::check_host(&self.access.hosts, &head.headers, self.access.tokens.is_some());
        let admitted = admitted.and_then(|()| match page::get(&head.method, head.uri.path()) {
            Some(page) => Ok(Err(page)),
            None => self.route(head).map(Ok),
        });
        let asked = admitted.unwrap_or_else(|problem| Err(problem.into_answer())).map_err(with_headers)?;
        let limit = if asked.route.method == Method::GET { BodyLimit::NOTHING } else { BODY };
        Ok((asked, limit))
    }

    async fn answer(self: Arc<Self>, asked: Asked, request: Request<Bytes>) -> Answer {
        let Asked { who, route } = asked;
        let answered = self.call(route, &who, &request).await;
        with_headers(answered.unwrap_or_else(Problem::into_answer))
    }
}

fn with_headers(mut answer: Answer) -> Answer {
    let headers = answer.headers_mut();
    for (name, value) in HEADERS {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    answer
}

/// The headers of every response: it is not cached, not framed, and its type is not guessed.
const HEADERS: [(header::HeaderName, &str); 5] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
];
