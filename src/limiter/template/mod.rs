//! A text with places in it that are filled in when it is sent: the body of a refusal.
//!
//! Settings and rules files hold templates, and both have them read here, once, at load; the limiter
//! fills them in. What is no placeholder is taken as it is written, so that JSON stands in a template
//! without further ado. A body is JSON when its text begins with `{` or `[`; then what is filled in is
//! escaped, and that the whole is JSON is made sure at load.

mod read;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

/// A body, ready to be filled in.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Template {
    kind: Kind,
    parts: Box<[Part]>,
}

/// What a body is to those who read it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Plain text.
    Text,
    /// JSON.
    Json,
}

/// What is filled in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Values<'a> {
    /// `{limit}`: the requests that the limit allows.
    pub limit: u32,
    /// `{unit}`: in what time.
    pub unit: &'a str,
    /// `{remaining}`: what is left of them.
    pub remaining: u32,
    /// `{retry_after}`: the seconds until the request would pass; none where it never would.
    pub retry_after: Option<u64>,
    /// `{rule}`: the rule's full key.
    pub rule: &'a str,
}

/// Why a text is no template.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// What is wrong.
    pub message: String,
    /// What would be accepted.
    pub help: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Part {
    /// As it was written.
    Literal(Box<str>),
    /// To be filled in; `quoted` where it stands between the quotes of a string of JSON.
    Slot { slot: Slot, quoted: bool },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Slot {
    Limit,
    Unit,
    Remaining,
    RetryAfter,
    Rule,
}

impl Template {
    /// The template that a text is.
    ///
    /// # Errors
    /// When it holds a placeholder that nobody knows, begins as JSON and is none, or is too long.
    pub fn read(text: &str) -> Result<Self, Fault> {
        read::read(text)
    }

    /// What its bodies are.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// True when it stands for no body at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The body with these values.
    #[must_use]
    pub fn fill(&self, values: &Values<'_>) -> String {
        let mut body = String::with_capacity(256);
        for part in &self.parts {
            match part {
                Part::Literal(text) => body.push_str(text),
                Part::Slot { slot, quoted } => self.fill_slot(*slot, *quoted, values, &mut body),
            }
        }
        body
    }

    fn fill_slot(&self, slot: Slot, quoted: bool, values: &Values<'_>, into: &mut String) {
        let number = match slot {
            Slot::Limit => Some(values.limit.into()),
            Slot::Remaining => Some(values.remaining.into()),
            Slot::RetryAfter => values.retry_after,
            Slot::Unit => return self.fill_text(values.unit, quoted, into),
            Slot::Rule => return self.fill_text(values.rule, quoted, into),
        };
        match number {
            // Writing to a String cannot fail.
            Some(number) => drop(write!(into, "{number}")),
            None if self.kind == Kind::Json && !quoted => into.push_str("null"),
            None => into.push_str("never"),
        }
    }

    fn fill_text(&self, text: &str, quoted: bool, into: &mut String) {
        if self.kind == Kind::Text {
            return into.push_str(text);
        }
        let string = serde_json::Value::from(text).to_string();
        let inner = string.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        into.push_str(inner.filter(|_| quoted).unwrap_or(&string));
    }
}

impl Kind {
    /// The `content-type` of such a body.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; charset=utf-8",
            Self::Json => "application/json",
        }
    }
}

impl Slot {
    const ALL: [Self; 5] = [Self::Limit, Self::Unit, Self::Remaining, Self::RetryAfter, Self::Rule];

    const fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Unit => "unit",
            Self::Remaining => "remaining",
            Self::RetryAfter => "retry_after",
            Self::Rule => "rule",
        }
    }
}
