//! Reads settings from the environment, and collects all problems and warnings. An invalid value is recorded and
//! replaced by the default, so that the others are checked too. The replacement is never used, because one [`Problem`]
//! makes the result an error.

use std::{fmt, path::Path, time::Duration};

use super::{
    variable::{Setting, Var, without_login},
    vars,
};
use exporters::otlp::settings::Signal;
use text::InvalidValue;

/// The default timeout of Envoy's rate limit filter.
const ENVOY_TIMEOUT: Duration = Duration::from_millis(20);

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    pub variable: &'static str,
    /// Its value, without secrets.
    pub seen: Option<String>,
    pub invalid: InvalidValue,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.variable)?;
        self.seen.iter().try_for_each(|seen| write!(f, "={seen:?}"))?;
        // A hint may repeat a part of the value.
        write!(f, ": {}", without_logins(&self.invalid.to_string()))
    }
}

fn without_logins(text: &str) -> String {
    text.split_inclusive([' ', '"']).map(|word| without_login(word.to_owned())).collect()
}

/// A setting that is used, but probably not as intended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Warning {
    pub variable: String,
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.variable, without_logins(&self.message))
    }
}

pub(super) struct Reader<'a> {
    env: &'a dyn Fn(&str) -> Option<String>,
    exists: &'a dyn Fn(&Path) -> bool,
    /// `REDIS_…` means `REDIS_PERSECOND_…` where the second Redis has such a variable.
    second_redis: bool,
    /// `OTEL_EXPORTER_OTLP_…` means the variable of this signal where that is set.
    signal: Option<Signal>,
    /// Defaults that depend on the machine or on other variables.
    pub(super) derived: Vec<(&'static str, String)>,
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<Warning>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(env: &'a dyn Fn(&str) -> Option<String>, exists: &'a dyn Fn(&Path) -> bool) -> Self {
        let (derived, problems, warnings) = Default::default();
        Self { env, exists, second_redis: false, signal: None, derived, problems, warnings }
    }

    /// Reads the variables of a Redis as those of the second one.
    pub(super) fn of_second_redis<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> T {
        self.second_redis = true;
        let read = read(self);
        self.second_redis = false;
        read
    }

    /// Reads the variables of all signals as those of this one, where they are set.
    pub(super) fn of_signal<T>(&mut self, signal: Signal, read: impl FnOnce(&mut Self) -> T) -> T {
        self.signal = Some(signal);
        let read = read(self);
        self.signal = None;
        read
    }

    /// The variable that is read in place of this one: of the second Redis, or of a signal if it is set.
    pub(super) fn effective(&self, var: &'static Var) -> &'static Var {
        let find = |name: String| vars::ALL.iter().find(|var| var.name == name).copied();
        if self.second_redis {
            let rest = var.name.strip_prefix("REDIS_");
            return rest.and_then(|rest| find(format!("REDIS_PERSECOND_{rest}"))).unwrap_or(var);
        }
        let own = self.signal.zip(var.name.strip_prefix("OTEL_EXPORTER_OTLP_")).and_then(|(signal, rest)| {
            let prefix = format!("OTEL_EXPORTER_OTLP_{}_", signal.name());
            // A client certificate and its key come from the same place.
            let set = if rest.starts_with("CLIENT_") { "CLIENT_" } else { rest };
            let is_set = !self.set_with_prefix(&format!("{prefix}{set}")).is_empty();
            find(format!("{prefix}{rest}")).filter(|_| is_set)
        });
        own.unwrap_or(var)
    }

    /// The value of a setting. An empty one means the default, unless the setting accepts any text.
    pub(super) fn read<T: Default>(&mut self, setting: &'static Setting<T>) -> T {
        let set = self.raw(setting).filter(|value| !value.is_empty() || (setting.parse)(value).is_ok());
        let text = set.unwrap_or_else(|| self.default_of(self.effective(setting)).to_owned());
        (setting.parse)(&text).unwrap_or_else(|invalid| {
            self.reject(setting, invalid);
            (setting.parse)(self.default_of(self.effective(setting))).unwrap_or_default()
        })
    }

    /// Sets the default of a variable.
    pub(super) fn derive(&mut self, var: &'static Var, default: String) {
        self.derived.push((var.name, default));
    }

    fn default_of(&self, var: &'static Var) -> &str {
        let derived = self.derived.iter().find(|(name, _)| *name == var.name);
        derived.map_or(var.default, |(_, default)| default)
    }

    pub(super) fn raw(&self, var: &'static Var) -> Option<String> {
        self.value_of(self.effective(var).name)
    }

    pub(super) fn is_set(&self, var: &'static Var) -> bool {
        self.raw(var).is_some_and(|value| !value.is_empty())
    }

    /// The value of a variable that is not in the table, because its name contains another's value.
    pub(super) fn value_of(&self, name: &str) -> Option<String> {
        (self.env)(name)
    }

    pub(super) fn exists(&self, path: &Path) -> bool {
        (self.exists)(path)
    }

    /// The names of the variables with this prefix that are set.
    pub(super) fn set_with_prefix(&self, prefix: &str) -> Vec<&'static str> {
        let names = vars::ALL.iter().filter(|&&var| var.name.starts_with(prefix) && self.is_set(var));
        names.map(|var| var.name).collect()
    }

    pub(super) fn is_rejected(&self, var: &'static Var) -> bool {
        let name = self.effective(var).name;
        self.problems.iter().any(|problem| problem.variable == name)
    }

    /// Records a problem with the value, once.
    pub(super) fn reject(&mut self, var: &'static Var, invalid: InvalidValue) {
        let seen = self.raw(var).filter(|value| !value.is_empty());
        let var = self.effective(var);
        let problem = Problem { variable: var.name, seen: seen.and_then(|seen| var.shown(seen)), invalid };
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    pub(super) fn conflict(&mut self, var: &'static Var, expected: &str, hint: impl Into<String>) {
        self.reject(var, InvalidValue::new(expected).with_hint(hint));
    }

    pub(super) fn warn(&mut self, var: &'static Var, message: impl Into<String>) {
        let warning = Warning { variable: self.effective(var).name.to_owned(), message: message.into() };
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// Warns about each of these variables that is set: it has no effect.
    pub(super) fn warn_unused(&mut self, vars: &[&'static Var], condition: &str) {
        for var in vars.iter().filter(|&&var| self.is_set(var)).collect::<Vec<_>>() {
            self.warn(var, format!("has no effect {condition}"));
        }
    }

    /// Warns about the variables with this prefix that are set, on the variable that would enable them.
    pub(super) fn warn_unused_prefix(&mut self, enabled_by: &'static Var, value: &str, prefix: &str) {
        let set = self.set_with_prefix(prefix);
        if !set.is_empty() {
            self.warn(enabled_by, format!("is not {value}, so these have no effect: {}", set.join(", ")));
        }
    }

    /// The time limit of an operation, whose default in the Go service is `go_default`.
    pub(super) fn timeout(&mut self, setting: &'static Setting<Duration>, go_default: Duration) -> Duration {
        let default = (setting.parse)(setting.default).unwrap_or_default();
        let set = self.read(setting);
        if set.is_zero() {
            self.warn(setting, format!("0 would wait forever; using {default:?}"));
            return default;
        }
        if set > ENVOY_TIMEOUT {
            let default_of = if set == go_default { ", the Go service's default," } else { "" };
            let message = format!(
                "with {set:?}{default_of} a response may arrive after Envoy's timeout, {ENVOY_TIMEOUT:?} by default; \
                 use {default:?}, or half of the `timeout` of Envoy's rate limit filter"
            );
            self.warn(setting, message);
        }
        set
    }

    pub(super) fn warn_outside_of_0_to_1(&mut self, var: &'static Var, share: f32) {
        if !(0.0..=1.0).contains(&share) {
            self.warn(var, format!("{share} is outside of 0 to 1"));
        }
    }
}
