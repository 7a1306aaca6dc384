//! What an Envoy sends to its rate limit service for a line of its access log, as far as the line tells.
//!
//! The command line reads a [`Gateway`] from Envoy's configuration. What a line does not tell is never guessed: the
//! descriptor is dropped and [`Untold`].

mod action;
mod matching;

use std::{cell::OnceCell, sync::Arc};

use serde::{Serialize, Serializer};

use self::{
    action::Told,
    matching::{Matched, host},
};
pub use self::{
    action::{Action, Entry},
    matching::{HeaderMatch, PathMatch, Pattern, QueryMatch, RouteMatch},
};
use crate::access_log::{Fields, Found, Operator, Parts};
use text::printable;

/// The routes of a listener, with their limits.
#[derive(Default, Debug)]
pub struct Gateway {
    pub hosts: Vec<Host>,
    /// A route changes paths before they are logged.
    pub rewrites_paths: bool,
    /// A route changes hosts before they are logged.
    pub rewrites_hosts: bool,
}

#[derive(Debug)]
pub struct Host {
    /// In lower case.
    pub domains: Vec<String>,
    pub routes: Vec<Route>,
}

#[derive(Debug)]
pub struct Route {
    pub name: Option<String>,
    /// As the report names it.
    pub shown: Arc<str>,
    pub matches: RouteMatch,
    /// The requests to the service.
    pub calls: Vec<Call>,
    /// Headers that the route changes between the filter and the log.
    pub changed_headers: Vec<String>,
    pub rewrites_path: bool,
    /// Requests choose the cluster. Envoy limits none whose cluster does not exist.
    pub chooses_cluster: bool,
}

#[derive(Debug)]
pub struct Call {
    pub domain: String,
    /// `apply_on_stream_done`: sent when the response has ended.
    pub at_end: bool,
    pub descriptors: Vec<Descriptor>,
}

#[derive(Debug)]
pub struct Descriptor {
    /// With the names that the report has for them.
    pub actions: Vec<(&'static str, Action)>,
    pub hits: HitsAddend,
    pub is_refund: bool,
}

/// `hits_addend` of a descriptor.
#[derive(Debug, Default)]
pub enum HitsAddend {
    #[default]
    One,
    Number(u64),
    /// A number in the log. Envoy sends no descriptor with an invalid one.
    Format(Parts),
}

/// Envoy accepts no larger number from a format.
const MAX_HITS: f64 = 1e9;

#[derive(Serialize, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Untold {
    #[serde(serialize_with = "shown")]
    pub route: Arc<str>,
    /// The action of a dropped descriptor, or `match` if the route of the request is unknown.
    pub action: &'static str,
    pub needs: String,
}

fn shown<S: Serializer>(route: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(route)
}

/// The part of a line that a match or an action needs is not in the log.
#[derive(Clone, Debug)]
pub(crate) struct Needs(pub(crate) String);

pub(crate) enum Chosen<'g> {
    Route(&'g Route),
    /// No route: Envoy answers by itself.
    None,
    Untold(Untold),
}

/// A request that Envoy sends.
pub(crate) struct Request<'g> {
    pub(crate) domain: &'g str,
    /// Sent when the response has ended.
    pub(crate) is_delayed: bool,
    /// Milliseconds after the start of the request.
    pub(crate) delay: u64,
    pub(crate) descriptors: Vec<Sent>,
}

/// A descriptor that Envoy sends.
pub(crate) struct Sent {
    pub(crate) entries: Vec<(String, String)>,
    pub(crate) hits: u64,
    pub(crate) is_refund: bool,
}

pub(crate) struct Line<'l> {
    fields: &'l Fields<'l>,
    gateway: &'l Gateway,
    path: OnceCell<Result<Option<String>, Needs>>,
}

impl Gateway {
    /// A gateway with one request for every line.
    pub fn of_call(call: Call) -> Self {
        let route = Route {
            name: None,
            shown: "".into(),
            matches: RouteMatch::default(),
            calls: vec![call],
            changed_headers: Vec::new(),
            rewrites_path: false,
            chooses_cluster: false,
        };
        let host = Host { domains: vec!["*".to_owned()], routes: vec![route] };
        Self { hosts: vec![host], ..Self::default() }
    }
}

impl<'l> Line<'l> {
    pub(crate) fn new(fields: &'l Fields<'l>, gateway: &'l Gateway) -> Self {
        Self { fields, gateway, path: OnceCell::new() }
    }

    /// The route of the request: of the log's route name, or the first one that matches.
    pub(crate) fn route(&self) -> Chosen<'l> {
        let name = match self.fields.exactly("ROUTE_NAME") {
            Found::Value(name) => Some(Some(name)),
            Found::Absent => Some(None),
            Found::Unlogged => None,
        };
        let has_name =
            |route: &&Route| name.as_ref().is_none_or(|name| route.name.as_deref() == name.as_deref());
        if let Some(Some(_)) = name {
            let mut named = self.gateway.hosts.iter().flat_map(|host| &host.routes).filter(has_name);
            if let (Some(route), None) = (named.next(), named.next()) {
                return Chosen::Route(route);
            }
        }
        let host = match self.host() {
            Ok(Some(host)) => host,
            Ok(None) => return Chosen::None,
            Err(Needs(needs)) => {
                return Chosen::Untold(Untold { route: "a virtual host".into(), action: "match", needs });
            }
        };
        for route in host.routes.iter().filter(has_name) {
            match route.matches.of(self) {
                Matched::Yes => return Chosen::Route(route),
                Matched::No => {}
                Matched::Untold(Needs(needs)) => {
                    return Chosen::Untold(Untold { route: route.shown.clone(), action: "match", needs });
                }
            }
        }
        Chosen::None
    }

    fn host(&self) -> Result<Option<&'l Host>, Needs> {
        if let [only] = &self.gateway.hosts[..]
            && only.domains.iter().any(|domain| domain == "*")
        {
            return Ok(Some(only));
        }
        if self.gateway.rewrites_hosts {
            return Err(Needs("%ROUTE_NAME%, since routes rewrite %REQ(:AUTHORITY)%".to_owned()));
        }
        match self.fields.header(":authority") {
            Found::Value(authority) => Ok(host(&self.gateway.hosts, &authority.to_ascii_lowercase())),
            Found::Absent => Ok(None),
            Found::Unlogged => Err(Needs("%REQ(:AUTHORITY)%".to_owned())),
        }
    }

    /// The path with its query, as the filters of Envoy see it.
    pub(crate) fn path(&self) -> Result<Option<&str>, Needs> {
        let path = self.path.get_or_init(|| self.original_path());
        path.as_ref().map(Option::as_deref).map_err(Needs::clone)
    }

    fn original_path(&self) -> Result<Option<String>, Needs> {
        const ORIGINAL: &str = "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%";
        let names =
            ["REQ(x-envoy-original-path?:path)", "PATH(WQ:ORIG_OR_PATH)", "REQ(x-envoy-original-path)"];
        for name in names {
            match self.fields.exactly(name) {
                Found::Value(path) => return Ok(Some(path.into_owned())),
                Found::Absent if !name.starts_with("REQ(x-envoy-original-path)") => return Ok(None),
                Found::Absent | Found::Unlogged => {}
            }
        }
        let is_original = matches!(self.fields.exactly("REQ(x-envoy-original-path)"), Found::Absent);
        if self.gateway.rewrites_paths && !is_original {
            return Err(Needs(format!("{ORIGINAL}, since routes rewrite %REQ(:PATH)%")));
        }
        match self.fields.header(":path") {
            Found::Value(path) => Ok(Some(path.into_owned())),
            Found::Absent => Ok(None),
            Found::Unlogged => Err(Needs(ORIGINAL.to_owned())),
        }
    }

    /// The value of a request header; `None` if the request has none.
    pub(crate) fn header(&self, name: &str) -> Result<Option<String>, Needs> {
        if name == ":path" {
            return self.path().map(|path| path.map(str::to_owned));
        }
        if name == "host" || name == ":authority" {
            if self.gateway.rewrites_hosts {
                return Err(Needs("the host before a route rewrites it".to_owned()));
            }
            return self.operator(&Operator::of_header(":authority"));
        }
        self.operator(&Operator::of_header(name))
    }

    /// From the start of the request to the end of its response.
    fn milliseconds(&self) -> Result<u64, Needs> {
        let duration = self.operator(&Operator::plain("DURATION"))?;
        duration.and_then(|text| text.parse().ok()).ok_or_else(|| Needs("a number as %DURATION%".to_owned()))
    }

    pub(crate) fn operator(&self, operator: &Operator) -> Result<Option<String>, Needs> {
        match self.fields.find(operator) {
            Found::Value(value) => Ok(Some(value.into_owned())),
            Found::Absent => Ok(None),
            Found::Unlogged => Err(Needs(format!("%{}%", operator.text.to_ascii_uppercase()))),
        }
    }
}

impl Route {
    /// What Envoy sends for a line, and what the line does not tell.
    pub(crate) fn sent(&self, line: &Line<'_>) -> (Vec<Request<'_>>, Vec<Untold>) {
        let (mut requests, mut untold) = (Vec::new(), Vec::new());
        if self.chooses_cluster && line.fields.exactly("UPSTREAM_CLUSTER") == Found::Absent {
            return (requests, untold);
        }
        let mut note =
            |action, Needs(needs)| untold.push(Untold { route: self.shown.clone(), action, needs });
        for call in &self.calls {
            let mut descriptors = Vec::new();
            for descriptor in &call.descriptors {
                match descriptor.sent(line, self, call) {
                    Ok(one) => descriptors.extend(one),
                    Err((action, needs)) => note(action, needs),
                }
            }
            if descriptors.is_empty() {
                continue;
            }
            match if call.at_end { line.milliseconds() } else { Ok(0) } {
                Ok(delay) => {
                    let (domain, is_delayed) = (&call.domain, call.at_end);
                    requests.push(Request { domain, is_delayed, delay, descriptors });
                }
                Err(needs) => {
                    for _ in &descriptors {
                        note("apply_on_stream_done", needs.clone());
                    }
                }
            }
        }
        (requests, untold)
    }
}

impl Descriptor {
    /// `None` if Envoy does not send it.
    fn sent(
        &self,
        line: &Line<'_>,
        route: &Route,
        call: &Call,
    ) -> Result<Option<Sent>, (&'static str, Needs)> {
        let (mut entries, mut untold) = (Vec::new(), None);
        for (name, action) in &self.actions {
            match action.told(line, route, call) {
                Ok(Told::Entry(key, value)) => entries.push((key, value)),
                Ok(Told::Skipped) => {}
                // Then it does not matter what another action needs.
                Ok(Told::Ended) => return Ok(None),
                Err(needs) => untold = untold.or(Some((*name, needs))),
            }
        }
        if let Some(untold) = untold {
            return Err(untold);
        }
        let hits = match &self.hits {
            HitsAddend::One => Some(1),
            HitsAddend::Number(number) => Some(*number),
            HitsAddend::Format(parts) => {
                let text = parts.filled(line).map_err(|needs| ("hits_addend", needs))?;
                text.and_then(|text| hits(&text))
            }
        };
        Ok(hits.map(|hits| Sent { entries, hits, is_refund: self.is_refund }))
    }
}

/// A number of hits as Envoy reads it.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 1,000,000,000")]
fn hits(text: &str) -> Option<u64> {
    let number: f64 = text.trim().parse().ok()?;
    (0.0..=MAX_HITS).contains(&number).then_some(number as u64)
}

impl Untold {
    /// The sentence of the report.
    pub fn sentence(&self) -> String {
        let Self { route, action, needs } = self;
        let route = printable(route);
        if *action == "match" {
            return format!(
                "request dropped: the match of {route} needs {needs}, which the log does not have"
            );
        }
        // Those of the command line have no route.
        let what =
            if route.is_empty() { (*action).to_owned() } else { format!("action {action} of {route}") };
        format!("descriptor dropped: {what} needs {needs}, which the log does not have")
    }
}
