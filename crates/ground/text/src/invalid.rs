//! The error of a value that cannot be used.

use std::fmt;

/// The error of a value that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvalidValue {
    pub expected: String,
    pub hint: Option<String>,
}

impl InvalidValue {
    pub fn new(expected: impl Into<String>) -> Self {
        Self { expected: expected.into(), hint: None }
    }

    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl fmt::Display for InvalidValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}", self.expected)?;
        self.hint.iter().try_for_each(|hint| write!(f, "; {hint}"))
    }
}
