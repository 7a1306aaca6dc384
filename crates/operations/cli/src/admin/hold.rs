//! `tollgate hold`: the open holds of a descriptor's limits, and their settlement by hand.

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Value, json};

use super::{
    AdminArgs, Client,
    counter::Counter,
    format::{Table, items, limit, number, word},
};
use crate::{
    serve::Environment,
    terminal::{Failure, Verdict, count},
};
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
            let body = json!({"id": held.id, "cost": cost, "in": currency, "reason": held.reason});
            close(held, "/api/v1/holds/settle", "settled", &body, environment)
        }
        HoldCommand::End { held } => {
            let body = json!({"id": held.id, "reason": held.reason});
            close(held, "/api/v1/holds/end", "ended", &body, environment)
        }
    }
}

fn list(counter: &Counter, environment: &Environment) -> Result<Verdict, Failure> {
    let Counter { domain, descriptor, admin } = counter;
    // Typing errors are reported before anything is sent.
    entries::parse(descriptor).map_err(|error| format!("{descriptor}: {error}"))?;
    let query = [("domain", domain.as_str()), ("descriptor", descriptor.as_str())];
    let reply = Client::new(admin, environment)?.get("/api/v1/holds", &query)?;
    admin.print(&reply, || text(counter, &reply));
    Ok((!items(&reply["holds"]).is_empty()).into())
}

fn text(counter: &Counter, reply: &Value) -> String {
    let holds = items(&reply["holds"]);
    if holds.is_empty() {
        return format!("no open holds of {} {}\n", counter.domain, counter.descriptor);
    }
    let mut table = Table::new(&["id", "limit", "#held", "in", "expires at"]);
    for hold in holds {
        table.row([
            word(&hold["id"]).to_owned(),
            limit(hold),
            thousands(number(&hold["held"])),
            word(&hold["in"]).to_owned(),
            word(&hold["expires_at"]).to_owned(),
        ]);
    }
    table.print()
}

fn close(
    held: &Held,
    path: &str,
    done: &str,
    body: &Value,
    environment: &Environment,
) -> Result<Verdict, Failure> {
    let reply = match Client::new(&held.admin, environment)?.call(Method::POST, path, Some(body)) {
        Err(failure) if failure.is_not_found => {
            let text = || format!("no hold of {} is open or remembered\n", held.id);
            held.admin.print(&json!({"closed": 0}), text);
            return Ok(Verdict::No);
        }
        reply => reply?,
    };
    held.admin.print(&reply, || format!("{done} {}\n", count(number(&reply["closed"]), "hold")));
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
        assert_eq!(plain(&text(&counter, &json!({"holds": [hold]}))), expected);
        assert_eq!(plain(&text(&counter, &Value::Null)), "no open holds of llm team=red\n");
    }
}
