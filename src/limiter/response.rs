//! What answers say beyond the decision, as the settings have it; all of it is off unless asked for.

use std::sync::Arc;

use super::headers::HeaderNames;
use crate::limiter::template::Template;

/// What answers say beyond the decision.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ResponseOptions {
    /// `LIMIT_RESPONSE_HEADERS_ENABLED` and the headers' names.
    pub headers: Option<HeaderNames>,
    /// `LIMIT_RETRY_AFTER_HEADER`.
    pub retry_after: Option<Arc<str>>,
    /// `LIMIT_POLICY_HEADERS`.
    pub policy_headers: bool,
    /// `OVER_LIMIT_BODY`: the body of a refusal whose rule has none.
    pub over_limit_body: Option<Template>,
    /// `RESPONSE_DYNAMIC_METADATA`, alone or with `RESPONSE_DYNAMIC_METADATA_LIMITS`.
    pub metadata: MetadataDetail,
}

/// How much dynamic metadata an answer carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MetadataDetail {
    /// None.
    #[default]
    None,
    /// What was asked, and the metadata of the rules that were passed.
    Plain,
    /// Which limit decided of each descriptor as well, and why.
    WithLimits,
}
