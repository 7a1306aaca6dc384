//! The page by the names of a mapper.

use std::{fmt::Write as _, sync::Mutex};

use super::{
    Mapper,
    series::{Family, Known, Place},
};
use crate::{
    mutex::lock,
    telemetry::metrics::{
        Stats,
        gauges::Gauges,
        histogram::{BOUNDS_MICROS, Snapshot},
        names::{Kind, Metric},
        page::Page,
        prometheus::{metric, others},
        rule::RuleCounter,
        statsd_names::Value,
    },
};

/// A mapper, and what it made of the names that were shown so far.
#[derive(Debug)]
pub struct Mapped {
    mapper: Mapper,
    known: Mutex<Known>,
}

impl Mapped {
    /// A page by this mapper.
    #[must_use]
    pub fn new(mapper: Mapper) -> Self {
        Self { mapper, known: Mutex::default() }
    }

    /// The page that Prometheus scrapes.
    pub(in crate::telemetry::metrics) fn render(&self, stats: &Stats, gauges: &Gauges) -> String {
        let mut page = Page::apart();
        others(&mut page, stats, gauges);
        let (mut text, singles) = page.finish();
        // One scrape at a time; nothing else waits for this lock.
        let mut known = lock(&self.known);
        let mut shown = Shown::default();
        let mut names = singles.len();
        stats.registry.for_each(|stats, counts| {
            names = names.saturating_add(1);
            let places = known.rule(&self.mapper, stats.full_key());
            for (place, count) in places.into_iter().zip(counts) {
                if count > 0 || !stats.is_of_caller() {
                    shown.add(place, count);
                }
            }
        });
        for single in &singles {
            let place = known.single(&self.mapper, single);
            match single.value {
                Value::Number(n) if single.metric.kind == Kind::Gauge => shown.set(place, n),
                Value::Number(n) => shown.add(place, n),
                Value::Times(times) => shown.merge(place, &times),
            }
        }
        known.families.iter().for_each(|family| shown.write(&mut text, &known, family));
        // Names are forgotten elsewhere, and are not to be remembered here for ever.
        if known.names() > names.saturating_mul(2).saturating_add(1_000) {
            *known = Known::default();
        }
        text
    }
}

/// True when a metric is the one of this counter.
pub(super) fn is_of(counter: RuleCounter, other: &Metric) -> bool {
    metric(counter).name == other.name
}

/// What the series show in one scrape, by their numbers. What is not touched is not shown.
#[derive(Default)]
struct Shown {
    numbers: Vec<Option<u64>>,
    times: Vec<(usize, Snapshot)>,
}

impl Shown {
    fn add(&mut self, place: Place, n: u64) {
        if let Some(number) = self.number(place) {
            *number = Some(number.unwrap_or(0).saturating_add(n));
        }
    }

    fn set(&mut self, place: Place, n: u64) {
        if let Some(number) = self.number(place) {
            *number = Some(n);
        }
    }

    fn number(&mut self, place: Place) -> Option<&mut Option<u64>> {
        let at = place?;
        if at >= self.numbers.len() {
            self.numbers.resize(at.saturating_add(1), None);
        }
        self.numbers.get_mut(at)
    }

    fn merge(&mut self, place: Place, times: &Snapshot) {
        let Some(place) = place else { return };
        match self.times.iter_mut().find(|(known, _)| *known == place) {
            Some((_, known)) => *known = known.with(times),
            None => self.times.push((place, *times)),
        }
    }

    fn write(&self, text: &mut String, known: &Known, family: &Family) {
        let mut is_headed = false;
        let mut series: Vec<usize> = family.series.values().copied().collect();
        series.sort_unstable();
        for at in series {
            let begin = text.len();
            if !is_headed {
                head(text, family);
            }
            if self.write_series(text, known, family, at) {
                is_headed = true;
            } else {
                text.truncate(begin);
            }
        }
    }

    /// False when the series has nothing to show.
    fn write_series(&self, text: &mut String, known: &Known, family: &Family, at: usize) -> bool {
        let Some(series) = known.series.get(at) else { return false };
        let scale = series.scale.unwrap_or(1.0);
        if family.kind == Kind::Histogram {
            let times = self.times.iter().find(|(place, _)| *place == at);
            let buckets = series.buckets.as_deref();
            times.inspect(|(_, times)| histogram(text, &family.name, &series.labels, times, scale, buckets));
            return times.is_some();
        }
        let Some(n) = self.numbers.get(at).copied().flatten() else { return false };
        sample(text, &family.name, "", &series.labels);
        // Writing to a String cannot fail.
        let _ = match series.scale {
            None => writeln!(text, "{n}"),
            #[expect(clippy::cast_precision_loss, reason = "the page has no numbers but floats")]
            Some(scale) => writeln!(text, "{}", n as f64 * scale),
        };
        true
    }
}

fn head(text: &mut String, family: &Family) {
    let Family { name, kind, help, .. } = family;
    let help = help.replace('\\', "\\\\").replace('\n', "\\n");
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

/// The name of a sample with its labels, up to its value.
fn sample(text: &mut String, name: &str, suffix: &str, labels: &str) {
    let parts = if labels.is_empty() { ["", "", ""] } else { ["{", labels, "}"] };
    [name, suffix].into_iter().chain(parts).chain([" "]).for_each(|part| text.push_str(part));
}

/// A histogram whose unit is a millisecond times `scale`.
fn histogram(
    text: &mut String,
    name: &str,
    labels: &str,
    times: &Snapshot,
    scale: f64,
    buckets: Option<&[usize]>,
) {
    let comma = if labels.is_empty() { "" } else { "," };
    for (at, (bound, within)) in BOUNDS_MICROS.iter().zip(times.within).enumerate() {
        if buckets.is_none_or(|shown| shown.contains(&at)) {
            // A thousandth is no binary fraction: multiplied by it, a bound would end in odd digits.
            let bound = f64::from(*bound) / (1e3 / scale);
            let _ = writeln!(text, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {within}");
        }
    }
    let _ = writeln!(text, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {}", times.count);
    sample(text, name, "_sum", labels);
    let _ = writeln!(text, "{}", times.sum.as_secs_f64() / (1e-3 / scale));
    sample(text, name, "_count", labels);
    let _ = writeln!(text, "{}", times.count);
}
