//! `tollgate override`: limits, blocks and exemptions that hold at once and end by themselves.
//!
//! `import` reads a file of many. What is mistyped is found before anything is sent.

mod import;
mod source;

pub(in crate::cli) use self::source::Source;

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use hyper::Method;
use serde_json::{Value, json};

use super::{
    AdminArgs, Client, Failure,
    format::{self, Table, count, duration, number, thousands, word},
    print_json, run as run_admin, with_query,
};
use crate::{
    cli::{
        serve::Environment,
        terminal::{self, Verdict},
    },
    clock::{Clock, SystemClock},
    entries,
    overrides::{Override, Target, model::entries_of_text},
    rules::Unit,
};

/// The arguments of `tollgate override`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct OverrideArgs {
    #[command(subcommand)]
    #[expect(missing_docs, reason = "help is that of the commands")]
    pub command: OverrideCommand,
}

/// What is done with the overrides.
#[derive(Subcommand, Clone, PartialEq, Debug)]
pub enum OverrideCommand {
    /// Set an override, in place of the one for the same descriptor.
    ///
    /// KEY=VALUE is for this value; KEY alone is for every value that matches the rule with this key.
    #[command(
        override_usage = "tollgate override set [OPTIONS] DOMAIN KEY[=VALUE][,...] \
            <--limit N/UNIT|--block|--allow|--shadow>",
        after_help = "Example: tollgate override set shop customer=acme --limit 500/minute --for 72h --reason launch"
    )]
    Set(Box<SetArgs>),
    /// List the overrides.
    List(ListArgs),
    /// Remove an override.
    ///
    /// Exits with 0 when it is removed, 1 when there is none, and 2 when there is no response.
    Remove(RemoveArgs),
    /// Import overrides from a CSV file with a header, or from JSON lines; all of them or none.
    ///
    /// The columns, and the fields of a line, are `domain`, `descriptor`, `action`, `requests_per_unit`, `unit`,
    /// `expires_at`, `for` and `reason`.
    Import(ImportArgs),
}

/// The arguments of `tollgate override set`.
#[derive(Args, Clone, PartialEq, Debug)]
#[command(group = ArgGroup::new("action").required(true))]
pub struct SetArgs {
    /// The domain.
    pub domain: String,
    /// The descriptor; a comma within a value is written `\,`.
    #[arg(value_name = "KEY[=VALUE][,...]")]
    pub descriptor: String,
    /// This limit, in place of those of the rule.
    #[arg(long, value_name = "N/UNIT", group = "action", value_parser = limit)]
    pub limit: Option<(u32, String)>,
    /// Refuse every request, and count none.
    #[arg(long, group = "action")]
    pub block: bool,
    /// Let every request pass, and count none.
    #[arg(long, group = "action")]
    pub allow: bool,
    /// Count requests as the rule does, and let all pass.
    #[arg(long, group = "action")]
    pub shadow: bool,
    /// How long it holds, such as 30m or 72h; without it, until it is removed.
    #[arg(long = "for", value_name = "DURATION", conflicts_with = "until")]
    pub lasts: Option<String>,
    /// When it ends, such as 2026-11-23T00:00:00Z.
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "help is that of its fields")]
    pub change: ChangeArgs,
}

/// The arguments of `tollgate override list`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct ListArgs {
    /// Only those of this domain.
    pub domain: Option<String>,
    /// Only the one for this descriptor.
    #[arg(value_name = "KEY[=VALUE][,...]")]
    pub descriptor: Option<String>,
    /// Only those with this action: limit, block, allow or shadow.
    #[arg(long)]
    pub action: Option<String>,
    /// As CSV, which `tollgate override import` reads.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "help is that of its fields")]
    pub admin: AdminArgs,
}

/// The arguments of `tollgate override remove`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct RemoveArgs {
    /// The domain and the descriptor, or the identifier that `tollgate override list` shows.
    #[arg(value_name = "DOMAIN KEY[=VALUE][,...] | ID", required = true, num_args = 1..=2)]
    pub words: Vec<String>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "help is that of its fields")]
    pub change: ChangeArgs,
}

/// The arguments of `tollgate override import`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct ImportArgs {
    /// The file; `.csv` is CSV, and everything else JSON lines. `-` is standard input.
    pub file: PathBuf,
    /// The file is CSV, whatever its name.
    #[arg(long)]
    pub csv: bool,
    /// Check the file and send nothing.
    #[arg(long)]
    pub check: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "help is that of its fields")]
    pub change: ChangeArgs,
}

/// Why something is changed, and where.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct ChangeArgs {
    /// Why; it is logged, and kept with an override that has no reason of its own.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "help is that of its fields")]
    pub admin: AdminArgs,
}

/// Sets, lists, removes or imports overrides.
#[must_use]
pub fn run(args: &OverrideArgs, environment: &Environment) -> Verdict {
    match &args.command {
        OverrideCommand::Set(args) => {
            run_admin(&args.change.admin, environment, |client| set(client, args, environment))
        }
        OverrideCommand::List(args) => run_admin(&args.admin, environment, |client| list(client, args)),
        OverrideCommand::Remove(args) => {
            run_admin(&args.change.admin, environment, |client| remove(client, args))
        }
        OverrideCommand::Import(args) => import::run(args, environment),
    }
}

impl ChangeArgs {
    /// The reason as a parameter of the API.
    fn reason_query(&self) -> Option<(&str, &str)> {
        self.reason.as_deref().map(|reason| ("reason", reason))
    }
}

fn set(client: &Client, args: &SetArgs, environment: &Environment) -> Result<Verdict, Failure> {
    let mut body = json!({
        "domain": args.domain,
        "descriptor": descriptor_json(&args.descriptor)?,
        "action": if args.block { "block" } else if args.allow { "allow" } else if args.shadow { "shadow" } else { "limit" },
        "reason": args.change.reason,
        "by": user(environment),
        "for": args.lasts,
        "expires_at": args.until,
    });
    if let Some((requests_per_unit, unit)) = &args.limit {
        body["requests_per_unit"] = (*requests_per_unit).into();
        body["unit"] = unit.as_str().into();
    }
    crate::overrides::Override::from_json(&body, SystemClock.now()).map_err(Failure::plain)?;
    let reply = client.call(Method::POST, "/api/v1/overrides", Some(&body))?;
    if args.change.admin.json {
        print_json(&reply);
        return Ok(Verdict::Yes);
    }
    let rule = reply["rule"].as_str().map(|rule| format!(" (rule {rule})")).unwrap_or_default();
    terminal::print(&format!(
        "{} {}{rule}: {}{}\n",
        args.domain,
        args.descriptor,
        action_text(&reply),
        left_text(&reply)
    ));
    if let Some(warning) = reply["warning"].as_str() {
        terminal::print_warning(warning);
    }
    Ok(Verdict::Yes)
}

fn list(client: &Client, args: &ListArgs) -> Result<Verdict, Failure> {
    let mut query: Vec<(&str, &str)> = Vec::new();
    for (name, value) in
        [("domain", &args.domain), ("descriptor", &args.descriptor), ("action", &args.action)]
    {
        query.extend(value.as_deref().map(|value| (name, value)));
    }
    let (all, total) = all(client, &query)?;
    if args.admin.json {
        print_json(&json!({"overrides": all, "total": total}));
    } else if args.csv {
        print_csv(&all)?;
    } else {
        terminal::print(&table(&all, total));
    }
    Ok(Verdict::Yes)
}

/// The overrides that a query selects, and how many there are in all.
fn all(client: &Client, query: &[(&str, &str)]) -> Result<(Vec<Value>, u64), Failure> {
    let mut all: Vec<Value> = Vec::new();
    loop {
        let offset = all.len().to_string();
        let page = [("n", "10000"), ("offset", &*offset)];
        let mut reply = client.get("/api/v1/overrides", &[query, &page].concat())?;
        let some = reply["overrides"].as_array_mut().map(std::mem::take).unwrap_or_default();
        let is_last = some.is_empty();
        all.extend(some);
        if is_last || all.len() as u64 >= number(&reply["matching"]) {
            return Ok((all, number(&reply["total"])));
        }
    }
}

/// The overrides in force at a service that a request with these descriptors, as they are typed, may meet.
pub(in crate::cli) fn in_force(
    args: &AdminArgs,
    environment: &Environment,
    domain: &str,
    descriptors: impl Iterator<Item = String>,
) -> Result<Vec<Override>, Failure> {
    let client = Client::new(args, environment)?;
    let mut found = Vec::new();
    for descriptor in descriptors {
        let (some, _) = all(&client, &[("domain", domain), ("request", &descriptor)])?;
        for one in some {
            let one = Override::from_json(&one, crate::clock::Time::default());
            let unreadable = |error| Failure::plain(format!("{}: an override: {error}", client.address()));
            found.push(one.map_err(unreadable)?);
        }
    }
    Ok(found)
}

fn print_csv(all: &[Value]) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::plain(format!("cannot write CSV: {error}"));
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(crate::overrides::model::FIELDS).map_err(|error| failed(&error))?;
    for one in all {
        let one = Override::from_json(one, crate::clock::Time::default());
        let row = crate::overrides::table::csv_row(&one.map_err(Failure::plain)?);
        writer.write_record(row).map_err(|error| failed(&error))?;
    }
    let bytes = writer.into_inner().map_err(|error| failed(&error))?;
    terminal::print_data(&String::from_utf8_lossy(&bytes));
    Ok(())
}

fn table(all: &[Value], total: u64) -> String {
    if all.is_empty() {
        let which = if total == 0 { "no overrides" } else { "no such override" };
        return format!("{which}; {} in all\n", count(total, "override"));
    }
    let mut table = Table::new(&["id", "domain", "descriptor", "override", "#time left", "by", "reason"]);
    for one in all {
        let descriptor = format::descriptor(&one["descriptor"]);
        let left = seconds_left(one).map_or_else(|| "no end".to_owned(), duration);
        let texts = [word(&one["id"]), word(&one["domain"]), &descriptor].map(str::to_owned);
        let [id, domain, descriptor] = texts;
        let (by, reason) = (word(&one["by"]).to_owned(), word(&one["reason"]).to_owned());
        table.row([id, domain, descriptor, action_text(one), left, by, reason]);
    }
    table.print()
}

fn remove(client: &Client, args: &RemoveArgs) -> Result<Verdict, Failure> {
    let id = match args.words.as_slice() {
        [id] if !id.contains('=') => id.clone(),
        [domain, text] => {
            let entries =
                entries_of_text(text).map_err(|error| Failure::plain(format!("{text}: {error}")))?;
            Target::new(domain, entries).map_err(Failure::plain)?.id()
        }
        words => {
            let words = words.join(" ");
            return Err(Failure::plain(format!("expected DOMAIN KEY=VALUE or an identifier, got {words:?}")));
        }
    };
    let id: String = form_urlencoded::byte_serialize(id.as_bytes()).collect();
    let path = with_query(&format!("/api/v1/overrides/{id}"), args.change.reason_query());
    let reply = match client.call(Method::DELETE, &path, None) {
        Ok(reply) => reply,
        Err(failure) if failure.is_not_found() => {
            terminal::print(&format!("no override for {}\n", args.words.join(" ")));
            return Ok(Verdict::No);
        }
        Err(failure) => return Err(failure),
    };
    if args.change.admin.json {
        print_json(&reply);
    } else {
        let removed = &reply["removed"];
        let descriptor = format::descriptor(&removed["descriptor"]);
        terminal::print(&format!(
            "removed {} {descriptor}: {}\n",
            word(&removed["domain"]),
            action_text(removed)
        ));
    }
    Ok(Verdict::Yes)
}

/// `100/minute`.
fn limit(text: &str) -> Result<(u32, String), String> {
    let expected = "expected a number and a unit, such as 100/minute";
    let (requests, unit) = text.split_once('/').ok_or_else(|| expected.to_owned())?;
    let requests = requests
        .trim()
        .parse()
        .map_err(|_| format!("{requests:?} is not an integer between 0 and {}; {expected}", u32::MAX))?;
    let unit = unit.trim();
    // `5/s` is clear on a command line.
    let known = Unit::from_name(unit).or_else(|| Unit::from_abbreviation(unit));
    known.map(|unit| (requests, unit.name().to_ascii_lowercase())).ok_or_else(|| {
        let units = Unit::ALL.map(|unit| unit.name().to_ascii_lowercase()).join(", ");
        format!("unknown unit {unit:?}; expected {units}")
    })
}

/// The entries of a typed descriptor, as the API has them.
pub(super) fn descriptor_json(text: &str) -> Result<Value, Failure> {
    let entries = entries::parse(text).map_err(|error| Failure::plain(format!("{text}: {error}")))?;
    let entry = |(key, value)| match value {
        Some(value) => json!({"key": key, "value": value}),
        None => json!({"key": key}),
    };
    Ok(entries.into_iter().map(entry).collect())
}

/// `limit 100 per minute`, `block`.
pub(super) fn action_text(one: &Value) -> String {
    match (word(&one["action"]), one["requests_per_unit"].as_u64()) {
        ("limit", Some(requests)) => {
            format!("limit {} per {}", thousands(requests), word(&one["unit"]).to_lowercase())
        }
        (action, _) => action.to_owned(),
    }
}

/// ` until 2026-11-23T00:00:00Z (3h left)`; nothing without an end.
pub(super) fn left_text(one: &Value) -> String {
    match (one["expires_at"].as_str(), seconds_left(one)) {
        (Some(end), Some(left)) => format!(" until {end} ({} left)", duration(left)),
        _ => String::new(),
    }
}

fn seconds_left(one: &Value) -> Option<u64> {
    let end = one["expires_at"].as_str()?.parse::<prost_types::Timestamp>().ok()?;
    let end = u64::try_from(end.seconds).ok()?;
    Some(end.saturating_sub(SystemClock.now().seconds()))
}

/// Who runs the command, as the environment says.
fn user(environment: &Environment) -> Option<String> {
    ["USER", "LOGNAME"]
        .iter()
        .find_map(|name| environment.variables.get(*name).cloned())
        .filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::terminal::plain;

    #[test]
    fn limits_are_typed_with_a_unit() {
        for (text, expected) in [
            ("100/minute", Some((100, "minute"))),
            ("5/s", Some((5, "second"))),
            ("0/Day", Some((0, "day"))),
            ("1 / hours", Some((1, "hour"))),
            ("100", None),
            ("x/minute", None),
            ("-1/minute", None),
            ("4294967296/minute", None),
            ("1/fortnight", None),
            ("/minute", None),
        ] {
            let read = limit(text);
            assert_eq!(read.as_ref().ok().map(|(n, unit)| (*n, unit.as_str())), expected, "{text}: {read:?}");
        }
        assert!(limit("1/fortnight").unwrap_err().contains("expected second, minute"));
        assert!(limit("100").unwrap_err().contains("such as 100/minute"));
    }

    #[test]
    fn overrides_are_a_table() {
        let all = [json!({
            "id": "0123", "domain": "shop", "descriptor": [{"key": "user", "value": "a,b"}, {"key": "path"}],
            "action": "limit", "requests_per_unit": 1500, "unit": "HOUR", "by": "ann",
        })];
        let text = plain(&table(&all, 1));
        assert!(text.contains("user=a\\,b,path  limit 1,500 per hour"), "{text}");
        assert!(text.contains("no end") && text.contains("ann"), "{text}");
        assert!(plain(&table(&[], 0)).starts_with("no overrides"));
    }
}
