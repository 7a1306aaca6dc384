//! A share in percent, kept exactly: `0.1%`.

use std::{fmt, str::FromStr};

/// A share of at most 100 %, in billionths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fraction(u64);

const WHOLE: u64 = 1_000_000_000;

impl Fraction {
    /// True if `part` of `whole` is more than this share.
    pub(crate) fn is_below(self, part: u64, whole: u64) -> bool {
        u128::from(part) * u128::from(WHOLE) > u128::from(self.0) * u128::from(whole)
    }

    /// This share of a number, rounded down.
    pub(crate) fn of(self, number: usize) -> usize {
        let part = number as u128 * u128::from(self.0) / u128::from(WHOLE);
        usize::try_from(part).unwrap_or(number)
    }
}

impl FromStr for Fraction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("expected a percentage from 0% to 100% such as 0.1%, got {text:?}");
        let number = text.strip_suffix('%').ok_or_else(expected)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let digits =
            |text: &str| (1..=7).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(fraction) {
            return Err(expected());
        }
        // A percent has seven digits of a billionth.
        let billionths = format!("{whole}{fraction:0<7}").parse().ok();
        billionths.filter(|share| *share <= WHOLE).map(Self).ok_or_else(expected)
    }
}

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0 as f64 / 1e7)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_exact() {
        let share = |text: &str| text.parse::<Fraction>();
        assert_eq!(share("0.1%"), Ok(Fraction(1_000_000)));
        assert_eq!(
            ["100%", "0%", "0.0000001%"].map(|text| share(text).unwrap().to_string()),
            ["100%", "0%", "0.0000001%"]
        );
        let tenth = share("0.1%").unwrap();
        assert!(!tenth.is_below(1, 1000) && tenth.is_below(2, 1000) && !tenth.is_below(0, 0));
        assert!(share("0%").unwrap().is_below(1, u64::MAX));
        assert_eq!((tenth.of(999), tenth.of(1000), tenth.of(0)), (0, 1, 0));
        for text in ["", "%", "0.1", "-1%", "101%", "1.%", ".5%", "1e3%", "0.00000001%", "1 %"] {
            assert!(share(text).is_err(), "{text}");
        }
    }
}
