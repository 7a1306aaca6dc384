//! `/api/v1/overrides`: lists, sets and removes overrides; and `/api/v1/imports`: imports many at once.

use std::{
    io::{self, Write as _},
    sync::Arc,
};

use http::StatusCode;
use serde_json::{Map, Value as Json};

use super::{
    Api,
    counters::calendar,
    forecast,
    reply::{Call, Paper, Problem, Query, Reply},
    view,
};
use api::{ImportAborted, ImportBegun, ImportLength, Imported, LimitsInForce, OverrideRemoved};
use clock::{Clock, SystemClock, Time};
use fleet::Summary;
use limit::{Limit, Limits};
use limiter::Served;
use overrides::{
    Action, ChangeError, Durability, Found, Index, Input, Override, Scope, Target, Value, applies,
    model::is_forced, table::of_json_line, target::entries_of_text,
};
use rules::Rule;

/// The size at which a page ends, of overrides with long texts.
const MAX_PAGE_BYTES: usize = 4 << 20;

const MAX_ERRORS: usize = 10;

/// `GET /api/v1/overrides`.
pub(super) async fn list(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let query = &call.query;
    let text = |name| query.text(name).filter(|text| !text.is_empty());
    let entries_of = |name| {
        let entries = text(name).map(entries_of_text).transpose();
        entries.map_err(|error| Problem::bad_request(format!("{name}: {error}")))
    };
    let domain = text("domain");
    let action = text("action");
    let entries = entries_of("descriptor")?;
    let requested = entries_of("request")?;
    let is_wanted = |one: &Override| {
        domain.is_none_or(|domain| one.target.is_of_domain(domain))
            && entries.as_deref().is_none_or(|entries| one.target.entries() == entries)
            && requested.as_deref().is_none_or(|requested| one.target.may_match(requested))
            && action.is_none_or(|action| one.action.name() == action)
    };
    let names_values = entries.is_some() || requested.is_some();
    let wants_all = !names_values && domain.is_none() && action.is_none();
    let page = Page {
        most: query.number("n"),
        offset: query.number("offset"),
        is_wanted: if wants_all { None } else { Some(&is_wanted) },
        names_values,
    };
    page.reply(api)
}

/// A page of overrides, which may end before `most` of them. Their order is arbitrary, and stable while there are no
/// changes.
#[derive(Default)]
pub(super) struct Page<'a> {
    pub(super) most: usize,
    pub(super) offset: usize,
    /// Without a condition a page of a million is found without reading all.
    pub(super) is_wanted: Option<&'a dyn Fn(&Override) -> bool>,
    /// A caller that names a descriptor knows its values, which are not hidden then.
    pub(super) names_values: bool,
}

impl Page<'_> {
    pub(super) fn reply(&self, api: &Api) -> Result<Reply, Problem> {
        let mut page = Paper::new(&api.managed.replies);
        self.write(api, &mut page).map_err(|_| Problem::no_room())?;
        Ok(page.into())
    }

    fn write(&self, api: &Api, page: &mut Paper) -> io::Result<()> {
        let index = api.managed.keeper.index();
        let switches = index.switches().len();
        let total = index.len().saturating_sub(switches);
        let now = index.time(SystemClock.now());
        let is_filtered = switches > 0 || self.is_wanted.is_some();
        page.write_all(br#"{"overrides":["#)?;
        let mut found = 0_usize;
        let mut matching = 0_usize;
        for one in index.checkpoint().all() {
            let has_room = |found: usize, page: &Paper| found < self.most && page.len() < MAX_PAGE_BYTES;
            let is_switch = one.target.scope().is_switch();
            if !is_switch && self.is_wanted.is_none_or(|is_wanted| is_wanted(one)) && !one.is_over(now) {
                if matching >= self.offset && has_room(found, page) {
                    let comma = if found > 0 { "," } else { "" };
                    let json = if self.names_values { one.to_json() } else { json_of(api, one) };
                    write!(page, "{comma}{json}")?;
                    found += 1;
                }
                matching += 1;
            }
            if !is_filtered && !has_room(found, page) {
                break;
            }
        }
        let matching = if is_filtered { matching } else { total };
        let place = api.managed.keeper.storage();
        write!(page, r#"],"matching":{matching},"total":{total},"kept_in":"{place}"}}"#)
    }
}

/// `POST /api/v1/overrides`: sets an override, and replaces the one for the same target.
pub(super) async fn set(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let (one, effect) = asked(api, call).await?;
    let kept = api.managed.keeper.set(&one).await?;
    changed(api, &one, effect, kept)
}

/// `POST /api/v1/override-preview`: the reply to setting an override, which is not set.
pub(super) async fn preview(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let (one, mut effect) = asked(api, call).await?;
    if effect.warning.is_none() {
        effect.warning = forecast::misspelt(api, &one.target).await?;
    }
    let reply = effect.of(&one);
    Reply::json(api, &api::Override { forecast: forecast::of(api, one).await, ..reply })
}

/// The override that a call describes, and its effect.
async fn asked(api: &Api, call: &Call<'_>) -> Result<(Override, Effect), Problem> {
    let body: Json = call.json()?;
    let now = api.managed.keeper.index().time(SystemClock.now());
    let mut one = Override::from_json(&body, now).map_err(Problem::bad_request)?;
    one.by = by(call, &one.by);
    let is_forced = is_forced(&body).map_err(Problem::bad_request)?;
    // The summaries of others come from Redis, which may be away; a descriptor is compared with the rules alone.
    let recent = match one.target.scope() {
        Scope::Entry => api.keys_without_rule().await?,
        _ => Summary::default(),
    };
    let effect = effect(api, &one, &recent, is_forced)?;
    Ok((one, effect))
}

/// The reply to a change that sets an override, with its effect.
pub(super) fn changed(api: &Api, one: &Override, effect: Effect, kept: Durability) -> Result<Reply, Problem> {
    let mut reply = effect.of(one);
    let warnings: Vec<String> = reply.warning.take().into_iter().chain(owed(kept)).collect();
    reply.warning = Some(warnings.join("; ")).filter(|text| !text.is_empty());
    let end = reply.expires_at.as_ref().map(|end| format!(" until {end}"));
    let what = format!("{}, {}{}", shown_target(api, &one.target), one.effect(), end.unwrap_or_default());
    Ok(Reply::json(api, &reply)?.changed(what, &one.reason))
}

/// The warning about a change that is not stored.
pub(super) fn owed(kept: Durability) -> Option<String> {
    let text = "redis is away: the change is in force on this replica now, and on the others when redis is back; it is lost \
                if this replica ends before";
    (kept == Durability::Owed).then(|| text.to_owned())
}

/// The rule that an override applies to, a warning, and the limits before and after.
#[derive(Default)]
pub(super) struct Effect {
    rule: Option<String>,
    warning: Option<String>,
    limits: Option<[LimitsInForce; 2]>,
}

impl Effect {
    fn of(self, one: &Override) -> api::Override {
        let Self { rule, warning, limits } = self;
        let (before, after) = limits.map(|[before, after]| (before, after)).unzip();
        api::Override { rule, warning, before, after, ..as_api(one.to_json()) }
    }
}

/// The effect of an override.
///
/// # Errors
/// When no request can meet the override, unless it is forced, or when the rule's algorithm cannot have its limit.
pub(super) fn effect(api: &Api, one: &Override, recent: &Summary, force: bool) -> Result<Effect, Problem> {
    // Without rules nothing is known about requests.
    let Some(served) = api.managed.source.current() else { return Ok(Effect::default()) };
    let target = &one.target;
    match applies::check(one, &served.rules, |key| has_key(target, recent, key)) {
        Ok(effect) => {
            if let Some(why) = effect.rule.and_then(|rule| applies::too_large(one, rule)) {
                return Err(Problem::bad_request(why));
            }
            let limits =
                (target.scope() == Scope::Descriptor).then(|| limits(api, &served, one, effect.rule));
            let rule = effect.rule.map(|rule| rule.full_key.to_string());
            Ok(Effect { rule, warning: effect.warning, limits })
        }
        Err(why) if force => Ok(Effect { warning: Some(why), ..Effect::default() }),
        Err(why) => Err(Problem::needs_force(why)),
    }
}

/// What limits the descriptors of an override before and after it is set.
fn limits(api: &Api, served: &Served, one: &Override, rule: Option<&Rule>) -> [LimitsInForce; 2] {
    let index = api.managed.keeper.index();
    let now = SystemClock.now();
    let before = in_force_for(index, served, &one.target, now);
    let in_force = |one: Option<Arc<Override>>| {
        let found = one.map(|one| Found::new(one, index.time(now)));
        let replacing = found.as_ref().and_then(|found| api.managed.limiter.limits_under(found, rule, now));
        let action = found.as_ref().map(|found| found.action).filter(|action| !action.changes_limits());
        let own = rule.filter(|rule| !rule.overrides_only || found.is_some()).and_then(Rule::limits);
        let is_counted = !matches!(action, Some(Action::Block | Action::Allow));
        let limits = replacing.as_ref().or(own).filter(|_| is_counted).into_iter().flat_map(Limits::iter);
        LimitsInForce {
            action: action.map(|action| action.name().to_owned()),
            limits: limits.map(|limit| limit_shown(limit, now)).collect(),
        }
    };
    [in_force(before), in_force(Some(Arc::new(one.clone())))]
}

/// The override that decides for a target now: of one value, that which its requests meet, else that for the same target.
fn in_force_for(index: &Index, served: &Served, target: &Target, now: Time) -> Option<Arc<Override>> {
    fn exact((key, value): &(Box<str>, Value)) -> Option<(&str, &str)> {
        match value {
            Value::Exact(value) => Some((key, value)),
            Value::Any | Value::Pattern(_) => None,
        }
    }
    let Some(entries) = target.entries().iter().map(exact).collect::<Option<Vec<_>>>() else {
        return index.get(target).filter(|one| !one.is_over(index.time(now)));
    };
    view::deciding(index, served, target.domain(), &entries, now)
}

fn limit_shown(limit: &Limit, now: Time) -> api::Limit {
    let schedule = limit.scheduled(now).map(|in_force| in_force.words.to_string());
    let limit = limit.at(now);
    api::Limit {
        requests_per_unit: limit.requests_per_unit,
        unit: limit.unit.name().to_owned(),
        unit_multiplier: limit.multiplier.get().into(),
        calendar: limit.period().calendar().map(calendar),
        schedule,
        name: limit.name.as_deref().map(str::to_owned),
    }
}

/// True if one of the last requests without a rule to a domain of the target had this key.
fn has_key(target: &Target, recent: &Summary, key: &str) -> bool {
    let mut without_rule = recent.keys.iter().chain(&recent.unmatched);
    without_rule
        .any(|one| target.is_of_domain(&one.domain) && one.descriptor.iter().any(|entry| entry.key == key))
}

pub(super) async fn remove(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let keeper = &api.managed.keeper;
    let Some(one) = keeper.by_id(call.parameter) else {
        let message = format!("no override {:?}; GET /api/v1/overrides lists them", call.parameter);
        return Err(Problem::new(StatusCode::NOT_FOUND, message));
    };
    let kept = keeper.remove(&one.target).await?;
    let what = format!("{}, which was {}", shown_target(api, &one.target), one.effect());
    let removed = as_api(json_of(api, &one));
    Ok(Reply::json(api, &OverrideRemoved { removed, warning: owed(kept) })?
        .changed(what, call.query.needed("reason")))
}

/// A target for the log of changes, with its values by `KEY_VALUES`.
pub(super) fn shown_target(api: &Api, target: &Target) -> String {
    let values = api.managed.recent.values();
    target.shown(values).in_words()
}

/// An override with its values by `KEY_VALUES`, and the identifier by which it can be removed.
pub(super) fn json_of(api: &Api, one: &Override) -> Json {
    let target = one.target.shown(api.managed.recent.values());
    one.to_json_as(&target, api.managed.keeper.index().shown_id(&one.target))
}

/// An override from the JSON that it is stored as.
#[expect(clippy::expect_used, reason = "the crate `overrides` writes these fields")]
pub(super) fn as_api(json: Json) -> api::Override {
    serde_json::from_value(json).expect("an override has the fields of the API")
}

/// What an override does, without its target.
pub(super) fn effect_shown(action: Action, limit_name: Option<&str>, expires: Option<u32>) -> api::Override {
    let mut fields = Map::new();
    action.add_to_json(limit_name, expires, &mut fields);
    as_api(Json::Object(fields))
}

/// `POST /api/v1/imports`: begins an import. Nothing changes until it is committed.
pub(super) async fn begin(api: &Api, _: &Call<'_>) -> Result<Reply, Problem> {
    Reply::json(api, &ImportBegun { import: api.managed.keeper.begin_import()? })
}

/// `POST /api/v1/imports/{id}`: adds overrides to an import, as JSON lines.
pub(super) async fn add(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let keeper = &api.managed.keeper;
    let now = keeper.index().time(SystemClock.now());
    let all = read_lines(api, call, &api.keys_without_rule().await?, now)?;
    let overrides = keeper.add_to_import(call.parameter, &all, known_length(&call.query)).await?;
    Reply::json(api, &ImportLength { import: call.parameter.to_owned(), overrides })
}

/// The overrides of a body of JSON lines, or the first errors. One that an export wrote was accepted before.
fn read_lines(api: &Api, call: &Call<'_>, recent: &Summary, now: Time) -> Result<Vec<Override>, Problem> {
    let body = call.request.body();
    let text = std::str::from_utf8(body)
        .map_err(|error| Problem::bad_request(format!("the body is not UTF-8: {error}")))?;
    let by = by(call, "");
    let mut all = Vec::new();
    let mut errors = Vec::new();
    let mut needs_force = true;
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
                errors.push(problem.in_line(number));
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
    let imported = api.managed.keeper.commit_import(call.parameter, known_length(&call.query)).await?;
    let total = api.managed.keeper.index().len();
    let what = format!("{imported} override{}", if imported == 1 { "" } else { "s" });
    Ok(Reply::json(api, &Imported { imported, total })?.changed(what, call.query.needed("reason")))
}

/// The number of overrides that the caller has added to an import.
fn known_length(query: &Query<'_>) -> Option<u64> {
    query.text("overrides").map(|_| query.number("overrides") as u64)
}

pub(super) async fn abort(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    api.managed.keeper.abort_import(call.parameter).await?;
    Reply::json(api, &ImportAborted { aborted: call.parameter.to_owned() })
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
