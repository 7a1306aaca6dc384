//! Statistics: what is counted of rules and of the service, and the page that Prometheus scrapes.
//!
//! Reading order: `rule` and `service` hold the counters, [`shard`] is what they are made of, `registry`
//! keeps a rule's counters by name, `prometheus` writes the page, `names` declares every metric; [`mapper`]
//! writes the page by names of the operator's, and [`statsd`](super::statsd) sends what was counted to those who wait for
//! it. The limiter, the source of rules and the server add; the server and the sinks read.
//!
//! Counters are kept by the rule's full key, the name that statsd knows it by; the labels of Prometheus
//! are made from it when the page is written. A rule's series appear, all of them, with its first hit.
//!
//! # What bounds the number of series
//!
//! * The rules of the files always have series of their own: their operator bounds them.
//! * Names made from requests (`detailed_metric`, `value_to_metric`, a limit that the request brings along),
//!   and domains that no rules know, have room for [`StatsOptions::max_series`] series together, of which
//!   invented domains get a tenth at most. A series takes room with its first hit and is shown from then on.
//!   First come, first kept: were a series dropped for a newer one, a caller who invents values could drop
//!   those that are watched. But when there is no room, names that nobody used for an hour are given up. What
//!   finds no room counts in the series `__overflow__` of its domain, and in
//!   `tollgate_metrics_series_overflow_total`.
//! * Such a name has at most 200 bytes behind its domain. A longer one ends in `~` and a hash of the whole, so
//!   that two of them are never one series.
//! * A rule that vanishes with a reload keeps its counts, and finds them again when it comes back. Only
//!   when more rules have come than there were at the last look, and than `max_series`, are vanished ones
//!   forgotten: never one that something could still count on, and never part of a series whose other
//!   rules live, so that no counter on the page goes backwards. One that was forgotten and comes back
//!   starts at zero, as after a restart.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod bounded;
mod changes;
mod directory;
mod domains;
pub(in crate::telemetry) mod gauges;
pub(in crate::telemetry) mod histogram;
pub(in crate::telemetry) mod labels;
pub mod mapper;
pub(in crate::telemetry) mod names;
pub(in crate::telemetry) mod page;
mod prometheus;
mod registry;
mod room;
pub(in crate::telemetry) mod rule;
mod service;
pub mod shard;
pub(in crate::telemetry) mod statsd_names;
#[cfg(test)]
mod tests;
mod unknown_domains;

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use self::{
    domains::Domains, mapper::Mapped, registry::Registry, room::Room, unknown_domains::UnknownDomains,
};
use crate::{clock::Time, mutex::lock};

pub use self::{
    changes::{AdminChanges, ChangeResult},
    domains::{DomainStats, ResponseCode},
    gauges::{
        Gauges, LocalCacheGauges, OverrideGauges, RulesGauges, SpanGauges, StoreGauges, TlsGauges,
        TopRefusedGauge, XdsGauges,
    },
    histogram::Histogram,
    names::{Kind, Metric, documentation},
    prometheus::{COMMIT, CONTENT_TYPE},
    rule::{RuleCounter, RuleStats},
    service::{ConnectionClosed, ConnectionRefused, Method, PeerError, Port, RejectReason, ServiceStats},
    shard::{Counter, ShardCount},
};

/// The key, or the domain, under which everything is counted that found no room.
pub(in crate::telemetry) const OVERFLOW: &str = "__overflow__";

/// The room for series made from requests, unless the operator says otherwise: of names as long as they may
/// be, a page of 3 MB. A name has two series from its first hit on, and four or five when it goes over its
/// limit.
pub const DEFAULT_MAX_SERIES: usize = 10_000;

/// How statistics are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatsOptions {
    /// How many series may be made from requests (`METRICS_MAX_SERIES`).
    pub max_series: usize,
    /// How far counters are spread, so that workers don't wait for each other.
    pub shards: ShardCount,
}

impl Default for StatsOptions {
    fn default() -> Self {
        Self { max_series: DEFAULT_MAX_SERIES, shards: ShardCount::for_workers(1) }
    }
}

/// By which names the page shows what was counted.
#[derive(Debug)]
pub enum Exposition {
    /// By our own.
    Own {
        /// Response times in milliseconds, though their name says seconds
        /// (`PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS`).
        in_milliseconds: bool,
    },
    /// By those that a file gives (`PROMETHEUS_MAPPER_YAML`).
    Mapped(Box<Mapped>),
}

impl Default for Exposition {
    fn default() -> Self {
        Self::Own { in_milliseconds: false }
    }
}

/// All statistics of one service. Shared by all its rooms.
pub struct Stats {
    /// For all series that callers make.
    room: Arc<Room>,
    registry: Registry,
    unknown_domains: UnknownDomains,
    domains: Domains,
    /// The rules in service that always count under their own names. The page shows them at 0 from the start.
    in_service: Mutex<Vec<Arc<RuleStats>>>,
    service: ServiceStats,
    admin_changes: AdminChanges,
    exposition: Exposition,
    #[cfg(target_os = "linux")]
    process: ::prometheus::process_collector::ProcessCollector,
}

impl Stats {
    /// Every rule that counted, with its counters, each read once. A rule that comes meanwhile may be left out.
    pub(in crate::telemetry) fn for_each_rule(
        &self,
        visit: impl FnMut(&RuleStats, [u64; RuleCounter::ALL.len()]),
    ) {
        self.registry.for_each(visit);
    }

    /// Every domain without rules that was requested: its name, its number, and its requests.
    pub(in crate::telemetry) fn for_each_unknown_domain(&self, visit: impl FnMut(&str, u64, u64)) {
        self.unknown_domains.for_each(visit);
    }

    /// Statistics of a service that starts now.
    #[must_use]
    pub fn new(options: StatsOptions) -> Self {
        let room = Room::new(options.max_series);
        Self {
            registry: Registry::new(room.clone(), options.shards),
            unknown_domains: UnknownDomains::new(&room, options.shards),
            domains: Domains::new(options.shards),
            in_service: Mutex::default(),
            room,
            service: ServiceStats::new(options.shards),
            admin_changes: AdminChanges::default(),
            exposition: Exposition::default(),
            #[cfg(target_os = "linux")]
            process: ::prometheus::process_collector::ProcessCollector::for_self(),
        }
    }

    /// The same, shown by other names.
    #[must_use]
    pub fn shown(self, exposition: Exposition) -> Self {
        Self { exposition, ..self }
    }

    /// The counters of a rule, by its full key: `domain.key_value.key2…`. They are made on first use and
    /// are the same ever after. For those who publish rules, not for requests.
    #[must_use]
    pub fn rule(&self, domain: &str, full_key: &str) -> Arc<RuleStats> {
        self.registry.rule(domain, full_key)
    }

    /// The requests of a domain. For those who publish rules, not for requests.
    #[must_use]
    pub fn domain(&self, name: &str) -> Arc<DomainStats> {
        self.domains.domain(name)
    }

    /// The requests of domains without rules, and of those that were refused before their domain was looked up.
    #[must_use]
    pub fn unknown_domain(&self) -> &DomainStats {
        self.domains.unknown()
    }

    /// Rules that the page shows before they count, until others take their place.
    pub fn set_in_service(&self, mut rules: Vec<Arc<RuleStats>>) {
        rules.sort_unstable_by_key(Arc::as_ptr);
        rules.dedup_by_key(|rule| Arc::as_ptr(rule));
        *lock(&self.in_service) = rules;
    }

    /// The counters by a full key made from a request. When it is new and finds no room, those of what
    /// overflows in `domain`, which must be a domain of the rules. A known key costs one look-up.
    #[must_use]
    pub fn dynamic(&self, domain: &str, full_key: &str, now: Time) -> Arc<RuleStats> {
        self.registry.dynamic(domain, full_key, now)
    }

    /// The rules in service that counted nothing yet, where they are few enough to be shown, in the order of their
    /// addresses.
    fn idle_in_service(&self) -> Vec<Arc<RuleStats>> {
        let rules = lock(&self.in_service);
        let is_shown = rules.len().saturating_mul(3) <= self.room.max();
        rules.iter().filter(|rule| is_shown && rule.counts().is_none()).cloned().collect()
    }

    /// Counts a request for a domain that has no rules.
    pub fn domain_not_found(&self, domain: &str, now: Time) {
        self.unknown_domains.count(domain, now);
    }

    /// Gives up series of callers that nobody touched for an hour, if others found no room. To be called every
    /// now and then.
    pub fn maintain(&self, now: Time) {
        let is_due = self.room.is_search_due(now);
        if is_due {
            self.registry.make_room(now);
        }
        if self.unknown_domains.room().is_search_due(now) || is_due {
            self.unknown_domains.make_room(now);
        }
    }

    /// The requests of all domains so far, in the order of [`ResponseCode::ALL`].
    #[must_use]
    pub fn requests_by_code(&self) -> [u64; ResponseCode::ALL.len()] {
        self.domains.by_code()
    }

    /// The changes through the admin API.
    #[must_use]
    pub fn admin_changes(&self) -> &AdminChanges {
        &self.admin_changes
    }

    /// The counters of the service as a whole.
    #[must_use]
    pub fn service(&self) -> &ServiceStats {
        &self.service
    }
}

impl fmt::Debug for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stats").field("service", &self.service).finish_non_exhaustive()
    }
}

/// The element for one variant of an enum.
#[expect(clippy::indexing_slicing, reason = "the arrays have `ALL.len()` elements, one for each variant")]
fn one_of<T, const N: usize>(all: &[T; N], variant: usize) -> &T {
    &all[variant]
}
