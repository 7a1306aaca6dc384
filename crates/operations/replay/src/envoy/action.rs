//! The actions of Envoy's `rate_limits`: the entry that each adds to a descriptor.

use std::{borrow::Cow, net::IpAddr};

use super::{
    Call, HeaderMatch, Line, Needs, QueryMatch, Route,
    matching::{all_headers, all_parameters, parameter},
};
use crate::access_log::{Operator, Part, Parts};

#[derive(Debug)]
pub enum Action {
    Constant(Entry),
    /// An entry of the command line: without a value for each operator, there is no descriptor.
    Template(String, Parts),
    Header {
        key: String,
        name: String,
        skip_if_absent: bool,
    },
    QueryParameter {
        key: String,
        name: String,
        skip_if_absent: bool,
    },
    RemoteAddress,
    /// With the lengths of prefixes of IPv4 and IPv6.
    MaskedRemoteAddress(u32, u32),
    RemoteAddressMatch {
        entry: Entry,
        ranges: Vec<(IpAddr, u32)>,
        inverted: bool,
    },
    /// The cluster of the route, unless requests choose it.
    DestinationCluster(Option<String>),
    HeaderValueMatch {
        entry: Entry,
        headers: Vec<HeaderMatch>,
        expected: bool,
    },
    QueryParameterValueMatch {
        entry: Entry,
        parameters: Vec<QueryMatch>,
        expected: bool,
    },
    /// What it needs is never in a log.
    Untold(String),
}

/// A key and a value, which may have operators.
#[derive(Debug)]
pub struct Entry {
    pub key: String,
    pub value: Parts,
    /// The value if the other one is empty.
    pub default: String,
}

pub(super) enum Told {
    Entry(String, String),
    /// Nothing, and the descriptor goes on.
    Skipped,
    /// There is no descriptor.
    Ended,
}

impl Action {
    pub(super) fn told(&self, line: &Line<'_>, route: &Route, call: &Call) -> Result<Told, Needs> {
        match self {
            Self::Constant(entry) => entry.told(line),
            Self::Template(key, parts) => Ok(or_end(key, parts.filled(line)?)),
            Self::Header { key, name, skip_if_absent } => {
                let value = seen_header(name, line, route, call)?;
                Ok(or_skip(key, value, *skip_if_absent))
            }
            Self::QueryParameter { key, name, skip_if_absent } => {
                let value = line.path()?.and_then(|path| parameter(path, name, true).map(Cow::into_owned));
                Ok(or_skip(key, value, *skip_if_absent))
            }
            Self::RemoteAddress => {
                Ok(or_end("remote_address", remote_address(line)?.map(|address| address.to_string())))
            }
            Self::MaskedRemoteAddress(v4, v6) => {
                let masked = remote_address(line)?.map(|address| {
                    let length = if address.is_ipv4() { *v4 } else { *v6 };
                    format!("{}/{length}", masked(address, length))
                });
                Ok(or_end("masked_remote_address", masked))
            }
            Self::RemoteAddressMatch { entry, ranges, inverted } => {
                let Some(address) = remote_address(line)? else { return Ok(Told::Ended) };
                let is_in = |(start, length): &(IpAddr, u32)| {
                    start.is_ipv4() == address.is_ipv4()
                        && masked(address, *length) == masked(*start, *length)
                };
                if ranges.iter().any(is_in) == *inverted { Ok(Told::Ended) } else { entry.told(line) }
            }
            Self::DestinationCluster(cluster) => {
                let logged = line.operator(&Operator::plain("UPSTREAM_CLUSTER"));
                let value = match cluster {
                    Some(cluster) => Some(cluster.clone()),
                    None => logged?,
                };
                Ok(or_end("destination_cluster", value))
            }
            Self::HeaderValueMatch { entry, headers, expected } => {
                let header = |name: &str| seen_header(name, line, route, call);
                if all_headers(headers, header)? == *expected { entry.told(line) } else { Ok(Told::Ended) }
            }
            Self::QueryParameterValueMatch { entry, parameters, expected } => {
                let Some(path) = line.path()? else { return Ok(Told::Ended) };
                let all = all_parameters(parameters, path, true);
                if all == *expected { entry.told(line) } else { Ok(Told::Ended) }
            }
            Self::Untold(needs) => Err(Needs(needs.clone())),
        }
    }
}

/// A header as the filter saw it: before the route changed it, or at the end of the stream.
fn seen_header(name: &str, line: &Line<'_>, route: &Route, call: &Call) -> Result<Option<String>, Needs> {
    if call.at_end {
        if name == ":path" && route.rewrites_path {
            return line.operator(&Operator::of_header(name));
        }
    } else if route.changed_headers.iter().any(|changed| changed == name) {
        return Err(Needs(format!("the header {name} before the route changes it")));
    }
    line.header(name)
}

fn or_end(key: &str, value: Option<String>) -> Told {
    value.map_or(Told::Ended, |value| Told::Entry(key.to_owned(), value))
}

fn or_skip(key: &str, value: Option<String>, skip_if_absent: bool) -> Told {
    match value {
        None if skip_if_absent => Told::Skipped,
        value => or_end(key, value),
    }
}

impl Entry {
    fn told(&self, line: &Line<'_>) -> Result<Told, Needs> {
        let mut value = String::new();
        for part in &self.value.0 {
            match part {
                Part::Text(text) => value += text,
                Part::Operator(operator) => value += &cut(line, operator)?.unwrap_or_default(),
            }
        }
        if value.is_empty() {
            value.clone_from(&self.default);
        }
        Ok(if value.is_empty() { Told::Ended } else { Told::Entry(self.key.clone(), value) })
    }
}

impl Parts {
    /// The text with its values; `None` if one is missing.
    pub(super) fn filled(&self, line: &Line<'_>) -> Result<Option<String>, Needs> {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                Part::Text(plain) => text += plain,
                Part::Operator(operator) => match cut(line, operator)? {
                    Some(value) => text += &value,
                    None => return Ok(None),
                },
            }
        }
        Ok(Some(text))
    }
}

/// The value of an operator, up to its length.
fn cut(line: &Line<'_>, operator: &Operator) -> Result<Option<String>, Needs> {
    let value = line.operator(operator)?;
    Ok(match operator.longest {
        Some(longest) => value.map(|value| value.chars().take(longest).collect()),
        None => value,
    })
}

/// `None` for a client that has no IP address.
fn remote_address(line: &Line<'_>) -> Result<Option<IpAddr>, Needs> {
    const WITHOUT_PORT: &str = "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT";
    let logged = match line.operator(&Operator::plain(WITHOUT_PORT)) {
        Ok(address) => address,
        Err(needs) => {
            let with_port = line.fields.exactly("DOWNSTREAM_REMOTE_ADDRESS");
            with_port.without_port().value().map(|address| Some(address.into_owned())).ok_or(needs)?
        }
    };
    Ok(logged.and_then(|address| address.parse().ok()))
}

/// The address with only its first bits.
fn masked(address: IpAddr, length: u32) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - length.min(32)).unwrap_or(0);
            IpAddr::V4((address.to_bits() & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - length.min(128)).unwrap_or(0);
            IpAddr::V6((address.to_bits() & mask).into())
        }
    }
}
