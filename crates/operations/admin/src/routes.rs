//! The table of routes: every path and method of the admin API, its change, and its handler.

use std::pin::Pin;

use http::Method;
use schemars::{Schema, SchemaGenerator};

use super::{
    Api, changes, counters, domains, events, holds, overrides, recent,
    reply::{Call, Problem, Reply},
    rules, status, trial, why,
};
use ::overrides::Action;
use ::recent::MAX_REFUSALS;
use fleet::changes::MAX_KEPT;

pub(super) type Handler =
    for<'a> fn(&'a Api, &'a Call<'a>) -> Pin<Box<dyn Future<Output = Result<Reply, Problem>> + 'a>>;

/// The schema of a type.
pub type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

pub struct Route {
    /// The name of the operation.
    pub name: &'static str,
    pub method: Method,
    /// `{id}` may be its last segment, and matches any text.
    pub path: &'static str,
    pub summary: &'static str,
    pub parameters: &'static [Parameter],
    /// The JSON of its body, if it has one, and the forms of its reply.
    pub body: &'static [SchemaOf],
    pub replies: &'static [SchemaOf],
    /// Statuses of errors that not every call may have.
    pub fails: &'static [u16],
    /// The call neither makes nor prepares a change.
    pub(super) reads: bool,
    /// The name of the change in the log and the metric; `None` if the call changes nothing.
    pub(super) action: Option<&'static str>,
    pub(super) handler: Handler,
}

/// A query parameter.
pub struct Parameter {
    pub name: &'static str,
    pub about: &'static str,
    pub takes: Takes,
}

/// The values of a parameter.
pub enum Takes {
    Text,
    /// A text that every call has, in a form such as this.
    Needed(&'static str),
    Number {
        default: Option<usize>,
        least: usize,
        most: usize,
    },
    /// The first one is the default.
    Words(&'static [&'static str]),
    /// One of these, or none.
    OneOf(&'static [&'static str]),
}

macro_rules! routes {
    ($($name:ident: $method:ident $path:literal, $reads:ident $($action:literal)?, $handler:path, $summary:literal
        $(, takes $parameters:expr)? $(, body $body:ty)? $(, replies $($reply:ty)|+)? $(, fails $fails:expr)?;)*) => {
        /// Every call. `docs/reference/openapi.yaml` is made from them; a test compares the replies.
        pub const ROUTES: &[Route] = &[$(Route {
            name: stringify!($name),
            method: Method::$method,
            path: $path,
            summary: $summary,
            parameters: join(&[$(&$parameters)?]),
            body: &[$(SchemaGenerator::subschema_for::<$body>)?],
            replies: &[$($(SchemaGenerator::subschema_for::<$reply>),+)?],
            fails: join(&[$(&$fails)?]),
            reads: $reads,
            action: first(&[$($action)?]),
            handler: |api, call| Box::pin($handler(api, call)),
        }),*];
    };
}

const READS: bool = true;
/// It makes a change.
const CHANGES: bool = false;
/// Another method than `GET` that changes nothing yet.
const PREPARES: bool = false;

routes! {
    listChanges: GET "/api/v1/changes", READS, changes::get,
        "What changed, when, on which replica, by whom and why, newest first.",
        takes [number("n", 20, 1, MAX_KEPT, "Maximum number of changes.")],
        replies api::Changes;
    followEvents: GET "/api/v1/events", READS, events::follow,
        "The data of the page, once a second, as server-sent events. The first is `history`, a list of points of the last \
         five minutes: of all replicas one for each ten seconds, without response times, or of a single one for each second. \
         Then `tick` comes once a second: an object whose members are the replies of other calls (`status`, `rules`, `top`, \
         `top_allowed`, `unmatched`, `refusals`, `overrides`, `domains`, `replicas`, `changes`). A stream ends after \
         HTTP_TIMEOUT, at least 2 and at most 60 seconds; then ask again. At most 32 clients receive events.",
        fails [503];
    listRefusals: GET "/api/v1/refusals", READS, recent::refusals,
        "The refused keys with their reasons, the one refused last first. With `shadowed=true`, what shadow mode allowed \
         although it was over the limit. With `after`, refusals of this replica one by one.",
        takes [
            number("n", 100, 1, MAX_REFUSALS, "Maximum number of keys, or of refusals."),
            text("domain", "Only refusals of this domain."),
            text("descriptor", "Only refusals of descriptors with these entries, `key=value,key=value`."),
            words("shadowed", FALSE_OR_TRUE, "Refusals that shadow mode prevented, instead of refusals."),
            length("after", "Refusals of this replica with a larger id, one by one, instead of keys."),
            REPLICA,
        ],
        replies api::RefusedKeys | api::Refusals, fails [404, 503];
    listRules: GET "/api/v1/rules", READS, rules::get,
        "Every rule with its file and line, its limits, and its hits per second, of all replicas or of one.",
        takes [
            number("n", 1000, 1, 100_000, "Maximum number of rules."),
            text("domain", "Only rules of this domain."),
            text("rule", "Only the rule with this name, which contains its domain."),
            words("by", &["name", "hits"], "The order of the rules, by name or by hits per second."),
            REPLICA,
        ],
        replies api::Rules, fails [404, 503];
    listRulesFiles: GET "/api/v1/rules/files", READS, rules::files,
        "The text of the rules files in force on this replica, which may differ from those in its directory.",
        replies api::RulesFiles, fails [409];
    getStatus: GET "/api/v1/status", READS, status::get,
        "Version, rules, store, rates and memory.",
        takes [REPLICA], replies api::Status, fails [404, 503];
    listTopKeys: GET "/api/v1/top", READS, recent::top,
        "The keys with the most refused, shadowed or allowed hits of the last two to four minutes.",
        takes [
            number("n", 20, 1, 1000, "Maximum number of keys."),
            text("domain", "Only keys of this domain."),
            text("rule", "Only keys of the rule with this full key."),
            text("descriptor", "Only the key with exactly these entries, `key=value,…`, if it is counted."),
            words("by", &["refused", "shadowed", "allowed"], "The order; by refused hits, those with shadowed hits alone are last."),
            words("unmatched", FALSE_OR_TRUE, "Descriptors that meet no rule, and those of domains without rules, instead of keys."),
            REPLICA,
        ],
        replies api::Top | api::Unmatched, fails [404, 503];
    findRequests: GET "/api/v1/why", READS, why::get,
        "Every recorded request of this replica with a value, such as a user or an address, with its descriptors, and which of \
         them any replica has refused. Requests are recorded with RECENT_REQUESTS_MAX_BYTES above 0.",
        takes [
            Parameter { name: "value", about: "The value of an entry.", takes: Takes::Needed("VALUE") },
            REPLICA,
        ],
        replies api::Why, fails [404, 409, 503];
    listReplicas: GET "/api/v1/replicas", READS, status::get_replicas,
        "The replicas that share the Redis, with the hash of their rules.",
        replies api::Replicas;
    getCounters: GET "/api/v1/counters", READS, counters::get,
        "Used and remaining hits of a descriptor's limits. Counts nothing.",
        takes [DOMAIN, DESCRIPTOR], replies api::Counters, fails [503];
    resetCounters: POST "/api/v1/counters/reset", CHANGES "counter_reset", counters::reset,
        "Resets the counters of a descriptor in all replicas that share the store. Over-limit caches and leases of other \
         replicas follow within a second.",
        body api::ResetCounters, replies api::CountersReset, fails [404, 503];
    listHolds: GET "/api/v1/holds", READS, holds::list,
        "The open holds of a descriptor's limits, those that expire first.",
        takes [DOMAIN, DESCRIPTOR, number("n", 100, 1, 1000, "The maximum of each limit.")],
        replies api::Holds, fails [503];
    settleHolds: POST "/api/v1/holds/settle", CHANGES "hold_settle", holds::settle,
        "Settles the holds of a request at its cost.",
        body api::CloseHolds, replies api::HoldsClosed, fails [404, 503];
    endHolds: POST "/api/v1/holds/end", CHANGES "hold_end", holds::end,
        "Ends the holds of a request; they charge what `unknown` says.",
        body api::CloseHolds, replies api::HoldsClosed, fails [404, 503];
    listOverrides: GET "/api/v1/overrides", READS, overrides::list,
        "The overrides, in no particular order.",
        takes [
            number("n", 1000, 1, 10_000, "Maximum number of overrides. A page of more than 4 MB has fewer."),
            length("offset", "Number of overrides to skip."),
            text("domain", "Only overrides of this domain, or of all domains."),
            text("descriptor", "Only the override for this descriptor, `key=value`, or `key` without a value."),
            text("request", "Only overrides that may apply to a request with this descriptor, `key=value`; rules decide on patterns."),
            Parameter { name: "action", about: "Only overrides with this action.", takes: Takes::OneOf(&Action::NAMES) },
        ],
        replies api::Overrides;
    setOverride: POST "/api/v1/overrides", CHANGES "override_set", overrides::set,
        "Sets an override, which replaces the one for the same descriptor or entry.",
        body api::SetOverride, replies api::Override, fails [409, 503];
    previewOverride: POST "/api/v1/override-preview", READS, overrides::preview,
        "What an override would change, as the reply to setting it. Nothing changes; it is accepted with `ADMIN_READ_ONLY`, too.",
        body api::SetOverride, replies api::Override, fails [409, 503];
    removeOverride: DELETE "/api/v1/overrides/{id}", CHANGES "override_remove", overrides::remove,
        "Removes an override.",
        takes [REASON], replies api::OverrideRemoved, fails [404, 503];
    listSwitches: GET "/api/v1/domains", READS, domains::get,
        "The switches of domains that are in force on this replica, by domain.",
        replies api::Switches;
    switchDomain: POST "/api/v1/domains", CHANGES "domain_set", domains::set,
        "Switches a domain, in place of its other switch of the same kind. Blocks stay in force.",
        body api::SwitchDomain, replies api::Override, fails [409, 503];
    clearDomain: DELETE "/api/v1/domains", CHANGES "domain_clear", domains::clear,
        "Removes the switches of a domain.",
        takes [DOMAIN, REASON, words("this_replica", FALSE_OR_TRUE, "Remove the switches of this replica alone.")],
        replies api::SwitchesCleared, fails [404, 503];
    tryRules: POST "/api/v1/try", READS, trial::post,
        "What rules would have made of the last recorded requests of their domains. Nothing changes; it is accepted with \
         `ADMIN_READ_ONLY`, too. Counters begin at 0, and overrides are those in force. One trial runs at a time.",
        body api::TryRules, replies api::Trial, fails [409, 429, 503];
    // An import is one change, made by its commit.
    beginImport: POST "/api/v1/imports", PREPARES, overrides::begin,
        "Begins an import of overrides. Nothing changes until it is committed.",
        replies api::ImportBegun, fails [409];
    addToImport: POST "/api/v1/imports/{id}", PREPARES, overrides::add,
        "Adds overrides to an import: one line of JSON each, as in `POST /api/v1/overrides`. A line with the `id` that an \
         export wrote needs no `force`.",
        takes [IMPORT_LENGTH], replies api::ImportLength, fails [404, 409, 503];
    abortImport: DELETE "/api/v1/imports/{id}", PREPARES, overrides::abort,
        "Discards an import.",
        replies api::ImportAborted, fails [404, 503];
    commitImport: PUT "/api/v1/imports/{id}", CHANGES "override_import", overrides::commit,
        "Commits an import. All of its overrides take effect at once.",
        takes [REASON, IMPORT_LENGTH], replies api::Imported, fails [404, 409, 503];
}

/// The only item of a list, which may be empty.
const fn first<T: Copy>(of: &[T]) -> Option<T> {
    if let [one, ..] = of { Some(*one) } else { None }
}

const fn join<T>(of: &[&'static [T]]) -> &'static [T] {
    if let [one, ..] = of { one } else { &[] }
}

const FALSE_OR_TRUE: &[&str] = &["false", "true"];

const DOMAIN: Parameter = Parameter { name: "domain", about: "The domain.", takes: Takes::Needed("DOMAIN") };

const DESCRIPTOR: Parameter = Parameter {
    name: "descriptor",
    about: "The descriptor, `key=value,key=value`; every key has a value.",
    takes: Takes::Needed("KEY=VALUE,…"),
};

const REASON: Parameter = text("reason", "Shown in the log.");

const REPLICA: Parameter =
    text("replica", "The name of a replica, or `this`; by default all that share the Redis.");

const IMPORT_LENGTH: Parameter = length(
    "overrides",
    "Number of overrides that the import has, by the last reply. If Redis has lost some, the import is aborted with 409.",
);

const fn text(name: &'static str, about: &'static str) -> Parameter {
    Parameter { name, about, takes: Takes::Text }
}

const fn words(name: &'static str, words: &'static [&'static str], about: &'static str) -> Parameter {
    Parameter { name, about, takes: Takes::Words(words) }
}

const fn number(
    name: &'static str,
    default: usize,
    least: usize,
    most: usize,
    about: &'static str,
) -> Parameter {
    Parameter { name, about, takes: Takes::Number { default: Some(default), least, most } }
}

/// A number without a default.
const fn length(name: &'static str, about: &'static str) -> Parameter {
    Parameter { name, about, takes: Takes::Number { default: None, least: 0, most: usize::MAX } }
}

impl Takes {
    /// What is expected, if this is something else.
    pub(super) fn check(&self, value: &str) -> Result<(), String> {
        match self {
            Self::Number { least, most, .. }
                if !value.parse().is_ok_and(|number| (*least..=*most).contains(&number)) =>
            {
                Err(format!("a number from {least} to {most}"))
            }
            Self::Words(words) if !words.contains(&value) => Err(words.join(" or ")),
            Self::OneOf(words) if !words.contains(&value) => Err(words.join(", ")),
            _ => Ok(()),
        }
    }
}

impl Route {
    /// The value of `{id}` if the path matches, empty for a route without one.
    pub(super) fn matches<'p>(&self, path: &'p str) -> Option<&'p str> {
        match self.path.strip_suffix("{id}") {
            Some(before) => path.strip_prefix(before).filter(|id| !id.is_empty() && !id.contains('/')),
            None => (path == self.path).then_some(""),
        }
    }
}

pub(super) enum Found {
    Route(&'static Route),
    /// The path has only these methods.
    OtherMethods(String),
    Nothing,
}

/// Looks up a path and a method. `HEAD` is like `GET`; the server sends no body then.
pub(super) fn find(method: &Method, path: &str) -> Found {
    let wanted = if method == Method::HEAD { &Method::GET } else { method };
    let mut others = Vec::new();
    for route in ROUTES {
        if route.matches(path).is_none() {
            continue;
        }
        if route.method == *wanted {
            return Found::Route(route);
        }
        others.push(route.method.as_str());
    }
    if others.is_empty() { Found::Nothing } else { Found::OtherMethods(others.join(", ")) }
}
