//! `tollgate hold`: the open holds of a descriptor's limits, and their settlement by hand.

use clap::{Args, Subcommand};
use serde_json::json;

use super::{ChangeArgs, Client, Missing, Reply, counter::Counter};
use crate::{
    format::{limit, word},
    serve::Environment,
    table::Table,
    terminal::{Failure, Verdict, count},
};
use api::{CloseHolds, Hold, Holds, HoldsClosed, Limit};
use text::thousands;

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
    #[command(flatten)]
    change: ChangeArgs,
}

pub(crate) fn run(command: &HoldCommand, environment: &Environment) -> Result<Verdict, Failure> {
    match command {
        HoldCommand::List { counter } => list(counter, environment),
        HoldCommand::Settle { held, cost, currency } => {
            let asked = CloseHolds { cost: Some(*cost), r#in: currency.clone(), ..held.asked() };
            close(held, &asked, "/api/v1/holds/settle", "settled", environment)
        }
        HoldCommand::End { held } => close(held, &held.asked(), "/api/v1/holds/end", "ended", environment),
    }
}

impl Held {
    fn asked(&self) -> CloseHolds {
        CloseHolds { id: self.id.clone(), reason: self.change.reason.clone(), ..CloseHolds::default() }
    }
}

fn list(counter: &Counter, environment: &Environment) -> Result<Verdict, Failure> {
    let query = counter.query()?;
    let client = Client::new(&counter.admin, environment)?;
    let reply: Reply<Holds> = client.get("/api/v1/holds", query)?;
    client.print(&reply, |Holds { holds }| text(counter, holds));
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
    asked: &CloseHolds,
    path: &str,
    done: &str,
    environment: &Environment,
) -> Result<Verdict, Failure> {
    let client = Client::new(&held.change.admin, environment)?;
    let missing = Missing {
        json: json!({"closed": 0}),
        text: format!("no hold of {} is open or remembered\n", held.id),
    };
    client.changed(client.post(path, asked), Some(missing), |HoldsClosed { closed }| {
        format!("{done} {}\n", count(*closed, "hold"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{admin::AdminArgs, terminal::plain};

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
