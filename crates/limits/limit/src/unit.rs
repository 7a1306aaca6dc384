//! The units of windows.

use std::fmt;

use crate::Window;
use crate::calendar::Cycle;

/// The length of a window. The numbers are those of Envoy's API.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Unit {
    /// None: a limit of requests under way.
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    /// 30 days.
    Month = 5,
    /// 365 days.
    Year = 6,
    Week = 7,
}

impl Unit {
    /// Every unit of a window, from short to long.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    pub const fn seconds(self) -> u64 {
        match self {
            Self::Unknown => 0,
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
        }
    }

    /// The name in `/rlconfig` and Envoy's API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Second => "SECOND",
            Self::Minute => "MINUTE",
            Self::Hour => "HOUR",
            Self::Day => "DAY",
            Self::Week => "WEEK",
            Self::Month => "MONTH",
            Self::Year => "YEAR",
        }
    }

    /// The name in rules files and sentences.
    pub fn lowercase(self) -> String {
        self.name().to_ascii_lowercase()
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }

    /// The unit of a common abbreviation or adverb, for suggestions: `secs`, `min`, `hrs`, `d`, `weekly`.
    pub fn from_abbreviation(word: &str) -> Option<Self> {
        let word = word.trim().to_ascii_uppercase();
        let stem = ["LY", "S"].iter().find_map(|end| word.strip_suffix(end)).filter(|stem| !stem.is_empty());
        let stem = match stem.unwrap_or(&word) {
            "HR" => "HOUR",
            "DAI" => "DAY",
            "WK" => "WEEK",
            "MTH" | "MNTH" => "MONTH",
            "YR" => "YEAR",
            stem => stem,
        };
        let mut units = Self::ALL.into_iter();
        units.find(|unit| !stem.is_empty() && unit.name().starts_with(stem))
    }

    /// The unit of this number in Envoy's API.
    pub fn from_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| *unit as i32 == number)
    }
}

impl From<Unit> for Window {
    fn from(unit: Unit) -> Self {
        // The longest unit is a tenth of the longest window.
        Self::of_seconds(unit.seconds()).unwrap_or(Self::MAX)
    }
}

impl From<Cycle> for Unit {
    fn from(cycle: Cycle) -> Self {
        match cycle {
            Cycle::Day => Self::Day,
            Cycle::Week(_) => Self::Week,
            Cycle::Month(_) => Self::Month,
            Cycle::Year => Self::Year,
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
