//! An override: its target, action and expiry; its JSON in the admin API; and that in the file and in Redis.

use std::{fmt, num::NonZeroU32, sync::Arc};

use serde_json::{Map, Value as Json, json};

use super::target::{
    Scope, ShownTarget, Target, check_fields, check_length, entries_of_json, entry_field, field, text_of,
};
use clock::Time;
use faults::OnStoreFailure;
use limit::{MAX_LIMIT, Unit, calendar::Calendar};
use rules::{CalendarField, CalendarMistake, WrittenCalendar};
use text::{cut, cut_display, spelling::nearest};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Override {
    pub target: Target,
    pub action: Action,
    /// The name of the only limit of the rule that a limit or a scale changes; `None` for all.
    pub limit_name: Option<Arc<str>>,
    /// The second at which it expires; `None` if it stays until it is removed.
    pub expires: Option<u32>,
    /// Why it was set; may be empty.
    pub reason: Box<str>,
    /// The user who set it; may be empty.
    pub by: Box<str>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Replaces the limits of the matching rule, or the one that the override names.
    Limit { requests_per_unit: u64, unit: Unit, calendar: Option<Calendar> },
    /// Every request is over limit, and nothing is counted.
    Block,
    /// No request is limited, and nothing is counted.
    Allow,
    /// Requests are counted by the rule and never over limit.
    Shadow,
    /// The limits of the matching rule, or the one that the override names, times this.
    Scale(Percent),
    /// The failure policy of a domain, whose requests are counted as always.
    OnStoreFailure(OnStoreFailure),
}

/// A part or a multiple, from 1% to 10,000%.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Percent(NonZeroU32);

impl Percent {
    const MOST: u32 = 10_000;

    /// Reads `50%`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('%').and_then(|number| number.trim().parse::<NonZeroU32>().ok());
        number.filter(|percent| percent.get() <= Self::MOST).map(Self).ok_or_else(|| {
            format!(
                "expected a whole number of percent from 1% to {}%, such as 50%, got {:?}",
                Self::MOST,
                cut(text)
            )
        })
    }

    /// This part of a number of requests, rounded up: half of a limit of 1 still admits a request.
    pub fn of(self, requests: u64) -> u64 {
        let part = (u128::from(requests) * u128::from(self.0.get())).div_ceil(100);
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

/// `50%`
impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

/// Maximum number of entries of a descriptor: each is a bit of a 32-bit mask.
pub const MAX_ENTRIES: usize = 32;

/// Maximum size of a domain, key, value or reason, in bytes.
pub const MAX_BYTES: usize = 4096;

/// Maximum size of the JSON of an override: twice its longest texts, and room for escapes. Parsed JSON takes up to 24 times
/// its size.
pub const MAX_JSON: usize = 1 << 20;

/// The last second at which an override can expire: the end of 2099.
const LAST_SECOND: u64 = 4_102_444_799;

const ON_STORE_FAILURE: &str = "on_store_failure";

/// The fields of JSON, and the columns of CSV, that are accepted.
pub(super) const INPUT_FIELDS: [&str; 15] = [
    "id",
    "domain",
    "descriptor",
    "entry",
    "action",
    "requests_per_unit",
    "unit",
    "calendar",
    "name",
    "scale",
    "expires_at",
    "reason",
    "by",
    "for",
    "force",
];

/// The fields that are written: all but `for`, which is converted to `expires_at`, and `force`.
pub const FIELDS: [&str; 13] = {
    let [written @ .., _, _] = INPUT_FIELDS;
    written
};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Input {
    pub one: Override,
    /// Set it even if no rule can meet it.
    pub force: bool,
    /// It has the identifier of its target, which only an export writes.
    pub is_exported: bool,
}

impl Action {
    /// The names of the actions on requests, in the order of [`index`](Self::index).
    pub const NAMES: [&str; 5] = ["limit", "block", "allow", "shadow", "scale"];

    /// `None` for a failure policy.
    pub const fn index(self) -> Option<usize> {
        match self {
            Self::Limit { .. } => Some(0),
            Self::Block => Some(1),
            Self::Allow => Some(2),
            Self::Shadow => Some(3),
            Self::Scale(_) => Some(4),
            Self::OnStoreFailure(_) => None,
        }
    }

    /// True if it changes the limits of a rule, so that what it changes has counters of its own where the rule's are shared.
    pub const fn changes_limits(self) -> bool {
        matches!(self, Self::Limit { .. } | Self::Scale(_))
    }

    /// True if it has a calendar whose windows depend on the release of the zone data.
    pub fn has_local_calendar(self) -> bool {
        matches!(self, Self::Limit { calendar: Some(calendar), .. } if calendar.is_local())
    }

    pub fn name(self) -> &'static str {
        self.index().map_or(ON_STORE_FAILURE, |index| Self::NAMES[index])
    }

    /// Adds the action, the limit that it changes and the expiry to the JSON of an override.
    pub fn add_to_json(self, limit_name: Option<&str>, expires: Option<u32>, fields: &mut Map<String, Json>) {
        let mut add = |name: &str, value: Json| fields.insert(name.to_owned(), value);
        match self {
            Self::OnStoreFailure(policy) => add(ON_STORE_FAILURE, policy.name().into()),
            _ => add("action", self.name().into()),
        };
        if let Self::Limit { requests_per_unit, unit, calendar } = self {
            add("requests_per_unit", requests_per_unit.into());
            add("unit", unit.name().into());
            if let Some(calendar) = calendar {
                add("calendar", json!(calendar));
            }
        }
        if let Self::Scale(percent) = self {
            add("scale", percent.to_string().into());
        }
        if let Some(name) = limit_name {
            add("name", name.into());
        }
        if let Some(end) = expires {
            add("expires_at", timestamp(end).into());
        }
    }
}

/// `limit 100 per minute`, `limit "burst": 100 per minute`, `scale "burst" to 50%`, `block`, `on store failure deny`.
pub fn in_words(action: Action, limit_name: Option<&str>) -> String {
    let named = |end: &str| limit_name.map(|name| format!(" {name:?}{end}")).unwrap_or_default();
    match action {
        Action::Limit { requests_per_unit, unit, calendar } => {
            let calendar = calendar.map(|calendar| calendar.to_string());
            format!("limit{} {}", named(":"), limit::in_words(requests_per_unit, unit, 1, calendar))
        }
        Action::Scale(percent) => format!("scale{} to {percent}", named("")),
        Action::OnStoreFailure(policy) => format!("on store failure {}", policy.name()),
        other => other.name().to_owned(),
    }
}

impl Override {
    pub fn is_over(&self, now: Time) -> bool {
        self.ended(now.seconds())
    }

    pub(super) fn ended(&self, second: u64) -> bool {
        self.expires.is_some_and(|end| second >= u64::from(end))
    }

    /// The memory that it takes behind an [`Arc`], in units of the allocator.
    pub(super) fn memory(&self) -> usize {
        let entries = self.target.entries();
        let texts =
            entries.iter().flat_map(|(key, value)| [key.len(), value.text().unwrap_or_default().len()]);
        let name = self.limit_name.as_ref().map_or(0, |name| name.len() + 2 * size_of::<usize>());
        let others = [self.target.domain().len(), self.reason.len(), self.by.len(), name];
        let own = [size_of::<Self>() + 2 * size_of::<usize>(), size_of_val(entries)];
        own.into_iter().chain(others).chain(texts).map(|bytes| bytes.next_multiple_of(8)).sum()
    }

    /// The policy, if it changes the failure policy of a domain.
    pub fn on_store_failure(&self) -> Option<OnStoreFailure> {
        match self.action {
            Action::OnStoreFailure(policy) => Some(policy),
            _ => None,
        }
    }

    /// The effect in a word or two: `limit 100 per minute`, `block`, `on store failure deny`.
    pub fn effect(&self) -> String {
        in_words(self.action, self.limit_name.as_deref())
    }

    pub fn to_json(&self) -> Json {
        self.to_json_as(&self.target.plain(), self.target.id())
    }

    /// The override as JSON, with its target and its identifier as they are shown.
    pub fn to_json_as(&self, shown: &ShownTarget, id: String) -> Json {
        self.with_target(shown.to_json(), id)
    }

    /// The JSON in the file and in Redis, which [`from_stored`](Self::from_stored) reads.
    pub(super) fn to_stored(&self) -> Json {
        self.with_target(self.target.to_stored(), self.target.id())
    }

    fn with_target(&self, mut fields: Map<String, Json>, id: String) -> Json {
        fields.insert("id".to_owned(), id.into());
        self.action.add_to_json(self.limit_name.as_deref(), self.expires, &mut fields);
        for (name, text) in [("reason", &self.reason), ("by", &self.by)] {
            if !text.is_empty() {
                fields.insert(name.to_owned(), (**text).into());
            }
        }
        Json::Object(fields)
    }

    /// Reads the JSON in the file and in Redis. Expired overrides are read as well.
    pub(super) fn from_stored(json: &Json) -> Result<Self, String> {
        let fields = object(json)?;
        let Some(policy) = text_of(fields, "", ON_STORE_FAILURE)? else {
            return Self::from_json(json, Time::default());
        };
        let mut others = fields.clone();
        others.remove(ON_STORE_FAILURE);
        others.insert("action".to_owned(), "allow".into());
        let one = Self::from_json(&Json::Object(others), Time::default())?;
        Ok(Self { action: policy_named(policy)?, ..one })
    }

    /// Reads an override from JSON. `for` is an alternative to `expires_at` and counts from `now`.
    pub fn from_json(json: &Json, now: Time) -> Result<Self, String> {
        let fields = object(json)?;
        check_fields(fields, "", &INPUT_FIELDS)?;
        let text = |name| text_of(fields, "", name);
        let domain = text("domain")?.ok_or("domain is missing; expected the domain of a rules file")?;
        let target = match (field(fields, "descriptor"), field(fields, "entry")) {
            (Some(_), Some(_)) => {
                return Err("descriptor and entry exclude each other; remove one".to_owned());
            }
            (None, Some(entry)) => Target::of_entry(domain, entry_field(entry)?)?,
            (descriptor, None) => Target::new(domain, entries_of_json(descriptor)?)?,
        };
        let action = action(fields)?;
        Self::from_fields(target, action, fields, now)
    }

    /// Reads a switch of a domain from JSON: `action`, which is allow or shadow, or `on_store_failure`.
    pub fn switch_from_json(json: &Json, now: Time) -> Result<Self, String> {
        let fields = object(json)?;
        check_fields(fields, "", &SWITCH_FIELDS)?;
        let text = |name| text_of(fields, "", name);
        let domain = text("domain")?.ok_or("domain is missing; expected the domain of a rules file")?;
        let (scope, action) = match (text("action")?, text(ON_STORE_FAILURE)?) {
            (Some(name), None) => (Scope::Domain, action_named(name).map_err(|_| SWITCHES.to_owned())?),
            (None, Some(name)) => (Scope::StoreFailure, policy_named(name)?),
            _ => return Err("expected either action or on_store_failure".to_owned()),
        };
        Self::from_fields(Target::of_domain(domain, scope)?, action, fields, now)
    }

    fn from_fields(
        target: Target,
        action: Action,
        fields: &Map<String, Json>,
        now: Time,
    ) -> Result<Self, String> {
        if target.scope() == Scope::Domain && !matches!(action, Action::Allow | Action::Shadow) {
            return Err(SWITCHES.to_owned());
        }
        let action = if target.scope() == Scope::StoreFailure { as_policy(action) } else { action };
        let text = |name| text_of(fields, "", name);
        let expires = expiry(text("expires_at")?, text("for")?, now)?;
        let reason = text("reason")?.unwrap_or_default();
        let by = text("by")?.unwrap_or_default();
        check_length("reason", reason)?;
        check_length("by", by)?;
        let limit_name = text("name")?.map(Arc::from);
        if limit_name.is_some() && !action.changes_limits() {
            return Err(format!("name: the action {} changes no limit; remove the field", action.name()));
        }
        check_length("name", limit_name.as_deref().unwrap_or_default())?;
        Ok(Self { target, action, limit_name, expires, reason: reason.into(), by: by.into() })
    }
}

impl Input {
    pub fn from_json(json: &Json, now: Time) -> Result<Self, String> {
        let one = Override::from_json(json, now)?;
        let is_exported = json["id"].as_str().is_some_and(|id| *id == one.target.id());
        Ok(Self { one, force: is_forced(json)?, is_exported })
    }
}

pub fn is_forced(json: &Json) -> Result<bool, String> {
    match &json["force"] {
        Json::Null => Ok(false),
        Json::Bool(force) => Ok(*force),
        other => Err(format!("force: expected true or false, got {}", cut_display(other))),
    }
}

const SWITCH_FIELDS: [&str; 10] = [
    "id",
    "domain",
    "action",
    ON_STORE_FAILURE,
    "expires_at",
    "for",
    "reason",
    "by",
    "force",
    "this_replica",
];

const SWITCHES: &str =
    "action: a domain can be switched to allow or shadow only; an override by entry blocks or limits";

fn object(json: &Json) -> Result<&Map<String, Json>, String> {
    json.as_object().ok_or_else(|| format!("expected an object, got {}", cut_display(json)))
}

/// The action of the fields, and its limit. Fields of another action are an error.
fn action(fields: &Map<String, Json>) -> Result<Action, String> {
    let name = text_of(fields, "", "action")?;
    let name = name.ok_or_else(|| format!("action is missing; expected {}", Action::NAMES.join(", ")))?;
    let requests = field(fields, "requests_per_unit").map(requests_per_unit).transpose()?;
    let (action, own): (Action, &[&str]) = match name {
        "limit" => (limit(fields, requests)?, &["requests_per_unit", "unit", "calendar"]),
        "scale" => (scale(fields)?, &["scale"]),
        other => (action_named(other)?, &[]),
    };
    let mut others = ["requests_per_unit", "unit", "calendar", "scale"].into_iter();
    match others.find(|name| !own.contains(name) && field(fields, name).is_some()) {
        None => Ok(action),
        Some("scale") => Err(format!("scale: expected the action scale, got {name}")),
        Some(field) => {
            Err(format!("{field}: the action {name} has no limit; remove the field, or use the action limit"))
        }
    }
}

/// The policy that the first builds stored as this action.
const fn as_policy(action: Action) -> Action {
    Action::OnStoreFailure(match action {
        Action::OnStoreFailure(policy) => policy,
        Action::Allow => OnStoreFailure::Allow,
        Action::Block => OnStoreFailure::Deny,
        Action::Shadow => OnStoreFailure::Error,
        Action::Limit { requests_per_unit: 1, .. } => OnStoreFailure::Share,
        Action::Limit { .. } | Action::Scale(_) => OnStoreFailure::Local,
    })
}

fn policy_named(name: &str) -> Result<Action, String> {
    let policy = OnStoreFailure::ALL.into_iter().find(|policy| policy.name() == name);
    policy.map(Action::OnStoreFailure).ok_or_else(|| {
        let expected = OnStoreFailure::ALL.map(OnStoreFailure::name).join(", ");
        format!("on_store_failure: expected {expected}, got {:?}", cut(name))
    })
}

/// An action without a limit.
fn action_named(name: &str) -> Result<Action, String> {
    match name {
        "block" => Ok(Action::Block),
        "allow" => Ok(Action::Allow),
        "shadow" => Ok(Action::Shadow),
        other => {
            let expected = Action::NAMES.join(", ");
            let hint = nearest(other, Action::NAMES).map_or(format!("expected {expected}"), |meant| {
                format!("did you mean {meant:?}? Expected {expected}")
            });
            Err(format!("action: unknown action {:?}; {hint}", cut(other)))
        }
    }
}

fn scale(fields: &Map<String, Json>) -> Result<Action, String> {
    let text =
        text_of(fields, "", "scale")?.ok_or("scale is missing; the action scale expects one, such as 50%")?;
    Percent::parse(text).map(Action::Scale).map_err(|error| format!("scale: {error}"))
}

fn limit(fields: &Map<String, Json>, requests_per_unit: Option<u64>) -> Result<Action, String> {
    let requests_per_unit = requests_per_unit.ok_or(
        "requests_per_unit is missing; the action limit expects a number of requests; 0 rejects every request",
    )?;
    let units = Unit::ALL.map(|unit| unit.name().to_ascii_lowercase()).join(", ");
    let unit = text_of(fields, "", "unit")?.ok_or_else(|| format!("unit is missing; expected {units}"))?;
    let unit = Unit::from_name(unit).ok_or_else(|| {
        let meant = Unit::from_abbreviation(unit).map(|unit| unit.name().to_ascii_lowercase());
        let hint = meant.map_or(String::new(), |meant| format!("did you mean {meant}? "));
        format!("unit: unknown unit {:?}; {hint}Expected {units}", cut(unit))
    })?;
    let calendar = field(fields, "calendar").map(|json| calendar_of_json(json, unit)).transpose()?;
    Ok(Action::Limit { requests_per_unit, unit, calendar })
}

/// The calendar of `{"time_zone": …, "week_start": …, "anchor_day": …}`, or of `"Europe/Berlin,anchor_day=15"`.
fn calendar_of_json(json: &Json, unit: Unit) -> Result<Calendar, String> {
    let written = match json {
        Json::String(text) => WrittenCalendar::parse(text).map_err(|error| format!("calendar: {error}"))?,
        Json::Object(fields) => {
            check_fields(fields, "calendar: ", &["time_zone", "week_start", "anchor_day"])?;
            let text = |name| text_of(fields, "calendar.", name);
            let day = field(fields, "anchor_day").map(|day| {
                let wrong = || format!("calendar.anchor_day: expected 1 to 31, got {}", cut_display(day));
                day.as_u64().ok_or_else(wrong)
            });
            let time_zone = text("time_zone")?;
            let week_start = text("week_start")?;
            WrittenCalendar { time_zone, week_start, anchor_day: day.transpose()? }
        }
        other => {
            let expected = r#"expected {"time_zone": "…"} or "Europe/Berlin,anchor_day=15""#;
            return Err(format!("calendar: {expected}, got {}", cut_display(other)));
        }
    };
    written.read(Some(unit)).map_err(|mistakes| {
        let texts = mistakes.iter().map(|CalendarMistake { field, message, help, .. }| match field {
            CalendarField::Unit => format!("unit: {message}; {help}"),
            _ => format!("calendar.{}: {message}; {help}", field.name()),
        });
        texts.collect::<Vec<_>>().join("; ")
    })
}

/// The second at which an override expires, from a timestamp or a duration.
pub fn expiry(at: Option<&str>, duration: Option<&str>, now: Time) -> Result<Option<u32>, String> {
    let (name, given, end) = match (at, duration) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => return Err("expires_at and for exclude each other; remove one".to_owned()),
        (Some(at), None) => ("expires_at", at, parse_timestamp(at)?),
        (None, Some(duration)) => {
            let seconds = text::duration::parse_with_days(duration)
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

fn requests_per_unit(json: &Json) -> Result<u64, String> {
    json.as_u64().filter(|number| *number <= MAX_LIMIT).ok_or_else(|| {
        let seen = cut_display(json);
        format!("requests_per_unit: expected an integer between 0 and {MAX_LIMIT}, got {seen}")
    })
}
