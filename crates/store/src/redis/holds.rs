//! The commands of holds: one script that holds the parts of a request, one that settles or ends them.
//!
//! What is spent is the counter that the Go service knows. The holds of a counter are a sorted set beside it, and those of
//! a request a hash, all with one tag so that a cluster keeps them in the counter's slot. The first comments of
//! `scripts/holds.lua` describe both.

use std::time::Duration;

use super::{
    resp::{self, Reply},
    script::{Form, HOLD, SETTLE},
};
use algorithms::holds::{How, Refused, Unknown};
use clock::Time;

/// The part of a request that holds on one counter.
pub(super) struct HoldPart<'a> {
    /// `None` if nothing is charged: a limit of requests under way.
    pub(super) counter: Option<Counter<'a>>,
    pub(super) set: &'a str,
    pub(super) limit: u64,
    pub(super) estimate: u64,
    pub(super) unknown: Unknown,
    pub(super) ttl: Duration,
    /// Below 2⁵³, so that Lua has it exactly.
    pub(super) rule: u64,
    pub(super) currency: &'a str,
}

pub(super) struct Counter<'a> {
    pub(super) name: &'a str,
    /// The seconds after which it expires if it is new.
    pub(super) expiry: u64,
}

/// Writes a command that holds all parts or none. `base` begins the names of the sets and of the request's record.
pub(super) fn write_hold(
    into: &mut Vec<u8>,
    form: Form,
    (base, id): (&str, &str),
    most: u64,
    parts: &[HoldPart<'_>],
) {
    HOLD.begin(into, form, 1 + 2 * parts.len(), 3 + parts.len());
    resp::write_word(into, record(base, id).as_bytes());
    for part in parts {
        resp::write_word(into, part.counter.as_ref().map_or(part.set, |counter| counter.name).as_bytes());
        resp::write_word(into, part.set.as_bytes());
    }
    resp::write_word(into, base.as_bytes());
    resp::write_word(into, id.as_bytes());
    resp::write_number(into, most);
    for part in parts {
        resp::write_word(into, &part.packed());
    }
}

/// Writes a command that settles the holds of a request at this cost, or ends them without one.
pub(super) fn write_settle(
    into: &mut Vec<u8>,
    form: Form,
    (base, id): (&str, &str),
    cost: Option<u64>,
    currency: Option<&str>,
) {
    SETTLE.begin(into, form, 1, 3 + usize::from(currency.is_some()));
    resp::write_word(into, record(base, id).as_bytes());
    resp::write_word(into, id.as_bytes());
    resp::write_word(into, if cost.is_some() { b"s" } else { b"e" });
    resp::write_number(into, cost.unwrap_or(0));
    if let Some(currency) = currency {
        resp::write_word(into, currency.as_bytes());
    }
}

fn record(base: &str, id: &str) -> String {
    format!("{base}hold:{id}")
}

impl HoldPart<'_> {
    fn packed(&self) -> Vec<u8> {
        let unknown = match self.unknown {
            Unknown::Held => -1,
            Unknown::Hits(hits) => hits.cast_signed(),
        };
        let ttl = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX);
        let expiry = self.counter.as_ref().map_or(0, |counter| counter.expiry);
        let mut packed = Vec::with_capacity(50 + self.currency.len());
        for number in [self.limit, self.estimate, unknown.cast_unsigned(), ttl, expiry, self.rule] {
            packed.extend_from_slice(&number.to_le_bytes());
        }
        // The length of a name in a rule.
        packed.extend_from_slice(&u16::try_from(self.currency.len()).unwrap_or(0).to_le_bytes());
        packed.extend_from_slice(self.currency.as_bytes());
        packed
    }
}

/// What is known of a counter after an attempt to hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    pub(super) spent: u64,
    pub(super) held: u64,
}

/// Reads the reply to [`write_hold`].
pub(super) fn read_hold(reply: Reply, parts: usize) -> Result<(Vec<Seen>, Result<(), Refused>), String> {
    let numbers = reply.into_list(1 + 3 * parts)?.into_iter().map(Reply::into_integer);
    let numbers = numbers.collect::<Result<Vec<i64>, String>>()?;
    let [code, rest @ ..] = &numbers[..] else { return Err("an empty reply".to_owned()) };
    let (rows, _) = rest.as_chunks::<3>();
    let seen =
        rows.iter().map(|[spent, held, _]| Seen { spent: spent.unsigned_abs(), held: held.unsigned_abs() });
    let index = usize::try_from(code.unsigned_abs()).unwrap_or(usize::MAX).checked_sub(1);
    let refused = match (index, index.and_then(|index| rows.get(index))) {
        (None, _) => Ok(()),
        (Some(index), Some(_)) if *code < 0 => Err(Refused::Full { index }),
        (Some(index), Some([.., 0])) => Err(Refused::Over { index, earliest: None }),
        (Some(index), Some([.., earliest])) => {
            let earliest = Some(Time::from_micros(earliest.unsigned_abs() * 1000));
            Err(Refused::Over { index, earliest })
        }
        (Some(_), None) => return Err(format!("part {code} of {parts}")),
    };
    Ok((seen.collect(), refused))
}

/// A hold that was closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Closed {
    pub(super) rule: u64,
    pub(super) how: How,
    pub(super) held: u64,
    pub(super) before: u64,
    pub(super) after: u64,
    pub(super) spent: u64,
}

/// Reads the reply to [`write_settle`].
pub(super) fn read_settle(reply: Reply) -> Result<Vec<Closed>, String> {
    let Reply::List(values) = reply else { return Err(reply.unexpected("a list")) };
    let (rows, rest) = values.as_chunks::<6>();
    if !rest.is_empty() {
        return Err(format!("{} values", values.len()));
    }
    let closed = |[rule, how, numbers @ ..]: &[Reply; 6]| {
        let how = match how.text() {
            Some("s") => How::Settled,
            Some("l") => How::SettledLate,
            Some("e") => How::Ended,
            Some("x") => How::Expired,
            _ => return None,
        };
        let rule = rule.text()?.parse().ok()?;
        let number = |reply: &Reply| {
            if let Reply::Integer(number) = reply { u64::try_from(*number).ok() } else { None }
        };
        let [held, before, after, spent] = numbers;
        let (held, before) = (number(held)?, number(before)?);
        Some(Closed { rule, how, held, before, after: number(after)?, spent: number(spent)? })
    };
    rows.iter().map(closed).collect::<Option<_>>().ok_or_else(|| format!("{values:?}"))
}
