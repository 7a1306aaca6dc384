//! What an override applies to: a descriptor, every descriptor with an entry, or a whole domain.
//!
//! A stored override has its scope in its domain, which no rules file has: `*entry@shop`.

use std::fmt;

use serde_json::{Map, Value as Json, json};

use super::{
    entry,
    model::{MAX_BYTES, MAX_ENTRIES},
};
use recent::{KeyValues, shown};
use text::{cut, cut_display, entries, hex, spelling::nearest};

/// The domain of an override by entry, or of a switch, that applies to all domains.
pub const EVERY_DOMAIN: &str = "*";

/// The scope of an override, and what it applies to. There is at most one override for a target.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Target {
    scope: Scope,
    domain: Box<str>,
    /// From 1 to [`MAX_ENTRIES`]; exactly one for an entry, and [`WHOLE`] for a domain.
    entries: Box<[EntryOf]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scope {
    /// Descriptors with exactly these keys.
    Descriptor,
    /// Every descriptor that has the entry, at any place.
    Entry,
    /// All descriptors of a domain.
    Domain,
    /// The failure policy of a domain.
    StoreFailure,
}

/// `Debug` hides a value that callers send.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Value {
    Exact(Box<str>),
    /// Every value that matches the bare key of a rule.
    Any,
    /// Every value that matches the rule with this pattern, or begins with the prefix of an entry. It has a `*`.
    Pattern(Box<str>),
}

/// A target whose values are as `KEY_VALUES` shows them: the only form of a target that can be printed.
pub struct ShownTarget(Target);

/// The entries of a descriptor, or of a request.
pub type Entries = Vec<EntryOf>;

/// A key with its value.
pub type EntryOf = (Box<str>, Value);

/// The key of the only entry of a target that is a domain.
const WHOLE: &str = "*";

impl Scope {
    const ALL: [Self; 4] = [Self::Descriptor, Self::Entry, Self::Domain, Self::StoreFailure];

    /// The beginning of the domain of a stored override.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Descriptor => "",
            Self::Entry => "*entry@",
            Self::Domain => "*domain@",
            Self::StoreFailure => "*on_store_failure@",
        }
    }

    pub const fn is_switch(self) -> bool {
        matches!(self, Self::Domain | Self::StoreFailure)
    }

    /// The scope of a stored override, and its domain.
    fn of_stored(domain: &str) -> (Self, &str) {
        let mut others = Self::ALL.into_iter().filter(|scope| *scope != Self::Descriptor);
        others
            .find_map(|scope| Some((scope, domain.strip_prefix(scope.prefix())?)))
            .unwrap_or((Self::Descriptor, domain))
    }
}

impl Value {
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
    /// The descriptors of a domain with these entries. A stored domain gives a target of its scope.
    pub fn new(domain: &str, entries: Entries) -> Result<Self, String> {
        let (scope, domain) = Scope::of_stored(domain);
        match scope {
            Scope::Descriptor => Self::checked(scope, domain, entries),
            Scope::Entry => Self::of_entry(domain, entries),
            Scope::Domain | Scope::StoreFailure => Self::of_domain(domain, scope),
        }
    }

    /// Every descriptor of a domain, or of all domains, that has this entry.
    pub fn of_entry(domain: &str, entries: Entries) -> Result<Self, String> {
        let [(key, value)] = <[_; 1]>::try_from(entries)
            .map_err(|all| format!("entry: expected one KEY=VALUE, got {} entries", all.len()))?;
        let value = value.text().ok_or_else(|| {
            format!("entry: {key} has no value; expected {key}=VALUE, or {key}=* for every value")
        })?;
        let value =
            entry::canonical(value).map_err(|error| format!("entry: {key}={}: {error}", cut(value)))?;
        Self::checked(Scope::Entry, domain, vec![(key, Value::new(Some(&value)))])
    }

    pub fn of_domain(domain: &str, scope: Scope) -> Result<Self, String> {
        Self::checked(scope, domain, vec![(WHOLE.into(), Value::Any)])
    }

    fn checked(scope: Scope, domain: &str, entries: Entries) -> Result<Self, String> {
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
        Ok(Self { scope, domain: domain.into(), entries: entries.into() })
    }

    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// The domain; [`EVERY_DOMAIN`] for all of them.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    pub fn entries(&self) -> &[EntryOf] {
        &self.entries
    }

    pub fn entry(&self) -> Option<(&str, &str)> {
        let (key, value) = self.entries.first().filter(|_| self.scope == Scope::Entry)?;
        Some((key, value.text()?))
    }

    /// True if the override may apply to requests of this domain.
    pub fn is_of_domain(&self, domain: &str) -> bool {
        *self.domain == *domain || self.scope != Scope::Descriptor && *self.domain == *EVERY_DOMAIN
    }

    /// True if the override may apply to a request with these entries. Values that a rule determines are not compared.
    pub fn may_match(&self, request: &[EntryOf]) -> bool {
        let is_same = |((key, value), (request_key, requested)): (&EntryOf, &EntryOf)| {
            key == request_key && (value.is_of_rule() || value.text() == requested.text())
        };
        match (self.scope, self.entry()) {
            (Scope::Descriptor, _) => {
                self.entries.len() == request.len() && self.entries.iter().zip(request).all(is_same)
            }
            (_, Some((key, value))) => request
                .iter()
                .any(|(requested, text)| **requested == *key && entry::matches(value, text.text())),
            _ => true,
        }
    }

    /// The target with its values by `KEY_VALUES`. A pattern or a network is a text of an operator and stays.
    pub fn shown(&self, values: KeyValues) -> ShownTarget {
        let converted = |value: &Value| match value {
            Value::Exact(text) if self.scope != Scope::Entry || entry::is_one_value(text) => {
                Value::Exact(shown(text, values).into())
            }
            other => other.clone(),
        };
        let entries = self.entries.iter().map(|(key, value)| (key.clone(), converted(value)));
        ShownTarget(Self { scope: self.scope, domain: self.domain.clone(), entries: entries.collect() })
    }

    /// The target with its values, for the caller that has sent them.
    pub fn plain(&self) -> ShownTarget {
        self.shown(KeyValues::Plain)
    }

    /// The identifier of the override for this target in its storage: the same on all replicas, and when the override is
    /// set again. Who sees it can try values; [`Index::shown_id`](crate::Index::shown_id) is for replies.
    pub fn id(&self) -> String {
        let domain = self.stored_domain();
        let entries = self.entries.iter().flat_map(|(key, value)| [Some(&**key), value.text()]);
        let mut text = String::with_capacity(64);
        for part in std::iter::once(Some(&*domain)).chain(entries) {
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

    fn stored_domain(&self) -> String {
        format!("{}{}", self.scope.prefix(), self.domain)
    }

    /// The fields of a stored override.
    pub(super) fn to_stored(&self) -> Map<String, Json> {
        [("domain".to_owned(), self.stored_domain().into()), ("descriptor".to_owned(), self.entries_json())]
            .into_iter()
            .collect()
    }

    fn entries_json(&self) -> Json {
        let entry = |(key, value): &EntryOf| match value.text() {
            Some(value) => json!({"key": key, "value": value}),
            None => json!({"key": key}),
        };
        self.entries.iter().map(entry).collect()
    }
}

impl ShownTarget {
    /// The descriptor or the entry, in the form that [`entries_of_text`] reads.
    pub fn descriptor(&self) -> String {
        entries::write(self.0.entries.iter().map(|(key, value)| (&**key, value.text())))
    }

    /// The target in words: `shop user=ann`, `shop, every descriptor with ip=10.0.0.0/8`, `all domains`.
    pub fn in_words(&self) -> String {
        let Target { scope, domain, .. } = &self.0;
        let is_every = **domain == *EVERY_DOMAIN && *scope != Scope::Descriptor;
        let domain = if is_every { "all domains" } else { &**domain };
        match scope {
            Scope::Descriptor => format!("{domain} {}", self.descriptor()),
            Scope::Entry => format!("{domain}, every descriptor with {}", self.descriptor()),
            Scope::Domain | Scope::StoreFailure => domain.to_owned(),
        }
    }

    pub(super) fn to_json(&self) -> Map<String, Json> {
        let Self(target) = self;
        let entries = target.entries_json();
        let mut fields = Map::from_iter([("domain".to_owned(), (*target.domain).into())]);
        match target.scope {
            Scope::Descriptor => fields.insert("descriptor".to_owned(), entries),
            Scope::Entry => fields.insert("entry".to_owned(), entries.get(0).cloned().unwrap_or_default()),
            Scope::Domain | Scope::StoreFailure => None,
        };
        fields
    }
}

/// The arguments that name it on a command line: `shop user=ann`, `shop --entry ip=10.0.0.0/8`.
impl fmt::Display for ShownTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Target { scope, domain, .. } = &self.0;
        match scope {
            Scope::Descriptor => write!(f, "{domain} {}", self.descriptor()),
            Scope::Entry => write!(f, "{domain} --entry {}", self.descriptor()),
            Scope::Domain => write!(f, "domain {domain}"),
            Scope::StoreFailure => write!(f, "domain {domain} --on-store-failure"),
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(_) => f.write_str("***"),
            Self::Any => f.write_str("Any"),
            Self::Pattern(text) => text.fmt(f),
        }
    }
}

/// The entries of `key=value,key2=value2`. A key without a value stands for every value that the bare key of a rule
/// matches.
pub fn entries_of_text(text: &str) -> Result<Entries, String> {
    let entries = entries::parse(text)?.into_iter();
    Ok(entries.map(|(key, value)| (key.into(), Value::new(value.as_deref()))).collect())
}

/// The entries of `[{"key": …, "value": …}]`, or of `"key=value"`.
pub fn entries_of_json(json: Option<&Json>) -> Result<Entries, String> {
    let help = r#"expected [{"key": "…", "value": "…"}] or "key=value""#;
    match json {
        None => Err(format!("descriptor is missing; {help}")),
        Some(Json::String(text)) => entries_of_text(text).map_err(|error| format!("descriptor: {error}")),
        Some(Json::Array(items)) => {
            let entry = |(index, item)| entry_of_json(item, &format!("descriptor[{index}]"));
            items.iter().enumerate().map(entry).collect()
        }
        Some(other) => Err(format!("descriptor: {help}, got {}", cut_display(other))),
    }
}

/// The entry of `{"key": …, "value": …}`, or of `"key=value"`.
pub(super) fn entry_field(json: &Json) -> Result<Entries, String> {
    match json {
        Json::String(text) => entries_of_text(text).map_err(|error| format!("entry: {error}")),
        other => Ok(vec![entry_of_json(other, "entry")?]),
    }
}

fn entry_of_json(item: &Json, place: &str) -> Result<EntryOf, String> {
    let Json::Object(fields) = item else {
        let seen = cut_display(item);
        return Err(format!("{place}: expected an object with key and value, got {seen}"));
    };
    check_fields(fields, &format!("{place}: "), &["key", "value"])?;
    let text = |name| text_of(fields, &format!("{place}."), name);
    let key = text("key")?.ok_or_else(|| format!("{place}: key is missing"))?;
    Ok((key.into(), Value::new(text("value")?)))
}

pub(super) fn check_fields(fields: &Map<String, Json>, place: &str, known: &[&str]) -> Result<(), String> {
    let Some(name) = fields.keys().find(|name| !known.contains(&name.as_str())) else { return Ok(()) };
    let hint = match nearest(name, known.iter().copied()) {
        Some(meant) => format!("did you mean {meant:?}?"),
        None => format!("expected {}", known.join(", ")),
    };
    Err(format!("{place}unknown field {:?}; {hint}", cut(name)))
}

pub(super) fn field<'j>(fields: &'j Map<String, Json>, name: &str) -> Option<&'j Json> {
    fields.get(name).filter(|value| !value.is_null())
}

pub(super) fn text_of<'j>(
    fields: &'j Map<String, Json>,
    path: &str,
    name: &str,
) -> Result<Option<&'j str>, String> {
    let wrong = |seen| format!("{path}{name}: expected text in quotes, got {}", cut_display(seen));
    field(fields, name).map(|value| value.as_str().ok_or_else(|| wrong(value))).transpose()
}

pub(super) fn check_length(name: &str, text: &str) -> Result<(), String> {
    if text.len() <= MAX_BYTES {
        return Ok(());
    }
    Err(format!("{name} has {} bytes; the maximum is {MAX_BYTES}", text.len()))
}
