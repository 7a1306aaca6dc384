//! `tollgate status`: the state of a running service.

use std::fmt::Write as _;

use clap::Args;
use serde_json::Value;

use super::{
    AdminArgs, Client, ReplicaArgs,
    format::{bytes, duration, items, number, rate, seconds, word},
};
use crate::{
    serve::Environment,
    terminal::{self, DIM, ERROR, Failure, GOOD, Verdict, WARNING, count, paint, wrap},
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
    let query: Vec<_> = args.replica.query().collect();
    let status = Client::new(&args.admin, environment)?.get("/api/v1/status", &query)?;
    args.admin.print(&status, || wrap(&text(&status), terminal::width(), INDENT));
    Ok(verdict(&status))
}

fn verdict(status: &Value) -> Verdict {
    let is = |pointer| status.pointer(pointer).and_then(Value::as_bool).unwrap_or_default();
    let has_outage = status.pointer("/store/since").is_some_and(|since| !since.is_null());
    let is_rejected = items(&status["replicas"]).iter().any(|replica| replica["rejected"].is_string());
    let is_unwanted = items(&status["not_enforced"]).iter().any(|one| one["chosen"] != true);
    Verdict::from(
        is("/rules/is_current") && is("/store/connected") && !has_outage && !is_rejected && !is_unwanted,
    )
}

fn text(status: &Value) -> String {
    let get = |pointer: &str| status.pointer(pointer).unwrap_or(&Value::Null);
    let mut out = String::new();
    let mut line = |name: &str, text: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{} {text}", paint(DIM, &format!("{name:<9}")));
    };
    for one in items(get("/not_enforced")) {
        let colour = if one["chosen"] == true { WARNING } else { ERROR };
        line("warning", paint(colour, word(&one["text"])));
    }
    let read_only = if get("/read_only") == true { ", read-only" } else { "" };
    line(
        "tollgate",
        format!(
            "{}{} ({}), up {}{read_only}",
            get("/replica").as_str().map(|name| format!("{name} ")).unwrap_or_default(),
            word(get("/version")),
            word(get("/commit")),
            duration(number(get("/uptime_seconds"))),
        ),
    );
    line("rules", rules(status));
    if let (Some(false), Some(error)) =
        (get("/rules/is_current").as_bool(), get("/rules/last_error/errors/0").as_str())
    {
        let at = word(get("/rules/last_error/at"));
        let newer = if get("/rules/hash").is_null() { "rules" } else { "newer rules" };
        line("", format!("{} {error}", paint(ERROR, &format!("{newer} rejected at {at}:"))));
    }
    line("store", store(status));
    for (at, callers) in items(get("/callers")).iter().enumerate() {
        line(if at == 0 { "policy" } else { "" }, paint(ERROR, word(callers)));
    }
    line(
        "requests",
        format!(
            "{}/s allowed, {}/s over limit, {}/s errors{}{}",
            rate(get("/requests/per_second/ok")),
            rate(get("/requests/per_second/over_limit")),
            rate(get("/requests/per_second/error")),
            latency(get("/latency")),
            of(status),
        ),
    );
    if let Some(text) = unmatched(get("/unmatched")) {
        line("unmatched", paint(WARNING, &text));
    }
    let keys = get("/memory/keys");
    let (held, max) = (thousands(number(&keys["held"])), thousands(number(&keys["max"])));
    let counters = if keys.is_null() { String::new() } else { format!(", {held} of {max} counters") };
    line("memory", bytes(number(get("/memory/resident_bytes"))) + &counters);
    if let Some(text) = overrides(get("/overrides")) {
        line("overrides", text);
    }
    if let Some(why) = get("/overrides/failure").as_str() {
        line(
            "",
            paint(ERROR, &format!("overrides cannot be changed: OVERRIDES_FILE cannot be written: {why}")),
        );
    }
    for (name, text) in replicas(status) {
        line(name, text);
    }
    out
}

fn rules(status: &Value) -> String {
    let rules = &status["rules"];
    let Some(hash) = rules["hash"].as_str() else { return paint(ERROR, "none loaded") };
    format!(
        "{} in {} and {}, hash {hash}, loaded {}, zone data {}",
        count(number(&rules["rules"]), "rule"),
        count(number(&rules["files"]), "file"),
        count(number(&rules["domains"]), "domain"),
        word(&rules["loaded_at"]),
        word(&status["zone_data"]),
    )
}

/// `1,200 limit, 3 block, in redis`; `None` without overrides.
fn overrides(overrides: &Value) -> Option<String> {
    let actions = ["limit", "block", "allow", "shadow"].iter();
    let counts = actions.map(|action| (action, number(&overrides[*action]))).filter(|(_, n)| *n > 0);
    let counts: Vec<_> = counts.map(|(action, n)| format!("{} {action}", thousands(n))).collect();
    (!counts.is_empty()).then(|| format!("{}, in {}", counts.join(", "), word(&overrides["kept_in"])))
}

/// The replicas that rates and latencies are of.
fn of(status: &Value) -> String {
    let replicas = &status["replicas"];
    match status["scope"].as_str() {
        Some("all") => {
            let answered = items(replicas).iter().filter(|replica| replica["summary"] == "published").count();
            format!(", {answered} of {} answered", count(items(replicas).len(), "replica"))
        }
        Some("this") if replicas == "unknown" => ", this replica alone".to_owned(),
        Some("this") => ", this replica".to_owned(),
        _ => String::new(),
    }
}

/// Descriptors without a rule in the last minutes; `None` if there are none.
fn unmatched(counts: &Value) -> Option<String> {
    let parts = [("unknown_domain", "of unknown domains"), ("no_rule", "without a rule")];
    let parts = parts.iter().map(|(name, what)| (number(&counts[*name]), what)).filter(|(n, _)| *n > 0);
    let parts: Vec<_> = parts.map(|(n, what)| format!("{} {what}", count(n, "descriptor"))).collect();
    (!parts.is_empty()).then(|| format!("{}: tollgate top --unmatched", parts.join(", ")))
}

/// The replicas: a line, or one for each if they serve different rules.
fn replicas(status: &Value) -> Vec<(&'static str, String)> {
    let replicas = items(&status["replicas"]);
    if let Some(unknown) = status["replicas"].as_str() {
        return vec![("replicas", paint(WARNING, unknown))];
    }
    let Some((first, others)) = replicas.split_first() else { return Vec::new() };
    if others.is_empty() && status["store"]["kind"] != "redis" {
        return Vec::new();
    }
    let total = thousands(replicas.len() as u64);
    let notes = rejected(replicas).into_iter().chain(silent(replicas));
    if others.iter().all(|other| other["rules_hash"] == first["rules_hash"]) {
        let rates = replicas.iter().map(|replica| number(&replica["requests_per_second"]));
        let rate = thousands(rates.sum());
        let all = count(replicas.len(), "replica");
        let text = format!("{all} with the same rules, {rate} requests/s in all");
        return std::iter::once(("replicas", text)).chain(notes).collect();
    }
    let one = |replica: &Value| {
        let [id, version, hash] = ["id", "version", "rules_hash"].map(|name| word(&replica[name]));
        ("", format!("{id} {version}, rules {hash}, {}/s", number(&replica["requests_per_second"])))
    };
    let mut sets: Vec<&str> = replicas.iter().map(|replica| word(&replica["rules_hash"])).collect();
    sets.sort_unstable();
    sets.dedup();
    let heading = paint(WARNING, &format!("{total} serve {} sets of rules", sets.len()));
    std::iter::once(("replicas", heading)).chain(replicas.iter().map(one)).chain(notes).collect()
}

/// Replicas that rejected the newest rules: how many, then each with the place and the reason.
fn rejected(replicas: &[Value]) -> Vec<(&'static str, String)> {
    let reason =
        |replica: &Value| Some(format!("{}, {}", word(&replica["id"]), replica["rejected"].as_str()?));
    let reasons: Vec<_> = replicas.iter().filter_map(reason).collect();
    let Some((first, others)) = reasons.split_first() else { return Vec::new() };
    let (one, all) = (thousands(reasons.len() as u64), count(replicas.len(), "replica"));
    let heading = paint(ERROR, &format!("{one} of {all} rejected newer rules:"));
    let others = others.iter().map(|reason| ("", reason.clone()));
    std::iter::once(("", format!("{heading} {first}"))).chain(others).collect()
}

/// Replicas without a summary: the first, and how many more.
fn silent(replicas: &[Value]) -> Option<(&'static str, String)> {
    let mut silent =
        replicas.iter().filter(|replica| replica["summary"].as_str().is_some_and(|it| it != "published"));
    let first = silent.next()?;
    let (id, why) = (word(&first["id"]), word(&first["summary"]));
    let more = match silent.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(("", paint(WARNING, &format!("without the numbers of {id} ({why}){more}"))))
}

fn store(status: &Value) -> String {
    let store = &status["store"];
    let address = store["address"].as_str().map(|address| format!(" {address}")).unwrap_or_default();
    let connected = match (store["connected"].as_bool(), number(&store["breakers_open"])) {
        (Some(true), 0) if store["since"].is_null() => paint(GOOD, "connected"),
        (Some(true), 0) => paint(ERROR, "connected, but most requests fail"),
        (Some(true), open) => paint(WARNING, &format!("connected, {}", count(open, "open breaker"))),
        _ => paint(ERROR, "not connected"),
    };
    let outage = store["since"].as_str().map(|since| format!(" since {since}: {}", word(&store["error"])));
    let latency = if store["stale"] == true { String::new() } else { latency(store) };
    format!("{}{address}, {connected}{}{latency}", word(&store["kind"]), outage.unwrap_or_default())
}

fn latency(value: &Value) -> String {
    match (value["p50_seconds"].as_f64(), value["p99_seconds"].as_f64()) {
        (Some(p50), Some(p99)) => format!(", p50 {}, p99 {}", seconds(p50), seconds(p99)),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::terminal::plain;

    fn status() -> Value {
        json!({
            "version": "0.1.0", "commit": "abc", "zone_data": "2026f", "uptime_seconds": 11_520, "read_only": false,
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
tollgate  0.1.0 (abc), up 3h 12m
rules     12 rules in 1 file and 2 domains, hash 00ff, loaded 2026-11-22T09:00:00.000Z, zone data 2026f
store     redis redis:6379, connected, p50 0.3 ms, p99 1.1 ms
requests  1,240/s allowed, 12/s over limit, 0/s errors
memory    45.0 MB, 12,000 of 10,000,000 counters
";
        assert_eq!(plain(&text(&status())), expected);
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
        let text = plain(&super::text(&status));
        assert!(text.contains("overrides 1,200 limit, 3 block, in redis\n"), "{text}");
        let unmatched =
            "unmatched 1 descriptor of unknown domains, 1,200 descriptors without a rule: tollgate top";
        assert!(text.contains(unmatched), "{text}");
        assert!(
            text.contains("replicas  2 replicas with the same rules, 1,200 requests/s in all\n"),
            "{text}"
        );
        status["replicas"] = json!([replica("a", "00ff"), replica("b", "00ff")]);
        status["replicas"][1]["rejected"] = json!("shop.yaml:3:5: unknown key");
        let text = plain(&super::text(&status));
        assert!(
            text.contains("1 of 2 replicas rejected newer rules: b, shop.yaml:3:5: unknown key\n"),
            "{text}"
        );
        assert_eq!(verdict(&status), Verdict::No);
        status["replicas"] = json!([replica("a", "00ff"), replica("b", "ff00")]);
        let text = plain(&super::text(&status));
        assert!(
            text.contains("2 serve 2 sets of rules") && text.contains("b 0.1.0, rules ff00, 600/s"),
            "{text}"
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
        let text = plain(&text(&wrong));
        assert!(text.contains("newer rules rejected at 2026-11-22T10:00:00.000Z: a.yaml:3: bad"), "{text}");
        let outage = "redis redis:6379, not connected since 2026-11-22T10:00:01.000Z: redis redis:6379: connection refused\n";
        assert!(text.contains(outage) && text.contains("\npolicy    error: 163/s failing; Envoy"), "{text}");
        assert!(text.contains("replicas  unknown"), "{text}");
        wrong["rules"]["hash"] = Value::Null;
        assert!(!plain(&super::text(&wrong)).contains("newer rules"), "none were loaded");
        assert_eq!(verdict(&wrong), Verdict::No);
        assert!(plain(&super::text(&Value::Null)).contains("none loaded"), "an empty reply does not panic");
    }
}
