//! `tollgate override`: limits, blocks and exemptions that take effect at once and may expire.
//!
//! `import` sends a file of many. Typing errors are reported before anything is sent.

mod import;
mod source;

pub(crate) use self::source::Source;

use std::{fmt::Write as _, path::PathBuf, time::Duration};

use clap::{ArgGroup, Args, Subcommand};
use serde_json::json;

use super::{AdminArgs, ChangeArgs, Client, Missing, Query, Reply, forecast, user};
use crate::{
    format::{self, duration, word},
    serve::Environment,
    table::Table,
    terminal::{self, Failure, Verdict, count},
};
use api::{LimitsInForce, OverrideEntry, OverrideRemoved, Overrides, SetOverride, Status, Switches, TextOr};
use clock::{Clock, SystemClock, Time};
use limit::{MAX_LIMIT, Unit};
use overrides::{Action, Override, Percent, Target, model::expiry, table, target::entries_of_text};
use text::{entries, printable};

#[derive(Subcommand, Clone, PartialEq, Debug)]
pub(crate) enum OverrideCommand {
    /// Set an override, in place of the one for the same descriptor or entry.
    ///
    /// KEY=VALUE applies to this value; KEY alone applies to every value that matches the rule with this key. --entry
    /// applies to every descriptor that has the entry, at any place. Exits with 0 when it is set, 1 when no request can
    /// meet it, and 2 when there is no response.
    #[command(
        override_usage = "tollgate override set [OPTIONS] DOMAIN <KEY[=VALUE][,...]|--entry KEY=VALUE> \
            <--limit N/UNIT|--scale PERCENT|--block|--allow|--shadow>",
        after_help = "Examples:\n  \
            tollgate override set shop customer=acme --limit 500/minute --for 3d --reason launch\n  \
            tollgate override set shop customer=acme --name burst --scale 50% --for 1h --reason overload\n  \
            tollgate override set shop --entry remote_address=203.0.113.0/24 --block --for 2h --reason abuse"
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
    /// `calendar`, `name`, `scale`, `expires_at`, `for`, `reason`, `entry` and `force`. An override that no request can meet is an error,
    /// unless it has `force` or comes from `tollgate override list --csv`. --reason is for overrides without one.
    Import(ImportArgs),
}

#[derive(Args, Clone, PartialEq, Debug)]
#[command(group = ArgGroup::new("action").required(true), group = ArgGroup::new("target").required(true))]
pub(crate) struct SetArgs {
    /// The domain; with --entry, `*` is every domain.
    domain: String,
    /// The descriptor; a comma within a value is written `\,`.
    #[arg(value_name = "KEY[=VALUE][,...]", group = "target")]
    descriptor: Option<String>,
    /// An entry: every descriptor that has it is met. The value may be a network, `10.0.0.0/8`, or a prefix, `2001:db8:*`.
    #[arg(long, value_name = "KEY=VALUE", group = "target")]
    entry: Option<String>,
    /// A limit that replaces those of the rule; with --name, that one alone.
    #[arg(long, value_name = "N/UNIT", group = "action", value_parser = limit)]
    limit: Option<(u64, String)>,
    /// The calendar of the limit: a time zone, for weeks `week_start`, for months `anchor_day`.
    #[arg(long, value_name = "ZONE[,FIELD=VALUE]", conflicts_with_all = ["scale", "block", "allow", "shadow"])]
    calendar: Option<String>,
    /// The limits of the rule times this, such as 50%, also after the rule changes; with --name, that one alone.
    #[arg(long, value_name = "PERCENT", group = "action", value_parser = percent)]
    scale: Option<String>,
    /// The `name` of the only limit of the rule to change; the others stay in force with their counters.
    #[arg(long, value_name = "LIMIT", conflicts_with_all = ["block", "allow", "shadow"])]
    name: Option<String>,
    /// Refuse every request without counting.
    #[arg(long, group = "action")]
    block: bool,
    /// Allow every request without counting.
    #[arg(long, group = "action")]
    allow: bool,
    /// Count requests by the rule, and allow all of them.
    #[arg(long, group = "action")]
    shadow: bool,
    #[command(flatten)]
    end: EndArgs,
    /// Say what it would change, and set nothing.
    #[arg(long)]
    dry_run: bool,
    /// Set it even if no request can meet it.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(Args, Clone, PartialEq, Debug)]
pub(crate) struct EndArgs {
    /// The duration, such as 30m, 2d or 1w; without it, there is no end.
    #[arg(long = "for", value_name = "DURATION", conflicts_with = "until", value_parser = duration_text)]
    pub(super) duration: Option<String>,
    /// The end, such as 2026-11-23T00:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = end_text)]
    pub(super) until: Option<String>,
}

fn duration_text(text: &str) -> Result<String, String> {
    checked(text, expiry(None, Some(text), SystemClock.now()))
}

fn end_text(text: &str) -> Result<String, String> {
    checked(text, expiry(Some(text), None, SystemClock.now()))
}

/// The text, or an error that names no field: clap names the argument.
fn checked(text: &str, end: Result<Option<u32>, String>) -> Result<String, String> {
    end.map(|_| text.to_owned())
        .map_err(|error| error.split_once(": ").map_or_else(|| error.clone(), |(_, why)| why.to_owned()))
}

#[derive(Args, Clone, PartialEq, Debug)]
pub(crate) struct ListArgs {
    /// Overrides of this domain only.
    domain: Option<String>,
    /// The override of this descriptor only.
    #[arg(value_name = "KEY[=VALUE][,...]")]
    descriptor: Option<String>,
    /// Overrides with this action only.
    #[arg(long, value_parser = Action::NAMES)]
    action: Option<String>,
    /// Print CSV, which `tollgate override import` reads.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(Args, Clone, PartialEq, Debug)]
pub(crate) struct RemoveArgs {
    /// The domain and the descriptor, or the identifier that `tollgate override list` shows.
    #[arg(value_name = "DOMAIN KEY[=VALUE][,...] | ID", required = true, num_args = 1..=2)]
    words: Vec<String>,
    /// The entry of an override by entry, with the domain alone.
    #[arg(long, value_name = "KEY=VALUE")]
    entry: Option<String>,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(Args, Clone, PartialEq, Debug)]
pub(crate) struct ImportArgs {
    /// The file: CSV if its name ends in `.csv`, else JSON lines. `-` is standard input.
    file: PathBuf,
    /// Read the file as CSV, whatever its name.
    #[arg(long)]
    csv: bool,
    /// Check the file and send nothing.
    #[arg(long)]
    check: bool,
    /// Import overrides that no request can meet too.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Sets, lists, removes or imports overrides.
pub(crate) fn run(command: &OverrideCommand, environment: &Environment) -> Result<Verdict, Failure> {
    match command {
        OverrideCommand::Set(args) => set(args, environment),
        OverrideCommand::List(args) => list(args, environment),
        OverrideCommand::Remove(args) => remove(args, environment),
        OverrideCommand::Import(args) => import::run(args, environment),
    }
}

/// How long a change waits for the forecast of what it does: a block must not.
const FORECAST: Duration = Duration::from_secs(2);

fn set(args: &SetArgs, environment: &Environment) -> Result<Verdict, Failure> {
    let is_scale = args.scale.is_some();
    let flags = [(args.block, "block"), (args.allow, "allow"), (args.shadow, "shadow"), (is_scale, "scale")];
    let action = flags.iter().find(|(is_set, _)| *is_set).map_or("limit", |(_, action)| *action);
    let (requests_per_unit, unit) = args.limit.clone().unzip();
    let body = SetOverride {
        id: None,
        domain: args.domain.clone(),
        descriptor: args.descriptor.clone().map(TextOr::Text),
        entry: args.entry.clone().map(TextOr::Text),
        action: action.to_owned(),
        requests_per_unit,
        unit,
        calendar: args.calendar.clone().map(TextOr::Text),
        name: args.name.clone(),
        scale: args.scale.clone(),
        expires_at: args.end.until.clone(),
        r#for: args.end.duration.clone(),
        reason: args.change.reason.clone(),
        by: user(environment).cloned(),
        force: Some(args.force),
    };
    let one = Override::from_json(&json!(body), SystemClock.now())?;
    let client = Client::new(&args.change.admin, environment)?;
    let preview = |client: &Client| client.post::<api::Override>("/api/v1/override-preview", &body);
    if args.dry_run {
        return client
            .changed(preview(&client), None, |reply| foretold(reply) + "not set: " + &set_text(&one, reply));
    }
    // The forecast is printed before the change, which does not depend on it.
    let hasty = Client { timeout: FORECAST, ..Client::new(&args.change.admin, environment)? };
    let preview = preview(&hasty).ok().filter(|_| !args.change.admin.json);
    if let Some(preview) = &preview
        && preview.forecast.as_ref().is_some_and(|forecast| forecast.requests > 0)
    {
        terminal::print(&foretold(preview));
    }
    let reply = match client.post::<api::Override>("/api/v1/overrides", &body) {
        Ok(reply) => reply,
        Err(failure) => return failure.verdict(),
    };
    client.print(&reply, |reply| set_text(&one, reply));
    let said = reply.warning.as_deref().unwrap_or_default();
    let warning = preview.and_then(|preview| preview.typed.warning);
    if let Some(warning) = warning.filter(|warning| !said.contains(warning)) {
        terminal::print_warning(&warning);
    }
    Ok(Verdict::Yes)
}

/// What an override would have made of the recorded requests, on a line; empty if it is unknown.
fn foretold(reply: &api::Override) -> String {
    reply.forecast.as_ref().map(forecast::of_override).unwrap_or_default()
}

/// An override that was set, or would be, and the limits before and after it, each on a line.
fn set_text(one: &Override, reply: &api::Override) -> String {
    let rule = reply.rule.as_ref().map(|rule| format!(" (rule {rule})")).unwrap_or_default();
    let target = one.target.plain().to_string();
    let mut text = format!("{}{rule}: {}\n", printable(&target), effect_text(reply));
    for (name, limits) in [("before", &reply.before), ("after", &reply.after)] {
        if let Some(limits) = limits {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  {name:6}  {}", printable(&limits_text(limits)));
        }
    }
    text
}

fn list(args: &ListArgs, environment: &Environment) -> Result<Verdict, Failure> {
    let query = [("domain", &args.domain), ("descriptor", &args.descriptor), ("action", &args.action)];
    let query = query.into_iter().filter_map(|(name, value)| Some((name, value.clone()?)));
    let client = Client::new(&args.admin, environment)?;
    let Overrides { mut overrides, total, .. } = all(&client, &query.collect::<Query>())?;
    overrides.sort_by_cached_key(|one| (one.domain.clone(), target_text(one)));
    if args.csv {
        let status: Reply<Status> = client.get("/api/v1/status", Query::new())?;
        if args.descriptor.is_none() && status.key_values != "plain" {
            return Err(Failure::new(
                format!("the service does not show values: KEY_VALUES={}", status.key_values),
                "a file to import needs KEY_VALUES=plain",
            ));
        }
        terminal::print_data(&csv(&overrides)?);
    } else {
        args.admin.print(&json!({"overrides": overrides, "total": total}), || text(&overrides, total));
    }
    Ok(Verdict::Yes)
}

/// The overrides that a query selects, page by page.
fn all(client: &Client, query: &[(&'static str, String)]) -> Result<Overrides, Failure> {
    let mut all = Vec::new();
    loop {
        let page = [("n", "10000".to_owned()), ("offset", all.len().to_string())];
        let mut reply: Overrides = client.get("/api/v1/overrides", [query, &page].concat())?.typed;
        let is_last = reply.overrides.is_empty();
        all.append(&mut reply.overrides);
        if is_last || all.len() as u64 >= reply.matching {
            return Ok(Overrides { overrides: all, ..reply });
        }
    }
}

/// The overrides of a service that may apply to a request with these descriptors, and the switches of domains.
pub(crate) fn in_force(
    args: &AdminArgs,
    environment: &Environment,
    domain: &str,
    descriptors: impl Iterator<Item = String>,
) -> Result<Vec<Override>, Failure> {
    let client = Client::new(args, environment)?;
    let mut found = Vec::new();
    for descriptor in descriptors {
        let query = [("domain", domain.to_owned()), ("request", descriptor)];
        for one in all(&client, &query)?.overrides {
            let one = Override::from_json(&json!(one), Time::default());
            found.push(one.map_err(|error| format!("{}: invalid override: {error}", client.server))?);
        }
    }
    let switches: Reply<Switches> = client.get("/api/v1/domains", Query::new())?;
    for one in &switches.domains {
        let one = Override::switch_from_json(&json!(one), Time::default());
        found.push(one.map_err(|error| format!("{}: invalid switch: {error}", client.server))?);
    }
    Ok(found)
}

fn csv(all: &[api::Override]) -> Result<String, Failure> {
    let failed = |error: csv::Error| format!("cannot write CSV: {error}");
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(overrides::model::FIELDS).map_err(failed)?;
    for one in all {
        let one = Override::from_json(&json!(one), Time::default())?;
        writer.write_record(table::csv_row(&one)).map_err(failed)?;
    }
    let bytes = writer.into_inner().map_err(|error| format!("cannot write CSV: {error}"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn text(all: &[api::Override], total: u64) -> String {
    if all.is_empty() {
        if total == 0 {
            return "no overrides\n".to_owned();
        }
        return format!("no such override; {} in all\n", count(total, "override"));
    }
    let mut table = Table::new(&["id", "domain", "descriptor", "override", "#time left", "by", "reason"]);
    for one in all {
        let [id, domain, by, reason] =
            [&one.id, &one.domain, &one.by, &one.reason].map(|text| word(text.as_deref()));
        table.row([id, domain, target_text(one), action_text(one), time_left(one), by, reason]);
    }
    table.print()
}

fn remove(args: &RemoveArgs, environment: &Environment) -> Result<Verdict, Failure> {
    let entries = |text: &str| entries_of_text(text).map_err(|error| format!("{text}: {error}"));
    let (named, id) = match (args.words.as_slice(), &args.entry) {
        ([id], None) if !id.contains('=') => (id.clone(), id.clone()),
        ([domain], Some(entry)) => named(&Target::of_entry(domain, entries(entry)?)?),
        ([domain, text], None) => named(&Target::new(domain, entries(text)?)?),
        (words, _) => {
            let words = words.join(" ");
            let expected = "DOMAIN KEY=VALUE, DOMAIN --entry KEY=VALUE, or an identifier";
            return Err(format!("expected {expected}, got {words:?}").into());
        }
    };
    let id: String = form_urlencoded::byte_serialize(id.as_bytes()).collect();
    let client = Client::new(&args.change.admin, environment)?;
    let reply = client.delete(&format!("/api/v1/overrides/{id}"), args.change.query());
    let missing =
        Missing { json: json!({"removed": null}), text: format!("no override for {}\n", printable(&named)) };
    client.changed(reply, Some(missing), |OverrideRemoved { removed, .. }| {
        let domain = word(removed.domain.as_deref());
        format!("removed {domain} {}: {}\n", target_text(removed), action_text(removed))
    })
}

/// `20 per second (burst), 5,000 per day (quota)`, `block`, `no limit`.
fn limits_text(LimitsInForce { action, limits }: &LimitsInForce) -> String {
    let named = |limit: &api::Limit| {
        let name = limit.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
        format!("{}{name}", format::limit(limit))
    };
    let mut all: Vec<String> = action.iter().cloned().chain(limits.iter().map(named)).collect();
    if all.is_empty() {
        all.push("no limit".to_owned());
    }
    all.join(", ")
}

fn percent(text: &str) -> Result<String, String> {
    Percent::parse(text).map(|_| text.to_owned())
}

/// `100/minute`.
fn limit(text: &str) -> Result<(u64, String), String> {
    let expected = "expected a number and a unit, such as 100/minute";
    let (requests, unit) = text.split_once('/').ok_or_else(|| expected.to_owned())?;
    let requests = requests
        .trim()
        .parse()
        .ok()
        .filter(|requests| *requests <= MAX_LIMIT)
        .ok_or_else(|| format!("{requests:?} is not an integer between 0 and {MAX_LIMIT}; {expected}"))?;
    let unit = unit.trim();
    // `5/s` is clear on a command line.
    let known = Unit::from_name(unit).or_else(|| Unit::from_abbreviation(unit));
    known.map(|unit| (requests, unit.name().to_ascii_lowercase())).ok_or_else(|| {
        let units = Unit::ALL.map(|unit| unit.name().to_ascii_lowercase()).join(", ");
        format!("unknown unit {unit:?}; expected {units}")
    })
}

/// A target in words, and its identifier.
fn named(target: &Target) -> (String, String) {
    (target.plain().to_string(), target.id())
}

/// `user=ann`, or `--entry ip=10.0.0.0/8`.
pub(super) fn target_text(one: &api::Override) -> String {
    let write = |entries: &[OverrideEntry]| {
        entries::write(entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_deref())))
    };
    match &one.entry {
        None => write(one.descriptor.as_deref().unwrap_or_default()),
        Some(entry) => format!("--entry {}", write(std::slice::from_ref(entry))),
    }
}

/// `limit 100 per minute`, `block`, `on store failure deny`.
pub(super) fn action_text(one: &api::Override) -> String {
    match (&one.on_store_failure, word(one.action.as_deref())) {
        (Some(policy), _) => format!("on store failure {policy}"),
        (None, action) if action == "limit" => {
            let limit = api::Limit {
                requests_per_unit: one.requests_per_unit.unwrap_or_default(),
                unit: one.unit.clone().unwrap_or_default(),
                calendar: one.calendar.clone(),
                ..api::Limit::default()
            };
            let name = one.name.as_ref().map(|name| format!(" {name:?}:")).unwrap_or_default();
            format!("limit{name} {}", format::limit(&limit))
        }
        (None, action) if action == "scale" => {
            let name = one.name.as_ref().map(|name| format!(" {name:?}")).unwrap_or_default();
            format!("scale{name} to {}", word(one.scale.as_deref()))
        }
        (None, action) => action,
    }
}

/// The action with its end: `blocked until 2026-11-23T00:00:00Z (3h left)`, `limit 100 per minute`.
pub(super) fn effect_text(one: &api::Override) -> String {
    let left = left_text(one);
    match (word(one.action.as_deref()).as_str(), left.is_empty()) {
        ("block", true) => "blocked until the override is removed".to_owned(),
        ("block", false) => format!("blocked{left}"),
        _ => format!("{}{left}", action_text(one)),
    }
}

/// ` until 2026-11-23T00:00:00Z (3h left)`; empty without an end.
fn left_text(one: &api::Override) -> String {
    match (&one.expires_at, seconds_left(one)) {
        (Some(end), Some(left)) => format!(" until {end} ({} left)", duration(left)),
        _ => String::new(),
    }
}

/// `3h`, or `no end`.
pub(super) fn time_left(one: &api::Override) -> String {
    seconds_left(one).map_or_else(|| "no end".to_owned(), duration)
}

fn seconds_left(one: &api::Override) -> Option<u64> {
    let end = one.expires_at.as_ref()?.parse::<prost_types::Timestamp>().ok()?;
    let end = u64::try_from(end.seconds).ok()?;
    Some(end.saturating_sub(SystemClock.now().seconds()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::plain;

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
            ("9007199254740991/month", Some((9_007_199_254_740_991, "month"))),
            ("9007199254740992/month", None),
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
    fn overrides_are_printed_as_a_table() {
        let read = |json: &serde_json::Value| serde_json::from_value(json.clone()).unwrap();
        let all = [json!({
            "id": "0123", "domain": "shop", "descriptor": [{"key": "user", "value": "a,b"}, {"key": "path"}],
            "action": "limit", "requests_per_unit": 1500, "unit": "HOUR", "by": "ann",
        })];
        let mut budget = all.clone();
        budget[0]["calendar"] = json!({"time_zone": "Europe/Berlin", "anchor_day": 15});
        let text = plain(&super::text(&budget.each_ref().map(read), 1));
        assert!(text.contains("limit 1,500 per hour (Europe/Berlin, from the 15th)"), "{text}");
        let text = plain(&super::text(&all.each_ref().map(read), 1));
        assert!(text.contains("user=a\\,b,path  limit 1,500 per hour"), "{text}");
        assert!(text.contains("no end") && text.contains("ann"), "{text}");
        assert!(plain(&super::text(&[], 0)).starts_with("no overrides"));
    }
}
