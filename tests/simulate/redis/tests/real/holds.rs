//! Random holds: requests on few counters that hold, settle, end and expire, with few identities.

use crate::commands::{Generator, Words, script};

macro_rules! source {
    ($($file:literal)+) => {
        concat!($(include_str!(concat!("../../../../../crates/counters/redis-store/src/scripts/", $file, ".lua"))),+)
    };
}

const HOLD: &str = source!("holds" "hold");
const SETTLE: &str = source!("holds" "settle");

/// What the names of all keys but the counters begin with.
const BASE: &str = "{h}";
const COUNTERS: u8 = 3;
const IDENTITIES: u8 = 5;

impl Generator<'_> {
    pub(crate) fn holds(&mut self) -> Words {
        let id = format!("i{}", self.random.u8(..IDENTITIES));
        if self.random.bool() { self.hold(&id) } else { self.close(&id) }
    }

    fn hold(&mut self, id: &str) -> Words {
        let [most, most_in_all] = [self.most(), self.most()];
        let mut arguments = [id, &most, &most_in_all].map(|word| word.as_bytes().to_vec()).to_vec();
        let (mut counters, mut sets) = (Vec::new(), Vec::new());
        for part in 1..=self.random.u8(1..4) {
            let counter = self.random.u8(..COUNTERS);
            let set = format!("{BASE}holds:{counter}");
            // Requests under way have no counter. Rarely a key of another type.
            let other = if self.random.u8(..30) == 0 { "k" } else { "c" };
            let name = (counter > 0).then(|| format!("{other}{counter}"));
            arguments.extend(self.part(part, name.as_deref().unwrap_or_default(), &set));
            counters.push(name.unwrap_or_else(|| set.clone()));
            sets.push(set);
        }
        script(HOLD, &[records().to_vec(), counters, sets].concat(), &arguments)
    }

    fn most(&mut self) -> String {
        if self.random.u8(..4) == 0 { self.random.u8(1..4).to_string() } else { "1000".to_owned() }
    }

    /// What decides, and what is recorded.
    fn part(&mut self, number: u8, counter: &str, set: &str) -> [Vec<u8>; 2] {
        let limit = [0, (1 << 53) - 1].get(self.random.usize(..20)).copied();
        let limit = limit.unwrap_or_else(|| self.random.i64(10..60));
        let estimate = [-1, 0, (1 << 53) - 1].get(self.random.usize(..12)).copied();
        let estimate = estimate.unwrap_or_else(|| self.random.i64(1..20)).min(limit);
        let (held, unknown) = (estimate.max(0), self.random.i64(0..8));
        let ttl = [1, 900, 5_000, 60_000, 4_000_000][self.random.usize(..5)];
        let expiry = if counter.is_empty() { 0 } else { self.random.i64(1..60) };
        let rule = (1 << 60) + self.random.i64(0..3);
        let (fit, currency) = (self.random.i64(0..3), self.currency());
        let suffix = format!(":{number}:{held}");
        [
            packed(&[limit, estimate, fit, ttl, expiry], &[&suffix]),
            packed(&[held, unknown, ttl, 0, -1, rule], &[currency, counter, set, &suffix]),
        ]
    }

    fn currency(&mut self) -> &'static str {
        ["", "tokens", "dollars"][self.random.usize(..3)]
    }

    fn close(&mut self, id: &str) -> Words {
        let (most, how) = (self.most(), ["s", "s", "s", "e", "c", "x"][self.random.usize(..6)]);
        let cost = if self.random.u8(..20) == 0 { (1 << 53) - 1 } else { self.random.i64(0..25) }.to_string();
        let mut arguments = vec![&*most, how];
        if how != "x" {
            arguments.extend([id, &cost]);
            if self.random.bool() {
                arguments.push(self.currency());
            }
        }
        let arguments: Vec<_> = arguments.iter().map(|word| word.as_bytes().to_vec()).collect();
        script(SETTLE, &records(), &arguments)
    }
}

/// Numbers, then texts after their lengths.
fn packed(numbers: &[i64], texts: &[&str]) -> Vec<u8> {
    let mut packed: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    for text in texts {
        packed.extend(u16::try_from(text.len()).expect("a short text").to_le_bytes());
        packed.extend(text.as_bytes());
    }
    packed
}

fn records() -> [String; 3] {
    ["holds", "due", "ended"].map(|name| format!("{BASE}{name}"))
}

/// All names of keys but the counters.
pub(crate) fn names() -> impl Iterator<Item = String> {
    let sets = (0..COUNTERS).map(|counter| format!("{BASE}holds:{counter}"));
    sets.chain(records())
}
