//! `/api/v1/overrides`: lists, sets and removes overrides; and `/api/v1/imports`: imports many at once.

use http::StatusCode;
use serde_json::{Value as Json, json};

use super::{
    Api,
    reply::{Body, Call, Problem, Query, Reply},
};
use clock::{Clock, SystemClock, Time};
use fleet::Summary;
use overrides::{
    Action, ChangeError, Input, Override, Target, applies, model::is_forced, table::of_json_line,
    target::entries_of_text,
};
use recent::{KeyValues, shown};

/// The default number of overrides in one reply.
const PAGE: usize = 1_000;

const MAX_PAGE: usize = 10_000;

/// The size at which a page ends, of overrides with long texts.
const MAX_PAGE_BYTES: usize = 4 << 20;

const MAX_ERRORS: usize = 10;

/// `GET /api/v1/overrides`: a page of the overrides, which may end before `n` of them. Their order is arbitrary, and stable while there are no changes.
pub(super) fn list(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let query = call.query(&["domain", "descriptor", "request", "action", "n", "offset"])?;
    let (count, offset) =
        (query.number("n", PAGE, 1..=MAX_PAGE)?, query.number("offset", 0, 0..=usize::MAX)?);
    let text = |name| query.text(name).filter(|text| !text.is_empty()).map(str::to_owned);
    let (domain, action) = (text("domain"), text("action"));
    if let Some(action) = action.as_deref().filter(|action| !Action::NAMES.contains(action)) {
        let expected = Action::NAMES.join(", ");
        return Err(Problem::bad_request(format!("action={action:?}: expected {expected}")));
    }
    let parsed = |name| {
        let entries = text(name).map(|text| entries_of_text(&text)).transpose();
        entries.map_err(|error| Problem::bad_request(format!("{name}: {error}")))
    };
    let (entries, requested) = (parsed("descriptor")?, parsed("request")?);
    let index = api.managed.keeper.index();
    let switches = index.switches().len();
    let total = index.len().saturating_sub(switches);
    let matches = |one: &Override| {
        !one.target.scope().is_switch()
            && domain.as_deref().is_none_or(|domain| one.target.is_of_domain(domain))
            && entries.as_deref().is_none_or(|entries| one.target.entries() == entries)
            && requested.as_deref().is_none_or(|requested| one.target.may_match(requested))
            && action.as_deref().is_none_or(|action| one.action.name() == action)
    };
    let now = index.time(SystemClock.now());
    // A caller that names a descriptor knows its values.
    let names_values = ["descriptor", "request"].iter().any(|name| text(name).is_some());
    let values = if names_values { KeyValues::Plain } else { api.managed.recent.values() };
    // Without a condition every override matches, so that a page of a million is found without reading all.
    let is_filtered = switches > 0
        || ["domain", "descriptor", "request", "action"].iter().any(|name| query.text(name).is_some());
    let (mut page, mut found, mut matching) = (br#"{"overrides":["#.to_vec(), 0_usize, 0_usize);
    index.for_each(|one| {
        if matches(one) && !one.is_over(now) {
            if matching >= offset && found < count && page.len() < MAX_PAGE_BYTES {
                page.extend_from_slice(if found > 0 { b"," } else { b"" });
                page.extend_from_slice(json_of(one, values).to_string().as_bytes());
                found += 1;
            }
            matching += 1;
        }
        is_filtered || found < count && page.len() < MAX_PAGE_BYTES
    });
    let matching = if is_filtered { matching } else { total };
    let place = api.managed.keeper.storage();
    page.extend_from_slice(
        format!(r#"],"matching":{matching},"total":{total},"kept_in":"{place}"}}"#).as_bytes(),
    );
    Ok(Reply { body: Body::Json(page.into()), change: None })
}

/// `POST /api/v1/overrides`: sets an override, and replaces the one for the same target.
pub(super) async fn set(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let body: Json = call.json()?;
    let now = api.managed.keeper.index().time(SystemClock.now());
    let mut one = Override::from_json(&body, now).map_err(Problem::bad_request)?;
    one.by = by(call, &one.by);
    let is_forced = is_forced(&body).map_err(Problem::bad_request)?;
    let effect = effect(api, &one, &api.keys_without_rule().await?, is_forced)?;
    api.managed.keeper.set(&one).await?;
    changed(api, &one, effect)
}

/// The reply to a change that sets an override, with its effect.
pub(super) fn changed(
    api: &Api,
    one: &Override,
    effect: Vec<(&'static str, String)>,
) -> Result<Reply, Problem> {
    let mut reply = one.to_json();
    for (name, value) in effect {
        reply[name] = value.into();
    }
    let end = reply.get("expires_at").and_then(Json::as_str).map(|end| format!(" until {end}"));
    let what = format!("{}, {}{}", shown_target(api, &one.target), one.effect(), end.unwrap_or_default());
    Ok(Reply::json(&reply)?.changed(what, &one.reason))
}

/// The rule that an override applies to and a warning, as members of a reply.
///
/// # Errors
/// When no request can meet the override, unless it is forced, or when the rule's algorithm cannot have its limit.
pub(super) fn effect(
    api: &Api,
    one: &Override,
    recent: &Summary,
    force: bool,
) -> Result<Vec<(&'static str, String)>, Problem> {
    // Without rules nothing is known about requests.
    let Some(served) = api.managed.source.current() else { return Ok(Vec::new()) };
    let target = &one.target;
    match applies::check(target, &served.rules, |key| has_key(target, recent, key)) {
        Ok(effect) => {
            if let Some(why) = effect.rule.and_then(|rule| applies::too_large(one.action, rule)) {
                return Err(Problem::bad_request(why));
            }
            let rule = effect.rule.map(|rule| ("rule", rule.full_key.to_string()));
            Ok(rule.into_iter().chain(effect.warning.map(|warning| ("warning", warning))).collect())
        }
        Err(why) if force => Ok(vec![("warning", why)]),
        Err(why) => Err(Problem::needs_force(why)),
    }
}

/// True if one of the last requests without a rule to a domain of the target had this key.
fn has_key(target: &Target, recent: &Summary, key: &str) -> bool {
    let mut without_rule = recent.keys.iter().chain(&recent.unmatched);
    without_rule
        .any(|one| target.is_of_domain(&one.domain) && one.descriptor.iter().any(|entry| entry.key == key))
}

pub(super) async fn remove(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let query = call.query(&["reason"])?;
    let keeper = &api.managed.keeper;
    let Some(one) = keeper.by_id(call.parameter) else {
        let message = format!("no override {:?}; GET /api/v1/overrides lists them", call.parameter);
        return Err(Problem::new(StatusCode::NOT_FOUND, message));
    };
    keeper.remove(&one.target).await?;
    let what = format!("{}, which was {}", shown_target(api, &one.target), one.effect());
    let reason = query.text("reason").unwrap_or_default();
    let removed = json_of(&one, api.managed.recent.values());
    Ok(Reply::json(&json!({"removed": removed}))?.changed(what, reason))
}

/// A target for the log of changes, with its values by `KEY_VALUES`.
pub(super) fn shown_target(api: &Api, target: &Target) -> String {
    let values = api.managed.recent.values();
    target.with_values(|value| shown(value, values).into_owned()).in_words()
}

/// An override with its values by `KEY_VALUES`, and the identifier by which it can be removed.
fn json_of(one: &Override, values: KeyValues) -> Json {
    match values {
        KeyValues::Plain => one.to_json(),
        _ => one.to_json_as(&one.target.with_values(|value| shown(value, values).into_owned())),
    }
}

/// `POST /api/v1/imports`: begins an import. Nothing changes until it is committed.
pub(super) fn begin(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    call.query(&[])?;
    let import = api.managed.keeper.begin_import()?;
    Reply::json(&json!({"import": import}))
}

/// `POST /api/v1/imports/{id}`: adds overrides to an import, as JSON lines.
pub(super) async fn add(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let known = known_length(&call.query(&["overrides"])?)?;
    let keeper = &api.managed.keeper;
    let now = keeper.index().time(SystemClock.now());
    let all = read_lines(api, call, &api.keys_without_rule().await?, now)?;
    let length = keeper.add_to_import(call.parameter, &all, known).await?;
    Reply::json(&json!({"import": call.parameter, "overrides": length}))
}

/// The overrides of a body of JSON lines, or the first errors. One that an export wrote was accepted before.
fn read_lines(api: &Api, call: &Call<'_>, recent: &Summary, now: Time) -> Result<Vec<Override>, Problem> {
    let body = call.request.body();
    let text = std::str::from_utf8(body)
        .map_err(|error| Problem::bad_request(format!("the body is not UTF-8: {error}")))?;
    let by = by(call, "");
    let (mut all, mut errors, mut needs_force) = (Vec::new(), Vec::new(), true);
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let read = of_json_line(line, now).map_err(Problem::bad_request);
        let admitted = read.and_then(|Input { one, force, is_exported }| {
            if !is_exported {
                effect(api, &one, recent, force)?;
            }
            Ok(one)
        });
        match admitted {
            Ok(one) if one.by.is_empty() => all.push(Override { by: by.clone(), ..one }),
            Ok(one) => all.push(one),
            Err(problem) => {
                needs_force &= problem.needs_force;
                errors.push(format!("line {number}: {}", problem.message));
            }
        }
        if errors.len() >= MAX_ERRORS {
            break;
        }
    }
    if errors.is_empty() {
        return Ok(all);
    }
    let problem = if needs_force { Problem::needs_force } else { Problem::bad_request };
    Err(problem(errors.join("; ")))
}

/// `PUT /api/v1/imports/{id}`: commits an import, all of it at once.
pub(super) async fn commit(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let query = call.query(&["reason", "overrides"])?;
    let known = known_length(&query)?;
    let imported = api.managed.keeper.commit_import(call.parameter, known).await?;
    let total = api.managed.keeper.index().len();
    let what = format!("{imported} override{}", if imported == 1 { "" } else { "s" });
    let reason = query.text("reason").unwrap_or_default();
    Ok(Reply::json(&json!({"imported": imported, "total": total}))?.changed(what, reason))
}

/// The number of overrides that the caller has added to an import.
fn known_length(query: &Query<'_>) -> Result<Option<u64>, Problem> {
    let length = query.text("overrides").map(|_| query.number("overrides", 0, 0..=usize::MAX)).transpose()?;
    Ok(length.map(|length| length as u64))
}

pub(super) async fn abort(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    call.query(&[])?;
    api.managed.keeper.abort_import(call.parameter).await?;
    Reply::json(&json!({"aborted": call.parameter}))
}

impl From<ChangeError> for Problem {
    fn from(error: ChangeError) -> Self {
        let (status, message) = match error {
            ChangeError::Invalid(message) => (StatusCode::BAD_REQUEST, message),
            ChangeError::NotFound(message) => (StatusCode::NOT_FOUND, message),
            ChangeError::Conflict(message) => (StatusCode::CONFLICT, message),
            ChangeError::Unavailable(message) => (StatusCode::SERVICE_UNAVAILABLE, message),
        };
        Self::new(status, message)
    }
}

/// The author of an override: the caller, after the name that the call gives.
pub(super) fn by(call: &Call<'_>, named: &str) -> Box<str> {
    let caller = call.who.name();
    if named.is_empty() { caller.into() } else { format!("{named} ({caller})").into() }
}
