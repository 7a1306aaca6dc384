//! How rules are compiled.

use limit::{Countable, CountingMode};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompileOptions {
    /// Several files may have the same domain; their descriptors are joined (`MERGE_DOMAIN_CONFIG`).
    pub merge_domains: bool,
    /// Warn about extensions, which the Go service rejects.
    pub portable: bool,
    /// What only `tollgate check` reports: a warning about limits beyond 32 bits, which the Go service cannot load, and an
    /// error about a second document, which neither reads.
    pub strict: bool,
    pub countable: Countable,
    /// The counting mode of limits without `counting` (`COUNTING`).
    pub counting: CountingMode,
    /// A month is that of UTC's calendar instead of 30 days (`USE_CALENDAR_MONTH_RATE_LIMIT`).
    pub calendar_months: bool,
    /// The maximum number of values in all files, with aliases expanded (`RULES_MAX_VALUES`).
    pub max_values: usize,
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self {
            merge_domains: false,
            portable: false,
            strict: false,
            countable: Countable::default(),
            counting: CountingMode::default(),
            calendar_months: false,
            max_values: DEFAULT_MAX_VALUES,
        }
    }
}

/// The bound where no settings are read: 45,000 plain rules.
const DEFAULT_MAX_VALUES: usize = 500_000;
