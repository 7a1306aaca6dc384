//! The Prometheus page while it is written: one metric after another, each with its samples.
//!
//! Each metric becomes text before the next one is made, so that a page of many series is never in
//! memory twice. Whoever names metrics otherwise than the page does takes them from it instead of the
//! text: see [`Page::apart`].

use std::fmt::Write as _;

use ::prometheus::{
    TextEncoder,
    proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric as Sample, MetricFamily, MetricType},
};

use super::{
    histogram::Snapshot,
    names::{Kind, Metric},
    statsd_names::{self, Single, Value},
};
use crate::store::Distribution;

/// The page so far.
#[derive(Default)]
pub(super) struct Page {
    text: String,
    /// Response times are in milliseconds, as in old versions of the Go service.
    in_milliseconds: bool,
    /// What has a name in statsd's language, where that is put aside instead of being written.
    apart: Option<Vec<Single>>,
    /// No text is wanted, so none is made.
    is_silent: bool,
}

impl Page {
    /// A page that puts aside what has a name in statsd's language.
    pub(super) fn apart() -> Self {
        Self { apart: Some(Vec::new()), ..Self::default() }
    }

    /// What has a name in statsd's language, and no text.
    pub(super) fn singles() -> Self {
        Self { is_silent: true, ..Self::apart() }
    }

    /// True where no text is wanted.
    pub(super) fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// A page whose response times may be in milliseconds.
    pub(super) fn in_milliseconds(in_milliseconds: bool) -> Self {
        Self { in_milliseconds, ..Self::default() }
    }

    /// Writes a metric that has a single series without labels.
    pub(super) fn value(&mut self, metric: &Metric, value: impl Number) {
        self.values(metric, [([], value)]);
    }

    /// Writes a metric with its series, each given by the values of its labels.
    pub(super) fn values<'a, const LABELS: usize, N: Number>(
        &mut self,
        metric: &Metric,
        series: impl IntoIterator<Item = ([&'a str; LABELS], N)>,
    ) {
        let (series, is_silent) = (series.into_iter(), self.is_silent);
        let series = series.filter(|(labels, n)| !self.puts_aside(metric, labels, Value::Number(n.whole())));
        let sample = |(labels, value): ([&str; LABELS], N)| {
            let mut sample = labelled(metric, &labels);
            set(&mut sample, metric.kind, value.float());
            sample
        };
        if is_silent {
            // Passing by puts them aside.
            return series.for_each(drop);
        }
        let samples = series.map(sample).collect();
        self.samples(metric, samples);
    }

    /// Writes how long answers took.
    pub(super) fn times<'a>(
        &mut self,
        metric: &Metric,
        series: impl IntoIterator<Item = ([&'a str; 1], Snapshot)>,
    ) {
        let units = if self.in_milliseconds { 1e3 } else { 1.0 };
        let series = series.into_iter();
        let series = series.filter(|(labels, times)| !self.puts_aside(metric, labels, Value::Times(*times)));
        let series: Vec<_> = series.map(|(labels, times)| (labels, times.in_units(units))).collect();
        self.histograms(metric, series);
    }

    /// Writes a histogram with its series.
    pub(super) fn histograms<'a, const N: usize>(
        &mut self,
        metric: &Metric,
        series: impl IntoIterator<Item = ([&'a str; N], Distribution)>,
    ) {
        let sample = |(labels, values): ([&str; N], Distribution)| {
            let mut sample = labelled(metric, &labels);
            sample.set_histogram(histogram(&values));
            sample
        };
        if !self.is_silent {
            self.samples(metric, series.into_iter().map(sample).collect());
        }
    }

    /// Writes a counter of many series as they come, so that none of them is ever held in memory.
    pub(super) fn stream<const LABELS: usize>(
        &mut self,
        metric: &Metric,
        each: impl FnOnce(&mut dyn FnMut([&str; LABELS], u64)),
    ) {
        if self.is_silent {
            return;
        }
        let Metric { name, kind, help, .. } = metric;
        let (text, mut is_first) = (&mut self.text, true);
        each(&mut |values, n| {
            // Writing to a String cannot fail.
            if std::mem::take(&mut is_first) {
                let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
            }
            text.push_str(name);
            for (at, (label, value)) in metric.labels.iter().zip(values).enumerate() {
                text.push(if at == 0 { '{' } else { ',' });
                let _ = write!(text, "{label}=\"");
                escape(text, value);
                text.push('"');
            }
            let _ = writeln!(text, "}} {n}");
        });
    }

    /// True when this series has a name in statsd's language and is put aside.
    fn puts_aside(&mut self, metric: &Metric, labels: &[&str], value: Value) -> bool {
        let Some(apart) = &mut self.apart else { return false };
        let Some(name) = statsd_names::of_single(metric, labels) else { return false };
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        apart.push(Single { name, metric: *metric, labels, value });
        true
    }

    fn samples(&mut self, metric: &Metric, samples: Vec<Sample>) {
        let mut family = family(metric);
        family.set_metric(samples);
        self.family(&family);
    }

    /// Writes a family made elsewhere. One without series leaves no trace.
    pub(super) fn family(&mut self, family: &MetricFamily) {
        if !self.is_silent && !family.get_metric().is_empty() {
            // The encoder refuses only families without a name or without series.
            let _ = TextEncoder::new().encode_utf8(std::slice::from_ref(family), &mut self.text);
        }
    }

    /// The text, and what was put aside.
    pub(super) fn finish(self) -> (String, Vec<Single>) {
        (self.text, self.apart.unwrap_or_default())
    }
}

/// Appends a label's value as the text format has it.
fn escape(text: &mut String, value: &str) {
    let mut rest = value;
    while let Some(at) = rest.find(['\\', '"', '\n']) {
        let (plain, special) = rest.split_at(at);
        let mut characters = special.chars();
        let escaped = match characters.next() {
            Some('\n') => "\\n",
            Some('"') => "\\\"",
            _ => "\\\\",
        };
        text.push_str(plain);
        text.push_str(escaped);
        rest = characters.as_str();
    }
    text.push_str(rest);
}

/// A metric as the encoder takes it, without series yet.
pub(super) fn family(metric: &Metric) -> MetricFamily {
    let mut family = MetricFamily::default();
    describe(&mut family, metric);
    family.set_field_type(match metric.kind {
        Kind::Counter => MetricType::COUNTER,
        Kind::Gauge => MetricType::GAUGE,
        Kind::Histogram => MetricType::HISTOGRAM,
    });
    family
}

/// Gives a family the name and the help of a metric.
pub(super) fn describe(family: &mut MetricFamily, metric: &Metric) {
    family.set_name(metric.name.to_owned());
    family.set_help(metric.help.to_owned());
}

/// A sample with the first so many of its metric's labels.
pub(super) fn labelled(metric: &Metric, values: &[&str]) -> Sample {
    let pair = |(name, value): (&&str, &&str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    Sample::from_label(metric.labels.iter().zip(values).map(pair).collect())
}

/// Gives a sample the value of a counter.
pub(super) fn count(sample: &mut Sample, value: u64) {
    set(sample, Kind::Counter, value.float());
}

/// Gives a sample its value.
pub(super) fn set(sample: &mut Sample, kind: Kind, value: f64) {
    if kind == Kind::Counter {
        let mut counter = Counter::default();
        counter.set_value(value);
        sample.set_counter(counter);
    } else {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        sample.set_gauge(gauge);
    }
}

fn histogram(values: &Distribution) -> Histogram {
    let bucket = |(bound, within): &(f64, u64)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(*bound);
        bucket.set_cumulative_count(*within);
        bucket
    };
    let mut histogram = Histogram::default();
    histogram.set_bucket(values.buckets.iter().map(bucket).collect());
    histogram.set_sample_count(values.count);
    histogram.set_sample_sum(values.sum);
    histogram
}

/// What a sample can show. Prometheus knows no numbers but floats.
pub(super) trait Number {
    /// The nearest float.
    fn float(self) -> f64;
    /// The nearest whole number, none below zero.
    fn whole(&self) -> u64;
}

impl Number for u64 {
    #[expect(clippy::cast_precision_loss, reason = "exact up to 9e15, and a rate is never asked beyond")]
    fn float(self) -> f64 {
        self as f64
    }

    fn whole(&self) -> u64 {
        *self
    }
}

impl Number for f64 {
    fn float(self) -> f64 {
        self
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast rounds into range")]
    fn whole(&self) -> u64 {
        self.round() as u64
    }
}
