//! An override: its target, action and expiry; and the JSON that the admin API, the file and Redis share.

use std::fmt;

use serde_json::{Map, Value as Json, json};

use clock::Time;
use rules::{Unit, nearest};
use text::{
    entries, {cut, cut_display, hex},
};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Override {
    pub target: Target,
    pub action: Action,
    /// The second at which it expires; `None` if it stays until it is removed.
    pub expires: Option<u32>,
    /// Why it was set; may be empty.
    pub reason: Box<str>,
    /// The user who set it; may be empty.
    pub by: Box<str>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Replaces the limits of the matching rule.
    Limit { requests_per_unit: u32, unit: Unit },
    /// Every request is over limit, and nothing is counted.
    Block,
    /// No request is limited, and nothing is counted.
    Allow,
    /// Requests are counted by the rule and never over limit.
    Shadow,
}

/// A domain and a descriptor. There is at most one override for a target.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Target {
    domain: Box<str>,
    /// From 1 to [`MAX_ENTRIES`].
    entries: Box<[(Box<str>, Value)]>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Value {
    Exact(Box<str>),
    /// Every value that matches the bare key of a rule.
    Any,
    /// Every value that matches the rule with this pattern, which has a `*`.
    Pattern(Box<str>),
}

/// Maximum number of entries of a descriptor: each is a bit of a 32-bit mask.
pub const MAX_ENTRIES: usize = 32;

/// Maximum size of a domain, key, value or reason, in bytes. Records have 16 bits for such a length.
pub const MAX_BYTES: usize = 4096;

/// Maximum size of the JSON of an override: twice its longest texts, and room for escapes. Parsed JSON takes up to 24 times
/// its size.
pub const MAX_JSON: usize = 1 << 20;

/// The last second at which an override can expire: the end of 2099.
const LAST_SECOND: u64 = 4_102_444_799;

/// The fields of JSON, and the columns of CSV, that are accepted.
pub(super) const INPUT_FIELDS: [&str; 10] = [
    "id",
    "domain",
    "descriptor",
    "action",
    "requests_per_unit",
    "unit",
    "expires_at",
    "reason",
    "by",
    "for",
];

/// The fields that are written: all but `for`, which is converted to `expires_at`.
pub const FIELDS: [&str; 9] = {
    let [written @ .., _] = INPUT_FIELDS;
    written
};

impl Value {
    /// The value with this text; [`Any`](Self::Any) without one.
    pub fn new(text: Option<&str>) -> Self {
        match text {
            None => Self::Any,
            Some(text) if text.contains('*') => Self::Pattern(text.into()),
            Some(text) => Self::Exact(text.into()),
        }
    }

    /// The text; `None` for any value.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Any => None,
            Self::Exact(text) | Self::Pattern(text) => Some(text),
        }
    }

    /// True if a rule determines the values, and not the override.
    pub fn is_of_rule(&self) -> bool {
        !matches!(self, Self::Exact(_))
    }
}

impl Target {
    /// A target.
    pub fn new(domain: &str, entries: Vec<(Box<str>, Value)>) -> Result<Self, String> {
        if domain.is_empty() {
            return Err("domain is empty; expected the domain of a rules file".to_owned());
        }
        if entries.is_empty() {
            return Err("descriptor has no entries; expected at least one key".to_owned());
        }
        if entries.len() > MAX_ENTRIES {
            return Err(format!("descriptor has {} entries; the maximum is {MAX_ENTRIES}", entries.len()));
        }
        check_length("domain", domain)?;
        for (key, value) in &entries {
            if key.is_empty() {
                return Err("an entry of the descriptor has an empty key".to_owned());
            }
            check_length("key", key)?;
            check_length("value", value.text().unwrap_or_default())?;
        }
        Ok(Self { domain: domain.into(), entries: entries.into() })
    }

    pub fn domain(&self) -> &str {
        &self.domain
    }

    pub fn entries(&self) -> &[(Box<str>, Value)] {
        &self.entries
    }

    /// True if the override may apply to a request with these entries. Values that a rule determines are not compared.
    pub fn may_match(&self, request: &[(Box<str>, Value)]) -> bool {
        let mut pairs = self.entries.iter().zip(request);
        self.entries.len() == request.len()
            && pairs.all(|((key, value), (request_key, requested))| {
                key == request_key && (value.is_of_rule() || value.text() == requested.text())
            })
    }

    /// The target with converted values. A pattern is a text of the rules and stays.
    pub fn with_values(&self, convert: impl Fn(&str) -> String) -> Self {
        let converted = |value: &Value| match value {
            Value::Exact(text) => Value::Exact(convert(text).into()),
            other => other.clone(),
        };
        let entries = self.entries.iter().map(|(key, value)| (key.clone(), converted(value)));
        Self { domain: self.domain.clone(), entries: entries.collect() }
    }

    /// The descriptor, in the form that [`entries_of_text`] reads.
    pub fn descriptor(&self) -> String {
        entries::write(self.entries.iter().map(|(key, value)| (&**key, value.text())))
    }

    /// The identifier of the override for this target: the same on all replicas, and when the override is set again.
    pub fn id(&self) -> String {
        let entries = self.entries.iter().flat_map(|(key, value)| [Some(&**key), value.text()]);
        let mut text = String::with_capacity(64);
        for part in std::iter::once(Some(&*self.domain)).chain(entries) {
            // A length never begins with a dash, so a missing value differs from every text.
            let Some(part) = part else {
                text.push('-');
                continue;
            };
            text.push_str(itoa::Buffer::new().format(part.len()));
            text.push(':');
            text.push_str(part);
        }
        let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        // 80 bits: two of a million overrides have the same with a probability of 10⁻¹².
        hex(digest.as_ref().iter().take(10))
    }

    pub(super) fn to_json(&self) -> Map<String, Json> {
        let entry = |(key, value): &(Box<str>, Value)| match value.text() {
            Some(value) => json!({"key": key, "value": value}),
            None => json!({"key": key}),
        };
        let descriptor = self.entries.iter().map(entry).collect();
        [("domain".to_owned(), (*self.domain).into()), ("descriptor".to_owned(), descriptor)]
            .into_iter()
            .collect()
    }
}

/// `shop user=ann`, for logs and messages.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.domain, self.descriptor())
    }
}

impl Action {
    /// The names of the actions, in the order of [`index`](Self::index).
    pub const NAMES: [&str; 4] = ["limit", "block", "allow", "shadow"];

    pub const fn index(self) -> usize {
        match self {
            Self::Limit { .. } => 0,
            Self::Block => 1,
            Self::Allow => 2,
            Self::Shadow => 3,
        }
    }

    pub fn name(self) -> &'static str {
        Self::NAMES[self.index()]
    }

    /// Adds the action and the expiry to the JSON of an override.
    pub fn add_to_json(self, expires: Option<u32>, fields: &mut Map<String, Json>) {
        let mut add = |name: &str, value: Json| fields.insert(name.to_owned(), value);
        add("action", self.name().into());
        if let Self::Limit { requests_per_unit, unit } = self {
            add("requests_per_unit", requests_per_unit.into());
            add("unit", unit.name().into());
        }
        if let Some(end) = expires {
            add("expires_at", timestamp(end).into());
        }
    }
}

/// `limit 100 per minute`, `block`.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit { requests_per_unit, unit } => {
                write!(f, "limit {requests_per_unit} per {}", unit.name().to_ascii_lowercase())
            }
            other => f.write_str(other.name()),
        }
    }
}

impl Override {
    pub fn is_over(&self, now: Time) -> bool {
        self.expires.is_some_and(|end| now.seconds() >= u64::from(end))
    }

    pub fn to_json(&self) -> Json {
        self.to_json_as(&self.target)
    }

    /// The override as JSON, with the descriptor of another target.
    pub fn to_json_as(&self, shown: &Target) -> Json {
        let mut fields = shown.to_json();
        fields.insert("id".to_owned(), self.target.id().into());
        self.action.add_to_json(self.expires, &mut fields);
        for (name, text) in [("reason", &self.reason), ("by", &self.by)] {
            if !text.is_empty() {
                fields.insert(name.to_owned(), (**text).into());
            }
        }
        Json::Object(fields)
    }

    /// Reads an override from JSON. `for` is an alternative to `expires_at` and counts from `now`.
    pub fn from_json(json: &Json, now: Time) -> Result<Self, String> {
        let Json::Object(fields) = json else {
            return Err(format!("expected an object, got {}", cut_display(json)));
        };
        check_fields(fields, "", &INPUT_FIELDS)?;
        let text = |name| text_of(fields, "", name);
        let domain = text("domain")?.ok_or("domain is missing; expected the domain of a rules file")?;
        let target = Target::new(domain, entries_of_json(field(fields, "descriptor"))?)?;
        let requests = field(fields, "requests_per_unit").map(requests_per_unit).transpose()?;
        let action = action(text("action")?, requests, text("unit")?)?;
        let expires = expiry(text("expires_at")?, text("for")?, now)?;
        let (reason, by) = (text("reason")?.unwrap_or_default(), text("by")?.unwrap_or_default());
        check_length("reason", reason)?;
        check_length("by", by)?;
        Ok(Self { target, action, expires, reason: reason.into(), by: by.into() })
    }
}

fn action(name: Option<&str>, requests_per_unit: Option<u32>, unit: Option<&str>) -> Result<Action, String> {
    let expected = Action::NAMES.join(", ");
    let name = name.ok_or_else(|| format!("action is missing; expected {expected}"))?;
    let action = match name {
        "limit" => return limit(requests_per_unit, unit),
        "block" => Action::Block,
        "allow" => Action::Allow,
        "shadow" => Action::Shadow,
        other => {
            let hint = nearest(other, Action::NAMES).map_or(format!("expected {expected}"), |meant| {
                format!("did you mean {meant:?}? Expected {expected}")
            });
            return Err(format!("action: unknown action {:?}; {hint}", cut(other)));
        }
    };
    let field = requests_per_unit.map(|_| "requests_per_unit").or(unit.map(|_| "unit"));
    field.map_or(Ok(action), |field| {
        Err(format!("{field}: the action {name} has no limit; remove the field, or use the action limit"))
    })
}

fn limit(requests_per_unit: Option<u32>, unit: Option<&str>) -> Result<Action, String> {
    let requests_per_unit = requests_per_unit.ok_or(
        "requests_per_unit is missing; the action limit expects a number of requests; 0 rejects every request",
    )?;
    let units = Unit::ALL.map(|unit| unit.name().to_ascii_lowercase()).join(", ");
    let unit = unit.ok_or_else(|| format!("unit is missing; expected {units}"))?;
    let unit = Unit::from_name(unit).ok_or_else(|| {
        let meant = Unit::from_abbreviation(unit).map(|unit| unit.name().to_ascii_lowercase());
        let hint = meant.map_or(String::new(), |meant| format!("did you mean {meant}? "));
        format!("unit: unknown unit {:?}; {hint}Expected {units}", cut(unit))
    })?;
    Ok(Action::Limit { requests_per_unit, unit })
}

/// The second at which an override expires, from a timestamp or a duration.
pub(super) fn expiry(at: Option<&str>, duration: Option<&str>, now: Time) -> Result<Option<u32>, String> {
    let (name, given, end) = match (at, duration) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => return Err("expires_at and for exclude each other; remove one".to_owned()),
        (Some(at), None) => ("expires_at", at, parse_timestamp(at)?),
        (None, Some(duration)) => {
            let seconds = text::duration::parse(duration)
                .map_err(|error| {
                    let hint = error.hint.map(|hint| format!("; {hint}")).unwrap_or_default();
                    format!("for: expected {}, got {:?}{hint}", error.expected, cut(duration))
                })?
                .as_secs();
            if seconds == 0 {
                return Err(format!("for: expected at least 1s, got {:?}", cut(duration)));
            }
            ("for", duration, now.seconds().saturating_add(seconds))
        }
    };
    if end <= now.seconds() {
        let now = timestamp(now.seconds());
        return Err(format!("{name}: {:?} is in the past; the current time is {now}", cut(given)));
    }
    u32::try_from(end).ok().filter(|_| end <= LAST_SECOND).map(Some).ok_or_else(|| {
        format!(
            "{name}: {:?} is after 2099; remove the field for an override that does not expire",
            cut(given)
        )
    })
}

fn parse_timestamp(text: &str) -> Result<u64, String> {
    let expected = "expected a timestamp such as 2026-11-23T00:00:00Z";
    let read = text.parse::<prost_types::Timestamp>();
    let time = read.map_err(|_| format!("expires_at: {expected}, got {:?}", cut(text)))?;
    // A fraction of a second is rounded up, so that the override does not expire too early.
    let seconds = u64::try_from(time.seconds).unwrap_or_default();
    Ok(seconds.saturating_add(u64::from(time.nanos > 0)))
}

/// A second in RFC 3339, in UTC.
pub fn timestamp(second: impl Into<u64>) -> String {
    let seconds = i64::try_from(second.into()).unwrap_or(i64::MAX);
    prost_types::Timestamp { seconds, nanos: 0 }.to_string()
}

/// The entries of `key=value,key2=value2`. A key without a value stands for every value that the bare key of a rule
/// matches.
pub fn entries_of_text(text: &str) -> Result<Vec<(Box<str>, Value)>, String> {
    let entries = entries::parse(text)?.into_iter();
    Ok(entries.map(|(key, value)| (key.into(), Value::new(value.as_deref()))).collect())
}

/// The entries of `[{"key": …, "value": …}]`, or of `"key=value"`.
pub fn entries_of_json(json: Option<&Json>) -> Result<Vec<(Box<str>, Value)>, String> {
    let help = r#"expected [{"key": "…", "value": "…"}] or "key=value""#;
    let items = match json {
        None => return Err(format!("descriptor is missing; {help}")),
        Some(Json::String(text)) => {
            return entries_of_text(text).map_err(|error| format!("descriptor: {error}"));
        }
        Some(Json::Array(items)) => items,
        Some(other) => return Err(format!("descriptor: {help}, got {}", cut_display(other))),
    };
    let entry = |(index, item): (usize, &Json)| {
        let Json::Object(fields) = item else {
            let seen = cut_display(item);
            return Err(format!("descriptor[{index}]: expected an object with key and value, got {seen}"));
        };
        check_fields(fields, &format!("descriptor[{index}]: "), &["key", "value"])?;
        let text = |name| text_of(fields, &format!("descriptor[{index}]."), name);
        let key = text("key")?.ok_or_else(|| format!("descriptor[{index}]: key is missing"))?;
        Ok((key.into(), Value::new(text("value")?)))
    };
    items.iter().enumerate().map(entry).collect()
}

fn check_fields(fields: &Map<String, Json>, place: &str, known: &[&str]) -> Result<(), String> {
    let Some(name) = fields.keys().find(|name| !known.contains(&name.as_str())) else { return Ok(()) };
    let hint = match nearest(name, known.iter().copied()) {
        Some(meant) => format!("did you mean {meant:?}?"),
        None => format!("expected {}", known.join(", ")),
    };
    Err(format!("{place}unknown field {:?}; {hint}", cut(name)))
}

fn field<'j>(fields: &'j Map<String, Json>, name: &str) -> Option<&'j Json> {
    fields.get(name).filter(|value| !value.is_null())
}

fn text_of<'j>(fields: &'j Map<String, Json>, path: &str, name: &str) -> Result<Option<&'j str>, String> {
    let wrong = |seen| format!("{path}{name}: expected text in quotes, got {}", cut_display(seen));
    field(fields, name).map(|value| value.as_str().ok_or_else(|| wrong(value))).transpose()
}

fn requests_per_unit(json: &Json) -> Result<u32, String> {
    let number = json.as_u64().and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| {
        let seen = cut_display(json);
        format!("requests_per_unit: expected an integer between 0 and {}, got {seen}", u32::MAX)
    })
}

fn check_length(name: &str, text: &str) -> Result<(), String> {
    if text.len() <= MAX_BYTES {
        return Ok(());
    }
    Err(format!("{name} has {} bytes; the maximum is {MAX_BYTES}", text.len()))
}
