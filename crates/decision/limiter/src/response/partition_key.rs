//! Partition keys (`pk`) of the headers `RateLimit-Policy` and `RateLimit`: which counter of a policy a request uses.
//!
//! A key is a hash of the entries with which the counter counts, so that callers' values are in no log of headers, and that
//! replicas agree. docs/reference/responses.md states the algorithm, by which clients can predict it.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use ring::digest::{SHA256, digest};

use crate::{answer::PolicyHeaders, conclude::Conclusion, counter_key::CounterKey, plan::Limited};
use limit::Limit;
use overrides::Found;

/// The most bytes of a descriptor that has partition keys: all of them are escaped and hashed while the request waits.
const MAX_BYTES: usize = 4096;

/// The first bytes of a SHA-256. 12 are 16 digits of base64 without padding, and differ for billions of callers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct PartitionKey([u8; 12]);

impl PartitionKey {
    fn of(entries: &str) -> Self {
        let hash = digest(&SHA256, entries.as_bytes());
        Self(hash.as_ref().first_chunk().copied().unwrap_or_default())
    }

    /// Appends the parameter, a Byte Sequence of RFC 9651.
    pub(super) fn write(&self, into: &mut String) {
        into.push_str(";pk=:");
        BASE64_STANDARD.encode_string(self.0, into);
        into.push(':');
    }
}

/// The partition keys of a descriptor's limits. An override may count by values that the rule's counter shares.
pub(super) struct PartitionKeys<'a> {
    of_rule: PartitionKey,
    of_override: Option<(&'a Found, PartitionKey)>,
}

impl<'a> PartitionKeys<'a> {
    /// `None` if the settings enable none, or if the entries are too long.
    pub(super) fn of_descriptor(
        conclusion: &Conclusion<'_, '_>,
        index: usize,
        limited: &'a Limited,
    ) -> Option<Self> {
        if conclusion.scope.policy.response.policy_headers != PolicyHeaders::WithKeys {
            return None;
        }
        let domain = conclusion.request.domain;
        let entries = conclusion.request.entries(index);
        if entries.iter().map(|entry| entry.key.len() + entry.value.len()).sum::<usize>() > MAX_BYTES {
            return None;
        }
        // The plan keeps the rule alone, and not which of its levels share a counter.
        let rules = limited.rule.and_then(|_| conclusion.scope.served.rules.domain(domain));
        let matched = rules.and_then(|rules| rules.find(entries, &mut String::new()));
        let limit = conclusion.scope.limits(limited)?.first();
        let key = |own_levels| {
            let counter =
                CounterKey { prefix: "", domain, entries, matched: matched.as_ref(), own_levels, limit };
            let counted = entries.iter().enumerate();
            let counted = counted.map(|(level, entry)| {
                let value = counter.shared(level).unwrap_or(entry.value);
                (entry.key, Some(value))
            });
            PartitionKey::of(&text::entries::write(counted))
        };
        let changing = limited.overridden.as_ref().filter(|found| found.action.changes_limits());
        let of_override = changing.map(|found| (found, key(found.exact_levels())));
        Some(Self { of_rule: key(0), of_override })
    }

    pub(super) fn of_limit(&self, limit: &Limit) -> PartitionKey {
        match self.of_override {
            Some((found, key)) if found.changes(limit) => key,
            _ => self.of_rule,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_beginning_of_the_sha_256_of_the_entries() {
        // printf %s client=ann | openssl sha256 -binary | head -c 12 | base64
        let mut text = String::new();
        PartitionKey::of("client=ann").write(&mut text);
        assert_eq!(text, ";pk=:KrutHcX8b4uyl2Uj:");
    }
}
