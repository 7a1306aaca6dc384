//! The answer to a request, made from its conclusion: headers, body and dynamic metadata, as the settings enable
//! them. Nothing is computed for disabled parts.
//!
//! The headers are the Go service's three, `Retry-After`, and `RateLimit-Policy` and `RateLimit` of the IETF draft. Those of
//! several limits are bounded: Envoy and clients limit the headers of a response.

mod metadata;
mod partition_key;

use std::{
    borrow::Cow,
    fmt::Write as _,
    sync::{Arc, LazyLock},
};

use super::{
    answer::{Answer, Code, Header, HeaderNames, PolicyHeaders, ResponseOptions, Status},
    conclude::Conclusion,
    outcome::{LimitOutcome, outcome},
    plan::Limited,
};
use limit::Limit;
use partition_key::PartitionKeys;
use rules::quota_policy::{FieldInteger, QuotaPolicy};
use rules::template::Values;

// Constant names are allocated once, like those of the settings.
static CONTENT_TYPE: LazyLock<Arc<str>> = LazyLock::new(|| "content-type".into());
static POLICY: LazyLock<Arc<str>> = LazyLock::new(|| "RateLimit-Policy".into());
static RATE_LIMIT: LazyLock<Arc<str>> = LazyLock::new(|| "RateLimit".into());

/// The maximum number of descriptors, and of policies, in headers of several limits.
const MAX_SHOWN: usize = 16;

pub(super) fn answer(conclusion: Conclusion<'_, '_>) -> Answer {
    let mut response_headers = headers(&conclusion);
    let mut request_headers = Vec::new();
    if let Some(names) = &conclusion.scope.policy.response.request_headers {
        request_headers.extend(closest(&conclusion, names).into_iter().flatten());
    }
    let (body, content_type) = body(&conclusion).unzip();
    response_headers.extend(content_type);
    let body = body.unwrap_or_default().into_boxed_str();
    let dynamic_metadata = metadata::metadata(&conclusion).map(Box::new);
    Answer {
        code: conclusion.code,
        statuses: conclusion.statuses,
        response_headers,
        request_headers,
        body,
        dynamic_metadata,
        hold: None,
        released: false,
    }
}

/// The over-limit body and its `content-type`: the rule's, or that of `OVER_LIMIT_BODY`, with the values of the governing
/// limit. `None` if the request passes or no body is configured.
fn body(conclusion: &Conclusion<'_, '_>) -> Option<(String, Header)> {
    let index = conclusion.governs?;
    let limited = conclusion.limited(index)?;
    let rule = conclusion.scope.rule_of_limits(limited);
    let own = rule.and_then(|rule| rule.over_limit_body.as_deref());
    let template = own.or(conclusion.scope.policy.response.over_limit_body.as_ref())?;
    if template.is_empty() {
        return None;
    }
    let outcome = conclusion.outcome(index)?;
    let policies = if template.has_policies() { violated_policies(conclusion, index) } else { String::new() };
    let body = template.fill(&Values {
        limit: outcome.limit.requests_per_unit,
        unit: &outcome.limit.span(),
        remaining: outcome.verdict.remaining,
        retry_after: conclusion.retry_after(),
        rule: &rule_name(conclusion, index, limited),
        policies: &policies,
    });
    let content_type = template.kind().content_type().to_owned();
    Some((body, Header { name: CONTENT_TYPE.clone(), value: content_type }))
}

/// The names of the limits that reject the request, first those of the descriptor that governs it. A name of
/// `RateLimit-Policy` is a JSON string too: printable ASCII, with escaped quotes and backslashes.
fn violated_policies(conclusion: &Conclusion<'_, '_>, governs: usize) -> String {
    let statuses = conclusion.statuses.iter().enumerate();
    let over = statuses.filter(|(index, status)| *index != governs && status.code == Code::OverLimit);
    let mut violated: Vec<Cow<'_, QuotaPolicy>> = Vec::new();
    for index in std::iter::once(governs).chain(over.map(|(index, _)| index)) {
        let Some(limited) = conclusion.limited(index) else { continue };
        for check in &limited.limits {
            let outcome = outcome(conclusion.scope, limited, check, &conclusion.planned.batch);
            if outcome.decision.over && violated.len() < MAX_SHOWN {
                let policy = policy_of(conclusion, index, limited, outcome.written);
                if violated.iter().all(|known| known.name() != policy.name()) {
                    violated.push(policy);
                }
            }
        }
    }
    violated.iter().map(|policy| policy.name()).collect::<Vec<_>>().join(", ")
}

/// The three headers of the descriptor closest to its limit; two if more is never available.
fn closest(conclusion: &Conclusion<'_, '_>, names: &HeaderNames) -> Option<impl Iterator<Item = Header>> {
    let status = conclusion.statuses.get(conclusion.closest?)?;
    let limit = status.current_limit.as_ref()?;
    let is_never = status.limit_remaining == 0 && limit.seconds_until_reset == 0;
    let reset = (!is_never).then_some((&names.reset, limit.seconds_until_reset));
    let others = [(&names.limit, limit.requests_per_unit), (&names.remaining, status.limit_remaining)];
    Some(others.into_iter().chain(reset).map(|(name, number)| header(name, number.to_string())))
}

/// Two headers for each of the first statuses with a limit.
fn of_every_descriptor(statuses: &[Status]) -> impl Iterator<Item = Header> {
    let limited = statuses.iter().filter_map(|status| Some((status, status.current_limit.as_ref()?)));
    limited.take(MAX_SHOWN).flat_map(|(status, limit)| {
        let named = |what| format!("ratelimit-{what}-{}s", limit.unit.lowercase());
        [("limit", limit.requests_per_unit), ("remaining", status.limit_remaining)]
            .map(|(what, number)| Header { name: named(what).into(), value: number.to_string() })
    })
}

fn header(name: &Arc<str>, value: String) -> Header {
    Header { name: name.clone(), value }
}

/// All headers except the body's `content-type`.
fn headers(conclusion: &Conclusion<'_, '_>) -> Vec<Header> {
    let ResponseOptions { headers, all_headers, retry_after, policy_headers, .. } =
        &conclusion.scope.policy.response;
    let mut all = Vec::new();
    if *all_headers {
        all.extend(of_every_descriptor(&conclusion.statuses));
    }
    if let Some(names) = headers {
        all.extend(closest(conclusion, names).into_iter().flatten());
    }
    if let Some(name) = retry_after
        && let Some(seconds) = conclusion.retry_after()
    {
        all.push(header(name, seconds.to_string()));
    }
    if *policy_headers != PolicyHeaders::Off
        && let Some([policies, states]) = policies(conclusion)
    {
        all.extend([header(&POLICY, policies), header(&RATE_LIMIT, states)]);
    }
    all
}

/// An item of `RateLimit-Policy` and, if its limit governs a descriptor, of `RateLimit`.
struct ShownPolicy<'a> {
    policy: Cow<'a, QuotaPolicy>,
    limit: &'a Limit,
    outcome: Option<LimitOutcome<'a>>,
    /// The parameter of its partition key; may be empty.
    partition: String,
}

/// `RateLimit-Policy` with the limits that can reject the request, and `RateLimit` with the state of those that govern a
/// descriptor; `None` without limits.
fn policies(conclusion: &Conclusion<'_, '_>) -> Option<[String; 2]> {
    let mut shown = Vec::new();
    // The descriptor that rejects the request is always shown.
    let late = conclusion.governs.filter(|index| *index >= MAX_SHOWN);
    for index in late.into_iter().chain(0..conclusion.planned.plan.len()) {
        add_policies(conclusion, index, &mut shown);
    }
    let mut policies = String::new();
    let mut states = String::new();
    for ShownPolicy { policy, limit, outcome, partition } in &shown {
        policies.push_str(separator(&policies));
        policy.write(limit, conclusion.scope.now, &mut policies);
        policies.push_str(partition);
        if let Some(outcome) = outcome {
            let separator = separator(&states);
            let name = policy.name();
            // Writing to a String cannot fail.
            let _ = write!(states, "{separator}{name};r={}", FieldInteger(outcome.verdict.remaining));
            if let Some(seconds) = outcome.seconds_until_more() {
                let _ = write!(states, ";t={}", FieldInteger(seconds));
            }
            states.push_str(partition);
        }
    }
    (!policies.is_empty()).then_some([policies, states])
}

/// Adds the policies of a descriptor. Of several with one name and partition key, that of the limit that rejects next stays.
fn add_policies<'a>(conclusion: &Conclusion<'a, '_>, index: usize, shown: &mut Vec<ShownPolicy<'a>>) {
    let limited = conclusion.limited(index).filter(|limited| !limited.is_shadow);
    let Some((limited, governing)) = limited.zip(conclusion.outcome(index)) else { return };
    let partitions = PartitionKeys::of_descriptor(conclusion, index, limited);
    for check in &limited.limits {
        let written = conclusion.scope.limit(limited, check);
        let limit = written.at(conclusion.scope.now);
        let mut policy = policy_of(conclusion, index, limited, written);
        if written.schedule.is_some() {
            policy = Cow::Owned(policy.in_force(limit));
        }
        let outcome = std::ptr::eq(written, governing.written).then_some(governing);
        let is_changed = limited.overridden.as_ref().is_some_and(|found| found.changes(limit));
        let partition = if is_changed { &partitions.of_override } else { &partitions.of_rule }.clone();
        let new = ShownPolicy { policy, limit, outcome, partition };
        let has_room = shown.len() < MAX_SHOWN;
        let is_same = |known: &&mut ShownPolicy<'_>| {
            known.policy.name() == new.policy.name() && known.partition == new.partition
        };
        match shown.iter_mut().find(is_same) {
            Some(known) => {
                let replaces = match (&new.outcome, &known.outcome) {
                    (Some(new), Some(known)) => new.governs(known),
                    (new, known) => new.is_some() && known.is_none(),
                };
                if replaces {
                    *known = new;
                }
            }
            None if has_room => shown.push(new),
            None => {}
        }
    }
}

/// The separator before the next item of a list.
fn separator(list: &str) -> &'static str {
    if list.is_empty() { "" } else { ", " }
}

/// The policy of a limit: the one that was compiled with its rule, or a new one for an override.
fn policy_of<'a>(
    conclusion: &Conclusion<'a, '_>,
    index: usize,
    limited: &Limited,
    limit: &Limit,
) -> Cow<'a, QuotaPolicy> {
    let rule = conclusion.scope.rule_of_limits(limited);
    let compiled = rule.and_then(|rule| {
        let limits = rule.limits()?.iter();
        limits.zip(rule.policies()).find(|(own, _)| std::ptr::eq(*own, limit)).map(|(_, policy)| policy)
    });
    let of_override = || QuotaPolicy::new(&rule_name(conclusion, index, limited), limit);
    compiled.map_or_else(|| Cow::Owned(of_override()), Cow::Borrowed)
}

/// The name of a descriptor's rule: its full key, or for an override the beginning of the domain and the entries' keys.
fn rule_name<'a>(conclusion: &Conclusion<'a, '_>, index: usize, limited: &Limited) -> Cow<'a, str> {
    if let Some(rule) = conclusion.scope.rule_of_limits(limited) {
        return Cow::Borrowed(&rule.full_key);
    }
    let keys = conclusion.request.entries(index).iter().map(|entry| entry.key);
    let name = std::iter::once(conclusion.request.domain).chain(keys).collect::<Vec<_>>().join(".");
    Cow::Owned(text::cut_owned(name))
}
