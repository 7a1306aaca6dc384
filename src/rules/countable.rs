//! What the store of the counters is able to count: not every one takes every kind of limit.
//!
//! A store declares it, `app` passes it to the compiler, and `lower` checks each limit, so that a limit that
//! cannot be counted is an error when rules are read and not at every request.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use super::diagnostics::quoted;
use crate::limiter::algorithm::Kind;

/// The kinds of limits that are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Countable {
    /// Every kind.
    #[default]
    Everything,
    /// Fixed windows alone, of whatever length. So it is in memcached.
    FixedWindows,
}

impl Countable {
    /// True if a replica may count hits ahead of time.
    #[must_use]
    pub const fn may_lease(self) -> bool {
        matches!(self, Self::Everything)
    }

    /// Whether limits of this kind are counted.
    #[must_use]
    pub const fn has(self, kind: Kind) -> bool {
        match self {
            Self::Everything => true,
            Self::FixedWindows => matches!(kind, Kind::FixedWindow),
        }
    }
}

/// The message and the help for a limit of a kind that cannot be counted.
pub(super) fn refusal(kind: Kind) -> (String, &'static str) {
    let message = format!("{} cannot be counted: memcached counts fixed windows only", quoted(kind.name()));
    (message, "use `fixed_window`, or count where every algorithm is: BACKEND_TYPE=redis or memory")
}

#[cfg(test)]
mod tests {
    use super::{
        super::{CompileOptions, Compiled, SourceFile, compile},
        *,
    };

    fn compiled(rate_limit: &str, countable: Countable) -> Compiled {
        let text = format!("domain: d\ndescriptors:\n- key: k\n  rate_limit: {rate_limit}\n");
        let file = SourceFile { name: "a.yaml".to_owned(), text: text.into_bytes() };
        compile(&[file], CompileOptions { countable, ..CompileOptions::default() })
    }

    fn messages(rate_limit: &str) -> Vec<String> {
        let compiled = compiled(rate_limit, Countable::FixedWindows);
        let messages: Vec<_> = compiled.diagnostics.iter().map(ToString::to_string).collect();
        assert_eq!(compiled.rules.is_some(), messages.is_empty(), "{messages:?}");
        messages
    }

    #[test]
    fn a_limit_that_is_not_counted_is_refused_where_it_asks_for_that() {
        for kind in Kind::ALL {
            let name = kind.name();
            let limit = format!("{{unit: day, requests_per_unit: 5, algorithm: {}}}", name.to_uppercase());
            let refusal = format!(
                "a.yaml:4:60: error: `{name}` cannot be counted: memcached counts fixed windows only \
                 (at descriptors[0].rate_limit.algorithm); use `fixed_window`, or count where every algorithm \
                 is: BACKEND_TYPE=redis or memory"
            );
            assert_eq!(messages(&limit), Vec::from_iter((kind != Kind::FixedWindow).then_some(refusal)));
            assert!(compiled(&limit, Countable::Everything).rules.is_some(), "{name}");
        }
    }

    #[test]
    fn fixed_windows_are_counted_whatever_their_length_and_number() {
        assert_eq!(messages("{unit: year, unit_multiplier: 10, requests_per_unit: 5}"), [""; 0]);
        assert_eq!(
            messages("[{unit: second, requests_per_unit: 5}, {unit: month, requests_per_unit: 9}]"),
            [""; 0]
        );
    }

    #[test]
    fn each_limit_of_a_list_is_held_against_it_with_all_else_that_is_wrong() {
        let messages = messages(
            "[{unit: day, requests_per_unit: 5, algorithm: sliding_log}, {unit: day, requests_per_unit: 7,\n    \
             algorithm: token_bucket, burst: 0}]",
        );
        let starts = [
            "a.yaml:4:61: error: `sliding_log` cannot be counted",
            "a.yaml:5:16: error: `token_bucket` cannot be counted",
            "a.yaml:5:37: error: a bucket with a burst of 0",
        ];
        assert_eq!(messages.len(), starts.len(), "{messages:#?}");
        for (messages, start) in messages.iter().zip(starts) {
            assert!(messages.starts_with(start), "{messages}");
        }
        assert!(messages[1].contains("(at descriptors[0].rate_limit[1].algorithm)"), "{messages:?}");
    }
}
