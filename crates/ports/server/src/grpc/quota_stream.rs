//! What a stream of RLQS does, whatever carries it: checks and takes what an Envoy reports, and makes the responses.
//!
//! `rlqs` carries it on the service's own HTTP/2 connection, and the tonic `reference` on tonic's.

use std::{
    task::{Context, Poll, ready},
    time::Instant,
};

use tonic::Status;

use super::{
    Parts,
    status::{self, Failure, rejected},
};
use crate::wire::{
    DecisionRpc,
    rlqs::{self as wire, ReportField},
};
use limiter::RequestError;
use metrics::QuotaRefused;
use proto::{envoy::service::rate_limit_quota::v3::RateLimitQuotaResponse, protobuf::Malformed};
use rlqs::{Refused, Stream};

/// The maximum size of the keys and values of a bucket's id, and of a domain: `QUOTA_MAX_BUCKETS` of them are kept.
const MAX_ID_BYTES: usize = 1024;

/// The maximum number of actions of a response. With the largest ids it fits a stream's first window.
const MAX_ACTIONS: usize = 16;

pub(super) struct QuotaStream {
    parts: Parts,
    domain: Box<str>,
    /// `None` until its domain is reported.
    stream: Option<Stream>,
}

impl QuotaStream {
    pub(super) fn new(parts: Parts) -> Self {
        Self { parts, domain: Box::default(), stream: None }
    }

    /// Takes a field of a report.
    pub(super) fn take(&mut self, field: ReportField<'_>) -> Result<(), Failure> {
        match field {
            ReportField::Domain(domain) => self.take_domain(domain),
            ReportField::Usage(usage) => self.take_usage(usage),
            ReportField::Other => Ok(()),
        }
    }

    /// The report is complete.
    pub(super) fn end_report(&mut self) -> Result<(), Failure> {
        self.parts.stats.quotas().reports.increment();
        self.stream.as_ref().map(drop).ok_or_else(|| no_domain().into())
    }

    fn take_domain(&mut self, domain: &[u8]) -> Result<(), Failure> {
        if domain.is_empty() || domain == self.domain.as_bytes() {
            return Ok(());
        }
        let domain = std::str::from_utf8(domain).ok().filter(|text| text::bytes::is_verbatim(text));
        let Some(domain) = domain else { return Err(invalid("the domain is not UTF-8".to_owned()).into()) };
        if domain.len() > MAX_ID_BYTES {
            let length = domain.len();
            return Err(
                invalid(format!("the domain has {length} bytes, the maximum is {MAX_ID_BYTES}")).into()
            );
        }
        if self.stream.is_some() {
            let first = &self.domain;
            return Err(invalid(format!(
                "the stream has reported domain {first:?} and now {domain:?}; expected one domain for each stream"
            ))
            .into());
        }
        if !self.parts.limiter.has_rules() {
            return Err(status::of_error(DecisionRpc::ShouldRateLimit, &RequestError::NoRules).into());
        }
        self.domain = domain.into();
        self.stream = Some(self.parts.quotas.open(domain));
        Ok(())
    }

    fn take_usage(&mut self, message: &[u8]) -> Result<(), Failure> {
        let Some(stream) = &mut self.stream else { return Err(no_domain().into()) };
        let usage = match wire::usage(message, self.parts.limiter.policy().bounds.entries) {
            Ok(usage) => usage,
            Err(error) if error.is_text() => {
                self.refuse(QuotaRefused::InvalidText);
                return Ok(());
            }
            Err(error) => return Err(malformed(error).into()),
        };
        let bytes: usize = usage.entries.iter().map(|(key, value)| key.len() + value.len()).sum();
        let refused = if usage.excess_entries > 0 {
            Some(QuotaRefused::TooManyEntries)
        } else if usage.entries.is_empty() {
            Some(QuotaRefused::EmptyId)
        } else if bytes > MAX_ID_BYTES {
            Some(QuotaRefused::IdTooLarge)
        } else {
            stream.report(&usage.entries, usage.allowed, usage.denied).err().map(|refused| match refused {
                Refused::TooManyBuckets => QuotaRefused::TooManyBuckets,
                Refused::TooManyOfStream => QuotaRefused::TooManyOfStream,
                Refused::Memory => QuotaRefused::Memory,
            })
        };
        if let Some(reason) = refused {
            self.refuse(reason);
        }
        Ok(())
    }

    /// The stream goes on.
    fn refuse(&self, reason: QuotaRefused) {
        self.parts.stats.quotas().refused(reason).increment();
    }

    /// When the Envoy reports next, if that is known.
    pub(super) fn next_report(&self) -> Option<Instant> {
        self.stream.as_ref().and_then(Stream::next_report)
    }

    /// The next response, with the newest action of each bucket.
    pub(super) fn poll_response(&mut self, context: &mut Context<'_>) -> Poll<RateLimitQuotaResponse> {
        let Some(stream) = &mut self.stream else { return Poll::Pending };
        let actions = ready!(stream.poll_actions(MAX_ACTIONS, context));
        Poll::Ready(wire::response(&actions))
    }
}

fn no_domain() -> Status {
    invalid("the first report has no domain; expected one before its bucket_quota_usages".to_owned())
}

fn invalid(message: String) -> Status {
    rejected(Status::invalid_argument(message))
}

pub(super) fn malformed(error: Malformed) -> Status {
    rejected(Status::internal(format!("the message is not a RateLimitQuotaUsageReports: {error}")))
}
