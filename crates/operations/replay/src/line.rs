//! Reads a JSON line of a recorded request.

use std::{borrow::Cow, hash::Hasher as _};

use serde::{Deserialize, de::IgnoredAny};
use siphasher::sip128::{Hasher128 as _, SipHasher13};
use smallvec::smallvec;

use super::{
    block::{Block, Sample},
    instant,
};
use counters::HoldId;
use limiter::{CLOSING_KEYS, LimitOverride};

/// The identity in this replay of holds with this one in the log, which may be hashed: the store of a replay has one slot.
fn hold_id(logged: &str) -> HoldId {
    let mut hasher = SipHasher13::new();
    hasher.write(logged.as_bytes());
    HoldId { random: hasher.finish128().as_u128(), slots: smallvec![0] }
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    time: Option<Cow<'a, str>>,
    #[serde(borrow)]
    domain: Option<Cow<'a, str>>,
    #[serde(borrow)]
    descriptors: Option<Vec<DescriptorIn<'a>>>,
    sample: Option<Sample>,
    /// The identity of what the request may hold.
    #[serde(borrow)]
    hold: Option<Cow<'a, str>>,
    /// The number of requests that were not recorded; such a line has no request.
    missing: Option<u64>,
    /// A field of the decision log.
    decided_by: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DescriptorIn<'a> {
    #[serde(borrow)]
    entries: Vec<EntryIn<'a>>,
    hits: Option<u64>,
    #[serde(default)]
    refund: bool,
    limit: Option<LimitIn>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryIn<'a> {
    #[serde(borrow)]
    key: Cow<'a, str>,
    #[serde(borrow, default)]
    value: Cow<'a, str>,
}

/// A limit in the request, in the terms of Envoy's API.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitIn {
    requests_per_unit: u32,
    unit: i32,
    unit_multiplier: Option<u32>,
}

const DECISION_LOG: &str = "this is a line of the decision log (DECISION_LOG), which cannot be replayed: it has a line for \
    each descriptor instead of whole requests, cut and hidden values, and by default only refusals; record requests with \
    REQUEST_LOG";

/// Adds the request of a line, with the line's number, to the block.
pub(crate) fn read(block: &mut Block, line: &str, number: u32) -> Result<(), String> {
    let line = serde_json::from_str::<Line<'_>>(line);
    let line = line.map_err(|error| worded(&error, EXPECTED))?;
    if line.decided_by.is_some() {
        return Err(DECISION_LOG.to_owned());
    }
    if let Some(sample) = &line.sample {
        if !(sample.rate > 0.0 && sample.rate <= 1.0) {
            return Err(format!("sample.rate: expected a number above 0 and at most 1, got {}", sample.rate));
        }
        block.notes.sample = Some(*sample);
    }
    if let Some(missing) = line.missing {
        block.notes.missing = block.notes.missing.saturating_add(missing);
    }
    if line.descriptors.is_none() && (line.missing.is_some() || line.sample.is_some()) {
        return Ok(());
    }
    let time = line.time.ok_or("time: missing; expected a time such as \"2026-11-01T00:00:00.123Z\"")?;
    let time = instant::parse(&time)
        .ok_or_else(|| format!("time: expected a time such as \"2026-11-01T00:00:00.123Z\", got {time:?}"))?;
    let domain = line.domain.filter(|domain| !domain.is_empty());
    let domain = domain.ok_or("domain: missing or empty; expected the domain of the request")?;
    let descriptors = line.descriptors.filter(|descriptors| !descriptors.is_empty());
    let descriptors = descriptors.ok_or("descriptors: missing or empty; expected at least one descriptor")?;
    for DescriptorIn { entries, hits, refund, limit } in descriptors {
        for EntryIn { key, value } in entries {
            if CLOSING_KEYS.contains(&&*key) {
                block.push_entry(&key, &hold_id(&value).to_string());
            } else {
                block.push_entry(&key, &value);
            }
        }
        let limit = limit.map(|LimitIn { requests_per_unit, unit, unit_multiplier }| LimitOverride {
            requests_per_unit,
            unit,
            unit_multiplier,
        });
        block.push_descriptor(hits, refund, limit);
    }
    block.push_request(time, number, &domain);
    if let Some(hold) = line.hold {
        block.hold(hold_id(&hold).random);
    }
    Ok(())
}

/// The error without serde's line, which is always 1.
pub(crate) fn worded(error: &serde_json::Error, expected: &str) -> String {
    let text = error.to_string();
    let column = error.column();
    let what = text.split(" at line ").next().unwrap_or(&text);
    if error.is_eof() {
        return format!(
            "the line is cut at column {column} ({what}); expected {expected}, or remove the line"
        );
    }
    format!("column {column}: {what}; expected {expected}")
}

const EXPECTED: &str = r#"a request such as {"time":"2026-11-01T00:00:00.123Z","domain":"d","descriptors":[{"entries":[{"key":"user","value":"ann"}]}]}"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(line: &str) -> Result<String, String> {
        let mut block = Block::new("log".into(), 1, line.len());
        read(&mut block, line, 0)?;
        let request = block.request(0);
        // `Debug` shows no values.
        let entries = request.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
        let entries: Vec<_> = entries.map(|entry| (entry.key, entry.value)).collect();
        Ok(format!("{:?} {request:?} {entries:?} {:?}", block.times().next(), block.hold_of(0)))
    }

    #[test]
    fn a_line_may_have_any_form_of_its_json() {
        let written = r#"{"time":"2026-11-01T00:00:00Z","domain":"d","descriptors":[{"entries":[{"key":"k\"","value":"aä"}],"hits":3,"refund":true,"limit":{"requests_per_unit":5,"unit":1}}],"hold":"AAAA"}"#;
        let otherwise = r#" {"domain": "d", "more": 1, "hold": "AAAA", "time": "2026-11-01T01:00:00.000+01:00",
            "descriptors": [{"limit": {"unit": 1, "requests_per_unit": 5}, "refund": true, "hits": 3,
            "entries": [{"value": "\u0061\u00e4", "key": "k\u0022"}]}]}"#;
        let seen = [written, otherwise].map(|line| seen(line).unwrap());
        assert_eq!(seen[0], seen[1]);
        for part in [r#"("k\"", "aä")"#, "hits_addend: Some(3)", "is_negative_hits: true"] {
            assert!(seen[0].contains(part), "{part}: {}", seen[0]);
        }
    }

    #[test]
    fn holds_are_known_by_the_identity_in_the_log() {
        let line = r#"{"time":"2026-11-01T00:00:00Z","domain":"d","descriptors":[{"entries":[{"key":"hold_settle","value":"AAAA"}]}],"hold":"AAAA"}"#;
        let mut block = Block::new("log".into(), 1, line.len());
        read(&mut block, line, 0).unwrap();
        let id = HoldId { random: block.hold_of(0).unwrap(), slots: smallvec![0] };
        assert_eq!(block.request(0).descriptors[0].entries[0].value, id.to_string());
    }

    #[test]
    fn errors_say_what_is_expected() {
        for (line, expected) in [
            (r#"{"time":"2026-11-01T00:00:00Z","domain":"d","descr"#, "the line is cut at column"),
            ("x", "column 1: expected value"),
            ("{}", "time: missing"),
            (r#"{"time":"noon","domain":"d","descriptors":[]}"#, "got \"noon\""),
            (r#"{"time":"2026-11-01T00:00:00Z","domain":"","descriptors":[]}"#, "domain: missing or empty"),
            (r#"{"time":"2026-11-01T00:00:00Z","domain":"d","descriptors":[]}"#, "at least one descriptor"),
            (
                r#"{"time":"2026-11-01T00:00:00Z","domain":"d","descriptors":[{"entries":[],"hit":2}]}"#,
                "unknown field `hit`",
            ),
            (
                r#"{"time":"2026-11-01T00:00:00Z","domain":"d","descriptor":[{"key":"k","value":"v"}],"decided_by":"counter"}"#,
                "decision log",
            ),
            (r#"{"sample":{"by":"key","rate":0}}"#, "sample.rate"),
        ] {
            let error = seen(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
