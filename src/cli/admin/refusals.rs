//! `tollgate refusals`: the last refused requests with their reasons; with `--follow` also new ones.

use std::{thread, time::Duration};

use clap::Args;
use serde_json::Value;

use super::{
    AdminArgs, Client,
    format::{descriptor, duration, items, limit, number, word},
};
use crate::cli::{
    request::Descriptor,
    serve::Environment,
    server,
    terminal::{self, BOLD, DIM, Failure, PLACE, Verdict, paint, thousands, wrap},
};

/// The columns before a continued line.
const INDENT: usize = 4;

/// The pause between two calls of `--follow`.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Args, Clone, PartialEq, Debug)]
pub(crate) struct RefusalsArgs {
    /// Refusals of this domain only.
    #[arg(long)]
    domain: Option<String>,
    /// Refusals of descriptors with these entries only.
    #[arg(long, value_name = "KEY=VALUE[,...]")]
    descriptor: Option<Descriptor>,
    /// The number of refusals.
    #[arg(short, value_name = "N", default_value_t = 20, value_parser = server::rows)]
    n: u16,
    /// Print new refusals until interrupted; with --json, a line for each.
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Prints the refusals. The verdict is no if there are none.
pub(crate) fn run(args: &RefusalsArgs, environment: &Environment) -> Result<Verdict, Failure> {
    let client = Client::new(&args.admin, environment)?;
    let reply = refusals(&client, args, args.n, 0)?;
    if args.follow {
        return follow(&client, args, reply);
    }
    let list = items(&reply["refusals"]);
    args.admin.print(&reply, || match list {
        [] => "no refusals\n".to_owned(),
        list => wrap(&list.iter().rev().map(text).collect::<String>(), terminal::width(), INDENT),
    });
    Ok((!list.is_empty()).into())
}

/// Prints the refusals of a reply, and those that follow.
fn follow(client: &Client, args: &RefusalsArgs, mut reply: Value) -> Result<Verdict, Failure> {
    let mut last = 0;
    loop {
        for refusal in items(&reply["refusals"]).iter().rev() {
            last = last.max(number(&refusal["id"]));
            if args.admin.json {
                terminal::print_data(&format!("{refusal}\n"));
            } else {
                terminal::print(&wrap(&text(refusal), terminal::width(), INDENT));
            }
        }
        if terminal::is_output_closed() {
            return Ok(Verdict::Yes);
        }
        thread::sleep(PAUSE);
        reply = refusals(client, args, 1000, last)?;
    }
}

/// The newest `n` refusals with an id above `after`, the newest first.
fn refusals(client: &Client, args: &RefusalsArgs, n: u16, after: u64) -> Result<Value, Failure> {
    let (n, after) = (n.to_string(), after.to_string());
    let descriptor = args.descriptor.as_ref().map(ToString::to_string);
    let mut query = vec![("n", n.as_str()), ("after", after.as_str())];
    query.extend(args.domain.iter().map(|domain| ("domain", domain.as_str())));
    query.extend(descriptor.iter().map(|descriptor| ("descriptor", descriptor.as_str())));
    client.get("/api/v1/refusals", &query)
}

/// A refusal in two lines: the descriptor, and the reason.
fn text(refusal: &Value) -> String {
    let blocked = &refusal["blocked"];
    let first = match blocked["until"].as_str() {
        Some(end) => format!("blocked until {end}"),
        None if blocked.is_object() => "blocked until the override is removed".to_owned(),
        None => format!("limit {}", limit(&refusal["limit"])),
    };
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
        _ => ", limit of the request".to_owned(),
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
    use crate::cli::terminal::plain;

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
