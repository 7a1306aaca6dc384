//! Reads a JSON line of a recorded request.
//!
//! The service writes lines of one form, which [`read`] reads by hand: a replay of a million takes 0.70 s of CPU instead of
//! 0.98 s. Any other form is left to `serde_json`, which also words the errors.

use std::{borrow::Cow, hash::Hasher as _};

use serde::{Deserialize, de::IgnoredAny};
use siphasher::sip128::{Hasher128 as _, SipHasher13};
use smallvec::smallvec;

use super::{
    block::{Block, Sample, Span},
    instant,
};
use clock::Time;
use limiter::{CLOSING_KEYS, LimitOverride};
use store::HoldId;

/// Reads the line at these bytes of the lines, and adds its request to the block.
pub(crate) fn read(block: &mut Block, lines: &str, line: (usize, usize), number: u32) -> Result<(), String> {
    let mark = block.mark();
    let (start, end) = line;
    let Some(text) = lines.get(start..end) else { return Err("expected a line of text".to_owned()) };
    let mut cursor = Cursor { lines: lines.as_bytes(), at: start, end };
    if let Some(Head { time, domain, hold }) = known_form(block, lines, &mut cursor) {
        block.push_request(time, number, domain);
        if let Some(hold) = hold {
            block.hold(hold);
        }
        return Ok(());
    }
    block.return_to(mark);
    any_form(block, lines.len(), text, number)
}

struct Cursor<'a> {
    lines: &'a [u8],
    at: usize,
    end: usize,
}

impl Cursor<'_> {
    fn skip(&mut self, token: &[u8]) -> Option<()> {
        let rest = self.lines.get(self.at..self.end)?;
        rest.starts_with(token).then(|| self.at += token.len())
    }

    /// A text without escapes up to its closing quote, which is skipped.
    fn text(&mut self) -> Option<Span> {
        let rest = self.lines.get(self.at..self.end)?;
        let length = rest.iter().position(|byte| *byte == b'"' || *byte == b'\\' || *byte < b' ')?;
        let start = self.at;
        self.at += length;
        self.skip(b"\"")?;
        Some(Span { start: u32::try_from(start).ok()?, end: u32::try_from(start + length).ok()? })
    }

    fn number(&mut self) -> Option<u64> {
        let rest = self.lines.get(self.at..self.end)?;
        let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let digits = rest.get(..length)?;
        if digits.len() > 1 && digits.starts_with(b"0") {
            return None;
        }
        self.at += length;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }
}

/// What a line has beside descriptors.
struct Head {
    time: Time,
    domain: Span,
    hold: Option<u128>,
}

/// Reads a line as the service writes it. `None` if it has another form; then entries may have been added.
fn known_form(block: &mut Block, lines: &str, cursor: &mut Cursor<'_>) -> Option<Head> {
    cursor.skip(br#"{"time":""#)?;
    let time = cursor.text()?;
    let time = instant::parse(lines.get(time.start as usize..time.end as usize)?)?;
    cursor.skip(br#","domain":""#)?;
    let domain = cursor.text().filter(|domain| domain.start < domain.end)?;
    cursor.skip(br#","descriptors":["#)?;
    loop {
        cursor.skip(br#"{"entries":["#)?;
        loop {
            cursor.skip(br#"{"key":""#)?;
            let key = cursor.text()?;
            cursor.skip(br#","value":""#)?;
            let mut value = cursor.text()?;
            if CLOSING_KEYS.contains(&lines.get(key.start as usize..key.end as usize)?) {
                let id = hold_id(lines.get(value.start as usize..value.end as usize)?);
                value = block.keep(&id.to_string(), lines.len());
            }
            block.push_entry(key, value);
            cursor.skip(b"}")?;
            if cursor.skip(b",").is_none() {
                break;
            }
        }
        cursor.skip(b"]")?;
        let hits = if cursor.skip(br#","hits":"#).is_some() { Some(cursor.number()?) } else { None };
        let is_refund = cursor.skip(br#","refund":true"#).is_some();
        cursor.skip(b"}")?;
        block.push_descriptor(hits, is_refund, None);
        if cursor.skip(b",").is_none() {
            break;
        }
    }
    cursor.skip(b"]")?;
    let hold = if cursor.skip(br#","hold":""#).is_some() {
        let text = cursor.text()?;
        Some(hold_id(lines.get(text.start as usize..text.end as usize)?).random)
    } else {
        None
    };
    cursor.skip(b"}")?;
    (cursor.at == cursor.end).then_some(Head { time, domain, hold })
}

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
    sample: Option<SampleIn>,
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
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SampleIn {
    by: SampledBy,
    rate: f64,
}

#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum SampledBy {
    Key,
    Request,
}

const DECISION_LOG: &str = "this is a line of the decision log (DECISION_LOG), which cannot be replayed: it has a line for \
    each descriptor instead of whole requests, cut and hidden values, and by default only refusals; record requests with \
    REQUEST_LOG";

fn any_form(block: &mut Block, lines: usize, text: &str, number: u32) -> Result<(), String> {
    let read = serde_json::from_str::<Line<'_>>(text);
    let line = read.map_err(|error| worded(&error, EXPECTED))?;
    if line.decided_by.is_some() {
        return Err(DECISION_LOG.to_owned());
    }
    if let Some(sample) = &line.sample {
        if !(sample.rate > 0.0 && sample.rate <= 1.0) {
            return Err(format!("sample.rate: expected a number above 0 and at most 1, got {}", sample.rate));
        }
        block.aside.sample = Some(Sample { by_key: sample.by == SampledBy::Key, rate: sample.rate });
    }
    if let Some(missing) = line.missing {
        block.aside.missing = block.aside.missing.saturating_add(missing);
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
            let value = if CLOSING_KEYS.contains(&&*key) {
                block.keep(&hold_id(&value).to_string(), lines)
            } else {
                block.keep(&value, lines)
            };
            let key = block.keep(&key, lines);
            block.push_entry(key, value);
        }
        let limit =
            limit.map(|LimitIn { requests_per_unit, unit }| LimitOverride { requests_per_unit, unit });
        block.push_descriptor(hits, refund, limit);
    }
    let domain = block.keep(&domain, lines);
    block.push_request(time, number, domain);
    if let Some(hold) = line.hold {
        block.hold(hold_id(&hold).random);
    }
    Ok(())
}

/// The error without serde's line, which is always 1.
pub(crate) fn worded(error: &serde_json::Error, expected: &str) -> String {
    let (text, column) = (error.to_string(), error.column());
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

    /// The request of a line as JSON, read by the fast or the general reader.
    fn seen(line: &str, by_hand: bool) -> Result<String, String> {
        let mut block = Block::new(0, 1, line.to_owned());
        if by_hand {
            let mut cursor = Cursor { lines: line.as_bytes(), at: 0, end: line.len() };
            let head = known_form(&mut block, line, &mut cursor).ok_or("another form")?;
            block.push_request(head.time, 0, head.domain);
            head.hold.into_iter().for_each(|hold| block.hold(hold));
        } else {
            any_form(&mut block, line.len(), line, 0)?;
        }
        Ok(format!("{:?} {:?} {:?}", block.times().next(), block.request(0), block.hold_of(0)))
    }

    #[test]
    fn both_readers_agree() {
        for line in [
            r#"{"time":"2026-11-01T00:00:00.123Z","domain":"d","descriptors":[{"entries":[{"key":"user","value":"ann"}],"hits":1}]}"#,
            r#"{"time":"2026-11-01T00:00:00Z","domain":"ä","descriptors":[{"entries":[{"key":"","value":""},{"key":"k","value":"漢"}]}]}"#,
            r#"{"time":"2026-11-01T00:00:00Z","domain":"d","descriptors":[{"entries":[{"key":"hold_settle","value":"AAAA"}]},{"entries":[{"key":"k","value":"v"}]}],"hold":"AAAA"}"#,
            r#"{"time":"2026-11-01T00:00:00Z","domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}],"hits":0,"refund":true},{"entries":[{"key":"l","value":"w"}],"hits":18446744073709551615}]}"#,
        ] {
            let by_hand = seen(line, true);
            assert!(by_hand.is_ok(), "{line}: {by_hand:?}");
            assert_eq!(by_hand, seen(line, false), "{line}");
        }
    }

    #[test]
    fn other_forms_are_left_to_the_general_reader() {
        for line in [
            r#" {"time":"2026-11-01T00:00:00Z","domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#,
            r#"{"domain":"d","time":"2026-11-01T00:00:00Z","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#,
            r#"{"time":"2026-11-01T00:00:00Z","domain":"d","descriptors":[{"entries":[{"key":"k\"","value":"\u0061"}]}],"more":1}"#,
            r#"{"time":"2026-11-01T00:00:00Z","domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}],"limit":{"requests_per_unit":5,"unit":1}}]}"#,
        ] {
            assert_eq!(seen(line, true), Err("another form".to_owned()), "{line}");
            assert!(seen(line, false).is_ok(), "{line}: {:?}", seen(line, false));
        }
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
            let error = seen(line, false).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
