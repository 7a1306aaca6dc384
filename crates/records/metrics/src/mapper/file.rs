//! Reads a mapper file, in the format of `statsd_exporter`, and reports every mistake in it.
//!
//! The structs below are the format. `serde_yaml` reports the first value that does not have it, with its line. Here the
//! values are checked, and mistakes are reported with their paths, such as `mappings[0].match`. Options that do not apply to
//! metrics that are counted here (`ttl`, summaries) and unknown options are warnings.

use std::{borrow::Cow, collections::BTreeMap};

use regex::RegexBuilder;
use serde::Deserialize;
use serde_yaml::Value;

use super::{
    super::{histogram::BOUNDS_MICROS, names::MetricType, rows, service::Method, statsd_names},
    Mapper, Mapping, Target,
    pattern::{LABEL_NAME, METRIC_NAME, Pattern, matches},
};
use text::{
    diagnostics::{
        Diagnostic, Place,
        Severity::{self, Error, Warning},
        quoted,
    },
    spelling::nearest,
};

/// A file of a thousand mappings has some 150 KB. `serde_yaml` itself bounds what aliases expand to.
const MAX_BYTES: usize = 1 << 20;

/// The memory of a compiled regular expression. One of a hundred words with classes of letters takes a tenth of it.
const MAX_REGEX_BYTES: usize = 1 << 20;

/// Maximum number of reported errors, and of warnings.
const MAX_DIAGNOSTICS: usize = 50;

#[derive(Deserialize, Default)]
#[serde(expecting = "a map")]
struct File {
    defaults: Option<Defaults>,
    mappings: Option<Vec<Option<MappingOptions>>>,
    #[serde(flatten)]
    others: serde_yaml::Mapping,
}

#[derive(Deserialize, Default)]
#[serde(expecting = "a map")]
struct Defaults {
    match_type: Option<MatchType>,
    glob_disable_ordering: Option<bool>,
    observer_type: Option<ObserverType>,
    timer_type: Option<ObserverType>,
    histogram_options: Option<HistogramOptions>,
    buckets: Option<Vec<f64>>,
    #[serde(flatten)]
    others: serde_yaml::Mapping,
}

#[derive(Deserialize, Default)]
#[serde(expecting = "a map")]
struct MappingOptions {
    r#match: Option<String>,
    match_type: Option<MatchType>,
    match_metric_type: Option<MetricType>,
    name: Option<String>,
    labels: Option<BTreeMap<String, Option<String>>>,
    action: Option<Action>,
    help: Option<String>,
    scale: Option<f64>,
    observer_type: Option<ObserverType>,
    timer_type: Option<ObserverType>,
    histogram_options: Option<HistogramOptions>,
    buckets: Option<Vec<f64>>,
    #[serde(flatten)]
    others: serde_yaml::Mapping,
}

#[derive(Deserialize)]
#[serde(expecting = "a map")]
struct HistogramOptions {
    buckets: Option<Vec<f64>>,
    #[serde(flatten)]
    others: serde_yaml::Mapping,
}

/// Every known option, for "did you mean".
const OPTIONS: &str = "defaults mappings match match_type match_metric_type name labels action help scale \
    observer_type timer_type histogram_options buckets glob_disable_ordering summary_options quantiles ttl honor_labels";

#[derive(Deserialize, Clone, Copy, PartialEq, Default)]
#[serde(rename_all = "lowercase")]
enum MatchType {
    #[default]
    Glob,
    Regex,
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Action {
    Map,
    Drop,
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
enum ObserverType {
    Histogram,
    Summary,
}

/// The mapper described by a file, with warnings about the file.
pub fn read(file: &str, bytes: &[u8]) -> Result<(Mapper, Vec<Diagnostic>), Vec<Diagnostic>> {
    let mut reader = Reader { file, found: Vec::new(), suppressed: 0 };
    let mapper = if bytes.len() > MAX_BYTES {
        let message = format!("the file has {} bytes, expected at most {MAX_BYTES}", bytes.len());
        reader.add(Error, "", message, "split the patterns into fewer mappings");
        Mapper::default()
    } else {
        reader.file(bytes)
    };
    let mut found = reader.found;
    if reader.suppressed > 0 {
        let message = format!("{} more errors and warnings", reader.suppressed);
        found.push(Diagnostic::of_file(Warning, file.to_owned(), message));
    }
    if found.iter().any(Diagnostic::is_error) { Err(found) } else { Ok((mapper, found)) }
}

/// The file with its merges (`<<`) applied, which `serde_yaml` leaves to the program.
fn merged(bytes: &[u8]) -> serde_yaml::Result<Cow<'_, [u8]>> {
    if !bytes.windows(2).any(|pair| pair == b"<<") {
        return Ok(Cow::Borrowed(bytes));
    }
    let mut root: Value = serde_yaml::from_slice(bytes)?;
    root.apply_merge()?;
    serde_yaml::to_string(&root).map(|text| Cow::Owned(text.into_bytes()))
}

struct Reader<'f> {
    file: &'f str,
    found: Vec<Diagnostic>,
    /// The number of diagnostics beyond [`MAX_DIAGNOSTICS`].
    suppressed: usize,
}

impl Reader<'_> {
    fn add(&mut self, severity: Severity, path: &str, message: impl Into<String>, help: &str) {
        let of_file = Diagnostic::of_file(severity, self.file.to_owned(), message.into());
        let found = Diagnostic { path: path.to_owned(), help: Some(help.to_owned()), ..of_file };
        // A mistake in the defaults would be reported again for each mapping.
        if self.found.contains(&found) {
            return;
        }
        if self.found.iter().filter(|diagnostic| diagnostic.severity == severity).count() < MAX_DIAGNOSTICS {
            self.found.push(found);
        } else {
            self.suppressed += 1;
        }
    }

    /// An error of `serde_yaml`, whose text is `path: message at line 1 column 2`; `has_places` if it read the file itself.
    fn invalid(&mut self, error: &serde_yaml::Error, has_places: bool) {
        let text = error.to_string();
        let at = error.location();
        let suffix = at.as_ref().map(|at| format!(" at line {} column {}", at.line(), at.column()));
        let message = text.strip_suffix(&suffix.unwrap_or_default()).unwrap_or(&text);
        let message = message.replace("expected f64", "expected a number");
        self.add(Error, "", message, "see the format of statsd_exporter's mapping file");
        let number = |number| u32::try_from(number).unwrap_or(u32::MAX);
        if let (Some(at), Some(found), true) = (at, self.found.last_mut(), has_places) {
            found.place = Some(Place { line: number(at.line()), column: number(at.column()) });
        }
    }

    fn file(&mut self, bytes: &[u8]) -> Mapper {
        let read = merged(bytes).map_err(|error| (error, true)).and_then(|text| {
            let has_places = matches!(text, Cow::Borrowed(_));
            serde_yaml::from_slice::<Option<File>>(&text).map_err(|error| (error, has_places))
        });
        let file = read.unwrap_or_else(|(error, has_places)| {
            self.invalid(&error, has_places);
            None
        });
        let file = file.unwrap_or_default();
        self.check(&file.others, None, "");
        let defaults = file.defaults.unwrap_or_default();
        self.check(&defaults.others, defaults.observer_type.or(defaults.timer_type), "defaults");
        if let Some(options) = &defaults.histogram_options {
            self.check(&options.others, None, "defaults.histogram_options");
        }
        let specific_first = defaults.glob_disable_ordering == Some(true);
        let mappings = file.mappings.unwrap_or_default().into_iter().enumerate();
        let mappings = mappings
            .filter_map(|(at, options)| self.mapping(options?, &format!("mappings[{at}]"), &defaults))
            .collect();
        Mapper { mappings, specific_first }
    }

    fn mapping(&mut self, options: MappingOptions, path: &str, defaults: &Defaults) -> Option<Mapping> {
        self.check(&options.others, options.observer_type.or(options.timer_type), path);
        if let Some(options) = &options.histogram_options {
            self.check(&options.others, None, &format!("{path}.histogram_options"));
        }
        let match_type = options.match_type.or(defaults.match_type).unwrap_or_default();
        let pattern = self.pattern(options.r#match.as_deref(), match_type, path);
        let only = options.match_metric_type;
        let target = match options.action {
            Some(Action::Drop) => None,
            _ => Some(self.target(options, path, pattern.as_ref(), defaults)?),
        };
        Some(Mapping { pattern: pattern?, only, target })
    }

    fn pattern(&mut self, text: Option<&str>, match_type: MatchType, path: &str) -> Option<Pattern> {
        let Some(text) = text else {
            self.add(
                Error,
                path,
                "missing `match`",
                "expected a glob or a regular expression of statsd names",
            );
            return None;
        };
        let path = format!("{path}.match");
        if match_type == MatchType::Glob {
            let glob = Pattern::of_glob(text);
            if glob.is_none() {
                let help = "expected words of letters, digits, _ and -, separated by dots, or * for any word; \
                    for other patterns set match_type: regex";
                self.add(Error, &path, format!("invalid glob {}", quoted(text)), help);
            }
            return glob;
        }
        let regex = RegexBuilder::new(text).size_limit(MAX_REGEX_BYTES).build();
        let invalid = |error: regex::Error| {
            let why = error.to_string();
            let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ");
            let message = format!("invalid regular expression {}: {why}", quoted(text));
            self.add(Error, &path, message, "write a literal dot as \\.");
        };
        let regex = regex.map_err(invalid).ok()?;
        Some(Pattern { regex, is_glob: false, specificity: Vec::new() })
    }

    fn target(
        &mut self,
        options: MappingOptions,
        path: &str,
        pattern: Option<&Pattern>,
        defaults: &Defaults,
    ) -> Option<Target> {
        let has_buckets = pattern.is_some_and(is_of_response_times);
        let buckets = has_buckets.then(|| self.shown_buckets(&options, defaults, path)).flatten();
        let MappingOptions { name, labels, help, scale, .. } = options;
        let Some(name) = name else {
            self.add(Error, path, "missing `name`", "set a metric name, or action: drop");
            return None;
        };
        if scale.is_some_and(|scale| !scale.is_finite()) {
            self.add(
                Error,
                &format!("{path}.scale"),
                "the scale is not finite",
                "expected a number such as 0.001",
            );
        }
        if !matches(&name, METRIC_NAME) {
            let message = format!("{} is not a valid metric name", quoted(&name));
            let help = "expected letters, digits and _, no digit first; $1 or ${1} inserts a match";
            self.add(Error, &format!("{path}.name"), message, help);
        }
        let labels: Vec<_> =
            labels.unwrap_or_default().into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        for (label, _) in &labels {
            let path = format!("{path}.labels.{label}");
            if !matches(label, LABEL_NAME) {
                let message = format!("{} is not a valid label name", quoted(label));
                self.add(Error, &path, message, "expected letters, digits and _, no digit first");
            } else if label.starts_with("__") || label == "le" {
                let message = format!("label {} is reserved by Prometheus", quoted(label));
                self.add(Error, &path, message, "choose another name");
            }
        }
        Some(Target { name, labels, help, scale, buckets })
    }

    /// The selected ones of our buckets; `None` for all. Times are counted in fixed buckets, so others do not exist.
    fn shown_buckets(
        &mut self,
        options: &MappingOptions,
        defaults: &Defaults,
        path: &str,
    ) -> Option<Vec<usize>> {
        let (path, buckets) = [
            (path, &options.histogram_options, &options.buckets),
            ("defaults", &defaults.histogram_options, &defaults.buckets),
        ]
        .into_iter()
        .find_map(|(path, histogram, buckets)| {
            let histogram = histogram.as_ref().and_then(|histogram| histogram.buckets.as_ref());
            let histogram = histogram.map(|buckets| (format!("{path}.histogram_options.buckets"), buckets));
            histogram.or(Some((format!("{path}.buckets"), buckets.as_ref()?)))
        })?;
        let scale = options.scale.unwrap_or(1.0);
        let mut shown = Vec::new();
        for (at, bucket) in buckets.iter().enumerate() {
            // A statsd time is in milliseconds; `scale` makes it the unit of the page.
            let micros = bucket / scale * 1e3;
            let is_it = |bound: &u32| (f64::from(*bound) - micros).abs() < micros * 1e-9;
            if let Some(own) = BOUNDS_MICROS.iter().position(is_it) {
                shown.push(own);
            } else {
                let own = BOUNDS_MICROS.map(|bound| (f64::from(bound) / 1e3 * scale).to_string());
                let help = format!("times are counted in the buckets {}", own.join(", "));
                self.add(Warning, &format!("{path}[{at}]"), format!("bucket {bucket} is ignored"), &help);
            }
        }
        shown.sort_unstable();
        shown.dedup();
        (!shown.is_empty()).then_some(shown)
    }
}

impl Reader<'_> {
    /// Reports options that are unknown or have no effect.
    fn check(&mut self, others: &serde_yaml::Mapping, observer: Option<ObserverType>, path: &str) {
        for (key, value) in others {
            let Some(key) = key.as_str().filter(|_| !value.is_null()) else { continue };
            let path = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
            let (why, help) = match key {
                "honor_labels" => continue,
                "ttl" => ("a series exists as long as its rule", "remove it"),
                "quantiles" | "summary_options" if observer == Some(ObserverType::Histogram) => {
                    let message = format!("`{key}` contradicts `observer_type: histogram`");
                    self.add(Error, &path, message, "remove one of them");
                    continue;
                }
                "quantiles" | "summary_options" => (NO_SUMMARIES, "compute quantiles from the histogram"),
                "native_histogram_bucket_factor" | "native_histogram_max_buckets" => {
                    ("native histograms are not supported", "remove it")
                }
                _ => {
                    let meant = nearest(key, OPTIONS.split_whitespace()).filter(|meant| *meant != key);
                    let help = meant
                        .map_or_else(|| "remove it".to_owned(), |meant| format!("did you mean `{meant}`?"));
                    self.add(Warning, &path, format!("unknown option {} is ignored", quoted(key)), &help);
                    continue;
                }
            };
            self.add(Warning, &path, format!("`{key}` has no effect: {why}"), help);
        }
        if observer == Some(ObserverType::Summary) {
            let message = "`observer_type: summary` has no effect: ".to_owned() + NO_SUMMARIES;
            self.add(Warning, path, message, "set histogram");
        }
    }
}

const NO_SUMMARIES: &str = "summaries are not supported, times are shown as a histogram";

/// True when a mapping's buckets have an effect: only response times have buckets.
fn is_of_response_times(pattern: &Pattern) -> bool {
    Method::ALL.iter().any(|method| {
        let name = statsd_names::of_single(&rows::RESPONSE_TIME, &[method.name()]).unwrap_or_default();
        pattern.regex.is_match(&name)
    })
}
