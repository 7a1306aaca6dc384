//! `tollgate replay`: decides the requests of logs with rules, and shows what they would have done.
//!
//! [`run`] opens the logs, loads the rules and shows the report; `text` and `github` format it. The crate `replay` reads
//! and decides.

mod github;
mod html;
mod text;

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;

use super::{
    check::{Format, FormatArgs, Report as Checked},
    explain,
    progress::Progress,
    rules_files::{self, ReadingArgs},
    serve::Environment,
    terminal::{self, Failure, Verdict},
};
use ::replay::{
    AccessLog, Decider, Failed, Format as LogFormat, Fraction, Log, Replay, Report, Template, Unreadable,
};
use clock::{Rfc3339, Time};
use overrides::Index;
use settings::Settings;

#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReplayArgs {
    /// Logs of requests as JSON lines, or with --descriptor Envoy's access logs; plain or compressed by gzip or zstd; - for
    /// standard input.
    #[arg(value_name = "LOG", required = true)]
    logs: Vec<PathBuf>,
    /// The rules to decide with: a directory of rules files, or one file.
    #[arg(long, value_name = "DIR")]
    rules: PathBuf,
    /// The rules to compare with; by default no rules, so that everything refused is newly refused.
    #[arg(long, value_name = "DIR")]
    against: Option<PathBuf>,
    /// A file of overrides to apply with both rules, CSV with a header or JSON lines; by default `OVERRIDES_FILE`, if set.
    #[arg(long, value_name = "FILE")]
    overrides: Option<PathBuf>,
    /// Decide only requests from this time on, such as 2026-11-01T00:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = time)]
    from: Option<Time>,
    /// Decide only requests before this time.
    #[arg(long, value_name = "TIME", value_parser = time)]
    to: Option<Time>,
    /// Exit with 1 if more than this share of the requests is newly refused, such as 0.1%.
    #[arg(long, value_name = "SHARE")]
    fail_above: Option<Fraction>,
    /// Suggest limits that would refuse something to this share of the keys, such as 0.1%.
    #[arg(long, value_name = "SHARE")]
    suggest: Option<Fraction>,
    /// The domain of the requests that Envoy sends for the lines of an access log.
    #[arg(long, value_name = "DOMAIN", requires = "descriptor")]
    domain: Option<String>,
    /// A descriptor of such a request with Envoy's operators, such as 'client=%REQ(X-CLIENT)%,path=/login'; may be
    /// repeated. One with a missing value is not sent.
    #[arg(long, value_name = "KEY=VALUE,...", requires = "domain")]
    descriptor: Vec<Template>,
    /// The format of the access log: a text, by default Envoy's, or an object of JSON.
    #[arg(long, value_name = "FORMAT", requires = "descriptor")]
    access_log_format: Option<LogFormat>,
    #[command(flatten)]
    reading: ReadingArgs,
    /// Also write the report as a page into this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArgs,
}

/// 9000-01-01T00:00:00Z
const LAST_SECOND: u64 = 221_845_392_000;

pub(super) fn time(text: &str) -> Result<Time, String> {
    let Rfc3339(time) =
        text.parse().map_err(|_| "expected a time such as 2026-11-01T00:00:00Z".to_owned())?;
    // Calendars end in the year 9997.
    if time < Time::from_seconds(LAST_SECOND) {
        Ok(time)
    } else {
        Err("expected a time before the year 9000".to_owned())
    }
}

/// Replays logs and prints the report. The verdict is no if more is newly refused than `--fail-above` allows.
pub(crate) fn run(args: &ReplayArgs, environment: &Environment) -> Result<Verdict, Failure> {
    let format = args.format.chosen();
    let report = match replay(args, environment) {
        Ok(report) => report,
        Err(Stopped { annotations: Some(annotations), .. }) if format == Format::Github => {
            terminal::print_data(&annotations);
            return Ok(Verdict::Unknown);
        }
        Err(Stopped { failure, .. }) => return Err(failure),
    };
    if let (Some(_), true) = (args.fail_above, report.is_partial()) {
        let why = if report.logs.missing > 0 {
            format!("{} requests are missing from the logs", report.logs.missing)
        } else {
            "the logs have a sample of the requests".to_owned()
        };
        return Err(Failure::new(
            format!("--fail-above: {why}, so keys look less used than they are"),
            "record all requests (REQUEST_LOG=all), or all requests of some keys (REQUEST_LOG=sampled:0.01)",
        ));
    }
    if let Some(path) = &args.html {
        let failed = |error| format!("cannot write {}: {error}", path.display());
        fs::write(path, html::page(&report)).map_err(failed)?;
    }
    let is_above = args.fail_above.filter(|share| report.is_above(*share));
    match format {
        Format::Text => terminal::print(&text::report(&report, is_above)),
        Format::Json => {
            let json = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?;
            terminal::print_json(&(json + "\n"));
        }
        Format::Github => terminal::print_data(&github::report(&report, is_above)),
    }
    Ok(is_above.is_none().into())
}

/// Why there is no report.
struct Stopped {
    failure: Failure,
    /// The same as workflow commands, if it is about a log or rules.
    annotations: Option<String>,
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Self {
        Self { failure, annotations: None }
    }
}

impl From<String> for Stopped {
    fn from(message: String) -> Self {
        Failure::from(message).into()
    }
}

impl From<Unreadable> for Stopped {
    fn from(unreadable: Unreadable) -> Self {
        Self { failure: unreadable.to_string().into(), annotations: Some(github::error(&unreadable)) }
    }
}

fn replay(args: &ReplayArgs, environment: &Environment) -> Result<Report, Stopped> {
    if let (Some(from), Some(to)) = (args.from, args.to)
        && from >= to
    {
        return Err("--from is not before --to, so there is nothing to replay".to_owned().into());
    }
    let settings = environment.settings()?.0;
    let file = args.overrides.as_deref().or(settings.overrides.file.as_deref());
    // None is removed as expired: the log is older than now.
    let index = file.map(|path| explain::read_overrides(path, Time::default())).transpose()?;
    let index = Arc::new(index.unwrap_or_default());
    let rules = decider(&args.rules, args, environment, &settings, &index)?;
    let against = args.against.as_ref();
    let against = against.map(|path| decider(path, args, environment, &settings, &index)).transpose()?;
    let (logs, size) = open(&args.logs)?;
    let mut progress = Progress::new("request", size);
    let replay = Replay {
        logs,
        access_log: access_log(args),
        rules,
        against,
        from: args.from,
        to: args.to,
        suggest: args.suggest,
    };
    let result = replay.run(&mut |decision| {
        // Reading the clock takes a share of the time of a decision.
        if decision.number.is_multiple_of(1 << 12) {
            progress.show(decision.bytes_read, decision.number);
        }
    });
    result.map_err(|failed| match failed {
        Failed::Unreadable(unreadable) => unreadable.into(),
        Failed::System(error) => format!("the system denies a thread: {error}").into(),
        Failed::TooManyKeys => {
            let what =
                "more keys are counted at one time than fit into memory, so the decisions would be wrong";
            Failure::new(what, "replay a part of the log with --from and --to").into()
        }
    })
}

/// How requests are made from access logs; `None` for logs of requests.
fn access_log(args: &ReplayArgs) -> Option<AccessLog> {
    let format = args.access_log_format.clone().unwrap_or_default();
    Some(AccessLog { format, domain: args.domain.clone()?, descriptors: args.descriptor.clone() })
}

/// The rules at a path, ready to decide as the service would with these settings.
fn decider(
    path: &Path,
    args: &ReplayArgs,
    environment: &Environment,
    settings: &Settings,
    overrides: &Arc<Index>,
) -> Result<Decider, Stopped> {
    let (reading, options) = rules_files::read(&[path.to_owned()], args.reading, environment)?;
    let mut checked = Checked::new(reading, options, false);
    let Some(rules) = checked.rules.take() else {
        let failure = checked.unusable(&format!("the rules of {}", path.display()));
        return Err(Stopped { failure, annotations: Some(checked.github()) });
    };
    // A mistyped directory would admit everything.
    if rules.rule_count() == 0 {
        let message = format!("{} has no rules, so it would refuse nothing", path.display());
        return Err(Failure::new(message, "name the directory of the rules files").into());
    }
    let cache = settings.store.local_cache_bytes;
    Ok(Decider::new(rules, settings::policy(settings), overrides.clone(), cache))
}

/// Opens the logs, and sums up their bytes if all of them are files.
fn open(paths: &[PathBuf]) -> Result<(Vec<Log>, Option<u64>), Stopped> {
    if paths.iter().filter(|path| *path == Path::new("-")).count() > 1 {
        return Err("standard input (-) can be only one of the logs".to_owned().into());
    }
    let mut logs = Vec::new();
    let mut size = Some(0);
    for path in paths {
        let name = path.display().to_string();
        if path == Path::new("-") {
            logs.push(Log { name, bytes: Box::new(io::stdin()) });
            size = None;
            continue;
        }
        let opened = File::open(path).and_then(|file| Ok((file.metadata()?, file)));
        let unreadable = |message: String| Unreadable { log: name.clone(), line: None, message };
        let (metadata, file) = opened.map_err(|error| unreadable(format!("cannot be read: {error}")))?;
        if metadata.is_dir() {
            return Err(unreadable("is a directory; expected logs".to_owned()).into());
        }
        size = size.filter(|_| metadata.is_file()).map(|size: u64| size.saturating_add(metadata.len()));
        logs.push(Log { name, bytes: Box::new(file) });
    }
    Ok((logs, size))
}
