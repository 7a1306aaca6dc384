//! `tollgate refusals`: the last refused requests and why, and with `--follow` those that come.

use std::{fmt::Write as _, thread, time::Duration};

use clap::Args;
use serde_json::Value;

use super::{
    AdminArgs, Client, Failure,
    format::{descriptor, number, thousands, word},
    print_json, run as run_admin,
};
use crate::cli::{
    request::Descriptor,
    serve::Environment,
    terminal::{self, BOLD, DIM, PLACE, Verdict, paint},
};

/// The pause between two calls of `--follow`.
const PAUSE: Duration = Duration::from_millis(500);

/// The arguments of `tollgate refusals`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct RefusalsArgs {
    /// Refusals of this domain only.
    #[arg(long)]
    pub domain: Option<String>,
    /// Refusals of descriptors with these entries only.
    #[arg(long, value_name = "KEY=VALUE[,...]")]
    pub descriptor: Option<Descriptor>,
    /// How many of the last refusals.
    #[arg(short, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub n: u16,
    /// Print refusals as they come, until interrupted; with --json, a line for each.
    #[arg(long)]
    pub follow: bool,
    /// Where the admin API is.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// Prints the refusals. The verdict is no when there are none.
#[must_use]
pub fn run(args: &RefusalsArgs, environment: &Environment) -> Verdict {
    run_admin(&args.admin, environment, |client| {
        let reply = refusals(client, args, args.n, 0)?;
        if args.follow {
            return follow(client, args, &reply);
        }
        if args.admin.json {
            print_json(&reply);
        } else if list(&reply).is_empty() {
            terminal::print("no refusals\n");
        } else {
            terminal::print(&list(&reply).iter().rev().map(text).collect::<String>());
        }
        Ok(Verdict::from(!list(&reply).is_empty()))
    })
}

/// Prints these refusals, and those that come after them.
fn follow(client: &Client, args: &RefusalsArgs, first: &Value) -> Result<Verdict, Failure> {
    let mut reply = first.clone();
    let mut last = 0;
    loop {
        for refusal in list(&reply).iter().rev() {
            last = last.max(number(&refusal["id"]));
            if args.admin.json {
                terminal::print_data(&format!("{refusal}\n"));
            } else {
                terminal::print(&text(refusal));
            }
        }
        thread::sleep(PAUSE);
        reply = refusals(client, args, 1000, last)?;
    }
}

fn refusals(client: &Client, args: &RefusalsArgs, n: u16, after: u64) -> Result<Value, Failure> {
    let (n, after) = (n.to_string(), after.to_string());
    let descriptor = args.descriptor.as_ref().map(ToString::to_string);
    let mut query = vec![("n", n.as_str()), ("after", after.as_str())];
    query.extend(args.domain.iter().map(|domain| ("domain", domain.as_str())));
    query.extend(descriptor.iter().map(|descriptor| ("descriptor", descriptor.as_str())));
    client.get("/api/v1/refusals", &query)
}

/// The refusals of a reply, the newest first.
fn list(reply: &Value) -> &[Value] {
    reply["refusals"].as_array().map_or(&[], Vec::as_slice)
}

/// A refusal in two lines: who, and why.
fn text(refusal: &Value) -> String {
    let mut text = format!(
        "{} {} {}\n  ",
        paint(DIM, word(&refusal["time"])),
        word(&refusal["domain"]),
        paint(BOLD, &descriptor(&refusal["descriptor"])),
    );
    let limit = &refusal["limit"];
    let multiplier = number(&limit["unit_multiplier"]);
    let unit = word(&limit["unit"]).to_lowercase();
    let per = if multiplier > 1 { format!("{multiplier} {unit}s") } else { unit };
    // Writing to a String cannot fail.
    let _ = write!(text, "limit {} per {per}", thousands(number(&limit["requests_per_unit"])));
    if number(&limit["of"]) > 1 {
        let _ = write!(text, " ({} of {})", number(&limit["number"]), number(&limit["of"]));
    }
    if let Some(count) = refusal["count"].as_u64() {
        let _ = write!(text, ", count {}", thousands(count));
    }
    let hits = number(&refusal["hits"]);
    if hits != 1 {
        let _ = write!(text, ", {} hits", thousands(hits));
    }
    match refusal["retry_after_seconds"].as_u64() {
        Some(seconds) => _ = write!(text, ", retry after {seconds}s"),
        None => text.push_str(", never fits"),
    }
    match word(&refusal["decided_by"]) {
        "counter" => {}
        by => _ = write!(text, ", by {}", by.replace('_', " ")),
    }
    match (refusal["file"].as_str(), refusal["rule"].as_str()) {
        (Some(file), Some(rule)) => {
            _ = write!(
                text,
                ", rule {rule} {}",
                paint(PLACE, &format!("{file}:{}", number(&refusal["line"])))
            );
        }
        (None, Some(rule)) => _ = write!(text, ", rule {rule}"),
        _ => text.push_str(", limit of the request"),
    }
    let weight = number(&refusal["weight"]);
    if weight > 1 {
        let _ = write!(text, ", one of {weight}");
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::terminal::plain;

    #[test]
    fn a_refusal_says_who_and_why() {
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
        assert_eq!(plain(&text(&bare)), "t d \n  limit 5 per hour, never fits, limit of the request\n");
    }
}
