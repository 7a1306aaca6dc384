//! `/api/v1/overrides`: what operators set while the service runs; and `/api/v1/imports`: many at once.

use http::StatusCode;
use serde_json::{Value as Json, json};

use super::{
    Api,
    reply::{Call, Problem, Reply},
};
use crate::{
    clock::{Clock, SystemClock},
    overrides::{
        Action, ChangeError, Override, Target, applies, model::entries_of_text, table::of_json_line,
    },
    panics::{self, Boundary, Panicked},
};

/// Overrides in one reply, unless another number is asked for.
const PAGE: usize = 1_000;

/// The most overrides in one reply.
const MAX_PAGE: usize = 10_000;

/// Mistakes that one reply has.
const MAX_MISTAKES: usize = 10;

/// `GET /api/v1/overrides`: some of the overrides, in no particular order that stays while there are no changes.
pub(super) async fn list(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
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
    let (entries, asked) = (parsed("descriptor")?, parsed("request")?);
    let index = api.options.shown.keeper.index().clone();
    let total = index.len();
    let matches = move |one: &Override| {
        domain.as_deref().is_none_or(|domain| one.target.domain() == domain)
            && entries.as_deref().is_none_or(|entries| one.target.entries() == entries)
            && asked.as_deref().is_none_or(|asked| one.target.may_match(asked))
            && action.as_deref().is_none_or(|action| one.action.name() == action)
    };
    let now = SystemClock.now();
    // Without a condition every override matches, so that a few of a million are found without looking at all.
    let is_filtered =
        ["domain", "descriptor", "request", "action"].iter().any(|name| query.text(name).is_some());
    let (found, matching) = apart(move || {
        let (mut found, mut matching) = (Vec::new(), 0_usize);
        index.for_each(|one| {
            if matches(&one) && !one.is_over(now) {
                if matching >= offset && found.len() < count {
                    found.push(one.to_json());
                }
                matching = matching.saturating_add(1);
            }
            is_filtered || found.len() < count
        });
        (found, if is_filtered { matching } else { total })
    })
    .await?;
    let place = api.options.shown.keeper.place();
    Reply::json(&json!({"overrides": found, "matching": matching, "total": total, "kept_in": place}))
}

/// `POST /api/v1/overrides`: sets an override, in place of the one for the same descriptor.
pub(super) async fn set(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let body: Json = call.json()?;
    let mut one = Override::from_json(&body, SystemClock.now()).map_err(Problem::bad_request)?;
    one.by = by(call, &one.by);
    api.options.shown.keeper.set(&one).await?;
    let mut reply = one.to_json();
    add_rule(&mut reply, api, &one.target);
    let end = reply.get("expires_at").and_then(Json::as_str).map(|end| format!(" until {end}"));
    let what = format!("{}: {}{}", one.target, one.action, end.unwrap_or_default());
    Ok(Reply::json(&reply)?.changed(what, reason(&one.reason)))
}

/// `DELETE /api/v1/overrides/{id}`: removes an override.
pub(super) async fn remove(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let query = call.query(&["reason"])?;
    let (keeper, id) = (api.options.shown.keeper.clone(), call.parameter.to_owned());
    let found = apart(move || keeper.by_id(&id)).await?;
    let Some(one) = found else {
        let message = format!("no override {:?}; GET /api/v1/overrides lists them", call.parameter);
        return Err(Problem::new(StatusCode::NOT_FOUND, message));
    };
    api.options.shown.keeper.remove(&one.target).await?;
    let what = format!("{}: {}", one.target, one.action);
    Ok(Reply::json(&json!({"removed": one.to_json()}))?
        .changed(what, reason(query.text("reason").unwrap_or_default())))
}

/// `POST /api/v1/imports`: begins an import. Nothing changes until it is put in force.
pub(super) fn begin(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    call.query(&[])?;
    let import = api.options.shown.keeper.begin_import()?;
    Reply::json(&json!({"import": import}))
}

/// `POST /api/v1/imports/{id}`: adds overrides to an import, a line of JSON each.
pub(super) async fn add(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    call.query(&[])?;
    let keeper = &api.options.shown.keeper;
    let (body, by) = (call.request.body().clone(), by(call, ""));
    let now = SystemClock.now();
    let read = apart(move || {
        let text = std::str::from_utf8(&body).map_err(|error| format!("the body is not UTF-8: {error}"))?;
        let (mut all, mut mistakes) = (Vec::new(), Vec::new());
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
            match of_json_line(line, now) {
                Ok(one) if one.by.is_empty() => all.push(Override { by: by.clone(), ..one }),
                Ok(one) => all.push(one),
                Err(error) => mistakes.push(format!("line {number}: {error}")),
            }
            if mistakes.len() >= MAX_MISTAKES {
                break;
            }
        }
        if mistakes.is_empty() { Ok(all) } else { Err(mistakes.join("; ")) }
    });
    let all = read.await?.map_err(Problem::bad_request)?;
    let length = keeper.add_to_import(call.parameter, &all).await?;
    Reply::json(&json!({"import": call.parameter, "overrides": length}))
}

/// `PUT /api/v1/imports/{id}`: puts an import in force, all of it at one time.
pub(super) async fn commit(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let query = call.query(&["reason"])?;
    let imported = api.options.shown.keeper.commit_import(call.parameter).await?;
    let total = api.options.shown.keeper.index().len();
    let what = format!("{imported} overrides imported");
    let reason = reason(query.text("reason").unwrap_or_default());
    Ok(Reply::json(&json!({"imported": imported, "total": total}))?.changed(what, reason))
}

/// `DELETE /api/v1/imports/{id}`: forgets an import.
pub(super) async fn abort(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    call.query(&[])?;
    api.options.shown.keeper.abort_import(call.parameter).await?;
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

/// Adds the rule that an override applies to, or a warning that there is none.
fn add_rule(reply: &mut Json, api: &Api, target: &Target) {
    let Some(served) = api.options.shown.source.current() else { return };
    let (name, value) = match applies::rule(target, &served.rules) {
        Ok(rule) => ("rule", rule.full_key.to_string()),
        Err(warning) => ("warning", warning),
    };
    if let Some(fields) = reply.as_object_mut() {
        fields.insert(name.to_owned(), value.into());
    }
}

/// Who sets an override: who calls, and whom the call names.
fn by(call: &Call<'_>, named: &str) -> Box<str> {
    let caller = call.who.name();
    if named.is_empty() { caller.into() } else { format!("{named} ({caller})").into() }
}

pub(super) fn reason(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// Does work that takes long on a thread of its own.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    let done = tokio::task::spawn_blocking(move || panics::catch(Boundary::HttpRequest, work)).await;
    match done {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(Panicked)) | Err(_) => {
            Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error; the log has the details"))
        }
    }
}
