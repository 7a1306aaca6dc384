//! The page with a mapper's names.

use std::{fmt, sync::Mutex};

use super::{
    Mapper,
    series::{Family, Known, SeriesIndex},
};
use crate::{
    Distribution, Gauges, Stats,
    histogram::Snapshot,
    names::{Metric, MetricType, RuleCounter},
    page::{Page, Value, head, series},
    statsd_names,
};
use faults::mutex::lock;

/// A mapper with its results for the names shown so far.
#[derive(Debug)]
pub struct Mapped {
    mapper: Mapper,
    /// All metrics of the page.
    declared: Vec<Metric>,
    known: Mutex<Known>,
}

impl Mapped {
    pub fn new(mapper: Mapper, declared: Vec<Metric>) -> Self {
        Self { mapper, known: Mutex::new(Known::new(&declared)), declared }
    }

    pub(crate) fn write(&self, stats: &Stats, gauges: &Gauges<'_>, out: &mut dyn fmt::Write) -> fmt::Result {
        let mut page = Page::new(out, false);
        // One scrape at a time; nothing else waits for this lock.
        let mut known = lock(&self.known);
        let mut shown = Shown::default();
        let mut names = 0;
        stats.registry.for_each(|stats, counts| {
            names += 1;
            let places = known.rule(&self.mapper, stats.full_key());
            for ((place, count), counter) in places.into_iter().zip(counts).zip(RuleCounter::ALL) {
                if count > 0 || !stats.is_of_caller() && counter != RuleCounter::TotalNegativeHits {
                    shown.add(place, count);
                }
            }
        });
        stats.samples(gauges, &mut |metric, labels, value| {
            let Some(name) = statsd_names::of_single(metric, labels) else {
                return page.sample(metric, labels, value);
            };
            names += 1;
            let place = known.single(&self.mapper, &name, metric, labels);
            match value {
                Value::Whole(n) if metric.kind == MetricType::Gauge => shown.set(place, n),
                Value::Whole(n) => shown.add(place, n),
                Value::Times(times) => shown.merge(place, times),
                // No metric with a statsd name has one.
                Value::Float(_) | Value::Distribution(_) => {}
            }
        });
        known.families.iter().for_each(|family| shown.write(&mut page, &known, family));
        // The registry evicts names, so they must not stay here.
        if known.names() > 2 * names + 1_000 {
            *known = Known::new(&self.declared);
        }
        page.written
    }
}

/// The values of one scrape by the number of their series. A series without a value is not shown.
#[derive(Default)]
struct Shown {
    numbers: Vec<Option<u64>>,
    times: Vec<(usize, Snapshot)>,
}

impl Shown {
    fn add(&mut self, place: SeriesIndex, n: u64) {
        if let Some(number) = self.number(place) {
            *number = Some(number.unwrap_or(0).saturating_add(n));
        }
    }

    fn set(&mut self, place: SeriesIndex, n: u64) {
        if let Some(number) = self.number(place) {
            *number = Some(n);
        }
    }

    fn number(&mut self, place: SeriesIndex) -> Option<&mut Option<u64>> {
        let at = place?;
        if at >= self.numbers.len() {
            self.numbers.resize(at + 1, None);
        }
        Some(&mut self.numbers[at])
    }

    fn merge(&mut self, place: SeriesIndex, times: &Snapshot) {
        let Some(place) = place else { return };
        match self.times.iter_mut().find(|(known, _)| *known == place) {
            Some((_, known)) => *known = known.with(times),
            None => self.times.push((place, *times)),
        }
    }

    fn write(&self, page: &mut Page<'_>, known: &Known, family: &Family) {
        let mut is_headed = false;
        let mut numbers: Vec<usize> = family.series.values().copied().collect();
        numbers.sort_unstable();
        for at in numbers {
            let shown_series = &known.series[at];
            let times = self.times.iter().find(|(place, _)| *place == at).map(|(_, times)| {
                // Statsd's unit is the millisecond.
                let Distribution { buckets, count, sum } =
                    times.in_units(1e3 * shown_series.scale.unwrap_or(1.0));
                let is_shown = |at| shown_series.buckets.as_ref().is_none_or(|shown| shown.contains(&at));
                let buckets = buckets.into_iter().enumerate().filter(|(at, _)| is_shown(*at));
                Distribution { buckets: buckets.map(|(_, bucket)| bucket).collect(), count, sum }
            });
            let value = match (self.numbers.get(at).copied().flatten(), &times) {
                (_, Some(times)) => Value::Distribution(times),
                (Some(n), None) => {
                    shown_series.scale.map_or(Value::Whole(n), |scale| Value::Float(n as f64 * scale))
                }
                (None, None) => continue,
            };
            page.with(|text| {
                if !std::mem::replace(&mut is_headed, true) {
                    head(text, &family.name, family.kind, &family.help);
                }
                series(text, &family.name, &shown_series.labels, value);
            });
        }
    }
}
