//! What the limiter answers, free of any protocol's types.

use std::{num::NonZeroU32, sync::Arc};

use crate::{
    rules::{Limit, Metadata, Unit},
    telemetry::metrics::ResponseCode,
};

/// May it pass, and why.
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    /// For the request as a whole.
    pub code: Code,
    /// For each descriptor, in the request's order.
    pub statuses: Vec<Status>,
    /// Headers for the response to the caller.
    pub response_headers: Vec<Header>,
    /// The response's body, empty where none is to be sent.
    pub body: String,
    /// What access logs and other filters may read.
    pub dynamic_metadata: Option<Metadata>,
}

/// Whether it may pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    /// It may.
    Ok,
    /// It may not.
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

/// What is said of one descriptor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// Whether it may pass.
    pub code: Code,
    /// The limit that applies, if any, and the seconds until it is whole again.
    pub current_limit: Option<CurrentLimit>,
    /// What is left of it.
    pub limit_remaining: u32,
}

/// A limit as an answer tells it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CurrentLimit {
    /// Requests in one window.
    pub requests_per_unit: u32,
    /// The window's unit.
    pub unit: Unit,
    /// How many units the window has.
    pub multiplier: NonZeroU32,
    /// What the rule calls it.
    pub name: Option<Arc<str>>,
    /// Whole seconds until it is whole again: of a fixed window, until it ends.
    pub seconds_until_reset: u64,
}

/// A header that the answer adds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// Its name, as the settings have it.
    pub name: Arc<str>,
    /// Its value.
    pub value: String,
}

impl Status {
    /// No limit applies.
    pub(super) const NO_LIMIT: Self = Self { code: Code::Ok, current_limit: None, limit_remaining: 0 };

    /// A rule lifts every limit.
    pub(super) const UNLIMITED: Self =
        Self { code: Code::Ok, current_limit: None, limit_remaining: u32::MAX };
}

impl CurrentLimit {
    pub(super) fn new(limit: &Limit, seconds_until_reset: u64) -> Self {
        Self {
            requests_per_unit: limit.requests_per_unit,
            unit: limit.unit,
            multiplier: limit.multiplier,
            name: limit.name.clone(),
            seconds_until_reset,
        }
    }
}
