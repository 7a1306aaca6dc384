//! Custom metric names: `PROMETHEUS_MAPPER_YAML`, a file in the format of Prometheus's `statsd_exporter`.
//!
//! Reading order: [`Mapper`] maps a statsd name; `pattern` matches names and expands references; [`read()`] parses a
//! file; [`Mapped`] renders the page. A metric that no mapping matches keeps its default name and labels.

mod file;
mod page;
mod pattern;
mod series;
#[cfg(test)]
mod tests;

pub use self::{file::read, page::Mapped};

use self::pattern::{Pattern, escaped};
use super::names::MetricType;

#[derive(Debug, Default)]
pub struct Mapper {
    mappings: Vec<Mapping>,
    /// The most specific glob applies, not the first (`glob_disable_ordering`).
    specific_first: bool,
}

#[derive(Debug)]
struct Mapping {
    pattern: Pattern,
    /// The type of metric that it is limited to.
    only: Option<MetricType>,
    /// `None` drops the metric.
    target: Option<Target>,
}

#[derive(Debug)]
struct Target {
    name: String,
    /// Names and values, in the order of the names.
    labels: Vec<(String, String)>,
    help: Option<String>,
    scale: Option<f64>,
    /// The shown buckets; `None` for all.
    buckets: Option<Vec<usize>>,
}

enum MappingResult<'m> {
    Unmapped,
    Dropped,
    Mapped { name: String, labels: Vec<(&'m str, String)>, target: &'m Target },
}

impl Mapper {
    /// Maps a statsd name. As in `statsd_exporter`, globs take precedence over regular expressions in any order.
    fn map(&self, statsd: &str, kind: MetricType) -> MappingResult<'_> {
        let of_kind = |mapping: &&Mapping| mapping.only.is_none_or(|only| only == kind);
        let matching = |is_glob| {
            let mappings = self
                .mappings
                .iter()
                .filter(of_kind)
                .filter(move |mapping| mapping.pattern.is_glob == is_glob);
            mappings.filter_map(|mapping| Some((mapping, mapping.pattern.regex.captures(statsd)?)))
        };
        let glob = if self.specific_first {
            // `max_by` returns the last of equals; the first one applies.
            matching(true).rev().max_by(|(a, _), (b, _)| a.pattern.specificity.cmp(&b.pattern.specificity))
        } else {
            matching(true).next()
        };
        let Some((Mapping { pattern, target, .. }, groups)) = glob.or_else(|| matching(false).next()) else {
            return MappingResult::Unmapped;
        };
        let Some(target) = target else { return MappingResult::Dropped };
        let name = pattern.expand(&target.name, &groups);
        if name.is_empty() {
            return MappingResult::Dropped;
        }
        let labels = target.labels.iter().map(|(label, value)| (&**label, pattern.expand(value, &groups)));
        MappingResult::Mapped { name: escaped(&name), labels: labels.collect(), target }
    }
}

#[cfg(any(test, feature = "testing"))]
pub fn fuzz(bytes: &[u8]) {
    if let Ok((mapper, _)) = read("mapper.yaml", bytes) {
        for name in ["ratelimit.service.rate_limit.d.k.total_hits", "a.b", ""] {
            let _ = mapper.map(name, MetricType::Counter);
        }
    }
}
