//! `tollgate top`: the keys with the most refused or allowed hits.

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::{
    AdminArgs, Client,
    format::{Table, descriptor, duration, items, number, word},
};
use crate::cli::{
    serve::Environment,
    server,
    terminal::{self, DIM, Failure, Verdict, paint, thousands, wrap},
};

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
    /// The number of keys.
    #[arg(short, value_name = "N", default_value_t = 20, value_parser = server::rows)]
    n: u16,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    /// By refused hits.
    Refused,
    /// By allowed hits.
    Allowed,
}

/// Prints the keys. The verdict is no if there are none.
pub(crate) fn run(args: &TopArgs, environment: &Environment) -> Result<Verdict, Failure> {
    let (n, by) = (args.n.to_string(), if args.by == By::Refused { "refused" } else { "allowed" });
    let mut query = vec![("n", n.as_str()), ("by", by)];
    query.extend(args.domain.iter().map(|domain| ("domain", domain.as_str())));
    query.extend(args.rule.iter().map(|rule| ("rule", rule.as_str())));
    let top = Client::new(&args.admin, environment)?.get("/api/v1/top", &query)?;
    args.admin.print(&top, || text(&top, by));
    Ok((!items(&top["keys"]).is_empty()).into())
}

fn text(top: &Value, by: &str) -> String {
    let window = duration(number(&top["window_seconds"]));
    let keys = items(&top["keys"]);
    if keys.is_empty() {
        return wrap(&format!("no {by} hits in the last {window}\n"), terminal::width(), 0);
    }
    let mut table = Table::new(&["rule", "descriptor", "#refused", "#allowed"]);
    for key in keys {
        let error = number(&key["error"]);
        let hits = |name: &str| match number(&key[name]) {
            0 => "0".to_owned(),
            hits if error > 0 => format!("{} ±{}", thousands(hits), thousands(error)),
            hits => thousands(hits),
        };
        let rule = word(&key["rule"]).to_owned();
        table.row([rule, descriptor(&key["descriptor"]), hits("refused"), hits("allowed")]);
    }
    let foot = format!("{}\n", paint(DIM, &format!("hits of the last {window}")));
    table.print() + &wrap(&foot, terminal::width(), 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::terminal::plain;

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
        let none = json!({ "keys": [], "window_seconds": 60 });
        assert_eq!(text(&none, "allowed"), "no allowed hits in the last 1m\n");
    }
}
