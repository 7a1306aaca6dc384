//! The identity of a counter in this process: the keyed hash of what is in its full key.
//!
//! The limiter makes it once, when it plans a request. The counters in memory, the over-limit cache and the leases find
//! their states by it; only shared stores need a name, and messages between replicas, from which the same identity is
//! read again. The hash has 96 bits and a random key, so that callers who choose their values cannot make two counters
//! equal, or fill one part of a table.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    sync::OnceLock,
};

use siphasher::sip128::{Hash128, Hasher128 as _, SipHasher13};

use clock::Time;
use limit::{Limit, Period};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CounterId {
    pub(crate) home: u64,
    pub(crate) more: u16,
    shard: u16,
}

/// The key of all hashes.
static KEY: OnceLock<SipHasher13> = OnceLock::new();

fn hasher() -> SipHasher13 {
    let random = || {
        let random = RandomState::new();
        SipHasher13::new_with_keys(random.hash_one(0), random.hash_one(1))
    };
    *KEY.get_or_init(random)
}

/// Odd, with as many ones as zeros: two windows of one counter differ in half of the bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl CounterId {
    /// The identity of whatever has this name.
    pub fn of_name(name: &str) -> Self {
        Self::of_hash(hasher().hash(name.as_bytes()))
    }

    /// Of a counter with a window's start in its key: the window that begins then.
    #[must_use]
    pub const fn in_window(self, start: Time) -> Self {
        self.mixed_with(start.seconds())
    }

    /// Another identity for each number.
    #[must_use]
    pub const fn mixed_with(self, number: u64) -> Self {
        Self { home: self.home ^ number.wrapping_mul(SPREAD), ..self }
    }

    /// Reads a full key: the identity in all windows, and the start of its window if it has one. `None` if it is no full key.
    pub fn of_full_key(full_key: &str) -> Option<(Self, Option<Time>)> {
        // Nothing after the last `#` comes from a caller.
        let (key, lengths) = full_key.rsplit_once('#')?;
        let (lengths, period) = lengths.split_once('/')?;
        let mut lengths = lengths.split('.').map(|length| {
            let shared = length.strip_suffix('*');
            Some((shared.unwrap_or(length).parse::<usize>().ok()?, shared.is_some()))
        });
        let (prefix, rest) = key.split_at_checked(lengths.next()??.0)?;
        let (domain, mut rest) = cut(rest, lengths.next()??.0)?;
        let mut parts = Parts::new(prefix, domain);
        while let Some(length) = lengths.next() {
            let (key, after_key) = cut(rest, length?.0)?;
            let (length, is_shared) = lengths.next()??;
            let (value, after_value) = cut(after_key, length)?;
            parts.entry(key, value, is_shared);
            rest = after_value;
        }
        let tag = rest.trim_start_matches(|digit: char| digit.is_ascii_digit());
        let start = rest.strip_suffix(tag).filter(|start| !start.is_empty());
        let start = start.map(|start| start.parse().map(Time::from_seconds)).transpose().ok()?;
        Some((parts.id(tag, period.parse().map_err(|_| period)), start))
    }

    /// The part of a full key that names the limit's entries: callers choose its values, and nothing of what follows.
    pub fn entries_of_full_key(full_key: &str) -> Option<&str> {
        let (key, lengths) = full_key.rsplit_once('#')?;
        let (prefix, lengths) = lengths.split_once('/')?.0.split_once('.')?;
        let length = |length: &str| length.strip_suffix('*').unwrap_or(length).parse::<usize>().ok();
        // A `_` follows each part but the prefix.
        let parts = lengths.split('.').map(|part| length(part)?.checked_add(1));
        let end = parts.fold(length(prefix), |end, part| end?.checked_add(part?))?;
        key.get(..end)
    }

    /// The identity of a counter with this full key, in its window if it has one.
    pub fn of_key_in_window(full_key: &str) -> Option<Self> {
        let (counter, start) = Self::of_full_key(full_key)?;
        Some(start.map_or(counter, |start| counter.in_window(start)))
    }

    #[cfg(any(test, feature = "testing"))]
    pub fn hashed_by([first, second]: [u64; 2], name: &str) -> Self {
        Self::of_hash(SipHasher13::new_with_keys(first, second).hash(name.as_bytes()))
    }

    /// From now on, the hashes of this process are those of every run. For simulations.
    #[cfg(any(test, feature = "testing"))]
    pub fn fix() {
        KEY.get_or_init(|| SipHasher13::new_with_keys(1, 2));
    }

    fn of_hash(hash: Hash128) -> Self {
        let [a, b, _, _, _, _, c, d] = hash.h1.to_le_bytes();
        Self { home: hash.h2, more: u16::from_le_bytes([c, d]), shard: u16::from_le_bytes([a, b]) }
    }

    /// 16 bits of the hash, evenly distributed, and the same for all windows.
    pub fn shard(self) -> usize {
        self.shard.into()
    }

    pub fn hash(self) -> u64 {
        self.home
    }
}

/// A part of a key, and what follows the `_` behind it.
fn cut(rest: &str, length: usize) -> Option<(&str, &str)> {
    let (part, rest) = rest.split_at_checked(length)?;
    Some((part, rest.strip_prefix('_')?))
}

/// What identifies a counter, each part with its length, so that no two counters have the same bytes. They are hashed
/// when there are many: a part at a time would take longer.
pub struct Parts {
    hasher: SipHasher13,
    bytes: [u8; 128],
    filled: usize,
}

impl Parts {
    #[inline]
    pub fn new(prefix: &str, domain: &str) -> Self {
        let mut parts = Self { hasher: hasher(), bytes: [0; 128], filled: 0 };
        if !prefix.is_empty() {
            parts.push(prefix, false);
        }
        parts.push(domain, false);
        parts
    }

    #[inline]
    pub fn entry(&mut self, key: &str, value: &str, is_shared: bool) {
        self.push(key, false);
        self.push(value, is_shared);
    }

    /// The identity of a limit's counter in all windows.
    #[inline]
    pub fn id_of(self, limit: &Limit) -> CounterId {
        let period = match limit.period() {
            Period::Length(window) => Ok(window.seconds()),
            Period::Calendar(calendar) => Err(calendar.tag()),
        };
        self.id(&limit.tag, period)
    }

    fn id(mut self, tag: &str, period: Result<u64, &str>) -> CounterId {
        if !tag.is_empty() {
            self.push(tag, true);
        }
        match period {
            Ok(seconds) => self.add(&seconds.to_le_bytes()),
            Err(calendar) => self.push(calendar, true),
        }
        self.flush();
        CounterId::of_hash(self.hasher.finish128())
    }

    /// Messages have fewer bytes than 2³¹.
    #[inline]
    fn push(&mut self, text: &str, is_marked: bool) {
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX >> 1) << 1 | u32::from(is_marked);
        self.add(&length.to_le_bytes());
        self.add(text.as_bytes());
    }

    #[inline]
    fn add(&mut self, bytes: &[u8]) {
        if self.room(bytes.len()).is_none() {
            self.flush();
        }
        match self.room(bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.filled += bytes.len();
            }
            None => self.hasher.write(bytes),
        }
    }

    #[inline]
    fn room(&mut self, length: usize) -> Option<&mut [u8]> {
        self.bytes.get_mut(self.filled..)?.get_mut(..length)
    }

    fn flush(&mut self) {
        self.hasher.write(self.bytes.get(..self.filled).unwrap_or_default());
        self.filled = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_key_has_the_identity_that_was_hashed() {
        let of = |parts: Parts, tag: &str, period| parts.id(tag, period);
        let parts = |prefix, domain, entries: &[(&str, &str, bool)]| {
            let mut parts = Parts::new(prefix, domain);
            for (key, value, is_shared) in entries {
                parts.entry(key, value, *is_shared);
            }
            parts
        };
        let start = |seconds| Some(Time::from_seconds(seconds));
        let v = || parts("", "d", &[("k", "v", false)]);
        for (full_key, expected) in [
            ("d_k_v_7200#0.1.1.1/3600", Some((of(v(), "", Ok(3600)), start(7200)))),
            (
                "p:d_7_8_7200/900#2.1.1.1/900",
                Some((of(parts("p:", "d", &[("7", "8", false)]), "/900", Ok(900)), start(7200))),
            ),
            (
                "d_k_a*_7200*/60#0.1.1.2*/60",
                Some((of(parts("", "d", &[("k", "a*", true)]), "*/60", Ok(60)), start(7200))),
            ),
            (
                "d_k_#9_0#0.1.1.2/cBerlin.1",
                Some((of(parts("", "d", &[("k", "#9", false)]), "", Err("cBerlin.1")), start(0))),
            ),
            (
                "d_\u{fc}_v_7200#0.1.2.1/3600",
                Some((of(parts("", "d", &[("\u{fc}", "v", false)]), "", Ok(3600)), start(7200))),
            ),
            ("d_k_v_sw/900#0.1.1.1/900", Some((of(v(), "sw/900", Ok(900)), None))),
            (
                "d_k__l__0#0.1.1.0.1.0/60",
                Some((of(parts("", "d", &[("k", "", false), ("l", "", false)]), "", Ok(60)), start(0))),
            ),
            ("d_k_v_7200#0.1.1.99999999999999999999/60", None),
            ("d_k_v_7200#0.1.1.900/60", None),
            ("d_k_v_7200#0.1.1/60", None),
            ("d_k_v_99999999999999999999#0.1.1.1/60", None),
            ("d_k_v_7200", None),
            ("#/", None),
            ("", None),
        ] {
            assert_eq!(CounterId::of_full_key(full_key), expected, "{full_key}");
            let entries = CounterId::entries_of_full_key(full_key);
            assert!(
                expected.is_none() || entries.is_some_and(|entries| entries.ends_with('_')),
                "{full_key}"
            );
        }
        let zone = "p:d_k_a_b_0/cAmerica/New_York#2.1.1.3/cAmerica/New_York";
        assert_eq!(CounterId::entries_of_full_key(zone), Some("p:d_k_a_b_"));
        assert_eq!(CounterId::entries_of_full_key("d_k_v_0#0.1.1.99/60"), None);
        assert_ne!(of(v(), "", Ok(60)), of(v(), "/60", Ok(60)), "a tag");
        assert_ne!(of(v(), "", Ok(60)), of(parts("", "d", &[("k", "v", true)]), "", Ok(60)), "a pattern");
        assert_ne!(of(v(), "", Ok(60)), of(parts("", "d", &[]), "", Ok(60)));
        let one = of(v(), "", Ok(60));
        assert_ne!(one.in_window(Time::from_seconds(60)), one.in_window(Time::from_seconds(120)));
    }
}
