//! Envoy's format strings: command operators between texts, and the formats of access logs that are made of them.

use std::str::FromStr;

use serde_json::{Map, Value};

use text::entries;

/// The entries of a descriptor with operators in their values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Template(pub(crate) Vec<(String, Parts)>);

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Format {
    /// Lines of text, and lines of JSON whose keys name their operators.
    Text(Parts),
    /// Lines of JSON by the formats of their fields, with the path of each.
    Json(Vec<(Vec<String>, Parts)>),
}

/// Texts and operators.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parts(pub(crate) Vec<Part>);

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    Text(String),
    Operator(Operator),
}

/// A command operator, such as `%REQ(X-CLIENT?:AUTHORITY):20%`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Operator {
    /// Its command and argument, with names of headers in lower case: `REQ(x-client?:authority)`.
    pub(crate) text: String,
    /// The names that a log without a known format may have for it, the one to prefer first: in lower case, with `_` for
    /// anything but letters and digits.
    pub(crate) names: Vec<String>,
    /// Only so many characters of the value.
    pub(crate) longest: Option<usize>,
}

/// Envoy's format for text.
const DEFAULT_FORMAT: &str = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" \
    %RESPONSE_CODE% %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \
    \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" \"%REQ(X-REQUEST-ID)%\" \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\"";

/// The names of the field with the time of a request.
pub(crate) const TIMES: [&str; 4] = ["start_time", "timestamp", "_timestamp", "time"];

impl Default for Format {
    #[expect(clippy::expect_used, reason = "a constant")]
    fn default() -> Self {
        DEFAULT_FORMAT.parse().expect("Envoy's default format is valid")
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match serde_json::from_str(text) {
            Ok(Value::Object(fields)) => {
                let mut all = Vec::new();
                of_object(&[], &fields, &mut all)?;
                Self::of_fields(all)
            }
            _ => Self::of_text(text),
        }
    }
}

/// The formats of the fields of an object and of those below it.
fn of_object(
    path: &[String],
    fields: &Map<String, Value>,
    into: &mut Vec<(Vec<String>, Parts)>,
) -> Result<(), String> {
    for (key, value) in fields {
        let path = [path, std::slice::from_ref(key)].concat();
        match value {
            Value::Object(fields) => of_object(&path, fields, into)?,
            Value::String(format) => into.push((path, format.parse()?)),
            _ => {}
        }
    }
    Ok(())
}

impl Format {
    /// The format of lines of text, of which each ends with the format.
    fn of_text(text: &str) -> Result<Self, String> {
        let parts: Parts = text.trim_end_matches(['\r', '\n']).parse()?;
        parts.check()?;
        if parts.operators().any(Operator::is_time) {
            Ok(Self::Text(parts))
        } else {
            Err("expected %START_TIME%".to_owned())
        }
    }

    /// The format of JSON lines by the formats of their fields.
    fn of_fields(fields: Vec<(Vec<String>, Parts)>) -> Result<Self, String> {
        fields.iter().try_for_each(|(_, parts)| parts.check())?;
        if fields.iter().any(|(_, parts)| parts.operators().any(Operator::is_time)) {
            Ok(Self::Json(fields))
        } else {
            Err("no field has %START_TIME%".to_owned())
        }
    }
}

impl Parts {
    fn operators(&self) -> impl Iterator<Item = &Operator> {
        self.0.iter().filter_map(|part| match part {
            Part::Operator(operator) => Some(operator),
            Part::Text(_) => None,
        })
    }

    /// The value of its only operator is the whole text.
    pub(crate) fn only_operator(&self) -> Option<&Operator> {
        match &self.0[..] {
            [Part::Operator(operator)] => Some(operator),
            _ => None,
        }
    }

    fn check(&self) -> Result<(), String> {
        let operators = |pair: &[Part]| pair.iter().all(|part| matches!(part, Part::Operator(_)));
        if self.0.windows(2).any(operators) {
            return Err("two operators without a text between them cannot be told apart".to_owned());
        }
        Ok(())
    }
}

impl FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let entries = entries::parse_with_values(text)?;
        let entries = entries.into_iter().map(|(key, value)| Ok((key, value.parse()?)));
        entries.collect::<Result<_, String>>().map(Self)
    }
}

impl FromStr for Parts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        let mut plain = String::new();
        while let Some((before, after)) = rest.split_once('%') {
            plain += before;
            // The argument of a time has `%`.
            let argument = after.find('(').filter(|open| after.find('%').is_some_and(|end| *open < end));
            let searched = argument.map_or(Some(0), |open| Some(open + after.get(open..)?.find(')')?));
            let end = searched.and_then(|from| Some(from + after.get(from..)?.find('%')?));
            let (operator, after) = end.and_then(|end| after.split_at_checked(end)).ok_or_else(|| {
                format!("a % has no end in {text:?}; expected an operator such as %REQ(X-CLIENT)%")
            })?;
            rest = after.get(1..).unwrap_or_default();
            if operator.is_empty() {
                plain.push('%');
                continue;
            }
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain)));
            }
            parts.push(Part::Operator(operator.parse()?));
        }
        plain += rest;
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Self(parts))
    }
}

impl FromStr for Operator {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("%{text}%: expected an operator such as %REQ(X-CLIENT)% or %PROTOCOL%");
        let (name, rest) = match text.find(['(', ':']) {
            Some(end) => text.split_at(end),
            None => (text, ""),
        };
        let is_name = name.chars().all(|one| one.is_ascii_uppercase() || one == '_' || one.is_ascii_digit());
        if !is_name || name.is_empty() {
            return Err(invalid());
        }
        let (argument, longest) = match rest.strip_prefix('(') {
            Some(rest) => {
                let (argument, longest) = rest.rsplit_once(')').ok_or_else(invalid)?;
                (Some(argument), longest)
            }
            None => (None, rest),
        };
        let longest = match longest.strip_prefix(':') {
            Some(digits) => Some(digits.parse().map_err(|_| invalid())?),
            None if longest.is_empty() => None,
            None => return Err(invalid()),
        };
        let is_header = matches!(name, "REQ" | "RESP" | "TRAILER");
        let (text, names) = match argument {
            // The argument of a time is its format.
            None => (name.to_owned(), vec![normal(name)]),
            Some(_) if name == "START_TIME" => (name.to_owned(), vec![normal(name)]),
            Some(argument) => {
                let shown = if is_header { argument.to_ascii_lowercase() } else { argument.to_owned() };
                let names = argument.split('?').map(|one| normal(one.trim_start_matches(':')));
                (format!("{name}({shown})"), names.collect())
            }
        };
        Ok(Self { text, names, longest })
    }
}

impl Operator {
    fn is_time(&self) -> bool {
        self.names.iter().any(|name| TIMES.contains(&&**name))
    }
}

pub(crate) fn normal(name: &str) -> String {
    name.chars().map(|one| if one.is_ascii_alphanumeric() { one.to_ascii_lowercase() } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_named() {
        for text in
            ["client", "client=%REQ(X", "client=%req%", "client=%REQ(X):y%", "client=50%", "client=%(a)%"]
        {
            assert!(text.parse::<Template>().is_err(), "{text}");
        }
        assert_eq!("100%%".parse(), Ok(Parts(vec![Part::Text("100%".to_owned())])));
        for format in ["%START_TIME%%PROTOCOL%", "%PROTOCOL%"] {
            assert!(format.parse::<Format>().is_err(), "{format}");
        }
        assert!(Format::of_fields(vec![(vec!["a".to_owned()], "%PROTOCOL%".parse().unwrap())]).is_err());
    }

    #[test]
    fn arguments_may_contain_percent_signs() {
        let parts: Parts = "%START_TIME(%Y-%m-%dT%H:%M:%S.%3fZ)% %REQ(A?:B):7%x".parse().unwrap();
        let texts: Vec<&str> = parts.operators().map(|one| &*one.text).collect();
        assert_eq!(texts, ["START_TIME", "REQ(a?:b)"]);
        let operator = parts.operators().nth(1).unwrap();
        assert_eq!((operator.longest, &operator.names[..]), (Some(7), &["a".to_owned(), "b".to_owned()][..]));
    }
}
