//! How rules, overrides and requests are written: for the service, and for whoever reads a failure.

use std::fmt::{self, Display};

use proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride},
    service::ratelimit::v3::RateLimitRequest,
};

use super::super::model::{
    Closing, Descriptor, Entries, Hold, Limit, Most, Override, Request, Rule, Target, Unit,
};
use support::client::descriptor;

/// A rules file.
pub(super) fn file(domain: &str, rules: &[Rule]) -> String {
    let rules: Vec<_> = rules.iter().map(|rule| format!("  - {}\n", rule_text(rule))).collect();
    format!("domain: {domain}\ndescriptors:\n{}", rules.concat())
}

fn rule_text(rule: &Rule) -> String {
    let replaces: Vec<_> = rule.replaces.iter().map(|name| format!("{{name: {name}}}")).collect();
    let replaces =
        if replaces.is_empty() { String::new() } else { format!(", replaces: [{}]", replaces.join(", ")) };
    let mut parts = vec![format!("key: {}", rule.key)];
    parts.extend(rule.value.iter().map(|value| format!("value: \"{value}\"")));
    parts.extend(rule.is_shadow.then(|| "shadow_mode: true".to_owned()));
    parts.extend(rule.is_quota.then(|| "quota_mode: true".to_owned()));
    // `replaces` of any limit of a list is that of the rule.
    let mut limits: Vec<String> = rule.limits.iter().map(limit_text).collect();
    if let Some(last) = limits.last_mut() {
        last.push_str(&replaces);
    }
    match &limits[..] {
        [] if rule.is_unlimited => parts.push(format!("rate_limit: {{unlimited: true{replaces}}}")),
        [] => {}
        [limit] => parts.push(format!("rate_limit: {{{limit}}}")),
        limits => parts.push(format!("rate_limit: [{{{}}}]", limits.join("}, {"))),
    }
    if !rule.below.is_empty() {
        let below: Vec<_> = rule.below.iter().map(rule_text).collect();
        parts.push(format!("descriptors: [{}]", below.join(", ")));
    }
    format!("{{{}}}", parts.join(", "))
}

fn limit_text(limit: &Limit) -> String {
    let of_time = match limit.unit {
        Unit::AtATime => "algorithm: concurrency".to_owned(),
        unit => format!("unit: {unit}"),
    };
    let mut parts = vec![format!("requests_per_unit: {}", limit.requests), of_time];
    parts.extend((limit.units > 1).then(|| format!("unit_multiplier: {}", limit.units)));
    parts.extend(limit.name.iter().map(|name| format!("name: {name}")));
    parts.extend(limit.hold.iter().map(|Hold { amount, most, unknown, currency }| {
        let unknown = unknown.map_or_else(|| "held".to_owned(), |cost| cost.to_string());
        let amount = if limit.unit == Unit::AtATime { 1 } else { *amount };
        let most = most.filter(|_| limit.unit != Unit::AtATime).map_or(String::new(), |most| match most {
            Most::Hits(hits) => format!("most: {hits}, "),
            Most::Percent(percent) => format!("most: {percent}%, "),
        });
        format!("hold: {{amount: {amount}, {most}ttl: 1h, unknown: {unknown}, in: {currency}}}")
    }));
    parts.join(", ")
}

/// A request as the service gets it. `id_of` has the identities of holds.
pub(super) fn message(domain: &str, request: &Request, id_of: impl Fn(usize) -> String) -> RateLimitRequest {
    let closings = request.closings.iter().map(|closing| closing_message(closing, &id_of(closing.hold)));
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: request.descriptors.iter().map(descriptor_message).chain(closings).collect(),
        hits_addend: request.hits,
    }
}

fn descriptor_message(from: &Descriptor) -> RateLimitDescriptor {
    let entries: Vec<_> = from.entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let limit = from.limit.as_ref().map(|limit| RateLimitOverride {
        requests_per_unit: limit.requests.try_into().expect("a request's limit has 32 bits"),
        unit: limit.unit.number(),
        unit_multiplier: (limit.units > 1).then_some(limit.units),
    });
    RateLimitDescriptor {
        limit,
        hits_addend: from.hits,
        is_negative_hits: from.is_refund,
        ..descriptor(&entries)
    }
}

fn closing_message(closing: &Closing, id: &str) -> RateLimitDescriptor {
    let mut entries = vec![(if closing.cost.is_some() { "hold_settle" } else { "hold_end" }, id)];
    entries.extend(closing.currency.iter().map(|currency| ("hold_in", currency.as_str())));
    RateLimitDescriptor { hits_addend: closing.cost, ..descriptor(&entries) }
}

/// The body of `POST /api/v1/overrides`.
pub(super) fn override_body(domain: &str, target: &Target, action: Override) -> String {
    let action = match action {
        Override::Limit(requests, unit) => {
            format!(r#""action":"limit","requests_per_unit":{requests},"unit":"{unit}""#)
        }
        Override::Block => r#""action":"block""#.to_owned(),
        Override::Allow => r#""action":"allow""#.to_owned(),
        Override::Shadow => r#""action":"shadow""#.to_owned(),
    };
    format!(r#"{{"domain":"{domain}","descriptor":"{}",{action}}}"#, target_text(target))
}

/// `user=a*,path`
pub(super) fn target_text(target: &Target) -> String {
    let part = |(key, value): &(String, Option<String>)| match value {
        Some(value) => format!("{key}={value}"),
        None => key.clone(),
    };
    target.iter().map(part).collect::<Vec<_>>().join(",")
}

/// `user=ann,path=home`
fn entries_text(entries: &Entries) -> String {
    let entries: Vec<_> = entries.iter().map(|(key, value)| format!("{key}={value}")).collect();
    entries.join(",")
}

impl Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hits_addend={}", self.hits)?;
        for Descriptor { entries, hits, is_refund, limit } in &self.descriptors {
            write!(f, " [{}", entries_text(entries))?;
            if let Some(hits) = hits {
                write!(f, " hits_addend={hits}")?;
            }
            if *is_refund {
                f.write_str(" is_negative_hits")?;
            }
            if let Some(limit) = limit {
                write!(f, " limit {{{}}}", limit_text(limit))?;
            }
            f.write_str("]")?;
        }
        for Closing { hold, cost, currency } in &self.closings {
            write!(f, " [close holds of request {hold}: cost {cost:?} in {currency:?}]")?;
        }
        Ok(())
    }
}

/// As in rules files.
impl Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
            Self::AtATime => "at a time",
        })
    }
}

impl Unit {
    /// In Envoy's API.
    fn number(self) -> i32 {
        match self {
            Self::Day => 4,
            Self::Month => 5,
            Self::Year => 6,
            Self::Week => 7,
            Self::AtATime => unreachable!("a request has no such limit"),
        }
    }
}
