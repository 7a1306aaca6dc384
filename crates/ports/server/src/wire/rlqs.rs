//! RLQS: parses usage reports field by field, and makes the messages of actions.
//!
//! A report may have thousands of buckets, so it is never held as a whole: one field is parsed at a time, from what has
//! arrived, and its texts are slices of it.

use prost_types::Duration;
use proto::{
    envoy::{
        service::rate_limit_quota::v3::{
            BucketId, RateLimitQuotaResponse,
            rate_limit_quota_response::{
                BucketAction,
                bucket_action::{AbandonAction, BucketAction as Action, QuotaAssignmentAction},
            },
        },
        r#type::v3::{
            RateLimitStrategy, TokenBucket,
            rate_limit_strategy::{BlanketRule, Strategy},
        },
    },
    protobuf::{Fields, Malformed},
};

use super::request::read_entry;
use limiter::Entry;

/// A token bucket must gain tokens; this one gains one in 231 days. Envoy raises rates below one a year.
const NEVER: u32 = 20_000_000;

/// A field of `RateLimitQuotaUsageReports`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReportField<'m> {
    Domain(&'m [u8]),
    Usage(&'m [u8]),
    /// One that is not known.
    Other,
}

/// The first field of a report, and its length. What fails may be an incomplete field.
pub(crate) fn report_field(report: &[u8]) -> Result<(ReportField<'_>, usize), Malformed> {
    let mut fields = Fields::new(report);
    let Some(key) = fields.next_key()? else { return Ok((ReportField::Other, 0)) };
    let field = match key.number {
        1 => ReportField::Domain(fields.bytes(key)?),
        2 => ReportField::Usage(fields.bytes(key)?),
        _ => {
            fields.skip(key)?;
            ReportField::Other
        }
    };
    Ok((field, report.len() - fields.left()))
}

/// What an Envoy has used of a bucket.
#[derive(PartialEq, Eq, Debug, Default)]
pub(crate) struct BucketUsage<'m> {
    /// At most as many as were asked for; of several with one key the last one counts.
    pub(crate) entries: Vec<(&'m str, &'m str)>,
    /// Entries above the bound.
    pub(crate) excess_entries: usize,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
}

/// Parses a `BucketQuotaUsage`. Texts that `ShouldRateLimit` escapes are not accepted: [`Malformed::is_text`].
pub(crate) fn usage(message: &[u8], most: usize) -> Result<BucketUsage<'_>, Malformed> {
    let mut fields = Fields::of_strings(message, text::bytes::is_verbatim);
    let mut usage = BucketUsage::default();
    while let Some(key) = fields.next_key()? {
        match key.number {
            1 => read_id(fields.message(key)?, most, &mut usage)?,
            3 => usage.allowed = fields.number(key)?,
            4 => usage.denied = fields.number(key)?,
            // The elapsed time is not needed: what is assigned does not follow it.
            _ => fields.skip(key)?,
        }
    }
    Ok(usage)
}

fn read_id<'m>(mut fields: Fields<'m>, most: usize, usage: &mut BucketUsage<'m>) -> Result<(), Malformed> {
    while let Some(key) = fields.next_key()? {
        if key.number != 1 {
            fields.skip(key)?;
            continue;
        }
        let Entry { key: name, value } = read_entry(fields.message(key)?)?;
        if let Some(known) = usage.entries.iter_mut().find(|(known, _)| *known == name) {
            known.1 = value;
        } else if usage.entries.len() < most {
            usage.entries.push((name, value));
        } else {
            usage.excess_entries += 1;
        }
    }
    Ok(())
}

pub(crate) fn response(actions: &[rlqs::BucketAction]) -> RateLimitQuotaResponse {
    let all = actions.iter().flat_map(|one| {
        let is_new = |strategy| matches!(strategy, rlqs::Strategy::Tokens { is_new: true, .. });
        let before = match one.action {
            rlqs::Action::Assign { strategy, ttl_seconds } if is_new(strategy) => {
                // Envoy keeps the tokens of a bucket that another replaces; after another strategy a bucket begins full. It
                // applies both before its workers see either.
                Some(rlqs::Action::Assign { strategy: rlqs::Strategy::DenyAll, ttl_seconds })
            }
            _ => None,
        };
        before.into_iter().chain([one.action]).map(|action| bucket_action(&one.bucket, action))
    });
    RateLimitQuotaResponse { bucket_action: all.collect() }
}

fn bucket_action(bucket: &limiter::QuotaBucket, action: rlqs::Action) -> BucketAction {
    let bucket = bucket.entries.iter().map(|(key, value)| (key.to_string(), value.to_string()));
    let bucket_id = Some(BucketId { bucket: bucket.collect() });
    let action = match action {
        rlqs::Action::Abandon => Action::AbandonAction(AbandonAction {}),
        rlqs::Action::Assign { strategy, ttl_seconds } => {
            Action::QuotaAssignmentAction(QuotaAssignmentAction {
                assignment_time_to_live: Some(seconds(ttl_seconds)),
                rate_limit_strategy: Some(RateLimitStrategy { strategy: Some(strategy_of(strategy)) }),
            })
        }
    };
    BucketAction { bucket_id, bucket_action: Some(action) }
}

fn strategy_of(strategy: rlqs::Strategy) -> Strategy {
    match strategy {
        rlqs::Strategy::AllowAll => Strategy::BlanketRule(BlanketRule::AllowAll.into()),
        rlqs::Strategy::DenyAll => Strategy::BlanketRule(BlanketRule::DenyAll.into()),
        rlqs::Strategy::Tokens { max, .. } => Strategy::TokenBucket(TokenBucket {
            max_tokens: max,
            tokens_per_fill: Some(1),
            fill_interval: Some(seconds(NEVER)),
        }),
    }
}

fn seconds(seconds: u32) -> Duration {
    Duration { seconds: seconds.into(), nanos: 0 }
}
