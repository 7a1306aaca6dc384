//! `tollgate counter`: the usage of a descriptor's limits, and their reset.

use std::fmt::Write as _;

use clap::{Args, Subcommand};

use super::{AdminArgs, Client, Query, Reply, overrides::effect_text};
use crate::{
    format::{duration, limit},
    serve::Environment,
    table::Table,
    terminal::{BOLD, Failure, FailureKind, Verdict, WARNING, count, paint},
};
use api::{Counters, CountersReset, Limit, ResetCounters};
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

impl Counter {
    /// Its query parameters. Typing errors are reported before anything is sent.
    pub(super) fn query(&self) -> Result<Query, String> {
        let Self { domain, descriptor, .. } = self;
        entries::parse(descriptor).map_err(|error| format!("{descriptor}: {error}"))?;
        Ok(vec![("domain", domain.clone()), ("descriptor", descriptor.clone())])
    }
}

pub(crate) fn run(command: &CounterCommand, environment: &Environment) -> Result<Verdict, Failure> {
    let (CounterCommand::Get { counter } | CounterCommand::Reset { counter, .. }) = command;
    let query = counter.query()?;
    let client = Client::new(&counter.admin, environment)?;
    if let CounterCommand::Reset { reason, .. } = command {
        let body = ResetCounters {
            domain: counter.domain.clone(),
            descriptor: counter.descriptor.as_str(),
            reason: reason.clone(),
        };
        let reply = client.post("/api/v1/counters/reset", &body);
        // Where no limit applies, the words and the verdict are those of `get`.
        if !matches!(&reply, Err(failure) if failure.kind == FailureKind::NotFound) {
            return client.changed(reply, None, |CountersReset { reset, .. }| {
                let counters = count(*reset, "counter");
                format!("reset {counters} of {} {}\n", counter.domain, counter.descriptor)
            });
        }
    }
    let reply: Reply<Counters> = client.get("/api/v1/counters", query)?;
    client.print(&reply, |counters| text(counter, counters));
    Ok((!reply.limits.is_empty()).into())
}

fn text(counter: &Counter, Counters { rule, by_override, limits }: &Counters) -> String {
    let mut rule = match rule {
        Some(rule) => format!("rule {rule}"),
        None => paint(WARNING, "no rule matches"),
    };
    if limits.is_empty() {
        rule.push_str(", no limit applies");
    }
    let mut text =
        format!("{}: {rule}\n", paint(BOLD, &format!("{} {}", counter.domain, counter.descriptor)));
    if let Some(current) = by_override {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "override: {}", effect_text(current));
    }
    if limits.is_empty() {
        return text;
    }
    // A limit that holds has more columns.
    let holds = limits.iter().any(|one| one.held.is_some());
    let counted: &[_] = if holds { &["#spent", "#held"] } else { &["#used"] };
    let mut table = Table::new(&[&["limit", "algorithm"], counted, &["#remaining", "#resets in"]].concat());
    for one in limits {
        let words = Limit {
            requests_per_unit: one.requests_per_unit,
            unit: one.unit.clone(),
            unit_multiplier: one.unit_multiplier,
            calendar: one.calendar.clone(),
            schedule: one.schedule.clone(),
            name: None,
        };
        let counted = if holds { vec![one.spent, one.held] } else { vec![Some(one.used)] };
        let mut row = vec![limit(&words), one.algorithm.clone()];
        row.extend(counted.into_iter().map(|number| thousands(number.unwrap_or_default())));
        row.extend([thousands(one.remaining), duration(one.resets_in_seconds)]);
        table.row(row);
    }
    text + &table.print()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
        assert_eq!(plain(&text(&counter, &serde_json::from_value(reply).unwrap())), expected);
        assert_eq!(
            plain(&text(&counter, &Counters::default())),
            "shop user=ann: no rule matches, no limit applies\n"
        );
    }
}
