//! `tollgate counter`: the usage of a descriptor's limits, and their reset.

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Value, json};

use super::{
    AdminArgs, Client,
    format::{Table, duration, items, limit, number, word},
    overrides::effect_text,
};
use crate::{
    serve::Environment,
    terminal::{BOLD, Failure, Verdict, WARNING, count, paint},
};
use text::{entries, thousands};

#[derive(Subcommand, Clone, PartialEq, Debug)]
pub(crate) enum CounterCommand {
    /// Show the usage of a descriptor's limits, without counting.
    ///
    /// Exits with 0 when a limit applies, 1 when none does, and 2 when there is no response.
    Get {
        #[command(flatten)]
        counter: Counter,
    },
    /// Reset the counters of a descriptor, in all replicas that share the store.
    ///
    /// Exits with 0 when they are reset, 1 when no limit applies, and 2 when there is no response.
    Reset {
        #[command(flatten)]
        counter: Counter,
        /// The reason, for the log.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
}

#[derive(Args, Clone, PartialEq, Debug)]
pub(crate) struct Counter {
    /// The domain.
    pub(super) domain: String,
    /// The descriptor; a comma within a value is written `\,`.
    #[arg(value_name = "KEY=VALUE[,...]")]
    pub(super) descriptor: String,
    #[command(flatten)]
    pub(super) admin: AdminArgs,
}

pub(crate) fn run(command: &CounterCommand, environment: &Environment) -> Result<Verdict, Failure> {
    let (CounterCommand::Get { counter } | CounterCommand::Reset { counter, .. }) = command;
    // Typing errors are reported before anything is sent.
    entries::parse(&counter.descriptor).map_err(|error| format!("{}: {error}", counter.descriptor))?;
    let client = Client::new(&counter.admin, environment)?;
    match command {
        CounterCommand::Get { counter } => get(&client, counter),
        CounterCommand::Reset { counter, reason } => reset(&client, counter, reason.as_deref()),
    }
}

fn get(client: &Client, counter: &Counter) -> Result<Verdict, Failure> {
    let query = [("domain", counter.domain.as_str()), ("descriptor", counter.descriptor.as_str())];
    let reply = client.get("/api/v1/counters", &query)?;
    counter.admin.print(&reply, || text(counter, &reply));
    Ok((!items(&reply["limits"]).is_empty()).into())
}

fn text(counter: &Counter, reply: &Value) -> String {
    let limits = items(&reply["limits"]);
    let mut rule = match reply["rule"].as_str() {
        Some(rule) => format!("rule {rule}"),
        None => paint(WARNING, "no rule matches"),
    };
    if limits.is_empty() {
        rule.push_str(", no limit applies");
    }
    let mut text =
        format!("{}: {rule}\n", paint(BOLD, &format!("{} {}", counter.domain, counter.descriptor)));
    let current = &reply["override"];
    if !current.is_null() {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "override: {}", effect_text(current));
    }
    if limits.is_empty() {
        return text;
    }
    if limits.iter().any(|one| one["held"].is_u64()) {
        return text + &with_holds(limits);
    }
    let mut table = Table::new(&["limit", "algorithm", "#used", "#remaining", "#resets in"]);
    for one in limits {
        table.row([
            limit(one),
            word(&one["algorithm"]).to_owned(),
            thousands(number(&one["used"])),
            thousands(number(&one["remaining"])),
            duration(number(&one["resets_in_seconds"])),
        ]);
    }
    text + &table.print()
}

/// The limits of a rule that holds.
fn with_holds(limits: &[Value]) -> String {
    let mut table = Table::new(&["limit", "algorithm", "#spent", "#held", "#remaining", "#resets in"]);
    for one in limits {
        table.row([
            limit(one),
            word(&one["algorithm"]).to_owned(),
            thousands(number(&one["spent"])),
            thousands(number(&one["held"])),
            thousands(number(&one["remaining"])),
            duration(number(&one["resets_in_seconds"])),
        ]);
    }
    table.print()
}

fn reset(client: &Client, counter: &Counter, reason: Option<&str>) -> Result<Verdict, Failure> {
    let body = json!({"domain": counter.domain, "descriptor": counter.descriptor, "reason": reason});
    let reply = match client.call(Method::POST, "/api/v1/counters/reset", Some(&body)) {
        Err(failure) if failure.is_not_found => {
            // No limit applies: the words and the verdict are those of `get`.
            return get(client, counter);
        }
        reply => reply?,
    };
    counter.admin.print(&reply, || {
        let counters = count(number(&reply["reset"]), "counter");
        format!("reset {counters} of {} {}\n", counter.domain, counter.descriptor)
    });
    Ok(Verdict::Yes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::plain;

    #[test]
    fn counters_are_printed_as_a_table() {
        let counter = Counter {
            domain: "shop".to_owned(),
            descriptor: "user=ann".to_owned(),
            admin: AdminArgs::default(),
        };
        let reply = json!({
            "rule": "shop.user", "override": {"action": "block"},
            "limits": [{
                "requests_per_unit": 1000, "unit": "MINUTE", "unit_multiplier": 15, "algorithm": "token_bucket",
                "used": 12, "remaining": 988, "resets_in_seconds": 61,
            }],
        });
        let expected = "shop user=ann: rule shop.user\noverride: blocked until the override is removed\n\
            LIMIT                 ALGORITHM     USED  REMAINING  RESETS IN\n\
            1,000 per 15 minutes  token_bucket    12        988      1m 1s\n";
        assert_eq!(plain(&text(&counter, &reply)), expected);
        assert_eq!(
            plain(&text(&counter, &Value::Null)),
            "shop user=ann: no rule matches, no limit applies\n"
        );
    }
}
