//! Partition keys (`pk`) of the headers `RateLimit-Policy` and `RateLimit`: which counter of a policy a request uses.
//!
//! A key is a hash of the entries with which the counter counts, so that callers' values are in no log of headers, and that
//! replicas agree. docs/reference/responses.md states the algorithm, by which clients can predict it.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use ring::digest::{SHA256, digest};

use crate::{answer::PolicyHeaders, conclude::Conclusion, counter_key::CounterKey, plan::Limited};

/// The most bytes of a descriptor that has partition keys: all of them are escaped and hashed while the request waits.
const MAX_BYTES: usize = 4096;

/// The parameters of a descriptor's limits: of those that an override changes, and of the others. An override may count by
/// values that the rule's counter shares. Empty if the settings enable none, or if the entries are too long.
#[derive(Default)]
pub(super) struct PartitionKeys {
    pub(super) of_override: String,
    pub(super) of_rule: String,
}

impl PartitionKeys {
    pub(super) fn of_descriptor(conclusion: &Conclusion<'_, '_>, index: usize, limited: &Limited) -> Self {
        let entries = conclusion.request.entries(index);
        let bytes: usize = entries.iter().map(|entry| entry.key.len() + entry.value.len()).sum();
        let is_on = conclusion.scope.policy.response.policy_headers == PolicyHeaders::WithKeys;
        let limits = conclusion.scope.limits(limited).filter(|_| is_on && bytes <= MAX_BYTES);
        let Some(limits) = limits else { return Self::default() };
        let domain = conclusion.request.domain;
        // The plan keeps the rule alone, and not which of its levels share a counter.
        let rules = limited.rule.and_then(|_| conclusion.scope.served.rules.domain(domain));
        let matched = rules.and_then(|rules| rules.find(entries, &mut String::new()));
        let limit = limits.first();
        let shown = |own_levels| {
            let matched = matched.as_ref();
            let counter = CounterKey { prefix: "", domain, entries, matched, own_levels, limit };
            let counted = entries.iter().enumerate();
            let counted =
                counted.map(|(level, entry)| (entry.key, Some(counter.shared(level).unwrap_or(entry.value))));
            parameter(&text::entries::write(counted))
        };
        let changing = limited.overridden.as_ref().filter(|found| found.action.changes_limits());
        let of_override = changing.map(|found| shown(found.exact_levels())).unwrap_or_default();
        Self { of_override, of_rule: shown(0) }
    }
}

/// A Byte Sequence of RFC 9651. 12 bytes of a SHA-256 are 16 digits of base64 without padding, and differ for billions of
/// callers.
fn parameter(entries: &str) -> String {
    let hash = digest(&SHA256, entries.as_bytes());
    format!(";pk=:{}:", BASE64_STANDARD.encode(hash.as_ref().get(..12).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_beginning_of_the_sha_256_of_the_entries() {
        // printf %s client=ann | openssl sha256 -binary | head -c 12 | base64
        assert_eq!(parameter("client=ann"), ";pk=:KrutHcX8b4uyl2Uj:");
    }
}
