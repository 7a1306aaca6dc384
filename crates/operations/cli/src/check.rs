//! `tollgate check`: reports every error and warning in rules files.
//!
//! [`run`] reads the files, [`Report`] compiles them and formats the diagnostics as text, as JSON, or for GitHub.

use std::{
    collections::HashMap,
    fmt::{Display, Write as _},
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::{
    admin::forecast,
    endpoint::Address,
    explain,
    github::annotation,
    rules_files::{self, ReadingArgs},
    serve::Environment,
    terminal::{self, BOLD, ERROR, Failure, GOOD, PLACE, Verdict, WARNING, count, paint, wrapped},
};
use clock::{Clock as _, SystemClock};
use limit::{Limit, Limits};
use overrides::model::timestamp;
use rules::{CompileOptions, Rule, RuleSet, SourceFile, compile};
use rules_source::Reading;
use settings::vars::{self, Var};
use text::{
    diagnostics::{Diagnostic, Place, Severity, render},
    printable,
};

#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub(crate) struct CheckArgs {
    /// Rules files, directories of them, or - for standard input; by default the directory that the service would read.
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
    /// Compare the rules with what this Envoy can send: its bootstrap file or config dump, in YAML or JSON. May be repeated.
    #[arg(long, value_name = "FILE")]
    pub(crate) envoy: Vec<PathBuf>,
    /// Say which counters begin at 0 when the rules replace those of this file or directory.
    #[arg(long, value_name = "PATH")]
    pub(crate) before: Option<PathBuf>,
    /// Say what valid rules would have made of the last requests that the service with this admin API has recorded.
    #[arg(long, value_name = "URL")]
    pub(crate) admin: Option<Address>,
    /// A file whose first token is sent to it; by default `ADMIN_TOKEN_FILE`, if set.
    #[arg(long, value_name = "FILE", requires = "admin")]
    pub(crate) token_file: Option<PathBuf>,
    /// Warn about rules that the Go service would reject.
    #[arg(long)]
    pub(crate) portable: bool,
    /// Treat warnings as errors.
    #[arg(long)]
    pub(crate) deny_warnings: bool,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

#[derive(Args, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FormatArgs {
    /// The output format.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) format: Format,
    /// Short for --format json.
    #[arg(long, conflicts_with = "format")]
    pub(crate) json: bool,
}

impl FormatArgs {
    pub(super) fn chosen(self) -> Format {
        if self.json { Format::Json } else { self.format }
    }
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// Diagnostics with excerpts of the source.
    Text,
    /// One JSON object.
    Json,
    /// Workflow commands that annotate a pull request on GitHub.
    Github,
}

/// The most limits that the text lists with their calendars; the JSON has all.
const MAX_CALENDARS: usize = 20;

/// Maximum size of an Envoy's configuration, whatever the memory: a config dump of a million values.
const MAX_CONFIG_DUMP_BYTES: u64 = 16 << 20;

pub(crate) fn run(args: &CheckArgs, environment: &Environment) -> Result<Verdict, Failure> {
    let format = args.format.chosen();
    let (reading, options) = match rules_files::read(&args.paths, args.reading, environment) {
        Ok(read) => read,
        Err(why) if format == Format::Json => (without_verdict(why), CompileOptions::default()),
        Err(why) => return Err(why.into()),
    };
    let options = CompileOptions { portable: args.portable, strict: true, ..options };
    let envoys = if args.envoy.is_empty() { None } else { Some(Envoys::read(&args.envoy, environment)?) };
    let report = Report::with_envoys(reading, options, args.deny_warnings, envoys).demanding_limits();
    let report = match &args.before {
        Some(before) => report.after(&rules_before(before, args, options, environment)?, environment),
        None => report,
    };
    match format {
        Format::Text => terminal::print(&report.text()),
        Format::Json => terminal::print_json(&report.json()),
        Format::Github => terminal::print_data(&report.github()),
    }
    if let Some(admin) = &args.admin
        && format == Format::Text
        && report.verdict() == Verdict::Yes
    {
        for file in &report.files {
            let would = forecast::of_rules(admin, args.token_file.clone(), &file.text, environment)?;
            terminal::print(&wrapped(&format!("{}: {would}\n", file.name), 2));
        }
    }
    Ok(report.verdict())
}

/// The rules that are replaced.
fn rules_before(
    path: &Path,
    args: &CheckArgs,
    options: CompileOptions,
    environment: &Environment,
) -> Result<RuleSet, Failure> {
    let (reading, _) = rules_files::read(&[path.to_owned()], args.reading, environment)?;
    let options = CompileOptions { portable: false, strict: false, ..options };
    let mut errors = reading.diagnostics;
    let compiled = compile(&reading.files, options);
    errors.extend(compiled.diagnostics);
    errors.retain(Diagnostic::is_error);
    match (compiled.rules, errors.first()) {
        (Some(rules), None) => Ok(rules),
        (_, error) => {
            let error = error.map(ToString::to_string).unwrap_or_default();
            Err(format!("--before {}: these rules cannot be read: {error}", path.display()).into())
        }
    }
}

/// Invalid settings, as an error of no file: a program that reads JSON receives JSON.
fn without_verdict(message: String) -> Reading {
    let error = Diagnostic::of_file(Severity::Error, String::new(), message);
    Reading { files: Vec::new(), diagnostics: vec![error] }
}

fn variable(name: &str) -> Option<&'static Var> {
    vars::ALL.iter().copied().find(|var| var.name == name)
}

struct Envoys {
    reading: Reading,
    service: envoy::Service,
}

impl Envoys {
    fn read(paths: &[PathBuf], environment: &Environment) -> Result<Self, String> {
        let mut reading = Reading::default();
        let help = "keep only its listeners and routes";
        for path in paths {
            let Reading { files, diagnostics } = Reading::of_file(path, MAX_CONFIG_DUMP_BYTES, help);
            reading.files.extend(files);
            reading.diagnostics.extend(diagnostics);
        }
        let is_memcached = environment.value(&vars::BACKEND_TYPE) == "memcache";
        let name = if is_memcached { "MEMCACHE_TIMEOUT" } else { "REDIS_TIMEOUT" };
        let written = variable(name).map(|var| environment.value(var)).unwrap_or_default();
        let invalid = |why: &dyn Display| format!("invalid settings:\n  {name}: {why}");
        let timeout = text::duration::parse(&written).map_err(|why| invalid(&why))?;
        let policy = environment.setting(&vars::STORE_FAILURE_POLICY)?;
        let retry_after_header = environment.setting(&vars::LIMIT_RETRY_AFTER_HEADER)?;
        let service = envoy::Service { timeout: (name, timeout), policy, retry_after_header };
        Ok(Self { reading, service })
    }
}

pub(super) struct Report {
    files: Vec<SourceFile>,
    envoys: Vec<SourceFile>,
    compared: Option<envoy::Compared>,
    diagnostics: Vec<Diagnostic>,
    /// The rules, if there is no error.
    pub(super) rules: Option<RuleSet>,
    denied_warnings: usize,
    /// Every error is about a file or directory that could not be read.
    is_unread: bool,
}

impl Report {
    pub(super) fn new(reading: Reading, options: CompileOptions, deny_warnings: bool) -> Self {
        Self::with_envoys(reading, options, deny_warnings, None)
    }

    fn with_envoys(
        reading: Reading,
        options: CompileOptions,
        deny_warnings: bool,
        envoys: Option<Envoys>,
    ) -> Self {
        let compiled = compile(&reading.files, options);
        let mut compared = envoys.as_ref().zip(compiled.rules.as_ref()).map(|(envoys, rules)| {
            envoy::compare(&envoys.reading.files, rules, &reading.files, &envoys.service)
        });
        let of_envoys =
            compared.as_mut().map(|compared| std::mem::take(&mut compared.diagnostics)).unwrap_or_default();
        let is_sound = compiled.rules.is_some() && !of_envoys.iter().any(Diagnostic::is_error);
        let envoys = envoys.map(|envoys| envoys.reading).unwrap_or_default();
        let is_incomplete = reading.has_errors() || envoys.has_errors();
        let is_unread = is_incomplete && is_sound;
        let mut diagnostics =
            [reading.diagnostics, envoys.diagnostics, compiled.diagnostics, of_envoys].concat();
        let warnings = diagnostics.iter_mut().filter(|diagnostic| diagnostic.severity == Severity::Warning);
        let mut denied_warnings = 0;
        for warning in warnings.filter(|_| deny_warnings) {
            warning.severity = Severity::Error;
            denied_warnings += 1;
        }
        let is_valid = denied_warnings == 0 && !is_incomplete && is_sound;
        let rules = compiled.rules.filter(|_| is_valid);
        let files = reading.files;
        Self { files, envoys: envoys.files, compared, diagnostics, rules, denied_warnings, is_unread }
    }

    /// Makes an error of rules that can limit nothing, by themselves or for what these Envoys send.
    fn demanding_limits(mut self) -> Self {
        let Some(rules) = &self.rules else { return self };
        // Parts that were not read may reach the rules.
        let is_out_of_reach = self.compared.as_ref().is_some_and(|compared| {
            let is_all = |unreached| compared.filters == 0 || unreached >= rules.rule_count() as usize;
            compared.unreached.is_some_and(is_all)
        });
        let (message, help) =
            if rules.rules().iter().all(|rule| rule.limits().is_none() && !rule.overrides_only) {
                (
                    "these rules limit nothing: no descriptor has a limit",
                    "a limit is a `rate_limit` indented like its `key`",
                )
            } else if is_out_of_reach {
                (
                    "these rules limit nothing: Envoy can meet none of them",
                    "its domain and the keys of its actions must be those of the rules",
                )
            } else {
                return self;
            };
        self.rules = None;
        match self.files.first() {
            Some(file) => {
                let error = Diagnostic::of_file(Severity::Error, file.name.clone(), message.to_owned());
                self.diagnostics.push(Diagnostic { help: Some(help.to_owned()), ..error });
            }
            // The warning about the directory.
            None => self.diagnostics.iter_mut().for_each(|found| found.severity = Severity::Error),
        }
        self
    }

    /// Notes which counters begin anew in place of those of other rules.
    fn after(mut self, before: &RuleSet, environment: &Environment) -> Self {
        let topology = variable("REDIS_TYPE").map(|var| environment.value(var)).unwrap_or_default();
        let in_cluster = topology.eq_ignore_ascii_case("cluster");
        let anew = self.rules.iter().flat_map(|rules| rules.begin_anew(before, in_cluster));
        let notes = anew.map(|(rule, limit)| {
            let message = format!("the counters of {} begin at 0", limit.in_words());
            Diagnostic::of_file(Severity::Note, rule.full_key.to_string(), message)
        });
        self.diagnostics.extend(notes);
        self
    }

    fn verdict(&self) -> Verdict {
        match self.rules {
            Some(_) => Verdict::Yes,
            None if self.is_unread && self.denied_warnings == 0 => Verdict::Unknown,
            None => Verdict::No,
        }
    }

    /// Every diagnostic with its line of the source, and a summary.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        // A file is decoded once, and only if a line of it is shown.
        let mut texts: HashMap<&str, String> = HashMap::new();
        for diagnostic in &self.diagnostics {
            let file =
                diagnostic.place.and_then(|_| self.sources().find(|file| file.name == diagnostic.file));
            let text = file.map(|file| &**texts.entry(&file.name).or_insert_with(|| file.readable()));
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(out, "{}", coloured(diagnostic.severity, &render(diagnostic, text)));
        }
        out + &self.calendars() + &self.envoys() + &self.summary() + "\n"
    }

    /// Why `what`, these rules, cannot be used.
    pub(super) fn unusable(&self, what: &str) -> Failure {
        format!("{what} cannot be used:\n{}", self.text().trim_end()).into()
    }

    fn sources(&self) -> impl Iterator<Item = &SourceFile> {
        self.files.iter().chain(&self.envoys)
    }

    /// What the comparison with Envoy found, in a line.
    fn envoys(&self) -> String {
        let Some(compared) = &self.compared else { return String::new() };
        let filters = count(compared.filters, "rate limit filter");
        let descriptors = count(compared.descriptors, "descriptor");
        let unreached = match compared.unreached {
            Some(number) => format!("{} out of reach", count(number, "rule")),
            None => "rules not judged, because a part was not read".to_owned(),
        };
        format!("Envoy: {filters}, {descriptors}, {} without a rule, {unreached}\n", compared.unmatched)
    }

    /// The limits that follow a calendar or a schedule, as they are now.
    fn calendars(&self) -> String {
        let mut out = String::new();
        let now = SystemClock.now();
        let is_of_time = |limit: &Limit| limit.period().calendar().is_some() || limit.schedule.is_some();
        let mut of_time: Vec<_> = self.limits().filter(|(_, limit)| is_of_time(limit)).collect();
        of_time.sort_by_key(|(rule, _)| &rule.full_key);
        for (rule, limit) in of_time.iter().take(MAX_CALENDARS) {
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(out, "{}: {}", printable(&rule.full_key), explain::in_words(limit, now));
        }
        if let Some(more @ 1..) = of_time.len().checked_sub(MAX_CALENDARS) {
            let _ = writeln!(out, "{more} more limits follow a calendar or a schedule");
        }
        out
    }

    fn limits(&self) -> impl Iterator<Item = (&Rule, &Limit)> {
        let rules = self.rules.iter().flat_map(RuleSet::rules);
        rules.flat_map(|rule| {
            let limits = rule.limits().into_iter().flat_map(Limits::iter);
            limits.map(move |limit| (rule, limit))
        })
    }

    fn errors_and_warnings(&self) -> (usize, usize) {
        let errors = self.diagnostics.iter().filter(|diagnostic| diagnostic.is_error()).count();
        let warnings = self.diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Warning);
        (errors, warnings.count())
    }

    /// `3 rules, 1 domain, 2 files: OK, hash 0f3c…`
    fn summary(&self) -> String {
        let (errors, warnings) = self.errors_and_warnings();
        let files = count(self.files.len(), "file");
        let warnings = (warnings > 0).then(|| paint(WARNING, &count(warnings, "warning")));
        let Some(rules) = &self.rules else {
            let mut text = paint(ERROR, &count(errors, "error"));
            let _ = warnings.into_iter().try_for_each(|warnings| write!(text, ", {warnings}"));
            let _ = write!(text, " in {files}");
            if self.denied_warnings > 0 {
                let _ =
                    write!(text, " ({} denied by --deny-warnings)", count(self.denied_warnings, "warning"));
            }
            return text;
        };
        let domains = count(rules.domains().count(), "domain");
        let number = count(rules.rule_count(), "rule");
        let verdict =
            paint(GOOD, "OK") + &warnings.map_or_else(String::new, |warnings| format!(", {warnings}"));
        format!("{number}, {domains}, {files}: {verdict}, hash {:016x}", rules.fingerprint())
    }

    fn json(&self) -> String {
        let (errors, warnings) = self.errors_and_warnings();
        let diagnostic = |Diagnostic { severity, file, place, path, message, help }: &Diagnostic| {
            json!({
                "severity": severity.to_string(),
                "file": file,
                "line": place.map(|place| place.line),
                "column": place.map(|place| place.column),
                "path": path,
                "message": message,
                "help": help,
            })
        };
        let diagnostics: Vec<Value> = self.diagnostics.iter().map(diagnostic).collect();
        let report = json!({
            "valid": self.rules.is_some(),
            "hash": self.rules.as_ref().map(|rules| format!("{:016x}", rules.fingerprint())),
            "files": self.files.len(),
            "domains": self.rules.as_ref().map(|rules| rules.domains().count()),
            "rules": self.rules.as_ref().map(RuleSet::rule_count),
            "errors": errors,
            "warnings": warnings,
            "diagnostics": diagnostics,
            "envoy": self.compared.as_ref().map(|compared| json!({
                "filters": compared.filters,
                "descriptors": compared.descriptors,
                "unmatched_descriptors": compared.unmatched,
                "unreached_rules": compared.unreached,
            })),
            "calendars": self.limits().filter_map(|(rule, limit)| calendar_json(rule, limit)).collect::<Vec<_>>(),
            "schedules": self.limits().filter_map(|(rule, limit)| schedule_json(rule, limit)).collect::<Vec<_>>(),
        });
        format!("{report:#}\n")
    }

    /// A line `::error file=…,line=…,col=…::message` for each diagnostic, then the summary.
    pub(super) fn github(&self) -> String {
        let mut out = String::new();
        for Diagnostic { severity, file, place, path, message, help } in &self.diagnostics {
            let mut properties = vec![("file", file.clone())];
            if let Some(Place { line, column }) = place {
                properties.extend([("line", line.to_string()), ("col", column.to_string())]);
            }
            let path = if path.is_empty() { String::new() } else { format!(" (at {path})") };
            let help = help.as_ref().map(|help| format!("; {help}")).unwrap_or_default();
            let level = if *severity == Severity::Note { "notice" } else { severity.name() };
            out += &annotation(level, &properties, &format!("{message}{path}{help}"));
        }
        out + &anstream::adapter::strip_str(&self.summary()).to_string() + "\n"
    }
}

fn calendar_json(rule: &Rule, limit: &Limit) -> Option<Value> {
    let calendar = limit.period().calendar()?;
    let (start, end) = limit.period().window(SystemClock.now());
    Some(json!({
        "rule": rule.full_key,
        "name": limit.name.as_deref(),
        "requests_per_unit": limit.requests_per_unit,
        "unit": limit.unit.name(),
        "calendar": calendar,
        "window": {"start": timestamp(start.seconds()), "end": timestamp(end.seconds())},
    }))
}

fn schedule_json(rule: &Rule, limit: &Limit) -> Option<Value> {
    let now = SystemClock.now();
    let in_force = limit.scheduled(now)?;
    Some(json!({
        "rule": rule.full_key,
        "name": limit.name.as_deref(),
        "requests_per_unit": limit.at(now).requests_per_unit,
        "unit": limit.unit.name(),
        "schedule": in_force.words,
        "until": in_force.until.map(|until| timestamp(until.seconds())),
    }))
}

/// A rendered diagnostic in colours: its severity, its message, and the margin of the excerpt.
fn coloured(severity: Severity, rendered: &str) -> String {
    let style = match severity {
        Severity::Error => ERROR,
        Severity::Warning => WARNING,
        Severity::Note => PLACE,
    };
    let mut lines = rendered.lines();
    let (word, message) = lines.next().and_then(|line| line.split_once(": ")).unwrap_or_default();
    let mut out = format!("{}: {}\n", paint(style, word), paint(BOLD, message));
    for line in lines {
        let margin = ["-->", "|", "="].iter().filter_map(|mark| Some(line.find(mark)? + mark.len())).min();
        let (margin, rest) = line.split_at(margin.unwrap_or(0));
        let is_caret = rest.trim() == "^";
        let rest = if is_caret { paint(style, rest) } else { rest.to_owned() };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{}{rest}", paint(PLACE, margin));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(files: &[(&str, &str)], portable: bool, deny_warnings: bool) -> (Verdict, Report) {
        let files: Vec<SourceFile> = files
            .iter()
            .map(|(name, text)| SourceFile { name: (*name).to_owned(), text: text.as_bytes().to_vec() })
            .collect();
        let reading = Reading { files, ..Reading::default() };
        let report = Report::new(
            reading,
            CompileOptions { portable, strict: true, ..CompileOptions::default() },
            deny_warnings,
        );
        (report.verdict(), report)
    }

    fn text(report: &Report) -> String {
        terminal::plain(&report.text())
    }

    const GOOD: &str = "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 1}\n";
    const ODD: &str = "domain: d\ndescriptors:\n- key: k\n  unit: day\n  requests_per_unit: 1\n";

    #[test]
    fn valid_files_have_a_summary_with_their_hash() {
        let (verdict, report) = checked(&[("a.yaml", GOOD)], false, true);
        let hash = format!("{:016x}", report.rules.as_ref().unwrap().fingerprint());
        assert_eq!(
            (verdict, text(&report)),
            (Verdict::Yes, format!("1 rule, 1 domain, 1 file: OK, hash {hash}\n"))
        );
        let (verdict, report) = checked(&[], false, false);
        assert_eq!(verdict, Verdict::Yes);
        assert!(text(&report).starts_with("0 rules, 0 domains, 0 files: OK, hash "), "{}", text(&report));
    }

    #[test]
    fn limits_with_a_calendar_are_listed_with_the_end_of_their_windows() {
        let file =
            GOOD.replace("unit: day", "calendar: {time_zone: Europe/Berlin, anchor_day: 15}, unit: month");
        let (_, report) = checked(&[("a.yaml", &file)], false, true);
        let shown = text(&report);
        assert!(shown.starts_with("d.k: 1 per month (Europe/Berlin, from the 15th), ends in "), "{shown}");
        let json: Value = serde_json::from_str(&report.json()).unwrap();
        let calendar = &json["calendars"][0];
        assert_eq!(calendar["calendar"], json!({"time_zone": "Europe/Berlin", "anchor_day": 15}));
        assert!(calendar["window"]["end"].as_str().unwrap().contains("-14T2"), "{calendar}");
        let files: Vec<_> = (0..25)
            .map(|n| (format!("{n}.yaml"), file.replace("domain: d", &format!("domain: d{n}"))))
            .collect();
        let files: Vec<_> = files.iter().map(|(name, text)| (&**name, &**text)).collect();
        let shown = text(&checked(&files, false, true).1);
        assert!(shown.contains("\n5 more limits follow a calendar or a schedule\n25 rules, "), "{shown}");
    }

    #[test]
    fn a_warning_is_shown_and_the_files_are_valid_unless_warnings_are_denied() {
        let files = [("a.yaml", GOOD), ("b.yaml", "domain: e\n")];
        let (verdict, report) = checked(&files, false, false);
        assert_eq!(verdict, Verdict::Yes);
        assert!(text(&report).starts_with("warning: the domain `e` has no descriptors"), "{}", text(&report));
        assert!(
            text(&report).contains("\n1 rule, 2 domains, 2 files: OK, 1 warning, hash "),
            "{}",
            text(&report)
        );
        let (verdict, report) = checked(&files, false, true);
        assert_eq!(verdict, Verdict::No);
        assert!(text(&report).starts_with("error: the domain `e` has no descriptors"), "{}", text(&report));
        let end = "\n1 error in 2 files (1 warning denied by --deny-warnings)\n";
        assert!(text(&report).ends_with(end), "{}", text(&report));
    }

    #[test]
    fn a_limit_lost_by_misplaced_keys_is_an_error_when_warnings_are_denied() {
        let (verdict, report) = checked(&[("a.yaml", ODD)], false, false);
        assert_eq!(verdict, Verdict::Yes);
        let lost = "`unit` has no effect here, so this descriptor has no limit";
        assert!(text(&report).contains(&format!("warning: {lost}\n   --> a.yaml:4:3")), "{}", text(&report));
        let (verdict, report) = checked(&[("a.yaml", ODD)], false, true);
        assert_eq!(verdict, Verdict::No);
        assert!(text(&report).contains(&format!("error: {lost}\n   --> a.yaml:4:3")), "{}", text(&report));
    }

    #[test]
    fn portable_warns_about_rules_that_the_go_service_rejects() {
        let files = [("a.yaml", "on_store_failure: deny\n".to_owned() + GOOD)];
        let files = files.each_ref().map(|(name, text)| (*name, &**text));
        assert!(text(&checked(&files, false, false).1).contains("1 file: OK, hash"));
        let (verdict, report) = checked(&files, true, false);
        assert_eq!(verdict, Verdict::Yes);
        let shown = "warning: the Go service rejects `on_store_failure`\n   --> a.yaml:1:1\n   |\n \
            1 | on_store_failure: deny\n   | ^\n";
        assert!(text(&report).starts_with(shown), "{}", text(&report));
    }

    #[test]
    fn an_error_is_shown_with_its_line_in_every_format() {
        let files = [("a.yaml", GOOD), ("b,c.yaml", "domain: e\nrules: []\n"), ("c.yaml", "- x")];
        let (verdict, report) = checked(&files, false, false);
        assert_eq!(verdict, Verdict::No);
        let shown = "error: unknown key `rules`\n   --> b,c.yaml:2:1\n   |\n 2 | rules: []\n   | ^\n";
        assert!(text(&report).starts_with(shown), "{}", text(&report));
        assert!(text(&report).ends_with("\n2 errors in 3 files\n"), "{}", text(&report));
        let json: Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(
            (&json["valid"], &json["hash"], &json["errors"]),
            (&false.into(), &Value::Null, &2.into())
        );
        let first = &json["diagnostics"][0];
        assert_eq!(
            (&first["file"], &first["line"], &first["column"]),
            (&"b,c.yaml".into(), &2.into(), &1.into())
        );
        let github = report.github();
        let line = github.lines().next().unwrap();
        assert!(line.starts_with("::error file=b%2Cc.yaml,line=2,col=1::unknown key `rules`; "), "{line}");
    }

    #[test]
    fn colours_mark_the_severity_and_the_margin() {
        let (_, report) = checked(&[("a.yaml", "domain: e\nrules: []\n")], false, false);
        assert!(report.text().starts_with("\u{1b}[1m\u{1b}[31merror\u{1b}[0m: "), "{:?}", report.text());
    }
}
