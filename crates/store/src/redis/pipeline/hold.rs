//! The commands of holds: one script that holds the parts of a request in one slot, one that closes them.
//!
//! What is spent is the counter that the Go service knows. The holds of a counter are a sorted set beside it, and those of
//! a request a hash, all with one tag so that a cluster keeps them in the counter's slot. The first comments of
//! `scripts/holds.lua` describe them.

use crate::{
    Close, Closed, Closing, Held,
    holds::MostHolds,
    redis::{
        resp::{self, Reply},
        script::{Form, HOLD, SETTLE},
    },
};
use algorithms::holds::{How, Unknown};
use clock::Time;
use rules::HoldRule;
use smallvec::SmallVec;

/// The name of the open requests of a slot, without its tag.
const OPEN: &str = "holds";

/// Holds all parts of a request in one slot, or none.
pub(in crate::redis) struct HoldCall {
    keys: SmallVec<[String; 4]>,
    arguments: SmallVec<[Vec<u8>; 5]>,
    parts: usize,
}

/// The part of a request that holds on one counter.
pub(in crate::redis) struct HoldPart<'a> {
    /// The counter and the seconds after which it expires if it is new; `None` if nothing is charged.
    pub(in crate::redis) counter: Option<(&'a str, u64)>,
    pub(in crate::redis) set: String,
    pub(in crate::redis) limit: u64,
    pub(in crate::redis) hold: &'a crate::Hold,
    /// The estimate; `None` reads.
    pub(in crate::redis) estimate: Option<u64>,
}

impl HoldCall {
    /// `base` begins the names of all keys but the counters.
    pub(in crate::redis) fn new(base: &str, id: &str, most: MostHolds) -> Self {
        let keys = [format!("{base}hold:{id}"), format!("{base}{OPEN}")];
        let numbers = [most.of_counter, most.in_all].map(|most| most.to_string().into_bytes());
        let arguments = [base.as_bytes().to_vec(), id.as_bytes().to_vec()].into_iter().chain(numbers);
        Self { keys: keys.into_iter().collect(), arguments: arguments.collect(), parts: 0 }
    }

    pub(in crate::redis) fn push(&mut self, part: HoldPart<'_>) {
        self.arguments.push(packed(&part));
        self.keys.push(part.counter.map_or_else(|| part.set.clone(), |(name, _)| name.to_owned()));
        self.keys.push(part.set);
        self.parts += 1;
    }

    pub(super) fn keys(&self) -> usize {
        self.keys.len()
    }

    pub(in crate::redis) fn write(&self, into: &mut Vec<u8>, form: Form) {
        HOLD.begin(into, form, self.keys.len(), self.arguments.len());
        self.keys.iter().for_each(|key| resp::write_word(into, key.as_bytes()));
        self.arguments.iter().for_each(|argument| resp::write_word(into, argument));
    }

    /// The number of open requests, and the outcome of each part.
    pub(in crate::redis) fn read(&self, reply: Reply) -> Result<(u64, Vec<Held>), String> {
        let numbers = reply.into_list(1 + 6 * self.parts)?.into_iter().map(Reply::into_count);
        let numbers = numbers.collect::<Result<Vec<u64>, String>>()?;
        let [open, rest @ ..] = &numbers[..] else { return Err("an empty reply".to_owned()) };
        let (rows, _) = rest.as_chunks::<6>();
        let held = rows.iter().map(|[spent, held, first, code, expired, excess]| Held {
            spent: *spent,
            held: *held,
            fits: code & 1 > 0,
            holds: code & 2 > 0,
            is_full: code & 4 > 0,
            earliest: (*first > 0).then(|| Time::from_micros(first.saturating_mul(1000))),
            expired: *expired,
            excess: *excess,
        });
        Ok((*open, held.collect()))
    }
}

/// What `scripts/hold.lua` unpacks.
fn packed(part: &HoldPart<'_>) -> Vec<u8> {
    let HoldRule { ttl, unknown, currency, .. } = &*part.hold.rule;
    let unknown = match unknown {
        Unknown::Held => -1,
        Unknown::Hits(hits) => hits.cast_signed(),
    };
    let estimate = part.estimate.map_or(-1, u64::cast_signed);
    // A rule's time to live is at most a month.
    let ttl = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    let expiry = part.counter.map_or(0, |(_, seconds)| seconds);
    let mut packed = Vec::with_capacity(51 + currency.len());
    for number in
        [part.limit, estimate.cast_unsigned(), unknown.cast_unsigned(), ttl, expiry, part.hold.rule_id]
    {
        packed.extend_from_slice(&number.to_le_bytes());
    }
    packed.push(part.hold.fit as u8);
    // The length of a name in a rule.
    packed.extend_from_slice(&u16::try_from(currency.len()).unwrap_or(0).to_le_bytes());
    packed.extend_from_slice(currency.as_bytes());
    packed
}

/// Closes the holds of a request in one slot, or those that have expired.
pub(in crate::redis) struct CloseCall {
    keys: [String; 2],
    base: String,
    most: MostHolds,
    /// A letter for what is done.
    how: &'static [u8],
    id: String,
    cost: u64,
    currency: Option<Box<str>>,
}

impl CloseCall {
    pub(in crate::redis) fn new(base: &str, most: MostHolds, id: &str, closing: &Closing) -> Self {
        let (how, cost): (&[u8], _) = match closing.close {
            Close::Settle(cost) => (b"s", cost),
            Close::End => (b"e", 0),
            Close::Cancel => (b"c", 0),
        };
        Self {
            how,
            cost,
            id: id.to_owned(),
            currency: closing.currency.clone(),
            ..Self::sweep(base, most, id)
        }
    }

    /// Charges a few holds that have expired.
    pub(in crate::redis) fn expired(base: &str, most: MostHolds) -> Self {
        Self::sweep(base, most, "")
    }

    fn sweep(base: &str, most: MostHolds, id: &str) -> Self {
        let keys = [format!("{base}hold:{id}"), format!("{base}{OPEN}")];
        let (base, how, id) = (base.to_owned(), b"x", String::new());
        Self { keys, base, most, how, id, cost: 0, currency: None }
    }

    pub(in crate::redis) fn key(&self) -> &str {
        let [record, _] = &self.keys;
        record
    }

    pub(in crate::redis) fn write(&self, into: &mut Vec<u8>, form: Form) {
        SETTLE.begin(into, form, 2, 5 + usize::from(self.currency.is_some()));
        self.keys.iter().for_each(|key| resp::write_word(into, key.as_bytes()));
        resp::write_word(into, self.base.as_bytes());
        resp::write_number(into, self.most.in_all as u64);
        resp::write_word(into, self.how);
        resp::write_word(into, self.id.as_bytes());
        resp::write_number(into, self.cost);
        if let Some(currency) = &self.currency {
            resp::write_word(into, currency.as_bytes());
        }
    }

    /// The number of open requests, and the holds that were closed.
    pub(in crate::redis) fn read(&self, reply: Reply) -> Result<(u64, Vec<Closed>), String> {
        let Reply::List(values) = reply else { return Err(reply.unexpected("an array")) };
        let Some((Reply::Integer(open), values)) = values.split_first() else {
            return Err(Reply::Nil.unexpected("the number of open holds"));
        };
        let (rows, rest) = values.as_chunks::<6>();
        let closed = rows.iter().map(|row| self.closed(row)).collect::<Option<_>>();
        let closed = closed.filter(|_| rest.is_empty());
        closed
            .map(|closed| (open.unsigned_abs(), closed))
            .ok_or_else(|| Reply::Nil.unexpected("closed holds"))
    }

    fn closed(&self, [rule, how, held, before, after, set]: &[Reply; 6]) -> Option<Closed> {
        let how = match how.text()? {
            "s" => How::Settled,
            "l" => How::SettledLate,
            "e" => How::Ended,
            "c" => How::Cancelled,
            "x" => How::Expired,
            _ => return None,
        };
        let number = |reply: &Reply| {
            if let Reply::Integer(number) = reply { u64::try_from(*number).ok() } else { None }
        };
        // A longer key is hashed.
        let key = set.text()?.strip_prefix(&self.base)?.strip_prefix("holds:")?;
        let full_key = (!key.starts_with("tollgate:")).then(|| key.into());
        let rule_id = rule.text()?.parse().ok()?;
        let (held, before) = (number(held)?, number(before)?);
        Some(Closed { rule_id, how, held, before, after: number(after)?, full_key })
    }
}
