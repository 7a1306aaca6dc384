//! An explanation for machines: one object, whose keys stay.

use serde_json::{Value, json};

use super::{
    Explained, Explanation, text,
    way::{Path, Step, Why},
};
use crate::{
    limiter::Code,
    rules::{How, Limit, Limits, Rule},
};

pub(super) fn of(explained: &Explained<'_>) -> String {
    let question = explained.question;
    let entries: Vec<Value> = question.descriptor.entries().iter().map(entry).collect();
    let levels = match &explained.story {
        Explanation::Path(Path { levels, .. }) => &**levels,
        Explanation::NoDomain { .. } => &[],
    };
    let levels: Vec<Value> = levels.iter().zip(&entries).map(level).collect();
    let rule = explained.rule();
    let limits = rule.and_then(Rule::limits).into_iter().flat_map(Limits::iter);
    let limits: Vec<Value> = limits.zip(&explained.preview.keys).map(limit).collect();
    let value = json!({
        "domain": question.domain,
        "entries": entries,
        "is_met": rule.is_some(),
        "told": text::headline(explained),
        "rule": rule.map(|rule| json!({
            "key": rule.full_key,
            "unlimited": rule.limits().is_none(),
            "shadow_mode": rule.shadow_mode,
            "quota_mode": rule.quota_mode,
            "replaces": rule.replaces,
        })),
        "levels": levels,
        "limits": limits,
        "refusal": refusal(explained),
    });
    format!("{value:#}\n")
}

fn entry((key, value): &(String, String)) -> Value {
    json!({"key": key, "value": value})
}

fn level((passage, entry): (&Step<'_>, &Value)) -> Value {
    let taken = passage.taken.map(|taken| json!({"text": taken.node.text, "how": how(taken.how)}));
    let near = passage.near.iter().map(|near| json!({"text": near.text, "why": why(near.why)}));
    json!({"entry": entry, "met": taken, "not_met": near.collect::<Vec<_>>(), "others": passage.others})
}

fn limit((limit, counter): (&Limit, &String)) -> Value {
    json!({
        "name": limit.name.as_deref(),
        "requests_per_unit": limit.requests_per_unit,
        "unit": limit.unit.name(),
        "unit_multiplier": limit.multiplier,
        "window_seconds": limit.window().seconds(),
        "algorithm": limit.algorithm.kind().name(),
        "at_once": limit.algorithm.capacity(),
        "counter": counter,
    })
}

/// None where nothing would be refused.
fn refusal(explained: &Explained<'_>) -> Value {
    let refused = &explained.preview.over_limit;
    if refused.code == Code::Ok {
        return Value::Null;
    }
    let headers = refused.response_headers.iter();
    let headers = headers.map(|header| json!({"name": *header.name, "value": header.value}));
    json!({"headers": headers.collect::<Vec<_>>(), "body": refused.body})
}

fn how(how: How) -> &'static str {
    match how {
        How::Exact => "exact",
        How::Wildcard => "wildcard",
        How::Bare => "bare_key",
    }
}

fn why(why: Why) -> &'static str {
    match why {
        Why::AfterExact => "exact_goes_first",
        Why::AfterWildcard => "earlier_wildcard_goes_first",
        Why::AfterValue => "wildcard_goes_first",
        Why::OtherValue => "other_value",
        Why::OtherPattern => "other_pattern",
        Why::Alike => "spelled_otherwise",
        Why::OtherKey => "other_key",
    }
}
