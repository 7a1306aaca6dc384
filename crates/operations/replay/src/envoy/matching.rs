//! How Envoy matches hosts, paths, headers and query parameters.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use regex::Regex;

use super::{Host, Line, Needs};

#[derive(Default, Debug)]
pub struct RouteMatch {
    pub path: PathMatch,
    pub ignores_case: bool,
    pub headers: Vec<HeaderMatch>,
    pub parameters: Vec<QueryMatch>,
    pub is_grpc: bool,
    /// A condition that a log cannot tell, such as a share of requests.
    pub untold: Option<String>,
}

#[derive(Default, Debug)]
pub enum PathMatch {
    #[default]
    Any,
    Prefix(String),
    Exact(String),
    /// A prefix that ends where a segment ends.
    Segments(String),
    Regex(Regex),
    Connect,
}

#[derive(Debug)]
pub struct HeaderMatch {
    /// In lower case.
    pub name: String,
    pub pattern: Pattern,
    pub inverted: bool,
    pub missing_is_empty: bool,
}

#[derive(Debug)]
pub struct QueryMatch {
    pub name: String,
    pub pattern: Pattern,
}

#[derive(Debug)]
pub enum Pattern {
    /// Or absent, with `false`.
    Present(bool),
    /// In lower case, if case does not matter.
    Exact(String, bool),
    Prefix(String, bool),
    Suffix(String, bool),
    Contains(String, bool),
    Regex(Regex),
    /// An integer from the first one on and below the second.
    Range(i64, i64),
}

pub(super) enum Matched {
    Yes,
    No,
    Untold(Needs),
}

impl RouteMatch {
    pub(super) fn of(&self, line: &Line<'_>) -> Matched {
        match self.is_met(line) {
            Ok(true) => {
                self.untold.as_ref().map_or(Matched::Yes, |needs| Matched::Untold(Needs(needs.clone())))
            }
            Ok(false) => Matched::No,
            Err(needs) => Matched::Untold(needs),
        }
    }

    fn is_met(&self, line: &Line<'_>) -> Result<bool, Needs> {
        if matches!(self.path, PathMatch::Any) && self.headers.is_empty() {
            return Ok(true);
        }
        let Some(path) = line.path()? else { return Ok(false) };
        let is_connect = || Ok(line.header(":method")?.as_deref() == Some("CONNECT"));
        let without_query = path.split(['?', '#']).next().unwrap_or_default();
        let is_path = match &self.path {
            PathMatch::Any => true,
            PathMatch::Regex(regex) => regex.is_match(without_query),
            PathMatch::Connect => is_connect()?,
            PathMatch::Prefix(prefix) => self.starts(without_query, prefix).is_some(),
            PathMatch::Exact(exact) => self.starts(without_query, exact) == Some(""),
            PathMatch::Segments(prefix) => self
                .starts(without_query, prefix)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
        };
        if !is_path {
            return Ok(false);
        }
        if self.is_grpc {
            let kind = line.header("content-type")?.unwrap_or_default();
            let is_grpc = kind.strip_prefix("application/grpc");
            if !is_grpc.is_some_and(|rest| rest.is_empty() || rest.starts_with('+')) {
                return Ok(false);
            }
        }
        // Envoy decodes no parameters here.
        Ok(all_parameters(&self.parameters, path, false)
            && all_headers(&self.headers, |name| line.header(name))?)
    }

    /// The rest behind a prefix.
    fn starts<'p>(&self, path: &'p str, prefix: &str) -> Option<&'p str> {
        let (start, rest) = path.split_at_checked(prefix.len())?;
        let is_it = if self.ignores_case { start.eq_ignore_ascii_case(prefix) } else { start == prefix };
        is_it.then_some(rest)
    }
}

pub(super) fn all_headers(
    headers: &[HeaderMatch],
    value: impl Fn(&str) -> Result<Option<String>, Needs>,
) -> Result<bool, Needs> {
    let mut untold = None;
    for header in headers {
        match value(&header.name) {
            Ok(value) if !header.is_met(value.as_deref()) => return Ok(false),
            Ok(_) => {}
            // Another header may decide.
            Err(needs) => untold = Some(needs),
        }
    }
    untold.map_or(Ok(true), Err)
}

impl HeaderMatch {
    fn is_met(&self, value: Option<&str>) -> bool {
        let value = value.or_else(|| self.missing_is_empty.then_some(""));
        match (&self.pattern, value) {
            (Pattern::Present(wanted), value) => (value.is_some() == *wanted) != self.inverted,
            // A missing header has no value that could differ.
            (_, None) => false,
            (pattern, Some(value)) => pattern.is_met(value) != self.inverted,
        }
    }
}

/// True if each parameter matches by its first value.
pub(super) fn all_parameters(parameters: &[QueryMatch], path: &str, decodes: bool) -> bool {
    parameters.iter().all(|one| match (&one.pattern, parameter(path, &one.name, decodes)) {
        (Pattern::Present(wanted), value) => value.is_some() == *wanted,
        (pattern, Some(value)) => pattern.is_met(&value),
        (_, None) => false,
    })
}

/// The first value of a parameter of the path's query.
pub(super) fn parameter<'p>(path: &'p str, name: &str, decodes: bool) -> Option<Cow<'p, str>> {
    let decoded = |text: &'p str| {
        if decodes { percent_decode_str(text).decode_utf8_lossy() } else { Cow::Borrowed(text) }
    };
    let query = path.split('#').next()?.split_once('?')?.1;
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs
        .map(|(key, value)| (decoded(key), value))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| decoded(value))
}

impl Pattern {
    fn is_met(&self, value: &str) -> bool {
        let cased = |ignores: &bool| {
            if *ignores { Cow::Owned(value.to_ascii_lowercase()) } else { Cow::Borrowed(value) }
        };
        match self {
            Self::Present(wanted) => *wanted,
            Self::Exact(text, ignores) => cased(ignores) == *text,
            Self::Prefix(text, ignores) => cased(ignores).starts_with(text),
            Self::Suffix(text, ignores) => cased(ignores).ends_with(text),
            Self::Contains(text, ignores) => cased(ignores).contains(text),
            Self::Regex(regex) => regex.is_match(value),
            Self::Range(start, end) => {
                value.parse().is_ok_and(|number: i64| (*start..*end).contains(&number))
            }
        }
    }
}

/// The virtual host of an authority in lower case: by the whole name, the longest suffix, the longest prefix, or `*`.
pub(super) fn host<'h>(hosts: &'h [Host], authority: &str) -> Option<&'h Host> {
    let rank = |domain: &str| match (domain.strip_prefix('*'), domain.strip_suffix('*')) {
        _ if domain == "*" => Some((0, 0)),
        (Some(suffix), _) => {
            (authority.len() > suffix.len() && authority.ends_with(suffix)).then_some((2, suffix.len()))
        }
        (_, Some(prefix)) => {
            (authority.len() > prefix.len() && authority.starts_with(prefix)).then_some((1, prefix.len()))
        }
        _ => (domain == authority).then_some((3, 0)),
    };
    let ranked = hosts.iter().flat_map(|host| host.domains.iter().map(move |domain| (domain, host)));
    let ranked = ranked.filter_map(|(domain, host)| Some((rank(domain)?, host)));
    ranked.max_by_key(|(rank, _)| *rank).map(|(_, host)| host)
}
