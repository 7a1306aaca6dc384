//! An item of Envoy's `rate_limits`, as a replay computes its descriptor.

use std::net::IpAddr;

use super::{actions::snake_case, matches, tree::Value};
use ::replay::{
    Parts,
    envoy::{Action, Descriptor, Entry, HitsAddend},
};

/// What decides about the values of actions beside the request.
pub(super) struct Surroundings<'t> {
    pub(super) own_cluster: &'t str,
    /// The cluster of the route, unless requests choose it.
    pub(super) cluster: Option<&'t str>,
    /// Operators in `descriptor_value` are filled in.
    pub(super) fills_values: bool,
}

/// The actions that Envoy knows.
const ACTIONS: [&str; 13] = [
    "generic_key",
    "request_headers",
    "query_parameters",
    "remote_address",
    "masked_remote_address",
    "remote_address_match",
    "source_cluster",
    "destination_cluster",
    "header_value_match",
    "query_parameter_value_match",
    "metadata",
    "dynamic_metadata",
    "extension",
];

pub(super) fn descriptor(item: Value<'_>, surroundings: &Surroundings<'_>, without_hits: bool) -> Descriptor {
    let mut actions: Vec<(&'static str, Action)> = Vec::new();
    for action in item.list("actions") {
        match action.fields().find(|(name, _)| *name != "@type") {
            Some((name, fields)) => {
                let name = snake_case(name);
                let shown = ACTIONS.into_iter().find(|known| *known == name).unwrap_or("an unknown one");
                actions.push((shown, self::action(&name, fields, surroundings)));
            }
            None => actions.push(("an empty one", Action::Untold("a known action".to_owned()))),
        }
    }
    if item.get("limit").is_some() {
        actions.push(("limit", Action::Untold("dynamic metadata".to_owned())));
    }
    if item.get("disable_key").is_some() {
        actions.push(("disable_key", Action::Untold("Envoy's runtime".to_owned())));
    }
    let addend = item.get("hits_addend").filter(|_| !without_hits);
    let format = addend.and_then(|addend| addend.get("format")?.text()).filter(|format| !format.is_empty());
    let number = addend.and_then(|addend| addend.get("number")?.text()?.parse().ok());
    let hits = match (format.map(str::parse), number) {
        (Some(Ok(parts)), _) => HitsAddend::Format(parts),
        (Some(Err(error)), _) => {
            actions.push(("hits_addend", Action::Untold(error)));
            HitsAddend::One
        }
        (None, Some(number)) => HitsAddend::Number(number),
        (None, None) => HitsAddend::One,
    };
    let is_refund = addend.is_some_and(|addend| addend.get("is_negative_hits").is_some_and(Value::flag));
    Descriptor { actions, hits, is_refund }
}

fn action(name: &str, fields: Value<'_>, surroundings: &Surroundings<'_>) -> Action {
    let text = |field: &str| fields.get(field).and_then(Value::text).unwrap_or_default().to_owned();
    let key = |default: &str| {
        Some(text("descriptor_key")).filter(|key| !key.is_empty()).unwrap_or(default.to_owned())
    };
    let skips = || fields.get("skip_if_absent").is_some_and(Value::flag);
    let expected = || fields.get("expect_match").is_none_or(Value::flag);
    let entry =
        |default: &str| entry(key(default), &text("descriptor_value"), text("default_value"), surroundings);
    let untold = |needs: String| Action::Untold(needs);
    match name {
        "generic_key" => entry("generic_key").map_or_else(untold, Action::Constant),
        "request_headers" => {
            let name = text("header_name").to_ascii_lowercase();
            Action::Header { key: key(""), name, skip_if_absent: skips() }
        }
        "query_parameters" => {
            let name = text("query_parameter_name");
            Action::QueryParameter { key: key(""), name, skip_if_absent: skips() }
        }
        "remote_address" => Action::RemoteAddress,
        "masked_remote_address" => {
            let length = |field: &str, longest| {
                let written = fields.get(field).and_then(Value::text).and_then(|text| text.parse().ok());
                written.unwrap_or(longest)
            };
            let lengths = (length("v4_prefix_mask_len", 32), length("v6_prefix_mask_len", 128));
            Action::MaskedRemoteAddress(lengths.0, lengths.1)
        }
        "remote_address_match" => {
            let ranges = ranges(fields.get("address_matcher"));
            let inverted = fields.at(&["address_matcher", "invert_match"]).is_some_and(Value::flag);
            let action = entry("remote_address_match")
                .and_then(|entry| Ok(Action::RemoteAddressMatch { entry, ranges: ranges?, inverted }));
            action.unwrap_or_else(untold)
        }
        "source_cluster" => {
            let value = Parts::constant(surroundings.own_cluster);
            let entry = Entry { key: "source_cluster".to_owned(), value, default: String::new() };
            // Envoy may have it from its command line.
            let is_known = !surroundings.own_cluster.is_empty();
            let needs = || Action::Untold("`node.cluster` in the configuration".to_owned());
            if is_known { Action::Constant(entry) } else { needs() }
        }
        "destination_cluster" => Action::DestinationCluster(surroundings.cluster.map(str::to_owned)),
        "header_value_match" => {
            let action = entry("header_match").and_then(|entry| {
                let headers = fields.list("headers").map(matches::header).collect::<Result<_, _>>()?;
                Ok(Action::HeaderValueMatch { entry, headers, expected: expected() })
            });
            action.unwrap_or_else(untold)
        }
        "query_parameter_value_match" => {
            let action = entry("query_match").and_then(|entry| {
                let parameters = fields.list("query_parameters").map(matches::parameter);
                let parameters = parameters.collect::<Result<_, _>>()?;
                Ok(Action::QueryParameterValueMatch { entry, parameters, expected: expected() })
            });
            action.unwrap_or_else(untold)
        }
        "metadata" => Action::Untold(metadata(&text("source"))),
        "dynamic_metadata" => Action::Untold(metadata("")),
        "extension" => Action::Untold("the extension".to_owned()),
        _ => Action::Untold(format!("the action `{name}`")),
    }
}

fn metadata(source: &str) -> String {
    let source = if matches!(source, "" | "DYNAMIC" | "0") { "dynamic metadata" } else { "metadata" };
    source.to_owned()
}

fn entry(
    key: String,
    value: &str,
    default: String,
    surroundings: &Surroundings<'_>,
) -> Result<Entry, String> {
    let value = if surroundings.fills_values { value.parse()? } else { Parts::constant(value) };
    let default = if surroundings.fills_values { default } else { String::new() };
    Ok(Entry { key, value, default })
}

fn ranges(matcher: Option<Value<'_>>) -> Result<Vec<(IpAddr, u32)>, String> {
    let range = |range: Value<'_>| {
        let text = |field| range.get(field).and_then(Value::text);
        let start = text("address_prefix").unwrap_or_default();
        let start: IpAddr = start.parse().map_err(|_| format!("an IP address instead of {start:?}"))?;
        // `prefix_len: {value: 8}` is the same.
        let length = text("prefix_len").or_else(|| range.at(&["prefix_len", "value"])?.text());
        Ok((start, length.and_then(|text| text.parse().ok()).unwrap_or(0)))
    };
    matcher.into_iter().flat_map(|matcher| matcher.list("ranges")).map(range).collect()
}
