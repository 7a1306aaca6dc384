//! Takes variables from the environment one by one and gathers all that is wrong with them.
//!
//! A bad value does not end the reading: it is noted, and something stands in for it so that the rest is
//! looked at too. What stands in is never served, because one [`Problem`] makes the whole reading fail.

use std::{fmt, ops::RangeInclusive, time::Duration};

use super::{
    address::{self, HostPort},
    duration::duration,
    parse::{self, InvalidValue},
    vars::Var,
};

/// A setting that cannot be served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The variable's name.
    pub variable: &'static str,
    /// Its value, unless it may hold a secret.
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

/// A setting that is served, but hardly means what its author thinks.
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
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<Warning>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(env: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { env, problems: Vec::new(), warnings: Vec::new() }
    }

    /// The value as it is set, the empty one too.
    pub(super) fn raw(&self, var: Var) -> Option<String> {
        (self.env)(var.name)
    }

    /// True when the variable has a value that is not empty.
    pub(super) fn is_set(&self, var: Var) -> bool {
        self.raw(var).is_some_and(|value| !value.is_empty())
    }

    /// The value of a variable whose name is made of another's value.
    pub(super) fn value_of(&self, name: &str) -> Option<String> {
        (self.env)(name)
    }

    /// Any text; an empty one stays empty.
    pub(super) fn text(&self, var: Var) -> String {
        self.raw(var).unwrap_or_else(|| var.default.to_owned())
    }

    /// What `parse` makes of the text; an empty one stays empty.
    pub(super) fn parsed_text<T: Default>(
        &mut self,
        var: Var,
        parse: impl FnOnce(&str) -> Result<T, InvalidValue>,
    ) -> T {
        let text = self.text(var);
        self.accept(var, text, parse)
    }

    /// What `parse` makes of the value; an empty one means the default.
    pub(super) fn parsed<T: Default>(
        &mut self,
        var: Var,
        parse: impl FnOnce(&str) -> Result<T, InvalidValue>,
    ) -> T {
        let set = self.raw(var).filter(|value| !value.is_empty());
        let text = set.unwrap_or_else(|| var.default.to_owned());
        self.accept(var, text, parse)
    }

    fn accept<T: Default>(
        &mut self,
        var: Var,
        text: String,
        parse: impl FnOnce(&str) -> Result<T, InvalidValue>,
    ) -> T {
        parse(&text).unwrap_or_else(|refusal| {
            self.refuse(var, Some(text), refusal);
            T::default()
        })
    }

    pub(super) fn flag(&mut self, var: Var) -> bool {
        self.parsed(var, parse::boolean)
    }

    pub(super) fn duration(&mut self, var: Var) -> Duration {
        self.parsed(var, duration)
    }

    pub(super) fn whole(&mut self, var: Var, range: RangeInclusive<u64>) -> u64 {
        self.parsed(var, |text| parse::integer(text, range))
    }

    /// A number of things or bytes held in memory, `least` at the least.
    pub(super) fn count(&mut self, var: Var, least: u64) -> usize {
        // As Go's int: more cannot be held. Where usize is smaller, its largest stands for what is beyond.
        let most = i64::MAX.unsigned_abs();
        usize::try_from(self.whole(var, least..=most)).unwrap_or(usize::MAX)
    }

    /// A number that a field of 32 bits holds, `least` at the least.
    pub(super) fn bits_32(&mut self, var: Var, least: u64) -> u32 {
        u32::try_from(self.whole(var, least..=u64::from(u32::MAX))).unwrap_or(u32::MAX)
    }

    /// A host and a port from a variable each.
    pub(super) fn host_port(&mut self, host: Var, port: Var) -> HostPort {
        HostPort { host: self.parsed_text(host, address::host), port: self.parsed(port, parse::port) }
    }

    pub(super) fn refuse(&mut self, var: Var, seen: Option<String>, refusal: InvalidValue) {
        let InvalidValue { accepted, hint } = refusal;
        self.problems.push(Problem { variable: var.name, seen, accepted, hint });
    }

    pub(super) fn warn(&mut self, var: Var, message: impl Into<String>) {
        self.warn_of(var.name, message);
    }

    /// Notes what is suspicious about a variable of this name.
    pub(super) fn warn_of(&mut self, name: &str, message: impl Into<String>) {
        self.warnings.push(Warning { variable: name.to_owned(), message: message.into() });
    }
}
