//! Reads settings from the environment and gathers everything that is wrong with them.
//!
//! A bad value does not end the reading: it is noted, and the default stands in for it, so that the others are
//! checked too. The stand-in is never used, because one [`Problem`] makes the whole reading fail.

use std::fmt;

use super::{
    parse::InvalidValue,
    variable::{Setting, Var},
    vars,
};

/// A setting that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The variable's name.
    pub variable: &'static str,
    /// Its value, without what may be secret.
    pub seen: Option<String>,
    /// What is accepted.
    pub accepted: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.variable)?;
        if let Some(seen) = &self.seen {
            write!(f, "={seen:?}")?;
        }
        write!(f, ": accepted is {}", self.accepted)?;
        self.hint.iter().try_for_each(|hint| write!(f, "; {hint}"))
    }
}

/// A setting that is used, but hardly means what its author thinks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Warning {
    /// The variable's name, as it stands in the environment.
    pub variable: String,
    /// What happens, and what to do about it.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.variable, self.message)
    }
}

/// The environment, and what was found wrong in it so far.
pub(super) struct Reader<'a> {
    env: &'a dyn Fn(&str) -> Option<String>,
    /// `REDIS_…` means `REDIS_PERSECOND_…`, where the second Redis has such a variable.
    second_redis: bool,
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<Warning>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(env: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { env, second_redis: false, problems: Vec::new(), warnings: Vec::new() }
    }

    /// Reads the variables of a Redis as those of the second one.
    pub(super) fn of_second_redis<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> T {
        self.second_redis = true;
        let read = read(self);
        self.second_redis = false;
        read
    }

    /// The variable that is meant by this one.
    pub(super) fn meant(&self, var: &'static Var) -> &'static Var {
        let Some(rest) = var.name.strip_prefix("REDIS_").filter(|_| self.second_redis) else { return var };
        let of_second = |var: &&&Var| var.name.strip_prefix("REDIS_PERSECOND_") == Some(rest);
        vars::ALL.iter().find(of_second).copied().unwrap_or(var)
    }

    /// The value of a setting. An empty one means the default, unless any text will do.
    pub(super) fn read<T: Default>(&mut self, setting: &'static Setting<T>) -> T {
        let set = self.raw(setting).filter(|value| !value.is_empty() || (setting.parse)(value).is_ok());
        let text = set.unwrap_or_else(|| self.meant(setting).default.to_owned());
        (setting.parse)(&text).unwrap_or_else(|invalid| {
            self.refuse(setting, Some(text), invalid);
            (setting.parse)(setting.default).unwrap_or_default()
        })
    }

    /// The value as it is set, the empty one too.
    pub(super) fn raw(&self, var: &'static Var) -> Option<String> {
        self.value_of(self.meant(var).name)
    }

    /// True when the variable has a value that is not empty.
    pub(super) fn is_set(&self, var: &'static Var) -> bool {
        self.raw(var).is_some_and(|value| !value.is_empty())
    }

    /// The value of a variable of this name, which may be made of another's value.
    pub(super) fn value_of(&self, name: &str) -> Option<String> {
        (self.env)(name)
    }

    /// The names of the variables that begin so and are set.
    pub(super) fn set_with_prefix(&self, prefix: &str) -> Vec<&'static str> {
        let names = vars::ALL.iter().filter(|&&var| var.name.starts_with(prefix) && self.is_set(var));
        names.map(|var| var.name).collect()
    }

    /// The one of two settings that counts: the first where it is set.
    pub(super) fn either<T>(
        &self,
        first: &'static Setting<T>,
        second: &'static Setting<T>,
    ) -> &'static Setting<T> {
        if self.is_set(first) { first } else { second }
    }

    /// True when the value of the variable was refused.
    pub(super) fn is_refused(&self, var: &'static Var) -> bool {
        let name = self.meant(var).name;
        self.problems.iter().any(|problem| problem.variable == name)
    }

    /// Notes a problem, once; what may be secret in the value is left out.
    pub(super) fn refuse(&mut self, var: &'static Var, seen: Option<String>, invalid: InvalidValue) {
        let InvalidValue { accepted, hint } = invalid;
        let var = self.meant(var);
        let seen = seen.and_then(|seen| var.shown(seen));
        let problem = Problem { variable: var.name, seen, accepted, hint };
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    /// Notes a warning, once.
    pub(super) fn warn(&mut self, var: &'static Var, message: impl Into<String>) {
        let warning = Warning { variable: self.meant(var).name.to_owned(), message: message.into() };
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
}
