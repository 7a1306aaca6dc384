//! The pull requests of `envoyproxy/ratelimit` after the recorded answers: merged ones are the default, open ones have a
//! variable. docs/reference/differences.md lists them.

// 1190, and headers for the forwarded request.
mod headers;
// 1243 and 1239: quotas of backends and models, and what the metadata says.
mod quota_groups;
// 1230: refunds and the local caches.
mod refunds;

use proto::envoy::service::ratelimit::v3::RateLimitRequest;

use support::client::{descriptor, request};

/// A request of one descriptor, which gives back its hits if they are negative.
fn hits(key: &str, value: &str, hits: i64) -> RateLimitRequest {
    let mut request = request("d", &[]);
    let mut descriptor = descriptor(&[(key, value)]);
    descriptor.hits_addend = Some(hits.unsigned_abs());
    descriptor.is_negative_hits = hits < 0;
    request.descriptors = vec![descriptor];
    request
}
