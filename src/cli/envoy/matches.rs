//! Envoy's conditions on paths, headers and query parameters, as a replay checks them.

use regex::Regex;

use super::tree::Value;
use ::replay::envoy::{HeaderMatch, PathMatch, Pattern, QueryMatch, RouteMatch};

/// Conditions of a route that a log never tells.
const UNTOLD: [&str; 5] = ["tls_context", "dynamic_metadata", "filter_state", "cookies", "path_match_policy"];

pub(super) fn route(host: Value<'_>, route: Value<'_>) -> RouteMatch {
    let mut matches = RouteMatch::default();
    let Some(config) = route.get("match") else { return matches };
    let mut untold =
        UNTOLD.iter().find(|field| config.get(field).is_some()).map(|field| format!("`{field}`"));
    let text = |field: &str| config.get(field).and_then(Value::text).map(str::to_owned);
    let regex = config.at(&["safe_regex", "regex"]).and_then(Value::text).map(whole);
    matches.path = match (text("prefix"), text("path"), text("path_separated_prefix"), regex) {
        (Some(prefix), ..) => PathMatch::Prefix(prefix),
        (_, Some(path), ..) => PathMatch::Exact(path),
        (.., Some(prefix), _) => PathMatch::Segments(prefix),
        (.., Some(Ok(regex))) => PathMatch::Regex(regex),
        (.., Some(Err(needs))) => {
            untold = Some(needs);
            PathMatch::Any
        }
        _ if config.get("connect_matcher").is_some() => PathMatch::Connect,
        _ => PathMatch::Any,
    };
    matches.ignores_case = config.get("case_sensitive").is_some_and(|value| !value.flag());
    match config.list("headers").map(header).collect() {
        Ok(headers) => matches.headers = headers,
        Err(needs) => untold = Some(needs),
    }
    match config.list("query_parameters").map(parameter).collect() {
        Ok(parameters) => matches.parameters = parameters,
        Err(needs) => untold = Some(needs),
    }
    matches.is_grpc = config.get("grpc").is_some();
    if let Some(share) = config.get("runtime_fraction").and_then(|fraction| fraction.get("default_value")) {
        let numerator = share.get("numerator").and_then(Value::text).unwrap_or("0");
        let whole = match share.get("denominator").and_then(Value::text).unwrap_or("HUNDRED") {
            "MILLION" | "2" => "1000000",
            "TEN_THOUSAND" | "1" => "10000",
            _ => "100",
        };
        if numerator != whole {
            untold =
                Some("the route's name (%ROUTE_NAME%), since it matches a share of the requests".to_owned());
        }
    }
    if host.get("require_tls").and_then(Value::text).is_some_and(|text| text != "NONE") {
        untold = Some("the scheme that `require_tls` asks for".to_owned());
    }
    matches.untold = untold;
    matches
}

pub(super) fn header(config: Value<'_>) -> Result<HeaderMatch, String> {
    let name = config.get("name").and_then(Value::text).unwrap_or_default().to_ascii_lowercase();
    let flag = |field: &str| config.get(field).is_some_and(Value::flag);
    Ok(HeaderMatch {
        name,
        pattern: pattern(config)?,
        inverted: flag("invert_match"),
        missing_is_empty: flag("treat_missing_header_as_empty"),
    })
}

pub(super) fn parameter(config: Value<'_>) -> Result<QueryMatch, String> {
    let name = config.get("name").and_then(Value::text).unwrap_or_default().to_owned();
    Ok(QueryMatch { name, pattern: pattern(config)? })
}

fn pattern(config: Value<'_>) -> Result<Pattern, String> {
    if let Some(matcher) = config.get("string_match") {
        return string(matcher);
    }
    if let Some(present) = config.get("present_match") {
        return Ok(Pattern::Present(present.flag()));
    }
    if let Some(range) = config.get("range_match") {
        let bound = |field: &str| {
            let text = range.get(field).and_then(Value::text).unwrap_or("0");
            text.parse().map_err(|_| format!("an integer instead of {text:?}"))
        };
        return Ok(Pattern::Range(bound("start")?, bound("end")?));
    }
    let old = [
        ("exact_match", Pattern::Exact as fn(String, bool) -> Pattern),
        ("prefix_match", Pattern::Prefix),
        ("suffix_match", Pattern::Suffix),
        ("contains_match", Pattern::Contains),
    ];
    for (field, of) in old {
        if let Some(text) = config.get(field).and_then(Value::text) {
            return Ok(of(text.to_owned(), false));
        }
    }
    match config.at(&["safe_regex_match", "regex"]).and_then(Value::text) {
        Some(regex) => Ok(Pattern::Regex(whole(regex)?)),
        None => Ok(Pattern::Present(true)),
    }
}

fn string(matcher: Value<'_>) -> Result<Pattern, String> {
    let ignores_case = matcher.get("ignore_case").is_some_and(Value::flag);
    let kinds = [
        ("exact", Pattern::Exact as fn(String, bool) -> Pattern),
        ("prefix", Pattern::Prefix),
        ("suffix", Pattern::Suffix),
        ("contains", Pattern::Contains),
    ];
    for (field, of) in kinds {
        if let Some(text) = matcher.get(field).and_then(Value::text) {
            let text = if ignores_case { text.to_ascii_lowercase() } else { text.to_owned() };
            return Ok(of(text, ignores_case));
        }
    }
    let regex = matcher.at(&["safe_regex", "regex"]).and_then(Value::text);
    regex.map(whole).transpose()?.map(Pattern::Regex).ok_or_else(|| "a known `string_match`".to_owned())
}

/// Matches whole texts, as Envoy does.
fn whole(regex: &str) -> Result<Regex, String> {
    Regex::new(&format!("^(?:{regex})$")).map_err(|_| format!("a regular expression instead of {regex:?}"))
}
