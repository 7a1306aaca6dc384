//! What is kept and shown of decisions: callers' values, the log of decisions, and series of top keys.

use std::path::PathBuf;

use super::{
    parse::{InvalidValue, Value, choice},
    reader::Reader,
    vars::{self, DecisionVars},
};

/// What is kept and shown of decisions.
#[derive(Clone, PartialEq, Debug)]
pub struct Decisions {
    /// How callers' values are shown.
    pub key_values: KeyValues,
    /// The log of decisions, if it is on.
    pub log: Option<DecisionLog>,
    /// Series of the most refused keys; 0 for none.
    pub metrics_top_keys: usize,
}

named! {
    /// How callers' values are shown.
    #[derive(Default)]
    pub enum KeyValues {
        /// As they came.
        #[default]
        Plain = "plain",
        /// By the first 16 digits of their SHA-256, so that equal values are recognised.
        Hashed = "hashed",
        /// Not at all.
        Hidden = "hidden",
    }
}

/// The log of decisions.
#[derive(Clone, PartialEq, Debug)]
pub struct DecisionLog {
    /// Which decisions it has.
    pub logged: Logged,
    /// Its file; standard output if there is none.
    pub file: Option<PathBuf>,
}

/// Which decisions are logged.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Logged {
    /// Those that refused a request.
    Refused,
    /// Any, with this probability: above 0, at most 1.
    Sampled(f64),
}

pub(super) fn read(reader: &mut Reader<'_>) -> Decisions {
    let DecisionVars { key_values, logged, file, metrics_top_keys } = DecisionVars::read(reader);
    if logged.is_none() && file.is_some() {
        let message = "does nothing: set DECISION_LOG to refused or sampled:0.01";
        reader.warn(&vars::DECISION_LOG_FILE, message);
    }
    Decisions { key_values, log: logged.map(|logged| DecisionLog { logged, file }), metrics_top_keys }
}

impl Value for KeyValues {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        let choices = Self::ALL.map(|values| (values.name(), values));
        choice(text, &choices, "plain, hashed or hidden")
    }
}

pub(super) fn logged(text: &str) -> Result<Option<Logged>, InvalidValue> {
    let refusal = || InvalidValue::new("off, refused, or sampled: and a share, such as sampled:0.01");
    match text.to_ascii_lowercase().as_str() {
        "off" => Ok(None),
        "refused" => Ok(Some(Logged::Refused)),
        text => {
            let share = text.strip_prefix("sampled:").ok_or_else(refusal)?;
            let share: Option<f64> = share.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
            let too = || refusal().with_hint("the share is above 0 and at most 1");
            share.map(|share| Some(Logged::Sampled(share))).ok_or_else(too)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_which_decisions_are_logged() {
        for (text, expected) in [
            ("off", Ok(None)),
            ("refused", Ok(Some(Logged::Refused))),
            ("Sampled:0.01", Ok(Some(Logged::Sampled(0.01)))),
            ("sampled:1", Ok(Some(Logged::Sampled(1.0)))),
            ("sampled:0", Err(())),
            ("sampled:1.1", Err(())),
            ("sampled:NaN", Err(())),
            ("sampled:", Err(())),
            ("sampled", Err(())),
            ("all", Err(())),
        ] {
            assert_eq!(logged(text).map_err(|_| ()), expected, "{text}");
        }
    }

    #[test]
    fn reads_how_values_are_shown() {
        for (text, expected) in [
            ("plain", Some(KeyValues::Plain)),
            ("HASHED", Some(KeyValues::Hashed)),
            ("hidden", Some(KeyValues::Hidden)),
            ("none", None),
        ] {
            assert_eq!(KeyValues::parse(text).ok(), expected, "{text}");
        }
    }
}
