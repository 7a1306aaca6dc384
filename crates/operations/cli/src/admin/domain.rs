//! `tollgate domain`: switches that allow or shadow all requests of a domain, or change its failure policy.

use clap::{ArgGroup, Args, Subcommand};
use serde_json::json;

use super::{
    AdminArgs, ChangeArgs, Client, Missing, Query, Reply,
    overrides::{EndArgs, action_text, effect_text, time_left},
    user,
};
use crate::{
    format::word,
    serve::Environment,
    table::Table,
    terminal::{self, Failure, Verdict},
};
use api::{Override, SwitchDomain, Switches, SwitchesCleared};
use faults::OnStoreFailure;
use text::printable;

#[derive(Subcommand, Clone, PartialEq, Debug)]
pub(crate) enum DomainCommand {
    /// Switch a domain on all replicas, in place of its other switch of the same kind.
    ///
    /// Overrides that block stay in force. A terminal is asked for a missing reason. Exits with 0 when it is switched, 1 when
    /// the rules have no such domain, and 2 when there is no response.
    #[command(
        override_usage = "tollgate domain set [OPTIONS] DOMAIN <--allow|--shadow|--on-store-failure POLICY>",
        after_help = "Example: tollgate domain set shop --shadow --for 1h --reason \"wrong limits since 9:40\""
    )]
    Set(Box<SetArgs>),
    /// Remove the switches of a domain.
    ///
    /// Exits with 0 when they are removed, 1 when there are none, and 2 when there is no response.
    Clear(ClearArgs),
    /// List the switches in force.
    List(AdminArgs),
}

#[derive(Args, Clone, PartialEq, Debug)]
#[command(group = ArgGroup::new("switch").required(true))]
pub(crate) struct SetArgs {
    /// The domain; `*` is every domain without a switch of its own.
    domain: String,
    /// Allow every request without counting.
    #[arg(long, group = "switch")]
    allow: bool,
    /// Count requests, and allow all of them.
    #[arg(long, group = "switch")]
    shadow: bool,
    /// The decision while the store fails, in place of `on_store_failure` and `STORE_FAILURE_POLICY`.
    #[arg(long, value_name = "POLICY", group = "switch", value_parser = OnStoreFailure::ALL.map(OnStoreFailure::name))]
    on_store_failure: Option<String>,
    #[command(flatten)]
    end: EndArgs,
    /// Switch the replica that is asked alone, and store nothing, as while Redis is unreachable.
    #[arg(long)]
    this_replica: bool,
    /// Switch a domain that the rules do not have.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(Args, Clone, PartialEq, Debug)]
pub(crate) struct ClearArgs {
    /// The domain.
    domain: String,
    /// Remove the switches of the replica that is asked alone, as while Redis is unreachable.
    #[arg(long)]
    this_replica: bool,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Switches domains, or lists their switches.
pub(crate) fn run(command: &DomainCommand, environment: &Environment) -> Result<Verdict, Failure> {
    match command {
        DomainCommand::Set(args) => set(args, environment),
        DomainCommand::Clear(args) => clear(args, environment),
        DomainCommand::List(args) => list(args, environment),
    }
}

fn set(args: &SetArgs, environment: &Environment) -> Result<Verdict, Failure> {
    let action = [(args.allow, "allow"), (args.shadow, "shadow")].into_iter().find(|(is_set, _)| *is_set);
    let body = SwitchDomain {
        id: None,
        domain: args.domain.clone(),
        action: action.map(|(_, action)| action.to_owned()),
        on_store_failure: args.on_store_failure.clone(),
        r#for: args.end.duration.clone(),
        expires_at: args.end.until.clone(),
        reason: args.change.reason.clone().or_else(|| terminal::ask("reason")),
        by: user(environment).cloned(),
        this_replica: Some(args.this_replica),
        force: Some(args.force),
    };
    let client = Client::new(&args.change.admin, environment)?;
    let place = if args.this_replica { ", on this replica alone" } else { "" };
    client.changed(client.post("/api/v1/domains", &body), None, |reply| {
        format!("domain {}: {}{place}\n", printable(&args.domain), effect_text(reply))
    })
}

fn clear(args: &ClearArgs, environment: &Environment) -> Result<Verdict, Failure> {
    let client = Client::new(&args.change.admin, environment)?;
    let mut query = args.change.query();
    query.push(("domain", args.domain.clone()));
    query.extend(args.this_replica.then(|| ("this_replica", "true".to_owned())));
    let domain = printable(&args.domain);
    let missing = Missing { json: json!({"cleared": []}), text: format!("domain {domain} has no switch\n") };
    let reply = client.delete("/api/v1/domains", query);
    client.changed(reply, Some(missing), |SwitchesCleared { cleared, .. }| {
        let cleared: Vec<String> = cleared.iter().map(action_text).collect();
        format!("domain {domain}: cleared {}\n", cleared.join(", "))
    })
}

fn list(args: &AdminArgs, environment: &Environment) -> Result<Verdict, Failure> {
    let client = Client::new(args, environment)?;
    let reply: Reply<Switches> = client.get("/api/v1/domains", Query::new())?;
    client.print(&reply, |Switches { domains, kept_in }| text(domains, kept_in == "redis"));
    Ok(Verdict::Yes)
}

fn text(all: &[Override], are_shared: bool) -> String {
    if all.is_empty() {
        return "no domain is switched\n".to_owned();
    }
    let mut table = Table::new(&["domain", "switch", "#time left", "on", "by", "reason"]);
    for one in all {
        let [domain, by, reason] = [&one.domain, &one.by, &one.reason].map(|text| word(text.as_deref()));
        let left = time_left(one);
        let is_shared = are_shared && !one.this_replica;
        let place = if is_shared { "all replicas" } else { "this replica" };
        table.row([domain, action_text(one), left, place.to_owned(), by, reason]);
    }
    table.print()
}
