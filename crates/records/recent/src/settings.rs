//! What is recorded of callers' values, and which decisions are logged.

use std::fmt;

text::named! {
    #[derive(Default)]
    pub enum KeyValues {
        #[default]
        Plain = "plain",
        /// The first 16 digits of their SHA-256, so that equal values are recognised.
        Hashed = "hashed",
        Hidden = "hidden",
    }
}

/// A message to a caller that may quote values which the caller sent. Logs show it with [`logged`](Self::logged).
#[derive(Clone, PartialEq, Eq)]
pub struct Quoting(String);

impl Quoting {
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    pub fn for_caller(&self) -> &str {
        &self.0
    }

    pub fn logged(&self, values: KeyValues) -> &str {
        match values {
            KeyValues::Plain => &self.0,
            KeyValues::Hashed | KeyValues::Hidden => "not logged, because it may quote values (KEY_VALUES)",
        }
    }
}

impl fmt::Debug for Quoting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Logged {
    Refused,
    /// A sample with this probability: above 0, at most 1.
    Sampled(f64),
}
