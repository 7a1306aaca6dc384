//! `tollgate refusals`: the refused keys with their reasons; with `--follow` new refusals one by one.

use std::{collections::HashMap, thread, time::Duration};

use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{
    AdminArgs, Client, KeyArgs, ReplicaArgs, Reply, answered,
    format::{descriptor, duration, limit, word},
    overrides::target_text,
};
use crate::{
    endpoint,
    serve::Environment,
    terminal::{self, BOLD, DIM, Failure, PLACE, Verdict, count, paint, wrap},
};
use api::{Blocked, KeyRefusals, LimitOfRule, OrUnknown, Refusal, Refusals, RefusedKeys};
use text::thousands;

/// The columns before a continued line.
const INDENT: usize = 4;

/// The pause between two calls of `--follow`.
const PAUSE: Duration = Duration::from_millis(500);

/// The most refusals or keys in a reply.
const MOST: u16 = 1000;

#[derive(Args, Clone, PartialEq, Debug)]
pub(crate) struct RefusalsArgs {
    #[command(flatten)]
    key: KeyArgs,
    /// What shadow mode allowed although it was over the limit, instead of refusals.
    #[arg(long)]
    shadow: bool,
    /// The number of keys, or of refusals with --follow.
    #[arg(short, value_name = "N", default_value_t = 20, value_parser = endpoint::rows)]
    n: u16,
    /// Print the last refusals and new ones until interrupted, with --json a line for each: one by one of one replica;
    /// of several, one for each key and second or so.
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    replica: ReplicaArgs,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Prints the refusals. The verdict is no if there are none.
pub(crate) fn run(args: &RefusalsArgs, environment: &Environment) -> Result<Verdict, Failure> {
    let client = Client::new(&args.admin, environment)?;
    if args.follow {
        return follow(&client, args);
    }
    let reply: Reply<RefusedKeys> = refusals(&client, args, args.n, None)?;
    args.admin.print(&reply.json, || wrap(&keys(&reply, args.shadow), terminal::width(), INDENT));
    Ok((!reply.refusals.is_empty()).into())
}

/// The refused keys, the one refused last at the end, as in a log.
fn keys(reply: &RefusedKeys, is_shadowed: bool) -> String {
    let list = &reply.refusals;
    // Shadow mode refused nothing.
    let (noun, none) = if is_shadowed {
        ("request", "no requests that shadow mode allowed over a limit\n")
    } else {
        ("refusal", "no refusals\n")
    };
    let mut text: String = list.iter().rev().map(|refused| key(refused, noun)).collect();
    if list.is_empty() {
        text.push_str(none);
    }
    if reply.others > 0 {
        let others = count(reply.others, noun);
        text.push_str(&paint(DIM, &format!("and {others} of other keys in the last ten minutes\n")));
    }
    text + &answered(&reply.whose)
}

/// A refused key in two lines: how often, and why.
fn key(refused: &KeyRefusals, noun: &str) -> String {
    let KeyRefusals { count: times, first, last, example, .. } = refused;
    let cut = if refused.descriptor_cut { "…" } else { "" };
    let when = if *times == 1 { last.clone() } else { format!("{first} to {last}") };
    let hits =
        if example.hits == 1 { String::new() } else { format!(", last with {}", count(example.hits, "hit")) };
    format!(
        "{} {}{cut} {}\n  {}{}{hits}{}{}, {}\n",
        refused.domain,
        paint(BOLD, &descriptor(&refused.descriptor)),
        count(*times, noun),
        refused.reason,
        decided(example),
        retry(example),
        rule(refused.rule.as_deref(), refused.file.as_deref(), refused.line, example),
        paint(DIM, &when),
    )
}

/// When the hits are allowed; empty if an override blocks them.
fn retry(refusal: &Refusal) -> String {
    match refusal.retry_after_seconds {
        _ if refusal.blocked.is_some() => String::new(),
        Some(seconds) => format!(", retry after {}", duration(seconds)),
        None => ", never allowed".to_owned(),
    }
}

/// The rule and its place.
fn rule(rule: Option<&str>, file: Option<&str>, line: Option<u32>, refusal: &Refusal) -> String {
    match (file, rule) {
        (Some(file), Some(rule)) => {
            let place = format!("{file}:{}", line.unwrap_or_default());
            format!(", rule {rule} {}", paint(PLACE, &place))
        }
        (None, Some(rule)) => format!(", rule {rule}"),
        _ if refusal.by_override.is_none() => ", limit of the request".to_owned(),
        _ => ", no rule".to_owned(),
    }
}

/// Prints the last refusals, and those that follow: one by one of the replica that answers, else by key, because the
/// others publish their keys.
fn follow(client: &Client, args: &RefusalsArgs) -> Result<Verdict, Failure> {
    let keys = refusals::<RefusedKeys>(client, args, MOST, None)?;
    let mut followed = answered(&keys.whose);
    terminal::print_note(&format!("following: {}", followed.trim_end()));
    let is_unknown = matches!(keys.whose.replicas, Some(OrUnknown::Unknown(_)));
    let is_one_by_one = keys.whose.scope == "this" && !is_unknown;
    let (mut seen, mut last) = (Seen::new(), 0);
    let mut news = if is_one_by_one {
        refusals::<Refusals>(client, args, args.n, Some(last))?.typed.refusals
    } else {
        let mut all = new_refusals(&mut seen, &keys.refusals, true);
        all.truncate(args.n.into());
        all
    };
    loop {
        for refusal in news.iter().rev() {
            last = last.max(refusal.id);
            if args.admin.json {
                terminal::print_json(&format!(
                    "{}
",
                    json!(refusal)
                ));
            } else {
                terminal::print(&wrap(&text(refusal), terminal::width(), INDENT));
            }
        }
        if terminal::is_output_closed() {
            return Ok(Verdict::Yes);
        }
        thread::sleep(PAUSE);
        if is_one_by_one {
            news = refusals::<Refusals>(client, args, MOST, Some(last))?.typed.refusals;
            continue;
        }
        let keys = refusals::<RefusedKeys>(client, args, MOST, None)?;
        let answered = answered(&keys.whose);
        let is_of_same = answered == followed;
        if !is_of_same {
            terminal::print_note(&format!("following: {}", answered.trim_end()));
            followed = answered;
        }
        news = new_refusals(&mut seen, &keys.refusals, is_of_same);
    }
}

/// The refused keys that were printed, each with its count and the time of its last refusal.
type Seen = HashMap<String, (u64, String)>;

/// The last refusal of each key that was refused since, the newest first; it stands for all of them. If other replicas
/// answered than before, the counts do not compare, and it stands for itself.
fn new_refusals(seen: &mut Seen, keys: &[KeyRefusals], is_of_same: bool) -> Vec<Refusal> {
    let mut news = Vec::new();
    for KeyRefusals { domain, rule, descriptor, count, last, example, .. } in keys {
        let key = format!("{domain} {rule:?} {descriptor:?} {}", example.blocked.is_some());
        let known = seen.insert(key, (*count, last.clone()));
        if known.as_ref().is_some_and(|(_, known)| known >= last) {
            continue;
        }
        let weight = match known {
            Some(_) if !is_of_same => 1,
            // Fewer than before if a replica has replaced another.
            known => count.saturating_sub(known.map_or(0, |(count, _)| count)).max(1),
        };
        news.push(Refusal { weight, ..example.clone() });
    }
    news
}

/// The newest `n` refused keys; with `after`, the newest refusals with a larger id. The newest come first.
fn refusals<T: DeserializeOwned>(
    client: &Client,
    args: &RefusalsArgs,
    n: u16,
    after: Option<u64>,
) -> Result<Reply<T>, Failure> {
    let (n, after) = (n.to_string(), after.map(|after| after.to_string()));
    let key = args.key.query();
    let mut query = vec![("n", n.as_str())];
    query.extend(after.iter().map(|after| ("after", after.as_str())));
    query.extend(args.shadow.then_some(("shadowed", "true")));
    query.extend(args.replica.query());
    query.extend(key.iter().map(|(name, value)| (*name, value.as_str())));
    client.get("/api/v1/refusals", &query)
}

/// ` (override 0123 of shop --entry ip=10.0.0.0/8)`: the override that decided; and whether shadow mode did.
fn decided(refusal: &Refusal) -> String {
    let shadow = if refusal.shadowed { ", allowed by shadow mode" } else { "" };
    let by = refusal.by_override.as_ref().map(|by| {
        format!(
            " (override {} of {} {})",
            word(by.id.as_deref()),
            word(by.domain.as_deref()),
            target_text(by)
        )
    });
    by.unwrap_or_default() + shadow
}

/// A refusal in two lines: the descriptor, and the reason.
fn text(refusal: &Refusal) -> String {
    let first = match &refusal.blocked {
        Some(Blocked { until: Some(end) }) => format!("blocked until {end}"),
        Some(Blocked { until: None }) => "blocked until the override is removed".to_owned(),
        None => format!("limit {}", refusal.limit.as_ref().map(|of| limit(&of.limit)).unwrap_or_default()),
    } + &decided(refusal);
    let mut text = format!(
        "{} {} {}
  {first}",
        paint(DIM, &refusal.time),
        refusal.domain,
        paint(BOLD, &descriptor(&refusal.descriptor)),
    );
    let mut add = |part: String| text.push_str(&part);
    if let Some(LimitOfRule { number, of: of @ 2.., .. }) = &refusal.limit {
        add(format!(" ({number} of {of})"));
    }
    if let Some(count) = refusal.count {
        add(format!(", count {}", thousands(count)));
    }
    if refusal.hits != 1 {
        add(format!(", {} hits", thousands(refusal.hits)));
    }
    add(retry(refusal));
    if refusal.decided_by != "counter" {
        add(format!(", by {}", refusal.decided_by.replace('_', " ")));
    }
    add(rule(refusal.rule.as_deref(), refusal.file.as_deref(), refusal.line, refusal));
    if refusal.weight > 1 {
        add(format!(", one of {}", refusal.weight));
    }
    text + "
"
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::terminal::plain;

    fn line(refusal: &Value) -> String {
        plain(&text(&serde_json::from_value(refusal.clone()).unwrap()))
    }

    #[test]
    fn a_refusal_stands_for_those_of_the_same_replicas_since_the_last_answer() {
        let mut seen = Seen::new();
        let mut weights = |count: u64, last: &str, is_of_same| -> Vec<u64> {
            let refused =
                json!({ "domain": "shop", "rule": "shop.user", "count": count, "last": last, "example": {} });
            let refused = serde_json::from_value(refused).unwrap();
            new_refusals(&mut seen, &[refused], is_of_same).iter().map(|refusal| refusal.weight).collect()
        };
        assert_eq!(weights(60, "t1", true), [60]);
        assert_eq!(weights(60, "t1", true), [0; 0]);
        assert_eq!(weights(63, "t2", true), [3]);
        // Redis is lost, and back.
        assert_eq!(weights(31, "t2", false), [0; 0]);
        assert_eq!(weights(33, "t3", true), [2]);
        assert_eq!(weights(66, "t4", false), [1]);
        assert_eq!(weights(68, "t5", true), [2]);
    }

    #[test]
    fn a_refusal_shows_its_descriptor_and_reason() {
        let refusal = json!({
            "id": 1, "time": "2026-11-22T10:00:00.000Z", "domain": "shop",
            "descriptor": [{ "key": "path", "value": "/cart" }, { "key": "user", "value": "ann" }],
            "rule": "shop.path_/cart.user", "file": "shop.yaml", "line": 12,
            "limit": { "requests_per_unit": 1000, "unit": "MINUTE", "unit_multiplier": 15, "number": 2, "of": 2 },
            "count": 1001, "hits": 3, "retry_after_seconds": 49, "decided_by": "over_limit_cache", "weight": 8,
        });
        let expected = "2026-11-22T10:00:00.000Z shop path=/cart,user=ann\n  \
            limit 1,000 per 15 minutes (2 of 2), count 1,001, 3 hits, retry after 49s, by over limit cache, \
            rule shop.path_/cart.user shop.yaml:12, one of 8\n";
        assert_eq!(line(&refusal), expected);
        let refused = json!({
            "domain": "shop", "descriptor": [{ "key": "user", "value": "ann" }], "rule": "shop.user",
            "file": "shop.yaml", "line": 12, "count": 1432, "first": "t1", "last": "t2",
            "reason": "over 2 per hour", "example": { "hits": 1, "retry_after_seconds": 61 },
        });
        let expected = "shop user=ann 1,432 refusals\n  over 2 per hour, retry after 1m 1s, rule shop.user \
            shop.yaml:12, t1 to t2\nand 7 refusals of other keys in the last ten minutes\n";
        let reply = serde_json::from_value(json!({ "refusals": [refused], "others": 7 })).unwrap();
        assert_eq!(plain(&keys(&reply, false)), expected);
        let bare = json!({
            "time": "t", "domain": "d", "descriptor": [], "rule": null, "file": null, "count": null, "hits": 1,
            "limit": { "requests_per_unit": 5, "unit": "HOUR", "unit_multiplier": 1, "number": 1, "of": 1 },
            "retry_after_seconds": null, "decided_by": "counter",
        });
        assert_eq!(line(&bare), "t d \n  limit 5 per hour, never allowed, limit of the request\n");
        let mut blocked = bare;
        blocked["decided_by"] = json!("override");
        blocked["rule"] = json!("d.k");
        blocked["blocked"] = json!({ "until": "2026-11-22T11:00:00.000Z" });
        assert_eq!(line(&blocked), "t d \n  blocked until 2026-11-22T11:00:00.000Z, by override, rule d.k\n");
        blocked["blocked"] = json!({ "until": null });
        assert!(line(&blocked).contains("\n  blocked until the override is removed, by override"));
    }
}
