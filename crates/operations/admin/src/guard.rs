//! Checks the caller of the admin API, and the host name of the request.
//!
//! A browser on the operator's machine also reaches a loopback address, and runs the scripts of any page. After DNS
//! rebinding, the `Host` header has the name of the page's site; without it, `Origin` and `Sec-Fetch-Site` identify the
//! page that sends a request.

use std::net::IpAddr;

use http::{HeaderMap, StatusCode, header, uri::Authority};

use tracing::warn;

use super::{Who, reply::Problem, tokens::Tokens};
use faults::log_throttle::LogThrottle;
use metrics::{ServiceStats, Unauthorized};
use server::{http::cross_site_header, listen::Peer};

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Hosts {
    /// Any name: no browser reaches a unix socket.
    Any,
    /// `localhost`, any IP address, and this host of `ADMIN_ADDR`.
    Local(String),
}

/// Rejects a request to the name of another site.
///
/// IP addresses are allowed: after DNS rebinding, `Host` still has the name of the other site. All names are allowed if
/// tokens are required, because a page of another site has none.
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

/// Rejects cross-site requests (CSRF).
pub(super) fn check_origin(headers: &HeaderMap) -> Result<(), Problem> {
    let Some((name, value)) = cross_site_header(headers, host(headers)) else { return Ok(()) };
    let value = value.to_str().unwrap_or_default();
    let message = format!("sent by a page of another site ({name}: {value})");
    Err(Problem::new(StatusCode::FORBIDDEN, message))
}

/// The header in which commands say whose they are.
const USER: &str = "tollgate-user";

/// Someone who guesses leaves a line in ten seconds.
static GUESSES: LogThrottle = LogThrottle::new(10);

/// The caller, who must have one of the tokens if there are any.
pub(super) fn authenticate(
    tokens: Option<&Tokens>,
    headers: &HeaderMap,
    peer: Peer,
    stats: &ServiceStats,
) -> Result<Who, Problem> {
    let said = headers.get(USER).and_then(|value| value.to_str().ok()).filter(|name| !name.is_empty());
    let said = said.map(|name| text::printable(text::cut(name)).into_owned());
    let Some(tokens) = tokens else { return Ok(Who { token: None, peer, said }) };
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let scheme_and_token = given.and_then(|given| given.split_once(' '));
    let token = scheme_and_token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let unauthorized = |reason, message: &str| {
        stats.admin_unauthorized(reason).increment();
        Problem::new(StatusCode::UNAUTHORIZED, message)
    };
    let required = "a token is required: send Authorization: Bearer TOKEN";
    let (_, token) = token.ok_or_else(|| unauthorized(Unauthorized::Missing, required))?;
    let Some(name) = tokens.name_of(token.trim()) else {
        if let Some(suppressed) = GUESSES.admit_now() {
            let suppressed = (suppressed > 0).then_some(suppressed);
            warn!(%peer, suppressed, "the admin API was called with an unknown token");
        }
        return Err(unauthorized(Unauthorized::Unknown, "unknown token: use one of ADMIN_TOKEN_FILE"));
    };
    Ok(Who { token: Some(name), peer, said })
}

/// The value of the only `Host` header.
fn host(headers: &HeaderMap) -> Option<&str> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next()?.to_str().ok()?;
    hosts.next().is_none().then_some(host)
}
