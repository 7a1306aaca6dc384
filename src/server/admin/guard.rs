//! Who may call the admin API, and by which name.
//!
//! A browser on the operator's machine reaches a loopback address too, and runs the scripts of any page. Against them
//! stand the `Host` header, which names the page's own site after a DNS rebinding, and `Origin` and `Sec-Fetch-Site`,
//! which name the page that sends a request.

use std::{fmt, net::IpAddr};

use http::{HeaderMap, HeaderName, StatusCode, header, uri::Authority};

use super::{reply::Problem, tokens::Tokens};
use crate::server::http::Peer;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The names that the admin API may be called by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Hosts {
    /// Any: no browser reaches a unix socket.
    Any,
    /// `localhost`, any address, and this host of `ADMIN_ADDR`.
    Local(String),
}

/// Who calls: the name of a token or the peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Who {
    token: Option<String>,
    peer: Peer,
}

impl Who {
    /// The service itself.
    pub(super) const SELF: Self = Self { token: None, peer: Peer::Unix(None) };

    /// The name of the token, or the address or user of the peer: the same for all calls of one.
    pub(super) fn name(&self) -> String {
        match (&self.token, self.peer) {
            (Some(name), _) => name.clone(),
            (None, Peer::Address(address)) => address.ip().to_string(),
            (None, peer @ Peer::Unix(_)) => peer.to_string(),
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.token {
            Some(name) => write!(f, "{name} ({})", self.peer),
            None => self.peer.fmt(f),
        }
    }
}

/// Refuses a request that was sent to the name of another site.
///
/// Addresses are allowed: a site whose name is made to point here still has its name in `Host`. So is every name where
/// tokens are required, because the page of another site has none.
pub(super) fn check_host(hosts: &Hosts, headers: &HeaderMap, has_tokens: bool) -> Result<(), Problem> {
    let Hosts::Local(own) = hosts else { return Ok(()) };
    let host = host(headers).unwrap_or_default();
    let name = host.parse::<Authority>().map(|authority| authority.host().to_owned()).unwrap_or_default();
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
    let is_own = |name: &str| name.eq_ignore_ascii_case("localhost") || name.eq_ignore_ascii_case(own);
    if (has_tokens && !name.is_empty()) || is_own(bare) || bare.parse::<IpAddr>().is_ok() {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::FORBIDDEN,
        format!("Host {host:?} is not this service: use its address, localhost, or the name in ADMIN_ADDR"),
    ))
}

/// Refuses what a page of another site makes a browser send.
pub(super) fn check_origin(headers: &HeaderMap) -> Result<(), Problem> {
    let refused = |name: &HeaderName, value: &str| {
        let message = format!("sent by a page of another site ({name}: {value})");
        Err(Problem::new(StatusCode::FORBIDDEN, message))
    };
    for value in headers.get_all(SEC_FETCH_SITE) {
        if value != "same-origin" && value != "none" {
            return refused(&SEC_FETCH_SITE, value.to_str().unwrap_or_default());
        }
    }
    for value in headers.get_all(header::ORIGIN) {
        let origin = value.to_str().unwrap_or_default();
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        if authority.is_none() || authority != host(headers) {
            return refused(&header::ORIGIN, origin);
        }
    }
    Ok(())
}

/// Who calls, if they may.
pub(super) fn authenticate(tokens: Option<&Tokens>, headers: &HeaderMap, peer: Peer) -> Result<Who, Problem> {
    let Some(tokens) = tokens else { return Ok(Who { token: None, peer }) };
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let scheme_and_token = given.and_then(|given| given.split_once(' '));
    let token = scheme_and_token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let Some((_, token)) = token else {
        return Err(Problem::unauthorized("a token is required: send Authorization: Bearer TOKEN"));
    };
    match tokens.name_of(token.trim()) {
        Some(name) => Ok(Who { token: Some(name), peer }),
        None => Err(Problem::unauthorized("unknown token: use one of ADMIN_TOKEN_FILE")),
    }
}

/// The value of the only `Host` header.
fn host(headers: &HeaderMap) -> Option<&str> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next()?.to_str().ok()?;
    hosts.next().is_none().then_some(host)
}
