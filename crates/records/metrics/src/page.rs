//! Samples, and the text format of Prometheus that they are written in.
//!
//! `prometheus` yields every sample once, in the order of the page. The page writes them in this order, so that its text
//! is in memory one sample at a time; a mapper and the statsd sinks use those that have a statsd name.

use std::{
    fmt::{self, Write as _},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use super::{
    histogram::Snapshot,
    names::{Metric, MetricType},
};
use crate::Distribution;

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value<'v> {
    Whole(u64),
    Float(f64),
    Times(&'v Snapshot),
    Distribution(&'v Distribution),
}

impl From<u64> for Value<'_> {
    fn from(number: u64) -> Self {
        Self::Whole(number)
    }
}

impl From<usize> for Value<'_> {
    fn from(number: usize) -> Self {
        Self::Whole(number as u64)
    }
}

impl From<&AtomicU64> for Value<'_> {
    fn from(counter: &AtomicU64) -> Self {
        Self::Whole(counter.load(Relaxed))
    }
}

impl From<f64> for Value<'_> {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}

impl<'v> From<&'v Snapshot> for Value<'v> {
    fn from(times: &'v Snapshot) -> Self {
        Self::Times(times)
    }
}

impl<'v> From<&'v Distribution> for Value<'v> {
    fn from(distribution: &'v Distribution) -> Self {
        Self::Distribution(distribution)
    }
}

/// A consumer of samples: the metric, the values of its labels, and the value.
pub struct Samples<'s>(pub(super) &'s mut dyn FnMut(&Metric, &[&str], Value<'_>));

impl Samples<'_> {
    /// The only sample of a metric without labels.
    pub fn value<'v>(&mut self, metric: &Metric, value: impl Into<Value<'v>>) {
        (self.0)(metric, &[], value.into());
    }

    /// The samples of a metric by the values of its labels.
    pub fn values<'l, 'v>(
        &mut self,
        metric: &Metric,
        series: impl IntoIterator<Item = (impl AsRef<[&'l str]>, impl Into<Value<'v>>)>,
    ) {
        series.into_iter().for_each(|(labels, value)| (self.0)(metric, labels.as_ref(), value.into()));
    }
}

pub(super) struct Page<'o> {
    out: &'o mut dyn fmt::Write,
    /// The first error of `out`: nothing is written after it.
    pub(super) written: fmt::Result,
    /// Response times are in milliseconds, as in old versions of the Go service.
    in_milliseconds: bool,
    metric: &'static str,
    labels: String,
    text: String,
}

impl<'o> Page<'o> {
    pub(super) fn new(out: &'o mut dyn fmt::Write, in_milliseconds: bool) -> Self {
        Self { out, written: Ok(()), in_milliseconds, metric: "", labels: String::new(), text: String::new() }
    }

    /// Writes a sample; the samples of a metric come together.
    pub(super) fn sample(&mut self, metric: &Metric, values: &[&str], value: Value<'_>) {
        let Metric { name, kind, labels, help, .. } = *metric;
        if self.metric != name {
            self.metric = name;
            head(&mut self.text, name, kind, help);
        }
        self.labels.clear();
        write_labels(&mut self.labels, labels.iter().copied().zip(values.iter().copied()));
        let units = if self.in_milliseconds { 1e3 } else { 1.0 };
        match value {
            Value::Times(times) => {
                series(&mut self.text, name, &self.labels, (&times.in_units(units)).into());
            }
            value => series(&mut self.text, name, &self.labels, value),
        }
        self.flush();
    }

    /// Writes a text that is appended by `write`.
    pub(super) fn with(&mut self, write: impl FnOnce(&mut String)) {
        write(&mut self.text);
        self.flush();
    }

    fn flush(&mut self) {
        self.written = self.written.and_then(|()| self.out.write_str(&self.text));
        self.text.clear();
    }
}

/// Writes the lines before the samples of a metric.
pub(super) fn head(text: &mut String, name: &str, kind: MetricType, help: &str) {
    let help = help.replace('\\', "\\\\").replace('\n', "\\n");
    // Writing to a String cannot fail.
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {}\n", kind.name());
}

/// Appends labels: `domain="d",key1="k"`.
pub(super) fn write_labels<'l>(text: &mut String, labels: impl Iterator<Item = (&'l str, &'l str)>) {
    for (name, value) in labels {
        let comma = if text.is_empty() { "" } else { "," };
        let _ = write!(text, "{comma}{name}=\"");
        if !value.contains(|character| matches!(character, '\\' | '"') || text::is_unprintable(character)) {
            text.push_str(value);
            text.push('"');
            continue;
        }
        for character in value.chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                // The format has no escape for them: their names are shown, with an escaped backslash.
                _ if text::is_unprintable(character) => {
                    text.push('\\');
                    text.extend(character.escape_default());
                }
                _ => text.push(character),
            }
        }
        text.push('"');
    }
}

pub(super) fn series(text: &mut String, name: &str, labels: &str, value: Value<'_>) {
    let [open, close] = if labels.is_empty() { ["", ""] } else { ["{", "}"] };
    let _ = match value {
        Value::Whole(number) => writeln!(text, "{name}{open}{labels}{close} {number}"),
        Value::Float(number) => writeln!(text, "{name}{open}{labels}{close} {number}"),
        Value::Times(times) => return series(text, name, labels, (&times.in_units(1.0)).into()),
        Value::Distribution(Distribution { buckets, count, sum }) => {
            let comma = if labels.is_empty() { "" } else { "," };
            for (bound, within) in buckets {
                let _ = writeln!(text, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {within}");
            }
            writeln!(
                text,
                "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {count}\n{name}_sum{open}{labels}{close} {sum}\n\
                 {name}_count{open}{labels}{close} {count}"
            )
        }
    };
}
