//! What is asked about, as it is typed: `domain key=value,key=value` in one argument.

use std::str::FromStr;

use crate::{cli::request::Descriptor, limiter};

/// A domain and one descriptor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Query {
    /// The domain of the rules.
    pub(super) domain: String,
    /// The descriptor's entries, in their order.
    pub(super) descriptor: Descriptor,
}

impl Query {
    /// As the limiter has it.
    pub(super) fn to_request(&self) -> limiter::Request<'_> {
        let entries = self.descriptor.entries().iter().map(|(key, value)| limiter::Entry { key, value });
        let descriptor = limiter::Descriptor { entries: entries.collect(), ..limiter::Descriptor::default() };
        limiter::Request {
            domain: &self.domain,
            descriptors: std::iter::once(descriptor).collect(),
            ..limiter::Request::default()
        }
    }
}

impl FromStr for Query {
    type Err = String;

    /// The first blank ends the domain; a value may hold others.
    fn from_str(text: &str) -> Result<Self, String> {
        let asked = text.trim().split_once(' ');
        let (domain, descriptor) = asked.ok_or_else(|| {
            "a domain and a descriptor are asked about, in one argument: 'domain key=value,key=value'"
                .to_owned()
        })?;
        Ok(Self { domain: domain.to_owned(), descriptor: descriptor.trim_start().parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_and_a_descriptor_are_told_apart_by_the_first_blank() {
        let question: Query = " shop  name=ann lee,path=/".parse().unwrap();
        let request = question.to_request();
        let entries: Vec<_> =
            request.descriptors[0].entries.iter().map(|entry| (entry.key, entry.value)).collect();
        assert_eq!((request.domain, entries), ("shop", vec![("name", "ann lee"), ("path", "/")]));
    }

    #[test]
    fn other_texts_are_refused_with_a_reason() {
        for (text, reason) in [
            ("shop", "in one argument"),
            ("name=ann", "in one argument"),
            ("", "in one argument"),
            ("shop name", "\"name\" has no ="),
        ] {
            let error = text.parse::<Query>().unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
