//! The limiter's answer, free of protocol types, and the options for its contents.

use std::{num::NonZeroU32, sync::Arc};

use super::holds::token::HoldToken;
use limit::{InForce, Unit, calendar::Calendar};
use metrics::ResponseCode;
use rules::{Metadata, template::Template};

/// It is moved by a few instructions while it has at most 128 bytes.
#[derive(PartialEq, Debug, Default)]
pub struct Answer {
    pub code: Code,
    /// One status per descriptor, in the request's order.
    pub statuses: Vec<Status>,
    pub response_headers: Vec<Header>,
    /// Headers that Envoy adds to the request before it forwards it.
    pub request_headers: Vec<Header>,
    /// The response's body; may be empty.
    pub body: Box<str>,
    /// Dynamic metadata for access logs and other filters.
    pub dynamic_metadata: Option<Box<Metadata>>,
    /// The request holds: whoever writes the response says so to the token.
    pub hold: Option<Box<HoldToken>>,
    /// The hold that the report ends was open until then.
    pub released: bool,
}

impl Answer {
    /// The answer to a request that only settles or ends holds.
    pub(super) fn closing(descriptors: usize) -> Self {
        Self { statuses: vec![Status::NO_LIMIT; descriptors], ..Self::default() }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Code {
    #[default]
    Ok,
    OverLimit,
}

impl From<Code> for ResponseCode {
    fn from(code: Code) -> Self {
        match code {
            Code::Ok => Self::Ok,
            Code::OverLimit => Self::OverLimit,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    pub code: Code,
    pub current_limit: Option<CurrentLimit>,
    pub limit_remaining: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CurrentLimit {
    pub requests_per_unit: u64,
    pub unit: Unit,
    pub multiplier: NonZeroU32,
    /// The calendar that its rule or override names.
    pub calendar: Option<Calendar>,
    pub schedule: Option<Arc<InForce>>,
    pub name: Option<Arc<str>>,
    /// Seconds until the full limit is available; for a fixed window until it ends.
    pub seconds_until_reset: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// The header's name, in the case that the settings use.
    pub name: Arc<str>,
    pub value: String,
}

/// The optional parts of answers. All are off by default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ResponseOptions {
    /// `LIMIT_RESPONSE_HEADERS_ENABLED` and the headers' names.
    pub headers: Option<HeaderNames>,
    pub all_headers: bool,
    /// `LIMIT_REQUEST_HEADERS_ENABLED` and the headers' names.
    pub request_headers: Option<HeaderNames>,
    pub retry_after: Option<Arc<str>>,
    pub policy_headers: PolicyHeaders,
    /// `OVER_LIMIT_BODY`: the over-limit body where the rule has none.
    pub over_limit_body: Option<Template>,
    /// `RESPONSE_DYNAMIC_METADATA`, alone or with `RESPONSE_DYNAMIC_METADATA_LIMITS`.
    pub metadata: MetadataDetail,
    pub metadata_codes: bool,
}

/// The names of the three headers for the descriptor closest to its limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeaderNames {
    /// `LIMIT_LIMIT_HEADER`, or `LIMIT_REQUEST_LIMIT_HEADER`, and so on.
    pub limit: Arc<str>,
    pub remaining: Arc<str>,
    pub reset: Arc<str>,
}

/// `LIMIT_POLICY_HEADERS`: whether answers have `RateLimit-Policy` and `RateLimit`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PolicyHeaders {
    #[default]
    Off,
    On,
    /// With a partition key in each item.
    WithKeys,
}

/// How much dynamic metadata an answer carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MetadataDetail {
    #[default]
    None,
    /// The request, and the metadata of the rules whose descriptors passed.
    Plain,
    /// Also the limit that decided each descriptor, and the reason.
    WithLimits,
}

impl Status {
    pub(super) const NO_LIMIT: Self = Self { code: Code::Ok, current_limit: None, limit_remaining: 0 };

    pub(super) const UNLIMITED: Self =
        Self { code: Code::Ok, current_limit: None, limit_remaining: u32::MAX as u64 };
}
