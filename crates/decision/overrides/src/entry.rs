//! The values of overrides by entry: one value, a network, or a prefix; and the addresses among the values of requests.
//!
//! An address is compared as an address and not as a text, so that every spelling of it matches. An IPv4-mapped IPv6
//! address is the IPv4 address. A value may also be an address with a port, or in brackets.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::IpNet;

/// What the value of an override by entry matches. Of two networks or prefixes that begin alike, the larger one is first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Pattern<'v> {
    Exact(&'v str),
    /// Addresses; a single one is a network with one address.
    Network(IpNet),
    Prefix(&'v str),
}

impl<'v> Pattern<'v> {
    pub(super) fn of(value: &'v str) -> Self {
        if let Some(prefix) = value.strip_suffix('*') {
            return Self::Prefix(prefix);
        }
        let network = value.parse::<IpAddr>().ok().map(IpNet::from).or_else(|| value.parse().ok());
        network.map_or(Self::Exact(value), Self::Network)
    }
}

/// The value in its only spelling: addresses as RFC 5952 writes them, networks without bits beyond the prefix.
pub(super) fn canonical(value: &str) -> Result<String, String> {
    if value.strip_suffix('*').unwrap_or(value).contains('*') {
        let example = "`2001:db8:*` is every value that begins with 2001:db8:";
        return Err(format!("a * is possible at the end only: {example}"));
    }
    if value.ends_with('*') {
        return Ok(value.to_owned());
    }
    if let Ok(address) = value.parse::<IpAddr>() {
        return Ok(address.to_canonical().to_string());
    }
    let Some((address, length)) = value.split_once('/') else { return Ok(value.to_owned()) };
    match value.parse::<IpNet>() {
        Ok(network) => Ok(network_text(network.trunc())),
        Err(_) if looks_like_network(address, length) => {
            let expected = "10.0.0.0/8 or 2001:db8::/32, with a prefix of at most 32 or 128 bits";
            Err(format!(
                "not a network; expected an address and the length of its prefix, such as {expected}"
            ))
        }
        Err(_) => Ok(value.to_owned()),
    }
}

/// A network of IPv4-mapped addresses is one of IPv4 addresses, and a network with one address is that address.
fn network_text(network: IpNet) -> String {
    let mapped = match network {
        IpNet::V6(net) if net.prefix_len() >= 96 => net.network().to_ipv4_mapped().map(|address| {
            let length = net.prefix_len().saturating_sub(96);
            (IpAddr::V4(address), length, 32)
        }),
        _ => None,
    };
    let (address, length, longest) =
        mapped.unwrap_or((network.network(), network.prefix_len(), network.max_prefix_len()));
    if length == longest { address.to_string() } else { format!("{address}/{length}") }
}

/// True for a text that an operator can only mean as a network, such as `10.0.0.0/33` and `10.0/8`.
fn looks_like_network(address: &str, length: &str) -> bool {
    let has_digits = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
    let is_v4 = address.contains('.') && address.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let is_v6 = address.matches(':').count() >= 2
        && address.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'));
    has_digits && (is_v4 || is_v6)
}

/// True if the text is a network or an address with the length of its prefix.
pub(super) fn is_network(text: &str) -> bool {
    text.parse::<IpNet>().is_ok()
}

/// True if a canonical value matches one value alone.
pub(super) fn is_one_value(value: &str) -> bool {
    !value.ends_with('*') && !is_network(value)
}

/// True if a canonical value matches the value of a request.
pub(super) fn matches(value: &str, requested: Option<&str>) -> bool {
    let requested = requested.unwrap_or_default();
    match Pattern::of(value) {
        Pattern::Exact(value) => value == requested,
        Pattern::Prefix(prefix) => requested.starts_with(prefix),
        Pattern::Network(network) => address(requested).is_some_and(|address| network.contains(&address)),
    }
}

/// The address that a value of a request is; `None` for any other text. Most values are IPv4 addresses or none.
pub(super) fn address(value: &str) -> Option<IpAddr> {
    if let Some(address) = v4(value.as_bytes()) {
        return Some(IpAddr::V4(address));
    }
    if !value.contains([':', '[']) {
        return None;
    }
    let bare = || value.strip_prefix('[')?.strip_suffix(']')?.parse::<IpAddr>().ok();
    let with_port = || value.parse::<SocketAddr>().ok().map(|address| address.ip());
    let address = value.parse().ok().or_else(with_port).or_else(bare)?;
    Some(IpAddr::to_canonical(&address))
}

/// An IPv4 address, as the parser of the standard library reads it. Requests pay for it: a third of the instructions.
fn v4(text: &[u8]) -> Option<Ipv4Addr> {
    let (mut address, mut rest) = octet(text)?;
    for _ in 0..3 {
        let (next, after) = octet(rest.strip_prefix(b".")?)?;
        (address, rest) = (address << 8 | next, after);
    }
    rest.is_empty().then(|| Ipv4Addr::from_bits(address))
}

/// A number up to 255 without leading zeros, and the rest of the text.
#[inline]
fn octet(text: &[u8]) -> Option<(u32, &[u8])> {
    let digit = |at: usize| {
        let digit = text.get(at)?.wrapping_sub(b'0');
        (digit < 10).then_some(u32::from(digit))
    };
    let one = digit(0)?;
    let Some(second) = digit(1) else { return Some((one, text.get(1..)?)) };
    if one == 0 {
        return None;
    }
    let two = one * 10 + second;
    let Some(third) = digit(2) else { return Some((two, text.get(2..)?)) };
    let three = two * 10 + third;
    (three <= 255).then_some((three, text.get(3..)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn reads_ipv4_addresses_as_the_standard_library_does(
            text in "([0-9]{0,3}\\.?){0,5}|[0-2]?[0-9]{1,2}\\.[0-2]?[0-9]{1,2}\\.[0-2]?[0-9]{1,2}\\.[0-2]?[0-9]{1,2}.?",
        ) {
            prop_assert_eq!(v4(text.as_bytes()), text.parse().ok(), "{}", text);
        }
    }

    #[test]
    fn a_value_has_one_spelling() {
        for (value, expected) in [
            ("9.9.9.9", "9.9.9.9"),
            ("2001:DB8:0:0::1", "2001:db8::1"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("::FFFF:0a00:1", "10.0.0.1"),
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("10.1.2.3/32", "10.1.2.3"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("2001:db8:ffff::/33", "2001:db8:8000::/33"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("2001:db8:*", "2001:db8:*"),
            ("*", "*"),
            ("", ""),
            ("/api/v1", "/api/v1"),
            ("1/2", "1/2"),
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("ünï", "ünï"),
        ] {
            assert_eq!(canonical(value).as_deref(), Ok(expected), "{value}");
            assert_eq!(canonical(expected).as_deref(), Ok(expected), "{value}");
        }
        for (value, expected) in [
            ("10.0.0.0/33", "not a network"),
            ("10.0/8", "not a network"),
            ("300.0.0.0/8", "not a network"),
            ("2001:db8::/129", "not a network"),
            ("a*b", "a * is possible at the end only"),
            ("**", "a * is possible at the end only"),
            ("*a", "a * is possible at the end only"),
        ] {
            let error = canonical(value).unwrap_err();
            assert!(error.contains(expected), "{value}: {error}");
        }
    }

    #[test]
    fn every_spelling_of_an_address_matches_and_nothing_else() {
        for (value, requested, expected) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("10.0.0.0/8", "::ffff:10.0.0.1", true),
            ("10.0.0.0/8", "10.0.0.1:8080", true),
            ("10.0.0.0/8", "[::ffff:10.0.0.1]:8080", true),
            ("10.0.0.0/8", "010.0.0.1", false),
            ("10.0.0.0/8", " 10.0.0.1", false),
            ("10.0.0.0/8", "10.0.0.1, 11.0.0.1", false),
            ("10.0.0.0/8", "10.0.0.0/8", false),
            ("10.0.0.0/8", "10.0.0.1/32", false),
            ("10.0.0.0/8", "10.0.0", false),
            ("10.0.0.0/8", "", false),
            ("2001:db8::/32", "2001:DB8::1", true),
            ("2001:db8::/32", "2001:0db8:0000:0000:0000:0000:0000:0001", true),
            ("2001:db8::/32", "[2001:db8::1]", true),
            ("2001:db8::/32", "[2001:db8::1]:443", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("2001:db8::1", "2001:db8:0:0:0:0:0:1", true),
            ("9.9.9.9", "9.9.9.9:1", true),
            ("9.9.9.9", "9.9.9.99", false),
            ("::/0", "10.0.0.1", false),
            ("::/0", "::ffff:10.0.0.1", false),
            ("::/0", "::1", true),
            ("0.0.0.0/0", "10.0.0.1", true),
            ("0.0.0.0/0", "::1", false),
            ("2001:db8:*", "2001:db8:1::", true),
            ("2001:db8:*", "2001:0db8:1::", false),
            ("2001:db8:*", "2001:db8:*", true),
            ("*", "", true),
            ("", "", true),
            ("", "x", false),
            ("ü*", "ünï", true),
            ("10.0.0.1:80", "10.0.0.1:80", true),
            ("10.0.0.1:80", "10.0.0.1", false),
        ] {
            assert_eq!(matches(value, Some(requested)), expected, "{value} {requested}");
        }
    }
}
