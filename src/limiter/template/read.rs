//! From the text of a template to its parts, and what keeps a text from being one.

use super::{Fault, Kind, Part, Slot, Template, Values};

/// More than a page of text: every refusal carries the whole of it.
const MOST_BYTES: usize = 16 * 1024;

pub(super) fn read(text: &str) -> Result<Template, Fault> {
    if text.len() > MOST_BYTES {
        let message = format!("the body has {} bytes, at most {MOST_BYTES} are sent", text.len());
        let help = "say it shortly, and where more is to be read".to_owned();
        return Err(Fault { message, help });
    }
    let mut parts = parts(text)?;
    let kind = kind(&parts);
    if kind == Kind::Json {
        mark_quoted(&mut parts);
    }
    let template = Template { kind, parts: parts.into() };
    if kind == Kind::Json {
        hold_as_json(&template)?;
    }
    Ok(template)
}

fn parts(text: &str) -> Result<Vec<Part>, Fault> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('{') {
        literal.push_str(before);
        rest = behind;
        if let Some(behind) = rest.strip_prefix('{') {
            literal.push('{');
            rest = behind;
        } else if let Some((name, behind)) = placeholder(rest) {
            let slot = Slot::ALL.into_iter().find(|slot| slot.name() == name);
            let slot = slot.ok_or_else(|| unknown(name))?;
            rest = behind;
            if !literal.is_empty() {
                parts.push(Part::Literal(std::mem::take(&mut literal).into()));
            }
            parts.push(Part::Slot { slot, quoted: false });
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

/// What stands between a brace and the next, if it is meant to be filled in (a word, or a few), and what follows.
/// Braces of JSON hold quotes or nothing.
fn placeholder(text: &str) -> Option<(&str, &str)> {
    let (name, behind) = text.split_once('}')?;
    let is_word = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '-' | '.' | ' ');
    (name.chars().all(is_word) && name.chars().any(char::is_alphanumeric)).then_some((name, behind))
}

fn unknown(name: &str) -> Fault {
    let known = Slot::ALL.map(|slot| format!("{{{}}}", slot.name())).join(", ");
    Fault {
        message: format!("`{{{name}}}` stands for nothing"),
        help: format!("accepted are {known}; a brace that is only a brace is written `{{{{`"),
    }
}

/// JSON begins with a brace or a bracket that was written as one.
fn kind(parts: &[Part]) -> Kind {
    match parts.first() {
        Some(Part::Literal(text)) if text.trim_start().starts_with(['{', '[']) => Kind::Json,
        _ => Kind::Text,
    }
}

/// Marks what stands within a string of JSON.
fn mark_quoted(parts: &mut [Part]) {
    let (mut within, mut escaped) = (false, false);
    for part in parts {
        match part {
            Part::Slot { quoted, .. } => *quoted = within,
            Part::Literal(text) => {
                for letter in text.chars() {
                    within ^= letter == '"' && !escaped;
                    escaped = within && letter == '\\' && !escaped;
                }
            }
        }
    }
}

/// A placeholder is replaced by a number, `null` or a string, so these bodies stand for all: a 0 before another digit
/// (`{limit}0`) and a large exponent (`1e{limit}`) are invalid numbers, and a backslash or `\u` before a
/// placeholder is an invalid escape with `x` and `minute`.
fn hold_as_json(template: &Template) -> Result<(), Fault> {
    let numbers = [(0, Some(0)), (10, Some(30)), (u32::MAX, Some(u64::MAX)), (10, None)];
    for (number, retry_after) in numbers {
        let values = Values { limit: number, unit: "minute", remaining: number, retry_after, rule: "x" };
        if let Err(error) = serde_json::from_str::<serde_json::Value>(&template.fill(&values)) {
            return Err(Fault {
                message: format!("the body begins as JSON does, and is none: {error}"),
                help: "a text that is none begins with another character than `{` and `[`".to_owned(),
            });
        }
    }
    Ok(())
}
