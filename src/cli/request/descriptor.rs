//! A descriptor as it is typed: `key=value,key=value`.

use std::{fmt, str::FromStr};

use crate::{
    entries,
    proto::envoy::extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor},
};

/// The entries of one descriptor, in their order; one at least.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Descriptor {
    entries: Vec<(String, String)>,
}

impl Descriptor {
    /// The entries, each a key and a value.
    pub(in crate::cli) fn entries(&self) -> &[(String, String)] {
        &self.entries
    }

    /// The descriptor as Envoy's API has it. 0 hits must stand in the descriptor itself: those of the request
    /// count as 1.
    pub(super) fn to_proto(&self, hits: u32) -> RateLimitDescriptor {
        let entry = |(key, value): &(String, String)| rate_limit_descriptor::Entry {
            key: key.clone(),
            value: value.clone(),
        };
        let hits_addend = (hits == 0).then_some(0);
        RateLimitDescriptor {
            entries: self.entries.iter().map(entry).collect(),
            hits_addend,
            ..Default::default()
        }
    }
}

impl FromStr for Descriptor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self { entries: entries::parse_with_values(text)? })
    }
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries.iter().map(|(key, value)| (&**key, Some(value)));
        f.write_str(&entries::write(entries))
    }
}
