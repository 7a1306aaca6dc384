//! `tollgate counter`: what is used and left of a descriptor's limits, and their reset.

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Value, json};

use super::{
    AdminArgs, Client, Failure,
    format::{Table, duration, number, thousands, word},
    overrides::{action_text, descriptor_json, left_text},
    print_json, run as run_admin,
};
use crate::cli::{
    serve::Environment,
    terminal::{self, BOLD, Verdict, WARNING, paint},
};

/// The arguments of `tollgate counter`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct CounterArgs {
    #[command(subcommand)]
    #[expect(missing_docs, reason = "help is that of the commands")]
    pub command: CounterCommand,
}

/// What is done with the counters.
#[derive(Subcommand, Clone, PartialEq, Debug)]
pub enum CounterCommand {
    /// Show what is used and left of a descriptor's limits, without counting.
    ///
    /// Exits with 0 when a limit applies, 1 when none does, and 2 when there is no response.
    Get {
        #[command(flatten)]
        #[expect(missing_docs, reason = "help is that of its fields")]
        counter: Counter,
    },
    /// Reset the counters of a descriptor, as if they had never been used, in all replicas that share the store.
    Reset {
        #[command(flatten)]
        #[expect(missing_docs, reason = "help is that of its fields")]
        counter: Counter,
        /// Why; it is logged.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
}

/// Which counters.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct Counter {
    /// The domain.
    pub domain: String,
    /// The descriptor; a comma within a value is written `\,`.
    #[arg(value_name = "KEY=VALUE[,...]")]
    pub descriptor: String,
    #[command(flatten)]
    #[expect(missing_docs, reason = "help is that of its fields")]
    pub admin: AdminArgs,
}

/// Shows or resets counters.
#[must_use]
pub fn run(args: &CounterArgs, environment: &Environment) -> Verdict {
    match &args.command {
        CounterCommand::Get { counter } => {
            run_admin(&counter.admin, environment, |client| get(client, counter))
        }
        CounterCommand::Reset { counter, reason } => {
            run_admin(&counter.admin, environment, |client| reset(client, counter, reason.as_deref()))
        }
    }
}

fn get(client: &Client, counter: &Counter) -> Result<Verdict, Failure> {
    // What is mistyped is found before anything is sent.
    descriptor_json(&counter.descriptor)?;
    let query = [("domain", counter.domain.as_str()), ("descriptor", counter.descriptor.as_str())];
    let reply = client.get("/api/v1/counters", &query)?;
    if counter.admin.json {
        print_json(&reply);
    } else {
        terminal::print(&text(counter, &reply));
    }
    let is_limited = reply["limits"].as_array().is_some_and(|limits| !limits.is_empty());
    Ok(is_limited.into())
}

fn text(counter: &Counter, reply: &Value) -> String {
    let rule = match reply["rule"].as_str() {
        Some(rule) => format!("rule {rule}"),
        None => paint(WARNING, "no rule matches"),
    };
    let mut text =
        format!("{}: {rule}\n", paint(BOLD, &format!("{} {}", counter.domain, counter.descriptor)));
    if !reply["override"].is_null() {
        let end = left_text(&reply["override"]);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "override: {}{end}", action_text(&reply["override"]));
    }
    let limits = reply["limits"].as_array().map(Vec::as_slice).unwrap_or_default();
    if limits.is_empty() {
        return text;
    }
    let mut table = Table::new(&["limit", "algorithm", "#used", "#remaining", "#resets in"]);
    for limit in limits {
        let multiplier = number(&limit["unit_multiplier"]);
        let unit = word(&limit["unit"]).to_lowercase();
        let span = if multiplier > 1 { format!("{multiplier} {unit}s") } else { unit };
        table.row([
            format!("{} per {span}", thousands(number(&limit["requests_per_unit"]))),
            word(&limit["algorithm"]).to_owned(),
            thousands(number(&limit["used"])),
            thousands(number(&limit["remaining"])),
            duration(number(&limit["resets_in_seconds"])),
        ]);
    }
    text + &table.print()
}

fn reset(client: &Client, counter: &Counter, reason: Option<&str>) -> Result<Verdict, Failure> {
    let body = json!({
        "domain": counter.domain,
        "descriptor": descriptor_json(&counter.descriptor)?,
        "reason": reason,
    });
    let reply = client.call(Method::POST, "/api/v1/counters/reset", Some(&body))?;
    if counter.admin.json {
        print_json(&reply);
        return Ok(Verdict::Yes);
    }
    let counters = super::format::count(number(&reply["reset"]), "counter");
    terminal::print(&format!("reset {counters} of {} {}\n", counter.domain, counter.descriptor));
    if let Some(warning) = reply["warning"].as_str() {
        terminal::print_warning(warning);
    }
    Ok(Verdict::Yes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::terminal::plain;

    #[test]
    fn the_counters_are_a_table() {
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
        let expected = "shop user=ann: rule shop.user\noverride: block\n\
            LIMIT                 ALGORITHM     USED  REMAINING  RESETS IN\n\
            1,000 per 15 minutes  token_bucket    12        988      1m 1s\n";
        assert_eq!(plain(&text(&counter, &reply)), expected);
        assert_eq!(plain(&text(&counter, &Value::Null)), "shop user=ann: no rule matches\n");
    }
}
