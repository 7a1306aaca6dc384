//! The budget of memory: one figure, `MEMORY_LIMIT`, of which every bound on memory is a share.
//!
//! [`Bound`] is the table. The defaults of the variables of single bounds come from it, and so do the table of
//! docs/reference/operating.md, `status`, and `tollgate_memory_bound_bytes`. The shares together, with [`BASE`], leave a quarter
//! free: for what the allocator keeps, for the largest requests while they are decided, and for the kernel.

use std::fmt::Write as _;

use super::{
    parse::at_least,
    reader::Reader,
    vars::{self, MemoryVars, Var},
};

text::named! {
    /// What callers or operators can fill.
    pub enum Bound {
        Rules = "rules",
        Counters = "counters",
        InflightRequests = "inflight_requests",
        GrpcConnections = "grpc_connections",
        HttpConnections = "http_connections",
        JsonBodies = "json_bodies",
        AdminBodies = "admin_bodies",
        AdminReplies = "admin_replies",
        TlsHandshakes = "tls_handshakes",
        Holds = "holds",
        QueuedSettles = "queued_settles",
        Leases = "leases",
        Overrides = "overrides",
        RecentRequests = "recent_requests",
        Series = "series",
        Quotas = "quotas",
        LocalCache = "local_cache",
    }
}

/// What the process takes by itself: code and threads, tables of top keys, the log, and the read buffers.
pub const BASE: usize = 12 << 20;

/// The largest request by default.
const REQUEST: usize = 4 << 20;

/// What a connection has with TLS, with the part of an unfinished handshake that is not charged.
const TLS_CONNECTION: usize = 24 << 10;

/// The memory beyond which rules have a larger share.
const SMALL: usize = 128 << 20;

/// The limit of the deployments.
const MEDIUM: usize = 256 << 20;

/// The memory beyond which overrides have most of what is added, and rules little.
const LARGE: usize = 512 << 20;

/// The memory beyond which rules have a larger share again: most other bounds are at their largest there.
const HUGE: usize = 1 << 30;

/// What a series takes while it is exported over OTLP, measured without huge pages. A rule has about one for each value.
const EXPORTED_SERIES: usize = 320;

/// A value of a rule has a dozen bytes of text, and comments have some.
const TEXT_OF_A_VALUE: usize = 32;

/// The default of a bound.
pub struct BoundShare {
    /// Of the memory.
    thousandths: usize,
    /// From so many bytes of memory on, these thousandths of what is beyond, in ascending order.
    beyond: &'static [(usize, usize)],
    /// The bytes of one of what the variable counts, measured.
    pub unit: usize,
    least: usize,
    most: usize,
    pub var: Option<&'static Var>,
    pub content: &'static str,
}

const fn share(share: usize, (least, most): (usize, usize), content: &'static str) -> BoundShare {
    BoundShare { thousandths: share, beyond: &[], unit: 1, least, most, var: None, content }
}

impl BoundShare {
    /// The bytes of this share of the memory.
    fn bytes(&self, memory: usize) -> usize {
        let mut bytes = 0_usize;
        let mut end = memory;
        for (from, thousandths) in self.beyond.iter().rev() {
            bytes = bytes.saturating_add((end.saturating_sub(*from) / 1000).saturating_mul(*thousandths));
            end = end.min(*from);
        }
        bytes.saturating_add((end / 1000).saturating_mul(self.thousandths))
    }

    const fn of(self, unit: usize, var: &'static Var) -> Self {
        Self { unit, var: Some(var), ..self }
    }
}

impl Bound {
    pub const fn share(self) -> BoundShare {
        match self {
            Self::Rules => BoundShare {
                beyond: &[(SMALL, 355), (MEDIUM, 320), (LARGE, 30), (HUGE, 150)],
                ..share(195, (2_000, usize::MAX), "rules: two sets, and the reading of a third")
                    .of(300, &vars::RULES_MAX_VALUES.var)
            },
            Self::Counters => share(80, (10_000, 10_000_000), "counters in memory and sliding logs")
                .of(64, &vars::MEMORY_MAX_KEYS.var),
            Self::InflightRequests => {
                share(64, (1 << 20, 64 << 20), "incomplete requests and unread responses")
                    .of(1, &vars::GRPC_MAX_INFLIGHT_BYTES.var)
            }
            Self::GrpcConnections => {
                share(50, (64, 10_000), "connections to the gRPC port, with or without TLS")
                    .of(8 << 10, &vars::GRPC_MAX_CONNECTIONS.var)
            }
            Self::HttpConnections => {
                share(42, (16, 512), "connections to the four HTTP ports, and as many that wait for a place")
                    .of(160 << 10, &vars::HTTP_MAX_CONNECTIONS.var)
            }
            Self::JsonBodies => share(32, (1 << 20, 32 << 20), "bodies of requests to `/json`"),
            // The largest body has half of it.
            Self::AdminBodies => share(16, (4 << 20, 16 << 20), "bodies of calls of the admin API"),
            // The largest one has 4 MiB and its last override.
            Self::AdminReplies => {
                share(26, (17 << 18, 20 << 20), "replies of the admin API that are being sent")
            }
            Self::TlsHandshakes => share(16, (1 << 20, 32 << 20), "unfinished TLS handshakes"),
            Self::Holds => {
                share(14, (1 << 10, 256 << 20), "open holds in memory").of(1, &vars::HOLDS_MAX_BYTES.var)
            }
            Self::QueuedSettles => share(8, (100, 100_000), "settles and ends that wait for the store")
                .of(256, &vars::HOLDS_MAX_QUEUED.var),
            Self::Leases => share(10, (100, 100_000), "keys with a lease").of(256, &vars::LEASE_MAX_KEYS.var),
            Self::Overrides => BoundShare {
                // An import may replace all, which are in memory twice then.
                unit: 560,
                beyond: &[(LARGE, 324)],
                ..share(24, (1_000, 2_000_000), "overrides, in force and of an import in progress")
            },
            Self::RecentRequests => share(8, (0, 16 << 20), "requests to try rules on")
                .of(1, &vars::RECENT_REQUESTS_MAX_BYTES.var),
            Self::Series => {
                share(14, (100, 10_000), "series named by requests").of(1_536, &vars::METRICS_MAX_SERIES.var)
            }
            Self::Quotas => {
                share(20, (1 << 20, 64 << 20), "buckets of Envoys, among which limits are divided")
            }
            Self::LocalCache => share(0, (0, 0), "the over-limit cache, which is off by default")
                .of(1, &vars::LOCAL_CACHE_SIZE_IN_BYTES.var),
        }
    }
}

/// The memory that the process may use, as it was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Available {
    pub bytes: usize,
    /// The limit of a cgroup, or the machine's memory.
    pub is_limit: bool,
}

/// That of a system that does not tell.
impl Default for Available {
    fn default() -> Self {
        Self { bytes: 8 << 30, is_limit: false }
    }
}

/// The bounds of this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Memory {
    pub limit: usize,
    /// What sets the limit: `MEMORY_LIMIT`, `cgroup` or `machine`.
    pub set_by: &'static str,
    /// The amounts by the number of their bound, each with the bytes of one.
    amounts: [(usize, usize); Bound::ALL.len()],
}

impl Memory {
    /// The bounds, whose defaults the reader has from now on.
    pub(super) fn read(reader: &mut Reader<'_>, available: Available) -> Self {
        let MemoryVars { limit } = MemoryVars::read(reader);
        let (limit, set_by) = match limit {
            Some(limit) => (limit, "MEMORY_LIMIT"),
            None if available.is_limit => (available.bytes, "cgroup"),
            // The rest is for other programs.
            None => (available.bytes / 2, "machine"),
        };
        reader.derive(&vars::MEMORY_LIMIT, limit.to_string());
        let has_tls =
            reader.raw(&vars::GRPC_SERVER_USE_TLS).is_some_and(|text| text.starts_with(['t', 'T', '1']));
        let is_exported = reader.read(&vars::OTEL_METRICS_EXPORTER);
        let mut memory = Self { limit, set_by, amounts: [(0, 1); Bound::ALL.len()] };
        for bound in Bound::ALL {
            let share = bound.share();
            let BoundShare { mut unit, least, most, var, .. } = share;
            if bound == Bound::GrpcConnections && has_tls {
                unit = TLS_CONNECTION;
            }
            if is_exported && matches!(bound, Bound::Rules | Bound::Series) {
                unit += EXPORTED_SERIES;
            }
            let default = (share.bytes(limit) / unit).clamp(least, most);
            let set = var.and_then(|var| reader.raw(var)).and_then(|text| at_least::<0>(&text).ok());
            memory.set(bound, set.unwrap_or(default), unit);
            if let Some(var) = var {
                reader.derive(var, default.to_string());
            }
        }
        let request = (memory.bytes(Bound::InflightRequests) / 4).clamp(1, REQUEST);
        reader.derive(&vars::GRPC_MAX_REQUEST_BYTES, request.to_string());
        let request = reader.raw(&vars::GRPC_MAX_REQUEST_BYTES).and_then(|text| at_least::<0>(&text).ok());
        let request = request.unwrap_or(REQUEST);
        if reader.is_set(&vars::GRPC_MAX_REQUEST_BYTES) {
            // Large requests share half of it, and the largest one must fit.
            memory.at_least(Bound::InflightRequests, 4_usize.saturating_mul(request));
            memory.at_least(Bound::JsonBodies, 2_usize.saturating_mul(request));
        }
        let sum = memory.sum();
        let limit = memory.limit;
        if sum > limit {
            let message = format!(
                "the bounds together are {sum} bytes, of {limit}: when all of them are full, the process may be killed; \
                 raise the limit or lower what is set (docs/reference/operating.md#memory)"
            );
            reader.warn(&vars::MEMORY_LIMIT, message);
        }
        memory
    }

    fn set(&mut self, bound: Bound, amount: usize, unit: usize) {
        if let Some(place) = self.amounts.get_mut(bound as usize) {
            *place = (amount, unit);
        }
    }

    fn at_least(&mut self, bound: Bound, bytes: usize) {
        if self.bytes(bound) < bytes {
            self.set(bound, bytes, 1);
        }
    }

    /// The bound, in what it counts.
    pub fn amount(&self, bound: Bound) -> usize {
        self.amounts.get(bound as usize).map_or(0, |(amount, _)| *amount)
    }

    /// The memory of one of what the bound counts.
    pub fn unit(&self, bound: Bound) -> usize {
        self.amounts.get(bound as usize).map_or(1, |(_, unit)| *unit)
    }

    /// The bound in bytes.
    pub fn bytes(&self, bound: Bound) -> usize {
        self.amount(bound).saturating_mul(self.unit(bound))
    }

    /// The most bytes of rules files, or of a control plane's response.
    pub fn text_of_rules(&self) -> usize {
        self.amount(Bound::Rules).saturating_mul(TEXT_OF_A_VALUE)
    }

    /// Everything full.
    pub fn sum(&self) -> usize {
        Bound::ALL.into_iter().map(|bound| self.bytes(bound)).fold(BASE, usize::saturating_add)
    }
}

/// The table as Markdown, with the defaults at two limits.
pub fn markdown() -> String {
    let at = [128, 256, 4096].map(|mib| {
        let env = |name: &str| (name == vars::MEMORY_LIMIT.name).then(|| format!("{mib}Mi"));
        let available = Available { bytes: 0, is_limit: false };
        Memory::read(&mut Reader::new(&env, &|_| true), available)
    });
    let mut text = "| bound | memory for | variable | at 128 MiB | at 256 MiB | at 4 GiB |\n|---|---|---|---:|---:|---:|\n".to_owned();
    let mib = |bytes: usize| format!("{}.{}", bytes >> 20, ((bytes & 0xf_ffff) * 10) >> 20);
    for bound in Bound::ALL {
        let BoundShare { var, content, .. } = bound.share();
        let variable = var.map_or_else(String::new, |var| format!("`{}`", var.name));
        let sizes = at.each_ref().map(|memory| mib(memory.bytes(bound))).join(" | ");
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(text, "| `{}` | {content} | {variable} | {sizes} |", bound.name());
    }
    let _ = writeln!(text, "| | the process itself | | {0} | {0} | {0} |", mib(BASE));
    let sums = at.each_ref().map(|memory| mib(memory.sum())).join(" | ");
    let _ = writeln!(text, "| | all of them full, in MiB | | {sums} |");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;

    fn read(variables: &[(&str, &str)], available: Available) -> (Settings, String) {
        let env =
            |name: &str| variables.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
        let (settings, warnings) = Settings::read(&env, &|_| true, 1, available).unwrap();
        (settings, warnings.iter().map(ToString::to_string).collect())
    }

    fn limited(mib: usize) -> Memory {
        read(&[], Available { bytes: mib << 20, is_limit: true }).0.memory
    }

    #[test]
    fn everything_full_leaves_a_quarter_free_at_the_limit_of_the_deployments_and_at_half_of_it() {
        for mib in (128..2048).step_by(16).chain([2048, 4096, 12 << 10, 256 << 10]) {
            let (memory, most) = (limited(mib), (mib << 20) / 4 * 3);
            assert!(memory.sum() <= most, "{mib} MiB: {} of {most}: {memory:?}", memory.sum());
        }
    }

    #[test]
    fn twenty_two_thousand_plain_rules_fit_into_the_limit_of_the_deployments() {
        // `{key: client, value: c1, rate_limit: {unit: minute, requests_per_unit: 10}}`, and the file with its domain.
        assert!(limited(256).amount(Bound::Rules) >= 22_000 * 11 + 5);
    }

    #[test]
    fn rules_follow_the_memory_upwards() {
        for (mib, rules) in
            [(64, 3_900), (512, 48_000), (1280, 60_000), (12 << 10, 300_000), (48 << 10, 2_000_000)]
        {
            let memory = limited(mib);
            assert!(memory.amount(Bound::Rules) >= rules * 11 + 5, "{mib} MiB: {memory:?}");
            // Written out with indentation, a plain rule has 110 bytes.
            assert!(memory.text_of_rules() >= rules * 110, "{mib} MiB");
        }
        assert!(limited(64).amount(Bound::Rules) < 60_000 * 11);
    }

    #[test]
    fn exported_series_are_counted_with_the_rules_and_names_that_have_them() {
        let available = Available { bytes: 64 << 20, is_limit: true };
        let exported = read(&[("OTEL_METRICS_EXPORTER", "otlp")], available).0.memory;
        for bound in [Bound::Rules, Bound::Series] {
            let plain = limited(64);
            assert_eq!(exported.unit(bound), plain.unit(bound) + EXPORTED_SERIES);
            assert!(exported.amount(bound) < plain.amount(bound));
        }
    }

    #[test]
    fn a_large_machine_has_the_largest_bounds() {
        let (settings, warnings) = read(&[], Available { bytes: 64 << 30, is_limit: false });
        assert_eq!(settings.memory.limit, 32 << 30);
        assert_eq!(
            (
                settings.server.grpc.max_connections,
                settings.server.max_inflight_bytes,
                settings.store.max_keys
            ),
            (10_000, 64 << 20, 10_000_000)
        );
        assert_eq!(settings.server.grpc.max_request_bytes, 4 << 20);
        assert!(settings.rules.max_values > 1_000_000 * 11, "{}", settings.rules.max_values);
        assert_eq!(warnings, "");
    }

    #[test]
    fn the_variable_precedes_the_limit_of_the_cgroup_and_single_bounds_precede_both() {
        let cgroup = Available { bytes: 256 << 20, is_limit: true };
        assert_eq!(read(&[], cgroup).0.memory.set_by, "cgroup");
        let (settings, _) = read(&[("MEMORY_LIMIT", "1Gi"), ("HOLDS_MAX_BYTES", "2048")], cgroup);
        assert_eq!((settings.memory.limit, settings.memory.set_by), (1 << 30, "MEMORY_LIMIT"));
        assert_eq!((settings.memory.bytes(Bound::Holds), settings.store.holds.bytes), (2048, 2048));
        assert!(settings.store.max_keys > read(&[], cgroup).0.store.max_keys);
        let (_, warnings) = read(&[("MEMORY_MAX_KEYS", "10000000")], cgroup);
        assert!(warnings.contains("MEMORY_LIMIT: the bounds together are "), "{warnings}");
    }

    #[test]
    fn the_largest_request_fits_into_its_bounds() {
        for (mib, request) in [(64, "65536"), (128, ""), (256, ""), (256, "33554432"), (4096, "")] {
            let available = Available { bytes: mib << 20, is_limit: true };
            let (settings, _) = read(&[("GRPC_MAX_REQUEST_BYTES", request)], available);
            let most = settings.server.grpc.max_request_bytes;
            assert!(settings.server.max_inflight_bytes >= 4 * most, "{mib}: {most}");
            assert!(settings.memory.bytes(Bound::JsonBodies) >= 2 * most, "{mib}: {most}");
            assert!(settings.memory.bytes(Bound::InflightRequests) >= 4 * most, "{mib}: {most}");
        }
    }
}
