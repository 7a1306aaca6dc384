//! The cluster slot of a key, and redirections by servers that do not own it.
//!
//! Computed for every key that is sent to a cluster, so the checksum uses a table.

use net::{HostPort, ServerAddress};

pub(crate) const SLOTS: u16 = 16_384;

/// The table of CRC16/XMODEM (polynomial 0x1021), the checksum that Redis uses.
#[expect(clippy::indexing_slicing, reason = "the compiler evaluates it")]
const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte: u16 = 0;
    while byte < 256 {
        let mut crc = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
};

pub(crate) fn slot(key: &[u8]) -> u16 {
    let step = |crc: u16, byte: &u8| {
        let [high, _] = crc.to_be_bytes();
        #[expect(clippy::indexing_slicing, reason = "the table has an entry for every byte")]
        let entry = CRC16[usize::from(high ^ byte)];
        (crc << 8) ^ entry
    };
    hash_tag(key).iter().fold(0, step) % SLOTS
}

/// The part of a key that decides its slot: its hash tag, the content of the first braces unless empty.
pub(crate) fn hash_tag(key: &[u8]) -> &[u8] {
    let inner = key.splitn(2, |byte| *byte == b'{').nth(1);
    let tag = inner.and_then(|inner| inner.split_at_checked(inner.iter().position(|byte| *byte == b'}')?));
    tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(key)
}

/// Parses the target of an error such as `MOVED 3999 10.0.0.2:6379` from the server `from`, and whether it is for one
/// command only, after `ASKING`; `None` for other errors, and without an address.
pub(crate) fn redirection(error: &str, from: &ServerAddress) -> Option<(ServerAddress, bool)> {
    let mut words = error.split_ascii_whitespace();
    let ask = match words.next()? {
        "MOVED" => false,
        "ASK" => true,
        _ => return None,
    };
    words.next()?.parse().ok().filter(|slot: &u16| *slot < SLOTS)?;
    // IPv6 addresses have no brackets, so the last colon counts.
    let (host, port) = words.next()?.rsplit_once(':')?;
    let host = match (host, from) {
        ("", ServerAddress::Tcp(from)) => from.host.clone(),
        ("" | "?", _) => return None,
        (host, _) => host.trim_start_matches('[').trim_end_matches(']').to_owned(),
    };
    Some((ServerAddress::Tcp(HostPort { host, port: port.parse().ok()? }), ask))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn from() -> ServerAddress {
        ServerAddress::Tcp(HostPort { host: "10.0.0.1".to_owned(), port: 6379 })
    }

    #[test]
    fn slots_are_those_of_redis() {
        // The checksum's own test vector, and slots as CLUSTER KEYSLOT reports them.
        for (key, expected) in [
            ("123456789", 0x31c3),
            ("", 0),
            ("foo", 12182),
            ("bar", 5061),
            ("hello", 866),
            ("somekey", 11058),
            ("foo{hash_tag}", 2515),
            ("bar{hash_tag}", 2515),
        ] {
            assert_eq!(slot(key.as_bytes()), expected % SLOTS, "{key}");
        }
    }

    #[test]
    fn the_hash_tag_is_the_content_of_the_first_braces() {
        for (key, part) in [
            ("{user1000}.following", "user1000"),
            ("foo{}{bar}", "foo{}{bar}"),
            ("foo{{bar}}zap", "{bar"),
            ("foo{bar}{zap}", "bar"),
            ("foo{bar", "foo{bar"),
            ("foo}bar{", "foo}bar{"),
            ("{", "{"),
        ] {
            assert_eq!(hash_tag(key.as_bytes()), part.as_bytes(), "{key}");
        }
    }

    #[test]
    fn parses_redirections() {
        for (error, ask, to) in [
            ("MOVED 3999 127.0.0.1:6381", false, "127.0.0.1:6381"),
            ("ASK 16383 redis-2.redis:6379", true, "redis-2.redis:6379"),
            ("MOVED 0 :7001", false, "10.0.0.1:7001"),
            ("MOVED 1 fd00::2:6379", false, "[fd00::2]:6379"),
            ("MOVED 1 [fd00::2]:6379", false, "[fd00::2]:6379"),
        ] {
            let (address, is_ask) = redirection(error, &from()).unwrap();
            assert_eq!((is_ask, address.to_string().as_str()), (ask, to), "{error}");
        }
    }

    #[test]
    fn ignores_other_errors() {
        for error in [
            "",
            "MOVED",
            "MOVED 3999",
            "MOVED 16384 127.0.0.1:6381",
            "MOVED -1 127.0.0.1:6381",
            "MOVED 3999 127.0.0.1",
            "MOVED 3999 127.0.0.1:99999",
            "MOVED 3999 ?:6379",
            "CLUSTERDOWN The cluster is down",
        ] {
            assert_eq!(redirection(error, &from()), None, "{error}");
        }
        let socket = ServerAddress::Unix("/run/redis".into());
        assert_eq!(redirection("MOVED 3999 :6381", &socket), None);
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_slot_and_any_error_is_parsed(key: Vec<u8>, text in "(MOVED|ASK)? ?[0-9]{0,6} ?.*") {
            prop_assert!(slot(&key) < SLOTS);
            let _ = redirection(&text, &from());
        }
    }
}
