//! `tollgate why`: the recorded requests with a value, what refused them, and an exemption from all of it.

use std::{fmt::Write as _, slice};

use clap::Args;

use super::{
    ChangeArgs, Client, ReplicaArgs, Reply, answered,
    overrides::{EndArgs, effect_text},
    user,
};
use crate::{
    format::{descriptor, word},
    serve::Environment,
    terminal::{DIM, ERROR, Failure, GOOD, Verdict, count, paint, wrapped},
};
use api::{Override, SetOverride, TextOr, Why, WhyDescriptor, WhyRequest, WhyTarget};
use text::{printable, thousands};

/// The columns before a continued line.
const INDENT: usize = 6;

#[derive(Args, Clone, PartialEq, Debug)]
pub(crate) struct WhyArgs {
    /// The value of an entry: a user, an address, an API key.
    value: String,
    /// Exempt its requests from every limit that they meet, on all replicas, until the end.
    #[arg(long)]
    exempt: bool,
    #[command(flatten)]
    end: EndArgs,
    #[command(flatten)]
    replica: ReplicaArgs,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Prints the requests, and exempts them if that is wanted. The verdict is no if there are none.
pub(crate) fn run(args: &WhyArgs, environment: &Environment) -> Result<Verdict, Failure> {
    let has_end = args.end.duration.is_some() || args.end.until.is_some();
    if args.exempt != has_end {
        let advice = "--exempt --for 1h exempts the requests for an hour";
        return Err(Failure::new("--exempt needs an end, and an end needs --exempt", advice));
    }
    let client = Client::new(&args.change.admin, environment)?;
    let query = [vec![("value", args.value.clone())], args.replica.query()].concat();
    let why: Reply<Why> = client.get("/api/v1/why", query)?;
    client.print(&why, |why| wrapped(&(text(why) + &answered(&why.whose)), INDENT));
    if args.exempt {
        for target in &why.exemption {
            exempt(args, target, &client, environment)?;
        }
    }
    Ok((!why.requests.is_empty()).into())
}

fn exempt(
    args: &WhyArgs,
    target: &WhyTarget,
    client: &Client,
    environment: &Environment,
) -> Result<(), Failure> {
    let written = |entries: &[api::Entry]| TextOr::Text(descriptor(entries));
    let body = SetOverride {
        domain: target.domain.clone(),
        descriptor: target.descriptor.as_deref().map(written),
        entry: target.entry.as_ref().map(|entry| TextOr::Text(written_entry(entry))),
        action: "allow".to_owned(),
        expires_at: args.end.until.clone(),
        r#for: args.end.duration.clone(),
        reason: args.change.reason.clone(),
        by: user(environment).cloned(),
        ..SetOverride::default()
    };
    let reply: Reply<Override> = client.post("/api/v1/overrides", &body)?;
    client.print(&reply, |reply| format!("{}: {}\n", in_words(target), effect_text(reply)));
    Ok(())
}

fn written_entry(entry: &api::Entry) -> String {
    descriptor(slice::from_ref(entry))
}

/// `any descriptor with user=ann in shop`
fn in_words(WhyTarget { domain, entry, descriptor: all }: &WhyTarget) -> String {
    let what = match entry {
        Some(entry) => format!("any descriptor with {}", written_entry(entry)),
        None => descriptor(all.as_deref().unwrap_or_default()),
    };
    printable(&format!("{what} in {domain}")).into_owned()
}

fn text(why: &Why) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    for request in why.requests.iter().rev() {
        let WhyRequest { domain, requests, first, last, descriptors } = request;
        let times = match requests {
            0 => format!("refused, the last at {last}"),
            1 => format!("1 request at {last}"),
            n => format!("{} requests from {first} to {last}", thousands(*n)),
        };
        let _ = writeln!(out, "{} {times}", printable(domain));
        for one in descriptors {
            describe(one, &mut out);
        }
    }
    if why.requests.is_empty() {
        out += "no recorded request and no refusal has this value\n";
    }
    let recorded = match why.share_of_keys {
        None => "requests are not recorded: RECENT_REQUESTS_MAX_BYTES is 0".to_owned(),
        Some(share) if share < 1.0 => {
            format!("the requests of {:.2} % of the keys are recorded", share * 100.0)
        }
        Some(_) => String::new(),
    };
    let more = (why.more > 0).then(|| format!("and {} of other kinds", count(why.more, "request")));
    for note in more.into_iter().chain((!recorded.is_empty()).then_some(recorded)) {
        let _ = writeln!(out, "{}", paint(DIM, &note));
    }
    if !why.exemption.is_empty() {
        let targets: Vec<_> = why.exemption.iter().map(in_words).collect();
        let _ = writeln!(out, "{}", paint(DIM, &format!("--exempt --for 1h allows {}", targets.join("; "))));
    }
    out
}

/// A line for the descriptor and its limits, and one for what refused it or exempts it.
fn describe(one: &WhyDescriptor, out: &mut String) {
    let place = one.file.as_ref().map(|file| format!(" ({file}:{})", one.line.unwrap_or_default()));
    let limits = match (one.rule.is_some(), one.limits.is_empty()) {
        (true, true) => "unlimited".to_owned(),
        (false, _) => "no rule".to_owned(),
        _ => one.limits.join(", "),
    };
    let shared = if one.others > 0 {
        format!("; {} with other values have it too", count(one.others, "request"))
    } else {
        String::new()
    };
    let line = format!("{}: {limits}{}{shared}", descriptor(&one.descriptor), place.unwrap_or_default());
    let _ = writeln!(out, "  {}", printable(&line));
    if let Some(refused) = &one.refused {
        let times = if refused.count == 1 {
            "once".to_owned()
        } else {
            format!("{} times", thousands(refused.count))
        };
        let text = format!("refused {times} since {}: {}", refused.first, refused.reason);
        let _ = writeln!(out, "    {}", paint(ERROR, &printable(&text)));
    }
    if let Some(by) = &one.by_override {
        let who = by.by.as_ref().map(|by| format!(", by {by}")).unwrap_or_default();
        let reason = by.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let text = format!("override {}: {}{who}{reason}", word(by.id.as_deref()), effect_text(by));
        let _ = writeln!(out, "    {}", paint(GOOD, &printable(&text)));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::terminal::plain;

    #[test]
    fn a_request_is_shown_with_what_refused_it() {
        let why = json!({
            "requests": [{
                "domain": "shop", "requests": 15, "first": "t1", "last": "t2",
                "descriptors": [
                    {
                        "descriptor": [{"key": "user", "value": "ann"}], "rule": "shop.user", "file": "shop.yaml", "line": 3,
                        "limits": ["2 per hour"], "others": 0,
                        "override": {"id": "a1", "action": "allow", "by": "bob", "reason": "vip"},
                    },
                    {
                        "descriptor": [{"key": "ip", "value": "10.0.0.1"}], "rule": "shop.ip", "file": "shop.yaml", "line": 5,
                        "limits": ["5 per hour"], "others": 1200,
                        "refused": {"count": 13, "first": "t1", "reason": "over 5 per hour"},
                    },
                ],
            }],
            "share_of_keys": 0.25,
            "exemption": [{"domain": "shop", "entry": {"key": "user", "value": "ann"}}],
        });
        let shown = plain(&text(&serde_json::from_value(why).unwrap()));
        let expected = "\
shop 15 requests from t1 to t2
  user=ann: 2 per hour (shop.yaml:3)
    override a1: allow, by bob: vip
  ip=10.0.0.1: 5 per hour (shop.yaml:5); 1,200 requests with other values have it too
    refused 13 times since t1: over 5 per hour
the requests of 25.00 % of the keys are recorded
--exempt --for 1h allows any descriptor with user=ann in shop
";
        assert_eq!(shown, expected);
        assert!(
            plain(&text(&Why::default())).starts_with("no recorded request and no refusal has this value\n")
        );
    }
}
