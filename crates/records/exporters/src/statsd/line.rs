//! Lines for a sink: plain statsd as the Go service's library writes it, or DogStatsD.

use std::fmt::Write as _;

use super::mogrifier::mogrify;
use crate::statsd::settings::Mogrifier;

#[derive(Clone, PartialEq, Debug)]
pub enum Dialect {
    /// Tags are at the end of each name.
    Statsd { tags: String },
    /// Tags are at the end of the line. The first mogrifier that matches a name applies.
    Dog { tags: Vec<String>, mogrifiers: Vec<Mogrifier> },
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Amount {
    /// The increase since the last line.
    Count(u64),
    Gauge(u64),
    Times {
        millis: f64,
        times: u64,
    },
}

impl Dialect {
    /// Plain statsd. The tags end each name, in the order of their keys: `.__key=value`.
    pub fn statsd(tags: &[(String, String)]) -> Self {
        let mut written = String::new();
        for (key, value) in sorted(tags) {
            // Writing to a String cannot fail.
            let _ = write!(written, ".__{}={}", clean(key, NAME), clean(value, TAG_IN_NAME));
        }
        Self::Statsd { tags: written }
    }

    /// DogStatsD. Each line has the `common` tags unchanged, then `tags`, then those of a mogrifier.
    pub fn dog(common: &[(String, String)], tags: &[(String, String)], mogrifiers: Vec<Mogrifier>) -> Self {
        let common = common.iter().map(|(key, value)| tag(key, value));
        let tags = sorted(tags).into_iter().map(|(key, value)| tag(key, &clean(value, TAG_IN_NAME)));
        Self::Dog { tags: common.chain(tags).collect(), mogrifiers }
    }

    pub(super) fn write(&self, line: &mut String, name: &str, amount: Amount) {
        match self {
            Self::Statsd { tags } => {
                line.push_str(&clean(name, NAME));
                line.push_str(tags);
                write_amount(line, amount);
            }
            Self::Dog { tags, mogrifiers } => {
                let renamed = mogrifiers.iter().find_map(|mogrifier| mogrify(mogrifier, name));
                let (name, own) = renamed.unwrap_or_else(|| (name.to_owned(), Vec::new()));
                line.push_str(&clean(&name, NAME));
                write_amount(line, amount);
                let own = own.iter().map(|(key, value)| tag(key, value));
                for (at, tag) in tags.iter().cloned().chain(own).enumerate() {
                    line.push_str(if at == 0 { "|#" } else { "," });
                    line.push_str(&tag);
                }
            }
        }
        line.push('\n');
    }
}

fn write_amount(line: &mut String, amount: Amount) {
    let _ = match amount {
        Amount::Count(n) => write!(line, ":{n}|c"),
        Amount::Gauge(n) => write!(line, ":{n}|g"),
        Amount::Times { millis, times: ..=1 } => write!(line, ":{}|ms", digits(millis)),
        Amount::Times { millis, times } => write!(line, ":{}|ms|@{}", digits(millis), sample_rate(times)),
    };
}

/// Milliseconds with up to six decimal places.
fn digits(millis: f64) -> String {
    let text = format!("{millis:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The sample rate that makes one line count as this many, also in a sink that truncates the inverse of the rate.
fn sample_rate(times: u64) -> f64 {
    let times = times as f64;
    let rate = times.recip();
    if rate.recip() < times { rate.next_down() } else { rate }
}

const NAME: &[char] = &[':', '|'];
/// Replaced in the value of a tag by the Go service's library.
const TAG_IN_NAME: &[char] = &['.', ':', '|'];
const TAG: &[char] = &[',', '|'];

/// The text with `_` for special characters. Callers may choose names, and a line break in one would start a line of
/// its own.
fn clean(text: &str, special: &[char]) -> String {
    text.chars().map(|c| if c.is_control() || special.contains(&c) { '_' } else { c }).collect()
}

fn tag(key: &str, value: &str) -> String {
    [&*clean(key, TAG), ":", &clean(value, TAG)].concat()
}

/// The tags without empty ones, in the order of their keys.
fn sorted(tags: &[(String, String)]) -> Vec<(&str, &str)> {
    let pairs = tags.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let mut pairs: Vec<_> = pairs.filter(|(key, value)| !key.is_empty() && !value.is_empty()).collect();
    pairs.sort_unstable();
    pairs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(dialect: &Dialect, name: &str, amount: Amount) -> String {
        let mut line = String::new();
        dialect.write(&mut line, name, amount);
        line
    }

    fn pairs(tags: &[(&str, &str)]) -> Vec<(String, String)> {
        tags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn plain_lines_are_those_of_the_go_service() {
        let plain = Dialect::statsd(&[]);
        assert_eq!(line(&plain, "a.b", Amount::Count(7)), "a.b:7|c\n");
        assert_eq!(line(&plain, "a.b", Amount::Gauge(0)), "a.b:0|g\n");
        assert_eq!(line(&plain, "a", Amount::Times { millis: 12.0, times: 1 }), "a:12|ms\n");
        assert_eq!(line(&plain, "a", Amount::Times { millis: 0.0175, times: 10 }), "a:0.0175|ms|@0.1\n");
        let tagged = Dialect::statsd(&pairs(&[("zone", "eu.west:1|a"), ("app", "rl"), ("none", "")]));
        assert_eq!(line(&tagged, "a.b", Amount::Count(1)), "a.b.__app=rl.__zone=eu_west_1_a:1|c\n");
    }

    #[test]
    fn dog_lines_carry_tags_behind_the_type() {
        let dog = Dialect::dog(
            &pairs(&[("env", "a.b,c")]),
            &pairs(&[("zone", "eu.west"), ("app", "rl")]),
            Vec::new(),
        );
        assert_eq!(line(&dog, "a", Amount::Count(1)), "a:1|c|#env:a.b_c,app:rl,zone:eu_west\n");
        assert_eq!(
            line(&dog, "a", Amount::Times { millis: 1.5, times: 2 }),
            "a:1.5|ms|@0.5|#env:a.b_c,app:rl,zone:eu_west\n"
        );
        assert_eq!(line(&Dialect::dog(&[], &[], Vec::new()), "a", Amount::Gauge(3)), "a:3|g\n");
    }

    proptest! {
        #[test]
        fn a_name_is_one_line_whatever_it_holds(name in "\\PC{0,20}|[a:|\n\r\u{0}#@,]{0,20}") {
            for dialect in [Dialect::statsd(&[]), Dialect::dog(&[], &pairs(&[("k", "v")]), Vec::new())] {
                let line = line(&dialect, &name, Amount::Count(1));
                prop_assert_eq!(line.matches('\n').count(), 1);
                prop_assert_eq!(line.split_once(':').map(|(_, rest)| rest.starts_with("1|c")), Some(true));
            }
        }

        #[test]
        fn a_sink_that_cuts_off_fractions_counts_right(times in 1_u64..100_000_000) {
            let counted = 1.0 / sample_rate(times);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let whole = counted as u64;
            prop_assert_eq!(whole, times);
        }
    }
}
