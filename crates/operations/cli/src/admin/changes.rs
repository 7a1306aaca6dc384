//! `tollgate changes`: what changed, when, where, by whom, and why.

use std::fmt::Write as _;

use clap::Args;

use super::{AdminArgs, Client, Reply};
use crate::{
    endpoint,
    serve::Environment,
    terminal::{BOLD, DIM, Failure, PLACE, Verdict, count, paint, wrapped},
};
use api::{Change, Changes};
use text::printable;

/// The columns before a continued line.
const INDENT: usize = 4;

#[derive(Args, Clone, PartialEq, Debug)]
pub(crate) struct ChangesArgs {
    /// The number of changes.
    #[arg(short, value_name = "N", default_value_t = 20, value_parser = endpoint::rows)]
    n: u16,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Prints the changes, the newest first. The verdict is no if there are none.
pub(crate) fn run(args: &ChangesArgs, environment: &Environment) -> Result<Verdict, Failure> {
    let client = Client::new(&args.admin, environment)?;
    let reply: Reply<Changes> = client.get("/api/v1/changes", vec![("n", args.n.to_string())])?;
    client.print(&reply, |Changes { changes, .. }| match changes.as_slice() {
        [] => "no changes\n".to_owned(),
        changes => wrapped(&changes.iter().map(text).collect::<String>(), INDENT),
    });
    Ok((!reply.changes.is_empty()).into())
}

/// A change in a line, and one for each rule.
fn text(change: &Change) -> String {
    let after = |word: &str, text: &Option<String>| {
        text.as_deref().map(|text| format!("{word} {}", printable(text))).unwrap_or_default()
    };
    let by = after(" by", &change.by);
    let reason = after(":", &change.reason);
    let replicas = match change.replicas.as_slice() {
        [replica] => format!(" on {replica}"),
        all => format!(" on {}", count(all.len(), "replica")),
    };
    let mut text = format!(
        "{} {}: {};{by}{}{reason}\n",
        paint(DIM, &change.time),
        paint(BOLD, &change.action.replace('_', " ")),
        printable(&change.what),
        paint(DIM, &printable(&replicas)),
    );
    for rule in &change.rules {
        let limits = match (&rule.old, &rule.new) {
            (Some(old), Some(new)) => format!("{old} to {new}"),
            (None, new) => format!("new, {}", new.as_deref().unwrap_or_default()),
            (Some(old), None) => format!("removed, was {old}"),
        };
        let place = rule.file.as_ref().map(|file| format!(" {file}:{}", rule.line.unwrap_or_default()));
        let place = paint(PLACE, &place.unwrap_or_default());
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {}: {limits}{place}", printable(&rule.rule));
    }
    if change.more_rules > 0 {
        let _ = writeln!(text, "  and {}", count(change.more_rules, "other rule"));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::terminal::plain;

    #[test]
    fn a_change_is_a_line_and_its_rules_are_below() {
        let change = json!({
            "time": "t", "action": "rules_reloaded", "what": "3 rules changed, hash 1 to 2", "by": null, "reason": null,
            "replicas": ["a", "b", "c"], "more_rules": 7,
            "rules": [
                { "rule": "shop.user", "old": "5 per minute", "new": "6 per minute", "file": "a.yaml", "line": 4 },
                { "rule": "shop.path", "old": null, "new": "unlimited", "file": null, "line": null },
                { "rule": "shop.ip", "old": "5 per day", "new": null, "file": "a.yaml", "line": 9 },
            ],
        });
        let expected = "t rules reloaded: 3 rules changed, hash 1 to 2; on 3 replicas\n  shop.user: 5 per minute to 6 per minute \
            a.yaml:4\n  shop.path: new, unlimited\n  shop.ip: removed, was 5 per day a.yaml:9\n  and 7 other rules\n";
        assert_eq!(plain(&text(&serde_json::from_value(change).unwrap())), expected);
        let change = json!({
            "time": "t", "action": "override_set", "what": "shop user=ann, block", "by": "ann@laptop",
            "reason": "ticket 1", "replicas": ["a"],
        });
        let expected = "t override set: shop user=ann, block; by ann@laptop on a: ticket 1\n";
        assert_eq!(plain(&text(&serde_json::from_value(change).unwrap())), expected);
    }
}
