//! The series of a mapped page, and the series of each metric.
//!
//! Matching every sample of every scrape against every mapping would take seconds, so each name is matched once and kept
//! with the text of its labels.

use std::collections::HashMap;

use tracing::warn;

use super::{Mapper, MappingResult, Target};
use crate::{
    labels::Labels,
    names::{Metric, MetricType, RuleCounter},
    page::write_labels,
    rows, statsd_names,
};

/// The number of the series that a metric counts in; `None` if it is dropped.
pub(super) type SeriesIndex = Option<usize>;

#[derive(Default, Debug)]
pub(super) struct Known {
    rules: HashMap<Box<str>, [SeriesIndex; RuleCounter::ALL.len()]>,
    singles: HashMap<Box<str>, SeriesIndex>,
    pub(super) families: Vec<Family>,
    by_name: HashMap<String, usize>,
    pub(super) series: Vec<Series>,
}

#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: String,
    pub(super) kind: MetricType,
    pub(super) help: String,
    /// The numbers of its series by the text of their labels.
    pub(super) series: HashMap<Box<str>, usize>,
    conflict_logged: bool,
}

#[derive(Debug)]
pub(super) struct Series {
    /// `domain="d",key1="k"`.
    pub(super) labels: Box<str>,
    pub(super) scale: Option<f64>,
    /// The shown buckets of a histogram; `None` for all.
    pub(super) buckets: Option<Vec<usize>>,
}

/// Stands for a family that is not mapped.
const TAKEN: usize = usize::MAX;

impl Known {
    /// The names of metrics without a statsd name are taken.
    pub(super) fn new(declared: &[Metric]) -> Self {
        let own = declared.iter().filter(|metric| metric.statsd.is_empty());
        let taken = own.filter(|metric| rows::RULES.iter().all(|of_rule| of_rule.name != metric.name));
        Self { by_name: taken.map(|metric| (metric.name.to_owned(), TAKEN)).collect(), ..Self::default() }
    }

    pub(super) fn names(&self) -> usize {
        self.rules.len() + self.singles.len()
    }

    /// The series of the counters of the rule with this full key.
    pub(super) fn rule(&mut self, mapper: &Mapper, full_key: &str) -> [SeriesIndex; RuleCounter::ALL.len()] {
        if let Some(places) = self.rules.get(full_key) {
            return *places;
        }
        let labels = Labels::of(full_key);
        let places = RuleCounter::ALL.map(|counter| {
            let metric = &rows::RULES[counter as usize];
            self.place(mapper, &statsd_names::of_rule(full_key, counter), metric, &labels.values())
        });
        self.rules.insert(full_key.into(), places);
        places
    }

    /// The series of a metric that is not of a rule.
    pub(super) fn single(
        &mut self,
        mapper: &Mapper,
        statsd: &str,
        metric: &Metric,
        labels: &[&str],
    ) -> SeriesIndex {
        if let Some(place) = self.singles.get(statsd) {
            return *place;
        }
        let place = self.place(mapper, statsd, metric, labels);
        self.singles.insert(statsd.into(), place);
        place
    }

    fn place(&mut self, mapper: &Mapper, statsd: &str, metric: &Metric, labels: &[&str]) -> SeriesIndex {
        match mapper.map(statsd, metric.kind) {
            MappingResult::Dropped => None,
            MappingResult::Unmapped => {
                let labels = written(metric.labels.iter().copied().zip(labels.iter().copied()));
                // The name has the unit seconds; statsd's is milliseconds.
                let scale = (metric.kind == MetricType::Histogram).then_some(1e-3);
                let series = Series { labels, scale, buckets: None };
                self.intern(metric.name, metric.kind, metric.help, series)
            }
            MappingResult::Mapped { name, labels, target } => {
                let Target { help, scale, buckets, .. } = target;
                let labels = written(labels.iter().map(|(label, value)| (*label, value.as_str())));
                let series = Series { labels, scale: *scale, buckets: buckets.clone() };
                self.intern(&name, metric.kind, help.as_deref().unwrap_or(metric.help), series)
            }
        }
    }

    /// The number of the series with this name and these labels; `None` if the name belongs to a metric of another type,
    /// since the first metric determines the type.
    fn intern(&mut self, name: &str, kind: MetricType, help: &str, series: Series) -> SeriesIndex {
        let next = self.families.len();
        let at = *self.by_name.entry(name.to_owned()).or_insert(next);
        if at == next {
            self.families.push(Family {
                name: name.to_owned(),
                kind,
                help: help.to_owned(),
                series: HashMap::new(),
                conflict_logged: false,
            });
        }
        let Some(family) = self.families.get_mut(at).filter(|family| family.kind == kind) else {
            self.log_conflict(name, kind, at);
            return None;
        };
        let number = self.series.len();
        let number = *family.series.entry(series.labels.clone()).or_insert(number);
        if number == self.series.len() {
            self.series.push(series);
        }
        Some(number)
    }

    fn log_conflict(&mut self, name: &str, kind: MetricType, at: usize) {
        let taken = self.families.get_mut(at);
        let owner = taken.as_ref().map_or("an unmapped metric", |family| family.kind.name());
        if !taken.is_some_and(|family| std::mem::replace(&mut family.conflict_logged, true)) {
            let kind = kind.name();
            warn!(
                "PROMETHEUS_MAPPER_YAML: a {kind} is not exported because {owner} already has its name {name}"
            );
        }
    }
}

fn written<'l>(labels: impl Iterator<Item = (&'l str, &'l str)>) -> Box<str> {
    let mut text = String::new();
    write_labels(&mut text, labels);
    text.into()
}
