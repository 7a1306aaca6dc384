//! The log lines of a reload: one for each diagnostic, then the result.

use std::fmt;

use super::ReloadState;
use crate::rules::{Diagnostic, Severity};

/// The most diagnostics of one reload that are logged and kept. A broken generator makes the same mistake
/// thousands of times, and a hundred lines are enough to see it.
pub(super) const MAX_DIAGNOSTICS: usize = 100;

/// Logs the diagnostics.
pub(super) fn diagnostics(diagnostics: &[Diagnostic]) {
    for diagnostic in diagnostics.iter().take(MAX_DIAGNOSTICS) {
        match diagnostic.severity {
            Severity::Error => tracing::error!("{}", OneLine(diagnostic)),
            Severity::Warning => tracing::warn!("{}", OneLine(diagnostic)),
        }
    }
    if let Some(more) = diagnostics.len().checked_sub(MAX_DIAGNOSTICS).filter(|more| *more > 0) {
        tracing::warn!("suppressed {more} more errors and warnings; `tollgate check` prints those of files");
    }
}

/// Logs that new rules are in service.
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

/// Logs that new rules were rejected, and what is in service instead.
pub(super) fn refused(origin: &dyn fmt::Display, has_previous: bool) {
    let served = if has_previous {
        "keeping previous rules"
    } else {
        "no rules are loaded, so every request is answered with an error"
    };
    tracing::error!(source = %origin, "rules rejected: {served}");
}

/// A diagnostic as `file:line:column: path: message; help`.
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
        let diagnostic = Diagnostic {
            severity: Severity::Error,
            file: "config/a.yaml".to_owned(),
            place: Some(Place { line: 3, column: 7 }),
            path: "descriptors[0].rate_limit.unit".to_owned(),
            message: "`fortnight` is no unit".to_owned(),
            help: Some("write `second`, `minute` or `hour`".to_owned()),
        };
        assert_eq!(
            OneLine(&diagnostic).to_string(),
            "config/a.yaml:3:7: descriptors[0].rate_limit.unit: `fortnight` is no unit; \
             write `second`, `minute` or `hour`"
        );
        let bare = Diagnostic { place: None, path: String::new(), help: None, ..diagnostic };
        assert_eq!(OneLine(&bare).to_string(), "config/a.yaml: `fortnight` is no unit");
    }
}
