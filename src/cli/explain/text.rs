//! An explanation for people.

use std::fmt::Write as _;

use super::{
    Explained, Explanation,
    way::{End, Path, Step, Why},
};
use crate::{
    clock::Time,
    limiter::{Answer, Code, algorithm::Algorithm},
    rules::{Allowance, How, Limit, Rule},
};

pub(super) fn of(explained: &Explained<'_>) -> String {
    let mut text = headline(explained) + "\n";
    if let Explanation::Path(Path { levels, .. }) = &explained.story {
        for (passage, (key, value)) in levels.iter().zip(explained.question.descriptor.entries()) {
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(text, "\n{key}={value}");
            add_passage(&mut text, passage);
        }
    }
    if let Some(rule) = explained.rule() {
        add_limits(&mut text, rule, explained);
        add_refusal(&mut text, rule, &explained.preview.over_limit);
    }
    text
}

/// What came of it, in a line.
pub(super) fn headline(explained: &Explained<'_>) -> String {
    let entries = explained.question.descriptor.entries();
    let entry = |at: usize| entries.get(at).map(|(key, value)| format!("{key}={value}")).unwrap_or_default();
    let way = match &explained.story {
        Explanation::Path(way) => way,
        Explanation::NoDomain { alike, known } => {
            return no_domain(&explained.question.domain, *alike, known);
        }
    };
    let last = way.levels.last().and_then(|passage| passage.taken).map_or("", |taken| &taken.node.text);
    match &way.end {
        End::Rule(rule) => format!("{} is met{}", rule.full_key, modes(rule)),
        End::Nothing => format!("no rule is met: nothing takes {}", entry(way.levels.len() - 1)),
        End::TooManyEntries { first } => {
            format!(
                "no rule is met: the rules end above {}, and a rule stands where the last entry does",
                entry(*first)
            )
        }
        End::TooFewEntries { below } => {
            format!(
                "no rule is met: {last} has no limit itself, and the rules below it ask for one more entry: {}",
                below.join(", ")
            )
        }
        End::NoLimit => format!("no rule is met: {last} has no limit, which exempts it"),
    }
}

fn no_domain(domain: &str, alike: Option<&str>, known: &[&str]) -> String {
    let known = match (alike, known) {
        (Some(alike), _) => format!("is {alike} meant?"),
        (None, []) => "there is none".to_owned(),
        (None, known) => format!("there is {}", known.join(", ")),
    };
    format!("no rule is met: there is no domain {domain}; {known}")
}

fn modes(rule: &Rule) -> String {
    let modes = [(rule.shadow_mode, "shadow_mode"), (rule.quota_mode, "quota_mode")];
    let set: Vec<_> = modes.into_iter().filter_map(|(set, name)| set.then_some(name)).collect();
    if set.is_empty() { String::new() } else { format!(", in {}", set.join(" and ")) }
}

fn add_passage(text: &mut String, passage: &Step<'_>) {
    let taken = passage.taken.map(|taken| ("met", &*taken.node.text, how(taken.how)));
    let near = passage.near.iter().map(|near| ("not met", near.text, why(near.why)));
    let lines: Vec<_> = taken.into_iter().chain(near).collect();
    let widest = lines.iter().map(|(_, name, _)| name.chars().count()).max().unwrap_or(0);
    for (whether, name, reason) in lines {
        let _ = writeln!(text, "  {whether:7}  {name:widest$}  {reason}");
    }
    if passage.others > 0 {
        let more = if passage.near.is_empty() { "for other keys" } else { "more" };
        let _ = writeln!(text, "  {} {more} on this level", passage.others);
    }
}

fn how(how: How) -> &'static str {
    match how {
        How::Exact => "is the same text",
        How::Wildcard => "is a pattern that takes it",
        How::Bare => "has no value, and so takes every value",
    }
}

fn why(why: Why) -> &'static str {
    match why {
        Why::AfterExact => "takes it too, but the same text goes first",
        Why::AfterWildcard => "takes it too, but stands behind the other pattern in the file",
        Why::AfterValue => "takes it too, but a pattern goes before a key without value",
        Why::OtherValue => "is for another value",
        Why::OtherPattern => "is a pattern that does not take it",
        Why::Alike => "is spelled otherwise",
        Why::OtherKey => "is for another key",
    }
}

fn add_limits(text: &mut String, rule: &Rule, explained: &Explained<'_>) {
    let Allowance::Limited(limits) = &rule.allowance else {
        text.push_str("\nunlimited: every request passes, and nothing is counted\n");
        return;
    };
    for (limit, key) in limits.iter().zip(&explained.preview.keys) {
        let _ = writeln!(text, "\n{}\n  counted under {key}", limit_line(limit, explained.now));
    }
}

/// `limit "daily": 100 per 15 minutes, token_bucket, at most 20 at once`
fn limit_line(limit: &Limit, now: Time) -> String {
    let name = limit.name.as_deref().map(|name| format!(" {name:?}")).unwrap_or_default();
    let more = match limit.algorithm {
        Algorithm::FixedWindow(_) => format!("; this window ends in {}s", limit.window().seconds_left(now)),
        Algorithm::Bucket(bucket) => format!(", at most {} at once", bucket.burst()),
        _ => String::new(),
    };
    let kind = limit.algorithm.kind().name();
    format!("limit{name}: {} per {}, {kind}{more}", limit.requests_per_unit, limit.span())
}

fn add_refusal(text: &mut String, rule: &Rule, refused: &Answer) {
    if rule.limits().is_none() {
        return;
    }
    if refused.code == Code::Ok {
        let mode = if rule.shadow_mode { "shadow_mode" } else { "SHADOW_MODE" };
        let _ = writeln!(text, "\nnothing is refused: {mode}");
        return;
    }
    text.push_str("\na refusal would say\n");
    if refused.response_headers.is_empty() && refused.body.is_empty() {
        text.push_str("  nothing but that the request is over its limit\n");
    }
    for header in &refused.response_headers {
        let _ = writeln!(text, "  {}: {}", header.name, header.value);
    }
    if !refused.body.is_empty() {
        text.push('\n');
    }
    for line in refused.body.lines() {
        let _ = writeln!(text, "  {line}");
    }
}
