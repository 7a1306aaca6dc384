//! What a reload says in the log: each finding on a line of its own, then what came of it.

use std::fmt;

use super::ReloadState;
use crate::rules::{Diagnostic, Severity};

/// The most findings of one reload that are logged and kept. A broken generator gets thousands of things
/// wrong in one way, and a hundred lines are enough to see it.
pub(super) const MAX_FINDINGS: usize = 100;

/// Logs what was found in the files.
pub(super) fn findings(findings: &[Diagnostic]) {
    for finding in findings.iter().take(MAX_FINDINGS) {
        match finding.severity {
            Severity::Error => tracing::error!("{}", OneLine(finding)),
            Severity::Warning => tracing::warn!("{}", OneLine(finding)),
        }
    }
    if let Some(more) = findings.len().checked_sub(MAX_FINDINGS).filter(|more| *more > 0) {
        tracing::warn!(
            "{more} more errors and warnings of the rules; of files, `tollgate check` prints them all"
        );
    }
}

/// Logs that a set is in service.
pub(super) fn loaded(origin: &dyn fmt::Display, state: &ReloadState) {
    tracing::info!(
        source = %origin,
        files = state.files,
        domains = state.domains,
        rules = state.rules,
        hash = format_args!("{:016x}", state.hash),
        "rules loaded"
    );
}

/// Logs that a set was rejected, and what is in service instead.
pub(super) fn refused(origin: &dyn fmt::Display, others_are_served: bool) {
    let served = if others_are_served {
        "keeping the previous rules"
    } else {
        "no rules are loaded, so every request is answered with an error"
    };
    tracing::error!(source = %origin, "rules rejected: {served}");
}

/// A finding as `file:line:column: path: message; help`.
struct OneLine<'d>(&'d Diagnostic);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Diagnostic { file, place, path, message, help, .. } = self.0;
        write!(f, "{file}:")?;
        if let Some(place) = place {
            write!(f, "{}:{}:", place.line, place.column)?;
        }
        if !path.is_empty() {
            write!(f, " {path}:")?;
        }
        write!(f, " {message}")?;
        help.iter().try_for_each(|help| write!(f, "; {help}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Place;

    #[test]
    fn a_finding_is_one_line_with_its_place_and_its_help() {
        let finding = Diagnostic {
            severity: Severity::Error,
            file: "config/a.yaml".to_owned(),
            place: Some(Place { line: 3, column: 7 }),
            path: "descriptors[0].rate_limit.unit".to_owned(),
            message: "`fortnight` is no unit".to_owned(),
            help: Some("write `second`, `minute` or `hour`".to_owned()),
        };
        assert_eq!(
            OneLine(&finding).to_string(),
            "config/a.yaml:3:7: descriptors[0].rate_limit.unit: `fortnight` is no unit; \
             write `second`, `minute` or `hour`"
        );
        let bare = Diagnostic { place: None, path: String::new(), help: None, ..finding };
        assert_eq!(OneLine(&bare).to_string(), "config/a.yaml: `fortnight` is no unit");
    }
}
