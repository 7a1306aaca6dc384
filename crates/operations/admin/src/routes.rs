//! The table of routes: every path and method of the admin API, its change, and its handler.

use std::pin::Pin;

use http::Method;

use super::{
    Api, changes, counters, domains, events, holds, overrides, recent,
    reply::{Call, Problem, Reply},
    rules, status, trial,
};

pub(super) type Handler =
    for<'a> fn(&'a Api, &'a Call<'a>) -> Pin<Box<dyn Future<Output = Result<Reply, Problem>> + 'a>>;

pub(super) struct Route {
    pub(super) method: Method,
    /// `{id}` may be its last segment, and matches any text.
    pub(super) path: &'static str,
    /// The call neither makes nor prepares a change.
    pub(super) reads: bool,
    /// The name of the change in the log and the metric; `None` if the call changes nothing.
    pub(super) action: Option<&'static str>,
    pub(super) handler: Handler,
}

/// Every call. `docs/openapi.yaml` describes them; a test compares the two.
pub(super) const ROUTES: &[Route] = &[
    Route::reads("/api/v1/changes", |api, call| Box::pin(changes::get(api, call))),
    Route::reads("/api/v1/events", |api, call| Box::pin(events::follow(api, call))),
    Route::reads("/api/v1/refusals", |api, call| Box::pin(recent::refusals(api, call))),
    Route::reads("/api/v1/rules", |api, call| Box::pin(rules::get(api, call))),
    Route::reads("/api/v1/status", |api, call| Box::pin(status::get(api, call))),
    Route::reads("/api/v1/top", |api, call| Box::pin(recent::top(api, call))),
    Route::reads("/api/v1/replicas", |api, call| Box::pin(status::replicas(api, call))),
    Route::reads("/api/v1/counters", |api, call| Box::pin(counters::get(api, call))),
    Route::changes(Method::POST, "/api/v1/counters/reset", "counter_reset", |api, call| {
        Box::pin(counters::reset(api, call))
    }),
    Route::reads("/api/v1/holds", |api, call| Box::pin(holds::list(api, call))),
    Route::changes(Method::POST, "/api/v1/holds/settle", "hold_settle", |api, call| {
        Box::pin(holds::settle(api, call))
    }),
    Route::changes(Method::POST, "/api/v1/holds/end", "hold_end", |api, call| {
        Box::pin(holds::end(api, call))
    }),
    Route::reads("/api/v1/overrides", |api, call| Box::pin(async { overrides::list(api, call) })),
    Route::changes(Method::POST, "/api/v1/overrides", "override_set", |api, call| {
        Box::pin(overrides::set(api, call))
    }),
    Route::changes(Method::DELETE, "/api/v1/overrides/{id}", "override_remove", |api, call| {
        Box::pin(overrides::remove(api, call))
    }),
    Route::reads("/api/v1/domains", |api, call| Box::pin(async { domains::list(api, call) })),
    Route::changes(Method::POST, "/api/v1/domains", "domain_set", |api, call| {
        Box::pin(domains::set(api, call))
    }),
    Route::changes(Method::DELETE, "/api/v1/domains", "domain_clear", |api, call| {
        Box::pin(domains::clear(api, call))
    }),
    Route::asks("/api/v1/try", |api, call| Box::pin(trial::post(api, call))),
    // An import is one change, made by its commit.
    Route::prepares(Method::POST, "/api/v1/imports", |api, call| {
        Box::pin(async { overrides::begin(api, call) })
    }),
    Route::prepares(Method::POST, "/api/v1/imports/{id}", |api, call| Box::pin(overrides::add(api, call))),
    Route::prepares(Method::DELETE, "/api/v1/imports/{id}", |api, call| {
        Box::pin(overrides::abort(api, call))
    }),
    Route::changes(Method::PUT, "/api/v1/imports/{id}", "override_import", |api, call| {
        Box::pin(overrides::commit(api, call))
    }),
];

/// The parts of an event of `/api/v1/events`: each has a name, and is the reply to a call.
pub(super) const EVENT_PARTS: &[(&str, &str)] = &[
    ("refusals", "/api/v1/refusals?n=50"),
    ("rules", "/api/v1/rules?n=100&by=hits"),
    ("status", "/api/v1/status"),
    ("top", "/api/v1/top?n=20&by=refused"),
    ("top_allowed", "/api/v1/top?n=20&by=allowed"),
    ("unmatched", "/api/v1/top?n=20&unmatched=true"),
    ("overrides", "/api/v1/overrides?n=100"),
    ("domains", "/api/v1/domains"),
    ("replicas", "/api/v1/replicas"),
    ("changes", "/api/v1/changes?n=20"),
];

impl Route {
    const fn reads(path: &'static str, handler: Handler) -> Self {
        Self { method: Method::GET, path, reads: true, action: None, handler }
    }

    /// A call with a body that changes nothing.
    const fn asks(path: &'static str, handler: Handler) -> Self {
        Self { method: Method::POST, path, reads: true, action: None, handler }
    }

    /// A call with another method than `GET` that changes nothing yet.
    const fn prepares(method: Method, path: &'static str, handler: Handler) -> Self {
        Self { method, path, reads: false, action: None, handler }
    }

    const fn changes(method: Method, path: &'static str, action: &'static str, handler: Handler) -> Self {
        Self { method, path, reads: false, action: Some(action), handler }
    }

    /// The value of `{id}` if the path matches, empty for a route without one.
    pub(super) fn matches<'p>(&self, path: &'p str) -> Option<&'p str> {
        match self.path.strip_suffix("{id}") {
            Some(before) => path.strip_prefix(before).filter(|id| !id.is_empty() && !id.contains('/')),
            None => (path == self.path).then_some(""),
        }
    }
}

pub(super) enum Found<'p> {
    /// A route, and the value of `{id}`.
    Route(&'static Route, &'p str),
    /// The path has only these methods.
    OtherMethods(String),
    Nothing,
}

/// Looks up a path and a method. `HEAD` is like `GET`; the server sends no body then.
pub(super) fn find<'p>(method: &Method, path: &'p str) -> Found<'p> {
    let wanted = if method == Method::HEAD { &Method::GET } else { method };
    let mut others = Vec::new();
    for route in ROUTES {
        let Some(parameter) = route.matches(path) else { continue };
        if route.method == *wanted {
            return Found::Route(route, parameter);
        }
        others.push(route.method.as_str());
    }
    if others.is_empty() { Found::Nothing } else { Found::OtherMethods(others.join(", ")) }
}
