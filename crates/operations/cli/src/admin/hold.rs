//! `tollgate hold`: the open holds of a descriptor's limits, and their settlement by hand.

use clap::{Args, Subcommand};
use serde_json::json;

use super::{
    AdminArgs, Client, Reply,
    counter::Counter,
    format::{Table, limit, word},
};
use crate::{
    serve::Environment,
    terminal::{Failure, Verdict, count},
};
use api::{CloseHolds, Hold, Holds, HoldsClosed, Limit};
use text::{entries, thousands};

#[derive(Subcommand, Clone, PartialEq, Debug)]
pub(crate) enum HoldCommand {
    /// List the open holds of a descriptor's limits, those that expire first.
    ///
    /// Exits with 0 when there are any, 1 when there are none, and 2 when there is no response.
    List {
        #[command(flatten)]
        counter: Counter,
    },
    /// Settle the holds of a request at what it cost.
    ///
    /// Exits with 0 when they are settled, 1 when none is open or remembered, and 2 when there is no response.
    Settle {
        #[command(flatten)]
        held: Held,
        /// What the request cost.
        cost: u64,
        /// Settle only the holds whose rule has this `in`.
        #[arg(long = "in", value_name = "CURRENCY")]
        currency: Option<String>,
    },
    /// End the holds of a request: they charge what `unknown` of their rules says.
    ///
    /// Exits with 0 when they are ended, 1 when none is open, and 2 when there is no response.
    End {
        #[command(flatten)]
        held: Held,
    },
}

#[derive(Args, Clone, PartialEq, Debug)]
pub(crate) struct Held {
    /// The id of the request's holds, as `list` shows it.
    #[arg(allow_hyphen_values = true)]
    id: String,
    /// The reason, for the log.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    admin: AdminArgs,
}

pub(crate) fn run(command: &HoldCommand, environment: &Environment) -> Result<Verdict, Failure> {
    match command {
        HoldCommand::List { counter } => list(counter, environment),
        HoldCommand::Settle { held, cost, currency } => {
            let asked = CloseHolds { cost: Some(*cost), r#in: currency.clone(), ..held.asked() };
            close(held, "/api/v1/holds/settle", "settled", &asked, environment)
        }
        HoldCommand::End { held } => close(held, "/api/v1/holds/end", "ended", &held.asked(), environment),
    }
}

impl Held {
    fn asked(&self) -> CloseHolds {
        CloseHolds { id: self.id.clone(), reason: self.reason.clone(), ..CloseHolds::default() }
    }
}

fn list(counter: &Counter, environment: &Environment) -> Result<Verdict, Failure> {
    let Counter { domain, descriptor, admin } = counter;
    // Typing errors are reported before anything is sent.
    entries::parse(descriptor).map_err(|error| format!("{descriptor}: {error}"))?;
    let query = [("domain", domain.as_str()), ("descriptor", descriptor.as_str())];
    let reply: Reply<Holds> = Client::new(admin, environment)?.get("/api/v1/holds", &query)?;
    admin.print(&reply.json, || text(counter, &reply.holds));
    Ok((!reply.holds.is_empty()).into())
}

fn text(counter: &Counter, holds: &[Hold]) -> String {
    if holds.is_empty() {
        return format!("no open holds of {} {}\n", counter.domain, counter.descriptor);
    }
    let mut table = Table::new(&["id", "limit", "#held", "in", "expires at"]);
    for hold in holds {
        let Hold { id, requests_per_unit, unit, held, r#in, expires_at } = hold.clone();
        let limit = limit(&Limit { requests_per_unit, unit, ..Limit::default() });
        table.row([id, limit, thousands(held), word(r#in.as_deref()), expires_at]);
    }
    table.print()
}

fn close(
    held: &Held,
    path: &str,
    done: &str,
    asked: &CloseHolds,
    environment: &Environment,
) -> Result<Verdict, Failure> {
    let reply: Reply<HoldsClosed> = match Client::new(&held.admin, environment)?.post(path, asked) {
        Err(failure) if failure.is_not_found => {
            let text = || format!("no hold of {} is open or remembered\n", held.id);
            held.admin.print(&json!({"closed": 0}), text);
            return Ok(Verdict::No);
        }
        reply => reply?,
    };
    held.admin.print(&reply.json, || format!("{done} {}\n", count(reply.closed, "hold")));
    Ok(Verdict::Yes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::plain;

    #[test]
    fn open_holds_are_printed_as_a_table() {
        let counter =
            Counter { domain: "llm".into(), descriptor: "team=red".into(), admin: AdminArgs::default() };
        let hold = json!({
            "id": "qHI5dVQ9riNVd44Tn4PiwgAAA", "requests_per_unit": 1000, "unit": "MONTH", "held": 40,
            "in": "dollars", "expires_at": "2026-11-23T13:30:00Z",
        });
        let expected = "ID                         LIMIT            HELD  IN       EXPIRES AT\n\
            qHI5dVQ9riNVd44Tn4PiwgAAA  1,000 per month    40  dollars  2026-11-23T13:30:00Z\n";
        assert_eq!(plain(&text(&counter, &[serde_json::from_value(hold).unwrap()])), expected);
        assert_eq!(plain(&text(&counter, &[])), "no open holds of llm team=red\n");
    }
}
