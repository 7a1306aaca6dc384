//! Reads a line of an Envoy access log, in JSON or text, as the request that Envoy would send for it.
//!
//! A descriptor is written as its entries with Envoy's command operators, `client=%REQ(X-CLIENT)%,path=/login`. An operator
//! takes the field of the log with its name: in text the operator of the log's format, in JSON the key that names the
//! header or the operator in any case, with `_` for `-`. Envoy sends no descriptor with an entry that is missing.

use std::{borrow::Cow, str::FromStr};

use serde_json::Value;

use super::{block::Block, instant};
use text::entries;

/// How requests are made from the lines of an access log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessLog {
    pub domain: String,
    pub descriptors: Vec<Template>,
    pub format: Format,
}

/// The entries of a descriptor with operators in their values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Template(Vec<(String, Vec<Part>)>);

/// The format of lines that are not JSON.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Format(Vec<Part>);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    Text(String),
    Operator(Operator),
}

/// A command operator, such as `%REQ(X-CLIENT?:AUTHORITY):20%`.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Operator {
    /// The names of its field, the one to prefer first: in lower case, with `_` for anything but letters and digits.
    names: Vec<String>,
    /// Only so many characters of the value.
    longest: Option<usize>,
}

/// Envoy's format for text.
const DEFAULT_FORMAT: &str = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" \
    %RESPONSE_CODE% %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \
    \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" \"%REQ(X-REQUEST-ID)%\" \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\"";

/// The names of the field with the time of a request.
const TIMES: [&str; 4] = ["start_time", "timestamp", "_timestamp", "time"];

impl Default for Format {
    #[expect(clippy::expect_used, reason = "a constant")]
    fn default() -> Self {
        DEFAULT_FORMAT.parse().expect("Envoy's format")
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = parts(text.trim_end())?;
        let operators = |pair: &[Part]| pair.iter().all(|part| matches!(part, Part::Operator(_)));
        if parts.windows(2).any(operators) {
            return Err("two operators without a text between them cannot be told apart".to_owned());
        }
        let format = Self(parts);
        if TIMES.iter().any(|time| format.has(time)) {
            Ok(format)
        } else {
            Err("expected %START_TIME%".to_owned())
        }
    }
}

impl FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let entries = entries::parse_with_values(text)?;
        let entries = entries.into_iter().map(|(key, value)| Ok((key, parts(&value)?)));
        entries.collect::<Result<_, String>>().map(Self)
    }
}

/// The texts and operators of a format.
fn parts(text: &str) -> Result<Vec<Part>, String> {
    let (mut parts, mut rest) = (Vec::new(), text);
    let mut plain = String::new();
    while let Some((before, after)) = rest.split_once('%') {
        plain += before;
        let (operator, after) = after.split_once('%').ok_or_else(|| {
            format!("a % has no end in {text:?}; expected an operator such as %REQ(X-CLIENT)%")
        })?;
        rest = after;
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
    Ok(parts)
}

impl FromStr for Operator {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("%{text}%: expected an operator such as %REQ(X-CLIENT)% or %PROTOCOL%");
        let Some((name, argument)) = text.split_once('(') else {
            let is_name =
                text.chars().all(|one| one.is_ascii_uppercase() || one == '_' || one.is_ascii_digit());
            return if is_name {
                Ok(Self { names: vec![normal(text)], longest: None })
            } else {
                Err(invalid())
            };
        };
        let (argument, longest) = argument.rsplit_once(')').ok_or_else(invalid)?;
        let longest = match longest.strip_prefix(':') {
            Some(digits) => Some(digits.parse().map_err(|_| invalid())?),
            None if longest.is_empty() => None,
            None => return Err(invalid()),
        };
        // The argument of a time is its format.
        let names = if name == "START_TIME" {
            vec![normal(name)]
        } else {
            argument.split('?').map(|one| normal(one.trim_start_matches(':'))).collect()
        };
        Ok(Self { names, longest })
    }
}

fn normal(name: &str) -> String {
    name.chars().map(|one| if one.is_ascii_alphanumeric() { one.to_ascii_lowercase() } else { '_' }).collect()
}

/// The fields of a line by their names.
type Fields<'l> = Vec<(Cow<'l, str>, Cow<'l, str>)>;

impl Format {
    fn has(&self, name: &str) -> bool {
        self.0
            .iter()
            .any(|part| matches!(part, Part::Operator(one) if one.names.iter().any(|one| one == name)))
    }

    fn fields<'l>(&'l self, line: &'l str) -> Result<Fields<'l>, String> {
        let (mut fields, mut rest) = (Vec::new(), line);
        for (index, part) in self.0.iter().enumerate() {
            let column = || line.len() - rest.len() + 1;
            match part {
                Part::Text(text) => {
                    let unexpected = || format!("column {}: expected {text:?} of the log's format", column());
                    rest = rest.strip_prefix(text.as_str()).ok_or_else(unexpected)?;
                }
                Part::Operator(operator) => {
                    let end = match self.0.get(index + 1) {
                        Some(Part::Text(text)) => rest.find(text.as_str()).ok_or_else(|| {
                            format!(
                                "column {}: expected {text:?} of the log's format behind a value",
                                column()
                            )
                        })?,
                        _ => rest.len(),
                    };
                    let (value, after) = rest.split_at(end);
                    rest = after;
                    let names = operator.names.iter();
                    fields.extend(names.map(|name| (Cow::Borrowed(name.as_str()), Cow::Borrowed(value))));
                }
            }
        }
        Ok(fields)
    }
}

/// The fields of a line in JSON, those of nested objects with their whole path.
fn json_fields(line: &str) -> Result<Fields<'static>, String> {
    let object: Value =
        serde_json::from_str(line).map_err(|error| format!("column {}: {error}", error.column()))?;
    let mut fields = Vec::new();
    flatten("", object, &mut fields);
    Ok(fields)
}

/// The nesting of an access log; `serde_json` refuses more than 128 levels.
fn flatten(path: &str, value: Value, into: &mut Fields<'static>) {
    let text = match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let key = normal(&key);
                let path = if path.is_empty() { key } else { format!("{path}_{key}") };
                flatten(&path, value, into);
            }
            return;
        }
        Value::String(text) => text,
        Value::Number(number) => number.to_string(),
        Value::Bool(bool) => bool.to_string(),
        Value::Null | Value::Array(_) => return,
    };
    into.push((Cow::Owned(path.to_owned()), Cow::Owned(text)));
}

impl AccessLog {
    /// Reads the line at these bytes of the lines, and adds its request to the block.
    pub(crate) fn read(
        &self,
        block: &mut Block,
        lines: &str,
        (start, end): (usize, usize),
        number: u32,
    ) -> Result<(), String> {
        let line = lines.get(start..end).ok_or("expected a line of text")?;
        let fields =
            if line.trim_start().starts_with('{') { json_fields(line)? } else { self.format.fields(line)? };
        let time = TIMES.iter().find_map(|name| find(&fields, name));
        let time = time.ok_or("the line has no start_time; log %START_TIME%")?;
        let time = instant::parse(time).ok_or_else(|| {
            format!("start_time: expected a time such as \"2026-11-01T00:00:00.123Z\", got {time:?}")
        })?;
        let mut sent = 0;
        for Template(entries) in &self.descriptors {
            let filled = entries.iter().map(|(key, value)| Some((key, filled(value, &fields)?)));
            let Some(filled) = filled.collect::<Option<Vec<_>>>() else { continue };
            for (key, value) in filled {
                let (key, value) = (block.keep(key, lines.len()), block.keep(&value, lines.len()));
                block.push_entry(key, value);
            }
            block.push_descriptor(Some(1), false, None);
            sent += 1;
        }
        if sent == 0 {
            block.without_descriptors += 1;
            return Ok(());
        }
        let domain = block.keep(&self.domain, lines.len());
        block.push_request(time, number, domain);
        Ok(())
    }
}

fn find<'f>(fields: &'f Fields<'_>, name: &str) -> Option<&'f str> {
    // Envoy logs a missing value as `-`.
    fields.iter().find(|(known, value)| known == name && value != "-").map(|(_, value)| &**value)
}

/// The value of an entry; `None` if a field is missing.
fn filled(value: &[Part], fields: &Fields<'_>) -> Option<String> {
    let mut text = String::new();
    for part in value {
        match part {
            Part::Text(plain) => text += plain,
            Part::Operator(Operator { names, longest }) => {
                let value = names.iter().find_map(|name| operator_value(fields, name))?;
                text.extend(value.chars().take(longest.unwrap_or(usize::MAX)));
            }
        }
    }
    Some(text)
}

fn operator_value<'f>(fields: &'f Fields<'_>, name: &str) -> Option<&'f str> {
    find(fields, name).or_else(|| {
        // Logs often have the address with its port.
        let with_port = find(fields, name.strip_suffix("_without_port")?)?;
        let (address, _) = with_port.rsplit_once(':')?;
        Some(address.trim_start_matches('[').trim_end_matches(']'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(descriptors: &[&str], format: Option<&str>) -> AccessLog {
        AccessLog {
            domain: "shop".to_owned(),
            descriptors: descriptors.iter().map(|one| one.parse().unwrap()).collect(),
            format: format.map(|text| text.parse().unwrap()).unwrap_or_default(),
        }
    }

    /// The descriptors of the request of a line; none if Envoy sends no request.
    fn sent(log: &AccessLog, line: &str) -> Result<Vec<String>, String> {
        let mut block = Block::new(0, 1, line.to_owned());
        log.read(&mut block, line, (0, line.len()), 0)?;
        if block.times().next().is_none() {
            assert_eq!(block.without_descriptors, 1);
            return Ok(Vec::new());
        }
        let request = block.request(0);
        let descriptor = |one: &limiter::Descriptor<'_>| {
            entries::write(one.entries.iter().map(|entry| (entry.key, Some(entry.value))))
        };
        Ok(request.descriptors.iter().map(descriptor).collect())
    }

    #[test]
    fn json_is_read_by_the_names_of_headers_and_operators() {
        let both = log(
            &[
                "client=%REQ(X-CLIENT)%,path=/login",
                "remote_address=%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
            ],
            None,
        );
        let line = r#"{"start_time":"2026-11-01T00:00:00.123Z","x-client":"ann","downstream_remote_address":"10.0.0.1:80"}"#;
        assert_eq!(sent(&both, line).unwrap(), ["client=ann,path=/login", "remote_address=10.0.0.1"]);
        for (line, expected) in [
            (
                r#"{"start_time":"2026-11-01T00:00:00.123Z","X_Client":"ann"}"#,
                &["client=ann,path=/login"][..],
            ),
            (r#"{"start_time":"2026-11-01T00:00:00Z","x-client":null}"#, &[]),
            (r#"{"start_time":"2026-11-01T00:00:00Z","x-client":"-"}"#, &[]),
        ] {
            assert_eq!(sent(&both, line).unwrap(), expected, "{line}");
        }
    }

    #[test]
    fn text_is_read_by_its_format() {
        let line = "[2026-11-01T00:00:00.123Z] \"GET /cart?a=b HTTP/1.1\" 200 - 0 5 1 0 \"10.0.0.1\" \"curl/8.0\" \"id\" \"shop.example\" \"10.1.0.1:80\"";
        let by_path = log(
            &[
                "host=%REQ(:AUTHORITY)%,path=%REQ(:PATH):5%",
                "flags=%RESPONSE_FLAGS%",
                "method=%REQ(:METHOD)%!",
            ],
            None,
        );
        assert_eq!(sent(&by_path, line).unwrap(), ["host=shop.example,path=/cart", "method=GET!"]);
        let own = log(&["client=%REQ(X-CLIENT)%"], Some("%START_TIME% <%REQ(x-client)%>\n"));
        assert_eq!(sent(&own, "2026-11-01T00:00:00Z <a,b>").unwrap(), ["client=a\\,b"]);
        let error = sent(&own, "2026-11-01T00:00:00Z a").unwrap_err();
        assert!(error.starts_with("column 1: expected \" <\""), "{error}");
        assert!(sent(&own, "noon <a>").unwrap_err().starts_with("start_time: expected a time"));
    }

    #[test]
    fn mistakes_are_named() {
        for text in ["client", "client=%REQ(X", "client=%req%", "client=%REQ(X):y%", "client=50%"] {
            assert!(text.parse::<Template>().is_err(), "{text}");
        }
        assert_eq!(
            "rate=100%%".parse(),
            Ok(Template(vec![("rate".to_owned(), vec![Part::Text("100%".to_owned())])]))
        );
        for format in ["%START_TIME%%PROTOCOL%", "%PROTOCOL%"] {
            assert!(format.parse::<Format>().is_err(), "{format}");
        }
    }
}
