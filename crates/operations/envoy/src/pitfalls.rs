//! Items of `rate_limits` that Envoy 1.40 accepts and does not send as their author meant. Each was seen with a real Envoy.

use super::{
    actions::{Context, FORMATTER_FLAG, has_command, is_at_end, literal_commands},
    config::{Remark, Scope},
    tree::Value,
};
use limiter::CLOSING_KEYS;
use text::diagnostics::Severity;

/// The filter state that becomes `hits_addend` of the request.
pub(super) const HITS_OF_REQUEST: &str = "envoy.ratelimit.hits_addend";

const FILTER_STATE: &str = ".set_filter_state.v3.Config";
const JWT_FILTER: &str = ".jwt_authn.v3.JwtAuthentication";
const EXTERNAL_FILTER: &str = ".ext_authz.v3.ExtAuthz";
const CLAIM: &str = ".jwt_claim.v3.Descriptor";
const EXPRESSION: &str = ".expr.v3.Descriptor";

/// The namespaces that the AI Protocol Manager and its filter `request_info` write by default.
const AI_NAMESPACES: [&str; 2] = ["envoy.ai.token_usage", "envoy.ai.request_info"];
const AI_MESSAGES: [&str; 2] = [".AiProtocolManager", ".RequestInfo"];

/// The namespace of the answers' metadata, unless the filter has a `metadata_namespace`.
const ANSWERS: &str = "envoy.filters.http.ratelimit";

/// What only a response has, as commands and as attributes of CEL.
const OF_RESPONSE: [&str; 6] = ["RESP(", "TRAILER(", "RESPONSE_", "BYTES_SENT", "response.", ".token_usage"];

/// True if one of the filters states the hits of the request.
pub(super) fn request_has_hits(before: &[Value<'_>]) -> bool {
    let mut keys = before.iter().flat_map(|filter| filter.messages(FILTER_STATE)).flat_map(|state| {
        state.list("on_request_headers").filter_map(|set| set.get("object_key").and_then(Value::text))
    });
    keys.any(|key| key == HITS_OF_REQUEST)
}

/// What Envoy refuses in an item of a filter's own `rate_limits`.
pub(super) fn of_filter_item(item: Value<'_>) -> Option<Remark> {
    let field = item.get("stage").or_else(|| item.get("disable_key"))?;
    let message = "Envoy refuses `stage` and `disable_key` in `rate_limits` of a filter";
    Some(Remark::new(Severity::Error, field, message, "remove them, or move the item to the route"))
}

pub(super) fn of_item<'t>(item: Value<'t>, scope: &Scope<'t, '_>, context: &Context<'t>) -> Vec<Remark> {
    let mut remarks = Vec::new();
    let rate = item.at(&["limit", "rate_limit"]);
    let has_unit = |rate: &Value<'_>| {
        rate.get("unit").and_then(Value::text).is_some_and(|unit| !matches!(unit, "UNKNOWN" | "0"))
    };
    if let Some(rate) = rate.filter(|rate| !has_unit(rate)) {
        let message = "a limit without `unit` is an error for each request: `unknown unit 0`";
        let help = "set `unit` to SECOND, MINUTE, HOUR, DAY, MONTH or YEAR";
        remarks.push(Remark::new(Severity::Error, rate, message, help));
    }
    if let Some(format) = item.at(&["hits_addend", "format"]) {
        remarks.extend(of_format(format, item, scope));
    }
    for action in item.list("actions") {
        let Some((name, fields)) = action.fields().find(|(name, _)| *name != "@type") else { continue };
        remarks.extend(of_texts(action, fields, context));
        match name {
            "request_headers" | "requestHeaders" => remarks.extend(of_header(fields)),
            "metadata" | "dynamic_metadata" | "dynamicMetadata" => {
                remarks.extend(of_metadata(fields, item, scope));
            }
            "extension" => {
                remarks.extend(fields.get("typed_config").and_then(|typed| of_extension(typed, item, scope)));
            }
            _ => {}
        }
    }
    remarks
}

fn warning(at: Value<'_>, message: impl Into<String>, help: &'static str) -> Remark {
    Remark::new(Severity::Warning, at, message, help)
}

fn of_format(format: Value<'_>, item: Value<'_>, scope: &Scope<'_, '_>) -> Option<Remark> {
    let text = format.text()?;
    if let Some(namespace) =
        ai_namespaces(scope).find(|name| text.contains(&format!("DYNAMIC_METADATA({name}")))
    {
        return Some(typed(format, namespace));
    }
    if text.contains(".max_output_tokens") && !text.contains("has(") {
        let message = "`max_output_tokens` is 0 in a request that does not state it, which reserves nothing";
        return Some(warning(format, message, "test it with `has(…)`: docs/guide/budgets.md#without-lua"));
    }
    before_response(format, item)
}

/// Reports what has no value before the response.
fn before_response(text: Value<'_>, item: Value<'_>) -> Option<Remark> {
    let is_of_response = |text: &str| OF_RESPONSE.iter().any(|name| text.contains(name));
    if is_at_end(item) || !text.text().is_some_and(is_of_response) {
        return None;
    }
    let message = "this has no value before the response, so the descriptor is never sent or counts 0 hits";
    Some(warning(text, message, "set `apply_on_stream_done: true`"))
}

/// Reports commands that Envoy sends as they are written.
fn of_texts(action: Value<'_>, fields: Value<'_>, context: &Context<'_>) -> Vec<Remark> {
    let mut remarks = Vec::new();
    if let Some(value) = literal_commands(action, context) {
        let message = format!(
            "Envoy sends the text `{}` for every request, without the runtime flag `{FORMATTER_FLAG}`",
            value.text().unwrap_or_default()
        );
        let help = "use `request_headers` for a header, or set the flag in `layered_runtime`";
        remarks.push(warning(value, message, help));
    }
    for holder in [Some(fields), fields.get("typed_config")].into_iter().flatten() {
        for name in ["default_value", "descriptor_key"] {
            let value = holder.get(name).and_then(|value| Some((value, value.text()?)));
            if let Some((value, text)) = value.filter(|(_, text)| has_command(text)) {
                let message = format!("Envoy sends the text `{text}` as it is: `{name}` has no commands");
                remarks.push(warning(value, message, "write a constant, or use `descriptor_value`"));
            }
        }
    }
    remarks
}

fn of_header(fields: Value<'_>) -> Option<Remark> {
    let path = fields.get("header_name").filter(|header| header.text() == Some(":path"))?;
    let message = "`:path` contains the query, so `?x=1` evades a limit per path";
    let help = "limit a path without its query: docs/reference/envoy.md#per-path-without-its-query";
    Some(warning(path, message, help))
}

fn of_metadata(fields: Value<'_>, item: Value<'_>, scope: &Scope<'_, '_>) -> Option<Remark> {
    let text = |field| fields.get(field).and_then(Value::text);
    if text("source") == Some("CLUSTER_LOCALITY_ENTRY") && !is_at_end(item) {
        let message = "Envoy knows no locality before it has chosen a host, so its metadata is absent";
        return Some(warning(fields, message, "set `apply_on_stream_done: true`, or use CLUSTER_ENTRY"));
    }
    let namespace = fields.at(&["metadata_key", "key"]).and_then(Value::text)?;
    if let Some(namespace) = ai_namespaces(scope).find(|name| *name == namespace) {
        return Some(typed(fields, namespace));
    }
    let key = text("descriptor_key").filter(|key| CLOSING_KEYS.contains(key))?;
    let answers = scope.config.get("metadata_namespace").and_then(Value::text).unwrap_or(ANSWERS);
    if namespace != answers {
        let message = format!(
            "the id of a hold is in the metadata `{answers}`, not in `{namespace}`: no hold is settled, and all expire"
        );
        return Some(warning(
            fields,
            message,
            "set `key` of `metadata_key` to the filter's `metadata_namespace`",
        ));
    }
    let [settle, _] = CLOSING_KEYS;
    (key == settle && item.get("hits_addend").is_none()).then(|| {
        let message = "`hold_settle` without a `hits_addend` is an end, which charges what `unknown` says";
        warning(fields, message, "add the cost as `hits_addend`: docs/guide/budgets.md#with-envoy")
    })
}

fn of_extension(typed: Value<'_>, item: Value<'_>, scope: &Scope<'_, '_>) -> Option<Remark> {
    if typed.is(CLAIM) {
        return of_claim(typed, scope);
    }
    let expression = typed.get("text").filter(|_| typed.is(EXPRESSION))?;
    let text = expression.text()?;
    if ["' +", "'+", "+ '", "+'", "\" +", "\"+", "+ \"", "+\""].iter().any(|sum| text.contains(sum)) {
        let message = "Envoy's CEL does not concatenate texts, so the descriptor is never sent";
        return Some(warning(expression, message, "add an entry for each text"));
    }
    before_response(expression, item)
}

/// Reports a token that nobody verifies, or that is gone when its claim is read.
fn of_claim(claim: Value<'_>, scope: &Scope<'_, '_>) -> Option<Remark> {
    let filters = |message| scope.before.iter().flat_map(move |filter| filter.messages(message));
    let help = "put `envoy.filters.http.jwt_authn` with `forward: true` before: docs/reference/envoy-recipes.md#per-claim-of-a-jwt";
    if filters(JWT_FILTER).chain(filters(EXTERNAL_FILTER)).next().is_none() {
        let message = "no filter before verifies this token, so clients choose their counters";
        return Some(warning(claim, message, help));
    }
    let header = claim.get("header_name")?.text()?;
    let providers = filters(JWT_FILTER).filter_map(|filter| filter.get("providers"));
    let mut removing = providers.flat_map(Value::fields).filter(|(_, provider)| {
        let mut named = provider.list("from_headers").filter_map(|from| from.get("name")?.text()).peekable();
        let reads = match named.peek() {
            Some(_) => named.any(|name| name.eq_ignore_ascii_case(header)),
            None => header.eq_ignore_ascii_case("authorization"),
        };
        reads && !provider.get("forward").is_some_and(Value::flag)
    });
    removing.next().map(|(name, provider)| {
        let message = format!(
            "`jwt_authn` removes `{header}` for the provider `{name}`, so the descriptor is never sent"
        );
        warning(provider, message, "set `forward: true` of the provider")
    })
}

/// The namespaces of typed metadata of language models.
fn ai_namespaces<'t>(scope: &Scope<'t, '_>) -> impl Iterator<Item = &'t str> {
    let messages = |message| scope.before.iter().flat_map(move |filter| filter.messages(message));
    let mut own = Vec::new();
    for message in AI_MESSAGES.into_iter().flat_map(messages) {
        message.walk(&mut |value| own.extend(value.get("metadata_namespace").and_then(Value::text)));
    }
    AI_NAMESPACES.into_iter().chain(own)
}

fn typed(at: Value<'_>, namespace: &str) -> Remark {
    let message = format!(
        "`{namespace}` is typed metadata, which only CEL reads in Envoy 1.40, so the descriptor is never sent"
    );
    let help =
        "write `%CEL(metadata.typed_filter_metadata['NAMESPACE'].FIELD)%`: docs/guide/budgets.md#without-lua";
    warning(at, message, help)
}
