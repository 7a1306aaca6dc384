//! The body of a refusal: the rule's own, or the one that the settings have for all, filled in with what
//! the limit says that governs.

use super::{
    answer::Header,
    conclude::Concluded,
    headers::{self, CONTENT_TYPE},
};
use crate::limiter::template::Values;

/// The body and its type; none where the request passes or nobody asked for one.
pub(super) fn of(concluded: &Concluded<'_, '_, '_>) -> Option<(String, Header)> {
    let at = concluded.governs?;
    let limited = concluded.limited(at)?;
    let own = limited.rule.and_then(|rule| rule.over_limit_body.as_deref());
    let template = own.or(concluded.policy.telling.over_limit_body.as_ref())?;
    if template.is_empty() {
        return None;
    }
    let ruling = concluded.ruling(at)?;
    let body = template.fill(&Values {
        limit: ruling.limit.requests_per_unit,
        unit: &ruling.limit.span(),
        remaining: ruling.verdict.remaining,
        retry_after: ruling.retry_after(),
        rule: &headers::rule_name(concluded, at, limited),
    });
    let content_type = template.kind().content_type().to_owned();
    Some((body, Header { name: CONTENT_TYPE.clone(), value: content_type }))
}
