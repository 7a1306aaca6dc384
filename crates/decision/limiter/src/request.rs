//! A request to the limiter, free of protocol types, with its bounds and its errors.
//!
//! Strings are borrowed from the message that the request was read from. A request of up to four descriptors with up
//! to four entries each allocates nothing.

use std::{fmt, time::Duration};

use smallvec::SmallVec;

use counters::StoreError;
use limit::{Hits, HoldRule};
use metrics::{FailureReason, RejectReason, ResponseCode, Stats};

/// A request whose texts are slices of the message.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Request<'a> {
    pub domain: &'a str,
    pub descriptors: SmallVec<[Descriptor<'a>; 4]>,
    /// Descriptors above the bound, which were counted but not stored.
    pub excess_descriptors: usize,
    /// Hits of each descriptor without its own; 0 means 1.
    pub hits_addend: u32,
    pub ask: Ask,
    /// The identity of the hold that a report ends; may be empty.
    pub reservation: &'a str,
}

/// What a request wants of its counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ask {
    /// To count hits that fit, and to hold, settle and end what rules and descriptors say.
    #[default]
    Decide,
    /// To know whether hits would fit.
    Look,
    /// To count hits, whatever is over its limit.
    Report,
    /// To hold the hits where rules hold, and to know whether they would fit elsewhere. A hold lasts at most this long, and
    /// is free if nobody reports its cost.
    Reserve { ttl: Option<Duration> },
}

impl Ask {
    /// True if the hits are those of the statistics. What was looked at or reserved is reported later.
    pub(super) fn counts(self) -> bool {
        matches!(self, Self::Decide | Self::Report)
    }
}

/// A list of entries that the rules are matched against.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Descriptor<'a> {
    pub entries: SmallVec<[Entry<'a>; 4]>,
    /// Entries above the bound, which were counted but not stored.
    pub excess_entries: usize,
    pub limit: Option<LimitOverride>,
    /// The descriptor's own hits; 0 reads without counting.
    pub hits_addend: Option<u64>,
    pub is_negative_hits: bool,
}

/// `Debug` hides the value.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry<'a> {
    pub key: &'a str,
    /// The value; may be empty.
    pub value: &'a str,
}

impl fmt::Debug for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=***", self.key)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LimitOverride {
    pub requests_per_unit: u32,
    /// The number of the window's unit in Envoy's API; may be an unknown one.
    pub unit: i32,
    /// Units in a window.
    pub unit_multiplier: Option<u32>,
}

impl rules::Entry for Entry<'_> {
    fn key(&self) -> &str {
        self.key
    }

    fn value(&self) -> &str {
        self.value
    }
}

/// A request within its bounds that owns its texts, so that it outlives the message.
pub(super) struct OwnedRequest {
    /// The domain, and the key and the value of each entry.
    texts: String,
    /// The end of each text.
    ends: SmallVec<[usize; 9]>,
    descriptors: SmallVec<[OwnedDescriptor; 2]>,
    hits_addend: u32,
    pub(super) ask: Ask,
}

struct OwnedDescriptor {
    entries: usize,
    limit: Option<LimitOverride>,
    hits_addend: Option<u64>,
    is_negative_hits: bool,
}

impl OwnedRequest {
    pub(super) fn new(request: &Request<'_>) -> Self {
        let mut owned = Self {
            texts: String::with_capacity(128),
            ends: SmallVec::new(),
            descriptors: SmallVec::new(),
            hits_addend: request.hits_addend,
            ask: request.ask,
        };
        owned.push(request.domain);
        for descriptor in &request.descriptors {
            for entry in &descriptor.entries {
                owned.push(entry.key);
                owned.push(entry.value);
            }
            owned.descriptors.push(OwnedDescriptor {
                entries: descriptor.entries.len(),
                limit: descriptor.limit,
                hits_addend: descriptor.hits_addend,
                is_negative_hits: descriptor.is_negative_hits,
            });
        }
        owned
    }

    fn push(&mut self, text: &str) {
        self.texts.push_str(text);
        self.ends.push(self.texts.len());
    }

    #[expect(clippy::expect_used, reason = "each text was pushed with its end")]
    pub(super) fn borrowed(&self) -> Request<'_> {
        let mut start = 0;
        let mut ends = self.ends.iter();
        let mut text = || {
            let end = *ends.next().expect("each text of the request has an end");
            &self.texts[std::mem::replace(&mut start, end)..end]
        };
        let domain = text();
        let descriptors = self.descriptors.iter().map(|owned| Descriptor {
            entries: (0..owned.entries).map(|_| Entry { key: text(), value: text() }).collect(),
            excess_entries: 0,
            limit: owned.limit,
            hits_addend: owned.hits_addend,
            is_negative_hits: owned.is_negative_hits,
        });
        Request {
            domain,
            descriptors: descriptors.collect(),
            excess_descriptors: 0,
            hits_addend: self.hits_addend,
            ask: self.ask,
            // Whoever waits has it beside the request.
            reservation: "",
        }
    }
}

impl<'m> Request<'m> {
    #[expect(clippy::indexing_slicing, reason = "an index of this request's descriptors")]
    pub(super) fn descriptor(&self, index: usize) -> &Descriptor<'m> {
        &self.descriptors[index]
    }

    pub(super) fn entries(&self, index: usize) -> &[Entry<'m>] {
        &self.descriptor(index).entries
    }

    pub fn hits(&self, descriptor: &Descriptor<'_>) -> Hits {
        let hits = descriptor.hits_addend.unwrap_or_else(|| u64::from(self.hits_addend.max(1)));
        if descriptor.is_negative_hits { Hits::Refund(hits) } else { Hits::Take(hits) }
    }

    /// What a descriptor holds of a limit; 0 reads.
    pub(super) fn estimate(&self, descriptor: &Descriptor<'_>, hold: &HoldRule, is_concurrency: bool) -> u64 {
        match (descriptor.hits_addend, self.hits_addend) {
            (Some(0), _) => 0,
            _ if is_concurrency => 1,
            (Some(hits), _) => hits,
            (None, 0) => hold.amount,
            (None, hits) => hits.into(),
        }
    }
}

/// A failed request: a message for the caller and a counter for the operator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RequestError {
    NoDomain,
    NoDescriptors,
    NoRules,
    TooManyDescriptors {
        count: usize,
        max: usize,
    },
    /// A descriptor has more entries than `MAX_ENTRIES_PER_DESCRIPTOR`.
    TooManyEntries {
        descriptor: usize,
        count: usize,
        max: usize,
    },
    OverrideUnit {
        descriptor: usize,
        unit: i32,
    },
    OverrideUnits {
        descriptor: usize,
        units: u32,
    },
    Store(StoreError),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    pub descriptors: usize,
    pub entries: usize,
}

impl Bounds {
    /// # Errors
    /// When the domain or the descriptors of a decision are missing, or a size limit is exceeded.
    pub(super) fn check(self, request: &Request<'_>) -> Result<(), RequestError> {
        if request.domain.is_empty() {
            return Err(RequestError::NoDomain);
        }
        let count = request.descriptors.len() + request.excess_descriptors;
        // Kuadrant's descriptors depend on predicates, so none is no error there.
        if count == 0 && request.ask == Ask::Decide {
            return Err(RequestError::NoDescriptors);
        }
        if count > self.descriptors {
            return Err(RequestError::TooManyDescriptors { count, max: self.descriptors });
        }
        for (index, descriptor) in request.descriptors.iter().enumerate() {
            let count = descriptor.entries.len() + descriptor.excess_entries;
            if count > self.entries {
                return Err(RequestError::TooManyEntries { descriptor: index, count, max: self.entries });
            }
        }
        Ok(())
    }
}

impl RequestError {
    /// True if the request exceeds a size limit, so that a retry fails too.
    pub fn is_out_of_bounds(&self) -> bool {
        matches!(self, Self::TooManyDescriptors { .. } | Self::TooManyEntries { .. })
    }

    /// True if a retry may succeed later.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::NoRules | Self::Store(_))
    }

    pub(super) fn count(&self, stats: &Stats) {
        let service = stats.service();
        let error =
            if matches!(self, Self::Store(_)) { &service.redis_error } else { &service.service_error };
        error.increment();
        match self {
            // Counted with their domain, if it is known.
            Self::Store(_) | Self::OverrideUnit { .. } | Self::OverrideUnits { .. } => return,
            _ => stats.unknown_domain().count(ResponseCode::Error, 0, 0),
        }
        match self {
            Self::TooManyDescriptors { .. } => service.refused(RejectReason::TooManyDescriptors).increment(),
            Self::TooManyEntries { .. } => service.refused(RejectReason::TooManyEntries).increment(),
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
            Self::TooManyDescriptors { count, max } => write!(
                f,
                "request has {count} descriptors; the maximum is {max} (MAX_DESCRIPTORS_PER_REQUEST)"
            ),
            Self::TooManyEntries { descriptor, count, max } => write!(
                f,
                "descriptor {descriptor} has {count} entries; the maximum is {max} (MAX_ENTRIES_PER_DESCRIPTOR)"
            ),
            Self::OverrideUnit { descriptor, unit } => write!(
                f,
                "limit of descriptor {descriptor}: unknown unit {unit}; expected 1 (SECOND) to 7 (WEEK)"
            ),
            Self::OverrideUnits { descriptor, units } => write!(
                f,
                "limit of descriptor {descriptor}: unit_multiplier {units}; expected 1 or more, of a window of at most 10 years"
            ),
            // The log and spans show addresses and replies of servers; callers must not see them.
            Self::Store(error) => f.write_str(match error.reason {
                FailureReason::Timeout => "counter store: timed out",
                FailureReason::Overloaded => "counter store: overloaded",
                FailureReason::WorkerLate => "counter store: not asked in time",
                FailureReason::QueueFull => "counter store: queue full",
                FailureReason::Unavailable => "counter store: unavailable",
                FailureReason::ConnectionLost => "counter store: connection lost",
                FailureReason::BadAnswer => "counter store: unexpected reply",
            }),
        }
    }
}

impl std::error::Error for RequestError {}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    #[test]
    fn an_owned_request_is_the_same_request() {
        let long = "x".repeat(1000);
        let limit = Some(LimitOverride { requests_per_unit: 7, unit: 99, unit_multiplier: None });
        let own = Descriptor { limit, hits_addend: Some(0), is_negative_hits: true, ..Descriptor::default() };
        let entries = smallvec![Entry { key: "a", value: "" }, Entry { key: "", value: "ü" }];
        let many: Vec<_> = (0..100).map(|_| Entry { key: &long, value: "1" }).collect();
        let others = [entries, many.into()].map(|entries| Descriptor { entries, ..Descriptor::default() });
        for domain in ["d", ""] {
            let descriptors = [own.clone()].into_iter().chain(others.clone()).collect();
            let request =
                Request { domain, descriptors, hits_addend: 3, ask: Ask::Look, ..Request::default() };
            // Requests of two lifetimes cannot be compared.
            let owned = format!("{:?}", OwnedRequest::new(&request).borrowed());
            assert_eq!(owned, format!("{request:?}"));
        }
    }
}
