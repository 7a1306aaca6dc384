//! What is kept and shown of decisions: callers' values, the log of decisions, and series of top keys.

use std::path::PathBuf;

use super::{parse::InvalidValue, reader::Reader, vars};

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

/// How callers' values are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KeyValues {
    /// As they came.
    #[default]
    Plain,
    /// By a hash.
    Hashed,
    /// Not at all.
    Hidden,
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
    let logged = reader.parsed(vars::DECISION_LOG, logged);
    let file = Some(reader.text(vars::DECISION_LOG_FILE)).filter(|path| !path.is_empty());
    if logged.is_none() && file.is_some() {
        reader.warn(vars::DECISION_LOG_FILE, "does nothing: set DECISION_LOG to refused or sampled:0.01");
    }
    let top_keys = reader.whole(vars::METRICS_TOP_KEYS, 0..=1000);
    Decisions {
        key_values: reader.parsed(vars::KEY_VALUES, key_values),
        log: logged.map(|logged| DecisionLog { logged, file: file.map(PathBuf::from) }),
        metrics_top_keys: usize::try_from(top_keys).unwrap_or_default(),
    }
}

fn key_values(text: &str) -> Result<KeyValues, InvalidValue> {
    match text.to_ascii_lowercase().as_str() {
        "plain" => Ok(KeyValues::Plain),
        "hashed" => Ok(KeyValues::Hashed),
        "hidden" => Ok(KeyValues::Hidden),
        _ => Err(InvalidValue::new("plain, hashed or hidden")),
    }
}

fn logged(text: &str) -> Result<Option<Logged>, InvalidValue> {
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
            assert_eq!(key_values(text).ok(), expected, "{text}");
        }
    }
}
