//! The commands of holds: one script that holds the parts of a request in one slot, one that closes them.
//!
//! What is spent is the counter that the Go service knows. What is held is beside it, with a tag that keeps it in the
//! counter's slot of a cluster: the first comment of `scripts/holds.lua` describes it. Arguments and replies are packed,
//! which Lua reads and writes in a fraction of the time of an array.

use std::time::Duration;

use crate::{
    resp::{self, Reply},
    script::{Form, HOLD, RESET, SETTLE, Script},
};
use counters::{Close, Closed, CounterId, Held, HoldAccount, MostHolds};
use limit::{
    HoldRule,
    holds::{How, Unknown},
};

/// The ends of the names of what a slot holds.
const RECORDS: [&str; 3] = ["holds", "due", "ended"];

/// What follows `base` in the name of a counter's set.
pub(crate) const HOLDS_OF: &str = "holds:";

/// Holds all parts of a request in one slot, or none.
pub(crate) struct HoldCall {
    base: String,
    /// Words of the protocol.
    counters: Vec<u8>,
    sets: Vec<u8>,
    arguments: Vec<u8>,
    parts: usize,
    /// Hears what the call has found expired.
    pub(super) account: Option<HoldAccount>,
}

/// The part of a request that holds on one counter.
pub(crate) struct HoldPart<'a> {
    /// The counter and the seconds after which it expires if it is new; `None` if nothing is charged.
    pub(crate) counter: Option<(&'a str, u64)>,
    pub(crate) set: &'a str,
    pub(crate) limit: u64,
    pub(crate) hold: &'a counters::Hold,
    /// What it means for the request that it does not fit: [`Refusal::codes`](limit::Refusal::codes).
    pub(crate) code: u64,
}

impl HoldCall {
    /// `base` begins the names of all keys but the counters. Without an `id` it only looks.
    pub(crate) fn new(base: String, id: &str, most: MostHolds, account: Option<HoldAccount>) -> Self {
        let mut arguments = Vec::with_capacity(512);
        resp::write_word(&mut arguments, id.as_bytes());
        resp::write_number(&mut arguments, most.of_counter as u64);
        resp::write_number(&mut arguments, most.in_all as u64);
        Self { base, counters: Vec::new(), sets: Vec::new(), arguments, parts: 0, account }
    }

    pub(crate) fn push(&mut self, part: &HoldPart<'_>) {
        self.parts += 1;
        let HoldRule { ttl, unknown, currency, .. } = &*part.hold.rule;
        // A rule's time to live is at most a month.
        let ttl = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let held = part.hold.estimate.map(|estimate| estimate.min(part.limit));
        let suffix = format!(":{}:{}", self.parts, held.unwrap_or(0));
        let (counter, expiry) = part.counter.unwrap_or_default();
        let unknown = match unknown {
            Unknown::Held => held.unwrap_or(0),
            Unknown::Hits(hits) => *hits,
        };
        resp::write_word(&mut self.counters, part.counter.map_or(part.set, |(name, _)| name).as_bytes());
        resp::write_word(&mut self.sets, part.set.as_bytes());
        let estimate = held.unwrap_or(NONE);
        write_packed(&mut self.arguments, &[part.limit, estimate, part.code, ttl, expiry], &[&suffix]);
        let recorded = [held.unwrap_or(0), unknown, ttl, 0, NONE, part.hold.rule_id];
        write_packed(&mut self.arguments, &recorded, &[currency, counter, part.set, &suffix]);
    }

    pub(super) fn keys(&self) -> usize {
        2 * self.parts + RECORDS.len()
    }

    pub(crate) fn write(&self, into: &mut Vec<u8>, form: Form) {
        HOLD.begin(into, form, self.keys(), 2 * self.parts + 3);
        write_records(into, &self.base);
        for words in [&self.counters, &self.sets, &self.arguments] {
            into.extend_from_slice(words);
        }
    }

    /// What became of it, and the holds that it has found expired.
    pub(crate) fn read(&self, reply: Reply) -> Result<(Holding, Vec<Closed>), String> {
        let Reply::Text(bytes) = reply else { return Err(reply.unexpected("a string")) };
        let mut packed = Packed(&bytes);
        let mut has_more = false;
        let held = (0..self.parts).map(|_| {
            let [spent, held, first, code] = packed.numbers()?;
            has_more |= code & 8 > 0;
            Some(Held {
                spent,
                held,
                fits: code & 1 > 0,
                holds: code & 2 > 0,
                is_full: code & 4 > 0,
                frees_in: (first > 0).then(|| Duration::from_millis(first)),
            })
        });
        let held = held.collect::<Option<Vec<_>>>();
        let (held, expired) =
            held.zip(packed.closed(&self.base)).ok_or_else(|| Reply::Nil.unexpected("holds"))?;
        let is_swept = !has_more || expired.is_empty() || held.iter().any(|held| held.holds);
        Ok((Holding { held, is_swept }, expired))
    }
}

/// What became of a call that holds.
#[derive(Clone, Default, Debug)]
pub(crate) struct Holding {
    /// The outcome of each part.
    pub(crate) held: Vec<Held>,
    /// Unless more has expired that may be in the way: the same call sweeps on.
    pub(crate) is_swept: bool,
}

/// -1 for the scripts: nothing is held, or charged.
const NONE: u64 = u64::MAX;

fn write_records(into: &mut Vec<u8>, base: &str) {
    for end in RECORDS {
        resp::write_word(into, [base, end].concat().as_bytes());
    }
}

/// Writes a word that `struct.unpack` reads: numbers of 8 bytes, then texts after their lengths of 2 bytes.
fn write_packed(into: &mut Vec<u8>, numbers: &[u64], texts: &[&str]) {
    let texts_length: usize = texts.iter().map(|text| text.len() + 2).sum();
    resp::begin_word(into, 8 * numbers.len() + texts_length);
    for number in numbers {
        into.extend_from_slice(&number.to_le_bytes());
    }
    for text in texts {
        // Names in rules are short, and longer keys are hashed.
        into.extend_from_slice(&u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes());
        into.extend_from_slice(text.as_bytes());
    }
    resp::end_word(into);
}

/// What `struct.pack` wrote.
struct Packed<'a>(&'a [u8]);

impl<'a> Packed<'a> {
    fn numbers<const N: usize>(&mut self) -> Option<[u64; N]> {
        let mut numbers = [0; N];
        for number in &mut numbers {
            let (bytes, rest) = self.0.split_first_chunk()?;
            (*number, self.0) = (u64::from_le_bytes(*bytes), rest);
        }
        Some(numbers)
    }

    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    /// The closed holds up to the end.
    fn closed(&mut self, base: &str) -> Option<Vec<Closed>> {
        let mut all = Vec::new();
        while !self.0.is_empty() {
            let [rule_id, held, before, after] = self.numbers()?;
            let how = match self.bytes(1)? {
                b"s" => How::Settled,
                b"l" => How::SettledLate,
                b"e" => How::Ended,
                b"c" => How::Cancelled,
                b"x" => How::Expired,
                _ => return None,
            };
            let length = self.bytes(2)?.try_into().ok()?;
            let set = str::from_utf8(self.bytes(u16::from_le_bytes(length).into())?).ok()?;
            let key = set.strip_prefix(base)?.strip_prefix(HOLDS_OF)?;
            // A longer key is hashed.
            let full_key: Option<Box<str>> = (!key.starts_with("tollgate:")).then(|| key.into());
            let counter = full_key.as_deref().and_then(CounterId::of_key_in_window);
            all.push(Closed { rule_id, how, held, before, after, counter, full_key });
        }
        Some(all)
    }
}

/// Closes the holds of a request in one slot, or those that have expired.
#[derive(Clone)]
pub(crate) struct CloseCall {
    base: String,
    most: MostHolds,
    what: ToClose,
    /// Hears what the call has closed.
    pub(super) account: Option<HoldAccount>,
}

#[derive(Clone)]
pub(crate) enum ToClose {
    /// The holds of a request, by its id.
    Request { id: String, close: Close, currency: Option<Box<str>> },
    /// What has expired, of some requests.
    Expired,
    /// What has expired of the counter of a set. Then resets the counter, or frees all places, if that is meant.
    Counter { set: String, counter: Option<String>, resets: bool },
}

/// What a sweep left.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Left {
    /// The open requests; of a counter what is held.
    pub(crate) open: u64,
    /// The requests of which something has expired.
    pub(crate) due: u64,
}

impl CloseCall {
    pub(crate) fn new(base: String, most: MostHolds, what: ToClose, account: Option<&HoldAccount>) -> Self {
        Self { base, most, what, account: account.cloned() }
    }

    /// A name in its slot.
    pub(crate) fn key(&self) -> &str {
        &self.base
    }

    pub(super) fn script(&self) -> &'static Script {
        if matches!(self.what, ToClose::Counter { .. }) { &RESET } else { &SETTLE }
    }

    pub(crate) fn write(&self, into: &mut Vec<u8>, form: Form) {
        let most = self.most.in_all as u64;
        match &self.what {
            ToClose::Expired => {
                SETTLE.begin(into, form, RECORDS.len(), 2);
                write_records(into, &self.base);
                resp::write_number(into, most);
                resp::write_word(into, b"x");
            }
            ToClose::Counter { set, counter, resets } => {
                RESET.begin(into, form, RECORDS.len() + 1 + usize::from(counter.is_some()), 2);
                write_records(into, &self.base);
                resp::write_word(into, set.as_bytes());
                if let Some(counter) = counter {
                    resp::write_word(into, counter.as_bytes());
                }
                resp::write_number(into, most);
                resp::write_number(into, (*resets).into());
            }
            ToClose::Request { id, close, currency } => {
                let (letter, cost) = match close {
                    Close::Settle(cost) => (b"s", *cost),
                    Close::End => (b"e", 0),
                    Close::Cancel => (b"c", 0),
                };
                SETTLE.begin(into, form, RECORDS.len(), if currency.is_some() { 5 } else { 4 });
                write_records(into, &self.base);
                resp::write_number(into, most);
                resp::write_word(into, letter);
                resp::write_word(into, id.as_bytes());
                resp::write_number(into, cost);
                if let Some(currency) = currency {
                    resp::write_word(into, currency.as_bytes());
                }
            }
        }
    }

    /// What is left after a sweep, and the holds that were closed.
    pub(crate) fn read(&self, reply: Reply) -> Result<(Left, Vec<Closed>), String> {
        let Reply::Text(bytes) = reply else { return Err(reply.unexpected("a string")) };
        let mut packed = Packed(&bytes);
        let left = match self.what {
            ToClose::Request { .. } => Some(Left::default()),
            _ => packed.numbers().map(|[open, due]| Left { open, due }),
        };
        left.zip(packed.closed(&self.base)).ok_or_else(|| Reply::Nil.unexpected("closed holds"))
    }
}
