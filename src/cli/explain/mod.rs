//! `tollgate explain`: the rule that each descriptor of a request matches and why, the near ones that it
//! does not, the counters, and the response over the limit.
//!
//! `query` reads what was typed, `path` walks down the rules, `text` and `json` print the result. Keys and
//! the response come from the limiter itself. This file puts the parts together.

mod json;
mod path;
pub(crate) mod query;
#[cfg(test)]
mod tests;
mod text;

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::Args;

use self::{path::Path, query::Query};
use super::{
    admin::{
        AdminArgs,
        overrides::{self, Source},
    },
    check::Report,
    request::{Address, Descriptor, TlsArgs, timeout},
    rules_files::{self, ReadingArgs},
    serve::Environment,
    terminal::{self, Verdict},
};
use crate::{
    app,
    clock::{Clock, SystemClock, Time},
    entries,
    limiter::{self, Answer, Handles, OverrideLimit, Policy, Served},
    overrides::{Found, Index},
    rules::{Limit, Limits, Rule, RuleSet, model::Node, nearest},
};

/// The arguments of `tollgate explain`.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct ExplainArgs {
    /// The domain, then descriptors; a comma within a value is written `\,`.
    #[arg(value_name = "DOMAIN KEY=VALUE[,...]", required = true)]
    pub words: Vec<OsString>,
    /// A directory with rules, or a rules file; may be repeated. Without it, the directory that the service
    /// would read.
    #[arg(long, value_name = "PATH")]
    pub rules: Vec<PathBuf>,
    /// The hits of each descriptor; 0 looks without counting.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub hits: u32,
    /// A file of overrides to apply, CSV with a header or JSON lines; by default `OVERRIDES_FILE`, if set.
    /// `tollgate override list --csv` writes one.
    #[arg(long, value_name = "FILE", conflicts_with = "admin")]
    pub overrides: Option<PathBuf>,
    /// The address of an admin API, whose overrides are applied: http://host:port, https://host:port, host:port or
    /// `unix:/path`.
    #[arg(long, value_name = "URL")]
    pub admin: Option<Address>,
    /// A file whose first token is sent; by default `ADMIN_TOKEN_FILE`, if set.
    #[arg(long, value_name = "FILE", requires = "admin")]
    pub token_file: Option<PathBuf>,
    /// How long to wait for a reply of the admin API; by default 5s.
    #[arg(long, value_name = "DURATION", value_parser = timeout, requires = "admin")]
    pub timeout: Option<Duration>,
    /// TLS to the admin API.
    #[command(flatten)]
    pub tls: TlsArgs,
    /// How the rules are read.
    #[command(flatten)]
    pub reading: ReadingArgs,
    /// Print the explanation as JSON.
    #[arg(long)]
    pub json: bool,
}

/// An explained request.
struct Explained<'r> {
    query: &'r Query,
    rules: &'r RuleSet,
    now: Time,
    domain: DomainLookup<'r>,
    /// The response when every limit is exceeded.
    over_limit: Answer,
}

/// The request's domain among those of the rules.
enum DomainLookup<'r> {
    /// No rules file has it.
    Unknown { similar: Option<&'r str>, known: Vec<&'r str> },
    /// Each descriptor, in the request's order.
    Known(Vec<Outcome<'r>>),
}

/// What becomes of one descriptor.
struct Outcome<'r> {
    descriptor: &'r Descriptor,
    path: Path<'r>,
    /// The limits of the matching rule.
    limits: Vec<LimitOutcome<'r>>,
    /// The override that applies, with its limit in place of the rule's and the key of its counter.
    steered: Option<(Found, OverrideLimit)>,
}

/// What becomes of one limit of a rule.
struct LimitOutcome<'r> {
    limit: &'r Limit,
    counting: Counting<'r>,
}

enum Counting<'r> {
    /// Under this key.
    Key(String),
    /// Not at all: this rule of another descriptor replaces the limit.
    ReplacedBy(&'r Node),
}

/// Explains a request. The verdict is yes when every descriptor matches a rule.
#[must_use]
pub fn run(args: &ExplainArgs, environment: &Environment) -> Verdict {
    match explained(args, environment, SystemClock.now()) {
        Ok((text, all_match)) => {
            if args.json {
                terminal::print_data(&text);
            } else {
                terminal::print(&text);
            }
            all_match.into()
        }
        Err(reason) => {
            terminal::print_error(&reason);
            Verdict::Unknown
        }
    }
}

/// The explanation, and whether every descriptor matches a rule.
fn explained(args: &ExplainArgs, environment: &Environment, now: Time) -> Result<(String, bool), String> {
    let (query, more) = Query::read(&args.words, !args.rules.is_empty(), args.hits)?;
    let lines = |problems: Vec<String>| format!("invalid settings:\n  {}", problems.join("\n  "));
    let settings = environment.settings().map_err(lines)?.0;
    let policy = app::policy(&settings);
    let file = args.overrides.as_deref().or(settings.overrides.file.as_deref());
    let overrides = match (&args.admin, file) {
        (Some(admin), _) => overrides_in_force(admin, args, environment, &query)?,
        (None, Some(path)) => read_overrides(path, now)?,
        (None, None) => Index::default(),
    };
    let paths: Vec<PathBuf> = args.rules.iter().cloned().chain(more.iter().map(PathBuf::from)).collect();
    let read = rules_files::read(&paths, args.reading, environment);
    let (reading, options) = read.map_err(|problems| problems.join("\n  "))?;
    let mut report = Report::new(reading, options, false);
    let Some(rules) = report.rules.take() else {
        return Err(format!("the rules are invalid:\n{}", report.text().trim_end()));
    };
    let served = Served { rules, attached: Handles::default() };
    let explained = explain(&query, &served, &overrides, &policy, now)?;
    let text = if args.json { json::of(&explained) } else { text::of(&explained) };
    Ok((text, explained.all_match()))
}

/// The overrides in force at a service.
fn overrides_in_force(
    admin: &Address,
    args: &ExplainArgs,
    environment: &Environment,
    query: &Query,
) -> Result<Index, String> {
    let admin = AdminArgs {
        admin: Some(admin.clone()),
        token_file: args.token_file.clone(),
        json: false,
        timeout: args.timeout,
        tls: args.tls.clone(),
    };
    let typed = query.descriptors.iter().map(|descriptor| {
        let entries = descriptor.entries().iter();
        entries::write(entries.map(|(key, value)| (key.as_str(), value.into())))
    });
    let all = overrides::in_force(&admin, environment, &query.domain, typed);
    let index = Index::default();
    let mut draft = index.draft();
    for one in all.map_err(|failure| failure.to_string())? {
        index.add_to(&mut draft, &one)?;
    }
    index.add(&draft)?;
    Ok(index)
}

/// The overrides of a file. Those that have ended are left out.
fn read_overrides(path: &std::path::Path, now: Time) -> Result<Index, String> {
    let failed = |error: &dyn std::fmt::Display| format!("overrides {}: {error}", path.display());
    let file = std::fs::File::open(path).map_err(|error| failed(&error))?;
    let is_csv = path.extension().is_some_and(|name| name.eq_ignore_ascii_case("csv"));
    let source = Source::new(std::io::BufReader::new(file), is_csv, Time::default());
    let mut source = source.map_err(|error| failed(&error))?;
    let index = Index::default();
    let mut draft = index.draft();
    while let Some(one) = source.next() {
        one.and_then(|one| index.add_to(&mut draft, &one)).map_err(|error| failed(&error))?;
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
    let explained = |domain| Explained { query, rules, now, domain, over_limit: preview.over_limit };
    let Some(domain) = rules.domain(&query.domain) else {
        let mut known: Vec<&str> = rules.domains().map(|domain| &*domain.name).collect();
        known.sort_unstable();
        let similar = nearest(&query.domain, known.iter().copied());
        return Ok(explained(DomainLookup::Unknown { similar, known }));
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
    let outcomes = outcomes.map(|(((descriptor, path), counters), steered)| {
        let limits = path.matched().and_then(|(_, rule)| rule.limits()).into_iter().flat_map(Limits::iter);
        let limits = limits.zip(counters).filter_map(|(limit, key)| {
            let replaced = || replacing(limit).map(Counting::ReplacedBy);
            Some(LimitOutcome { limit, counting: key.map(Counting::Key).or_else(replaced)? })
        });
        Outcome { descriptor, limits: limits.collect(), path, steered }
    });
    let outcomes = outcomes.collect();
    Ok(explained(DomainLookup::Known(outcomes)))
}

impl Explained<'_> {
    fn outcomes(&self) -> &[Outcome<'_>] {
        match &self.domain {
            DomainLookup::Known(outcomes) => outcomes,
            DomainLookup::Unknown { .. } => &[],
        }
    }

    /// True when every descriptor matches a rule.
    fn all_match(&self) -> bool {
        let outcomes = self.outcomes();
        !outcomes.is_empty() && outcomes.iter().all(|outcome| outcome.rule().is_some())
    }

    /// `shop.yaml:4`
    fn place(&self, node: &Node) -> String {
        self.rules.origin(node).map(|(file, line)| format!("{file}:{line}")).unwrap_or_default()
    }
}

impl<'r> Outcome<'r> {
    fn rule(&self) -> Option<&'r Rule> {
        self.path.matched().map(|(_, rule)| rule)
    }

    /// The rule that replaces every limit of this descriptor's rule.
    fn replaced_by(&self) -> Option<&'r Node> {
        let replacing = |limit: &LimitOutcome<'r>| match limit.counting {
            Counting::ReplacedBy(node) => Some(node),
            Counting::Key(_) => None,
        };
        let first = replacing(self.limits.first()?)?;
        self.limits.iter().all(|limit| replacing(limit).is_some()).then_some(first)
    }
}
