//! Why a request got no answer, in a line for the caller and a counter for the operator.

use std::fmt;

use super::request::Request;
use crate::{
    store::{FailureReason, StoreError},
    telemetry::metrics::{RejectReason as Reason, ResponseCode, Stats},
};

/// Why a request got no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RequestError {
    /// It names no domain.
    NoDomain,
    /// It holds no descriptor.
    NoDescriptors,
    /// No rules were ever loaded.
    NoRules,
    /// It holds more descriptors than are taken.
    TooManyDescriptors {
        /// How many it holds.
        seen: usize,
        /// How many are taken.
        most: usize,
    },
    /// One of its descriptors holds more entries than are taken.
    TooManyEntries {
        /// Which descriptor, from 0.
        descriptor: usize,
        /// How many it holds.
        seen: usize,
        /// How many are taken.
        most: usize,
    },
    /// A limit that it brings along has no unit that exists.
    OverrideUnit {
        /// Which descriptor, from 0.
        descriptor: usize,
        /// The unit's number.
        unit: i32,
    },
    /// The counters cannot be reached.
    Store(StoreError),
}

/// What may be asked in one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// `MAX_DESCRIPTORS_PER_REQUEST`.
    pub descriptors: usize,
    /// `MAX_ENTRIES_PER_DESCRIPTOR`.
    pub entries: usize,
}

impl Bounds {
    /// # Errors
    /// When the request lacks what every request has, or asks too much at once.
    pub(super) fn check(self, request: &Request<'_>) -> Result<(), RequestError> {
        if request.domain.is_empty() {
            return Err(RequestError::NoDomain);
        }
        let seen = request.descriptors.len().saturating_add(request.excess_descriptors);
        if seen == 0 {
            return Err(RequestError::NoDescriptors);
        }
        if seen > self.descriptors {
            return Err(RequestError::TooManyDescriptors { seen, most: self.descriptors });
        }
        for (descriptor, held) in request.descriptors.iter().enumerate() {
            let seen = held.entries.len().saturating_add(held.excess_entries);
            if seen > self.entries {
                return Err(RequestError::TooManyEntries { descriptor, seen, most: self.entries });
            }
        }
        Ok(())
    }
}

impl RequestError {
    /// True when the request itself asks too much, and would again.
    #[must_use]
    pub fn is_out_of_bounds(&self) -> bool {
        matches!(self, Self::TooManyDescriptors { .. } | Self::TooManyEntries { .. })
    }

    /// True when the service cannot answer now, and the same request may be answered later.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::NoRules | Self::Store(_))
    }

    pub(super) fn count(&self, stats: &Stats) {
        let service = stats.service();
        match self {
            Self::Store(_) => service.redis_error.increment(),
            _ => service.service_error.increment(),
        }
        // The other two are counted with their domain, where that is known.
        if !matches!(self, Self::Store(_) | Self::OverrideUnit { .. }) {
            stats.unknown_domain().count(ResponseCode::Error);
        }
        match self {
            Self::TooManyDescriptors { .. } => service.refused(Reason::TooManyDescriptors).increment(),
            Self::TooManyEntries { .. } => service.refused(Reason::TooManyEntries).increment(),
            _ => {}
        }
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDomain => f.write_str("rate limit domain must not be empty"),
            Self::NoDescriptors => f.write_str("rate limit descriptor list must not be empty"),
            Self::NoRules => f.write_str("no rate limit configuration loaded"),
            Self::TooManyDescriptors { seen, most } => write!(
                f,
                "the request holds {seen} descriptors, at most {most} are taken (MAX_DESCRIPTORS_PER_REQUEST)"
            ),
            Self::TooManyEntries { descriptor, seen, most } => write!(
                f,
                "descriptor {descriptor} holds {seen} entries, at most {most} are taken \
                 (MAX_ENTRIES_PER_DESCRIPTOR)"
            ),
            Self::OverrideUnit { descriptor, unit } => write!(
                f,
                "the limit of descriptor {descriptor} has the unit {unit}, accepted are 1 (SECOND) to 7 (WEEK)"
            ),
            // Callers see neither addresses nor what a server answered. The log does, and spans.
            Self::Store(error) => f.write_str(match error.reason {
                FailureReason::Timeout => "the counter store did not answer in time",
                FailureReason::Overloaded => "the counter store has more requests than it can answer in time",
                FailureReason::QueueFull => "too many requests wait for the counter store",
                FailureReason::Unavailable => "the counter store is unavailable",
                FailureReason::ConnectionLost => "the connection to the counter store was lost",
                FailureReason::BadAnswer => "the counter store answered with an error",
            }),
        }
    }
}

impl std::error::Error for RequestError {}
