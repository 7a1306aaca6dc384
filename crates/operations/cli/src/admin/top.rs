//! `tollgate top`: the keys with the most refused, shadowed or allowed hits, or descriptors that meet no rule.

use clap::{Args, ValueEnum};

use super::{AdminArgs, Client, KeyArgs, ReplicaArgs, Reply, answered, overrides::effect_text};
use crate::{
    endpoint,
    format::{descriptor, duration, word},
    serve::Environment,
    table::Table,
    terminal::{DIM, Failure, Verdict, paint, wrapped},
};
use api::{Top, Unmatched};
use text::thousands;

#[derive(Args, Clone, PartialEq, Debug)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    key: KeyArgs,
    /// Keys of this rule only: its full key, as in the table.
    #[arg(long)]
    rule: Option<String>,
    /// The order of the keys.
    #[arg(long, value_enum, default_value_t = By::Refused)]
    by: By,
    /// Descriptors that meet no rule, and those of domains without rules, instead of keys.
    #[arg(long, conflicts_with_all = ["rule", "by", "descriptor", "descriptor_option"])]
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
    let mut query = [args.key.query(), args.replica.query()].concat();
    query.push(("n", args.n.to_string()));
    query.push(if args.unmatched { ("unmatched", "true".to_owned()) } else { ("by", by.to_owned()) });
    query.extend(args.rule.clone().map(|rule| ("rule", rule)));
    let client = Client::new(&args.admin, environment)?;
    if args.unmatched {
        let top: Reply<Unmatched> = client.get("/api/v1/top", query)?;
        client.print(&top, |top| unmatched(top) + &wrapped(&answered(&top.window.whose), 0));
        return Ok((!top.unmatched.is_empty()).into());
    }
    let top: Reply<Top> = client.get("/api/v1/top", query)?;
    client.print(&top, |top| text(top, by) + &wrapped(&answered(&top.window.whose), 0));
    Ok((!top.keys.is_empty()).into())
}

fn unmatched(Unmatched { unmatched: shapes, window, .. }: &Unmatched) -> String {
    let window = duration(window.window_seconds);
    if shapes.is_empty() {
        return wrapped(&format!("every descriptor of the last {window} met a rule\n"), 0);
    }
    let mut table = Table::new(&["reason", "domain", "descriptor", "#descriptors"]);
    for shape in shapes {
        let reason = word(shape.reason.as_deref()).replace('_', " ");
        let example = descriptor(&shape.descriptor);
        table.row([reason, shape.domain.clone(), example, with_error(shape.count, shape.error)]);
    }
    let foot =
        format!("of the last {window}; each line is a domain, or the keys of descriptors, with an example\n");
    table.print() + &wrapped(&paint(DIM, &foot), 0)
}

/// A count and its error.
fn with_error(count: u64, error: u64) -> String {
    match (count, error) {
        (0, _) => "0".to_owned(),
        (count, 0) => thousands(count),
        (count, error) => format!("{} ±{}", thousands(count), thousands(error)),
    }
}

fn text(Top { keys, window }: &Top, by: &str) -> String {
    let window = duration(window.window_seconds);
    if keys.is_empty() {
        return wrapped(&format!("no {by} hits in the last {window}\n"), 0);
    }
    let mut columns = vec!["rule", "descriptor", "#refused", "#allowed"];
    let has_shadowed = keys.iter().any(|key| key.shadowed > 0);
    if has_shadowed {
        columns.insert(3, "#shadowed");
    }
    let has_overrides = keys.iter().any(|key| key.by_override.is_some());
    columns.extend(has_overrides.then_some("override"));
    let mut table = Table::new(&columns);
    for key in keys {
        let hits = |count| with_error(count, key.error);
        let rule = key.rule.clone().unwrap_or_else(|| format!("{} (no rule)", key.domain));
        let mut row = vec![rule, descriptor(&key.descriptor), hits(key.refused), hits(key.allowed)];
        if has_shadowed {
            row.insert(3, hits(key.shadowed));
        }
        row.extend(has_overrides.then(|| key.by_override.as_ref().map(effect_text).unwrap_or_default()));
        table.row(row);
    }
    let shadowed = if has_shadowed { "; shadowed: over the limit, and allowed by shadow mode" } else { "" };
    let foot = format!("{}\n", paint(DIM, &format!("hits of the last {window}{shadowed}")));
    table.print() + &wrapped(&foot, 0)
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;
    use crate::terminal::plain;

    fn read<T: DeserializeOwned>(json: &Value) -> T {
        serde_json::from_value(json.clone()).unwrap()
    }

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
        assert_eq!(plain(&text(&read(&top), "refused")), expected);
        let mut shadowed = key("bob", 0, 0);
        shadowed["shadowed"] = json!(2200);
        let top = json!({ "keys": [key("ann", 3, 0), shadowed], "window_seconds": 185 });
        let expected = "\
RULE       DESCRIPTOR  REFUSED  SHADOWED  ALLOWED
shop.user  user=ann          3         0        7
shop.user  user=bob          0     2,200        7
hits of the last 3m 5s; shadowed: over the limit, and allowed by shadow mode
";
        assert_eq!(plain(&text(&read(&top), "refused")), expected);
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
        assert!(plain(&unmatched(&read(&top))).starts_with(expected), "{}", plain(&unmatched(&read(&top))));
        let none = json!({ "keys": [], "window_seconds": 60 });
        assert_eq!(unmatched(&read(&none)), "every descriptor of the last 1m met a rule\n");
        assert_eq!(text(&read(&none), "allowed"), "no allowed hits in the last 1m\n");
    }
}
