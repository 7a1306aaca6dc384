//! The report as workflow commands, which annotate a pull request on GitHub.

use std::fmt::Write as _;

use super::text::{share, summary};
use crate::{
    check::{escaped, escaped_property},
    terminal::count,
};
use ::replay::{Report, Share, Unreadable};

/// At most this many rules are annotated: GitHub shows ten annotations of a step.
const MAX_RULES: usize = 10;

pub(super) fn of(report: &Report, is_above: Option<Share>) -> String {
    let mut out = String::new();
    let changed = report.rules.iter().filter(|rule| rule.newly_refused + rule.newly_allowed > 0);
    for rule in changed.take(MAX_RULES) {
        let severity = if rule.newly_refused > 0 { "warning" } else { "notice" };
        let message = format!(
            "{}: {} newly refused ({}), {} newly allowed",
            rule.rule,
            count(rule.newly_refused, "request"),
            share(rule.newly_refused, report.requests),
            rule.newly_allowed,
        );
        let place = match (&rule.file, rule.line) {
            (Some(file), Some(line)) => format!(" file={},line={line}", escaped_property(file)),
            _ => String::new(),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "::{severity}{place}::{}", escaped(&message));
    }
    let summary = summary(report);
    match is_above {
        Some(share) => {
            let _ = writeln!(
                out,
                "::error title=tollgate replay::{}",
                escaped(&format!("more than {share} of the requests would be newly refused: {summary}"))
            );
        }
        None => {
            let _ = writeln!(out, "{summary}");
        }
    }
    out
}

/// What cannot be read, at its place.
pub(super) fn error(Unreadable { log, line, message }: &Unreadable) -> String {
    let line = line.map(|line| format!(",line={line}")).unwrap_or_default();
    format!("::error file={}{line}::{}\n", escaped_property(log), escaped(message))
}
