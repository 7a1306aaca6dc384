//! `tollgate refusals`: the refused keys with their reasons; with `--follow` new refusals one by one.

use std::{collections::HashMap, thread, time::Duration};

use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{AdminArgs, Answer, Client, KeyArgs, ReplicaArgs, Reply, answered, overrides::target_text};
use crate::{
    endpoint,
    format::{descriptor, duration, limit, word},
    serve::Environment,
    terminal::{self, BOLD, DIM, Failure, PLACE, Verdict, count, paint, wrapped},
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
    client.print(&reply, |reply| wrapped(&keys(reply, args.shadow), INDENT));
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
    let KeyRefusals { domain, count: times, first, last, reason, example, .. } = refused;
    let cut = if refused.descriptor_cut { "…" } else { "" };
    let when = if *times == 1 { last.clone() } else { format!("{first} to {last}") };
    let hits =
        if example.hits == 1 { String::new() } else { format!(", last with {}", count(example.hits, "hit")) };
    let descriptor = paint(BOLD, &descriptor(&refused.descriptor));
    let times = count(*times, noun);
    let by = decided(example);
    let retry = retry(example);
    let rule = rule(example);
    let when = paint(DIM, &when);
    format!("{domain} {descriptor}{cut} {times}\n  {reason}{by}{hits}{retry}{rule}, {when}\n")
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
fn rule(refusal: &Refusal) -> String {
    match (&refusal.file, &refusal.rule) {
        (Some(file), Some(rule)) => {
            let place = format!("{file}:{}", refusal.line.unwrap_or_default());
            format!(", rule {rule} {}", paint(PLACE, &place))
        }
        (None, Some(rule)) => format!(", rule {rule}"),
        _ if refusal.by_override.is_none() => ", limit of the request".to_owned(),
        _ => ", no rule".to_owned(),
    }
}

/// Prints the last refusals, and those that follow.
fn follow(client: &Client, args: &RefusalsArgs) -> Result<Verdict, Failure> {
    let mut following = Following::start(client, args)?;
    let mut most = args.n;
    loop {
        for refusal in following.next(client, args, most)?.iter().rev() {
            if args.admin.json {
                terminal::print_json(&format!("{}\n", json!(refusal)));
            } else {
                terminal::print(&wrapped(&text(refusal), INDENT));
            }
        }
        if terminal::is_output_closed() {
            return Ok(Verdict::Yes);
        }
        thread::sleep(PAUSE);
        most = MOST;
    }
}

/// What `--follow` reads, and how far.
enum Following {
    /// Refusals one by one: those of the replica that answers, after the one with this id.
    OneByOne { last: u64 },
    /// By key, because other replicas publish their keys. `whose` says which of them answered.
    ByKey { seen: PrintedKeys, whose: String },
}

impl Following {
    fn start(client: &Client, args: &RefusalsArgs) -> Result<Self, Failure> {
        let keys: Reply<RefusedKeys> = refusals(client, args, 1, None)?;
        let is_unknown = matches!(keys.whose.replicas, Some(OrUnknown::Unknown(_)));
        if keys.whose.scope != "this" || is_unknown {
            return Ok(Self::ByKey { seen: PrintedKeys::new(), whose: String::new() });
        }
        print_followed(&answered(&keys.whose));
        Ok(Self::OneByOne { last: 0 })
    }

    /// The newest `most` refusals since the last call, the newest first.
    fn next(&mut self, client: &Client, args: &RefusalsArgs, most: u16) -> Result<Vec<Refusal>, Failure> {
        match self {
            Self::OneByOne { last } => {
                let news: Reply<Refusals> = refusals(client, args, most, Some(*last))?;
                *last = news.refusals.iter().map(|refusal| refusal.id).fold(*last, u64::max);
                Ok(news.typed.refusals)
            }
            Self::ByKey { seen, whose } => {
                let keys: Reply<RefusedKeys> = refusals(client, args, MOST, None)?;
                let now = answered(&keys.whose);
                let is_of_same = now == *whose;
                if !is_of_same {
                    print_followed(&now);
                    *whose = now;
                }
                let mut news = new_refusals(seen, &keys.refusals, is_of_same);
                news.truncate(most.into());
                Ok(news)
            }
        }
    }
}

fn print_followed(whose: &str) {
    terminal::print_note(&format!("following: {}", whose.trim_end()));
}

/// The refused keys that were printed, each with its count and the time of its last refusal.
type PrintedKeys = HashMap<String, (u64, String)>;

/// The last refusal of each key that was refused since, the newest first; it stands for all of them. If other replicas
/// answered than before, the counts do not compare, and it stands for itself.
fn new_refusals(seen: &mut PrintedKeys, keys: &[KeyRefusals], is_of_same: bool) -> Vec<Refusal> {
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
) -> Answer<T> {
    let mut query = [args.key.query(), args.replica.query()].concat();
    query.push(("n", n.to_string()));
    query.extend(after.map(|after| ("after", after.to_string())));
    query.extend(args.shadow.then(|| ("shadowed", "true".to_owned())));
    client.get("/api/v1/refusals", query)
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
        None => {
            let limit = refusal.limit.as_ref().map(|of_rule| limit(&of_rule.limit));
            format!("limit {}", limit.unwrap_or_default())
        }
    } + &decided(refusal);
    let mut text = format!(
        "{} {} {}\n  {first}",
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
    add(rule(refusal));
    if refusal.weight > 1 {
        add(format!(", one of {}", refusal.weight));
    }
    text + "\n"
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
        let mut seen = PrintedKeys::new();
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
            "domain": "shop", "descriptor": [{ "key": "user", "value": "ann" }], "count": 1432, "first": "t1", "last": "t2",
            "reason": "over 2 per hour",
            "example": { "hits": 1, "retry_after_seconds": 61, "rule": "shop.user", "file": "shop.yaml", "line": 12 },
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
