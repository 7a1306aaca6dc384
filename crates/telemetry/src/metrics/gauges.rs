//! The state of other modules: plain values that the caller of [`Stats::render`](super::Stats::render) collects, so that
//! statistics do not depend on those modules.

use std::time::Duration;

use store::{LeaseUsage, PoolUsage, StoreUsage};

/// The state of other modules. Absent values are not shown.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Gauges {
    pub rules: Option<RulesGauges>,
    /// The control plane that sends the rules.
    pub xds: Option<XdsGauges>,
    pub store: Option<StoreUsage>,
    /// The local cache of keys over their limit.
    pub local_cache: Option<LocalCacheGauges>,
    /// The connections to each Redis, or to all servers of memcached.
    pub pools: Vec<PoolUsage>,
    pub leases: Option<LeaseUsage>,
    pub tls: Option<TlsGauges>,
    pub spans: Option<SpanGauges>,
    /// Lines of the decision log, and dropped decisions.
    pub decision_log: Option<(u64, u64)>,
    /// The most refused keys, up to `METRICS_TOP_KEYS`.
    pub top_refused: Vec<TopRefusedGauge>,
    pub overrides: Option<OverrideGauges>,
    /// The number of replicas by the hash of their rules.
    pub replicas: Vec<(String, u64)>,
}

/// One of the most refused keys.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TopRefusedGauge {
    pub domain: String,
    /// Its rule, without the domain.
    pub rule: String,
    pub descriptor: String,
    pub hits: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OverrideGauges {
    /// Their number by action: limit, block, allow, shadow.
    pub by_action: [u64; 4],
    pub bytes: u64,
}

/// The current rules, and attempts to load others.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RulesGauges {
    /// The last successful load, since 1970.
    pub last_success: Option<Duration>,
    /// The last failed load, since 1970.
    pub last_error: Option<Duration>,
    pub loads: u64,
    pub errors: u64,
    /// The last load failed, and previous rules are in force.
    pub load_failed: bool,
    pub hash: Option<String>,
    /// Their files, or resources of a control plane.
    pub files: u64,
    pub domains: u64,
    pub rules: u64,
}

/// The control plane that sends the rules.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct XdsGauges {
    pub connected: bool,
    pub reconnects: u64,
    pub updates: u64,
    pub refused: u64,
    /// The last accepted version.
    pub version: Option<String>,
}

/// The local cache of keys over their limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LocalCacheGauges {
    pub entries: u64,
    /// Lookups that found their key.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    pub lookups: u64,
    /// Keys removed at the end of their window.
    pub expired: u64,
    /// Keys evicted to make room.
    pub evacuated: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TlsGauges {
    /// The expiry of the certificate, since 1970.
    pub certificate_expiry: Duration,
    /// Rejected changes of the files.
    pub reload_errors: u64,
    pub handshake_failures: Vec<(&'static str, u64)>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SpanGauges {
    /// Spans accepted by the collector.
    pub exported: u64,
    pub dropped: Vec<(&'static str, u64)>,
}
