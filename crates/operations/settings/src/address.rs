//! Addresses of listeners and servers: hosts, ports and unix sockets, parsed as in Go.

use std::net::Ipv6Addr;

use net::HostPort;

use super::parse::{Value, by_function};
use text::InvalidValue;

/// A host without a port. Brackets around an IPv6 address are removed.
pub fn host(text: &str) -> Result<String, InvalidValue> {
    let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let bare = inner.unwrap_or(text);
    // A zone may follow an IPv6 address: fe80::1%eth0.
    let address = bare.split('%').next().unwrap_or(bare);
    let is_ipv6 = address.parse::<Ipv6Addr>().is_ok();
    let is_name =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
    if is_ipv6 || (inner.is_none() && is_name(text)) {
        return Ok(bare.to_owned());
    }
    let invalid = InvalidValue::new("an IPv4 or IPv6 address, a host name, or nothing for all addresses");
    Err(if text.contains("://") {
        invalid.with_hint("remove the scheme")
    } else if text.contains(':') {
        invalid.with_hint("remove the port, which has its own variable")
    } else {
        invalid
    })
}

/// A host and a port: `:9090`, `127.0.0.1:9090`, `[::1]:9090`, `name:9090`.
pub fn host_port(text: &str) -> Result<HostPort, InvalidValue> {
    let invalid = InvalidValue::new("an address such as :9090, 127.0.0.1:9090, [::1]:9090 or name:9090");
    if text.contains("://") {
        return Err(invalid.with_hint("remove the scheme"));
    }
    let Some((before, after)) = text.rsplit_once(':') else {
        let is_port = u16::parse(text).is_ok();
        return Err(if is_port { invalid.with_hint(format!("write :{text}")) } else { invalid });
    };
    if before.contains(':') && !before.starts_with('[') {
        return Err(invalid.with_hint("an IPv6 address needs brackets: [::1]:9090"));
    }
    let Ok(port) = u16::parse(after) else {
        return Err(invalid.with_hint("the port is a number from 0 to 65535"));
    };
    let host = host(before).map_err(|_| invalid)?;
    Ok(HostPort { host, port })
}

by_function! { HostPort: host_port; }

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> HostPort {
        host_port(text).unwrap()
    }

    #[test]
    fn addresses_read_and_print_alike() {
        for (text, host, port) in [
            (":9090", "", 9090),
            ("127.0.0.1:9090", "127.0.0.1", 9090),
            ("0.0.0.0:0", "0.0.0.0", 0),
            ("[::1]:9090", "::1", 9090),
            ("[::]:65535", "::", 65535),
            ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
            ("metrics.example_1-2.org:80", "metrics.example_1-2.org", 80),
        ] {
            let read = at(text);
            assert_eq!((&*read.host, read.port), (host, port), "{text}");
            assert_eq!(read.to_string(), text);
        }
    }

    #[test]
    fn rejects_other_texts() {
        for text in [
            "",
            ":",
            "9090",
            "localhost",
            "localhost:",
            "localhost:http",
            "localhost:65536",
            "localhost:-1",
            "::1:9090",
            "[::1]",
            "[::1]9090",
            "[::1:9090",
            "::1]:9090",
            "[localhost]:80",
            "[]:80",
            "a b:80",
            "a/b:80",
            "http://a:80",
            ":80:80",
            " :80",
            ":80 ",
            "m\u{fc}ller:80",
            "[fe80::1%]x:80",
        ] {
            assert!(host_port(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn common_mistakes_have_a_hint() {
        for (text, hint) in [
            ("9090", "write :9090"),
            ("http://:9090", "remove the scheme"),
            ("::1:9090", "an IPv6 address needs brackets: [::1]:9090"),
        ] {
            assert_eq!(host_port(text).unwrap_err().hint.as_deref(), Some(hint), "{text}");
        }
        assert_eq!(
            host("localhost:80").unwrap_err().hint.as_deref(),
            Some("remove the port, which has its own variable")
        );
    }

    #[test]
    fn hosts_have_no_port() {
        for (text, read) in
            [("", ""), ("::", "::"), ("[::]", "::"), ("0.0.0.0", "0.0.0.0"), ("localhost", "localhost")]
        {
            assert_eq!(host(text).as_deref(), Ok(read), "{text}");
        }
        for text in
            [" ", "a:80", "[a]", "[::", "::]", "http://a", "a,b", "a b", "tcp://10.0.0.1:80", "%", "%eth0"]
        {
            assert!(host(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn every_form_of_all_addresses_accepts_both_families() {
        for text in [":80", "0.0.0.0:80", "[::]:80", "[0:0::0]:80"] {
            let found: Vec<_> = at(text).resolve().unwrap().iter().map(ToString::to_string).collect();
            assert_eq!(found, ["[::]:80", "0.0.0.0:80"], "{text}");
        }
        assert_eq!(at("127.0.0.1:80").resolve().unwrap(), ["127.0.0.1:80".parse().unwrap()]);
        assert_eq!(at("[::1]:80").resolve().unwrap(), ["[::1]:80".parse().unwrap()]);
    }

    #[test]
    fn a_host_that_does_not_resolve_is_named() {
        // A label has at most 63 characters, so no name server is queried.
        let host = "x".repeat(64);
        let error = HostPort { host: host.clone(), port: 80 }.resolve().unwrap_err().to_string();
        assert!(error.contains(&host), "{error}");
    }

    #[test]
    fn two_listeners_collide_on_one_port_unless_their_hosts_differ() {
        for (one, other, collides) in [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "127.0.0.2:80", false),
            ("127.0.0.1:80", "127.0.0.1:81", false),
            (":80", "127.0.0.1:80", true),
            ("[::]:80", "0.0.0.0:80", true),
            ("Localhost:80", "localhost:80", true),
            ("127.0.0.1:0", "127.0.0.1:0", false),
            (":0", ":0", false),
        ] {
            assert_eq!(at(one).collides_with(&at(other)), collides, "{one} {other}");
            assert_eq!(at(other).collides_with(&at(one)), collides, "{other} {one}");
        }
    }
}
