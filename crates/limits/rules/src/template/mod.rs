//! Templates of over-limit bodies: text with placeholders.
//!
//! Settings and rules parse templates at load; the limiter fills them in. Text outside placeholders is literal, so
//! JSON needs no escaping. A body that begins with `{` or `[` is JSON: its values are escaped, and the result is
//! validated at load. The text `problem` stands for the problem details of the IETF's draft on rate limit headers.

#[cfg(test)]
mod tests;

use std::{fmt::Write as _, mem};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Template {
    kind: BodyKind,
    parts: Box<[Part]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BodyKind {
    Text,
    Json,
    /// Problem details (RFC 9457).
    Problem,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Values<'a> {
    /// `{limit}`: requests per window.
    pub limit: u64,
    /// `{unit}`: the window.
    pub unit: &'a str,
    /// `{remaining}`: requests left in the window.
    pub remaining: u64,
    /// `{retry_after}`: seconds until the request would pass; `None` if it never would.
    pub retry_after: Option<u64>,
    /// `{rule}`: the rule's full key.
    pub rule: &'a str,
    /// `{policies}`: the names of the limits that reject the request, as JSON strings with commas between.
    pub policies: &'a str,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TemplateError {
    pub message: String,
    pub help: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Part {
    Literal(Box<str>),
    /// A placeholder, and whether it is inside a JSON string.
    Slot(Slot, bool),
}

text::named! {
    enum Slot {
        Limit = "limit",
        Unit = "unit",
        Remaining = "remaining",
        RetryAfter = "retry_after",
        Rule = "rule",
        Policies = "policies",
    }
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// When a placeholder is unknown, the text begins like JSON but is not valid, or it is too long.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        if text.len() > MAX_BYTES {
            let message = format!("body has {} bytes; the maximum is {MAX_BYTES}", text.len());
            return Err(TemplateError { message, help: "shorten it and link to more".to_owned() });
        }
        let is_problem = text == PROBLEM;
        let mut parts = parse_parts(if is_problem { QUOTA_EXCEEDED } else { text })?;
        // JSON begins with a literal brace or bracket.
        let kind = match parts.first() {
            _ if is_problem => BodyKind::Problem,
            Some(Part::Literal(text)) if text.trim_start().starts_with(['{', '[']) => BodyKind::Json,
            _ => BodyKind::Text,
        };
        if kind == BodyKind::Text {
            return Ok(Self { kind, parts: parts.into() });
        }
        mark_quoted(&mut parts);
        let template = Self { kind, parts: parts.into() };
        validate_json(&template)?;
        Ok(template)
    }

    pub fn kind(&self) -> BodyKind {
        self.kind
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// True if the body names the limits that reject the request.
    pub fn has_policies(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Slot(Slot::Policies, _)))
    }

    pub fn fill(&self, values: &Values<'_>) -> String {
        let mut body = String::with_capacity(256);
        for part in &self.parts {
            match part {
                Part::Literal(text) => body.push_str(text),
                Part::Slot(slot, quoted) => self.fill_slot(*slot, *quoted, values, &mut body),
            }
        }
        body
    }

    fn is_json(&self) -> bool {
        self.kind != BodyKind::Text
    }

    fn fill_slot(&self, slot: Slot, quoted: bool, values: &Values<'_>, into: &mut String) {
        let number = match slot {
            Slot::Limit => Some(values.limit),
            Slot::Remaining => Some(values.remaining),
            Slot::RetryAfter => values.retry_after,
            Slot::Unit => return self.fill_text(values.unit, quoted, into),
            Slot::Rule => return self.fill_text(values.rule, quoted, into),
            Slot::Policies if self.is_json() && !quoted => {
                return into.extend(["[", values.policies, "]"]);
            }
            Slot::Policies => return self.fill_text(values.policies, quoted, into),
        };
        match number {
            // Writing to a String cannot fail.
            Some(number) => drop(write!(into, "{number}")),
            None if self.is_json() && !quoted => into.push_str("null"),
            None => into.push_str("never"),
        }
    }

    fn fill_text(&self, text: &str, quoted: bool, into: &mut String) {
        if !self.is_json() {
            return into.push_str(text);
        }
        let string = serde_json::Value::from(text).to_string();
        let inner = string.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        into.push_str(inner.filter(|_| quoted).unwrap_or(&string));
    }
}

impl BodyKind {
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; charset=utf-8",
            Self::Json => "application/json",
            Self::Problem => "application/problem+json",
        }
    }
}

/// The template that stands for [`QUOTA_EXCEEDED`].
const PROBLEM: &str = "problem";

/// The problem type of draft-ietf-httpapi-ratelimit-headers-11 for an exceeded quota. It has no `status`, which must be that of
/// the response: Envoy's `rate_limited_status` sets it.
const QUOTA_EXCEEDED: &str = r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","violated-policies":{policies}}"#;

/// The largest template: more than a page of text, which every over-limit response contains.
const MAX_BYTES: usize = 16 * 1024;

fn parse_parts(text: &str) -> Result<Vec<Part>, TemplateError> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        literal.push_str(before);
        rest = after;
        if let Some(after) = rest.strip_prefix('{') {
            literal.push('{');
            rest = after;
        } else if let Some((name, after)) = placeholder(rest) {
            let slot = Slot::ALL.into_iter().find(|slot| slot.name() == name).ok_or_else(|| unknown(name))?;
            rest = after;
            if !literal.is_empty() {
                parts.push(Part::Literal(mem::take(&mut literal).into()));
            }
            parts.push(Part::Slot(slot, false));
        } else {
            literal.push('{');
        }
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        parts.push(Part::Literal(literal.into()));
    }
    Ok(parts)
}

/// The name of a placeholder (one or several words) after its opening brace, and the text after it. Braces of JSON
/// contain quotes or nothing.
fn placeholder(text: &str) -> Option<(&str, &str)> {
    let (name, after) = text.split_once('}')?;
    let is_word = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '-' | '.' | ' ');
    (name.chars().all(is_word) && name.chars().any(char::is_alphanumeric)).then_some((name, after))
}

fn unknown(name: &str) -> TemplateError {
    let known = Slot::ALL.map(|slot| format!("{{{}}}", slot.name())).join(", ");
    TemplateError {
        message: format!("unknown placeholder `{{{name}}}`"),
        help: format!("expected one of {known}; write a literal brace as `{{{{`"),
    }
}

/// Marks placeholders inside JSON strings.
fn mark_quoted(parts: &mut [Part]) {
    let mut within = false;
    let mut escaped = false;
    for part in parts {
        match part {
            Part::Slot(_, quoted) => *quoted = within,
            Part::Literal(text) => {
                for letter in text.chars() {
                    within ^= letter == '"' && !escaped;
                    escaped = within && letter == '\\' && !escaped;
                }
            }
        }
    }
}

/// A placeholder is replaced by a number, `null` or a string, so these bodies cover all cases: a 0 before another digit
/// (`{limit}0`) and a large exponent (`1e{limit}`) are invalid numbers, and a backslash or `\u` before a
/// placeholder is an invalid escape with `x` and `minute`.
fn validate_json(template: &Template) -> Result<(), TemplateError> {
    let numbers = [(0, Some(0)), (10, Some(30)), (u64::MAX, Some(u64::MAX)), (10, None)];
    for (number, retry_after) in numbers {
        let values = Values {
            limit: number,
            unit: "minute",
            remaining: number,
            retry_after,
            rule: "x",
            policies: r#""x", "y""#,
        };
        if let Err(error) = serde_json::from_str::<serde_json::Value>(&template.fill(&values)) {
            return Err(TemplateError {
                message: format!("body begins like JSON but is not valid: {error}"),
                help: "plain text must not begin with `{` or `[`".to_owned(),
            });
        }
    }
    Ok(())
}
