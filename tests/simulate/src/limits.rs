//! The limits of a plan: their rules, their counters, and the windows of those.

use limit::{Kind, Unit};
use serde::{Deserialize, Serialize};

use crate::{named, world::Micros};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LimitPlan {
    #[serde(with = "named::unit")]
    pub unit: Unit,
    pub limit: u64,
    #[serde(with = "named::kind", default)]
    pub algorithm: Kind,
    pub is_leased: bool,
    /// Windows are the days of a time zone.
    #[serde(default)]
    pub zone: Option<Zone>,
    /// A second limit of the rule.
    #[serde(default)]
    pub also: Option<Also>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Also {
    #[serde(with = "named::unit")]
    pub unit: Unit,
    pub limit: u64,
}

/// A time zone whose offset never changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Zone {
    Kolkata,
    Phoenix,
}

impl Zone {
    fn name(self) -> &'static str {
        match self {
            Self::Kolkata => "Asia/Kolkata",
            Self::Phoenix => "America/Phoenix",
        }
    }

    /// The second of a day in UTC at which the zone's day begins.
    pub fn midnight(self) -> u64 {
        match self {
            Self::Kolkata => 66_600,
            Self::Phoenix => 25_200,
        }
    }
}

/// The part of a counter of an override by entry, which no rule uses.
pub const ENTRY: usize = 2;

/// The last digit of the amounts of overrides by entry, which no other amounts have: it tells which counter an answer is of.
pub const ENTRY_DIGIT: u64 = 7;

/// A counter: a limit of the plan, which of its rule's limits or [`ENTRY`], the length of its window in seconds, and the second at which
/// the window began.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Counter {
    pub limit: usize,
    pub part: usize,
    pub seconds: u64,
    pub start: u64,
}

impl Counter {
    /// The counter with this name in Redis, if it is one of a fixed window.
    pub fn named(name: &str, limits: &[LimitPlan]) -> Option<Self> {
        let name = name.replace(['{', '}'], "");
        let (limit, rest) = name.strip_prefix("sim_k")?.split_once("_v_")?;
        let digits = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
        let (start, tag) = rest.split_at(digits);
        let limit: usize = limit.parse().ok()?;
        let plan = limits.get(limit)?;
        let is_tagged = |part: &usize| tag == format!("/{}", plan.seconds(*part));
        let part = match tag.as_bytes() {
            [b'*', ..] => ENTRY,
            // Of a list, the longest window has no tag.
            [] if plan.also.is_some() => usize::from(plan.seconds(1) > plan.seconds(0)),
            _ if plan.also.is_some() => (0..2).find(is_tagged)?,
            _ => 0,
        };
        Some(Self { limit, part, seconds: plan.seconds(part), start: start.parse().ok()? })
    }

    /// The second at which the window ends.
    pub fn end(&self) -> u64 {
        self.start + self.seconds
    }
}

impl LimitPlan {
    pub fn fixed(unit: Unit, limit: u64, is_leased: bool) -> Self {
        Self { unit, limit, algorithm: Kind::FixedWindow, is_leased, zone: None, also: None }
    }

    /// True for one fixed window of Unix time, which overrides may replace.
    pub fn is_plain(&self) -> bool {
        self.is_fixed() && self.zone.is_none() && self.also.is_none()
    }

    pub fn is_fixed(&self) -> bool {
        self.algorithm == Kind::FixedWindow
    }

    /// What the rule is, in counts of what was tested.
    pub fn kind(&self) -> usize {
        match (self.also, self.zone, self.algorithm) {
            (Some(_), ..) => 7,
            (_, Some(_), _) => 6,
            (.., Kind::SlidingWindow) => 2,
            (.., Kind::SlidingLog) => 3,
            (.., Kind::TokenBucket) => 4,
            (.., Kind::LeakyBucket) => 5,
            (.., Kind::FixedWindow) => usize::from(self.is_leased),
            (.., Kind::Concurrency) => unreachable!("streams are counted by `streams`"),
        }
    }

    pub const KINDS: [&'static str; 8] = [
        "fixed window",
        "leased fixed window",
        "sliding window",
        "sliding log",
        "token bucket",
        "leaky bucket",
        "calendar",
        "several limits",
    ];

    /// The seconds in a window of a limit of the rule.
    pub fn seconds(&self, part: usize) -> u64 {
        match self.also.filter(|_| part == 1) {
            Some(also) => also.unit.seconds(),
            None => self.unit.seconds(),
        }
    }

    pub fn window(&self) -> Micros {
        self.seconds(0) * 1_000_000
    }

    pub fn amount(&self, part: usize) -> u64 {
        self.also.filter(|_| part == 1).map_or(self.limit, |also| also.limit)
    }

    /// The counters that a request at a second may use; none if the algorithm has no fixed windows.
    pub fn counters(&self, limit: usize, second: u64) -> impl Iterator<Item = Counter> + use<> {
        let plan = *self;
        let parts = if plan.is_fixed() { 1 + usize::from(plan.also.is_some()) } else { 0 };
        let entry = plan.is_plain().then_some(ENTRY);
        (0..parts).chain(entry).map(move |part| {
            let seconds = plan.seconds(part);
            let midnight = plan.zone.map_or(0, Zone::midnight);
            Counter { limit, part, seconds, start: second - (second - midnight) % seconds }
        })
    }
}

/// The rules file with these limits.
pub fn rules_text(limits: &[LimitPlan]) -> String {
    let mut text = "domain: sim\ndescriptors:\n".to_owned();
    for (at, limit) in limits.iter().enumerate() {
        text.extend(["  - key: k", &at.to_string(), "\n    rate_limit: "]);
        let first = rule(limit, limit.unit, limit.limit);
        match limit.also {
            Some(also) => {
                let second = rule(limit, also.unit, also.limit);
                text.extend(["[{", &first, "}, {", &second, "}]\n"]);
            }
            None => text.extend(["{", &first, "}\n"]),
        }
    }
    text
}

fn rule(limit: &LimitPlan, unit: Unit, amount: u64) -> String {
    let mut text = format!("unit: {}, requests_per_unit: {amount}", unit.name());
    if limit.is_fixed() {
        let counting = if limit.is_leased { "leased" } else { "exact" };
        text.extend([", counting: ", counting]);
    } else {
        text.extend([", algorithm: ", limit.algorithm.name()]);
    }
    if let Some(zone) = limit.zone {
        text.extend([", calendar: {time_zone: ", zone.name(), "}"]);
    }
    text
}
