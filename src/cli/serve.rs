//! `tollgate serve`: runs the service with the settings of the environment.

use std::{collections::BTreeMap, path::Path};

use tracing::warn;

use super::terminal::{self, Verdict};
use crate::{
    app, panics,
    settings::{Settings, vars::Var},
    telemetry::logs,
};

/// The environment of the process.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// The environment variables.
    pub variables: BTreeMap<String, String>,
    /// How many cores the process may use.
    pub cores: usize,
}

impl Environment {
    /// The value of a variable, or its default.
    #[must_use]
    pub fn value(&self, var: &Var) -> String {
        let set = self.variables.get(var.name).filter(|value| !value.is_empty());
        set.map_or_else(|| var.default.to_owned(), Clone::clone)
    }

    /// The settings, and warnings about them.
    ///
    /// # Errors
    /// Every invalid variable, a line each.
    pub fn settings(&self) -> Result<(Settings, Vec<String>), Vec<String>> {
        let variable = |name: &str| self.variables.get(name).cloned();
        let (settings, mut warnings) = Settings::read(&variable, &Path::exists, self.cores)
            .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        warnings.extend(crate::settings::misspelt(self.variables.keys().map(String::as_str)));
        Ok((settings, warnings.iter().map(ToString::to_string).collect()))
    }
}

/// Serves until a signal stops the service. `ignored` are arguments without a meaning. The verdict is no
/// when the service could not start.
#[must_use]
pub fn run(environment: &Environment, ignored: &[String]) -> Verdict {
    let (settings, warnings) = match environment.settings() {
        Ok(read) => read,
        Err(problems) => return fail("invalid settings:", &problems),
    };
    logs::install(&settings.log);
    panics::install();
    if !ignored.is_empty() {
        warn!(arguments = ignored.join(" "), "called as ratelimit: arguments are ignored");
    }
    for warning in warnings {
        warn!("{warning}");
    }
    match app::serve(&settings) {
        Ok(()) => Verdict::Yes,
        Err(error) => fail("the service could not start:", error.reasons()),
    }
}

/// Prints to standard error, because the log level may be `off`.
fn fail(what: &str, reasons: &[String]) -> Verdict {
    terminal::print_error(&format!("{what}\n  {}", reasons.join("\n  ")));
    Verdict::No
}
