//! The report as workflow commands, which annotate a pull request on GitHub.

use super::text::summary;
use crate::{format::share, github::annotation, terminal::count};
use ::replay::{Fraction, Report, Unreadable};

/// At most this many rules are annotated: GitHub shows ten annotations of a step.
const MAX_RULES: usize = 10;

pub(super) fn report(report: &Report, is_above: Option<Fraction>) -> String {
    let mut out = String::new();
    let changed = report.rules.iter().filter(|rule| rule.newly_refused + rule.newly_allowed > 0);
    for rule in changed.take(MAX_RULES) {
        let level = if rule.newly_refused > 0 { "warning" } else { "notice" };
        let message = format!(
            "{}: {} newly refused ({}), {} newly allowed",
            rule.rule,
            count(rule.newly_refused, "request"),
            share(rule.newly_refused, report.requests),
            rule.newly_allowed,
        );
        let place = match (&rule.file, rule.line) {
            (Some(file), Some(line)) => &[("file", file.clone()), ("line", line.to_string())][..],
            _ => &[],
        };
        out += &annotation(level, place, &message);
    }
    let summary = summary(report);
    out + &match is_above {
        Some(share) => {
            let message = format!("more than {share} of the requests would be newly refused: {summary}");
            annotation("error", &[("title", "tollgate replay".to_owned())], &message)
        }
        None => format!("{summary}\n"),
    }
}

/// What cannot be read, at its place.
pub(super) fn error(Unreadable { log, line, message }: &Unreadable) -> String {
    let mut place = vec![("file", log.clone())];
    place.extend(line.map(|line| ("line", line.to_string())));
    annotation("error", &place, message)
}
