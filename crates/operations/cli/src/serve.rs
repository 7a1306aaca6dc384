//! `tollgate serve`: runs the service with the settings of the environment.

use std::{collections::BTreeMap, path::Path};

use tracing::warn;

use super::terminal::{self, Verdict};
use exporters::logs;
use faults::panics;
use settings::{
    Available, Settings, misspelt,
    vars::{Setting, Var},
};

#[derive(Clone, Debug, Default)]
pub struct Environment {
    pub variables: BTreeMap<String, String>,
    /// The number of cores that the process may use.
    pub cores: usize,
    /// The memory that the process may use.
    pub memory: Available,
}

impl Environment {
    pub(super) fn value(&self, var: &Var) -> String {
        let set = self.variables.get(var.name).filter(|value| !value.is_empty());
        set.map_or_else(|| var.default.to_owned(), Clone::clone)
    }

    /// One setting, which is no secret, whatever is wrong with others.
    pub(super) fn setting<T>(&self, setting: &Setting<T>) -> Result<T, String> {
        let value = self.value(setting);
        let invalid = |why| format!("invalid settings:\n  {}={value:?}: {why}", setting.name);
        (setting.parse)(&value).map_err(invalid)
    }

    /// The settings, and warnings about them; or an error with a line for each invalid variable.
    pub(super) fn settings(&self) -> Result<(Settings, Vec<String>), String> {
        let variable = |name: &str| self.variables.get(name).cloned();
        let (settings, mut warnings) = Settings::read(&variable, &Path::exists, self.cores, self.memory)
            .map_err(|problems| {
                problems
                    .iter()
                    .fold("invalid settings:".to_owned(), |text, problem| format!("{text}\n  {problem}"))
            })?;
        warnings.extend(misspelt(self.variables.keys().map(String::as_str)));
        Ok((settings, warnings.iter().map(ToString::to_string).collect()))
    }
}

/// Serves until a signal stops the service; an error has every reason why it could not start.
pub type Serve = fn(&Settings) -> Result<(), Vec<String>>;

/// The verdict is no if the service could not start.
pub(super) fn run(environment: &Environment, ignored: &[String], serve: Serve) -> Verdict {
    let started = environment.settings().and_then(|(settings, warnings)| {
        // Dropped before an error is printed, which then follows the log.
        let _log = logs::install(settings.log.level, settings.log.format);
        panics::install();
        if !ignored.is_empty() {
            warn!(arguments = ignored.join(" "), "called as ratelimit: arguments are ignored");
        }
        for warning in warnings {
            warn!("{warning}");
        }
        serve(&settings)
            .map_err(|reasons| format!("the service could not start:\n  {}", reasons.join("\n  ")))
    });
    match started {
        Ok(()) => Verdict::Yes,
        Err(error) => {
            // Not through the log, whose level may be `off`.
            terminal::print_error(error);
            Verdict::No
        }
    }
}
