//! One override: whom it is for, what it does, until when; and its form in JSON, which the admin API, the file and
//! Redis share.

use std::fmt::{self, Write as _};

use serde_json::{Map, Value as Json, json};

use crate::{
    clock::Time,
    entries,
    rules::{Unit, nearest},
    text,
};

/// An override.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Override {
    /// Whom it is for.
    pub target: Target,
    /// What it does.
    pub action: Action,
    /// The second from which on it is gone; `None` if it stays until it is removed.
    pub expires: Option<u32>,
    /// Why it was set; may be empty.
    pub reason: Box<str>,
    /// Who set it; may be empty.
    pub by: Box<str>,
}

/// What an override does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Replaces the limits of the matching rule.
    Limit {
        /// Requests in one unit.
        requests_per_unit: u32,
        /// The unit.
        unit: Unit,
    },
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
    /// One at least, and at most [`MAX_ENTRIES`].
    entries: Box<[(Box<str>, Value)]>,
}

/// The value of an entry.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Value {
    /// This one.
    Exact(Box<str>),
    /// Every value that matches the bare key of a rule.
    Any,
    /// Every value that matches the rule with this pattern, which has a `*`.
    Pattern(Box<str>),
}

/// The most entries of a descriptor: an index of them fits into a bit of 32.
pub const MAX_ENTRIES: usize = 32;

/// The most bytes of a domain, a key or a value, and of a reason. A length of them fits into 16 bits.
pub const MAX_BYTES: usize = 4096;

/// The last second that an override can end at: the end of 2099.
const LAST_SECOND: u64 = 4_102_444_799;

/// The names of the fields in JSON, and of the columns in CSV.
pub const FIELDS: [&str; 9] =
    ["id", "domain", "descriptor", "action", "requests_per_unit", "unit", "expires_at", "reason", "by"];

impl Value {
    /// The value that is written so; a missing one is any.
    #[must_use]
    pub fn new(text: Option<&str>) -> Self {
        match text {
            None => Self::Any,
            Some(text) if text.contains('*') => Self::Pattern(text.into()),
            Some(text) => Self::Exact(text.into()),
        }
    }

    /// As it is written; nothing for any.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Any => None,
            Self::Exact(text) | Self::Pattern(text) => Some(text),
        }
    }

    /// True if a rule says which values it is, and not the override itself.
    #[must_use]
    pub fn is_of_rule(&self) -> bool {
        !matches!(self, Self::Exact(_))
    }
}

impl Target {
    /// The target of this domain and these entries.
    ///
    /// # Errors
    /// When one of them is missing or too long.
    pub fn new(domain: &str, entries: Vec<(Box<str>, Value)>) -> Result<Self, String> {
        if domain.is_empty() {
            return Err("domain is empty; expected the domain of a rules file".to_owned());
        }
        if entries.is_empty() {
            return Err("descriptor has no entry; expected at least one key".to_owned());
        }
        if entries.len() > MAX_ENTRIES {
            return Err(format!("descriptor has {} entries; the maximum is {MAX_ENTRIES}", entries.len()));
        }
        fits("domain", domain)?;
        for (key, value) in &entries {
            if key.is_empty() {
                return Err("an entry of the descriptor has an empty key".to_owned());
            }
            fits("key", key)?;
            fits("value", value.text().unwrap_or_default())?;
        }
        Ok(Self { domain: domain.into(), entries: entries.into() })
    }

    /// The domain.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The entries of the descriptor.
    #[must_use]
    pub fn entries(&self) -> &[(Box<str>, Value)] {
        &self.entries
    }

    /// True if a request with these entries may meet the override: it does unless a value that is left to the rules
    /// matches none of them.
    #[must_use]
    pub fn may_meet(&self, request: &[(Box<str>, Value)]) -> bool {
        let mut pairs = self.entries.iter().zip(request);
        self.entries.len() == request.len()
            && pairs.all(|((key, value), (asked_key, asked))| {
                key == asked_key && (value.is_of_rule() || value.text() == asked.text())
            })
    }

    /// The descriptor as [`entries_of_text`] reads it.
    #[must_use]
    pub fn descriptor(&self) -> String {
        entries::write(self.entries.iter().map(|(key, value)| (&**key, value.text())))
    }

    /// The identifier of the override for this target: equal on all replicas, and the same when the override is set
    /// again.
    #[must_use]
    pub fn id(&self) -> String {
        let mut text = String::with_capacity(64);
        let mut part = |part: Option<&str>| {
            // A length never begins with a dash, so no value reads like a missing one.
            let Some(part) = part else { return text.push('-') };
            text.push_str(itoa::Buffer::new().format(part.len()));
            text.push(':');
            text.push_str(part);
        };
        part(Some(&self.domain));
        for (key, value) in &self.entries {
            part(Some(key));
            part(value.text());
        }
        let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        // Eighty bits: of a million overrides two have the same with a probability of 10⁻¹².
        digest.as_ref().iter().take(10).fold(String::with_capacity(20), |mut id, byte| {
            // Writing to a String cannot fail.
            let _ = write!(id, "{byte:02x}");
            id
        })
    }
}

/// `shop.customer=ann`, as logs and tables name it.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.domain, self.descriptor())
    }
}

impl Action {
    /// The names of the actions, in the order of [`index`](Self::index).
    pub const NAMES: [&str; 4] = ["limit", "block", "allow", "shadow"];

    /// A number for tables.
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Limit { .. } => 0,
            Self::Block => 1,
            Self::Allow => 2,
            Self::Shadow => 3,
        }
    }

    /// The name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Limit { .. } => "limit",
            Self::Block => "block",
            Self::Allow => "allow",
            Self::Shadow => "shadow",
        }
    }

    /// Adds what an override does until this second to its fields in JSON.
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
    /// True from the second on at which it ends.
    #[must_use]
    pub fn is_over(&self, now: Time) -> bool {
        self.expires.is_some_and(|end| now.seconds() >= u64::from(end))
    }

    /// The override as JSON.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let entry = |(key, value): &(Box<str>, Value)| match value.text() {
            Some(value) => json!({"key": key, "value": value}),
            None => json!({"key": key}),
        };
        let mut fields = Map::new();
        let mut add = |name: &str, value: Json| fields.insert(name.to_owned(), value);
        add("id", self.target.id().into());
        add("domain", (*self.target.domain).into());
        add("descriptor", self.target.entries.iter().map(entry).collect());
        self.action.add_to_json(self.expires, &mut fields);
        for (name, text) in [("reason", &self.reason), ("by", &self.by)] {
            if !text.is_empty() {
                fields.insert(name.to_owned(), (**text).into());
            }
        }
        Json::Object(fields)
    }

    /// The override that JSON describes. `for` may stand instead of `expires_at`, and is counted from `now`.
    ///
    /// # Errors
    /// The first thing that is wrong with it: the field, the value seen, what is expected.
    pub fn from_json(json: &Json, now: Time) -> Result<Self, String> {
        let Json::Object(fields) = json else {
            return Err(format!("expected an object, got {}", shown(json)));
        };
        let is_unknown = |name: &&String| !FIELDS.contains(&name.as_str()) && *name != "for";
        if let Some(name) = fields.keys().find(is_unknown) {
            let hint = match nearest(name, FIELDS) {
                Some(meant) => format!("did you mean {meant:?}?"),
                None => format!("expected {}", FIELDS.join(", ")),
            };
            return Err(format!("unknown field {:?}; {hint}", text::cut(name)));
        }
        let field = |name: &str| fields.get(name).filter(|value| !value.is_null());
        let text_of = |name: &str| match field(name) {
            None => Ok(None),
            Some(Json::String(text)) => Ok(Some(text.as_str())),
            Some(other) => Err(format!("{name}: expected text, got {}", shown(other))),
        };
        let domain = text_of("domain")?.ok_or("domain is missing; expected the domain of a rules file")?;
        let target = Target::new(domain, entries_of_json(field("descriptor"))?)?;
        let limit =
            LimitFields { requests_per_unit: number(field("requests_per_unit"))?, unit: text_of("unit")? };
        let action = Self::action(text_of("action")?, limit)?;
        let expires = expiry(text_of("expires_at")?, text_of("for")?, now)?;
        let (reason, by) = (text_of("reason")?.unwrap_or_default(), text_of("by")?.unwrap_or_default());
        fits("reason", reason)?;
        fits("by", by)?;
        Ok(Self { target, action, expires, reason: reason.into(), by: by.into() })
    }

    /// The action of this name, with the limit's fields.
    ///
    /// # Errors
    /// When it is unknown, or the limit's fields are missing or unexpected.
    pub fn action(name: Option<&str>, limit: LimitFields<'_>) -> Result<Action, String> {
        let expected = Action::NAMES.join(", ");
        let name = name.ok_or_else(|| format!("action is missing; expected {expected}"))?;
        let action = match name {
            "limit" => return limit.action(),
            "block" => Action::Block,
            "allow" => Action::Allow,
            "shadow" => Action::Shadow,
            other => {
                let hint = nearest(other, Action::NAMES).map_or(format!("expected {expected}"), |meant| {
                    format!("did you mean {meant:?}? Expected {expected}")
                });
                return Err(format!("action: unknown action {:?}; {hint}", text::cut(other)));
            }
        };
        for (field, given) in
            [("requests_per_unit", limit.requests_per_unit.is_some()), ("unit", limit.unit.is_some())]
        {
            if given {
                return Err(format!(
                    "{field}: the action {name} has no limit; remove it, or use the action limit"
                ));
            }
        }
        Ok(action)
    }
}

/// The fields of a limit, as they are given.
#[derive(Clone, Copy, Debug)]
pub struct LimitFields<'a> {
    /// Requests in one unit.
    pub requests_per_unit: Option<u32>,
    /// The unit's name.
    pub unit: Option<&'a str>,
}

impl LimitFields<'_> {
    fn action(self) -> Result<Action, String> {
        let units = Unit::ALL.map(|unit| unit.name().to_ascii_lowercase()).join(", ");
        let Some(requests_per_unit) = self.requests_per_unit else {
            let help = "expected a number of requests with the action limit; 0 refuses every request";
            return Err(format!("requests_per_unit is missing; {help}"));
        };
        let Some(unit) = self.unit else { return Err(format!("unit is missing; expected {units}")) };
        let unit = Unit::from_name(unit).ok_or_else(|| {
            let meant = Unit::from_abbreviation(unit).map(|unit| unit.name().to_ascii_lowercase());
            let hint = meant.map_or(String::new(), |meant| format!("did you mean {meant}? "));
            format!("unit: unknown unit {:?}; {hint}Expected {units}", text::cut(unit))
        })?;
        Ok(Action::Limit { requests_per_unit, unit })
    }
}

/// When an override ends, by the moment or by the duration that was given.
///
/// # Errors
/// When it is neither, both, in the past or after 2099.
pub fn expiry(at: Option<&str>, lasts: Option<&str>, now: Time) -> Result<Option<u32>, String> {
    let (name, given, end) = match (at, lasts) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => return Err("expires_at and for exclude each other; remove one".to_owned()),
        (Some(at), None) => ("expires_at", at, moment(at)?),
        (None, Some(lasts)) => {
            let seconds = crate::settings::duration(lasts)
                .map_err(|error| {
                    let hint = error.hint.map(|hint| format!("; {hint}")).unwrap_or_default();
                    format!("for: expected {}, got {:?}{hint}", error.expected, text::cut(lasts))
                })?
                .as_secs();
            if seconds == 0 {
                return Err(format!("for: expected at least 1s, got {:?}", text::cut(lasts)));
            }
            ("for", lasts, now.seconds().saturating_add(seconds))
        }
    };
    if end <= now.seconds() {
        return Err(format!("{name}: {:?} is in the past; it is {} now", text::cut(given), now_text(now)));
    }
    u32::try_from(end).ok().filter(|_| end <= LAST_SECOND).map(Some).ok_or_else(|| {
        format!("{name}: {:?} ends after 2099; leave it out for an override without an end", text::cut(given))
    })
}

fn moment(text: &str) -> Result<u64, String> {
    let expected = "expected a moment such as 2026-11-23T00:00:00Z";
    let read = text.parse::<prost_types::Timestamp>();
    let moment = read.map_err(|_| format!("expires_at: {expected}, got {:?}", text::cut(text)))?;
    // A fraction of a second is rounded up: the override is in force at the moment that was given.
    let seconds = u64::try_from(moment.seconds).unwrap_or_default();
    Ok(seconds.saturating_add(u64::from(moment.nanos > 0)))
}

fn now_text(now: Time) -> String {
    timestamp(u32::try_from(now.seconds()).unwrap_or(u32::MAX))
}

/// A second as RFC 3339 writes it, in UTC.
#[must_use]
pub fn timestamp(second: u32) -> String {
    prost_types::Timestamp { seconds: second.into(), nanos: 0 }.to_string()
}

/// The entries of `key=value,key2=value2`. A key alone is for every value without a rule of its own.
///
/// # Errors
/// What is wrong with the text, and how to write it.
pub fn entries_of_text(text: &str) -> Result<Vec<(Box<str>, Value)>, String> {
    let entries = entries::parse(text)?.into_iter();
    Ok(entries.map(|(key, value)| (key.into(), Value::new(value.as_deref()))).collect())
}

/// The entries of `[{"key": …, "value": …}]`, or of `"key=value"`.
///
/// # Errors
/// What is wrong, and what is expected.
pub fn entries_of_json(json: Option<&Json>) -> Result<Vec<(Box<str>, Value)>, String> {
    let help = r#"expected [{"key": "…", "value": "…"}] or "key=value""#;
    let items = match json {
        None => return Err(format!("descriptor is missing; {help}")),
        Some(Json::String(text)) => {
            return entries_of_text(text).map_err(|error| format!("descriptor: {error}"));
        }
        Some(Json::Array(items)) => items,
        Some(other) => return Err(format!("descriptor: {help}, got {}", shown(other))),
    };
    let entry = |(index, item): (usize, &Json)| {
        let Json::Object(fields) = item else {
            return Err(format!(
                "descriptor[{index}]: expected an object with key and value, got {}",
                shown(item)
            ));
        };
        if let Some(name) = fields.keys().find(|name| !["key", "value"].contains(&name.as_str())) {
            return Err(format!(
                "descriptor[{index}]: unknown field {:?}; expected key, value",
                text::cut(name)
            ));
        }
        let text_of = |name: &str| match fields.get(name) {
            None | Some(Json::Null) => Ok(None),
            Some(Json::String(text)) => Ok(Some(text.as_str())),
            Some(other) => {
                Err(format!("descriptor[{index}].{name}: expected text in quotes, got {}", shown(other)))
            }
        };
        let key = text_of("key")?.ok_or_else(|| format!("descriptor[{index}]: key is missing"))?;
        Ok((key.into(), Value::new(text_of("value")?)))
    };
    items.iter().enumerate().map(entry).collect()
}

fn number(json: Option<&Json>) -> Result<Option<u32>, String> {
    let Some(json) = json else { return Ok(None) };
    let number = json.as_u64().and_then(|number| u32::try_from(number).ok());
    let expected =
        || format!("requests_per_unit: expected an integer between 0 and {}, got {}", u32::MAX, shown(json));
    number.map(Some).ok_or_else(expected)
}

fn fits(name: &str, text: &str) -> Result<(), String> {
    if text.len() <= MAX_BYTES {
        return Ok(());
    }
    Err(format!("{name} has {} bytes; the maximum is {MAX_BYTES}", text.len()))
}

/// A value as an error shows it.
fn shown(json: &Json) -> String {
    text::cut_display(json)
}
