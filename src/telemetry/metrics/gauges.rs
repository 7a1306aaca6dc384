//! What the exposition shows of other rooms: plain values that the caller of
//! [`Stats::render`](super::Stats::render) brings along, so that statistics need not know those rooms. Of
//! the store they know the values that it reports about its connections.

use std::time::Duration;

use crate::store::{LeaseUsage, PoolUsage};

/// The present state of the other rooms. What is absent is not shown.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Gauges {
    /// The rules and their reloads.
    pub rules: Option<RulesGauges>,
    /// The control plane, if rules come from one.
    pub xds: Option<XdsGauges>,
    /// The store of counters, when it is in this process.
    pub store: Option<StoreGauges>,
    /// The local cache of keys over their limit, when it is on.
    pub local_cache: Option<LocalCacheGauges>,
    /// The connections to each Redis, or to all servers of memcached, when the counters are there.
    pub pools: Vec<PoolUsage>,
    /// The leases, when some rule has them.
    pub leases: Option<LeaseUsage>,
    /// TLS on the gRPC port, when it is spoken there.
    pub tls: Option<TlsGauges>,
    /// What became of the spans, where there are any.
    pub spans: Option<SpanGauges>,
    /// Lines of the log of decisions, and decisions that it dropped, if it is on.
    pub decision_log: Option<(u64, u64)>,
    /// The most refused keys, as many as `METRICS_TOP_KEYS` wants.
    pub top_refused: Vec<TopRefusedGauge>,
    /// The overrides.
    pub overrides: Option<OverrideGauges>,
    /// How many replicas that share the store serve each rules hash.
    pub replicas: Vec<(String, u64)>,
}

/// A key that is refused often.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TopRefusedGauge {
    /// Its domain.
    pub domain: String,
    /// Its rule, without the domain.
    pub rule: String,
    /// Its descriptor.
    pub descriptor: String,
    /// Refused hits of the last minutes.
    pub hits: u64,
}

/// The overrides in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OverrideGauges {
    /// How many limit, block, allow and shadow.
    pub by_action: [u64; 4],
    /// Memory they take.
    pub bytes: u64,
}

/// The rules that serve, and how the last attempts to load some went.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RulesGauges {
    /// When rules were last taken, since the start of 1970.
    pub last_success: Option<Duration>,
    /// When rules were last refused, since the start of 1970.
    pub last_error: Option<Duration>,
    /// Sets that were taken.
    pub loads: u64,
    /// Sets that were refused.
    pub errors: u64,
    /// The last attempt failed: newer rules are not served.
    pub load_failed: bool,
    /// A hash of the rules that serve, by which replicas are compared.
    pub hash: Option<String>,
    /// Files, or resources of a control plane, they were read from.
    pub files: u64,
    /// Their domains.
    pub domains: u64,
    /// Their limits.
    pub rules: u64,
}

/// The control plane that sends the rules.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct XdsGauges {
    /// There is a connection.
    pub connected: bool,
    /// Attempts to connect after the first.
    pub reconnects: u64,
    /// Responses that came.
    pub updates: u64,
    /// Responses that were refused.
    pub refused: u64,
    /// The version that was accepted last.
    pub version: Option<String>,
}

/// The store of counters in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreGauges {
    /// Counters held.
    pub keys: u64,
    /// Counters it may hold.
    pub keys_max: u64,
    /// Memory they take.
    pub bytes: u64,
    /// Counters evicted because the maximum was reached.
    pub evictions: u64,
    /// Counters given back because their time was over.
    pub expired: u64,
}

/// The local cache of keys that are known to be over their limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LocalCacheGauges {
    /// Keys held.
    pub entries: u64,
    /// Look-ups that found their key.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Look-ups.
    pub lookups: u64,
    /// Keys dropped because their window was over.
    pub expired: u64,
    /// Keys dropped to make room.
    pub evacuated: u64,
}

/// TLS on the gRPC port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TlsGauges {
    /// When the certificate that is served expires, since the start of 1970.
    pub certificate_expiry: Duration,
    /// Changes of the files that were refused.
    pub reload_errors: u64,
    /// Handshakes that failed, by the name of the reason.
    pub handshake_failures: Vec<(&'static str, u64)>,
}

/// What became of the spans.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SpanGauges {
    /// Spans that the collector has taken.
    pub exported: u64,
    /// Spans that were dropped, by the name of the reason.
    pub dropped: Vec<(&'static str, u64)>,
}
