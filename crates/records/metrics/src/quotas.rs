//! Metrics of limits that are divided among Envoys (RLQS): streams, reports, and the actions that answer them.

use super::shard::Counter;

text::named! {
    /// The actions of a response, by what they assign.
    pub enum QuotaAction {
        /// A token bucket.
        Tokens = "tokens",
        AllowAll = "allow",
        DenyAll = "deny",
        Abandon = "abandon",
    }
}

text::named! {
    /// Why a bucket of a report is not divided.
    pub enum QuotaRefused {
        EmptyId = "empty_id",
        /// `MAX_ENTRIES_PER_DESCRIPTOR`.
        TooManyEntries = "too_many_entries",
        IdTooLarge = "id_too_large",
        /// A key or a value is not UTF-8.
        InvalidText = "invalid_text",
        /// `QUOTA_MAX_BUCKETS`.
        TooManyBuckets = "max_buckets",
        /// `QUOTA_MAX_BUCKETS_PER_STREAM`.
        TooManyOfStream = "max_buckets_per_stream",
        /// Its rule holds, which cannot be divided.
        Holds = "holds",
    }
}

#[derive(Default)]
pub struct Quotas {
    pub streams_opened: Counter,
    /// Counted in place of the open ones because a number that only grows can be sharded.
    pub streams_closed: Counter,
    pub reports: Counter,
    pub allowed_hits: Counter,
    pub denied_hits: Counter,
    pub reserved_hits: Counter,
    pub returned_hits: Counter,
    actions: [Counter; QuotaAction::ALL.len()],
    refused: [Counter; QuotaRefused::ALL.len()],
}

impl Quotas {
    pub fn actions(&self, action: QuotaAction) -> &Counter {
        &self.actions[action as usize]
    }

    pub fn refused(&self, reason: QuotaRefused) -> &Counter {
        &self.refused[reason as usize]
    }

    /// The closed ones are read first, so that there are never fewer than none.
    pub fn streams_open(&self) -> u64 {
        let closed = self.streams_closed.get();
        self.streams_opened.get().saturating_sub(closed)
    }
}
