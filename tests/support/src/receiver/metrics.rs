//! The metrics of an export. Their types are declared from the published field numbers, as those of spans.

use std::collections::BTreeMap;

use prost::Message;

use super::spans::{Attribute, AttributeValue, Resource, values};

/// A metric with its points.
#[derive(Clone, PartialEq, Message)]
pub struct Metric {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub description: String,
    #[prost(string, tag = "3")]
    pub unit: String,
    #[prost(message, optional, tag = "5")]
    pub gauge: Option<Numbers>,
    #[prost(message, optional, tag = "7")]
    pub sum: Option<Numbers>,
    #[prost(message, optional, tag = "9")]
    pub histogram: Option<Histograms>,
}

/// A gauge, or a sum.
#[derive(Clone, PartialEq, Message)]
pub struct Numbers {
    #[prost(message, repeated, tag = "1")]
    pub points: Vec<Number>,
    /// 1 for deltas, 2 for counts since the start.
    #[prost(int32, tag = "2")]
    pub temporality: i32,
    #[prost(bool, tag = "3")]
    pub is_monotonic: bool,
}

/// A point of a number.
#[derive(Clone, PartialEq, Message)]
pub struct Number {
    #[prost(fixed64, tag = "2")]
    pub begun: u64,
    #[prost(fixed64, tag = "3")]
    pub at: u64,
    #[prost(double, optional, tag = "4")]
    pub float: Option<f64>,
    #[prost(sfixed64, optional, tag = "6")]
    pub whole: Option<i64>,
    #[prost(message, repeated, tag = "7")]
    attributes: Vec<Attribute>,
}

/// A metric of histograms.
#[derive(Clone, PartialEq, Message)]
pub struct Histograms {
    #[prost(message, repeated, tag = "1")]
    pub points: Vec<Histogram>,
    #[prost(int32, tag = "2")]
    pub temporality: i32,
}

/// A point of a histogram.
#[derive(Clone, PartialEq, Message)]
pub struct Histogram {
    #[prost(fixed64, tag = "2")]
    pub begun: u64,
    #[prost(fixed64, tag = "3")]
    pub at: u64,
    #[prost(fixed64, tag = "4")]
    pub count: u64,
    #[prost(double, optional, tag = "5")]
    pub sum: Option<f64>,
    #[prost(fixed64, repeated, tag = "6")]
    pub in_buckets: Vec<u64>,
    #[prost(double, repeated, tag = "7")]
    pub bounds: Vec<f64>,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<Attribute>,
}

impl Number {
    /// The number as a page of Prometheus has it.
    #[expect(clippy::cast_precision_loss, reason = "the numbers of tests are small")]
    pub fn value(&self) -> f64 {
        self.whole.map_or_else(|| self.float.expect("a point has a value"), |whole| whole as f64)
    }
}

impl Metric {
    /// The sums and gauges by their names on the page of Prometheus.
    pub fn numbers(&self) -> BTreeMap<String, Number> {
        let numbers = self.sum.iter().chain(&self.gauge).flat_map(|numbers| &numbers.points);
        numbers.map(|point| (self.series("", &point.attributes, None), point.clone())).collect()
    }

    /// All samples as the page of Prometheus has them.
    #[expect(clippy::cast_precision_loss, reason = "the numbers of tests are small")]
    pub fn samples(&self) -> BTreeMap<String, f64> {
        let mut all: BTreeMap<_, _> =
            self.numbers().into_iter().map(|(series, point)| (series, point.value())).collect();
        for point in self.histogram.iter().flat_map(|histograms| &histograms.points) {
            assert_eq!(point.in_buckets.len(), point.bounds.len() + 1, "{self:?}");
            assert_eq!(point.in_buckets.iter().sum::<u64>(), point.count, "{self:?}");
            let bounds = point.bounds.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
            let mut within = 0;
            for (bound, in_bucket) in bounds.zip(&point.in_buckets) {
                within += in_bucket;
                all.insert(self.series("_bucket", &point.attributes, Some(&bound)), within as f64);
            }
            all.insert(self.series("_sum", &point.attributes, None), point.sum.expect("it has a sum"));
            all.insert(self.series("_count", &point.attributes, None), point.count as f64);
        }
        all
    }

    fn series(&self, suffix: &str, attributes: &[Attribute], bound: Option<&str>) -> String {
        let text = |attribute: &Attribute| {
            let AttributeValue::Text(value) = attribute.value() else { panic!("{attribute:?} is no text") };
            format!("{}={value:?}", attribute.key)
        };
        let labels = attributes.iter().map(text).chain(bound.map(|bound| format!("le={bound:?}")));
        let labels: Vec<_> = labels.collect();
        let braces = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        format!("{}{suffix}{braces}", self.name)
    }
}

/// The resource and the metrics of a request.
pub(super) fn read(message: &[u8]) -> (BTreeMap<String, AttributeValue>, Vec<Metric>) {
    let exported = Exported::decode(message).expect("not an ExportMetricsServiceRequest");
    let mut resource = BTreeMap::new();
    let mut metrics = Vec::new();
    for of_resource in exported.of_resources {
        resource.extend(values(&of_resource.resource.unwrap_or_default().attributes));
        metrics.extend(of_resource.of_scopes.into_iter().flat_map(|of_scope| of_scope.metrics));
    }
    (resource, metrics)
}

#[derive(Clone, PartialEq, Message)]
struct Exported {
    #[prost(message, repeated, tag = "1")]
    of_resources: Vec<OfResource>,
}

#[derive(Clone, PartialEq, Message)]
struct OfResource {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    of_scopes: Vec<OfScope>,
}

#[derive(Clone, PartialEq, Message)]
struct OfScope {
    #[prost(message, repeated, tag = "2")]
    metrics: Vec<Metric>,
}
