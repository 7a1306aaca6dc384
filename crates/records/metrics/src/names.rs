//! What a metric is, and the rows that declare them. The table of the manual is made from the rows.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metric {
    /// The name; a histogram adds `_bucket`, `_sum` and `_count`.
    pub name: &'static str,
    /// The name that statsd sinks send and a mapper file matches, with `{}` for the label. Empty for metrics that the Go
    /// service does not have.
    pub statsd: &'static str,
    pub kind: MetricType,
    /// The names of the labels, in the order of the page.
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

text::named! {
    /// The type of a metric. A mapper file names a histogram as `statsd_exporter` does.
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum MetricType {
        /// A sum that resets only with the process.
        Counter = "counter",
        Gauge = "gauge",
        #[serde(rename = "observer", alias = "timer")]
        Histogram = "histogram",
    }
}

text::named! {
    /// The counters of a rule, by their statsd names.
    pub enum RuleCounter {
        /// Hits, before the decision.
        TotalHits = "total_hits",
        OverLimit = "over_limit",
        /// Hits between the near threshold and the limit.
        NearLimit = "near_limit",
        WithinLimit = "within_limit",
        /// Hits over the limit that the local cache answered without the store.
        OverLimitWithLocalCache = "over_limit_with_local_cache",
        /// Hits over the limit that passed because the rule is in shadow mode.
        ShadowMode = "shadow_mode",
        /// Hits that refunds asked for, whether the counter had them or not.
        TotalNegativeHits = "total_negative_hits",
    }
}

impl RuleCounter {
    /// The series of the page that show this counter. Three counters are shown by `tollgate_rule_hits_total` too.
    pub(super) const fn series(self) -> usize {
        match self {
            Self::OverLimit | Self::WithinLimit | Self::ShadowMode => 2,
            Self::TotalHits | Self::NearLimit | Self::OverLimitWithLocalCache | Self::TotalNegativeHits => 1,
        }
    }
}

/// Declares the metrics of a part in the order of the page, and the function that yields their values: a row has the
/// type, the name, the name for statsd, the labels, the value and the help. A row with labels yields several values.
#[macro_export]
macro_rules! rows {
    (@metric $kind:ident $name:literal [$($statsd:literal)?] [$($label:literal),*] $help:literal) => {
        $crate::Metric {
            name: $name,
            statsd: concat!($($statsd)?),
            kind: $crate::MetricType::$kind,
            labels: &[$($label),*],
            help: $help,
        }
    };
    (@constant [$vis:vis] [] $($row:tt)*) => {};
    (@constant [$vis:vis] [$constant:ident] $($row:tt)*) => {
        $vis const $constant: $crate::Metric = $crate::rows!(@metric $($row)*);
    };
    (@value $samples:ident $metric:ident = $value:expr) => { $samples.value(&$metric, $value) };
    (@value $samples:ident $metric:ident [$($label:literal),*] = $value:expr) => {
        $samples.values(&$metric, $value)
    };
    ($vis:vis $list:ident $(
        $kind:ident $($constant:ident)? $name:literal $(as $statsd:literal)? $([$($label:literal),*])?; $help:literal;
    )*) => {
        $($crate::rows! { @constant [$vis] [$($constant)?] $kind $name [$($statsd)?] [$($($label),*)?] $help })*
        $vis const $list: &[$crate::Metric] =
            &[$($crate::rows!(@metric $kind $name [$($statsd)?] [$($($label),*)?] $help)),*];
    };
    ($vis:vis $list:ident = $sample:ident($($of:ident: $type:ty),+) $(
        $kind:ident $($constant:ident)? $name:literal $(as $statsd:literal)? $([$($label:literal),*])? = $value:expr;
        $help:literal;
    )*) => {
        $crate::rows! { $vis $list $(
            $kind $($constant)? $name $(as $statsd)? $([$($label),*])?; $help;
        )* }
        $vis fn $sample(samples: &mut $crate::Samples<'_>, $($of: $type),+) {
            $({
                const METRIC: $crate::Metric =
                    $crate::rows!(@metric $kind $name [$($statsd)?] [$($($label),*)?] $help);
                $crate::rows!(@value samples METRIC $([$($label),*])? = $value);
            })*
        }
    };
}
