//! The admin API: what the service does now, for people and programs that look after it, and changes to it.
//!
//! `app` makes an [`Api`] and serves [`Api::answer`] on a port or socket of its own with the server of
//! [`http`](super::http), which bounds connections, sizes and times. A request passes `guard` (host, origin, token),
//! is looked up in the table of `routes`, and is answered by a handler, each in a file of its own. Every call that
//! changes something is logged as one line with who, what and why, and counted.

mod counters;
mod events;
mod guard;
mod history;
mod overrides;
mod page;
mod refusals;
mod reply;
mod routes;
mod rule_rates;
mod rules;
mod status;
#[cfg(test)]
mod tests;
mod tokens;
mod top;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use tracing::info;

use self::{
    events::Events,
    history::History,
    reply::{Call, Problem},
    routes::{Found, Route},
    rule_rates::RuleRates,
};
pub use self::{guard::Hosts, tokens::Tokens};
use super::http::{Answer, Peer, admin::Admin};
use crate::{clock::Time, telemetry::metrics::ChangeResult};

/// What the admin API is made of.
pub struct Options {
    /// What it shows: the parts of the service.
    pub shown: Admin,
    /// The names it may be called by.
    pub hosts: Hosts,
    /// The tokens of which every call needs one, if any.
    pub tokens: Option<Tokens>,
    /// Changes are rejected.
    pub read_only: bool,
    /// The store of counters.
    pub store: StoreInfo,
    /// When the service started.
    pub started: Time,
}

/// The store of counters as the settings name it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreInfo {
    /// Its kind: `memory`, `redis` or `memcached`.
    pub kind: &'static str,
    /// Its servers, without credentials.
    pub address: Option<String>,
}

/// The admin API.
pub struct Api {
    options: Options,
    history: History,
    rule_rates: RuleRates,
    events: Events,
}

impl Api {
    /// An API over these parts.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            history: History::default(),
            rule_rates: RuleRates::default(),
            events: Events::default(),
        }
    }

    /// Notes what was counted until now, and sends it to those who follow; to be called once a second.
    pub async fn tick(&self, now: Time) {
        let shown = &self.options.shown;
        self.history.sample(&shown.stats, &*shown.store, now);
        self.rule_rates.sample(shown.source.current(), now);
        events::send(self).await;
    }

    /// Ends the streams of those who follow.
    pub fn close(&self) {
        self.events.close();
    }

    /// Answers a request of the admin port.
    pub async fn answer(self: Arc<Self>, request: Request<Bytes>) -> Answer {
        let answered = self.try_answer(&request).await;
        let mut answer = answered.unwrap_or_else(Problem::into_answer);
        let headers = answer.headers_mut();
        for (name, value) in HEADERS {
            headers.entry(name).or_insert(HeaderValue::from_static(value));
        }
        answer
    }

    async fn try_answer(&self, request: &Request<Bytes>) -> Result<Answer, Problem> {
        let peer = request.extensions().get().copied().unwrap_or(Peer::Unix(None));
        let headers = request.headers();
        guard::check_host(&self.options.hosts, headers, self.options.tokens.is_some())?;
        let path = request.uri().path();
        if let Some(answer) = page::get(request.method(), path) {
            return Ok(answer);
        }
        guard::check_origin(headers)?;
        let who = guard::authenticate(self.options.tokens.as_ref(), headers, peer)?;
        match routes::find(request.method(), path) {
            Found::Route(route, parameter) => {
                let call = Call { who: &who, parameter, request };
                self.call(route, &call).await
            }
            Found::OtherMethods(allowed) => {
                Err(Problem::method_not_allowed(request.method(), path, &allowed))
            }
            Found::Nothing => Err(Problem::not_found(path)),
        }
    }

    async fn call(&self, route: &Route, call: &Call<'_>) -> Result<Answer, Problem> {
        let changes = &self.options.shown.stats.service().admin_changes;
        // Every method but GET changes something, or prepares a change.
        if self.options.read_only && route.method != Method::GET {
            if let Some(action) = route.action {
                changes.count(action, ChangeResult::Rejected);
            }
            let message = "ADMIN_READ_ONLY is true: nothing may be changed";
            return Err(Problem::new(StatusCode::FORBIDDEN, message));
        }
        let Some(action) = route.action else { return Ok((route.handler)(self, call).await?.into_answer()) };
        match (route.handler)(self, call).await {
            Ok(mut reply) => {
                changes.count(action, ChangeResult::Ok);
                let change = reply.change.take();
                let (what, reason) = change.map(|change| (change.what, change.reason)).unwrap_or_default();
                info!(action, by = %call.who, what, reason, "admin change");
                Ok(reply.into_answer())
            }
            Err(problem) => {
                let is_ours = problem.status.is_server_error();
                let result = if is_ours { ChangeResult::Error } else { ChangeResult::Rejected };
                changes.count(action, result);
                info!(action, by = %call.who, result = result.name(), error = problem.message, "admin change rejected");
                Err(problem)
            }
        }
    }
}

/// The headers of every answer: nothing is kept, framed or guessed.
const HEADERS: [(header::HeaderName, &str); 5] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
];
