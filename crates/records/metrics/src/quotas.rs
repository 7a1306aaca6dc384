//! Metrics of what Envoys report, among which limits are divided (RLQS).

use super::shard::Counter;

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
        /// All buckets have as many bytes as they may: the bound `quotas` of `MEMORY_LIMIT`.
        Memory = "memory",
        /// Its rule holds, which cannot be divided.
        Holds = "holds",
    }
}

#[derive(Default)]
pub struct Quotas {
    pub reports: Counter,
    pub allowed_hits: Counter,
    pub denied_hits: Counter,
    refused: [Counter; QuotaRefused::ALL.len()],
}

impl Quotas {
    pub fn refused(&self, reason: QuotaRefused) -> &Counter {
        &self.refused[reason as usize]
    }
}
