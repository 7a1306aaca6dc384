//! The values of one line of an access log, by their operators.
//!
//! An operator takes its own value if the log's format has it, else the field that its name matches: `x-client` of a JSON
//! line is the value of `%REQ(X-CLIENT)%`.

use std::borrow::Cow;

use serde_json::Value;

use super::format::{Format, Operator, Part, Parts, normal};
use crate::line::worded;

/// What a line tells about a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Found<'f> {
    Value(Cow<'f, str>),
    /// The request has none.
    Absent,
    /// The log does not tell.
    Unlogged,
}

/// The log has no value of this operator.
pub(crate) struct Unlogged(pub(crate) String);

/// The fields of a line.
pub(crate) struct Fields<'l> {
    all: Vec<Field<'l>>,
    /// A field that is not there has no value.
    has_all: bool,
}

struct Field<'l> {
    name: Name<'l>,
    value: Found<'l>,
}

enum Name<'l> {
    Operator(&'l Operator),
    Key(String),
}

impl<'l> Fields<'l> {
    pub(crate) fn read(format: &'l Format, line: &'l str) -> Result<Self, String> {
        let mut fields = Self { all: Vec::new(), has_all: false };
        match format {
            Format::Text(_) if line.trim_start().starts_with('{') => {
                fields.flatten("", object(line)?);
                fields.has_all = true;
            }
            Format::Text(parts) => fields.text(parts, line)?,
            Format::Json(formats) => fields.json(formats, &object(line)?)?,
        }
        Ok(fields)
    }

    fn text(&mut self, format: &'l Parts, line: &'l str) -> Result<(), String> {
        for_values(format, line, |operator, value| self.push(operator, Cow::Borrowed(value)))
    }

    fn json(&mut self, formats: &'l [(Vec<String>, Parts)], line: &Value) -> Result<(), String> {
        for (path, parts) in formats {
            let value = path.iter().try_fold(line, |value, key| value.get(key)).unwrap_or(&Value::Null);
            if let Some(operator) = parts.only_operator() {
                // The value of a single operator keeps its type.
                let value = scalar(value).map_or(Found::Absent, |text| Found::Value(text.into()));
                self.all.push(Field { name: Name::Operator(operator), value });
            } else if let Some(text) = value.as_str() {
                let at = |error| format!("{}: {error}", path.join("."));
                for_values(parts, text, |operator, value| {
                    self.push(operator, Cow::Owned(value.to_owned()));
                })
                .map_err(at)?;
            }
        }
        Ok(())
    }

    fn push(&mut self, operator: &'l Operator, value: Cow<'l, str>) {
        // Envoy logs a missing value as `-`.
        let value = if value == "-" { Found::Absent } else { Found::Value(value) };
        self.all.push(Field { name: Name::Operator(operator), value });
    }

    /// Adds the fields of an object, those of nested objects with their whole path.
    fn flatten(&mut self, path: &str, value: Value) {
        if let Value::Object(fields) = value {
            for (key, value) in fields {
                let key = normal(&key);
                let path = if path.is_empty() { key } else { format!("{path}_{key}") };
                self.flatten(&path, value);
            }
            return;
        }
        let text = scalar(&value).filter(|text| text != "-");
        let value = text.map_or(Found::Absent, |text| Found::Value(Cow::Owned(text)));
        self.all.push(Field { name: Name::Key(path.to_owned()), value });
    }

    /// The text with the values of its operators, each up to its length; `None` if the request lacks one.
    pub(crate) fn filled(&self, parts: &Parts) -> Result<Option<String>, Unlogged> {
        let mut text = String::new();
        for part in &parts.0 {
            match part {
                Part::Text(plain) => text += plain,
                Part::Operator(operator) => match self.find(operator) {
                    Found::Value(value) => {
                        text.extend(value.chars().take(operator.longest.unwrap_or(usize::MAX)));
                    }
                    Found::Absent => return Ok(None),
                    Found::Unlogged => {
                        return Err(Unlogged(format!("%{}%", operator.text.to_ascii_uppercase())));
                    }
                },
            }
        }
        Ok(Some(text))
    }

    fn find(&self, wanted: &Operator) -> Found<'_> {
        match self.exactly(&wanted.text) {
            Found::Unlogged => {}
            found => return found,
        }
        let named = wanted.names.iter().map(|name| self.named(name));
        named
            .reduce(|found, next| if matches!(found, Found::Value(_)) { found } else { next })
            .filter(|found| !self.has_all || *found != Found::Unlogged)
            .unwrap_or(if self.has_all { Found::Absent } else { Found::Unlogged })
    }

    /// The value of an operator by its text.
    pub(crate) fn exactly(&self, text: &str) -> Found<'_> {
        let is_it = |field: &&Field<'_>| matches!(field.name, Name::Operator(known) if known.text == text);
        self.all.iter().find(is_it).map_or(Found::Unlogged, |field| field.value.clone())
    }

    /// The value of a field by its name; one with a value is preferred.
    pub(crate) fn named(&self, name: &str) -> Found<'_> {
        let is_it = |field: &&Field<'_>| match &field.name {
            Name::Operator(operator) => operator.names.iter().any(|known| known == name),
            Name::Key(key) => key == name,
        };
        let mut found = Found::Unlogged;
        for field in self.all.iter().filter(is_it) {
            found = field.value.clone();
            if matches!(found, Found::Value(_)) {
                return found;
            }
        }
        let Some(with_port) = name.strip_suffix("_without_port").filter(|_| found == Found::Unlogged) else {
            return found;
        };
        self.named(with_port).without_port()
    }
}

impl<'f> Found<'f> {
    pub(crate) fn value(self) -> Option<Cow<'f, str>> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent | Self::Unlogged => None,
        }
    }

    /// The address of an address with a port.
    fn without_port(self) -> Self {
        let Self::Value(value) = self else { return self };
        match value.rsplit_once(':') {
            Some((address, _)) => {
                Self::Value(address.trim_start_matches('[').trim_end_matches(']').to_owned().into())
            }
            None => Self::Absent,
        }
    }
}

/// Shows each value of a text and its operator.
fn for_values<'f, 'l>(
    format: &'f Parts,
    line: &'l str,
    mut show: impl FnMut(&'f Operator, &'l str),
) -> Result<(), String> {
    let mut rest = line;
    for (index, part) in format.0.iter().enumerate() {
        let column = || line.len() - rest.len() + 1;
        match part {
            Part::Text(text) => {
                let unexpected = || format!("column {}: expected {text:?} of the log's format", column());
                rest = rest.strip_prefix(text.as_str()).ok_or_else(unexpected)?;
            }
            Part::Operator(operator) => {
                let end = match format.0.get(index + 1) {
                    Some(Part::Text(text)) => rest.find(text.as_str()).ok_or_else(|| {
                        format!("column {}: expected {text:?} of the log's format behind a value", column())
                    })?,
                    _ => rest.len(),
                };
                let (value, after) = rest.split_at(end);
                rest = after;
                show(operator, value);
            }
        }
    }
    Ok(())
}

fn object(line: &str) -> Result<Value, String> {
    let value: Value =
        serde_json::from_str(line).map_err(|error| worded(&error, "a line of the access log as JSON"))?;
    if value.is_object() { Ok(value) } else { Err("expected an object of JSON".to_owned()) }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(bool) => Some(bool.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}
