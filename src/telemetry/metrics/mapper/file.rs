//! From a mapper's file to a [`Mapper`], with every error in it in one run.
//!
//! The options are those of `statsd_exporter`. What has no meaning for metrics that are counted here and
//! not received (`ttl`, summaries), and unknown options, cause a warning.

use super::{
    super::{
        histogram::BOUNDS_MICROS,
        names::{self, Kind},
        service::Method,
        statsd_names,
    },
    Mapper, Mapping, Target,
    pattern::{Pattern, is_name},
    yaml::{Fields, Reader},
};
use regex::RegexBuilder;

use crate::rules::{
    Diagnostic,
    diagnostics::{Diagnostics, Path, quoted},
    yaml::{Content, MaxValues, NodeRef, read as read_yaml},
};

/// A file of a thousand mappings holds some 20,000 values; a value takes up to half a kilobyte while it is read.
const MOST: MaxValues = MaxValues { values: 50_000, set_by: "for a file of mappings this is fixed" };

/// A regular expression that is compiled takes no more. One of a hundred words with classes of letters takes
/// a tenth of it.
const MAX_REGEX_BYTES: usize = 1 << 20;

const OBSERVER_TYPES: [(&str, bool); 2] = [("histogram", true), ("summary", false)];
const MATCH_TYPES: [(&str, bool); 2] = [("glob", false), ("regex", true)];
const METRIC_TYPES: [(&str, Kind); 4] = [
    ("counter", Kind::Counter),
    ("gauge", Kind::Gauge),
    ("observer", Kind::Histogram),
    ("timer", Kind::Histogram),
];
const MAPPING: [&str; 16] = [
    "match",
    "match_type",
    "match_metric_type",
    "name",
    "labels",
    "action",
    "help",
    "scale",
    "observer_type",
    "timer_type",
    "histogram_options",
    "buckets",
    "summary_options",
    "quantiles",
    "ttl",
    "honor_labels",
];
const DEFAULTS: [&str; 9] = [
    "match_type",
    "glob_disable_ordering",
    "observer_type",
    "timer_type",
    "histogram_options",
    "buckets",
    "summary_options",
    "quantiles",
    "ttl",
];
const HISTOGRAM: [&str; 3] = ["buckets", "native_histogram_bucket_factor", "native_histogram_max_buckets"];

/// The mapper of a file, with warnings about it.
///
/// # Errors
/// Everything for which the file cannot be used, each with its line and column.
pub fn read(file: &str, bytes: &[u8]) -> Result<(Mapper, Vec<Diagnostic>), Vec<Diagnostic>> {
    let mut reader = Reader { findings: Diagnostics::of(file, false) };
    let mapper = match read_yaml(bytes, MOST) {
        Ok(document) => document.root.as_ref().map(|root| reader.mapper(root)),
        Err(fault) => {
            reader.findings.file_error(fault);
            None
        }
    };
    let refused = reader.findings.has_errors();
    let findings = reader.findings.into_sorted();
    let mapper = mapper.unwrap_or(Mapper { mappings: Vec::new(), specific_first: false });
    if refused { Err(findings) } else { Ok((mapper, findings)) }
}

/// What mappings have that don't say otherwise.
struct Defaults<'a> {
    is_regex: bool,
    buckets: Vec<(f64, &'a NodeRef)>,
}

impl Reader {
    fn mapper(&mut self, root: &NodeRef) -> Mapper {
        let fields = self.fields(root, &Path::File, &["defaults", "mappings"]);
        let path = Path::File.key("defaults");
        let given = fields.get("defaults").map(|map| self.fields(map, &path, &DEFAULTS)).unwrap_or_default();
        let is_regex = self.choice(&given, &path, "match_type", &MATCH_TYPES).unwrap_or(false);
        let defaults = Defaults { is_regex, buckets: self.buckets(&given, &path) };
        self.warn_of_what_does_nothing(&given, &path);
        let ordering = path.key("glob_disable_ordering");
        let specific_first =
            given.get("glob_disable_ordering").is_some_and(|value| self.flag(value, &ordering));
        let path = Path::File.key("mappings");
        let items = fields.get("mappings").map(|list| self.items(list, &path)).unwrap_or_default();
        let mappings = items.iter().enumerate();
        let mappings = mappings.filter_map(|(at, item)| self.mapping(item, &path.item(at), &defaults));
        Mapper { mappings: mappings.collect(), specific_first }
    }

    fn mapping(&mut self, item: &NodeRef, path: &Path<'_>, defaults: &Defaults<'_>) -> Option<Mapping> {
        let fields = self.fields(item, path, &MAPPING);
        if !matches!(item.node.content, Content::Map(_)) {
            return None;
        }
        let is_regex = self.choice(&fields, path, "match_type", &MATCH_TYPES).unwrap_or(defaults.is_regex);
        let pattern = self.pattern(item, &fields, path, is_regex);
        let only = self.choice(&fields, path, "match_metric_type", &METRIC_TYPES);
        let is_map = self.choice(&fields, path, "action", &[("map", true), ("drop", false)]);
        self.warn_of_what_does_nothing(&fields, path);
        let target = if is_map.unwrap_or(true) {
            Some(self.target(item, &fields, path, pattern.as_ref(), defaults)?)
        } else {
            None
        };
        Some(Mapping { pattern: pattern?, only, target })
    }

    fn pattern(
        &mut self,
        item: &NodeRef,
        fields: &Fields<'_>,
        path: &Path<'_>,
        is_regex: bool,
    ) -> Option<Pattern> {
        let Some(value) = fields.get("match") else {
            self.error(item, path, "`match` is missing".to_owned(), "say which statsd names are meant");
            return None;
        };
        let path = path.key("match");
        let text = self.text(value, &path)?;
        if is_regex {
            return match RegexBuilder::new(&text).size_limit(MAX_REGEX_BYTES).build() {
                Ok(regex) => Some(Pattern::Regex(regex)),
                Err(error) => {
                    let why = error.to_string();
                    let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
                    let message = format!("{} is no regular expression: {why}", quoted(&text));
                    self.error(value, &path, message, "a dot of a name is written \\.");
                    None
                }
            };
        }
        let glob = Pattern::of_glob(&text);
        if glob.is_none() {
            let help = "words of letters, digits, _ and - with dots between, or * for a whole word; \
                for anything else set match_type: regex";
            self.error(value, &path, format!("{} is no glob", quoted(&text)), help);
        }
        glob
    }

    fn target(
        &mut self,
        item: &NodeRef,
        fields: &Fields<'_>,
        path: &Path<'_>,
        pattern: Option<&Pattern>,
        defaults: &Defaults<'_>,
    ) -> Option<Target> {
        let named = path.key("name");
        let name = fields.get("name").and_then(|value| Some((*value, self.text(value, &named)?)));
        let Some((value, name)) = name else {
            self.error(item, path, "`name` is missing".to_owned(), "give the metric a name, or action: drop");
            return None;
        };
        if !is_name(&name) {
            let help = "letters, digits and _, not a digit first; $1 or ${1} stands for what was matched";
            self.error(value, &named, format!("{} is no metric's name", quoted(&name)), help);
        }
        let labels = fields.get("labels").map(|map| self.labels(map, &path.key("labels")));
        let help = fields.get("help").and_then(|value| self.text(value, &path.key("help")));
        let scale = fields.get("scale").and_then(|value| self.number(value, &path.key("scale")));
        let mut buckets = self.buckets(fields, path);
        if buckets.is_empty() {
            buckets.clone_from(&defaults.buckets);
        }
        let times_it = pattern.is_some_and(is_of_response_times);
        let buckets = times_it.then(|| self.shown_buckets(&buckets, scale.unwrap_or(1.0), path)).flatten();
        Some(Target { name, labels: labels.unwrap_or_default(), help, scale, buckets })
    }

    fn labels(&mut self, map: &NodeRef, path: &Path<'_>) -> Vec<(String, String)> {
        let mut labels = std::collections::BTreeMap::new();
        for pair in self.pairs(map, path) {
            let Some(name) = self.text(&pair.key, path) else { continue };
            let begins = |c: char| c.is_ascii_alphabetic() || c == '_';
            let goes_on = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if !name.starts_with(begins) || !name.chars().all(goes_on) {
                let help = "letters, digits and _, not a digit first";
                self.error(&pair.key, path, format!("{} is no label's name", quoted(&name)), help);
            } else if name.starts_with("__") || name == "le" {
                let message = format!("the label {} is Prometheus's own", quoted(&name));
                self.error(&pair.key, path, message, "take another name");
            }
            if let Some(value) = self.text(&pair.value, &path.key(&name)) {
                labels.insert(name, value);
            }
        }
        labels.into_iter().collect()
    }

    /// The buckets asked for, each with its place; those of the old form count where the new one has none.
    fn buckets<'a>(&mut self, fields: &Fields<'a>, path: &Path<'_>) -> Vec<(f64, &'a NodeRef)> {
        let options = path.key("histogram_options");
        let given = fields.get("histogram_options");
        let given = given.map(|map| self.fields(map, &options, &HISTOGRAM)).unwrap_or_default();
        for option in &HISTOGRAM[1..] {
            if let Some(value) = given.get(option) {
                self.warning(value, &options.key(option), "does nothing", "buckets are of the classic kind");
            }
        }
        let list = given.get("buckets").or(fields.get("buckets"));
        let path = options.key("buckets");
        let items = list.map(|list| self.items(list, &path)).unwrap_or_default();
        let bucket = |(at, item)| Some((self.number(item, &path.item(at))?, item));
        items.iter().enumerate().filter_map(bucket).collect()
    }

    /// Which of our own buckets are meant. Times are counted in fixed ones, so others cannot be had.
    fn shown_buckets(
        &mut self,
        asked: &[(f64, &NodeRef)],
        scale: f64,
        path: &Path<'_>,
    ) -> Option<Vec<usize>> {
        let mut shown = Vec::new();
        for (bucket, place) in asked {
            // A name of statsd is in milliseconds, which the scale makes what is shown.
            let micros = bucket / scale * 1e3;
            let is_it = |bound: &u32| (f64::from(*bound) - micros).abs() < micros * 1e-9;
            if let Some(at) = BOUNDS_MICROS.iter().position(is_it) {
                shown.push(at);
            } else {
                let own = BOUNDS_MICROS.map(|bound| (f64::from(bound) / 1e3 * scale).to_string());
                let help = format!("times are counted in the buckets {}", own.join(", "));
                self.warning(place, path, &format!("the bucket {bucket} is left out"), &help);
            }
        }
        shown.sort_unstable();
        shown.dedup();
        (!shown.is_empty()).then_some(shown)
    }

    fn warn_of_what_does_nothing(&mut self, fields: &Fields<'_>, path: &Path<'_>) {
        let observer = self.choice(fields, path, "observer_type", &OBSERVER_TYPES);
        let observer = observer.or(self.choice(fields, path, "timer_type", &OBSERVER_TYPES));
        let summary = ["summary_options", "quantiles"].map(|key| fields.get(key).map(|value| (key, *value)));
        for (key, value) in summary.into_iter().flatten() {
            if observer == Some(true) {
                let message = format!("`{key}` contradicts `observer_type: histogram`");
                self.error(value, &path.key(key), message, "remove one of them");
            } else {
                let help = "times are shown as a histogram, from which quantiles are computed when asked for";
                self.warning(value, &path.key(key), "does nothing: there are no summaries", help);
            }
        }
        for key in ["observer_type", "timer_type"] {
            if let (Some(false), Some(value)) = (observer, fields.get(key)) {
                let message = "there are no summaries: times are shown as a histogram";
                self.warning(value, &path.key(key), message, "write histogram");
            }
        }
        if let Some(value) = fields.get("ttl") {
            let message = "does nothing: a series stays while its rule does";
            self.warning(value, &path.key("ttl"), message, "remove it");
        }
    }

    /// One of a few words, where it is given.
    fn choice<T: Copy>(
        &mut self,
        fields: &Fields<'_>,
        path: &Path<'_>,
        key: &str,
        words: &[(&str, T)],
    ) -> Option<T> {
        let value = fields.get(key)?;
        self.word(value, &path.key(key), words)
    }
}

/// True when a mapping's buckets mean something: only response times have any.
fn is_of_response_times(pattern: &Pattern) -> bool {
    Method::ALL.iter().any(|method| {
        let name = statsd_names::of_single(&names::RESPONSE_TIME, &[method.name()]).unwrap_or_default();
        let parts: Vec<&str> = name.split('.').collect();
        pattern.glob(&parts).is_some() || pattern.regex(&name).is_some()
    })
}
