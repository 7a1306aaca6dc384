//! The page of metrics by names of the operator's own: `PROMETHEUS_MAPPER_YAML`, a file in the format of
//! Prometheus's `statsd_exporter`.
//!
//! Reading order: [`Mapper`] says what becomes of a statsd name; `pattern` matches names and fills in
//! what was matched; [`read()`] makes a mapper of a file; [`Mapped`] writes the page by it. A metric
//! that no mapping matches keeps the name and the labels that it has without a mapper.

mod file;
mod page;
mod pattern;
mod series;
#[cfg(test)]
mod tests;

pub use self::{file::read, page::Mapped};

use self::pattern::{Captured, Pattern, escaped};
use super::names::Kind;

/// The mappings of a file.
#[derive(Debug, Default)]
pub struct Mapper {
    mappings: Vec<Mapping>,
    /// Of the globs that match, the most specific counts and not the first (`glob_disable_ordering`).
    specific_first: bool,
}

/// One item of the file.
#[derive(Debug)]
struct Mapping {
    pattern: Pattern,
    /// The only kind of metric it is for.
    only: Option<Kind>,
    /// What the metric becomes; none when it is to vanish.
    target: Option<Target>,
}

/// What a metric becomes.
#[derive(Debug)]
struct Target {
    name: String,
    /// By their names, in that order.
    labels: Vec<(String, String)>,
    help: Option<String>,
    scale: Option<f64>,
    /// Which of our buckets are shown; none for all.
    buckets: Option<Vec<usize>>,
}

/// What becomes of a metric.
#[derive(Debug)]
enum MappingResult<'m> {
    /// No mapping matches.
    Unmapped,
    /// It is not shown.
    Dropped,
    /// It gets this name and these labels.
    Mapped { name: String, labels: Vec<(&'m str, String)>, target: &'m Target },
}

impl Mapper {
    /// What becomes of the metric with this statsd name.
    ///
    /// Globs come before regular expressions wherever they stand in the file, as in `statsd_exporter`.
    fn map(&self, statsd: &str, kind: Kind) -> MappingResult<'_> {
        let parts: Vec<&str> = statsd.split('.').collect();
        let fits = |mapping: &&Mapping| mapping.only.is_none_or(|only| only == kind);
        let globs = self.mappings.iter().filter(fits).filter_map(|mapping| {
            let captured = mapping.pattern.glob(&parts)?;
            Some((mapping, Captured::Parts(captured)))
        });
        let found = if self.specific_first {
            // The last of equals would win; the first of them is to.
            globs.rev().max_by_key(|(mapping, _)| mapping.pattern.specificity())
        } else {
            let mut globs = globs;
            globs.next()
        };
        let found = found.or_else(|| {
            self.mappings.iter().filter(fits).find_map(|mapping| {
                let captured = mapping.pattern.regex(statsd)?;
                Some((mapping, Captured::Groups(captured)))
            })
        });
        let Some((mapping, captured)) = found else { return MappingResult::Unmapped };
        let Some(target) = &mapping.target else { return MappingResult::Dropped };
        let name = captured.fill(&target.name);
        if name.is_empty() {
            return MappingResult::Dropped;
        }
        let labels = target.labels.iter().map(|(label, value)| (&**label, captured.fill(value)));
        MappingResult::Mapped { name: escaped(&name), labels: labels.collect(), target }
    }
}

/// A mapper's file, and what it makes of a name.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    if let Ok((mapper, _)) = read("mapper.yaml", bytes) {
        for name in ["ratelimit.service.rate_limit.d.k.total_hits", "a.b", ""] {
            let _ = mapper.map(name, Kind::Counter);
        }
    }
}
