//! `tollgate top`: the keys with the most refused, shadowed or allowed hits, or descriptors that meet no rule.

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::{
    AdminArgs, Client, ReplicaArgs, answered,
    format::{Table, descriptor, duration, items, number, word},
    overrides::effect_text,
};
use crate::{
    endpoint,
    serve::Environment,
    terminal::{self, DIM, Failure, Verdict, paint, wrap},
};
use text::thousands;

#[derive(Args, Clone, PartialEq, Debug)]
pub(crate) struct TopArgs {
    /// Keys of this domain only.
    #[arg(long)]
    domain: Option<String>,
    /// Keys of this rule only: its full key, as in the table.
    #[arg(long)]
    rule: Option<String>,
    /// The order of the keys.
    #[arg(long, value_enum, default_value_t = By::Refused)]
    by: By,
    /// Descriptors that meet no rule, and those of domains without rules, instead of keys.
    #[arg(long, conflicts_with_all = ["rule", "by"])]
    unmatched: bool,
    /// The number of keys.
    #[arg(short, value_name = "N", default_value_t = 20, value_parser = endpoint::rows)]
    n: u16,
    #[command(flatten)]
    replica: ReplicaArgs,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    /// By refused hits, then by those over the limit that shadow mode allowed.
    Refused,
    /// By hits over the limit that shadow mode allowed.
    Shadowed,
    /// By allowed hits.
    Allowed,
}

/// Prints the keys. The verdict is no if there are none.
pub(crate) fn run(args: &TopArgs, environment: &Environment) -> Result<Verdict, Failure> {
    let by = match args.by {
        By::Refused => "refused",
        By::Shadowed => "shadowed",
        By::Allowed => "allowed",
    };
    let n = args.n.to_string();
    let mut query = vec![("n", n.as_str()), if args.unmatched { ("unmatched", "true") } else { ("by", by) }];
    query.extend(args.domain.iter().map(|domain| ("domain", domain.as_str())));
    query.extend(args.rule.iter().map(|rule| ("rule", rule.as_str())));
    query.extend(args.replica.query());
    let top = Client::new(&args.admin, environment)?.get("/api/v1/top", &query)?;
    args.admin.print(&top, || {
        let text = if args.unmatched { unmatched(&top) } else { text(&top, by) };
        text + &wrap(&answered(&top), terminal::width(), 0)
    });
    let list = if args.unmatched { "unmatched" } else { "keys" };
    Ok((!items(&top[list]).is_empty()).into())
}

fn unmatched(top: &Value) -> String {
    let window = duration(number(&top["window_seconds"]));
    let shapes = items(&top["unmatched"]);
    if shapes.is_empty() {
        return wrap(&format!("every descriptor of the last {window} met a rule\n"), terminal::width(), 0);
    }
    let mut table = Table::new(&["reason", "domain", "descriptor", "#descriptors"]);
    for shape in shapes {
        let reason = word(&shape["reason"]).replace('_', " ");
        let example = descriptor(&shape["descriptor"]);
        table.row([reason, word(&shape["domain"]).to_owned(), example, with_error(shape, "count")]);
    }
    let foot =
        format!("of the last {window}; each line is a domain, or the keys of descriptors, with an example\n");
    table.print() + &wrap(&paint(DIM, &foot), terminal::width(), 0)
}

/// A count and its error.
fn with_error(row: &Value, name: &str) -> String {
    match (number(&row[name]), number(&row["error"])) {
        (0, _) => "0".to_owned(),
        (count, 0) => thousands(count),
        (count, error) => format!("{} ±{}", thousands(count), thousands(error)),
    }
}

fn text(top: &Value, by: &str) -> String {
    let window = duration(number(&top["window_seconds"]));
    let keys = items(&top["keys"]);
    if keys.is_empty() {
        return wrap(&format!("no {by} hits in the last {window}\n"), terminal::width(), 0);
    }
    let mut columns = vec!["rule", "descriptor", "#refused", "#allowed"];
    let has_shadowed = keys.iter().any(|key| number(&key["shadowed"]) > 0);
    if has_shadowed {
        columns.insert(3, "#shadowed");
    }
    let has_overrides = keys.iter().any(|key| key["override"].is_object());
    columns.extend(has_overrides.then_some("override"));
    let mut table = Table::new(&columns);
    for key in keys {
        let hits = |name: &str| with_error(key, name);
        let rule = key["rule"].as_str().map(str::to_owned);
        let rule = rule.unwrap_or_else(|| format!("{} (no rule)", word(&key["domain"])));
        let mut row = vec![rule, descriptor(&key["descriptor"]), hits("refused"), hits("allowed")];
        if has_shadowed {
            row.insert(3, hits("shadowed"));
        }
        let by = &key["override"];
        row.extend(has_overrides.then(|| if by.is_null() { String::new() } else { effect_text(by) }));
        table.row(row);
    }
    let shadowed = if has_shadowed { "; shadowed: over the limit, and allowed by shadow mode" } else { "" };
    let foot = format!("{}\n", paint(DIM, &format!("hits of the last {window}{shadowed}")));
    table.print() + &wrap(&foot, terminal::width(), 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::terminal::plain;

    #[test]
    fn keys_are_rows_and_errors_are_shown() {
        let key = |user: &str, refused: u64, error: u64| {
            json!({
                "domain": "shop", "rule": "shop.user", "descriptor": [{ "key": "user", "value": user }],
                "allowed": 7, "refused": refused, "error": error,
            })
        };
        let top = json!({ "keys": [key("ann", 1200, 0), key("a,b", 3, 2)], "window_seconds": 185 });
        let expected = "\
RULE       DESCRIPTOR  REFUSED  ALLOWED
shop.user  user=ann      1,200        7
shop.user  user=a\\,b      3 ±2     7 ±2
hits of the last 3m 5s
";
        assert_eq!(plain(&text(&top, "refused")), expected);
        let mut shadowed = key("bob", 0, 0);
        shadowed["shadowed"] = json!(2200);
        let top = json!({ "keys": [key("ann", 3, 0), shadowed], "window_seconds": 185 });
        let expected = "\
RULE       DESCRIPTOR  REFUSED  SHADOWED  ALLOWED
shop.user  user=ann          3         0        7
shop.user  user=bob          0     2,200        7
hits of the last 3m 5s; shadowed: over the limit, and allowed by shadow mode
";
        assert_eq!(plain(&text(&top, "refused")), expected);
        let shape = |reason: &str, domain: &str, error: u64| {
            json!({
                "reason": reason, "domain": domain, "descriptor": [{ "key": "usr", "value": "ann" }],
                "count": 1200, "error": error,
            })
        };
        let top = json!({
            "unmatched": [shape("unknown_domain", "shpo", 0), shape("no_rule", "shop", 3)], "window_seconds": 60,
        });
        let expected = "\
REASON          DOMAIN  DESCRIPTOR  DESCRIPTORS
unknown domain  shpo    usr=ann           1,200
no rule         shop    usr=ann        1,200 ±3
";
        assert!(plain(&unmatched(&top)).starts_with(expected), "{}", plain(&unmatched(&top)));
        let none = json!({ "keys": [], "window_seconds": 60 });
        assert_eq!(unmatched(&none), "every descriptor of the last 1m met a rule\n");
        assert_eq!(text(&none, "allowed"), "no allowed hits in the last 1m\n");
    }
}
