//! `tollgate serve`: settings from the environment, then the service until it ends.

use std::{collections::BTreeMap, io::Write, path::Path, process::ExitCode};

use tracing::warn;

use crate::{app, panics, settings::Settings, telemetry::logs};

/// What the process was started with.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// The environment variables.
    pub variables: BTreeMap<String, String>,
    /// How many cores the process may use.
    pub cores: usize,
}

impl Environment {
    /// The settings, and what is suspicious about them.
    ///
    /// # Errors
    /// Everything that cannot be served, a line each.
    pub fn settings(&self) -> Result<(Settings, Vec<String>), Vec<String>> {
        let variable = |name: &str| self.variables.get(name).cloned();
        let (settings, mut warnings) = Settings::read(&variable, &Path::exists, self.cores)
            .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        warnings.extend(crate::settings::misspelt(self.variables.keys().map(String::as_str)));
        Ok((settings, warnings.iter().map(ToString::to_string).collect()))
    }
}

/// Serves until a signal says to end. `ignored` are arguments that mean nothing.
#[must_use]
pub fn run(environment: &Environment, ignored: &[String]) -> ExitCode {
    let (settings, warnings) = match environment.settings() {
        Ok(read) => read,
        Err(problems) => return fail("the settings make no sense:", &problems),
    };
    logs::install(settings.log);
    panics::install();
    if !ignored.is_empty() {
        warn!(arguments = ignored.join(" "), "called as ratelimit: arguments mean nothing and are ignored");
    }
    for warning in warnings {
        warn!("{warning}");
    }
    match app::serve(&settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail("the service did not start:", error.reasons()),
    }
}

/// Told directly, because a log level may leave nothing of the log.
fn fail(what: &str, reasons: &[String]) -> ExitCode {
    // There is nobody left to tell of an error.
    let _ = writeln!(std::io::stderr().lock(), "error: {what}\n  {}", reasons.join("\n  "));
    ExitCode::FAILURE
}
