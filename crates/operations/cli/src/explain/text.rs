//! An explanation as text.

use std::fmt::Write as _;

use super::{
    Counting, Explained, LimitOutcome, Outcome, full_key,
    path::{End, Path, PathStep, words},
};
use crate::terminal::{BOLD, DIM, ERROR, GOOD, PLACE, WARNING, count, paint};
use clock::Time;
use limit::{Algorithm, FixedWindow, Limit, Period};
use limiter::{Code, OverrideLimits};
use overrides::{Action, Found, model::timestamp};
use rules::{Allowance, Rule};
use text::{duration, printable};

pub(super) fn explanation(explained: &Explained<'_>) -> String {
    let mut text = String::new();
    if let Some(unknown) = &explained.unknown_domain {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(text, "{}", paint(ERROR, &printable(unknown)));
    }
    if let Some(switch) = explained.switch.as_ref().filter(|switch| switch.action == Action::Shadow) {
        let effect = "requests are counted and allowed, unless an override blocks or allows them";
        let _ = writeln!(text, "{}{}: {effect}\n", paint(WARNING, "switch shadow"), end_and_target(switch));
    }
    for (index, outcome) in explained.outcomes.iter().enumerate() {
        text.push_str(if index > 0 { "\n" } else { "" });
        add_outcome(&mut text, outcome, explained);
    }
    add_response(&mut text, explained);
    text
}

fn add_outcome(text: &mut String, outcome: &Outcome<'_>, explained: &Explained<'_>) {
    let style = match outcome.rule() {
        None => ERROR,
        Some(_) if outcome.replaced_by().is_some() => WARNING,
        Some(_) => GOOD,
    };
    let _ = writeln!(
        text,
        "{}: {}",
        paint(BOLD, &outcome.descriptor.to_string()),
        paint(style, &printable(&summary(outcome, explained)))
    );
    let entries = &outcome.descriptor.0;
    for (step, (key, value)) in outcome.path.levels.iter().zip(entries) {
        // A single entry is the descriptor in the line above.
        let heading = || format!("\n  {}={}\n", printable(key), printable(value));
        let heading = if entries.len() > 1 { heading() } else { String::new() };
        text.push_str(&heading);
        add_step(text, step, explained);
    }
    if let Some((found, limits)) = &outcome.applied {
        add_override(text, found, limits, explained);
        if !matches!(found.action, Action::Shadow) {
            return;
        }
    } else if outcome.rule().is_some_and(|rule| rule.overrides_only) {
        text.push_str("\n  overrides_only: without an override nothing is limited\n");
        return;
    }
    if let Some(Allowance::Unlimited { .. }) = outcome.rule().map(|rule| &rule.allowance) {
        text.push_str("\n  unlimited: every request is allowed, and nothing is counted\n");
    }
    for limit in &outcome.limits {
        add_limit(text, limit, explained);
    }
}

fn add_override(text: &mut String, found: &Found, limits: &OverrideLimits, explained: &Explained<'_>) {
    let effect = match found.action {
        Action::Limit { .. } | Action::Scale(_) | Action::OnStoreFailure(_) => "",
        Action::Block => ": every request is over limit, and nothing is counted",
        Action::Allow => ": every request is allowed, and nothing is counted",
        Action::Shadow => ": counted by the limits below, and never over limit",
    };
    let is_switch = found.target.scope().is_switch();
    let name = if is_switch { "switch" } else { "override" };
    let _ = writeln!(
        text,
        "
  {name} {}{}{effect}",
        found.effect(),
        end_and_target(found)
    );
    for (limit, key) in limits {
        let _ = writeln!(text, "\n  {}\n    counter {}", limit_line(limit, explained), printable(key));
    }
}

/// ` until 2026-11-23T00:00:00Z by shop --entry ip=10.0.0.0/8`, as far as there is an end, and a target other than the
/// descriptor.
fn end_and_target(found: &Found) -> String {
    let end = found.expires.map(|end| format!(" until {}", timestamp(end))).unwrap_or_default();
    if !found.is_apart() {
        return end;
    }
    format!("{end} by {}", printable(&found.target.plain().to_string()))
}

/// The result of one descriptor in a line: `matches rule shop.client (shop.yaml:4)`.
pub(super) fn summary(outcome: &Outcome<'_>, explained: &Explained<'_>) -> String {
    let Path { levels, end } = &outcome.path;
    let entries = &outcome.descriptor.0;
    let entry =
        |index: usize| entries.get(index).map(|(key, value)| format!("{key}={value}")).unwrap_or_default();
    let place = |node| match explained.place(node) {
        place if place.is_empty() => String::new(),
        place => format!(" ({place})"),
    };
    let last = levels.last().and_then(|step| step.matched).map_or("", |matched| &matched.node.text);
    match end {
        End::Rule(node, rule) => match outcome.replaced_by() {
            None => format!("matches rule {}{}{}", rule.full_key, place(node), modes(rule)),
            Some(by) => format!(
                "matches rule {}{}, which is replaced by {}{}",
                rule.full_key,
                place(node),
                full_key(by).unwrap_or_default(),
                place(by)
            ),
        },
        End::NoMatch => {
            format!("no rule matches: no descriptor matches {}", entry(levels.len().saturating_sub(1)))
        }
        End::TooManyEntries { first } => format!(
            "no rule matches: {last} has no descriptors below it for {}, and a limit applies only to its own level",
            entry(*first)
        ),
        End::TooFewEntries { below } => format!(
            "no rule matches: {last} has no limit itself, and the rules below it need one more entry: {}",
            below.join(", ")
        ),
        End::NoLimit(node) => {
            format!("no rule matches: {last} has no limit, which exempts it{}", place(node))
        }
    }
}

fn modes(rule: &Rule) -> &'static str {
    match (rule.shadow_mode, rule.quota_mode) {
        (false, false) => "",
        (true, false) => ", shadow_mode",
        (false, true) => ", quota_mode",
        (true, true) => ", shadow_mode, quota_mode",
    }
}

fn add_step(text: &mut String, step: &PathStep<'_>, explained: &Explained<'_>) {
    let matched = step.matched.map(|matched| (GOOD, "match", matched.node, words(matched.how).1));
    let near = step.near.iter().map(|near| {
        let (style, label) = if near.why.matches() { (WARNING, "outranked") } else { (DIM, "no match") };
        (style, label, near.node, near.why.words().1)
    });
    let lines: Vec<_> = matched
        .into_iter()
        .chain(near)
        .map(|(style, label, node, reason)| {
            let place = explained.place(node);
            (style, label, printable(&node.text), printable(&place).into_owned(), reason)
        })
        .collect();
    let names = lines.iter().map(|(.., name, _, _)| name.chars().count()).max().unwrap_or(0);
    let places = lines.iter().map(|(.., place, _)| place.chars().count()).max().unwrap_or(0);
    for (style, label, name, place, reason) in lines {
        let label = paint(style, &format!("{label:9}"));
        let place = paint(PLACE, &format!("{place:places$}"));
        let _ = writeln!(text, "    {label}  {name:names$}  {place}  {reason}");
    }
    if step.others > 0 {
        let kind = if step.near.is_empty() { "for other keys" } else { "on this level" };
        let _ = writeln!(text, "    {}", paint(DIM, &format!("{} more {kind}", step.others)));
    }
}

fn add_limit(text: &mut String, limit: &LimitOutcome<'_>, explained: &Explained<'_>) {
    let _ = writeln!(text, "\n  {}", limit_line(limit.limit, explained));
    let hits = explained.query.hits;
    let _ = match &limit.counting {
        Counting::By(key) if hits == 1 => writeln!(text, "    counter {}", printable(key)),
        Counting::By(key) => writeln!(text, "    counter {} under {}", count(hits, "hit"), printable(key)),
        Counting::ReplacedBy(node) => {
            writeln!(text, "    not counted: replaced by {}", printable(full_key(node).unwrap_or_default()))
        }
    };
    // An estimate is cut to the limit.
    if hits > limit.limit.at(explained.now).algorithm.capacity() && !limit.limit.holds {
        let _ = writeln!(text, "    {} exceed it at once: always over limit", count(hits, "hit"));
    }
}

/// `limit "daily": 100 per 15 minutes, token_bucket, burst 20`
fn limit_line(limit: &Limit, explained: &Explained<'_>) -> String {
    let name = limit.name.as_deref().map(|name| format!(" {name:?}")).unwrap_or_default();
    let leased = if limit.is_leased() { ", leased" } else { "" };
    let holds = limit.hold.as_ref().map(|hold| format!(", holds {}", printable(&hold.to_string())));
    let holds = holds.unwrap_or_default();
    let words = in_words(limit, explained.now);
    let more = match limit.algorithm {
        Algorithm::Concurrency(_) => return format!("limit{name}: {words}{holds}"),
        Algorithm::FixedWindow(FixedWindow { period: Period::Calendar(_), .. }) => {
            return format!("limit{name}: {words}{leased}{holds}");
        }
        Algorithm::FixedWindow(fixed) => format!(", resets in {}s", fixed.period.seconds_left(explained.now)),
        Algorithm::Bucket(bucket) => format!(", burst {}", bucket.burst()),
        _ => String::new(),
    };
    let kind = limit.algorithm.kind().name();
    format!("limit{name}: {words}, {kind}{leased}{more}{holds}")
}

/// `500 per month (Europe/Berlin, from the 15th), ends in 3d 4h`, or with a schedule
/// `500 per minute (mon-fri 08:00-20:00 Europe/Berlin, then 100 at 20:00)`
pub(crate) fn in_words(limit: &Limit, now: Time) -> String {
    let schedule = limit.scheduled(now).map(|in_force| format!(" ({})", in_force.words)).unwrap_or_default();
    let period = limit.period();
    let ends = period.calendar().map(|_| format!(", ends in {}", duration::short(period.seconds_left(now))));
    format!("{}{schedule}{}", limit.at(now).in_words(), ends.unwrap_or_default())
}

fn add_response(text: &mut String, explained: &Explained<'_>) {
    let counted = |outcome: &Outcome<'_>| {
        let is_blocked =
            |(found, limits): &(Found, OverrideLimits)| !limits.is_empty() || found.action == Action::Block;
        outcome.limits.iter().any(|limit| matches!(limit.counting, Counting::By(_)))
            || outcome.applied.as_ref().is_some_and(is_blocked)
    };
    let Some(counted) = explained.outcomes.iter().find(|outcome| counted(outcome)) else { return };
    let response = &explained.over_limit;
    if response.code == Code::Ok {
        let reason = match counted.rule() {
            _ if explained.query.hits == 0 => "0 hits are not counted",
            _ if counted.applied.as_ref().is_some_and(|(found, _)| found.action == Action::Shadow) => {
                "override shadow"
            }
            _ if explained.switch.is_some() => "switch shadow",
            Some(rule) if rule.shadow_mode => "shadow_mode",
            _ => "SHADOW_MODE",
        };
        let _ = writeln!(text, "\nnever over limit: {reason}");
        return;
    }
    text.push_str("\nover-limit response\n");
    if response.response_headers.is_empty() && response.body.is_empty() {
        text.push_str("  no headers and no body\n");
    }
    for header in &response.response_headers {
        let _ = writeln!(text, "  {}: {}", printable(&header.name), printable(&header.value));
    }
    if !response.body.is_empty() {
        text.push('\n');
    }
    for line in response.body.lines() {
        let _ = writeln!(text, "  {}", printable(line));
    }
}
