//! `tollgate refusals`: the refused keys with their reasons; with `--follow` new refusals one by one.

use std::{collections::HashMap, thread, time::Duration};

use clap::Args;
use serde_json::Value;

use super::{
    AdminArgs, Client, ReplicaArgs, answered,
    format::{descriptor, duration, items, limit, number, word},
    overrides::target_text,
};
use crate::{
    endpoint,
    request::Descriptor,
    serve::Environment,
    terminal::{self, BOLD, DIM, Failure, PLACE, Verdict, count, paint, wrap},
};
use text::thousands;

/// The columns before a continued line.
const INDENT: usize = 4;

/// The pause between two calls of `--follow`.
const PAUSE: Duration = Duration::from_millis(500);

/// The most refusals or keys in a reply.
const MOST: u16 = 1000;

#[derive(Args, Clone, PartialEq, Debug)]
pub(crate) struct RefusalsArgs {
    /// Refusals of this domain only.
    #[arg(long)]
    domain: Option<String>,
    /// Refusals of descriptors with these entries only.
    #[arg(long, value_name = "KEY=VALUE[,...]")]
    descriptor: Option<Descriptor>,
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
    let reply = refusals(&client, args, args.n, None)?;
    args.admin.print(&reply, || wrap(&keys(&reply, args.shadow), terminal::width(), INDENT));
    Ok((!items(&reply["refusals"]).is_empty()).into())
}

/// The refused keys, the one refused last at the end, as in a log.
fn keys(reply: &Value, is_shadowed: bool) -> String {
    let list = items(&reply["refusals"]);
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
    let others = number(&reply["others"]);
    if others > 0 {
        let others = count(others, noun);
        text.push_str(&paint(DIM, &format!("and {others} of other keys in the last ten minutes\n")));
    }
    text + &answered(reply)
}

/// A refused key in two lines: how often, and why.
fn key(refused: &Value, noun: &str) -> String {
    let cut = if refused["descriptor_cut"] == true { "…" } else { "" };
    let times = number(&refused["count"]);
    let when = match times {
        1 => word(&refused["last"]).to_owned(),
        _ => format!("{} to {}", word(&refused["first"]), word(&refused["last"])),
    };
    let hint = match (refused["file"].as_str(), refused["rule"].as_str()) {
        (Some(file), Some(rule)) => {
            format!(", rule {rule} {}", paint(PLACE, &format!("{file}:{}", number(&refused["line"]))))
        }
        (None, Some(rule)) => format!(", rule {rule}"),
        _ => without_rule(&refused["example"]).to_owned(),
    };
    let example = &refused["example"];
    let hits = number(&example["hits"]);
    let hits = if hits == 1 { String::new() } else { format!(", last with {}", count(hits, "hit")) };
    let retry = match example["retry_after_seconds"].as_u64() {
        _ if example["blocked"].is_object() => String::new(),
        Some(seconds) => format!(", retry after {}", duration(seconds)),
        None => ", never allowed".to_owned(),
    };
    format!(
        "{} {}{cut} {}\n  {}{hits}{retry}{hint}, {}\n",
        word(&refused["domain"]),
        paint(BOLD, &descriptor(&refused["descriptor"])),
        count(times, noun),
        word(&refused["reason"]).to_owned() + &decided(&refused["example"]),
        paint(DIM, &when),
    )
}

/// Prints the last refusals, and those that follow: one by one of the replica that answers, else by key, because the
/// others publish their keys.
fn follow(client: &Client, args: &RefusalsArgs) -> Result<Verdict, Failure> {
    let reply = refusals(client, args, MOST, None)?;
    let mut followed = answered(&reply);
    terminal::print_note(&format!("following: {}", followed.trim_end()));
    let is_one_by_one = reply["scope"] == "this" && reply["replicas"] != "unknown";
    let (mut seen, mut last) = (Seen::new(), 0);
    let mut news = if is_one_by_one {
        items(&refusals(client, args, args.n, Some(last))?["refusals"]).to_vec()
    } else {
        let mut all = new_refusals(&mut seen, &reply, true);
        all.truncate(args.n.into());
        all
    };
    loop {
        for refusal in news.iter().rev() {
            last = last.max(number(&refusal["id"]));
            if args.admin.json {
                terminal::print_json(&format!("{refusal}\n"));
            } else {
                terminal::print(&wrap(&text(refusal), terminal::width(), INDENT));
            }
        }
        if terminal::is_output_closed() {
            return Ok(Verdict::Yes);
        }
        thread::sleep(PAUSE);
        let reply = refusals(client, args, MOST, is_one_by_one.then_some(last))?;
        let answered = answered(&reply);
        let is_of_same = answered == followed;
        if !is_of_same {
            terminal::print_note(&format!("following: {}", answered.trim_end()));
            followed = answered;
        }
        news = if is_one_by_one {
            items(&reply["refusals"]).to_vec()
        } else {
            new_refusals(&mut seen, &reply, is_of_same)
        };
    }
}

/// The refused keys that were printed, each with its count and the time of its last refusal.
type Seen = HashMap<String, (u64, String)>;

/// The last refusal of each key that was refused since, the newest first; it stands for all of them. If other replicas
/// answered than before, the counts do not compare, and it stands for itself.
fn new_refusals(seen: &mut Seen, reply: &Value, is_of_same: bool) -> Vec<Value> {
    let mut news = Vec::new();
    for refused in items(&reply["refusals"]) {
        let is_blocked = refused["example"]["blocked"].is_object();
        let key = format!("{} {} {} {is_blocked}", refused["domain"], refused["rule"], refused["descriptor"]);
        let (count, last) = (number(&refused["count"]), word(&refused["last"]).to_owned());
        let known = seen.insert(key, (count, last.clone()));
        if known.as_ref().is_some_and(|(_, known)| *known >= last) {
            continue;
        }
        let mut refusal = refused["example"].clone();
        let weight = match known {
            Some(_) if !is_of_same => 1,
            // Fewer than before if a replica has replaced another.
            known => count.saturating_sub(known.map_or(0, |(count, _)| count)).max(1),
        };
        refusal["weight"] = weight.into();
        news.push(refusal);
    }
    news
}

/// The newest `n` refused keys; with `after`, the newest refusals with a larger id. The newest come first.
fn refusals(client: &Client, args: &RefusalsArgs, n: u16, after: Option<u64>) -> Result<Value, Failure> {
    let (n, after) = (n.to_string(), after.map(|after| after.to_string()));
    let descriptor = args.descriptor.as_ref().map(ToString::to_string);
    let mut query = vec![("n", n.as_str())];
    query.extend(after.iter().map(|after| ("after", after.as_str())));
    query.extend(args.shadow.then_some(("shadowed", "true")));
    query.extend(args.replica.query());
    query.extend(args.domain.iter().map(|domain| ("domain", domain.as_str())));
    query.extend(descriptor.iter().map(|descriptor| ("descriptor", descriptor.as_str())));
    client.get("/api/v1/refusals", &query)
}

/// ` (override 0123 of shop --entry ip=10.0.0.0/8)`: the override that decided; and whether shadow mode did.
fn decided(refusal: &Value) -> String {
    let shadow = if refusal["shadowed"] == true { ", allowed by shadow mode" } else { "" };
    match &refusal["override"] {
        Value::Null => shadow.to_owned(),
        by => {
            let (id, domain, target) = (word(&by["id"]), word(&by["domain"]), target_text(by));
            format!(" (override {id} of {domain} {target}){shadow}")
        }
    }
}

fn without_rule(refusal: &Value) -> &'static str {
    if refusal["override"].is_null() { ", limit of the request" } else { ", no rule" }
}

/// A refusal in two lines: the descriptor, and the reason.
fn text(refusal: &Value) -> String {
    let blocked = &refusal["blocked"];
    let first = match blocked["until"].as_str() {
        Some(end) => format!("blocked until {end}"),
        None if blocked.is_object() => "blocked until the override is removed".to_owned(),
        None => format!("limit {}", limit(&refusal["limit"])),
    } + &decided(refusal);
    let mut text = format!(
        "{} {} {}\n  {first}",
        paint(DIM, word(&refusal["time"])),
        word(&refusal["domain"]),
        paint(BOLD, &descriptor(&refusal["descriptor"])),
    );
    let mut add = |part: String| text.push_str(&part);
    let (at, of) = (number(&refusal["limit"]["number"]), number(&refusal["limit"]["of"]));
    if of > 1 {
        add(format!(" ({at} of {of})"));
    }
    if let Some(count) = refusal["count"].as_u64() {
        add(format!(", count {}", thousands(count)));
    }
    let hits = number(&refusal["hits"]);
    if hits != 1 {
        add(format!(", {} hits", thousands(hits)));
    }
    match refusal["retry_after_seconds"].as_u64() {
        _ if blocked.is_object() => {}
        Some(seconds) => add(format!(", retry after {}", duration(seconds))),
        None => add(", never allowed".to_owned()),
    }
    match word(&refusal["decided_by"]) {
        "counter" => {}
        by => add(format!(", by {}", by.replace('_', " "))),
    }
    add(match (refusal["file"].as_str(), refusal["rule"].as_str()) {
        (Some(file), Some(rule)) => {
            let place = format!("{file}:{}", number(&refusal["line"]));
            format!(", rule {rule} {}", paint(PLACE, &place))
        }
        (None, Some(rule)) => format!(", rule {rule}"),
        _ => without_rule(refusal).to_owned(),
    });
    let weight = number(&refusal["weight"]);
    if weight > 1 {
        add(format!(", one of {weight}"));
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::terminal::plain;

    #[test]
    fn a_refusal_stands_for_those_of_the_same_replicas_since_the_last_answer() {
        let mut seen = Seen::new();
        let mut weights = |count: u64, last: &str, is_of_same| -> Vec<u64> {
            let refused =
                json!({ "domain": "shop", "rule": "shop.user", "count": count, "last": last, "example": {} });
            let news = new_refusals(&mut seen, &json!({ "refusals": [refused] }), is_of_same);
            news.iter().map(|refusal| number(&refusal["weight"])).collect()
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
        assert_eq!(plain(&text(&refusal)), expected);
        let refused = json!({
            "domain": "shop", "descriptor": [{ "key": "user", "value": "ann" }], "rule": "shop.user",
            "file": "shop.yaml", "line": 12, "count": 1432, "first": "t1", "last": "t2",
            "reason": "over 2 per hour", "example": { "hits": 1, "retry_after_seconds": 61 },
        });
        let expected = "shop user=ann 1,432 refusals\n  over 2 per hour, retry after 1m 1s, rule shop.user \
            shop.yaml:12, t1 to t2\nand 7 refusals of other keys in the last ten minutes\n";
        assert_eq!(plain(&keys(&json!({ "refusals": [refused], "others": 7 }), false)), expected);
        let bare = json!({
            "time": "t", "domain": "d", "descriptor": [], "rule": null, "file": null, "count": null, "hits": 1,
            "limit": { "requests_per_unit": 5, "unit": "HOUR", "unit_multiplier": 1, "number": 1, "of": 1 },
            "retry_after_seconds": null, "decided_by": "counter",
        });
        assert_eq!(plain(&text(&bare)), "t d \n  limit 5 per hour, never allowed, limit of the request\n");
        let mut blocked = bare;
        blocked["decided_by"] = json!("override");
        blocked["rule"] = json!("d.k");
        blocked["blocked"] = json!({ "until": "2026-11-22T11:00:00.000Z" });
        assert_eq!(
            plain(&text(&blocked)),
            "t d \n  blocked until 2026-11-22T11:00:00.000Z, by override, rule d.k\n"
        );
        blocked["blocked"] = json!({ "until": null });
        assert!(plain(&text(&blocked)).contains("\n  blocked until the override is removed, by override"));
    }
}
