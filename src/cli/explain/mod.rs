//! `tollgate explain`: which rule a request would meet and why, which near ones it would not, what would be
//! counted, and what a refusal would say.
//!
//! `question` reads what was typed, `way` walks down the rules, `text` and `json` tell what came of it.
//! Keys and refusals are the limiter's own. Here the parts are put together.

pub(crate) mod query;

mod json;
#[cfg(test)]
mod tests;
mod text;
mod way;

use std::{
    ffi::OsString,
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::Args;

use self::way::{End, Path};
use super::{check, rules_files, rules_files::ReadingArgs, serve::Environment};
use crate::cli::explain::query::Query;
use crate::{
    app,
    clock::{Clock, SystemClock, Time},
    limiter::{self, Handles, Policy, Preview, Served},
    rules::{Rule, compile, nearest},
};

/// What `tollgate explain` is told.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct ExplainArgs {
    /// Directories with rules, or files (without any, where the server would look), and last, in one
    /// argument, a domain and a descriptor; a comma within a value is written `\,`.
    #[arg(value_name = "RULES, QUESTION", required = true)]
    pub words: Vec<OsString>,
    /// How the rules are read.
    #[command(flatten)]
    pub reading: ReadingArgs,
    /// Print the explanation as JSON.
    #[arg(long)]
    pub json: bool,
}

/// What is to be told.
struct Explained<'r> {
    question: &'r Query,
    now: Time,
    story: Explanation<'r>,
    preview: Preview,
}

/// How far the request came.
enum Explanation<'r> {
    /// There is no such domain.
    NoDomain { alike: Option<&'r str>, known: Vec<&'r str> },
    /// Down the rules of its domain.
    Path(Path<'r>),
}

/// Explains. The exit code is 0 when a rule is met, 1 when none is, and 2 when there are no rules or
/// settings to explain by.
#[must_use]
pub fn run(args: &ExplainArgs, environment: &Environment) -> ExitCode {
    match explained(args, environment, SystemClock.now()) {
        Ok((text, is_met)) => {
            super::print(&text);
            if is_met { ExitCode::SUCCESS } else { ExitCode::from(1) }
        }
        Err(why) => {
            let _ = writeln!(io::stderr().lock(), "error: nothing can be explained:\n{why}");
            ExitCode::from(2)
        }
    }
}

/// The explanation, and whether a rule is met.
fn explained(args: &ExplainArgs, environment: &Environment, now: Time) -> Result<(String, bool), String> {
    let lines = |problems: Vec<String>| format!("  {}", problems.join("\n  "));
    let (question, rules) = question(&args.words)?;
    let policy = app::policy(&environment.settings().map_err(lines)?.0);
    let (reading, options) = rules_files::read(&rules, args.reading, environment).map_err(lines)?;
    let compiled = compile(&reading.files, options);
    let Some(rules) = compiled.rules.filter(|_| !reading.has_errors()) else {
        let mut told = Vec::new();
        // Writing to memory cannot fail.
        let _ = check::check(&reading, options, &mut told);
        return Err(String::from_utf8_lossy(&told).trim_end().to_owned());
    };
    let served = Served { rules, attached: Handles::default() };
    let explained = explain(&question, &served, &policy, now)?;
    let text = if args.json { json::of(&explained) } else { text::of(&explained) };
    Ok((text, explained.rule().is_some()))
}

/// What is asked about stands last: before it there may be as many files as there are.
fn question(words: &[OsString]) -> Result<(Query, Vec<PathBuf>), String> {
    let (question, rules) = words.split_last().ok_or("  nothing is asked about")?;
    let question = question.to_string_lossy().parse().map_err(|reason| format!("  {reason}"))?;
    Ok((question, rules.iter().map(PathBuf::from).collect()))
}

fn explain<'r>(
    question: &'r Query,
    served: &'r Served,
    policy: &Policy,
    now: Time,
) -> Result<Explained<'r>, String> {
    let request = question.to_request();
    let preview = limiter::preview(&request, served, policy, now).map_err(|refusal| refusal.to_string())?;
    let story = if let Some(domain) = served.rules.domain(&question.domain) {
        Explanation::Path(way::walk(domain, &request.descriptors[0].entries))
    } else {
        let mut known: Vec<&str> = served.rules.domains().map(|domain| &*domain.name).collect();
        known.sort_unstable();
        Explanation::NoDomain { alike: nearest(&question.domain, known.iter().copied()), known }
    };
    Ok(Explained { question, now, story, preview })
}

impl<'r> Explained<'r> {
    /// The rule that is met.
    fn rule(&self) -> Option<&'r Rule> {
        let Explanation::Path(Path { end: End::Rule(rule), .. }) = &self.story else { return None };
        Some(rule)
    }
}
