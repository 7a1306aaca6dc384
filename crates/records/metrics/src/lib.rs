//! Metrics of the rules and of the service.
//!
//! Reading order: `rule` and `service` hold the counters, which [`shard`] spreads over cores; `registry` finds a rule's
//! counters by name; [`mod@rows`] declares the metrics with their values; `prometheus` makes the page and [`mapper`]
//! renames it. The limiter, the source of rules and the server count, with ready handles ([`RuleStats`]) and in the shard
//! of their worker; the server and statsd read the sums.
//!
//! Counters are kept by the rule's full key, which is its statsd name; the page makes the labels of Prometheus from it.
//! All series of a rule appear with its first hit.
//!
//! # The bound on series
//!
//! * The rules of the files are not bounded here: their operator bounds them.
//! * Names made from requests (`detailed_metric`, `value_to_metric`, limit overrides) and domains without rules share
//!   [`StatsOptions::max_series`] series, of which invented domains get a tenth at most. A series takes room with its
//!   first hit. A new series never replaces an older one, so that a caller who invents values cannot remove series that
//!   operators watch. Once a series was refused, names idle for an hour are evicted. Hits without room count in the
//!   series `__overflow__` of their domain, and in `tollgate_metrics_series_overflow_total`.
//! * Such a name has at most 200 bytes after its domain. A longer one ends in `~` and a hash of the complete name, so
//!   that two names never share a series.
//! * A rule that a reload removes keeps its counts in case it returns. Removed rules are evicted only when there are
//!   more rules than after the last search, and more than `max_series`. A rule that may still be counted is never
//!   evicted, nor is a rule that shares a series with one that stays, so that no counter on the page decreases. An
//!   evicted rule that returns starts at zero.

mod directory;
mod domains;
pub mod histogram;
mod holds;
pub mod labels;
pub mod mapper;
pub mod names;
pub mod page;
mod prometheus;
mod quotas;
mod registry;
mod room;
pub mod rows;
pub mod rule;
mod service;
pub mod shard;
pub mod statsd_names;
#[cfg(test)]
mod tests;
mod unknown_domains;
mod usage;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use self::{
    domains::Domains, mapper::Mapped, registry::Registry, room::Room, unknown_domains::UnknownDomains,
};
use clock::Time;
use faults::mutex::lock;

pub use self::{
    domains::{DomainRequests, DomainStats, LENIENT, ResponseCode, UNKNOWN_DOMAIN},
    histogram::Histogram,
    holds::{HoldBound, HoldEnd, Holds, RuleHolds},
    names::{Metric, MetricType, RuleCounter},
    page::{Samples, Value},
    prometheus::{CONTENT_TYPE, Gauges},
    quotas::{QuotaRefused, Quotas},
    rule::RuleStats,
    service::{
        AdminChanges, CallerLeft, ChangeResult, ConnectionClosed, ConnectionRefused, Method, PeerError,
        PointResult, Port, RejectReason, ServiceStats, Unauthorized,
    },
    shard::{Counter, ShardCount},
    usage::{
        Distribution, FailureReason, LeaseCounts, LeaseState, LeaseUsage, PoolUsage, StoreKind, StoreUsage,
        TableUsage, count_dropped_log_lines, log_lines_dropped,
    },
};

/// The key, or the domain, that counts everything without room.
pub const OVERFLOW: &str = "__overflow__";

/// The default bound on series made from requests: with the longest names, a page of 3 MB. A name has two series after
/// its first hit, and four or five once it is over its limit.
pub const DEFAULT_MAX_SERIES: usize = 10_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatsOptions {
    /// The bound on series made from requests (`METRICS_MAX_SERIES`).
    pub max_series: usize,
    pub commit: &'static str,
    /// Hits over the limit pass, by `SHADOW_MODE`.
    pub shadow_mode: bool,
}

impl Default for StatsOptions {
    fn default() -> Self {
        Self { max_series: DEFAULT_MAX_SERIES, commit: "unknown", shadow_mode: false }
    }
}

pub enum Exposition {
    Own {
        /// Response times in milliseconds, though their name has the unit seconds
        /// (`PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS`).
        in_milliseconds: bool,
    },
    /// The names of a mapper file (`PROMETHEUS_MAPPER_YAML`).
    Mapped(Box<Mapped>),
}

impl Default for Exposition {
    fn default() -> Self {
        Self::Own { in_milliseconds: false }
    }
}

/// All statistics of one service, shared by its modules.
pub struct Stats {
    room: Arc<Room>,
    registry: Registry,
    unknown_domains: UnknownDomains,
    domains: Domains,
    holds: Holds,
    quotas: Quotas,
    /// The current rules that always count under their own names. The page shows them from the start, at 0.
    in_service: Mutex<Vec<Arc<RuleStats>>>,
    /// A domain and a reason each.
    not_enforced: Mutex<Vec<[String; 2]>>,
    service: ServiceStats,
    exposition: Exposition,
    /// The commit that the program was built from, or `unknown`.
    pub commit: &'static str,
    shadow_mode: bool,
    #[cfg(target_os = "linux")]
    process: ::prometheus::process_collector::ProcessCollector,
}

impl Stats {
    /// The number of series named by requests.
    pub fn series(&self) -> usize {
        self.room.taken()
    }

    /// Visits every rule that counted. A rule added meanwhile may be left out.
    pub fn for_each_rule(&self, visit: impl FnMut(&RuleStats, [u64; RuleCounter::ALL.len()])) {
        self.registry.for_each(visit);
    }

    /// Visits every requested domain without rules with the number of its counter and its requests.
    pub fn for_each_unknown_domain(&self, visit: impl FnMut(&str, u64, u64)) {
        self.unknown_domains.for_each(visit);
    }

    pub fn new(options: StatsOptions) -> Self {
        let room = Room::new(options.max_series);
        Self {
            registry: Registry::new(room.clone()),
            unknown_domains: UnknownDomains::new(&room),
            domains: Domains::new(),
            holds: Holds::new(),
            quotas: Quotas::default(),
            in_service: Mutex::default(),
            not_enforced: Mutex::default(),
            room,
            service: ServiceStats::default(),
            exposition: Exposition::default(),
            commit: options.commit,
            shadow_mode: options.shadow_mode,
            #[cfg(target_os = "linux")]
            process: ::prometheus::process_collector::ProcessCollector::for_self(),
        }
    }

    pub fn shown(self, exposition: Exposition) -> Self {
        Self { exposition, ..self }
    }

    /// The counters of a rule by its full key, `domain.key_value.key2…`, created on first use. Called when rules are
    /// published, not for requests.
    pub fn rule(&self, domain: &str, full_key: &str) -> Arc<RuleStats> {
        self.registry.rule(domain, full_key)
    }

    /// The requests of a domain. Called when rules are published, not for requests.
    pub fn domain(&self, name: &str) -> Arc<DomainStats> {
        self.domains.domain(name)
    }

    /// The requests of domains without rules, and those rejected before the domain was looked up.
    pub fn unknown_domain(&self) -> &DomainStats {
        &self.domains.unknown
    }

    pub fn holds(&self) -> &Holds {
        &self.holds
    }

    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// Replaces the rules that the page shows before they count.
    pub fn set_in_service(&self, mut rules: Vec<Arc<RuleStats>>) {
        rules.sort_unstable_by_key(Arc::as_ptr);
        rules.dedup_by_key(|rule| Arc::as_ptr(rule));
        *lock(&self.in_service) = rules;
    }

    /// The counters of a full key made from a request; without room, those of the overflow of `domain`, which must
    /// be a domain of the rules. A known key costs one lookup.
    pub fn dynamic(&self, domain: &str, full_key: &str, now: Time) -> Arc<RuleStats> {
        self.registry.dynamic(domain, full_key, now)
    }

    /// The counters of a full key made by the limit override of a request; `None` if such keys have taken their part of
    /// the room.
    pub fn of_override(&self, domain: &str, full_key: &str, now: Time) -> Option<Arc<RuleStats>> {
        self.registry.of_override(domain, full_key, now)
    }

    /// The current rules without hits, in the order of their addresses; none if there are too many to show.
    fn idle_in_service(&self) -> Vec<Arc<RuleStats>> {
        let rules = lock(&self.in_service);
        let is_shown = rules.len() * 3 <= self.room.max;
        rules.iter().filter(|rule| is_shown && rule.counts().is_none()).cloned().collect()
    }

    /// Counts a request for a domain that has no rules.
    pub fn domain_not_found(&self, domain: &str, now: Time) {
        self.unknown_domains.count(domain, now);
    }

    /// Forgets series of callers that were idle for an hour, if others found no room. Called periodically.
    pub fn maintain(&self, now: Time) {
        let is_due = self.room.is_search_due(now);
        if self.registry.room_for_overrides.is_search_due(now) || is_due {
            self.registry.make_room(now);
        }
        self.unknown_domains.make_room(now, is_due);
    }

    /// The requests of all domains, in the order of [`ResponseCode::ALL`].
    pub fn requests_by_code(&self) -> [u64; ResponseCode::ALL.len()] {
        self.domains.by_code()
    }

    /// All requests. Envoys report any number of them, so a sum ends at the greatest.
    pub fn requests(&self) -> u64 {
        self.requests_by_code().into_iter().fold(0, u64::saturating_add)
    }

    pub fn max_series(&self) -> usize {
        self.room.max
    }

    /// The requests of each domain since the start.
    pub fn requests_by_domain(&self) -> BTreeMap<Box<str>, DomainRequests> {
        self.domains.requests()
    }

    /// Replaces the domains whose limits are not enforced, and why, that the page shows.
    pub fn set_not_enforced(&self, all: Vec<[String; 2]>) {
        *lock(&self.not_enforced) = all;
    }

    pub fn service(&self) -> &ServiceStats {
        &self.service
    }
}
