//! The Prometheus page while it is written: one metric after another, each with its samples.
//!
//! Each metric becomes text before the next one is made, so that a page of many series is never in
//! memory twice.

use ::prometheus::{
    TextEncoder,
    proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric as Sample, MetricFamily, MetricType},
};

use super::{
    gauges::Distribution,
    names::{Kind, Metric},
};

/// The page so far.
#[derive(Default)]
pub(super) struct Page(String);

impl Page {
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
        let sample = |(labels, value): ([&str; LABELS], N)| {
            let mut sample = labelled(metric, &labels);
            set(&mut sample, metric.kind, value.float());
            sample
        };
        let mut family = family(metric);
        family.set_metric(series.into_iter().map(sample).collect());
        self.family(&family);
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
        let mut family = family(metric);
        family.set_metric(series.into_iter().map(sample).collect());
        self.family(&family);
    }

    /// Writes a family made elsewhere. One without series leaves no trace.
    pub(super) fn family(&mut self, family: &MetricFamily) {
        if !family.get_metric().is_empty() {
            // The encoder refuses only families without a name or without series.
            let _ = TextEncoder::new().encode_utf8(std::slice::from_ref(family), &mut self.0);
        }
    }

    pub(super) fn finish(self) -> String {
        self.0
    }
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

fn set(sample: &mut Sample, kind: Kind, value: f64) {
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
    histogram.set_bucket(values.within.iter().map(bucket).collect());
    histogram.set_sample_count(values.count);
    histogram.set_sample_sum(values.sum);
    histogram
}

/// What a sample can show. Prometheus knows no numbers but floats.
pub(super) trait Number {
    /// The nearest float.
    fn float(self) -> f64;
}

impl Number for u64 {
    #[expect(clippy::cast_precision_loss, reason = "exact up to 9e15, and a rate is never asked beyond")]
    fn float(self) -> f64 {
        self as f64
    }
}

impl Number for f64 {
    fn float(self) -> f64 {
        self
    }
}
