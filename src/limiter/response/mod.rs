//! The answer to a request, made from its conclusion: headers, body and dynamic metadata, as the settings enable
//! them. Nothing is computed for what is disabled.

mod headers;
mod metadata;

use super::{
    answer::{Answer, Header},
    conclude::Conclusion,
    template::Values,
};

/// The answer to a concluded request.
pub(super) fn answer(conclusion: Conclusion<'_, '_, '_>) -> Answer {
    let mut response_headers = headers::headers(&conclusion);
    let body = body(&conclusion).map_or_else(String::new, |(body, content_type)| {
        response_headers.push(content_type);
        body
    });
    let dynamic_metadata = metadata::metadata(&conclusion);
    Answer { code: conclusion.code, statuses: conclusion.statuses, response_headers, body, dynamic_metadata }
}

/// The over-limit body and its `content-type`: the rule's own, or the one of `OVER_LIMIT_BODY`, filled in with the
/// values of the governing limit. `None` if the request passes or no body is configured.
fn body(conclusion: &Conclusion<'_, '_, '_>) -> Option<(String, Header)> {
    let index = conclusion.governs?;
    let limited = conclusion.limited(index)?;
    let own = limited.rule.and_then(|rule| rule.over_limit_body.as_deref());
    let template = own.or(conclusion.policy.response.over_limit_body.as_ref())?;
    if template.is_empty() {
        return None;
    }
    let outcome = conclusion.outcome(index)?;
    let body = template.fill(&Values {
        limit: outcome.limit.requests_per_unit,
        unit: &outcome.limit.span(),
        remaining: outcome.verdict.remaining,
        retry_after: outcome.retry_after(),
        rule: &headers::rule_name(conclusion, index, limited),
    });
    let content_type = template.kind().content_type().to_owned();
    Some((body, Header { name: headers::CONTENT_TYPE.clone(), value: content_type }))
}
