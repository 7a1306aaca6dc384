//! The headers of an answer: the Go service's three, when to come again, and the IETF draft's two.
//!
//! Called by [`conclude`](super::conclude) with what it came to. Where none is asked for, none is made.

use std::{
    borrow::Cow,
    fmt::Write as _,
    sync::{Arc, LazyLock},
};

use super::{
    answer::{Header, Status},
    conclude::Concluded,
    plan::Limited,
};
use crate::limiter::response::ResponseOptions;
use crate::rules::{Limit, quota_policy::QuotaPolicy};

/// Names that are always the same are made once, as those of the settings are.
pub(super) static CONTENT_TYPE: LazyLock<Arc<str>> = LazyLock::new(|| "content-type".into());
static POLICY: LazyLock<Arc<str>> = LazyLock::new(|| "RateLimit-Policy".into());
static STANDING: LazyLock<Arc<str>> = LazyLock::new(|| "RateLimit".into());

/// The names of the three headers that tell of the descriptor closest to its limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeaderNames {
    /// For the limit.
    pub limit: Arc<str>,
    /// For what is left of it.
    pub remaining: Arc<str>,
    /// For the seconds until its window ends.
    pub reset: Arc<str>,
}

/// All headers but that of the body.
pub(super) fn of(concluded: &Concluded<'_, '_, '_>, closest: Option<usize>) -> Vec<Header> {
    let ResponseOptions { headers, retry_after, policy_headers, .. } = &concluded.policy.telling;
    let mut all = Vec::new();
    if let (Some(names), Some(status)) = (headers, closest.and_then(|at| concluded.statuses.get(at))) {
        all.extend(three(names, status));
    }
    if let (Some(name), Some(seconds)) = (retry_after, concluded.retry_after()) {
        all.push(Header { name: name.clone(), value: seconds.to_string() });
    }
    if *policy_headers {
        all.extend(policies(concluded));
    }
    all
}

fn three(names: &HeaderNames, status: &Status) -> Vec<Header> {
    let Some(limit) = &status.current_limit else { return Vec::new() };
    let header = |name: &Arc<str>, value: u64| Header { name: name.clone(), value: value.to_string() };
    vec![
        header(&names.limit, u64::from(limit.requests_per_unit)),
        header(&names.remaining, u64::from(status.limit_remaining)),
        header(&names.reset, limit.seconds_until_reset),
    ]
}

/// `RateLimit-Policy` with every limit that can refuse the request, and `RateLimit` with how those stand
/// that govern.
fn policies(concluded: &Concluded<'_, '_, '_>) -> Vec<Header> {
    let (mut policies, mut standing) = (String::new(), String::new());
    for at in 0..concluded.plan.len() {
        let Some(limited) = concluded.limited(at).filter(|limited| !limited.is_shadow()) else { continue };
        let Some(ruling) = concluded.ruling(at) else { continue };
        for held in &limited.limits {
            let policy = policy_of(concluded, at, limited, held.limit);
            policies.extend([gap(&policies), policy.as_str()]);
            if std::ptr::eq(held.limit, ruling.limit) {
                let seconds = ruling.seconds_until_more();
                // Writing to a String cannot fail.
                let _ = write!(
                    standing,
                    "{}{};r={};t={seconds}",
                    gap(&standing),
                    policy.name(),
                    ruling.verdict.remaining
                );
            }
        }
    }
    if policies.is_empty() {
        return Vec::new();
    }
    vec![Header { name: POLICY.clone(), value: policies }, Header { name: STANDING.clone(), value: standing }]
}

/// What stands before the next item of a list.
fn gap(list: &str) -> &'static str {
    if list.is_empty() { "" } else { ", " }
}

/// The policy that a limit is: ready made with its rule, or of a limit that the request brought.
fn policy_of<'r>(
    concluded: &Concluded<'_, '_, '_>,
    at: usize,
    limited: &Limited<'r>,
    limit: &Limit,
) -> Cow<'r, QuotaPolicy> {
    let ready = limited.rule.and_then(|rule| {
        let limits = rule.limits()?.iter();
        limits.zip(&rule.policies).find(|(own, _)| std::ptr::eq(*own, limit)).map(|(_, policy)| policy)
    });
    let brought = || QuotaPolicy::new(&rule_name(concluded, at, limited), limit);
    ready.map_or_else(|| Cow::Owned(brought()), Cow::Borrowed)
}

/// What a rule is called: by its full key, and where the request brought the limit by the domain and keys.
pub(super) fn rule_name<'r>(
    concluded: &Concluded<'_, '_, '_>,
    at: usize,
    limited: &Limited<'r>,
) -> Cow<'r, str> {
    if let Some(rule) = limited.rule {
        return Cow::Borrowed(&rule.full_key);
    }
    let entries =
        concluded.request.descriptors.get(at).into_iter().flat_map(|descriptor| &descriptor.entries);
    let keys = entries.map(|entry| entry.key);
    Cow::Owned(std::iter::once(concluded.request.domain).chain(keys).collect::<Vec<_>>().join("."))
}
