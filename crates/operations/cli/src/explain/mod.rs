//! `tollgate explain`: the rule that each descriptor of a request matches and why, descriptors that nearly match, the
//! counters, and the over-limit response.
//!
//! `path` walks down the rules, `text` and `json` format the result. Counters and the response come from the limiter.

mod json;
mod path;
#[cfg(test)]
mod tests;
mod text;

pub(super) use text::in_words;

use std::{fmt, fs::File, io::BufReader, path::PathBuf};

use clap::Args;

use self::path::Path;
use super::{
    admin::{
        self, AdminArgs,
        overrides::{self, Source},
    },
    check::Report,
    endpoint, replay,
    request::Descriptor,
    rules_files::{self, ReadingArgs},
    serve::Environment,
    terminal::{self, Failure, Verdict},
};
use ::overrides::{Found, Index};
use ::text::spelling::nearest;
use clock::{Clock, SystemClock, Time};
use limit::{Limit, Limits};
use limiter::{self, Answer, Handles, OverrideLimits, Policy, Served};
use rules::{Rule, RuleSet, model::Node};

#[derive(Args, Clone, PartialEq, Debug)]
#[command(
    mut_arg("admin", |arg| arg.help("The address of an admin API, whose rules and overrides are applied").long_help(None)),
    mut_arg("token_file", |arg| arg.requires("admin")),
    mut_arg("timeout", |arg| arg.requires("admin")),
    mut_arg("json", |arg| arg.help("Print the explanation as JSON"))
)]
pub(crate) struct ExplainArgs {
    /// The domain, then descriptors; a comma within a value is written `\,`.
    #[arg(value_name = "DOMAIN KEY=VALUE[,...]", required = true)]
    words: Vec<String>,
    /// A rules file, a directory of them, or - for standard input; may be repeated. By default the rules in force of the
    /// service that --admin names, or the directory that the service would read.
    #[arg(long, value_name = "PATH")]
    rules: Vec<PathBuf>,
    /// The hits of each descriptor; 0 hits are not counted.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = endpoint::hits)]
    hits: u64,
    /// The time of the request in RFC 3339, such as 2026-11-23T20:00:00Z; now by default.
    #[arg(long, value_name = "TIME", value_parser = replay::time)]
    at: Option<Time>,
    /// A file of overrides to apply, CSV with a header or JSON lines; by default `OVERRIDES_FILE`, if set.
    /// `tollgate override list --csv` writes one.
    #[arg(long, value_name = "FILE", conflicts_with = "admin")]
    overrides: Option<PathBuf>,
    #[command(flatten)]
    reading: ReadingArgs,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Query {
    domain: String,
    /// At least one.
    descriptors: Vec<Descriptor>,
    /// The hits of each descriptor.
    hits: u64,
}

struct Explained<'r> {
    query: &'r Query,
    rules: &'r RuleSet,
    now: Time,
    /// The message about a domain that no rules file has; then there are no outcomes.
    unknown_domain: Option<String>,
    switch: Option<Found>,
    /// One for each descriptor of the request.
    outcomes: Vec<Outcome<'r>>,
    /// The response when every limit is exceeded.
    over_limit: Answer,
}

struct Outcome<'r> {
    descriptor: &'r Descriptor,
    path: Path<'r>,
    limits: Vec<LimitOutcome<'r>>,
    /// The override that applies, with the limits in place of the rule's.
    applied: Option<(Found, OverrideLimits)>,
}

struct LimitOutcome<'r> {
    limit: &'r Limit,
    counting: Counting<'r>,
}

enum Counting<'r> {
    /// By the counter with this key.
    By(String),
    /// Not at all: this rule of another descriptor replaces the limit.
    ReplacedBy(&'r Node),
}

/// Explains a request. The verdict is yes if every descriptor matches a rule.
pub(crate) fn run(args: &ExplainArgs, environment: &Environment) -> Result<Verdict, Failure> {
    let now = args.at.unwrap_or_else(|| SystemClock.now());
    let query = Query::read(&args.words, args.hits)?;
    let settings = environment.settings()?.0;
    let file = args.overrides.as_deref().or(settings.overrides.file.as_deref());
    let overrides = match (&args.admin.admin, file) {
        (Some(_), _) => overrides_in_force(&args.admin, environment, &query)?,
        (None, Some(path)) => read_overrides(path, now)?,
        (None, None) => Index::default(),
    };
    let (reading, options) = if args.admin.admin.is_some() && args.rules.is_empty() {
        admin::rules_in_force(&args.admin, environment)?
    } else {
        rules_files::read(&args.rules, args.reading, environment)?
    };
    let mut report = Report::new(reading, options, false);
    let Some(rules) = report.rules.take() else {
        return Err(report.unusable("the rules"));
    };
    let served = Served { rules, files: Vec::new(), attached: Handles::default() };
    let explained = explain(&query, &served, &overrides, &settings::policy(&settings), now)?;
    if args.admin.json {
        terminal::print_json(&json::explanation(&explained));
    } else {
        terminal::print(&text::explanation(&explained));
    }
    Ok(explained.all_match().into())
}

/// The overrides of a service that may apply to the request.
fn overrides_in_force(admin: &AdminArgs, environment: &Environment, query: &Query) -> Result<Index, Failure> {
    let descriptors = query.descriptors.iter().map(ToString::to_string);
    let index = Index::default();
    let mut draft = index.draft();
    for one in overrides::in_force(admin, environment, &query.domain, descriptors)? {
        index.add_to(&mut draft, one)?;
    }
    index.add(&draft)?;
    Ok(index)
}

/// The overrides of a file, without those that have expired.
pub(super) fn read_overrides(path: &std::path::Path, now: Time) -> Result<Index, String> {
    let failed = |error: &dyn fmt::Display| format!("overrides {}: {error}", path.display());
    let file = File::open(path).map_err(|error| failed(&error))?;
    let is_csv = path.extension().is_some_and(|name| name.eq_ignore_ascii_case("csv"));
    let source = Source::new(BufReader::new(file), is_csv, Time::default());
    let mut source = source.map_err(|error| failed(&error))?;
    let index = Index::default();
    let mut draft = index.draft();
    while let Some(one) = source.next() {
        one.and_then(|input| index.add_to(&mut draft, input.one)).map_err(|error| failed(&error))?;
    }
    index.add(&draft).map_err(|error| failed(&error))?;
    while !index.sweep(now).is_empty() {}
    Ok(index)
}

fn explain<'r>(
    query: &'r Query,
    served: &'r Served,
    overrides: &Index,
    policy: &Policy,
    now: Time,
) -> Result<Explained<'r>, String> {
    let request = query.to_request();
    let preview =
        limiter::preview(&request, served, overrides, policy, now).map_err(|error| error.to_string())?;
    let rules = &served.rules;
    let mut explained = Explained {
        query,
        rules,
        now,
        unknown_domain: None,
        switch: preview.switch,
        outcomes: Vec::new(),
        over_limit: preview.over_limit,
    };
    let Some(domain) = rules.domain(&query.domain) else {
        explained.unknown_domain = Some(unknown_domain_message(&query.domain, rules));
        return Ok(explained);
    };
    let paths: Vec<Path<'r>> =
        request.descriptors.iter().map(|descriptor| path::walk(domain, &descriptor.entries)).collect();
    let matched: Vec<(&Node, &Rule)> = paths.iter().filter_map(Path::matched).collect();
    let replacing = |limit: &Limit| {
        let name = limit.name.as_deref()?;
        let replaces = |rule: &Rule| rule.replaces.iter().any(|replaced| **replaced == *name);
        matched.iter().find(|(_, rule)| replaces(rule)).map(|(node, _)| *node)
    };
    let outcomes = query.descriptors.iter().zip(paths).zip(preview.counters).zip(preview.overrides);
    let outcomes = outcomes.map(|(((descriptor, path), counters), applied)| {
        let limits = path.matched().and_then(|(_, rule)| rule.limits()).into_iter().flat_map(Limits::iter);
        let limits = limits.zip(counters).filter_map(|(limit, counter)| {
            let counting = match counter {
                Some(key) => Counting::By(key),
                None => Counting::ReplacedBy(replacing(limit)?),
            };
            Some(LimitOutcome { limit, counting })
        });
        Outcome { descriptor, limits: limits.collect(), path, applied }
    });
    explained.outcomes = outcomes.collect();
    Ok(explained)
}

/// `unknown domain "shops"; did you mean "shop"?`
fn unknown_domain_message(domain: &str, rules: &RuleSet) -> String {
    let mut known: Vec<&str> = rules.domains().map(|domain| &*domain.name).collect();
    known.sort_unstable();
    let hint = match nearest(domain, known.iter().copied()) {
        Some(similar) => format!("did you mean {similar:?}?"),
        None if known.is_empty() => "the rules define no domain".to_owned(),
        None => format!("known: {}", known.join(", ")),
    };
    format!("unknown domain {domain:?}; {hint}")
}

const EXPECTED: &str = "expected a domain and descriptors: DOMAIN KEY=VALUE[,KEY=VALUE]...";

impl Query {
    /// Reads `DOMAIN KEY=VALUE,... ...`.
    fn read(words: &[String], hits: u64) -> Result<Self, String> {
        let (domain, descriptors) =
            words.split_first().filter(|(_, rest)| !rest.is_empty()).ok_or(EXPECTED)?;
        let descriptors = descriptors.iter().map(|word| word.parse());
        let descriptors = descriptors.collect::<Result<Vec<Descriptor>, String>>();
        let descriptors = descriptors.map_err(|reason| format!("{reason}; {EXPECTED}"))?;
        Ok(Self { domain: domain.clone(), descriptors, hits })
    }

    fn to_request(&self) -> limiter::Request<'_> {
        let descriptors = self.descriptors.iter().map(|descriptor| {
            let entries = descriptor.0.iter().map(|(key, value)| limiter::Entry { key, value });
            let hits_addend = Some(self.hits).filter(|hits| *hits == 0 || *hits > u32::MAX.into());
            limiter::Descriptor { entries: entries.collect(), hits_addend, ..limiter::Descriptor::default() }
        });
        limiter::Request {
            domain: &self.domain,
            descriptors: descriptors.collect(),
            hits_addend: u32::try_from(self.hits).unwrap_or_default(),
            ..limiter::Request::default()
        }
    }
}

impl Explained<'_> {
    fn all_match(&self) -> bool {
        !self.outcomes.is_empty() && self.outcomes.iter().all(|outcome| outcome.path.matched().is_some())
    }

    /// `shop.yaml:4`
    fn place(&self, node: &Node) -> String {
        self.rules.origin(node).map(|(file, line)| format!("{file}:{line}")).unwrap_or_default()
    }
}

/// The full key of the rule that a descriptor has.
fn full_key(node: &Node) -> Option<&str> {
    node.rule.as_ref().map(|rule| &*rule.full_key)
}

impl<'r> Outcome<'r> {
    fn rule(&self) -> Option<&'r Rule> {
        self.path.matched().map(|(_, rule)| rule)
    }

    /// The rule that replaces every limit of this descriptor's rule.
    fn replaced_by(&self) -> Option<&'r Node> {
        let nodes = self.limits.iter().map(|limit| match limit.counting {
            Counting::ReplacedBy(node) => Some(node),
            Counting::By(_) => None,
        });
        nodes.collect::<Option<Vec<_>>>()?.first().copied()
    }
}
