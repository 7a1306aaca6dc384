//! The domain, the descriptors and the hits of a request as they are typed.

use std::ffi::OsString;

use crate::{cli::request::Descriptor, limiter};

/// A request to be explained.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Query {
    /// The domain of the rules.
    pub(super) domain: String,
    /// The descriptors, one at least.
    pub(super) descriptors: Vec<Descriptor>,
    /// The hits of each descriptor; 0 looks without counting.
    pub(super) hits: u32,
}

const EXPECTED: &str = "expected a domain and descriptors: DOMAIN KEY=VALUE[,KEY=VALUE]...";

impl Query {
    /// Reads `DOMAIN KEY=VALUE,... ...`, or the older form with the domain and one descriptor in the last
    /// argument, before which rules stand. Gives the query and the words that are paths of rules.
    pub(super) fn read(
        words: &[OsString],
        rules_are_named: bool,
        hits: u32,
    ) -> Result<(Self, &[OsString]), String> {
        let (last, before) = words.split_last().ok_or(EXPECTED)?;
        let text = last.to_string_lossy();
        let one_argument = text.trim().split_once(' ').filter(|(domain, _)| !domain.contains('='));
        if let (Some((domain, descriptor)), true) = (one_argument, before.is_empty() || !rules_are_named) {
            let descriptors = vec![descriptor.trim_start().parse()?];
            return Ok((Self { domain: domain.to_owned(), descriptors, hits }, before));
        }
        let (domain, descriptors) =
            words.split_first().filter(|(_, rest)| !rest.is_empty()).ok_or(EXPECTED)?;
        let descriptors = descriptors.iter().map(|word| word.to_string_lossy().parse());
        let descriptors = descriptors.collect::<Result<Vec<Descriptor>, String>>();
        let descriptors = descriptors.map_err(|reason| format!("{reason}; {EXPECTED}"))?;
        Ok((Self { domain: domain.to_string_lossy().into_owned(), descriptors, hits }, &[]))
    }

    /// The request as the limiter reads it.
    pub(super) fn to_request(&self) -> limiter::Request<'_> {
        let descriptors = self.descriptors.iter().map(|descriptor| {
            let entries = descriptor.entries().iter().map(|(key, value)| limiter::Entry { key, value });
            let hits_addend = (self.hits == 0).then_some(0);
            limiter::Descriptor { entries: entries.collect(), hits_addend, ..limiter::Descriptor::default() }
        });
        limiter::Request {
            domain: &self.domain,
            descriptors: descriptors.collect(),
            hits_addend: self.hits,
            ..limiter::Request::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str], rules_are_named: bool) -> Result<(Query, Vec<OsString>), String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        Query::read(&words, rules_are_named, 1).map(|(query, paths)| (query, paths.to_vec()))
    }

    #[test]
    fn a_domain_and_descriptors_are_words_of_their_own() {
        for rules_are_named in [false, true] {
            let (query, paths) = read(&["shop", "name=ann lee,path=/", "a=b"], rules_are_named).unwrap();
            let request = query.to_request();
            let entries: Vec<Vec<_>> = request
                .descriptors
                .iter()
                .map(|descriptor| descriptor.entries.iter().map(|entry| (entry.key, entry.value)).collect())
                .collect();
            assert_eq!(entries, [vec![("name", "ann lee"), ("path", "/")], vec![("a", "b")]]);
            assert_eq!((request.domain, paths.len()), ("shop", 0));
        }
    }

    #[test]
    fn one_argument_may_hold_both_and_follow_paths() {
        for (words, rules_are_named, count) in [
            (&[" shop  name=ann lee,path=/"][..], true, 0),
            (&["shop name=ann lee"], false, 0),
            (&["a.yaml", "b", "shop name=ann lee"], false, 2),
        ] {
            let (query, paths) = read(words, rules_are_named).unwrap();
            assert_eq!((query.domain.as_str(), paths.len()), ("shop", count), "{words:?}");
            assert_eq!(query.descriptors[0].entries()[0], ("name".to_owned(), "ann lee".to_owned()));
        }
    }

    #[test]
    fn other_words_are_refused_with_a_reason() {
        for (words, reason) in [
            (&["shop"][..], "expected a domain"),
            (&["name=ann"], "expected a domain"),
            (&[], "expected a domain"),
            (&["shop", "name"], "\"name\" has no ="),
            (&["shop name"], "\"name\" has no ="),
            (&["a.yaml", "shop", "k"], "\"shop\" has no ="),
        ] {
            let error = read(words, false).unwrap_err();
            assert!(error.contains(reason), "{words:?}: {error}");
        }
    }
}
