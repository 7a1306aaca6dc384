//! `tollgate status`: the state of a running service.

use std::{
    collections::{BTreeMap, HashSet},
    fmt::{Display, Write as _},
};

use clap::Args;

use super::{AdminArgs, Client, ReplicaArgs, Reply};
use crate::{
    format::{bytes, duration, rate, seconds, word},
    serve::Environment,
    terminal::{DIM, ERROR, Failure, GOOD, Verdict, WARNING, count, paint, wrapped},
};
use api::{
    Answers, ByCode, Latency, NotEnforced, OrUnknown, OverridesStatus, RejectedRules, Replica, Status,
    StoreStatus,
};
use text::thousands;

/// The columns before a line's text.
const INDENT: usize = 10;

#[derive(Args, Clone, PartialEq, Debug)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    replica: ReplicaArgs,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Prints the status. The verdict is no if limits are not enforced and nobody chose so, a replica rejected the newest
/// rules, or the store is out of service.
pub(crate) fn run(args: &StatusArgs, environment: &Environment) -> Result<Verdict, Failure> {
    let client = Client::new(&args.admin, environment)?;
    let status: Reply<Status> = client.get("/api/v1/status", args.replica.query())?;
    client.print(&status, |status| wrapped(&text(status), INDENT));
    Ok(verdict(&status))
}

/// The replicas; none while they are unknown.
fn known(status: &Status) -> &[Replica] {
    status.replicas.as_ref().and_then(OrUnknown::known).map_or(&[], Vec::as_slice)
}

fn verdict(status: &Status) -> Verdict {
    let is_rejected = known(status).iter().any(|replica| replica.rejected.is_some());
    let is_unwanted = status.not_enforced.iter().any(|one| !one.chosen);
    let is_out = !status.store.connected || status.store.since.is_some();
    Verdict::from(status.rules.is_current && !is_out && !is_rejected && !is_unwanted)
}

/// The lines of the status.
#[derive(Default)]
struct Lines(String);

impl Lines {
    /// Adds a line; without a name it belongs to the one before it.
    fn add(&mut self, name: &str, text: impl Display) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{} {text}", paint(DIM, &format!("{name:<9}")));
    }
}

fn text(status: &Status) -> String {
    let mut lines = Lines::default();
    add_enforced(&mut lines, status);
    let read_only = if status.read_only { ", read-only" } else { "" };
    let Status { replica, version, commit, .. } = status;
    let name = if replica.is_empty() { String::new() } else { format!("{replica} ") };
    let up = duration(status.uptime_seconds);
    lines.add("tollgate", format!("{name}{version} ({commit}), up {up}{read_only}"));
    lines.add("rules", rules(status));
    if let (false, Some(RejectedRules { at, errors })) = (status.rules.is_current, &status.rules.last_error) {
        let newer = if status.rules.hash.is_none() { "rules" } else { "newer rules" };
        let error = errors.first().map(String::as_str).unwrap_or_default();
        lines.add("", format!("{} {error}", paint(ERROR, &format!("{newer} rejected at {at}:"))));
    }
    lines.add("store", store(&status.store));
    for (at, callers) in status.callers.iter().enumerate() {
        lines.add(if at == 0 { "policy" } else { "" }, paint(ERROR, callers));
    }
    let ByCode { ok, over_limit, error } = status.requests.per_second;
    let [ok, over_limit, error] = [ok, over_limit, error].map(rate);
    let rates = format!("{ok}/s allowed, {over_limit}/s over limit, {error}/s errors");
    lines.add("requests", rates + &latency(status.latency) + &whose(status));
    if let Some(text) = too_late(status.answers) {
        lines.add("", paint(ERROR, &text));
    }
    if let Some(text) = unmatched(&status.unmatched) {
        lines.add("unmatched", paint(WARNING, &text));
    }
    let counters =
        status.memory.keys.as_ref().map(|keys| {
            format!(", {} of {} counters", thousands(keys.held as u64), thousands(keys.max as u64))
        });
    let resident = status.memory.resident_bytes.unwrap_or_default();
    lines.add("memory", bytes(resident) + &counters.unwrap_or_default());
    add_overrides(&mut lines, &status.overrides);
    if let Some(why) = &status.token_file_failure {
        let text = format!("previous ones stay valid, ADMIN_TOKEN_FILE cannot be used: {why}");
        lines.add("tokens", paint(ERROR, &text));
    }
    add_replicas(&mut lines, status);
    lines.0
}

/// Whether limits are enforced, with the first reason why not; then the others.
fn add_enforced(lines: &mut Lines, status: &Status) {
    let colour = match status.enforced.as_str() {
        "yes" => GOOD,
        "partly" => WARNING,
        _ => ERROR,
    };
    // A service of an older version does not say it.
    let word = if status.enforced.is_empty() { "unknown" } else { &status.enforced };
    let verdict = paint(colour, word);
    match status.not_enforced.as_slice() {
        [] if status.store.since.is_some() => {
            lines.add("enforced", format!("{verdict}: {}", paint(ERROR, "the store is out of service")));
        }
        [] => lines.add("enforced", verdict),
        reasons => {
            for (at, NotEnforced { chosen, text, .. }) in reasons.iter().enumerate() {
                let text = paint(if *chosen { WARNING } else { ERROR }, text);
                match at {
                    0 => lines.add("enforced", format!("{verdict}: {text}")),
                    _ => lines.add("", text),
                }
            }
        }
    }
}

fn rules(Status { rules, zone_data, .. }: &Status) -> String {
    let Some(hash) = &rules.hash else { return paint(ERROR, "none loaded") };
    format!(
        "{} in {} and {}, hash {hash}, loaded {}, zone data {zone_data}",
        count(rules.rules, "rule"),
        count(rules.files, "file"),
        count(rules.domains, "domain"),
        word(rules.loaded_at.as_deref()),
    )
}

/// How many there are, and what is wrong with them.
fn add_overrides(lines: &mut Lines, overrides: &OverridesStatus) {
    let OverridesStatus { limit, block, allow, shadow, kept_in, .. } = overrides;
    let actions = [(limit, "limit"), (block, "block"), (allow, "allow"), (shadow, "shadow")];
    let counts = actions.iter().filter(|(n, _)| **n > 0);
    let counts: Vec<_> = counts.map(|(n, action)| format!("{} {action}", thousands(**n))).collect();
    if !counts.is_empty() {
        lines.add("overrides", format!("{}, in {kept_in}", counts.join(", ")));
    }
    if let Some(why) = &overrides.failure {
        let text = format!("overrides cannot be changed: OVERRIDES_FILE cannot be written: {why}");
        lines.add("", paint(ERROR, &text));
    }
    if overrides.owed > 0 {
        let changes = count(overrides.owed as u64, "change");
        let text = format!("{changes} of overrides on this replica alone until redis is back");
        lines.add("", paint(ERROR, &text));
    }
}

/// The replicas that rates and latencies are of.
fn whose(status: &Status) -> String {
    let all = known(status);
    match (status.scope.as_str(), &status.replicas) {
        ("all", _) => {
            let answered = all.iter().filter(|replica| replica.summary == "published").count();
            format!(", {answered} of {} answered", count(all.len(), "replica"))
        }
        ("this", Some(OrUnknown::Unknown(_))) => ", this replica alone".to_owned(),
        ("this", _) => ", this replica".to_owned(),
        _ => String::new(),
    }
}

/// Requests of the last minute that Envoy decided because their answers came too late; `None` if there are none.
fn too_late(Answers { abandoned, late }: Answers) -> Option<String> {
    let parts =
        [(abandoned, "abandoned by their callers before the answer"), (late, "answered after the deadline")];
    let parts = parts.iter().filter(|(n, _)| *n > 0);
    let parts: Vec<_> = parts.map(|(n, what)| format!("{} {what}", thousands(*n))).collect();
    (!parts.is_empty()).then(|| format!("{} in the last minute: Envoy decided these", parts.join(", ")))
}

/// Descriptors without a rule in the last minutes; `None` if there are none.
fn unmatched(counts: &BTreeMap<String, u64>) -> Option<String> {
    let parts = [("unknown_domain", "of unknown domains"), ("no_rule", "without a rule")];
    let parts = parts.iter().filter_map(|(name, what)| {
        let n = counts.get(*name).filter(|n| **n > 0)?;
        Some(format!("{} {what}", count(*n, "descriptor")))
    });
    let parts: Vec<_> = parts.collect();
    (!parts.is_empty()).then(|| format!("{}: tollgate top --unmatched", parts.join(", ")))
}

/// The replicas: a line, or one for each if they serve different rules; then those that need attention.
fn add_replicas(lines: &mut Lines, status: &Status) {
    if let Some(OrUnknown::Unknown(_)) = status.replicas {
        return lines.add("replicas", paint(WARNING, "unknown"));
    }
    let replicas = known(status);
    if replicas.is_empty() || replicas.len() == 1 && status.store.kind != "redis" {
        return;
    }
    let all = count(replicas.len(), "replica");
    let sets: HashSet<_> = replicas.iter().map(|replica| &replica.rules_hash).collect();
    if sets.len() == 1 {
        let rate = thousands(replicas.iter().map(|replica| replica.requests_per_second).sum());
        lines.add("replicas", format!("{all} with the same rules, {rate} requests/s in all"));
    } else {
        let total = thousands(replicas.len() as u64);
        lines.add("replicas", paint(WARNING, &format!("{total} serve {} sets of rules", sets.len())));
        for Replica { id, version, rules_hash, requests_per_second, .. } in replicas {
            let hash = word(rules_hash.as_deref());
            lines.add("", format!("{id} {version}, rules {hash}, {requests_per_second}/s"));
        }
    }
    let reason = |replica: &Replica| Some(format!("{}, {}", replica.id, replica.rejected.as_ref()?));
    let rejected: Vec<_> = replicas.iter().filter_map(reason).collect();
    for (at, reason) in rejected.iter().enumerate() {
        let heading = format!("{} of {all} rejected newer rules:", thousands(rejected.len() as u64));
        let heading = if at == 0 { paint(ERROR, &heading) + " " } else { String::new() };
        lines.add("", heading + reason);
    }
    let is_silent = |replica: &&Replica| !replica.summary.is_empty() && replica.summary != "published";
    let mut silent = replicas.iter().filter(is_silent);
    if let Some(Replica { id, summary: why, .. }) = silent.next() {
        let more = match silent.count() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        lines.add("", paint(WARNING, &format!("without the numbers of {id} ({why}){more}")));
    }
}

fn store(store: &StoreStatus) -> String {
    let address = store.address.as_ref().map(|address| format!(" {address}")).unwrap_or_default();
    let connected = match (store.connected, store.breakers_open) {
        (true, 0) if store.since.is_none() => paint(GOOD, "connected"),
        (true, 0) => paint(ERROR, "connected, but most requests fail"),
        (true, open) => paint(WARNING, &format!("connected, {}", count(open, "open breaker"))),
        (false, _) => paint(ERROR, "not connected"),
    };
    let outage =
        store.since.as_ref().map(|since| format!(" since {since}: {}", word(store.error.as_deref())));
    let latency = if store.stale { String::new() } else { latency(store.latency) };
    format!("{}{address}, {connected}{}{latency}", store.kind, outage.unwrap_or_default())
}

fn latency(latency: Latency) -> String {
    match (latency.p50_seconds, latency.p99_seconds) {
        (Some(p50), Some(p99)) => format!(", p50 {}, p99 {}", seconds(p50), seconds(p99)),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::terminal::plain;

    fn text(status: &Value) -> String {
        plain(&super::text(&serde_json::from_value(status.clone()).unwrap()))
    }

    fn verdict(status: &Value) -> Verdict {
        super::verdict(&serde_json::from_value(status.clone()).unwrap())
    }

    fn status() -> Value {
        json!({
            "version": "0.1.0", "commit": "abc", "zone_data": "2026f", "uptime_seconds": 11_520, "read_only": false,
            "enforced": "yes",
            "rules": {
                "is_current": true, "hash": "00ff", "loaded_at": "2026-11-22T09:00:00.000Z", "files": 1,
                "domains": 2, "rules": 12, "last_error": null,
            },
            "store": {
                "kind": "redis", "address": "redis:6379", "connected": true, "breakers_open": 0,
                "p50_seconds": 0.0003, "p99_seconds": 0.0011,
            },
            "requests": { "per_second": { "ok": 1240.4, "over_limit": 12.0, "error": 0.0 } },
            "latency": { "p50_seconds": null, "p99_seconds": null },
            "memory": { "resident_bytes": 45_000_000, "keys": { "held": 12_000, "max": 10_000_000 } },
        })
    }

    #[test]
    fn the_status_has_a_line_for_each_part() {
        let expected = "\
enforced  yes
tollgate  0.1.0 (abc), up 3h 12m
rules     12 rules in 1 file and 2 domains, hash 00ff, loaded 2026-11-22T09:00:00.000Z, zone data 2026f
store     redis redis:6379, connected, p50 0.3 ms, p99 1.1 ms
requests  1,240/s allowed, 12/s over limit, 0/s errors
memory    45.0 MB, 12,000 of 10,000,000 counters
";
        assert_eq!(text(&status()), expected);
        assert_eq!(verdict(&status()), Verdict::Yes);
    }

    #[test]
    fn overrides_and_replicas_are_shown_if_there_are_any() {
        let mut status = status();
        status["unmatched"] = json!({"unknown_domain": 1, "no_rule": 1200});
        status["overrides"] = json!({
            "limit": 1200, "block": 3, "allow": 0, "shadow": 0, "kept_in": "redis", "failure": "disk full",
        });
        let replica = |id: &str, hash: &str| json!({"id": id, "version": "0.1.0", "rules_hash": hash, "requests_per_second": 600});
        status["replicas"] = json!([replica("a", "00ff"), replica("b", "00ff")]);
        let shown = text(&status);
        assert!(shown.contains("overrides 1,200 limit, 3 block, in redis\n"), "{shown}");
        let unmatched =
            "unmatched 1 descriptor of unknown domains, 1,200 descriptors without a rule: tollgate top";
        assert!(shown.contains(unmatched), "{shown}");
        assert!(
            shown.contains("replicas  2 replicas with the same rules, 1,200 requests/s in all\n"),
            "{shown}"
        );
        status["replicas"] = json!([replica("a", "00ff"), replica("b", "00ff")]);
        status["replicas"][1]["rejected"] = json!("shop.yaml:3:5: unknown key");
        let shown = text(&status);
        assert!(
            shown.contains("1 of 2 replicas rejected newer rules: b, shop.yaml:3:5: unknown key\n"),
            "{shown}"
        );
        assert_eq!(verdict(&status), Verdict::No);
        status["replicas"] = json!([replica("a", "00ff"), replica("b", "ff00")]);
        let shown = text(&status);
        assert!(
            shown.contains("2 serve 2 sets of rules") && shown.contains("b 0.1.0, rules ff00, 600/s"),
            "{shown}"
        );
    }

    #[test]
    fn stale_rules_and_a_lost_store_are_shown_and_the_verdict_is_no() {
        let mut wrong = status();
        wrong["rules"]["is_current"] = json!(false);
        wrong["rules"]["last_error"] =
            json!({ "at": "2026-11-22T10:00:00.000Z", "errors": ["a.yaml:3: bad"] });
        wrong["store"]["connected"] = json!(false);
        wrong["store"]["since"] = json!("2026-11-22T10:00:01.000Z");
        wrong["store"]["error"] = json!("redis redis:6379: connection refused");
        wrong["store"]["stale"] = json!(true);
        wrong["replicas"] = json!("unknown");
        wrong["callers"] = json!(["error: 163/s failing; Envoy lets them through unless failure_mode_deny"]);
        wrong["enforced"] = json!("no");
        let shown = text(&wrong);
        assert!(shown.starts_with("enforced  no: the store is out of service\n"), "{shown}");
        wrong["not_enforced"] = json!([{"text": "shop: a"}, {"text": "cart: b"}]);
        let shown = text(&wrong);
        assert!(shown.starts_with("enforced  no: shop: a\n          cart: b\n"), "{shown}");
        assert!(shown.contains("newer rules rejected at 2026-11-22T10:00:00.000Z: a.yaml:3: bad"), "{shown}");
        let outage = "redis redis:6379, not connected since 2026-11-22T10:00:01.000Z: redis redis:6379: connection refused\n";
        assert!(
            shown.contains(outage) && shown.contains("\npolicy    error: 163/s failing; Envoy"),
            "{shown}"
        );
        assert!(shown.contains("replicas  unknown"), "{shown}");
        wrong["answers"] = json!({"abandoned": 1_255, "late": 3});
        let abandoned = "\n          1,255 abandoned by their callers before the answer, 3 answered after the deadline in \
                         the last minute: Envoy decided these\n";
        assert!(text(&wrong).contains(abandoned), "{}", text(&wrong));
        wrong["rules"]["hash"] = Value::Null;
        assert!(!text(&wrong).contains("newer rules"), "none were loaded");
        assert_eq!(verdict(&wrong), Verdict::No);
        assert!(text(&json!({})).contains("none loaded"), "an empty reply does not panic");
    }
}
